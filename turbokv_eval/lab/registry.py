"""Every method of the laboratory by name: families with their rates, and METHODS, the flat list at those rates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from turbokv_eval.lab.method import Method


@dataclass(frozen=True)
class Family:
    """A method at several rates. summary: one line for a list; rates: nominal bits a value that `build` takes."""

    summary: str
    rates: tuple[float, ...]
    build: Callable[[float], Method]

    def __call__(self, bits: float) -> Method:
        """The method at a nominal rate. Raises ValueError for a rate that is not in rates."""
        if bits not in self.rates:
            raise ValueError(f"no rate {bits:g}; there are {', '.join(f'{rate:g}' for rate in self.rates)}")
        return self.build(bits)


FAMILIES: dict[str, Family] = {}

METHODS: dict[str, Method] = {m.name: m for family in FAMILIES.values() for m in map(family, family.rates)}
"""By `Method.name`, such as `turboquant_mse-3`."""
