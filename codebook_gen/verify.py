"""Proof that a codebook is the Lloyd-Max quantiser, by integration that shares nothing with the solver.

The solver uses incomplete beta functions at 34 digits; this uses Gauss-Legendre quadrature in binary64 after
t = sqrt(d) sin(a), which turns the density into cos(a)^(d-2), smooth up to the end of the support.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from codebook_gen.lloyd_max import Codebook

TOLERANCE = 1e-12
NODES = 64
PANELS = 8

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Report:
    """What verify() measured. All errors are absolute, in units of the standard deviation.

    centroid_error: the largest |centroid - conditional mean of its cell|.
    boundary_error: the largest |boundary - midpoint of its neighbours|.
    ascending:      0 < c_0 < b_0 < c_1 < ... < sqrt(d).
    symmetric:      the conditional means of the negative half, integrated for themselves, mirror the positive half.
    nmse:           normalised mean squared error, integrated.
    """

    centroid_error: float
    boundary_error: float
    ascending: bool
    symmetric: bool
    nmse: float

    @property
    def ok(self) -> bool:
        """True where every condition holds to TOLERANCE."""
        return (
            self.ascending and self.symmetric and self.centroid_error <= TOLERANCE and self.boundary_error <= TOLERANCE
        )


def verify(book: Codebook) -> Report:
    """Check stationarity, order and symmetry of a codebook.

    Takes the codebook's binary64 values; does not trust its nmse. Never raises for a bad codebook: the report says so.
    """
    d = book.dim
    positive = np.array(book.centroids64())
    boundaries = np.array(book.boundaries64())
    chain = np.empty(2 * positive.size + 1)
    chain[0], chain[-1] = 0.0, np.sqrt(d)
    chain[1::2] = positive
    chain[2:-1:2] = boundaries
    ascending = bool(np.all(np.diff(chain) > 0))

    levels = np.concatenate([-positive[::-1], positive])
    edges = np.concatenate([[-np.sqrt(d)], -boundaries[::-1], [0.0], boundaries, [np.sqrt(d)]])
    means, errors, energies = _cells(d, edges, levels)
    return Report(
        centroid_error=float(np.max(np.abs(levels - means))),
        boundary_error=float(np.max(np.abs(boundaries - (positive[1:] + positive[:-1]) / 2), initial=0.0)),
        ascending=ascending,
        symmetric=bool(np.max(np.abs(means + means[::-1])) <= TOLERANCE),
        nmse=float(errors.sum() / energies.sum()),
    )


def _cells(dim: int, edges: Array, levels: Array) -> tuple[Array, Array, Array]:
    """Conditional mean, then unnormalised squared error and energy, of each cell. (L+1,), (L,) -> three of (L,)."""
    nodes, weights = np.polynomial.legendre.leggauss(NODES)
    angles = np.arcsin(np.clip(edges / np.sqrt(dim), -1.0, 1.0))
    # The outermost cell holds the whole tail: panels keep its quadrature as good as that of the narrow cells.
    fractions = np.linspace(0.0, 1.0, PANELS + 1)
    panel_edges = angles[:-1, None] + np.diff(angles)[:, None] * fractions
    centre = (panel_edges[:, 1:] + panel_edges[:, :-1]) / 2
    half = np.diff(panel_edges, axis=1) / 2
    a = centre[..., None] + half[..., None] * nodes
    density = np.cos(a) ** (dim - 2)
    mass = half[..., None] * weights * density
    t = np.sqrt(dim) * np.sin(a)

    def total(values: Array) -> Array:
        return np.asarray(values.sum(axis=(1, 2)))

    probability = total(mass)
    return total(mass * t) / probability, total(mass * (t - levels[:, None, None]) ** 2), total(mass * t * t)
