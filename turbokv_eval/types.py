"""Cache types as the user writes them: `turbo3` for K and V alike, `q8_0/turbo3` for K and V.

`@off`, `@on` or `@FILE` behind either says how keys are conditioned; without it the programs decide (`auto`: turbo K
types are, others are not).
"""

import re
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from turbokv_eval.errors import BadInput


@dataclass(frozen=True)
class KVConfig:
    """One row of a comparison.

    k, v:  names of the cache types, as the programs' `-ctk` and `-ctv` take them.
    condition: how keys are conditioned, as `--kv-condition` takes it; empty: not said, which is `auto`.
    """

    k: str
    v: str
    condition: str = ""

    @property
    def label(self) -> str:
        """What the user wrote: `k` when both sides are alike, else `k/v`; `@condition` follows where it was said."""
        name = self.k if self.k == self.v else f"{self.k}/{self.v}"
        return f"{name}@{self.condition}" if self.condition else name

    @property
    def args(self) -> list[str]:
        """The arguments that llama-perplexity and llama-bench both take."""
        condition = ["--kv-condition", self.condition] if self.condition else []
        return ["-ctk", self.k, "-ctv", self.v, *condition]

    @property
    def conditioned(self) -> bool | None:
        """Whether the run must report conditioned keys.

        None: either is right; `auto` conditions turbo keys, unless the model's attention does not allow it.
        """
        if self.condition in ("", "auto"):
            return None if self.k.startswith("turbo") else False
        return self.condition != "off"

    @property
    def slug(self) -> str:
        """`label` as a file name."""
        return re.sub(r"[^A-Za-z0-9_.]+", "-", self.label).strip("-")


def is_type(asked: str, reported: str) -> bool:
    """Whether the type that a run reports is the one that was asked for.

    A family (`turbo3`) is reported with the block that a layer uses (`turbo3_64`); `q4_0` never means `q4_1`.
    """
    return reported == asked or re.fullmatch(re.escape(asked) + r"_\d{2,}", reported) is not None


def parse_types(spec: str, known: Collection[str]) -> list[KVConfig]:
    """Parses a comma-separated list of types and K/V pairs, in order. Raises BadInput.

    known: the types that the built programs name in their `--help`.
    """
    configs: list[KVConfig] = []
    for item in (part.strip() for part in spec.split(",")):
        types, at, condition = item.partition("@")
        k, slash, v = types.partition("/")
        for name in (k, v) if slash else (k,):
            if name not in known:
                what = f"unknown cache type {name!r}" if name else f"an empty cache type in {spec!r}"
                raise BadInput(f"{what}: the built programs know {', '.join(known)}; a pair is written K/V")
        if at and condition not in ("auto", "on", "off") and not Path(condition).is_file():
            raise BadInput(f"{item!r}: behind @ stands auto, on, off or a file, and no file {condition!r} exists")
        config = KVConfig(k, v if slash else k, condition)
        if config in configs:
            raise BadInput(f"cache type {config.label} is listed twice in {spec!r}: leave one out")
        configs.append(config)
    return configs
