"""Random signs, Hadamard matrices and the rotation of a head vector: docs/FORMAT.md section 5."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from functools import cache
from typing import TypeVar

import numpy as np
import numpy.typing as npt

T = TypeVar("T", np.float32, np.float64)
I8 = npt.NDArray[np.int8]

LAYER_SEED = 0x9E3779B97F4A7C15
_MASK = 2**64 - 1

ORDERS = {64: 1, 128: 1, 256: 1, 512: 1, 96: 12, 192: 12, 80: 20, 160: 20, 320: 20, 112: 28, 576: 36}
"""m for the head dimensions d = m * 2^k that models have; the vectors cover these."""


def splitmix64(seed: int) -> Iterator[int]:
    """The outputs of SplitMix64 from a 64-bit seed, without end."""
    z = seed & _MASK
    while True:
        z = (z + 0x9E3779B97F4A7C15) & _MASK
        w = z
        w = ((w ^ (w >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        w = ((w ^ (w >> 27)) * 0x94D049BB133111EB) & _MASK
        yield w ^ (w >> 31)


def signs(layer: int, d: int) -> I8:
    """The signs of a layer: int8 of shape (d,), each +1 or -1. layer >= 0, d >= 1; raises ValueError otherwise."""
    if layer < 0:
        raise ValueError(f"layer must be at least 0, got {layer}")
    if d < 1:
        raise ValueError(f"d must be at least 1, got {d}")
    generator = splitmix64(layer * LAYER_SEED)
    words = np.array([next(generator) for _ in range(-(-d // 64))], dtype="<u8")
    negative = np.unpackbits(words.view(np.uint8), bitorder="little")[:d]
    return np.where(negative == 1, np.int8(-1), np.int8(1))


def conference_matrix(q: int) -> I8:
    """The symmetric conference matrix of order q + 1, for q in {5, 9, 13, 17}. int8, shape (q+1, q+1); C C^T = q I.

    Raises ValueError for another q.
    """
    if q not in (5, 9, 13, 17):
        raise ValueError(f"q must be one of 5, 9, 13, 17, got {q}")
    subtract, multiply = _gf9() if q == 9 else _prime_field(q)
    squares = {multiply(x, x) for x in range(1, q)}

    def chi(x: int) -> int:
        return 0 if x == 0 else 1 if x in squares else -1

    c = np.ones((q + 1, q + 1), dtype=np.int8)
    c[0, 0] = 0
    c[1:, 1:] = [[chi(subtract(a, b)) for b in range(q)] for a in range(q)]
    return c


Operation = Callable[[int, int], int]


def _prime_field(q: int) -> tuple[Operation, Operation]:
    return (lambda a, b: (a - b) % q), (lambda a, b: a * b % q)


def _gf9() -> tuple[Operation, Operation]:
    """GF(9) = GF(3)[w], w^2 = -1; the element a + b*w has the number 3a + b."""

    def subtract(x: int, y: int) -> int:
        (a, b), (c, d) = divmod(x, 3), divmod(y, 3)
        return (a - c) % 3 * 3 + (b - d) % 3

    def multiply(x: int, y: int) -> int:
        (a, b), (c, d) = divmod(x, 3), divmod(y, 3)
        return (a * c - b * d) % 3 * 3 + (a * d + b * c) % 3

    return subtract, multiply


@cache
def paley(m: int) -> I8:
    """H_m: [[1]] for m = 1, the symmetric Paley II matrix for m in {12, 20, 28, 36}. int8, shape (m, m), read-only.

    Raises ValueError for another m.
    """
    if m == 1:
        h = np.ones((1, 1), dtype=np.int8)
    elif m in (12, 20, 28, 36):
        c = conference_matrix(m // 2 - 1)
        plus = np.array([[1, 1], [1, -1]], dtype=np.int8)
        diagonal = np.array([[1, -1], [-1, -1]], dtype=np.int8)
        h = np.kron(c, plus) + np.kron(np.eye(len(c), dtype=np.int8), diagonal)
    else:
        raise ValueError(f"m must be one of 1, 12, 20, 28, 36, got {m}")
    h.setflags(write=False)
    return h


@cache
def hadamard(d: int) -> I8:
    """H_d as a dense matrix: int8, shape (d, d), symmetric, entries +-1, read-only.

    Raises ValueError for a d that has no rotation.
    """
    h = paley(_order(d))
    while len(h) < d:
        h = np.kron(h, np.array([[1, 1], [1, -1]], dtype=np.int8))
    h.setflags(write=False)
    return h


def rotation_matrix(layer: int, d: int) -> npt.NDArray[np.float64]:
    """The forward rotation H_d D / sqrt(d) as a dense matrix: float64, shape (d, d).

    Raises ValueError as signs and hadamard do.
    """
    return hadamard(d) * signs(layer, d)[None, :] / math.sqrt(d)


def fast_hadamard(x: npt.NDArray[T]) -> npt.NDArray[T]:
    """H_d x for each row, in the dtype of x: butterflies over the power of two, then the m x m matrix.

    x: float32 or float64, shape (..., d). Raises TypeError for another dtype, ValueError for a d that has no rotation.
    """
    d = _require(x)
    m = _order(d)
    y = x.reshape(*x.shape[:-1], m, d // m)
    step = 1
    while step < d // m:
        pairs = y.reshape(*y.shape[:-1], d // (2 * m * step), 2, step)
        low, high = pairs[..., 0, :], pairs[..., 1, :]
        y = np.stack([low + high, low - high], axis=-2).reshape(y.shape)
        step *= 2
    if m > 1:
        y = np.einsum("ij,...jk->...ik", paley(m).astype(x.dtype), y)
    return np.asarray(y.reshape(x.shape), dtype=x.dtype)


def forward(x: npt.NDArray[T], layer: int) -> npt.NDArray[T]:
    """Rotate head vectors for storage: H_d D x / sqrt(d). For K, V and Q.

    x: float32 or float64, shape (..., d). Returns the same shape and dtype.
    Raises TypeError for another dtype, ValueError for a d that has no rotation or a negative layer.
    """
    d = _require(x)
    return fast_hadamard(x * signs(layer, d).astype(x.dtype)) / x.dtype.type(math.sqrt(d))


def inverse(y: npt.NDArray[T], layer: int) -> npt.NDArray[T]:
    """Undo forward: D H_d y / sqrt(d). For the attention output. Shapes, dtypes and errors as for forward."""
    d = _require(y)
    return fast_hadamard(y) * signs(layer, d).astype(y.dtype) / y.dtype.type(math.sqrt(d))


def _require(x: object) -> int:
    """The length of the last axis of a float array."""
    if not isinstance(x, np.ndarray) or x.dtype not in (np.float32, np.float64):
        found = x.dtype if isinstance(x, np.ndarray) else type(x).__name__
        raise TypeError(f"a head vector must be a NumPy array of float32 or float64, got {found}")
    if x.ndim == 0:
        raise ValueError("a head vector must have a last axis of length d, got a scalar")
    return int(x.shape[-1])


def _order(d: int) -> int:
    for m in (1, 12, 20, 28, 36):
        p = d // m
        if d == m * p and p >= 2 and p & (p - 1) == 0:
            return m
    raise ValueError(f"no rotation for head dimension {d}: it is not m * 2^k with m in 1, 12, 20, 28, 36 and k >= 1")
