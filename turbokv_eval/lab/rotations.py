"""Random rotations: Haar, signed Hadamard by FWHT, Kronecker Hadamard of the fork, and block-diagonal 2D / 4D ones."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from scipy.linalg import block_diag

from turbokv_eval.lab.method import F32, F64, require_multiple, require_rows
from turbokv_eval.lab.transform import FittedTransform, Linear
from turbokv_eval.reference import rotation

_STREAM = 1
"""Keeps the Gaussian matrix of a seed apart from that of `sketch`: with one matrix for both, a sketch of a rotated
code's residual is biased by 1 to 2 %."""


@lru_cache(maxsize=64)
def haar_matrix(d: int, seed: int) -> F64:
    """An orthogonal matrix from the Haar measure: float64, shape (d, d), read-only. ValueError for d < 1.

    QR of a Gaussian matrix, with the signs of R's diagonal moved into Q (Mezzadri 2007, "How to generate random
    matrices from the classical compact groups", section 5); without them the law of Q depends on the QR routine.
    """
    if d < 1:
        raise ValueError(f"d must be at least 1, got {d}")
    q, r = np.linalg.qr(np.random.default_rng([seed, _STREAM]).standard_normal((d, d)))
    matrix = np.asarray(q * np.where(np.diag(r) < 0, -1.0, 1.0))
    matrix.setflags(write=False)
    return matrix


def orthogonal(matrix: F64) -> Linear:
    """The transform of an orthogonal matrix: rows and queries times its transpose.

    matrix: float64, shape (d, d). Raises ValueError for another shape.
    """
    if matrix.ndim != 2 or matrix.shape[0] != matrix.shape[1]:
        raise ValueError(f"matrix must have shape (d, d), got {matrix.shape}")
    forward = matrix.astype(np.float32)
    return Linear(np.zeros(len(matrix), dtype=np.float32), forward, np.ascontiguousarray(forward.T))


@dataclass(frozen=True)
class Haar:
    """TurboQuant's rotation Pi (arXiv:2504.19874, Algorithm 1, line 2): any d."""

    seed: int = 0
    name: str = "haar"

    def fit(self, keys: F32, queries: F32 | None = None) -> FittedTransform:
        """Uses the width of keys only. Errors as `Method.fit`."""
        return orthogonal(haar_matrix(require_rows(keys, "keys"), self.seed))


HAAR = Haar()
"""The rotation that methods take unless told otherwise."""


@dataclass(frozen=True)
class _SignedHadamard:
    """H D / sqrt(d) with the fast transform of `reference.rotation`."""

    signs: F32

    def forward(self, x: F32) -> F32:
        d = require_rows(x, "x", len(self.signs))
        return rotation.fast_hadamard(x * self.signs) / np.float32(np.sqrt(d))

    def inverse(self, y: F32) -> F32:
        d = require_rows(y, "y", len(self.signs))
        return rotation.fast_hadamard(y) * self.signs / np.float32(np.sqrt(d))

    def query(self, q: F32) -> F32:
        return self.forward(q)


@dataclass(frozen=True)
class RademacherHadamard:
    """Random signs and a fast Walsh-Hadamard transform, H D / sqrt(d) (Ailon and Chazelle 2009): d a power of two."""

    seed: int = 0
    name: str = "fwht"

    def fit(self, keys: F32, queries: F32 | None = None) -> FittedTransform:
        """Uses the width of keys only. Errors as `Method.fit`; ValueError for a d that is no power of two."""
        d = require_rows(keys, "keys")
        if d < 2 or d & (d - 1):
            raise ValueError(f"fwht needs rows of a power of two of values, got {d}; the Kronecker form takes 80 or 96")
        signs = np.random.default_rng(self.seed).choice(np.array([-1, 1], dtype=np.float32), d)
        return _SignedHadamard(signs)


@dataclass(frozen=True)
class KroneckerHadamard:
    """The fork's rotation (docs/FORMAT.md section 5): H_m (x) H_2^k with a layer's signs, m in 1, 12, 20, 28, 36."""

    layer: int = 0
    name: str = "hadamard"

    def fit(self, keys: F32, queries: F32 | None = None) -> FittedTransform:
        """Uses the width of keys only. Errors as `Method.fit`; ValueError for a d with no such matrix."""
        d = require_rows(keys, "keys")
        rotation.hadamard(d)
        return _SignedHadamard(rotation.signs(self.layer, d).astype(np.float32))


@dataclass(frozen=True)
class BlockDiagonal:
    """Independent Haar rotations of blocks of 2 or 4 channels: cheap, and mixes no further than the block.

    size: 2 or 4. Channels are taken in order, (0, 1), (2, 3), ...
    """

    size: int = 2
    seed: int = 0

    def __post_init__(self) -> None:
        if self.size not in (2, 4):
            raise ValueError(f"blocks of 2 or 4 channels, not {self.size}")

    @property
    def name(self) -> str:
        """`block2` or `block4`."""
        return f"block{self.size}"

    def fit(self, keys: F32, queries: F32 | None = None) -> FittedTransform:
        """Uses the width of keys only. Errors as `Method.fit`; ValueError unless the size divides d."""
        d = require_rows(keys, "keys")
        require_multiple(d, self.size, self.name)
        seeds = np.random.default_rng(self.seed).integers(2**32, size=d // self.size)
        return orthogonal(np.asarray(block_diag(*(haar_matrix(self.size, int(s)) for s in seeds))))
