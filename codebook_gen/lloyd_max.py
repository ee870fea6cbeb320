"""Lloyd-Max quantiser of the unit-vector marginal, by Newton's method on the centroid conditions.

The density is log-concave for d >= 4, so the stationary point is unique and is the global optimum (Fleischer 1964;
Trushkin 1982): a codebook that verify() finds stationary is *the* codebook, whatever path led to it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import mpmath
from mpmath import mpf
from scipy import special

from codebook_gen.marginal import Marginal

MAX_BITS = 8
DIGITS = 34
"""Working precision in decimal digits. At twice that of a double, every printed digit is the same on any machine."""
TOLERANCE = mpf(10) ** -26
MAX_ITERATIONS = 100


class ConvergenceError(RuntimeError):
    """Newton's method did not reach TOLERANCE in MAX_ITERATIONS steps."""


@dataclass(frozen=True)
class Codebook:
    """Positive half of a symmetric quantiser with 2^bits levels, in units of the standard deviation.

    centroids:  2^(bits-1) values, ascending, all > 0.
    boundaries: 2^(bits-1) - 1 values, boundaries[i] between centroids[i] and [i+1]. Zero is one too, not listed.
    nmse:       E[(T - Q(T))^2] / E[T^2].
    """

    bits: int
    dim: int
    centroids: tuple[mpf, ...]
    boundaries: tuple[mpf, ...]
    nmse: mpf

    def centroids64(self) -> list[float]:
        """The centroids, rounded once to binary64."""
        return [float(c) for c in self.centroids]

    def boundaries64(self) -> list[float]:
        """The boundaries, rounded once to binary64."""
        return [float(b) for b in self.boundaries]

    def centroids32(self) -> list[float]:
        """The centroids, rounded once to binary32 (and held in a Python float, exactly)."""
        return [round_binary32(c) for c in self.centroids]

    def boundaries32(self) -> list[float]:
        """The boundaries, rounded once to binary32 (and held in a Python float, exactly)."""
        return [round_binary32(b) for b in self.boundaries]


def round_binary32(value: mpf) -> float:
    """Round once to 24 significant bits, ties to even: binary32 in its normal range. Via binary64 it would be twice."""
    with mpmath.workprec(24):
        return float(+value)


def solve(bits: int, dim: int) -> Codebook:
    """The optimal quantiser with 2^bits levels for dimension dim.

    bits: 1..8. dim: >= 4. Raises ValueError outside these, ConvergenceError if Newton's method fails.
    """
    if not 1 <= bits <= MAX_BITS:
        raise ValueError(f"bits must be 1..{MAX_BITS}, got {bits}")
    marginal = Marginal(dim)
    with mpmath.workdps(DIGITS):
        centroids = _companding_start(bits, dim)
        for _ in range(MAX_ITERATIONS):
            step = _newton_step(marginal, centroids)
            centroids = _damped(centroids, step, mpmath.sqrt(dim))
            if max(abs(s) for s in step) < TOLERANCE:
                break
        else:
            raise ConvergenceError(f"Lloyd-Max did not converge for bits={bits}, dim={dim}")
        return _finish(bits, marginal, centroids)


def _companding_start(bits: int, dim: int) -> list[mpf]:
    """Panter and Dite's high-resolution approximation: levels spaced evenly under the cube root of the density.

    The cube root is again a beta density, so its quantiles come from the inverse incomplete beta function.
    """
    half = 2 ** (bits - 1)
    shape = (dim - 3) / 6 + 1
    return [mpmath.sqrt(dim * mpf(float(special.betaincinv(0.5, shape, (i + 0.5) / half)))) for i in range(half)]


def _midpoints(centroids: Sequence[mpf]) -> list[mpf]:
    return [(a + b) / 2 for a, b in pairwise(centroids)]


def _newton_step(marginal: Marginal, centroids: Sequence[mpf]) -> list[mpf]:
    """The step that solves centroid_i - mean(cell_i) = 0 to first order; the Jacobian is tridiagonal.

    With b a boundary of a cell of probability P and mean m, d mean / d b = pdf(b) |b - m| / P.
    """
    edges = [mpf(0), *_midpoints(centroids)]
    # The last cell runs to the end of the support, where tail and moment are 0 and the edge does not move.
    tail = [*(marginal.tail(e) for e in edges), mpf(0)]
    moment = [*(marginal.tail_moment(e) for e in edges), mpf(0)]
    pdf = [mpf(0), *(marginal.pdf(e) for e in edges[1:]), mpf(0)]  # the edge at 0 does not move either
    edges.append(mpmath.sqrt(marginal.dim))

    lower, diagonal, upper, residual = [], [], [], []
    for i, c in enumerate(centroids):
        probability = tail[i] - tail[i + 1]
        mean = (moment[i] - moment[i + 1]) / probability
        by_low = pdf[i] * (mean - edges[i]) / probability
        by_high = pdf[i + 1] * (edges[i + 1] - mean) / probability
        lower.append(-by_low / 2)
        diagonal.append(1 - (by_low + by_high) / 2)
        upper.append(-by_high / 2)
        residual.append(mean - c)
    return _solve_tridiagonal(lower, diagonal, upper, residual)


def _solve_tridiagonal(lower: list[mpf], diagonal: list[mpf], upper: list[mpf], right: list[mpf]) -> list[mpf]:
    """Thomas algorithm in mpmath numbers (scipy's solvers are binary64 only). lower[0] and upper[-1] are ignored."""
    n = len(diagonal)
    diag, rhs = list(diagonal), list(right)
    for i in range(1, n):
        w = lower[i] / diag[i - 1]
        diag[i] -= w * upper[i - 1]
        rhs[i] -= w * rhs[i - 1]
    x = [mpf(0)] * n
    for i in reversed(range(n)):
        x[i] = (rhs[i] - (upper[i] * x[i + 1] if i + 1 < n else 0)) / diag[i]
    return x


def _damped(centroids: Sequence[mpf], step: Sequence[mpf], limit: mpf) -> list[mpf]:
    """centroids + step, the step halved until the result is ascending within (0, limit)."""
    scale = mpf(1)
    while True:
        moved = [c + scale * s for c, s in zip(centroids, step, strict=True)]
        fenced = [mpf(0), *moved, limit]
        if all(a < b for a, b in pairwise(fenced)):
            return moved
        scale /= 2


def _finish(bits: int, marginal: Marginal, centroids: Sequence[mpf]) -> Codebook:
    boundaries = _midpoints(centroids)
    edges = [mpf(0), *boundaries]
    tail = [*(marginal.tail(e) for e in edges), mpf(0)]
    moment = [*(marginal.tail_moment(e) for e in edges), mpf(0)]
    # Both halves, and E[T^2] = 1: nmse = 1 - 2 E[T Q] + E[Q^2].
    nmse = mpf(1)
    for i, c in enumerate(centroids):
        nmse += 2 * (c * c * (tail[i] - tail[i + 1]) - 2 * c * (moment[i] - moment[i + 1]))
    return Codebook(bits, marginal.dim, tuple(centroids), tuple(boundaries), nmse)
