"""Rotary position embedding as a transform: forward takes the rotation off the rows, inverse puts it on again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from turbokv_eval.lab.method import F32, require_rows
from turbokv_eval.lab.transform import FittedTransform


@dataclass(frozen=True)
class Rope:
    """RoPE (Su et al. 2021, arXiv:2104.09864, eq. 15): pair i of a row at position p turns by p * base^(-2i/dims).

    layout: "neox" pairs channel i with i + dims/2, "norm" pairs 2i with 2i + 1. dims: how many channels turn, None for
    all. Rows are successive tokens of which the first, for calibration rows too, is at position `start`.
    """

    base: float = 10000.0
    layout: Literal["neox", "norm"] = "neox"
    dims: int | None = None
    start: int = 0

    @property
    def name(self) -> str:
        """`prerope`."""
        return "prerope"

    def fit(self, keys: F32, queries: F32 | None = None) -> FittedTransform:
        """Checks the width only. Errors as `Method.fit`; ValueError for dims that are odd or more than d."""
        d = require_rows(keys, "keys")
        dims = d if self.dims is None else self.dims
        if dims % 2 or not 0 < dims <= d:
            raise ValueError(f"dims must be even and at most {d}, got {dims}")
        return _FittedRope(self.base, self.layout, dims, self.start)


@dataclass(frozen=True)
class _FittedRope:
    base: float
    layout: str
    dims: int
    start: int

    def forward(self, x: F32) -> F32:
        return self._turn(x, -1)

    def inverse(self, y: F32) -> F32:
        return self._turn(y, 1)

    def query(self, q: F32) -> F32:
        """Queries as if they stood at the rows' positions; good for second moments only."""
        return self._turn(q, -1)

    def _turn(self, x: F32, direction: int) -> F32:
        require_rows(x, "x")
        if x.shape[1] < self.dims:
            raise ValueError(f"x must have at least {self.dims} values a row, got {x.shape[1]}")
        half = self.dims // 2
        frequency = self.base ** (-np.arange(half) / half)
        angle = direction * np.outer(self.start + np.arange(len(x)), frequency)
        # float64 angles: at position 10^5 a float32 angle is off by 0.004.
        cos, sin = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
        first, second = (
            (slice(0, half), slice(half, self.dims))
            if self.layout == "neox"
            else (
                slice(0, self.dims, 2),
                slice(1, self.dims, 2),
            )
        )
        y = x.copy()
        y[:, first] = x[:, first] * cos - x[:, second] * sin
        y[:, second] = x[:, first] * sin + x[:, second] * cos
        return y
