"""Reads back from a run's own log which cache it really made: types, sizes, flash attention, rotation, conditioning."""

import re
from dataclasses import asdict, dataclass, field
from typing import Any

from turbokv_eval.models import kv_layers
from turbokv_eval.models.gguf_info import ModelInfo
from turbokv_eval.models.types import KVConfig, is_type

MIB = 1 << 20

_SIZE = re.compile(
    r"size = +(?P<size>[\d.]+) MiB \( *(?P<cells>\d+) cells, +(?P<layers>\d+) layers, +\d+/(?P<streams>\d+) seqs\),"
    r" K \((?P<k_type>\w+)\): +(?P<k_mib>[\d.]+) MiB, V \((?P<v_type>\w+)\): +(?P<v_mib>[\d.]+) MiB"
)
# Printed by the fork only: one line for each kind of layer, with the type that the layers resolved to.
_LAYERS = re.compile(
    r"kv cache layers \((?P<kind>[^)]+)\): (?P<layers>\d+),"
    r" K (?P<k_type>\w+) x (?P<k_dim>\d+), (?P<k_bits>[\d.]+) bits/value, (?P<k_mib>[\d.]+) MiB,"
    r" V (?:(?P<v_type>\w+) x (?P<v_dim>\d+), (?P<v_bits>[\d.]+) bits/value, (?P<v_mib>[\d.]+) MiB|view of K)"
    r"(?P<rotated>, rotated[^,\n]*)?(?P<conditioned>, K conditioned)?(?:, layers (?P<members>[\d,-]+))?"
)
_BUFFER = re.compile(r"(\S+) KV buffer size = +([\d.]+) MiB")
# Printed by the fork only: the operations on the cache that its device has no kernels for.
_FALLBACK = re.compile(r"turbo operations fall back: ([^;\n]+); the cache is on (\S+),")
_FLASH = re.compile(r"flash_attn += (\w+)")
# What the library decided; before the context that it decided it for. Or that the context, of f32, is for measuring.
_MEASURING = "measuring the keys"
_CONDITIONING = re.compile(
    rf"key conditioning: (?:.*, (?=\d+ layers, ))?(off, .*|\d+ layers, keys are .*|{_MEASURING})"
)
# The head dimension is not above 0 where layers differ in it, which llama.cpp does not rotate.
_ROTATION = re.compile(r"attn_rot_([kv]) = (\d+), n_embd_head_k_all = (-?\d+)")


@dataclass(frozen=True)
class Cache:
    """One cache of a context. cells: tokens in each of its streams. Sizes in MiB, as printed (two decimals)."""

    cells: int
    streams: int
    layers: int
    k_type: str
    k_mib: float
    v_type: str
    v_mib: float


@dataclass(frozen=True)
class LayerKind:
    """Layers that resolved to the same types.

    dim: values in a head. v_* are None where V is a view of K. members: which layers, where they have types of their
    own, as `0-1,29`; else empty.
    """

    kind: str
    layers: int
    k_type: str
    k_dim: int
    k_bits: float
    k_mib: float
    v_type: str | None
    v_dim: int | None
    v_bits: float | None
    v_mib: float | None
    rotated: bool
    conditioned: bool
    members: str = ""


@dataclass(frozen=True)
class KVReport:
    """What one context of a run logged of its cache.

    buffers_mib: "KV buffer size", summed over devices and caches.
    devices:     where those buffers are, as llama.cpp names them: CPU, CUDA0.
    flash_attn:  `enabled`, `disabled` or `auto`, or empty when the log does not say.
    fallback:    which operations on the cache run on another device than its own, or empty.
    rotation:    upstream's own rotation, of K and V, over all caches; None where there is none or it is not said.
    conditioning: what the library said of it, `off, REASON` or how keys are; empty where it says nothing.
    """

    flash_attn: str
    buffers_mib: float
    caches: tuple[Cache, ...]
    kinds: tuple[LayerKind, ...] = ()
    rotation: dict[str, bool | None] = field(default_factory=dict)
    devices: tuple[str, ...] = ()
    fallback: str = ""
    conditioning: str = ""

    @property
    def conditioned(self) -> bool:
        """Whether the keys of any layer were conditioned."""
        return any(kind.conditioned for kind in self.kinds)

    @property
    def mib(self) -> float:
        """MiB of all caches of the context, as logged."""
        return sum(cache.k_mib + cache.v_mib for cache in self.caches)

    @property
    def cells(self) -> int:
        """Tokens that the largest cache of the context has room for."""
        return max((cache.cells * cache.streams for cache in self.caches), default=0)

    def as_dict(self) -> dict[str, Any]:
        """The report as the document has it."""
        return {**asdict(self), "mib": round(self.mib, 3), "cells": self.cells, "conditioned": self.conditioned}


