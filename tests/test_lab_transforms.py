"""Transforms invert, keep inner products, and are what their sources say."""

from __future__ import annotations

import numpy as np
import pytest
from lab_rows import normal

from turbokv_eval.lab.conditioning import MAX_SCALE, Balanced, CentreEqualise
from turbokv_eval.lab.ggml_types import Q8_0
from turbokv_eval.lab.rope import Rope
from turbokv_eval.lab.rotations import BlockDiagonal, Haar, KroneckerHadamard, RademacherHadamard, haar_matrix
from turbokv_eval.lab.sketch import gaussian_matrix
from turbokv_eval.lab.transform import Chain, Identity, Transform, Transformed
from turbokv_eval.reference import rotation

ROTATIONS: tuple[Transform, ...] = (
    Identity(),
    Haar(3),
    RademacherHadamard(3),
    KroneckerHadamard(3),
    BlockDiagonal(2, 3),
    BlockDiagonal(4, 3),
)
CALIBRATED: tuple[Transform, ...] = (
    CentreEqualise(),
    CentreEqualise(equalise=False),
    CentreEqualise(centre=False),
    Balanced(),
    Chain((CentreEqualise(), Haar(1))),
)


def uneven(n: int, d: int, seed: int) -> np.typing.NDArray[np.float32]:
    """Rows with a mean and correlated channels of very different sizes."""
    rng = np.random.default_rng(5)
    mix = rng.standard_normal((d, d)) / np.sqrt(d) * np.exp(rng.normal(0, 1, d))
    return (normal(n, d, seed) @ mix + rng.normal(0, 3, d)).astype(np.float32)


@pytest.mark.parametrize("transform", ROTATIONS + CALIBRATED, ids=lambda t: t.name)
def test_inverse_and_inner_products(transform: Transform) -> None:
    keys, queries = uneven(500, 64, 1), normal(300, 64, 2) * np.linspace(0.3, 3, 64, dtype=np.float32)
    fitted = transform.fit(keys, queries)
    x = uneven(50, 64, 3)
    y = fitted.forward(x)
    assert y.dtype == np.float32
    np.testing.assert_allclose(fitted.inverse(y), x, atol=2e-4 * float(np.abs(x).max()))
    # Scores differ by a constant for each query, which softmax ignores.
    shift = fitted.query(queries) @ y.T - queries @ x.T
    np.testing.assert_allclose(shift, np.broadcast_to(shift.mean(axis=1, keepdims=True), shift.shape), atol=2e-2)
    if transform in ROTATIONS:
        np.testing.assert_allclose(shift, 0, atol=2e-3)
        np.testing.assert_allclose(np.linalg.norm(y, axis=1), np.linalg.norm(x, axis=1), rtol=1e-5)


def test_haar_is_uniform_whatever_the_signs_of_qr() -> None:
    # The trace of a Haar matrix has mean 0 and variance 1; LAPACK's own signs would give it a mean near -sqrt(d)/2.
    traces = np.array([np.trace(haar_matrix(16, seed)) for seed in range(2000)])
    assert abs(traces.mean()) < 4 / np.sqrt(2000)
    assert traces.var() == pytest.approx(1, abs=0.15)
    m = haar_matrix(80, 1)
    np.testing.assert_allclose(m @ m.T, np.eye(80), atol=1e-13)
    assert not np.array_equal(m, haar_matrix(80, 2))


def test_a_rotation_and_a_sketch_of_one_seed_are_independent() -> None:
    # From one Gaussian matrix for both, the mean of the diagonal of S Pi^T would be about sqrt(d) = 8.
    product = gaussian_matrix(64, 64, 7).astype(np.float64) @ haar_matrix(64, 7).T
    assert abs(np.diag(product).mean()) < 4 / np.sqrt(64)


def test_the_kronecker_form_is_the_fork_s_rotation() -> None:
    x = normal(5, 80)
    np.testing.assert_allclose(KroneckerHadamard(4).fit(x).forward(x), rotation.forward(x, 4), atol=1e-6)
    spike = np.zeros((1, 128), dtype=np.float32)
    spike[0, 3] = 1
    np.testing.assert_allclose(np.abs(RademacherHadamard().fit(spike).forward(spike)), 128**-0.5, rtol=1e-6)


