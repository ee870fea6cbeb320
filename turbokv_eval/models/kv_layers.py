"""Cache types by layer, as the programs' `--kv-layers` takes them: `0-1,-1:q8_0;5:f16/turbo3`.

A rule names layers and a type, or a K and a V type; a later rule wins. Layers count from 0, negative ones from the end.
"""

import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from turbokv_eval.errors import BadInput

_EXAMPLE = "write for example '0-1,-1:q8_0'"


@dataclass(frozen=True)
class Rule:
    """K and V types of the layers in `ranges`, both ends included, as written."""

    ranges: tuple[tuple[int, int], ...]
    k: str
    v: str


def parse(text: str, known: Collection[str] | None = None) -> tuple[Rule, ...]:
    """The rules in `text`; none in an empty one. known: names of types; None: any. Raises BadInput."""
    return tuple(_rule(part, known) for part in text.split(";")) if text else ()


def _rule(text: str, known: Collection[str] | None) -> Rule:
    layers, colon, types = text.partition(":")
    names = types.split("/")
    if not colon or not layers or len(names) > 2:
        raise BadInput(f"{text!r} is no rule for layers: {_EXAMPLE}")
    for name in names:
        if known is not None and name not in known:
            raise BadInput(f"unknown cache type {name!r} in {text!r}: {', '.join(known)} are known")
    ranges = []
    for part in layers.split(","):
        found = re.fullmatch(r"(-?\d{1,4})(?:-(-?\d{1,4}))?", part)
        if found is None:
            raise BadInput(f"{part!r} is no layer and no range of layers: {_EXAMPLE}")
        first = int(found[1])
        ranges.append((first, first if found[2] is None else int(found[2])))
    return Rule(tuple(ranges), names[0], names[-1])


def check(rules: Sequence[Rule], n_layer: int) -> None:
    """Raises BadInput for a layer that a model of `n_layer` layers does not have."""
    for rule in rules:
        for first, last in rule.ranges:
            for layer in (first, last):
                if not -n_layer <= layer < n_layer:
                    raise BadInput(f"layer {layer} does not exist: the model has layers 0 to {n_layer - 1}")
            if first % n_layer > last % n_layer:
                raise BadInput(f"the range {first}-{last} is empty in a model of {n_layer} layers")


def apply(rules: Sequence[Rule], k: str, v: str, layer: int, n_layer: int) -> tuple[str, str]:
    """The K and V types of one layer, where `k` and `v` are those of layers without a rule."""
    for rule in rules:
        if any(first % n_layer <= layer <= last % n_layer for first, last in rule.ranges):
            k, v = rule.k, rule.v
    return k, v