def parse_contexts(log: str) -> list[KVReport]:
    """Every context that the log tells of, in order.

    Not the dry runs that only estimate memory, and not the contexts in which keys are measured for conditioning.
    """
    reports = []
    before, *sections = log.split("constructing llama_context")
    for section in sections:
        said = _CONDITIONING.findall(before)
        if said[-1:] != [_MEASURING]:
            reports.append(_parse(section, said[-1] if said else ""))
        before = section
    return [report for report in reports if report.caches and (report.buffers_mib > 0 or report.mib == 0)]


def _parse(section: str, conditioning: str) -> KVReport:
    flash = _FLASH.search(section)
    fallback = _FALLBACK.search(section)
    rotation: dict[str, bool | None] = {}
    for side in "kv":
        flags = [flag != "0" for name, flag, dim in _ROTATION.findall(section) if name == side and int(dim) > 0]
        rotation[side] = any(flags) if flags else None
    caches = tuple(
        Cache(
            cells=int(m["cells"]),
            streams=int(m["streams"]),
            layers=int(m["layers"]),
            k_type=m["k_type"],
            k_mib=float(m["k_mib"]),
            v_type=m["v_type"],
            v_mib=float(m["v_mib"]),
        )
        for m in _SIZE.finditer(section)
    )
    kinds = tuple(
        LayerKind(
            kind=m["kind"],
            layers=int(m["layers"]),
            k_type=m["k_type"],
            k_dim=int(m["k_dim"]),
            k_bits=float(m["k_bits"]),
            k_mib=float(m["k_mib"]),
            v_type=m["v_type"],
            v_dim=int(m["v_dim"]) if m["v_dim"] else None,
            v_bits=float(m["v_bits"]) if m["v_bits"] else None,
            v_mib=float(m["v_mib"]) if m["v_mib"] else None,
            rotated=m["rotated"] is not None,
            conditioned=m["conditioned"] is not None,
            members=m["members"] or "",
        )
        for m in _LAYERS.finditer(section)
    )
    return KVReport(
        flash_attn=flash[1] if flash else "",
        buffers_mib=sum(float(size) for _, size in _BUFFER.findall(section)),
        devices=tuple(dict.fromkeys(name for name, size in _BUFFER.findall(section) if float(size) > 0)),
        caches=caches,
        kinds=kinds,
        rotation=rotation,
        fallback=f"{fallback[1]}, the cache is on {fallback[2]}" if fallback else "",
        conditioning=conditioning,
    )


def problems(config: KVConfig, flash_attn: bool, reports: list[KVReport], n_layer: int = 0) -> list[str]:
    """How what ran differs from what was asked for; empty when it does not.

    n_layer: layers of the model, which types of single layers are counted by.
    """
    if not reports:
        return ["the run did not report its KV cache, so its types cannot be checked"]
    found: list[str] = []
    for report in reports:
        found += [
            f"{side} was {reported}, not {asked}" for side, asked, reported in _other_types(config, report, n_layer)
        ]
        found += _conditioned_unlike(config, report)
        found += [f"{side} was not rotated: its error is larger than it has to be" for side in _unrotated(report)]
        if report.fallback:
            found.append(f"{report.fallback}: use -ngl 0, or a build that has these kernels")
        want = "enabled" if flash_attn else "disabled"
        if report.flash_attn != want:
            found.append(f"flash attention was {report.flash_attn or 'not reported'}, not {want}")
    return list(dict.fromkeys(found))


