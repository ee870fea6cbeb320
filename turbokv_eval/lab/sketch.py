"""The sign sketch of QJL: d values to m signs, whose inner product with a full-precision query has no bias.

QJL (arXiv:2406.03482) Definition 3.1 and Lemma 3.2; Definition 1 and Lemma 4 of TurboQuant (arXiv:2504.19874):
Q(x) = sign(S x), Q^-1(z) = sqrt(pi/2)/m S^T z with S of m rows from N(0, I). Over S, E <q, Q^-1(Q(x))> = <q, x> for
|x| = 1, with a variance of at most pi/(2m) |q|^2.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from turbokv_eval.lab import norms
from turbokv_eval.lab.method import F32, Uncalibrated, require_rows
from turbokv_eval.lab.scalar import unit_rows

_STREAM = 2
"""See `rotations`: S must not be the matrix that a rotation of the same seed was made from."""


@lru_cache(maxsize=64)
def gaussian_matrix(m: int, d: int, seed: int, orthogonal: bool = False) -> F32:
    """S: float32, shape (m, d), read-only, entries N(0, 1). m, d >= 1; raises ValueError otherwise.

    orthogonal: rows orthogonalised in groups of d, each row keeping its length (QJL section 4, to lower the variance).
    """
    if m < 1 or d < 1:
        raise ValueError(f"m and d must be at least 1, got {m} and {d}")
    s = np.random.default_rng([seed, _STREAM]).standard_normal((m, d))
    if orthogonal:
        for start in range(0, m, d):
            part = s[start : start + d]
            size = np.linalg.norm(part, axis=1, keepdims=True)
            q, r = np.linalg.qr(part.T)
            part[:] = (q * np.sign(np.diag(r))).T * size
    matrix = s.astype(np.float32)
    matrix.setflags(write=False)
    return matrix


def signs(x: F32, s: F32) -> F32:
    """sign(S x) with sign(0) = 1. x: float32 (n, d), s: float32 (m, d) -> float32 (n, m), each +1 or -1.

    Raises TypeError for another dtype, ValueError for another shape, as the next two do.
    """
    require_rows(x, "x", require_rows(s, "s"))
    return np.where(x @ s.T < 0, np.float32(-1), np.float32(1))


def unsketch(z: F32, s: F32) -> F32:
    """Q^-1: sqrt(pi/2)/m S^T z. z: float32 (n, m), s: float32 (m, d) -> float32 (n, d)."""
    require_rows(s, "s")
    require_rows(z, "z", len(s))
    return np.asarray(z @ s * np.float32(math.sqrt(math.pi / 2) / len(s)), dtype=np.float32)


def inner(queries: F32, z: F32, s: F32) -> F32:
    """<q, Q^-1(z)> without decoding: sqrt(pi/2)/m <S q, z>. float32 (k, d), (n, m), (m, d) -> float32 (k, n)."""
    require_rows(queries, "queries", require_rows(s, "s"))
    require_rows(z, "z", len(s))
    return np.asarray((queries @ s.T) @ z.T * np.float32(math.sqrt(math.pi / 2) / len(s)), dtype=np.float32)


@dataclass(frozen=True)
class Qjl(Uncalibrated):
    """The sketch alone, as QJL stores keys: m = bits * d signs and the norm.

    bits: signs a value, more than 0; m is rounded. orthogonal: see `gaussian_matrix`. seed: of S, which a model keeps;
    the estimate is unbiased over S, and for one fixed S off by a common factor of 1 +- 1/(sqrt(2) m).
    """

    bits: float
    seed: int = 0
    orthogonal: bool = False
    norm: norms.NormFormat = "fp16"

    def __post_init__(self) -> None:
        if not self.bits > 0:
            raise ValueError(f"bits must be positive, got {self.bits}")

    @property
    def name(self) -> str:
        """`qjl-1`, `qjl-orthogonal-1`."""
        return f"qjl{'-orthogonal' if self.orthogonal else ''}-{self.bits:g}"

    def matrix(self, d: int) -> F32:
        """S for rows of d values."""
        return gaussian_matrix(self._rows(d), d, self.seed, self.orthogonal)

    def encode_decode(self, x: F32) -> F32:
        """|x| Q^-1(Q(x)): its inner products are unbiased; as a vector it is longer than x. Errors as `Fitted`."""
        s = self.matrix(require_rows(x, "x"))
        return unsketch(signs(x, s), s) * self._norms(x)

    def scores(self, queries: F32, x: F32) -> F32:
        """sqrt(pi/2)/m |x| <S q, sign(S x)>, QJL's estimator. Interface: `Fitted.scores`."""
        s = self.matrix(require_rows(x, "x"))
        require_rows(queries, "queries", x.shape[1])
        return inner(queries, signs(x, s), s) * self._norms(x).T

    def bits_per_value(self, n: int, d: int) -> float:
        """Signs and the norm of a row."""
        return (self._rows(d) + norms.BITS[self.norm]) / d

    def _rows(self, d: int) -> int:
        return max(1, round(self.bits * d))

    def _norms(self, x: F32) -> F32:
        return norms.store(unit_rows(x)[1], self.norm)
