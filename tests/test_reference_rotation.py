"""Signs, Hadamard matrices and the rotation are those of docs/FORMAT.md section 5."""

from __future__ import annotations

import numpy as np
import pytest

from turbokv_eval.reference import rotation

DIMS = sorted(rotation.ORDERS)


def test_dimensions_are_those_of_the_format() -> None:
    assert DIMS == [64, 80, 96, 112, 128, 160, 192, 256, 320, 512, 576]


def test_splitmix64_gives_the_published_sequence() -> None:
    # The outputs for seed 1234567, as Rosetta Code and the PRNG's test suites list them.
    generator = rotation.splitmix64(1234567)
    expected = [
        6457827717110365317,
        3203168211198807973,
        9817491932198370423,
        4593380528125082431,
        16408922859458223821,
    ]
    assert [next(generator) for _ in range(5)] == expected


def test_signs_follow_the_bits_of_the_generator() -> None:
    for layer in (0, 1, 40):
        generator = rotation.splitmix64((layer * 0x9E3779B97F4A7C15) % 2**64)
        words = [next(generator) for _ in range(9)]
        expected = [-1 if words[j // 64] >> (j % 64) & 1 else 1 for j in range(576)]
        np.testing.assert_array_equal(rotation.signs(layer, 576), expected)
        np.testing.assert_array_equal(rotation.signs(layer, 80), expected[:80])


def test_signs_are_deterministic_balanced_and_differ_between_layers() -> None:
    layers = np.stack([rotation.signs(layer, 576) for layer in range(64)])
    np.testing.assert_array_equal(layers, np.stack([rotation.signs(layer, 576) for layer in range(64)]))
    assert set(np.unique(layers)) == {-1, 1}
    assert abs(layers.mean()) < 5 / np.sqrt(layers.size)
    # Layer l+1 starts one SplitMix64 step after layer l: its signs are those of layer l moved by one word.
    overlap = layers.astype(int) @ layers.astype(int).T - 576 * np.eye(64, dtype=int)
    assert np.abs(overlap).max() < 6 * np.sqrt(576)


@pytest.mark.parametrize("q", [5, 9, 13, 17])
def test_conference_matrix(q: int) -> None:
    c = rotation.conference_matrix(q).astype(int)
    np.testing.assert_array_equal(c, c.T)
    np.testing.assert_array_equal(c @ c.T, q * np.eye(q + 1, dtype=int))
    np.testing.assert_array_equal(np.abs(c), 1 - np.eye(q + 1, dtype=int))
    assert (c[0, 1:] == 1).all()


def test_quadratic_character_of_gf9_against_its_squares_by_hand() -> None:
    # Squares of 1, w, 1+w, 1+2w (w^2 = -1): 1, 2, 2w, w. So 1, 2, w = 3, 2w = 6 are squares; 4, 5, 7, 8 are not.
    row = rotation.conference_matrix(9)[1:, 1]  # column b = 0: chi(a)
    np.testing.assert_array_equal(row, [0, 1, 1, 1, -1, -1, 1, -1, -1])


@pytest.mark.parametrize("m", [12, 20, 28, 36])
def test_paley_blocks(m: int) -> None:
    h, c = rotation.paley(m), rotation.conference_matrix(m // 2 - 1)
    for i in range(m // 2):
        for j in range(m // 2):
            block = h[2 * i : 2 * i + 2, 2 * j : 2 * j + 2]
            expected = [[1, -1], [-1, -1]] if i == j else c[i, j] * np.array([[1, 1], [1, -1]])
            np.testing.assert_array_equal(block, expected)


@pytest.mark.parametrize("d", DIMS)
def test_hadamard_is_symmetric_orthogonal_and_kronecker_ordered(d: int) -> None:
    h, m = rotation.hadamard(d).astype(int), rotation.ORDERS[d]
    np.testing.assert_array_equal(h, h.T)
    np.testing.assert_array_equal(h @ h, d * np.eye(d, dtype=int))
    p = d // m
    assert p & (p - 1) == 0
    bits = np.arange(p)
    parity = np.array([[bin(i & j).count("1") % 2 for j in bits] for i in bits])
    small = rotation.paley(m).astype(int)
    for a, b in ((0, 0), (m - 1, 0), (m // 2, m - 1)):
        np.testing.assert_array_equal(h[a * p : (a + 1) * p, b * p : (b + 1) * p], small[a, b] * (1 - 2 * parity))


@pytest.mark.parametrize("d", DIMS)
def test_rotation_is_orthogonal_and_inverts(d: int) -> None:
    r = rotation.rotation_matrix(5, d)
    np.testing.assert_allclose(r @ r.T, np.eye(d), atol=1e-13)
    x = np.random.default_rng(d).standard_normal((3, d)).astype(np.float32)
    back = rotation.inverse(rotation.forward(x, 5), 5)
    assert back.dtype == np.float32
    np.testing.assert_allclose(back, x, atol=1e-5)
    wide = x.astype(np.float64)
    np.testing.assert_allclose(rotation.forward(wide, 5), wide @ r.T, atol=1e-13)
    np.testing.assert_allclose(rotation.inverse(wide, 5), wide @ r, atol=1e-13)


@pytest.mark.parametrize("d", DIMS)
def test_fast_transform_is_within_twice_the_error_of_the_plain_sum(d: int) -> None:
    x = np.random.default_rng(d).standard_normal((64, d)).astype(np.float32)
    r = rotation.rotation_matrix(2, d)
    exact = x.astype(np.float64) @ r.T
    plain = np.zeros_like(x)
    matrix = r.astype(np.float32)
    for j in range(d):
        plain += x[:, j : j + 1] * matrix[:, j]
    plain_error = np.abs(plain - exact).max()
    assert plain_error > 0
    assert np.abs(rotation.forward(x, 2) - exact).max() <= 2 * plain_error


@pytest.mark.parametrize("d", DIMS)
def test_scores_are_preserved_when_both_sides_are_rotated(d: int) -> None:
    rng = np.random.default_rng(d)
    q, k = rng.standard_normal((2, 16, d)).astype(np.float32)
    rotated = rotation.forward(q, 9) @ rotation.forward(k, 9).T
    np.testing.assert_allclose(rotated, q @ k.T, atol=2e-6 * d)
    other = rotation.forward(q, 9) @ rotation.forward(k, 10).T
    assert np.abs(other - q @ k.T).max() > 1


def test_a_spike_is_spread_evenly() -> None:
    x = np.zeros((1, 576))
    x[0, 17] = 24.0
    np.testing.assert_allclose(np.abs(rotation.forward(x, 0)), 1, atol=1e-12)


def test_any_leading_shape_and_empty() -> None:
    x = np.random.default_rng(0).standard_normal((2, 3, 80))
    y = rotation.forward(x, 1)
    np.testing.assert_array_equal(y[1, 2], rotation.forward(x[1, 2], 1))
    assert rotation.forward(np.empty((0, 80)), 1).shape == (0, 80)


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="no rotation for head dimension 100: it is not"):
        rotation.forward(np.zeros((1, 100)), 0)
    with pytest.raises(TypeError, match="float32 or float64, got float16"):
        rotation.forward(np.zeros((1, 64), dtype=np.float16), 0)  # type: ignore[type-var]
    with pytest.raises(TypeError, match="got list"):
        rotation.inverse([1.0] * 64, 0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="scalar"):
        rotation.forward(np.array(1.0), 0)
    with pytest.raises(ValueError, match="layer must be at least 0"):
        rotation.signs(-1, 64)
    with pytest.raises(ValueError, match="d must be at least 1"):
        rotation.signs(0, 0)
    with pytest.raises(ValueError, match="q must be one of"):
        rotation.conference_matrix(7)
    with pytest.raises(ValueError, match="m must be one of"):
        rotation.paley(16)
