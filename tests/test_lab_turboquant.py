"""Unbiased inner products and their variance: Theorem 2 and Lemma 4 of TurboQuant, on 10^5 pairs."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
from lab_rows import normal

from turbokv_eval.lab.rotations import Haar
from turbokv_eval.lab.sketch import Qjl, gaussian_matrix, inner, signs, unsketch
from turbokv_eval.lab.theory import COSINE, prod_bound, qjl_bound, unit_pairs
from turbokv_eval.lab.turboquant import TurboQuantMse, TurboQuantProd

D, DRAWS, ROWS = 128, 100, 1000


@pytest.fixture(scope="module")
def errors() -> dict[str, npt.NDArray[np.float64]]:
    """<q, x~> - <q, x> of 100 x 1000 unit pairs at cosine 1/2, by method: (draws, rows)."""
    found: dict[str, list[npt.NDArray[np.float64]]] = {}
    for draw in range(DRAWS):
        x, queries = unit_pairs(ROWS, D, np.random.default_rng(draw))
        rotation = Haar(draw)
        for method in (
            TurboQuantMse(2, rotation, "exact"),
            TurboQuantProd(2, rotation, "exact", draw),
            TurboQuantProd(3, rotation, "exact", draw),
            TurboQuantProd(4, rotation, "exact", draw),
            Qjl(1, draw, norm="exact"),
            Qjl(0.5, draw, norm="exact", orthogonal=True),
        ):
            error = (queries * (method.encode_decode(x).astype(np.float64) - x)).sum(axis=1)
            found.setdefault(method.name, []).append(error)
    return {name: np.array(rows) for name, rows in found.items()}


def standard_errors(error: npt.NDArray[np.float64]) -> float:
    """The mean in units of its standard error. The unit is a draw: the rows of a draw share its S."""
    means = error.mean(axis=1)
    return float(means.mean() / (means.std(ddof=1) / math.sqrt(len(means))))


@pytest.mark.parametrize("bits", [2, 3, 4])
def test_turboquant_prod_is_unbiased_and_within_its_bound(
    errors: dict[str, npt.NDArray[np.float64]], bits: int
) -> None:
    error = errors[f"turboquant_prod-exact-{bits}"]
    assert error.size == 100_000
    assert abs(standard_errors(error)) < 3
    variance = D * float((error**2).mean())
    assert 4.0**-bits < variance < prod_bound(bits)
    # Sharper, Lemma 4 for the residual: pi/2 |r|^2.
    assert variance < qjl_bound({2: 0.3609, 3: 0.1160, 4: 0.0340}[bits]) * 1.05


def test_turboquant_mse_is_biased_by_its_mse(errors: dict[str, npt.NDArray[np.float64]]) -> None:
    error = errors["turboquant_mse-exact-2"]
    assert standard_errors(error) < -30
    assert float(error.mean()) / COSINE == pytest.approx(-0.1160, rel=0.02)


@pytest.mark.parametrize(("name", "bits"), [("qjl-1", 1.0), ("qjl-orthogonal-0.5", 0.5)])
def test_qjl_is_unbiased_with_the_variance_of_lemma_4(
    errors: dict[str, npt.NDArray[np.float64]], name: str, bits: float
) -> None:
    error = errors[name]
    assert abs(standard_errors(error)) < 3
    # (pi/2 |q|^2 - <q, x>^2) / m exactly, for independent rows of S; orthogonal ones can only lower it.
    exact = (math.pi / 2 - COSINE**2) / bits
    variance = D * float((error**2).mean())
    assert variance < exact * 1.03
    if "orthogonal" not in name:
        assert variance == pytest.approx(exact, rel=0.03)


def test_scores_of_the_papers_equal_those_of_the_decoded_rows() -> None:
    x, queries = normal(50, 96) * np.float32(7), normal(9, 96, 1)
    for method in (TurboQuantProd(3), TurboQuantProd(1), Qjl(1), Qjl(2.5)):
        scores = method.scores(queries, x)
        np.testing.assert_allclose(scores, queries @ method.encode_decode(x).T, atol=1e-4 * float(np.abs(scores).max()))


def test_one_bit_of_turboquant_prod_is_qjl() -> None:
    x = normal(20, 64)
    np.testing.assert_allclose(TurboQuantProd(1).encode_decode(x), Qjl(1).encode_decode(x), rtol=2e-3, atol=1e-5)


def test_the_size_of_a_row_scales_through() -> None:
    x = normal(20, 64)
    for method in (TurboQuantMse(3), TurboQuantProd(3), Qjl(1)):
        np.testing.assert_array_equal(method.encode_decode(x * np.float32(8)), method.encode_decode(x) * np.float32(8))


def test_orthogonal_sketch_rows() -> None:
    s = gaussian_matrix(96, 64, 0, orthogonal=True).astype(np.float64)
    plain = gaussian_matrix(96, 64, 0).astype(np.float64)
    np.testing.assert_allclose(np.linalg.norm(s, axis=1), np.linalg.norm(plain, axis=1), rtol=1e-6)
    gram = s[:64] @ s[:64].T
    np.testing.assert_allclose(gram - np.diag(np.diag(gram)), 0, atol=1e-4)


def test_bad_arguments_are_refused() -> None:
    s = gaussian_matrix(8, 16, 0)
    with pytest.raises(ValueError, match=r"x must have shape \(rows, 16\), got \(1, 8\)"):
        signs(normal(1, 8), s)
    with pytest.raises(ValueError, match=r"z must have shape \(rows, 8\), got \(1, 16\)"):
        unsketch(normal(1, 16), s)
    with pytest.raises(TypeError, match="queries must be a NumPy array of float32, got list"):
        inner([[0.0]], normal(1, 8), s)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="at least 1, got 0 and 4"):
        gaussian_matrix(0, 4, 0)
    with pytest.raises(ValueError, match=r"bits must be 0\.\.8, got 9"):
        TurboQuantMse(9).encode_decode(normal(1, 64))
    with pytest.raises(ValueError, match="at least 1, got 0"):
        TurboQuantProd(0)
    with pytest.raises(ValueError, match="positive, got 0"):
        Qjl(0)
