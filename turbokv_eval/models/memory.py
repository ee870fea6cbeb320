"""Bytes of a KV cache for any type and context, from a model's metadata alone: to the byte what llama.cpp allocates.

A buffer holds, for each layer and each of K and V, cells x heads x length values, in whole blocks of the type. A layer
with a sliding window has no more cells than the window and one batch need.
"""

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from turbokv_eval.errors import BadInput
from turbokv_eval.models import kv_archs, kv_layers
from turbokv_eval.models.kv_layers import Rule
from turbokv_eval.models.kv_layout import CacheLayer, Layout
from turbokv_eval.models.types import KVConfig
from turbokv_eval.reference import rotation
from turbokv_eval.reference.types import BITS, block_for, by_shape

SCHEMA_VERSION = 1

# What the programs take as -ctk and -ctv. The order is that of their --help.
MAINLINE = ("f32", "f16", "bf16", "q8_0", "q4_0", "q4_1", "iq4_nl", "q5_0", "q5_1")
_FLOATS = ("f32", "f16", "bf16")
FAMILIES = {f"turbo{bits}": bits for bits in BITS}
KNOWN = (*MAINLINE, *FAMILIES)

# llama.cpp rounds contexts and windows up to this many cells (GGML_PAD in llama-context.cpp, llama-kv-cache-iswa.cpp).
CELLS = 256
# Buffers start every tensor at a multiple of this (TENSOR_ALIGNMENT in ggml-impl.h). Only recurrent states are ever
# no multiple of it.
_ALIGNMENT = 32
# The programs' -b and -ub.
BATCH, UBATCH = 2048, 512
# n_ctx is 32 bits wide, and so are cells times heads in places: what no machine has is not searched.
_MAX_CTX = 1 << 30


@dataclass(frozen=True)
class Block:
    """How a type stores values: `bytes` for every `values`."""

    name: str
    values: int
    bytes: int

    @property
    def bits_per_value(self) -> float:
        """Bits of a value, its share of the scale among them."""
        return 8 * self.bytes / self.values


def block_of(type_name: str, length: int) -> Block:
    """The block that heads of `length` values are stored in. A turbo family is resolved by it (FORMAT.md section 1).

    Raises ValueError, with the reason, where the type cannot store such heads.
    """
    if bits := FAMILIES.get(type_name):
        n = block_for(length)
        # A block that divides is not enough: the head must have a rotation too. 576 is rotated in two parts.
        rotation.hadamard(n if length == 576 else length)
        found = by_shape(bits, n)
        return Block(found.name, found.n, found.block_bytes)
    values, size = GGML_QUANT_SIZES[GGMLQuantizationType[type_name.upper()]]
    if length % values:
        raise ValueError(f"{type_name} stores {values} values a block, which do not divide heads of {length} values")
    return Block(type_name, values, size)


