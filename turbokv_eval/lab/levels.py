"""Level tables of unit variance and the nearest-level search: Lloyd-Max of `codebook_gen`, uniform, data-trained."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np
import numpy.typing as npt
from scipy import optimize, special

from codebook_gen import solve
from codebook_gen.lloyd_max import MAX_BITS
from turbokv_eval.lab.method import F32, F64, require_float32


@dataclass(frozen=True)
class Levels:
    """values: float32, ascending, (2^bits,). edges: float32, ascending, (2^bits - 1,): where one level hands over."""

    values: F32
    edges: F32

    def codes(self, u: F32) -> npt.NDArray[np.intp]:
        """Index of the level of each value; a value on an edge takes the lower. float32, any shape; same shape.

        Raises TypeError for another dtype.
        """
        require_float32(u, "u")
        return np.searchsorted(self.edges, u)

    def nearest(self, u: F32) -> F32:
        """The level of each value. float32, any shape; same shape. Raises TypeError for another dtype."""
        return self.values[self.codes(u)]


@cache
def lloyd_max(bits: int, d: int) -> Levels:
    """MSE-optimal levels for sqrt(d) times one coordinate of a uniform unit vector of R^d.

    The continuous k-means problem of TurboQuant (arXiv:2504.19874, section 3.1) for the density of its Lemma 1.
    bits: 0 to 8 (0: the single level 0).
    d: at least 4. Raises ValueError outside these.
    """
    if bits == 0:
        return Levels(np.zeros(1, dtype=np.float32), np.zeros(0, dtype=np.float32))
    if not 1 <= bits <= MAX_BITS:
        raise ValueError(f"bits must be 0..{MAX_BITS}, got {bits}")
    book = solve(bits, d)
    half, bounds = np.array(book.centroids32()), np.array(book.boundaries32())
    values = np.concatenate([-half[::-1], half])
    edges = np.concatenate([-bounds[::-1], [0.0], bounds])
    return Levels(values.astype(np.float32), edges.astype(np.float32))


@cache
def lloyd_max_nmse(bits: int, d: int) -> float:
    """E[(T - Q(T))^2] of `lloyd_max` on its density, exactly, E[T^2] = 1. Arguments and errors as there."""
    if bits == 0:
        return 1.0
    return float(solve(bits, d).nmse)


@cache
def uniform(bits: int, d: int) -> Levels:
    """Equally spaced symmetric levels with the step that minimises the MSE for the same density as `lloyd_max`.

    bits: 1..8. d: at least 4. Raises ValueError outside these. The step is found by a bounded search on the exact MSE
    over a grid of quantiles of the density.
    """
    if not 1 <= bits <= MAX_BITS:
        raise ValueError(f"bits must be 1..{MAX_BITS}, got {bits}")
    if d < 4:
        raise ValueError(f"d must be at least 4, got {d}")
    shape, points = (d - 1) / 2, 1 << 15
    t = np.sqrt(d) * (2 * special.betaincinv(shape, shape, (np.arange(points) + 0.5) / points) - 1)
    grid = np.arange(2**bits) - (2**bits - 1) / 2

    def error(step: float) -> float:
        code = np.clip(np.floor(t / step) + 0.5, grid[0], grid[-1])
        return float(((t - step * code) ** 2).mean())

    step = float(optimize.minimize_scalar(error, bounds=(1e-3, 4.0), method="bounded", options={"xatol": 1e-6}).x)
    values = (step * grid).astype(np.float32)
    return Levels(values, (values[1:] + values[:-1]) / np.float32(2))


def from_samples(samples: F64, bits: int, iterations: int = 50) -> Levels:
    """Lloyd's algorithm on samples (k-means in one dimension), started at their quantiles.

    samples: float64, shape (n,), n >= 1. bits: 1..8. Raises ValueError outside these.
    """
    if samples.ndim != 1 or not samples.size:
        raise ValueError(f"samples must have shape (n,) with n >= 1, got {samples.shape}")
    if not 1 <= bits <= MAX_BITS:
        raise ValueError(f"bits must be 1..{MAX_BITS}, got {bits}")
    count = 2**bits
    ordered = np.sort(samples)
    sums = np.concatenate([[0.0], np.cumsum(ordered)])
    values = np.quantile(ordered, (np.arange(count) + 0.5) / count)
    for _ in range(iterations):
        cut = np.searchsorted(ordered, (values[1:] + values[:-1]) / 2, side="right")
        start, stop = np.concatenate([[0], cut]), np.concatenate([cut, [len(ordered)]])
        size = stop - start
        # An empty cell keeps its level.
        values = np.where(size > 0, (sums[stop] - sums[start]) / np.maximum(size, 1), values)
    values = values.astype(np.float32)
    return Levels(values, (values[1:] + values[:-1]) / np.float32(2))
