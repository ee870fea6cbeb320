"""Cache types as the user writes them: `turbo3` for K and V alike, `q8_0/turbo3` for K and V."""

import re
from collections.abc import Collection
from dataclasses import dataclass

from turbokv_eval.errors import BadInput


@dataclass(frozen=True)
class KVConfig:
    """One row of a comparison.

    k, v:  names of the cache types, as the programs' `-ctk` and `-ctv` take them.
    extra: further arguments of the programs that belong to the row, for example how keys are conditioned.
    """

    k: str
    v: str
    extra: tuple[str, ...] = ()

    @property
    def label(self) -> str:
        """What the user wrote: `k` when both sides are alike, else `k/v`; extra arguments follow."""
        name = self.k if self.k == self.v else f"{self.k}/{self.v}"
        return " ".join((name, *self.extra))

    @property
    def args(self) -> list[str]:
        """The arguments that llama-perplexity and llama-bench both take."""
        return ["-ctk", self.k, "-ctv", self.v, *self.extra]

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
        k, slash, v = item.partition("/")
        for name in (k, v) if slash else (k,):
            if name not in known:
                what = f"unknown cache type {name!r}" if name else f"an empty cache type in {spec!r}"
                raise BadInput(f"{what}: the built programs know {', '.join(known)}; a pair is written K/V")
        config = KVConfig(k, v if slash else k)
        if config in configs:
            raise BadInput(f"cache type {config.label} is listed twice in {spec!r}: leave one out")
        configs.append(config)
    return configs
