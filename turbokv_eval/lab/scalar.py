"""Scalar codes of whole rows behind a stored norm: the shape of TurboQuant_mse without its rotation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np

from turbokv_eval.lab import norms
from turbokv_eval.lab.levels import Levels, lloyd_max, uniform
from turbokv_eval.lab.method import F32, Uncalibrated, require_rows


def unit_rows(x: F32) -> tuple[F32, F32]:
    """Rows of mean square 1, and the norms |x|. float32 (n, d) -> float32 (n, d), (n, 1). A row of zeros stays zero.

    Raises TypeError for another dtype, ValueError for another shape.
    """
    d = require_rows(x, "x")
    # float64 inside: the squares of a float32 row may overflow or vanish.
    size = np.sqrt((x.astype(np.float64) ** 2).sum(axis=1, keepdims=True))
    safe = np.where(size == 0, 1, size)
    return (x * (np.sqrt(d) / safe)).astype(np.float32), size.astype(np.float32)


def least_squares(u: F32, y: F32) -> F32:
    """The factor g of each row that minimises |u - g y|: <u, y> / <y, y>, 0 where y is 0.

    u, y: float32 (n, d). Returns float32 (n, 1). Raises TypeError for another dtype, ValueError for another shape.
    """
    require_rows(y, "y", require_rows(u, "u"))
    cross = np.einsum("nd,nd->n", u, y, dtype=np.float64)
    square = np.einsum("nd,nd->n", y, y, dtype=np.float64)
    return np.where(square > 0, cross / np.where(square > 0, square, 1), 0).astype(np.float32)[:, None]


@dataclass(frozen=True)
class ScalarCode(Uncalibrated):
    """x = |x| u: each coordinate of sqrt(d) u to its nearest level, |x| beside it.

    bits: 1..8 a value. kind: Lloyd-Max levels for the unit-vector marginal at this d, or uniform ones. norm: its
    format. scale: "norm" stores |x| as the paper does, "least_squares" the factor <x, c>/<c, c> (what turbo types do).
    """

    bits: int
    kind: Literal["lloyd", "uniform"] = "lloyd"
    norm: norms.NormFormat = "fp16"
    scale: Literal["norm", "least_squares"] = "norm"

    @property
    def name(self) -> str:
        """`lloyd-3` or `uniform-3`, with the norm's format and the scale where they are not the default."""
        extra = ("" if self.norm == "fp16" else f"-{self.norm}") + ("" if self.scale == "norm" else "-ls")
        return f"{self.kind}-{self.bits}{extra}"

    def levels(self, d: int) -> Levels:
        """The levels for rows of d values."""
        return lloyd_max(self.bits, d) if self.kind == "lloyd" else uniform(self.bits, d)

    def encode_decode(self, x: F32) -> F32:
        """Interface: `Fitted.encode_decode`."""
        u, size = unit_rows(x)
        y = self.levels(x.shape[1]).nearest(u)
        if self.scale == "least_squares":
            size = size * least_squares(u, y)
        return y * (norms.store(size, self.norm) / np.float32(np.sqrt(x.shape[1])))

    def bits_per_value(self, n: int, d: int) -> float:
        """The codes and one norm a row."""
        return self.bits + norms.BITS[self.norm] / d