@dataclass(frozen=True)
class Shape:
    """The settings of a context that its cache depends on.

    ctx:      tokens, over all sequences; llama.cpp's -c.
    parallel: sequences, -np; unified: they share one cache, -kvu.
    ubatch:   tokens computed at a time, -ub.
    swa_full: windows are kept whole, --swa-full.
    """

    ctx: int
    parallel: int = 1
    unified: bool = False
    ubatch: int = UBATCH
    swa_full: bool = False

    @property
    def streams(self) -> int:
        """Caches side by side."""
        return 1 if self.unified else self.parallel

    @property
    def cells(self) -> int:
        """Of one stream: tokens of one sequence, rounded up as llama.cpp does."""
        total = _pad(self.ctx)
        return total if self.unified else _pad(total // self.parallel)

    def window_cells(self, window: int) -> int:
        """Of one stream of the layers with a sliding window of this length."""
        if self.swa_full:
            return self.cells
        batch = min(self.ctx, BATCH, self.ubatch)
        return _pad(min(self.cells, window * (self.parallel if self.unified else 1) + batch))


def _pad(cells: int, to: int = CELLS) -> int:
    return -(-cells // to) * to


@dataclass(frozen=True)
class LayerBytes:
    """One layer in one cache type.

    k, v:  bytes of one token; v is 0 where V is a view of K. k_type, v_type: as resolved.
    cells: tokens that it keeps, over all streams.
    """

    layer: CacheLayer
    k_type: str
    v_type: str | None
    k: int
    v: int
    cells: int

    @property
    def per_token(self) -> int:
        """Bytes of a token in this layer."""
        return self.k + self.v

    @property
    def total(self) -> int:
        """Bytes of all cells of the layer."""
        return self.per_token * self.cells


@dataclass(frozen=True)
class CacheBytes:
    """A whole cache. recurrent: bytes of the states, which no cache type changes."""

    config: KVConfig
    layers: tuple[LayerBytes, ...]
    recurrent: int

    @property
    def kv(self) -> int:
        """Bytes of K and V: the sum of what the log calls `KV buffer size`."""
        return sum(layer.total for layer in self.layers)

    @property
    def total(self) -> int:
        """Bytes of the cache."""
        return self.kv + self.recurrent

    @property
    def per_token(self) -> int:
        """Bytes that a token adds in all layers, while no window is full."""
        return sum(layer.per_token for layer in self.layers)

    @property
    def per_token_full(self) -> int:
        """Bytes that every further token adds: those of the layers without a window."""
        return sum(layer.per_token for layer in self.layers if not layer.layer.windowed)

    @property
    def bits_per_value(self) -> float:
        """Stored bits for each value of K and V, over all cells."""
        values = sum(
            layer.cells * layer.layer.heads * (layer.layer.k_length + (layer.layer.v_length or 0))
            for layer in self.layers
        )
        return 8 * self.kv / values

    def side(self, kind: str) -> tuple[int, int]:
        """Bytes of K and of V in the layers of a kind (`full` or `sliding window`)."""
        found = [layer for layer in self.layers if layer.layer.kind == kind]
        return sum(layer.k * layer.cells for layer in found), sum(layer.v * layer.cells for layer in found)


def cache_bytes(layout: Layout, config: KVConfig, shape: Shape, rules: Sequence[Rule] = ()) -> CacheBytes:
    """What llama.cpp allocates for this model, with flash attention on (off, it pads V of unlike layers).

    Not counted: the vectors of rotation and conditioning, at most 24 bytes for each channel of each layer.
    rules: types of single layers (--kv-layers), before those of `config`, whose own rules come last.
    Raises BadInput, with the reason, for types that the model cannot have.
    """
    rules = (*rules, *kv_layers.parse(config.layers, KNOWN))
    kv_layers.check(rules, layout.n_layer)
    refuse(layout, config)
    configs = []
    for layer in layout.layers:
        k, v = kv_layers.apply(rules, config.k, config.v, layer.index, layout.n_layer)
        configs.append(replace(config, k=k, v=v))
    for own in set(configs):
        refuse(layout, own, by_rule=own != config)
    window = shape.window_cells(layout.window) * shape.streams if layout.window else 0
    full = shape.cells * shape.streams
    layers = tuple(
        _layer(layer, own, window if layer.windowed else full)
        for layer, own in zip(layout.layers, configs, strict=True)
    )
    rows = max(1, shape.parallel)
    recurrent = sum(_pad(4 * n * rows, _ALIGNMENT) for layer in layout.recurrent for n in (layer.r, layer.s))
    return CacheBytes(config, layers, recurrent)


def refuse(layout: Layout, config: KVConfig, by_rule: bool = False) -> None:
    """Raises BadInput for types that the programs refuse for the whole model, as llama_init_from_model does.

    by_rule: of single layers; the fork is stricter with these than llama.cpp is with the types of a whole cache.
    """
    if layout.turbo_refused and (config.k in FAMILIES or config.v in FAMILIES):
        raise BadInput(f"turbo types are refused for architecture {layout.arch}; use q8_0 or f16")
    if layout.mla and config.k != config.v:
        raise BadInput("V is a view of K in this model (MLA), so both must be of one type")
    refused = config.v in FAMILIES or (config.v not in _FLOATS and (by_rule or layout.arch == "grok"))
    if layout.arch in kv_archs.LACKS_FLASH_ATTENTION and refused:
        raise BadInput(
            f"V in {config.v} needs flash attention, which architecture {layout.arch} does not have; use f16 for V"
        )


def _layer(layer: CacheLayer, config: KVConfig, cells: int) -> LayerBytes:
    def row(type_name: str, length: int, side: str) -> tuple[str, int]:
        try:
            block = block_of(type_name, length)
        except ValueError as e:
            raise BadInput(f"layer {layer.index} cannot have {side} in {type_name}: {e}") from None
        return block.name, layer.heads * length // block.values * block.bytes

    if layer.heads == 0:
        return LayerBytes(layer, config.k, None, 0, 0, cells)
    k_type, k = row(config.k, layer.k_length, "K")
    v_type, v = (None, 0) if layer.v_length is None else row(config.v, layer.v_length, "V")
    return LayerBytes(layer, k_type, v_type, k, v, cells)


def largest_context(size_at: Callable[[int], int], budget: int, parallel: int = 1) -> int:
    """The largest number of tokens, a multiple of 256 for each sequence, whose size is within the budget; 0 for none.

    size_at: bytes for a number of tokens, never falling.
    """
    step = CELLS * parallel
    low, high = 0, 1
    while high * step <= _MAX_CTX and size_at(high * step) <= budget:
        low, high = high, high * 2
    high = min(high, _MAX_CTX // step + 1)
    while high - low > 1:
        middle = (low + high) // 2
        if size_at(middle * step) <= budget:
            low = middle
        else:
            high = middle
    return low * step


def document(
    layout: Layout,
    configs: Sequence[KVConfig],
    shape: Shape,
    budgets: Sequence[int] = (),
    reserve: int = 0,
    rules: Sequence[Rule] = (),
) -> dict[str, Any]:
    """Everything the command tells, as JSON: sizes in bytes, contexts in tokens.

    budgets: bytes of memory for weights, cache and `reserve` together. rules: types of single layers.
    A type that the model cannot have gets its reason in place of numbers. Raises BadInput when none can be had.
    """
    kv_layers.check(rules, layout.n_layer)
    rows = [_row(layout, config, shape, budgets, reserve, rules) for config in configs]
    if all(row["error"] for row in rows):
        raise BadInput(f"no type of the list works for this model: {rows[0]['error']}")
    return {
        "schema_version": SCHEMA_VERSION,
        "tool": "turbokv-eval memory",
        "model": {
            "name": layout.name,
            "arch": layout.arch,
            "n_ctx_train": layout.n_ctx_train,
            "weight_bytes": layout.weights,
            "window": layout.window,
            "mla": layout.mla,
            "layers": [
                {
                    "layer": layer.index,
                    "kind": layer.kind,
                    "heads_kv": layer.heads,
                    "key_length": layer.k_length,
                    "value_length": layer.v_length,
                }
                for layer in layout.layers
            ],
            "recurrent_layers": [layer.index for layer in layout.recurrent],
            "layers_sharing_a_cache": layout.shared,
        },
        "settings": {
            "ctx": shape.ctx,
            "cells": shape.cells * shape.streams,
            "window_cells": shape.window_cells(layout.window) * shape.streams if layout.window else 0,
            "parallel": shape.parallel,
            "unified": shape.unified,
            "ubatch": shape.ubatch,
            "swa_full": shape.swa_full,
            "budgets": list(budgets),
            "reserve_bytes": reserve,
            "kv_layers": [asdict(rule) for rule in rules],
        },
        "rows": rows,
        "notes": _notes(layout),
    }


def _row(
    layout: Layout, config: KVConfig, shape: Shape, budgets: Sequence[int], reserve: int, rules: Sequence[Rule]
) -> dict[str, Any]:
    row: dict[str, Any] = {"label": config.label, "k": config.k, "v": config.v, "error": None}
    try:
        cache = cache_bytes(layout, config, shape, rules)
    except BadInput as e:
        return {**row, "error": e.message}

    def size_at(ctx: int) -> int:
        at = Shape(ctx, shape.parallel, shape.unified, shape.ubatch, shape.swa_full)
        return layout.weights + reserve + cache_bytes(layout, config, at, rules).total

    return {
        **row,
        "bits_per_value": cache.bits_per_value,
        "bytes": cache.total,
        "kv_bytes": cache.kv,
        "recurrent_bytes": cache.recurrent,
        "bytes_per_token": cache.per_token,
        "bytes_per_token_full_layers": cache.per_token_full,
        "total_bytes": layout.weights + reserve + cache.total,
        "layers": [
            {
                "layer": layer.layer.index,
                "k_type": layer.k_type,
                "v_type": layer.v_type,
                "k_bytes_per_token": layer.k,
                "v_bytes_per_token": layer.v,
                "cells": layer.cells,
                "bytes": layer.total,
            }
            for layer in cache.layers
        ],
        "largest_context": [
            {"budget": budget, "ctx": largest_context(size_at, budget, 1 if shape.unified else shape.parallel)}
            for budget in budgets
        ],
    }


def _notes(layout: Layout) -> list[str]:
    notes = list(layout.notes)
    if layout.mla:
        notes.append("latent attention (MLA): values are a part of the keys, so only K is stored, and -ctv has no say")
    if layout.window:
        windowed = sum(layer.windowed for layer in layout.layers)
        notes.append(f"{windowed} of {len(layout.layers)} layers keep a sliding window of {layout.window} tokens")
    if layout.shared:
        notes.append(f"{layout.shared} layers use the cache of an earlier layer")
    if layout.recurrent:
        notes.append(f"{len(layout.recurrent)} layers have a recurrent state, of one size at any context")
    return notes
