"""The distribution to be quantised, in closed form and at mpmath's working precision.

One coordinate of a uniform random unit vector of R^d, times sqrt(d), has density K (1 - t^2/d)^((d-3)/2) on
|t| < sqrt(d) (docs/FORMAT.md section 3). Its mean is 0 and its variance is 1.
"""

from __future__ import annotations

from dataclasses import dataclass

import mpmath
from mpmath import mpf

MIN_DIM = 4
"""From 4 up the density is strictly log-concave (d = 3 is uniform, d = 2 U-shaped): the quantiser is unique."""


@dataclass(frozen=True)
class Marginal:
    """Density, tail probability and partial first moment for t >= 0 (the distribution is symmetric).

    dim: d, an integer >= 4. Raises ValueError below that.
    """

    dim: int

    def __post_init__(self) -> None:
        if self.dim < MIN_DIM:
            raise ValueError(f"dim must be at least {MIN_DIM}, got {self.dim}")

    def pdf(self, t: mpf) -> mpf:
        """Density at 0 <= t <= sqrt(d)."""
        d = self.dim
        norm = mpmath.sqrt(d) * mpmath.beta(mpf(1) / 2, mpf(d - 1) / 2)
        return self._rest(t) ** (mpf(d - 3) / 2) / norm

    def tail(self, t: mpf) -> mpf:
        """P(T > t) for 0 <= t <= sqrt(d): half the regularised incomplete beta function at 1 - t^2/d.

        The tail rather than the distribution function, so that the outermost cells keep their relative accuracy.
        """
        return mpmath.betainc(mpf(self.dim - 1) / 2, mpf(1) / 2, 0, self._rest(t), regularized=True) / 2

    def tail_moment(self, t: mpf) -> mpf:
        """E[T; T > t], which is elementary: d/(d-1) (1 - t^2/d) pdf(t)."""
        return self._rest(t) * self.pdf(t) * self.dim / (self.dim - 1)

    def _rest(self, t: mpf) -> mpf:
        # Clamped: sqrt(d) squared can exceed d by one unit in the last place.
        return max(mpf(0), 1 - t * t / self.dim)
