"""Cache types as the user writes them: `turbo3` for K and V alike, `q8_0/turbo3` for K and V.

`+RULES` behind either gives single layers other types, as `--kv-layers` takes them: `turbo3+0-1,-1:q8_0`. `@off`, `@on`
or `@FILE` at the end says how keys are conditioned; without it the programs decide (`auto`: turbo K types are, others
are not).
"""

import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from turbokv_eval.errors import BadInput
from turbokv_eval.models import kv_layers


@dataclass(frozen=True)
class KVConfig:
    """One row of a comparison.

    k, v:  names of the cache types, as the programs' `-ctk` and `-ctv` take them.
    condition: how keys are conditioned, as `--kv-condition` takes it; empty: not said, which is `auto`.
    layers: types of single layers, as `--kv-layers` takes them; empty: none.
    """

    k: str
    v: str
    condition: str = ""
    layers: str = ""

    @property
    def label(self) -> str:
        """What the user wrote: `k` when both sides are alike, else `k/v`; `+layers` and `@condition` where said."""
        name = self.k if self.k == self.v else f"{self.k}/{self.v}"
        name += f"+{self.layers}" if self.layers else ""
        return f"{name}@{self.condition}" if self.condition else name

    @property
    def args(self) -> list[str]:
        """The arguments that llama-perplexity and llama-bench both take."""
        condition = ["--kv-condition", self.condition] if self.condition else []
        layers = ["--kv-layers", self.layers] if self.layers else []
        return ["-ctk", self.k, "-ctv", self.v, *condition, *layers]

    @property
    def conditioned(self) -> bool | None:
        """Whether keys must be conditioned. None: turbo keys are, unless the model's attention does not allow it."""
        if self.condition in ("", "auto"):
            return None if any(k.startswith("turbo") for k in self.k_types) else False
        return self.condition != "off"

    @property
    def k_types(self) -> tuple[str, ...]:
        """The K types that any layer may have."""
        return (self.k, *(rule.k for rule in self.rules))

    @property
    def rules(self) -> tuple[kv_layers.Rule, ...]:
        """`layers`, read; its types are not checked."""
        return kv_layers.parse(self.layers)

    @property
    def slug(self) -> str:
        """`label` as a file name."""
        return re.sub(r"[^A-Za-z0-9_.+]+", "-", self.label).strip("-")


def is_type(asked: str, reported: str) -> bool:
    """Whether the type that a run reports is the one that was asked for.

    A family (`turbo3`) is reported with the block that a layer uses (`turbo3_64`); `q4_0` never means `q4_1`.
    """
    return reported == asked or re.fullmatch(re.escape(asked) + r"_\d{2,}", reported) is not None


def parse_types(spec: str, known: Collection[str]) -> list[KVConfig]:
    """Parses a comma-separated list of types, K/V pairs and rules for layers, in order. Raises BadInput.

    known: the types that the built programs name in their `--help`.
    """
    configs: list[KVConfig] = []
    for item in _items(spec):
        head, at, condition = item.partition("@")
        types, plus, layers = head.partition("+")
        k, slash, v = types.partition("/")
        for name in (k, v) if slash else (k,):
            if name not in known:
                what = f"unknown cache type {name!r}" if name else f"an empty cache type in {spec!r}"
                raise BadInput(f"{what}: the built programs know {', '.join(known)}; a pair is written K/V")
        if plus and not layers:
            raise BadInput(f"{item!r}: behind + stand types of single layers, as in {types}+0-1,-1:q8_0")
        kv_layers.parse(layers, known)
        if at and condition not in ("auto", "on", "off") and not Path(condition).is_file():
            raise BadInput(f"{item!r}: behind @ stands auto, on, off or a file, and no file {condition!r} exists")
        config = KVConfig(k, v if slash else k, condition, layers)
        if config in configs:
            raise BadInput(f"cache type {config.label} is listed twice in {spec!r}: leave one out")
        configs.append(config)
    return configs


def _items(spec: str) -> list[str]:
    """The rows of a list. What starts like a layer, and so like no type, goes on with the rules before it."""
    items: list[str] = []
    for part in (part.strip() for part in spec.split(",")):
        if items and "+" in items[-1] and re.match(r"-?\d", part):
            items[-1] += f",{part}"
        else:
            items.append(part)
    return items
