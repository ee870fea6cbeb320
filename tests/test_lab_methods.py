"""Every method of the registry keeps the interface of lab/method.py."""

from __future__ import annotations

import numpy as np
import pytest
from lab_rows import nmse, normal

from turbokv_eval.lab.method import Method
from turbokv_eval.lab.registry import FAMILIES, METHODS

N, D = 160, 128
every_method = pytest.mark.parametrize("method", METHODS.values(), ids=METHODS)


def test_every_family_is_listed_at_every_rate() -> None:
    assert len(METHODS) == sum(len(family.rates) for family in FAMILIES.values())
    for name, method in METHODS.items():
        assert method.name == name
    with pytest.raises(ValueError, match="no rate 5; there are 1, 2, 3, 4"):
        FAMILIES["turboquant_mse"](5)


@every_method
def test_interface(method: Method) -> None:
    x, queries = normal(N, D, 1) * np.float32(3), normal(8, D, 2)
    before = x.copy()
    fitted = method.fit(normal(N, D, 3) * np.float32(3), normal(512, D, 4))
    y = fitted.encode_decode(x)
    assert (y.dtype, y.shape) == (np.float32, x.shape)
    np.testing.assert_array_equal(x, before)
    np.testing.assert_array_equal(fitted.encode_decode(x), y)
    # A rate of R bits cannot do better than 4^-R (Shannon), and QJL at 1 bit is the worst of all.
    bits = fitted.bits_per_value(N, D)
    assert 4.0**-bits < nmse(x, y) < 1.7
    scores = fitted.scores(queries, x)
    assert (scores.dtype, scores.shape) == (np.float32, (8, N))
    np.testing.assert_allclose(scores, queries @ y.T, atol=2e-4 * float(np.abs(scores).max()))


@every_method
def test_bad_rows_are_refused(method: Method) -> None:
    good = normal(N, D)
    with pytest.raises(TypeError, match="keys must be a NumPy array of float32, got float64"):
        method.fit(good.astype(np.float64))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"queries must have shape \(rows, 128\), got \(4, 64\)"):
        method.fit(good, normal(4, 64))
    fitted = method.fit(good)
    for call in (fitted.encode_decode, lambda x: fitted.scores(good, x)):
        with pytest.raises(TypeError, match="must be a NumPy array of float32, got list"):
            call([[1.0]])  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="must be a NumPy array of float32, got float16"):
            call(good.astype(np.float16))  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=r"must have shape \(rows, (d|128)\), got \(128,\)"):
            call(good[0])
    with pytest.raises(ValueError, match=r"queries must have shape \(rows, 128\), got \(1, 64\)"):
        fitted.scores(normal(1, 64), good)


def test_a_calibrated_method_refuses_other_widths_and_no_rows() -> None:
    for name in ("outlier_channels32-2", "kvquant_keys-3", "condition/widths-3", "balanced/turbo-3"):
        with pytest.raises(ValueError, match="at least one row to calibrate"):
            METHODS[name].fit(normal(0, D))
        with pytest.raises(ValueError, match=r"must have shape \(rows, 128\), got \(2, 64\)"):
            METHODS[name].fit(normal(N, D)).encode_decode(normal(2, 64))


@pytest.mark.parametrize(
    ("name", "bits"),
    {
        "q8_0": 8.5,
        "q4_0": 4.5,
        "turbo-3": 3.125,
        "turboquant_mse-3": 3 + 16 / 128,
        "turboquant_mse-log8-3": 3 + 8 / 128,
        "turboquant_prod-3": 3 + 32 / 128,
        "qjl-1": 1 + 16 / 128,
        "half_channels-2.5": 2.5 + 16 / 128,
        # 32 of 128 channels at 3 bits, the rest at 2, and two norms.
        "outlier_channels32-2": 2.25 + 32 / 128,
        # Of 16 values: 8 angles of 4 bits, 4 + 2 + 1 of 2 bits, one fp16 radius.
        "polarquant-4.2": 62 / 16,
        "group32-2": 2 + 32 / 32,
        # 256 of 300 tokens in groups, 44 in fp16; the newest 128 in fp16.
        "kivi_keys-2": (256 * 3 + 44 * 16) / 300,
        "kivi_values-2": (172 * 3 + 128 * 16) / 300,
        # Two sparse values a token: fp16 and 7 bits of channel.
        "kvquant_keys-3": 3 + 2 * 23 / 128,
        "condition/widths-2.5": 2.5 + 16 / 128,
        "trellis4096-3": 3 + 16 / 128,
    }.items(),
)
def test_all_stored_bits_are_counted(name: str, bits: float) -> None:
    assert METHODS[name].fit(normal(N, D)).bits_per_value(300, D) == pytest.approx(bits, rel=1e-12)


def test_an_empty_cache_and_rows_of_zeros() -> None:
    for name, method in METHODS.items():
        fitted = method.fit(normal(N, D))
        assert fitted.encode_decode(normal(0, D)).shape == (0, D), name
        if "/" not in name and not name.startswith("kvquant"):
            np.testing.assert_array_equal(fitted.encode_decode(np.zeros((160, D), dtype=np.float32)), 0, name)
