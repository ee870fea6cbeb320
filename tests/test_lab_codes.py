"""The codes of the laboratory, each against a plain scalar form of it or a known figure."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
from lab_rows import nmse, normal

from turbokv_eval.lab import levels, norms
from turbokv_eval.lab.groups import KiviKeys, KiviValues, TokenGroups, quantise_groups
from turbokv_eval.lab.kvquant import KvQuantKeys
from turbokv_eval.lab.mixed import HalfChannels, OutlierChannels
from turbokv_eval.lab.polarquant import PolarQuant, angle_levels
from turbokv_eval.lab.rope import Rope
from turbokv_eval.lab.scalar import ScalarCode, least_squares, unit_rows
from turbokv_eval.lab.transform import Identity, Transformed
from turbokv_eval.lab.turbo import Turbo
from turbokv_eval.lab.turboquant import TurboQuantMse
from turbokv_eval.lab.widths import UnequalWidths, allocate
from turbokv_eval.reference import codec, rotation
from turbokv_eval.reference.types import by_name

LLOYD_128 = {1: 0.3609, 2: 0.1160, 3: 0.0340, 4: 0.0093}


@pytest.mark.parametrize("bits", LLOYD_128)
def test_lloyd_max_mse_at_128(bits: int) -> None:
    x = normal(20_000, 128, bits)
    assert nmse(x, TurboQuantMse(bits, norm="exact").encode_decode(x)) == pytest.approx(LLOYD_128[bits], rel=0.005)


@pytest.mark.parametrize("bits", range(1, 9))
def test_levels_are_ascending_antisymmetric_and_nearest(bits: int) -> None:
    for table in (levels.lloyd_max(bits, 96), levels.uniform(bits, 96)):
        assert len(table.values) == 2**bits
        assert (np.diff(table.values) > 0).all()
        np.testing.assert_allclose(table.values, -table.values[::-1], rtol=1e-6)
        u = normal(1, 2000)[0]
        distance = np.abs(u[:, None] - table.values)
        np.testing.assert_allclose(np.abs(u - table.nearest(u)), distance.min(axis=1), atol=1e-6)


def test_uniform_levels_are_the_best_step_and_no_better_than_lloyd_max() -> None:
    x = normal(4000, 128)
    u = x * np.sqrt(128 / (x.astype(np.float64) ** 2).sum(axis=1, keepdims=True))
    for bits, known in ((2, 0.1188), (3, 0.0374), (4, 0.01154)):  # Max 1960, for the Gaussian
        table = levels.uniform(bits, 128)
        found = nmse(u.astype(np.float32), table.nearest(u.astype(np.float32)))
        assert found == pytest.approx(known, rel=0.04)
        step = np.diff(table.values).mean()
        for factor in (0.95, 1.05):
            grid = (table.values * factor).astype(np.float32)
            other = levels.Levels(grid, (grid[1:] + grid[:-1]) / np.float32(2))
            assert nmse(u.astype(np.float32), other.nearest(u.astype(np.float32))) > found, step
        assert found > LLOYD_128[bits]


def test_trained_levels_of_gaussian_samples_are_lloyd_max() -> None:
    half = np.random.default_rng(0).standard_normal(200_000)
    trained = levels.from_samples(np.concatenate([half, -half]), 2, 200).values
    np.testing.assert_allclose(trained, [-1.510, -0.4528, 0.4528, 1.510], atol=0.01)
    assert len(levels.from_samples(np.zeros(3), 4).values) == 16


def test_norm_formats() -> None:
    sizes = np.exp(np.random.default_rng(0).uniform(-9, 10, 5000)).astype(np.float32)
    for form, worst in (("fp16", 2**-11), ("log8", 2 ** (norms.LOG8_STEP / 2) - 1), ("exact", 0.0)):
        error = np.abs(norms.store(sizes, form) / sizes - 1)  # type: ignore[arg-type]
        assert error.max() <= worst * 1.001
    assert len(set(norms.log8_codes(sizes))) > 200
    edge = np.array([0, 1e-30, 1e30], dtype=np.float32)
    np.testing.assert_array_equal(norms.log8_codes(edge), [0, 0, 255])
    np.testing.assert_array_equal(norms.store(edge, "fp16"), np.array([0, 0, 65504], dtype=np.float32))


def test_least_squares_scale_is_the_best_scale() -> None:
    x = normal(500, 64)
    plain = ScalarCode(2, norm="exact").encode_decode(x)
    best = ScalarCode(2, norm="exact", scale="least_squares").encode_decode(x)
    error = ((best - x) ** 2).sum(axis=1)
    for factor in (0.97, 1.0, 1.03):
        assert (error <= ((plain * factor - x) ** 2).sum(axis=1) + 1e-5).all()
    for factor in (0.999, 1.001):
        assert (error <= ((best * factor - x) ** 2).sum(axis=1) + 1e-5).all()


def test_turbo_is_the_format_s_codec_behind_its_rotation() -> None:
    x = normal(10, 256)
    blocks = codec.encode(rotation.forward(x, 5).reshape(-1, 128), by_name("turbo3"))
    expected = rotation.inverse(codec.decode(blocks, by_name("turbo3")).reshape(10, 256), 5)
    np.testing.assert_array_equal(Turbo(3, layer=5).encode_decode(x), expected)
    with pytest.raises(ValueError, match="no turbo type for head dimension 72"):
        Turbo(3, rotate=False).encode_decode(normal(1, 72))


def test_half_channels_lie_between_the_whole_rates() -> None:
    x = normal(4000, 128)
    found = nmse(x, HalfChannels(2).encode_decode(x))
    assert found == pytest.approx((LLOYD_128[2] + LLOYD_128[3]) / 2, rel=0.01)


def test_outlier_channels_get_their_bit() -> None:
    x = normal(2000, 128)
    outliers = np.arange(0, 128, 4)
    x[:, outliers] *= 10
    y = OutlierChannels(2).fit(x).encode_decode(x)
    others = np.setdiff1d(np.arange(128), outliers)
    # Each part is an instance of Algorithm 1 at its own dimension: 32 at 3 bits, 96 at 2.
    assert nmse(x[:, outliers], y[:, outliers]) == pytest.approx(0.0327, rel=0.03)
    assert nmse(x[:, others], y[:, others]) == pytest.approx(0.1155, rel=0.02)
    with pytest.raises(ValueError, match="32 outlier channels of 32: take 4 to 28"):
        OutlierChannels(2).fit(normal(4, 32))


def scalar_group(values: list[float], bits: int) -> list[float]:
    zero = float(np.float16(min(values)))
    scale = float(np.float16((max(values) - min(values)) / (2**bits - 1)))
    top = 2**bits - 1
    return [min(max(round((v - zero) / scale), 0), top) * scale + zero for v in values]


def test_token_groups_and_kivi_against_scalar_groups() -> None:
    x = normal(300, 64)
    grouped = TokenGroups(2).encode_decode(x)
    np.testing.assert_allclose(grouped[5, 32:], scalar_group(x[5, 32:].tolist(), 2), atol=1e-5)
    keys = KiviKeys(2).encode_decode(x)
    np.testing.assert_allclose(keys[64:96, 7], scalar_group(x[64:96, 7].tolist(), 2), atol=1e-5)
    # 300 = 2 * 128 + 44 tokens: 44 still wait.
    np.testing.assert_array_equal(keys[256:], x[256:].astype(np.float16).astype(np.float32))
    assert nmse(x[:256], keys[:256]) > 0.1
    values = KiviValues(2).encode_decode(x)
    np.testing.assert_array_equal(values[:172], grouped[:172])
    np.testing.assert_array_equal(values[172:], x[172:].astype(np.float16).astype(np.float32))


def test_kivi_keys_are_blind_to_the_size_of_a_channel() -> None:
    x = normal(128, 64)
    sizes = (2.0 ** np.arange(-8, 8)).astype(np.float32).repeat(4)
    np.testing.assert_allclose(KiviKeys(3).encode_decode(x * sizes) / sizes, KiviKeys(3).encode_decode(x), atol=2e-2)
    with pytest.raises(ValueError, match="multiple of group, got 100 and 32"):
        KiviKeys(2, residual=100)
    with pytest.raises(ValueError, match="multiple of 32 values, got 80"):
        TokenGroups(2).encode_decode(normal(1, 80))


def test_kvquant_keeps_the_worst_values_and_codes_the_rest_per_channel() -> None:
    keys = normal(2000, 64)
    x = normal(50, 64, 1)
    x[:, 9] += np.float32(1000)
    y = KvQuantKeys(3).fit(keys).encode_decode(x)
    np.testing.assert_array_equal(y[:, 9], x[:, 9].astype(np.float16))
    others = np.delete(np.arange(64), 9)
    assert nmse(x[:, others], y[:, others]) < 0.05
    # Calibrated sizes and means of channels cost nothing.
    moved = (normal(50, 64, 1) * np.linspace(1, 100, 64) + np.linspace(-50, 50, 64)).astype(np.float32)
    calibration = (keys * np.linspace(1, 100, 64) + np.linspace(-50, 50, 64)).astype(np.float32)
    back = KvQuantKeys(3).fit(calibration).encode_decode(moved)
    assert nmse(moved - moved.mean(axis=0), back - moved.mean(axis=0)) < 0.05
    assert not np.isnan(KvQuantKeys(2).fit(np.ones((5, 64), dtype=np.float32)).encode_decode(x)).any()


def test_kvquant_before_rope_sees_the_channels_that_rope_hides() -> None:
    rng = np.random.default_rng(0)
    raw = (rng.standard_normal((512, 64)) + rng.normal(0, 8, 64)).astype(np.float32)
    rope = Rope()
    keys = rope.fit(raw).inverse(raw)
    before = nmse(keys, KvQuantKeys(2, rope=rope).fit(keys).encode_decode(keys))
    after = nmse(keys, KvQuantKeys(2).fit(keys).encode_decode(keys))
    assert before < after / 4


def test_polar_angles_are_the_density_of_the_paper() -> None:
    # Level 2: density sin(2 psi); its two-level quantiser, by symmetry pi/4 -+ m with m = pi/4 - E[psi | psi < pi/4].
    half = np.linspace(0, math.pi / 4, 100_001)
    low = float((half * np.sin(2 * half)).sum() / np.sin(2 * half).sum())
    np.testing.assert_allclose(angle_levels(2, 1).values, [low, math.pi / 2 - low], atol=1e-3)
    spread = [float(np.ptp(angle_levels(level, 2).values)) for level in (2, 3, 4, 5)]
    assert spread == sorted(spread, reverse=True)


def test_polar_quant_is_exact_in_the_limit_and_keeps_radii() -> None:
    x = normal(200, 96)
    assert nmse(x, PolarQuant(8, 8).encode_decode(x)) < 2e-4
    y = PolarQuant(4, 2, rotation=Identity()).encode_decode(x)
    sizes = np.linalg.norm(x.reshape(200, 6, 16), axis=2)
    np.testing.assert_allclose(np.linalg.norm(y.reshape(200, 6, 16), axis=2), sizes, rtol=1e-3)
    with pytest.raises(ValueError, match="multiple of 16 values, got 100"):
        PolarQuant().encode_decode(normal(1, 100))


def test_allocation_is_the_best_of_all_allocations() -> None:
    importance = np.array([9.0, 3.0, 1.0, 0.2])
    cost = [levels.lloyd_max_nmse(bits, 128) for bits in range(9)]

    def total(widths: tuple[int, ...]) -> float:
        return sum(float(i) * cost[w] for i, w in zip(importance, widths, strict=True))

    for bits in (4, 8, 12):
        every = [w for w in itertools.product(range(9), repeat=4) if sum(w) == bits]
        found = allocate(importance, bits, 128)
        assert sum(found) == bits
        assert total(found) == pytest.approx(min(map(total, every)), rel=1e-9)
    with pytest.raises(ValueError, match="33 bits do not fit 4 groups"):
        allocate(importance, 33, 128)


def test_unequal_widths_beat_equal_ones_where_channels_differ() -> None:
    sizes = np.geomspace(8, 0.1, 128).astype(np.float32)
    keys, x = normal(1000, 128) * sizes, normal(1000, 128, 1) * sizes
    equal = nmse(x, UnequalWidths(3, 4, (3, 3, 3, 3)).fit(keys).encode_decode(x))
    quarters = nmse(x, UnequalWidths(3, 4, (5, 3, 2, 2)).fit(keys).encode_decode(x))
    free = nmse(x, UnequalWidths(3, 8).fit(keys).encode_decode(x))
    assert free < quarters < equal / 4
    # Alike channels leave nothing to gain: the plain figure.
    same = normal(2000, 128)
    assert nmse(same, UnequalWidths(3, 4, (3, 3, 3, 3)).fit(same).encode_decode(same)) == pytest.approx(0.034, rel=0.02)
    with pytest.raises(ValueError, match="not 4 widths with a mean of 3"):
        UnequalWidths(3, 4, (5, 3, 2, 1))
    with pytest.raises(ValueError, match="no whole number of bits"):
        UnequalWidths(2.3, 8)


def test_bad_arguments_are_refused() -> None:
    wide = np.zeros((2, 32))
    for call in (
        levels.lloyd_max(2, 64).nearest,
        lambda x: norms.store(x, "fp16"),
        lambda x: quantise_groups(x, 2),
        unit_rows,
        lambda x: least_squares(x, x),
    ):
        with pytest.raises(TypeError, match="must be a NumPy array of float32, got float64"):
            call(wide)
    with pytest.raises(ValueError, match="unknown norm format 'fp8'; there are fp16, log8, exact"):
        norms.store(normal(1, 4), "fp8")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"bits must be 1\.\.8, got 0"):
        levels.uniform(0, 64)
    with pytest.raises(ValueError, match="d must be at least 4, got 3"):
        levels.uniform(2, 3)
    with pytest.raises(ValueError, match=r"samples must have shape \(n,\)"):
        levels.from_samples(wide, 2)
    with pytest.raises(ValueError, match=r"importance must have shape \(groups,\)"):
        allocate(wide, 1, 64)
    with pytest.raises(ValueError, match="level must be at least 2, got 1"):
        angle_levels(1, 2)
    with pytest.raises(ValueError, match=r"share must be at least 0 and below 0\.5, got 0\.5"):
        KvQuantKeys(2, share=0.5)
    with pytest.raises(ValueError, match="rows of an even number of values, got 65"):
        HalfChannels(2).encode_decode(normal(1, 65))


def test_unequal_widths_go_to_what_queries_ask_for() -> None:
    keys = normal(1000, 64)
    loud = np.ones(64, dtype=np.float32)
    loud[:16] = 10
    y = Transformed(Identity(), UnequalWidths(2, 4)).fit(keys, normal(500, 64, 2) * loud).encode_decode(keys)
    assert nmse(keys[:, :16], y[:, :16]) < nmse(keys[:, 16:], y[:, 16:]) / 8
