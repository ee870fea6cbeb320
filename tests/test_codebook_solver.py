"""The solver finds the Lloyd-Max quantiser, and verify() would notice if it did not."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
from mpmath import mp, mpf
from scipy import integrate

from codebook_gen import Codebook, solve, verify
from codebook_gen.lloyd_max import round_binary32
from codebook_gen.marginal import Marginal

DIMS = (4, 5, 64, 80, 96, 112, 128, 576)


@pytest.mark.parametrize("bits", range(1, 9))
@pytest.mark.parametrize("dim", [4, 5, 64, 128, 576])
def test_every_codebook_is_stationary_by_independent_quadrature(dim: int, bits: int) -> None:
    book = solve(bits, dim)
    report = verify(book)
    assert report.ok, report
    assert report.centroid_error <= 1e-12
    assert report.nmse == pytest.approx(float(book.nmse), rel=1e-12)
    assert len(book.centroids) == 2 ** (bits - 1)
    assert len(book.boundaries) == 2 ** (bits - 1) - 1


@pytest.mark.parametrize("dim", DIMS)
def test_marginal_closed_forms_agree_with_quadrature(dim: int) -> None:
    marginal = Marginal(dim)

    def pdf(t: float) -> float:
        return float(marginal.pdf(mpf(t)))

    end = dim**0.5
    for a in (0.0, 0.4, 1.3, 1.9):
        assert float(marginal.tail(mpf(a))) == pytest.approx(_quad(pdf, a, end), rel=1e-9)
        assert float(marginal.tail_moment(mpf(a))) == pytest.approx(_quad(lambda t: t * pdf(t), a, end), rel=1e-9)
    assert 2 * _quad(lambda t: t * t * pdf(t), 0.0, end) == pytest.approx(1, rel=1e-9)


def _quad(f: Callable[[float], float], start: float, end: float) -> float:
    # In two pieces: nearly all of the integral lies below 6, and an adaptive rule could miss it on a long interval.
    edges = sorted({start, min(6.0, end), end})
    return float(sum(integrate.quad(f, a, b, epsabs=0, epsrel=1e-11)[0] for a, b in pairwise(edges)))


# From a Lloyd iteration that started at the quantiles and stopped at a step of 5e-5: 4 bits were 1.3e-3 from the end.
CHECKED = {
    1: ([0.7994], 0.3609, 1e-4),
    2: ([0.4524, 1.5051], 0.1160, 1e-4),
    3: ([0.2443, 0.7531, 1.3363, 2.1311], 0.0340, 4e-4),
    4: ([0.1276, 0.3858, 0.6527, 0.9359, 1.2465, 1.6030, 2.0447, 2.6878], 0.0093, 1.4e-3),
}


@pytest.mark.parametrize("bits", CHECKED)
def test_values_at_128_agree_with_an_unfinished_lloyd_iteration_and_beat_it(bits: int) -> None:
    centroids, nmse, tolerance = CHECKED[bits]
    book = solve(bits, 128)
    np.testing.assert_allclose(book.centroids64(), centroids, rtol=0, atol=tolerance)
    assert float(book.nmse) == pytest.approx(nmse, abs=5e-5)
    midpoints = tuple((mpf(a) + mpf(b)) / 2 for a, b in pairwise(centroids))
    checked = verify(Codebook(bits, 128, tuple(map(mpf, centroids)), midpoints, mpf(0)))
    assert float(book.nmse) < checked.nmse


def test_one_bit_has_the_closed_form_mean_of_the_half() -> None:
    for dim in DIMS:
        with mp.workdps(30):
            exact = 2 * Marginal(dim).tail_moment(mpf(0))
        assert solve(1, dim).centroids64() == [pytest.approx(float(exact), rel=1e-15)]


def test_large_dimension_approaches_the_gaussian_quantiser() -> None:
    # J. Max, Quantizing for minimum distortion, 1960, table I, N = 8 and 16.
    np.testing.assert_allclose(solve(3, 4096).centroids64(), [0.2451, 0.7560, 1.344, 2.152], atol=1e-3)
    gauss = [0.1284, 0.3881, 0.6568, 0.9424, 1.256, 1.618, 2.069, 2.733]
    np.testing.assert_allclose(solve(4, 4096).centroids64(), gauss, atol=2e-3)


def test_nmse_agrees_with_monte_carlo() -> None:
    rng = np.random.default_rng(7)
    vectors = rng.standard_normal((20_000, 80))
    t = np.sqrt(80) * vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    book = solve(3, 80)
    index = np.searchsorted(book.boundaries64(), np.abs(t))
    error = np.abs(t) - np.array(book.centroids64())[index]
    # 1.6 million samples: the standard error is about 0.15%.
    assert np.mean(error**2) == pytest.approx(float(book.nmse), rel=0.006)


@pytest.mark.parametrize("shift", [1e-9, 3e-12])
def test_verify_sees_a_moved_centroid(shift: float) -> None:
    book = solve(3, 128)
    moved = (*book.centroids[:2], book.centroids[2] + mpf(shift), *book.centroids[3:])
    report = verify(dataclasses.replace(book, centroids=moved))
    assert not report.ok
    assert report.centroid_error == pytest.approx(shift, rel=0.01)
    assert report.boundary_error == pytest.approx(shift / 2, rel=0.01)


def test_verify_sees_a_moved_boundary_and_a_wrong_order() -> None:
    book = solve(2, 64)
    moved = verify(dataclasses.replace(book, boundaries=(book.boundaries[0] + mpf(1e-11),)))
    assert not moved.ok
    assert moved.boundary_error == pytest.approx(1e-11, rel=0.01)
    swapped = verify(dataclasses.replace(book, centroids=book.centroids[::-1]))
    assert not swapped.ascending
    assert not swapped.ok


def test_more_bits_shrink_the_error_by_almost_four() -> None:
    nmse = [float(solve(bits, 128).nmse) for bits in range(1, 9)]
    ratios = np.array(nmse[:-1]) / np.array(nmse[1:])
    assert (np.diff(ratios) > 0).all()
    assert 3.1 < ratios[0] < ratios[-1] < 4


def test_binary32_is_rounded_once() -> None:
    # Just above a tie of binary32, by less than binary64 can hold: rounding through binary64 would round down to even.
    with mp.workdps(40):
        value = 1 + mpf(2) ** -24 + mpf(2) ** -60
    assert np.float32(float(value)) == 1.0
    assert round_binary32(value) == 1 + 2.0**-23


@pytest.mark.parametrize(("bits", "dim"), [(0, 128), (9, 128), (3, 3), (3, 0), (3, -128)])
def test_out_of_range_is_refused(bits: int, dim: int) -> None:
    with pytest.raises(ValueError, match="must be"):
        solve(bits, dim)