def _other_types(config: KVConfig, report: KVReport, n_layer: int) -> list[tuple[str, str, str]]:
    """(side, type asked for, type reported) of every difference."""
    # A cache's own line names the types that were asked for all layers.
    pairs = [("K", config.k, cache.k_type) for cache in report.caches]
    pairs += [("V", config.v, cache.v_type) for cache in report.caches]
    for kind in report.kinds:
        layers = _numbers(kind.members)
        if config.layers and not layers:
            pairs.append(("each layer's type", config.layers, "not reported"))
        asked = {kv_layers.apply(config.rules, config.k, config.v, layer, n_layer) for layer in layers}
        for k, v in sorted(asked) or [(config.k, config.v)]:
            pairs += [("K", k, kind.k_type)] + ([("V", v, kind.v_type)] if kind.v_type is not None else [])
    return [pair for pair in sorted(set(pairs)) if not is_type(pair[1], pair[2])]


def _numbers(members: str) -> list[int]:
    """The layers in `0-1,29`."""
    ends = [part.split("-") for part in members.split(",") if part]
    return [number for part in ends for number in range(int(part[0]), int(part[-1]) + 1)]


# Why `auto` may leave turbo keys plain, in the words of llama-kv-condition.cpp.
_MAY_BE_PLAIN = (
    "values are a view of the keys",
    "encoder-decoder models are not measured",
    "architecture ",
    "the model caches no keys",
)


def _conditioned_unlike(config: KVConfig, report: KVReport) -> list[str]:
    """How the keys were conditioned unlike what was asked; nothing where the build has nothing to condition with."""
    if not report.kinds:
        return []
    if config.conditioned is not None:
        wrong = config.conditioned != report.conditioned
        said = "" if report.conditioned else "not "
        return [f"keys were {said}conditioned, unlike what was asked"] if wrong else []
    plain = any(kind.k_type.startswith("turbo") and not kind.conditioned for kind in report.kinds)
    off, _, reason = report.conditioning.partition("off, ")
    if not plain or (not off and reason.startswith(_MAY_BE_PLAIN)):
        return []
    return [f"turbo keys were not conditioned under auto ({reason or 'the run gives no reason'}); @off asks for that"]


# Exact enough that nothing rotates them.
_FLOATS = ("f32", "f16", "bf16")


def _unrotated(report: KVReport) -> list[str]:
    """The sides with a quantised type that ran without the rotation that llama.cpp, or the fork, has for it."""
    sides: set[str] = set()
    for kind in report.kinds:
        for side, name, dim in (("K", kind.k_type, kind.k_dim), ("V", kind.v_type, kind.v_dim)):
            if name is None or dim is None or name in _FLOATS or kind.rotated:
                continue
            # llama.cpp's own rotation is for heads of a multiple of 64
            if name.startswith("turbo") or (dim % 64 == 0 and report.rotation.get(side.lower()) is False):
                sides.add(side)
    return sorted(sides)


def bits_per_value(report: KVReport, model: ModelInfo) -> float | None:
    """Bits of the run's cache for each stored value: its reported bytes over the values that the metadata counts.

    Where metadata cannot count them (MLA, mixed layers), the run's own figures for each kind of layer; None without.
    """
    bits = values = 0.0
    for cache in report.caches:
        counted = model.values_per_cell(cache.layers)
        if counted is None:
            return logged_bits(report)
        values += sum(counted) * cache.cells * cache.streams
        bits += (cache.k_mib + cache.v_mib) * MIB * 8
    return bits / values if values else None


def logged_bits(report: KVReport) -> float | None:
    """The run's own bits/value over all kinds of layers; None when it prints none (an unpatched llama.cpp)."""
    sides = [(kind.k_mib, kind.k_bits) for kind in report.kinds]
    sides += [(kind.v_mib, kind.v_bits) for kind in report.kinds if kind.v_mib is not None and kind.v_bits is not None]
    values = sum(mib / bits for mib, bits in sides)
    return sum(mib for mib, _ in sides) / values if values else None