def test_block_rotations_stay_in_their_block() -> None:
    for size in (2, 4):
        fitted = BlockDiagonal(size).fit(normal(1, 96))
        basis = fitted.forward(np.eye(96, dtype=np.float32))
        outside = np.kron(np.eye(96 // size), np.ones((size, size))) == 0
        assert (basis[outside] == 0).all()
        assert (np.abs(basis[~outside]) > 0).all()


def test_centre_and_equalise_are_the_moments_of_design() -> None:
    keys, queries = uneven(4000, 32, 1), normal(4000, 32, 2) * np.linspace(0.5, 2, 32, dtype=np.float32)
    y = CentreEqualise().fit(keys, queries).forward(keys).astype(np.float64)
    asked = CentreEqualise().fit(keys, queries).query(queries).astype(np.float64)
    np.testing.assert_allclose(y.mean(axis=0), 0, atol=1e-4)
    # After it, E[q^2] / E[k^2] is the same in every channel, and the scales have geometric mean 1.
    ratio = (asked**2).mean(axis=0) / (y**2).mean(axis=0)
    np.testing.assert_allclose(ratio, ratio[0], rtol=1e-4)
    scale = y.std(axis=0) / keys.astype(np.float64).std(axis=0)
    assert np.log(scale).mean() == pytest.approx(0, abs=1e-4)


def test_a_dead_channel_does_not_take_all_the_scale() -> None:
    keys = normal(100, 16)
    keys[:, 3] = 0
    fitted = CentreEqualise().fit(keys)
    scale = fitted.forward(keys + 1) - fitted.forward(keys)
    assert np.isfinite(scale).all()
    assert float(scale.max() / np.median(scale)) <= MAX_SCALE * 1.01


def test_the_balanced_map_gives_keys_and_queries_the_same_diagonal_covariance() -> None:
    # Well conditioned, so that the ridge on the covariances is not seen.
    keys = normal(3000, 32, 1) @ (np.eye(32) + normal(32, 32, 4) / 12).astype(np.float32) * np.float32(5) + np.float32(
        3
    )
    queries = normal(3000, 32, 2) @ (np.eye(32) + normal(32, 32, 3) / 12).astype(np.float32)
    fitted = Balanced().fit(keys, queries)
    y, asked = fitted.forward(keys).astype(np.float64), fitted.query(queries).astype(np.float64)
    key, query = y.T @ y / len(y), asked.T @ asked / len(asked)
    size = np.diag(key)
    assert (np.diff(size) < 0).all()
    np.testing.assert_allclose(np.diag(query), size, rtol=0.02)
    for sigma in (key, query):
        off = sigma / np.sqrt(np.outer(np.diag(sigma), np.diag(sigma))) - np.eye(32)
        assert np.abs(off).max() < 0.05


@pytest.mark.parametrize("layout", ["neox", "norm"])
def test_rope_against_complex_numbers(layout: str) -> None:
    x, dims, base, start = normal(6, 16), 12, 500.0, 1000
    fitted = Rope(base, layout, dims, start).fit(x)  # type: ignore[arg-type]
    turned = fitted.inverse(x)
    for row in range(6):
        for i in range(dims // 2):
            a, b = (i, i + dims // 2) if layout == "neox" else (2 * i, 2 * i + 1)
            z = complex(x[row, a], x[row, b]) * np.exp(1j * (start + row) * base ** (-2 * i / dims))
            assert complex(turned[row, a], turned[row, b]) == pytest.approx(z, abs=1e-5)
    np.testing.assert_array_equal(turned[:, dims:], x[:, dims:])
    np.testing.assert_allclose(fitted.forward(turned), x, atol=1e-5)


def test_transformed_scores_are_those_of_the_rows_it_gives_back() -> None:
    x, queries = uneven(40, 64, 1), normal(5, 64, 2)
    fitted = Transformed(Rope(), Transformed(CentreEqualise(), Q8_0)).fit(x, queries)
    np.testing.assert_allclose(fitted.encode_decode(x), x, atol=0.02 * float(np.abs(x).max()))
    np.testing.assert_array_equal(fitted.scores(queries, x), queries @ fitted.encode_decode(x).T)


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="power of two"):
        RademacherHadamard().fit(normal(1, 80))
    with pytest.raises(ValueError, match="no rotation for head dimension 100"):
        KroneckerHadamard().fit(normal(1, 100))
    with pytest.raises(ValueError, match="2 or 4 channels, not 3"):
        BlockDiagonal(3)
    with pytest.raises(ValueError, match="multiple of 4"):
        BlockDiagonal(4).fit(normal(1, 6))
    with pytest.raises(ValueError, match="dims must be even and at most 8, got 10"):
        Rope(dims=10).fit(normal(1, 8))
    with pytest.raises(ValueError, match="at least 1"):
        haar_matrix(0, 0)
    for transform in ROTATIONS + CALIBRATED:
        with pytest.raises(TypeError, match="got float64"):
            transform.fit(np.zeros((4, 64)))  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="shape"):
            transform.fit(normal(4, 64)).forward(normal(4, 64)[0])
