"""Unequal widths channel by channel: they save where channels differ, follow each row, and are counted."""

import numpy as np
import pytest

from codebook_gen import solve
from turbokv_eval.lab.waterfill import WaterFilled


def noise(rate: float, spread: float, group: int = 1) -> float:
    """Logit noise relative to the logits, of 64 channels whose log deviations have this spread."""
    rng = np.random.default_rng(3)
    deviation = np.exp(rng.normal(0, spread, 64))
    calibration, x = (rng.normal(size=(n, 64)) * deviation for n in (4000, 500))
    queries = rng.normal(size=(500, 64)).astype(np.float32)
    method = WaterFilled(rate, group).fit(calibration.astype(np.float32))
    products = queries @ x.astype(np.float32).T
    return float(((method.scores(queries, x.astype(np.float32)) - products) ** 2).mean() / (products**2).mean())


def test_equal_channels_lose_what_a_scalar_code_loses_and_unequal_ones_less() -> None:
    scalar = float(solve(3, 64).nmse)
    # The least-squares scale saves a little.
    assert 0.9 * scalar < noise(3, 0.0) < scalar
    assert noise(3, 1.0) < noise(3, 1.0, group=8) < 0.5 * scalar
    assert noise(4, 1.0) < 0.5 * noise(3, 1.0)


def test_channels_that_are_asked_for_get_the_bits() -> None:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(500, 64)).astype(np.float32)
    queries = x.copy()
    queries[:, 32:] *= 0.01
    error = (WaterFilled(2).fit(x, queries).encode_decode(x) - x) ** 2
    assert error[:, :32].mean() < 0.02
    assert error[:, 32:].mean() > 0.5


def test_the_scale_of_a_row_follows_the_row_and_a_row_of_zeros_stays_one() -> None:
    x = np.random.default_rng(0).normal(size=(300, 64)).astype(np.float32)
    method = WaterFilled(3).fit(x)
    errors = [np.linalg.norm(method.encode_decode(x * size) / size - x) for size in (np.float32(1), np.float32(100))]
    assert errors[1] == pytest.approx(errors[0], rel=1e-2)
    np.testing.assert_array_equal(method.encode_decode(np.zeros((2, 64), dtype=np.float32)), 0)


def test_an_empty_channel_is_no_trouble() -> None:
    x = np.random.default_rng(0).normal(size=(300, 64)).astype(np.float32)
    x[:, 5] = 0
    assert np.isfinite(WaterFilled(3).fit(x, x).encode_decode(x)).all()
    assert np.isfinite(WaterFilled(3).fit(np.zeros_like(x)).encode_decode(x)).all()


def test_bits_are_widths_and_one_scale() -> None:
    x = np.random.default_rng(0).normal(size=(300, 96)).astype(np.float32)
    assert WaterFilled(2.5, group=8).fit(x).bits_per_value(100, 96) == pytest.approx(2.5 + 16 / 96)
    # What cannot be shared by groups is not used and not counted.
    assert WaterFilled(2.04, group=8).fit(x).bits_per_value(100, 96) == pytest.approx(2 + 16 / 96)
    with pytest.raises(ValueError, match="shape"):
        WaterFilled(3).fit(x).bits_per_value(100, 64)
    with pytest.raises(TypeError, match="float32"):
        WaterFilled(3).fit(x.astype(np.float64))
    with pytest.raises(ValueError, match="multiple of 36"):
        WaterFilled(3, group=36).fit(x)
