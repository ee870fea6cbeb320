"""Unequal widths are the best ones there are, and the bits that they take are counted."""

import itertools

import numpy as np
import pytest

from turbokv_eval.lab.levels import lloyd_max
from turbokv_eval.lab.waterfill import WaterFilled, allocate, gaussian_nmse


def test_the_errors_of_a_gaussian_are_those_of_the_literature() -> None:
    assert gaussian_nmse(0) == pytest.approx(1, rel=1e-3)
    # Max 1960, table I.
    for bits, wanted in ((1, 0.3634), (2, 0.1175), (3, 0.03454), (4, 0.009497)):
        assert gaussian_nmse(bits) == pytest.approx(wanted, rel=5e-3)


@pytest.mark.parametrize(("bits", "least", "most"), [(9, 0, 4), (12, 1, 5), (7, 1, 3)])
def test_greedy_widths_meet_the_best_of_all(bits: int, least: int, most: int) -> None:
    importance = np.random.default_rng(bits).exponential(size=5) ** 3
    nmse = np.array([gaussian_nmse(b) for b in range(most + 1)])
    widths = allocate(importance, bits, least, most, 1)
    every = (w for w in itertools.product(range(least, most + 1), repeat=5) if sum(w) == bits)
    best = min(float((importance * nmse[list(w)]).sum()) for w in every)
    assert widths.sum() == bits
    assert float((importance * nmse[widths]).sum()) == pytest.approx(best, rel=1e-9)


def test_groups_share_a_width_and_more_important_ones_have_no_less() -> None:
    importance = np.random.default_rng(0).exponential(size=64) ** 3
    widths = allocate(importance, 3 * 64, 1, 6, 8)
    ordered = widths[np.argsort(-importance)].reshape(8, 8)
    assert (ordered == ordered[:, :1]).all()
    assert (np.diff(ordered[:, 0]) <= 0).all()
    assert ordered[0, 0] > 3 > ordered[-1, 0]


def test_widths_that_cannot_be() -> None:
    ones = np.ones(6)
    for args, said in (
        ((40, 1, 6, 1), "cannot be shared"),
        ((3, 1, 6, 1), "cannot be shared"),
        ((12, 1, 6, 4), "divide"),
    ):
        with pytest.raises(ValueError, match=said):
            allocate(ones, *args)


def noise(rate: float, spread: float) -> float:
    """Logit noise relative to the logits, of 64 channels whose log deviations have this spread."""
    rng = np.random.default_rng(3)
    deviation = np.exp(rng.normal(0, spread, 64))
    draw = lambda n: (rng.normal(size=(n, 64)) * deviation).astype(np.float32)  # noqa: E731
    queries = rng.normal(size=(500, 64)).astype(np.float32)
    method = WaterFilled(rate).fit(draw(4000), queries)
    x = draw(500)
    error = method.scores(queries, x) - queries @ x.T
    return float((error**2).mean() / ((queries @ x.T) ** 2).mean())


def test_equal_channels_lose_what_a_scalar_code_loses_and_unequal_ones_less() -> None:
    # A scale for each row of 64 saves a little.
    assert 0.9 * gaussian_nmse(3) < noise(3, 0.0) < gaussian_nmse(3)
    assert noise(3, 1.0) < 0.5 * gaussian_nmse(3)
    assert noise(4, 1.0) < 0.5 * noise(3, 1.0)


def test_the_scale_of_a_row_follows_the_row() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 64)).astype(np.float32)
    method = WaterFilled(3).fit(x)
    errors = [np.linalg.norm(method.encode_decode(x * size) / size - x) for size in (np.float32(1), np.float32(100))]
    assert errors[1] == pytest.approx(errors[0], rel=1e-2)
    np.testing.assert_array_equal(method.encode_decode(np.zeros((2, 64), dtype=np.float32)), 0)


def test_bits_are_widths_and_one_scale() -> None:
    x = np.random.default_rng(0).normal(size=(300, 96)).astype(np.float32)
    assert WaterFilled(2.5, group=8).fit(x).bits_per_value(100, 96) == pytest.approx(2.5 + 16 / 96)
    # What cannot be shared in groups is not used and not counted.
    assert WaterFilled(2.04, group=8).fit(x).bits_per_value(100, 96) == pytest.approx(2 + 16 / 96)
    with pytest.raises(ValueError, match="shape"):
        WaterFilled(3).fit(x).bits_per_value(100, 64)
    with pytest.raises(TypeError, match="float32"):
        WaterFilled(3).fit(x.astype(np.float64))
    assert lloyd_max(0, 96).nearest(x).max() == 0
