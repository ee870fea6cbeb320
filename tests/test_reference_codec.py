"""Each rule of docs/FORMAT.md sections 1 to 4, on the NumPy codec."""

from __future__ import annotations

import math
import struct

import numpy as np
import numpy.typing as npt
import pytest

from turbokv_eval.reference import codebook, codec, rotation
from turbokv_eval.reference.types import TYPES, TurboType, block_for, by_name, by_shape
from turbokv_eval.reference.vector_inputs import Random, rms, ties

F32 = npt.NDArray[np.float32]
all_types = pytest.mark.parametrize("t", TYPES, ids=lambda t: t.name)
TURBO3 = by_name("turbo3")


def normal(rows: int, n: int, seed: int = 0) -> F32:
    return np.random.default_rng(seed).standard_normal((rows, n)).astype(np.float32)


def scale_of(blocks: codec.U8) -> npt.NDArray[np.float16]:
    return np.ascontiguousarray(blocks[:, :2]).view("<f2")[:, 0]


def codes_of(blocks: codec.U8, t: TurboType) -> codec.U8:
    return codec.unpack(blocks[:, 2:], t.bits)


def test_type_table_is_that_of_section_1() -> None:
    assert [(t.id, t.name, t.bits, t.n, t.block_bytes) for t in TYPES] == [
        (64, "turbo2", 2, 128, 34),
        (65, "turbo3", 3, 128, 50),
        (66, "turbo4", 4, 128, 66),
        (67, "turbo2_64", 2, 64, 18),
        (68, "turbo3_64", 3, 64, 26),
        (69, "turbo4_64", 4, 64, 34),
        (70, "turbo2_80", 2, 80, 22),
        (71, "turbo3_80", 3, 80, 32),
        (72, "turbo4_80", 4, 80, 42),
        (73, "turbo2_96", 2, 96, 26),
        (74, "turbo3_96", 3, 96, 38),
        (75, "turbo4_96", 4, 96, 50),
        (76, "turbo2_112", 2, 112, 30),
        (77, "turbo3_112", 3, 112, 44),
        (78, "turbo4_112", 4, 112, 58),
    ]
    assert [TURBO3.bits_per_value, by_shape(3, 64).bits_per_value] == [3.125, 3.25]


def test_block_of_a_head_dimension() -> None:
    dims = {64: 64, 80: 80, 96: 96, 112: 112, 128: 128, 160: 80, 192: 96, 256: 128, 320: 80, 512: 128, 576: 64}
    assert {d: block_for(d) for d in dims} == dims
    for d in (0, -128, 72, 100, 127):
        with pytest.raises(ValueError, match=f"no turbo type for head dimension {d}"):
            block_for(d)


def scalar_encode(x: F32, t: TurboType) -> bytes:
    """Section 4 once more, one scalar at a time and with exact integers for the steps that are exact."""
    f = np.float32
    book = codebook.load(t.bits, t.n)
    half = 2 ** (t.bits - 1)
    if any(math.isnan(v) or math.isinf(v) for v in x):
        return struct.pack("<H", 0x7E00) + bytes(t.n * t.bits // 8)
    m = max(abs(float(v)) for v in x)
    if m < 2.0**-40:
        return bytes(t.block_bytes)
    e = 126
    while 2.0**e > m:
        e -= 1
    u = [f(float(v) * 2.0**-e) for v in x]  # exact in binary64, so rounded once

    def lane_sum(v: list[np.float32]) -> np.float32:
        a = v[:16]
        for i in range(16, t.n):
            a[i % 16] = a[i % 16] + v[i]
        for width in (8, 4, 2):
            for i in range(width):
                a[i] = a[i] + a[i + width]
        return a[0] + a[1]

    r = np.sqrt(lane_sum([v * v for v in u]) / f(t.n))
    index = [sum(abs(v) > b * r for b in book.boundaries) for v in u]
    stream = 0
    for j, (v, i) in enumerate(zip(u, index, strict=True)):
        stream |= int(half + i if v >= 0 else half - 1 - i) << (t.bits * j)
    c = [book.centroids[i] for i in index]
    p = lane_sum([abs(v) * k for v, k in zip(u, c, strict=True)])
    q = lane_sum([k * k for k in c])
    g = float(p / q) * 2.0**e  # exact in binary64; binary32's overflow saturates as well
    scale = 65504.0 if g > 65504.0 else float(f(g))
    return struct.pack("<e", scale) + stream.to_bytes(t.n * t.bits // 8, "little")


@all_types
def test_vectorised_codec_agrees_with_a_scalar_transliteration(t: TurboType) -> None:
    rng = np.random.default_rng(t.id)
    rows = normal(12, t.n, t.id)
    rows[2] *= np.float32(1e-6)
    rows[3] *= np.float32(1e30)
    rows[4] *= np.float32(1e-42)
    rows[5] = np.ldexp(rows[5], rng.integers(-140, 120, t.n).astype(np.int32))
    rows[6, 5] = np.nan
    rows[7] = 0
    rows[8] = np.finfo(np.float32).max * rng.choice([-1, 1], t.n).astype(np.float32)
    rows[9, 1:] = 0
    blocks = codec.encode(rows, t)
    for row, block in zip(rows, blocks, strict=True):
        assert block.tobytes().hex() == scalar_encode(row, t).hex()
    # Alone or among others, a row encodes the same.
    np.testing.assert_array_equal(codec.encode(rows[5:6], t), blocks[5:6])


def test_section_2_codes_are_a_little_endian_bit_string() -> None:
    assert codec.pack(np.array([[1, 2, 3, 4, 5, 6, 7, 0]], dtype=np.uint8), 3).tobytes() == (
        sum(k << 3 * j for j, k in enumerate([1, 2, 3, 4, 5, 6, 7, 0])).to_bytes(3, "little")
    )
    assert codec.pack(np.array([[1, 0, 0, 2, 0, 0, 0, 3]], dtype=np.uint8), 2).tobytes() == bytes([0x81, 0xC0])
    assert codec.pack(np.array([[1, 2, 0, 0, 0, 0, 0, 15]], dtype=np.uint8), 4).tobytes() == bytes([0x21, 0, 0, 0xF0])
    for bits in (2, 3, 4):
        codes = np.random.default_rng(bits).integers(0, 1 << bits, (5, 80)).astype(np.uint8)
        np.testing.assert_array_equal(codec.unpack(codec.pack(codes, bits), bits), codes)
    with pytest.raises(ValueError, match="code 8 does not fit 3 bits"):
        codec.pack(np.full((1, 8), 8, dtype=np.uint8), 3)


@all_types
def test_section_3_levels_ascend_and_mirror(t: TurboType) -> None:
    levels = codebook.load(t.bits, t.n).levels
    assert levels.dtype == np.float32
    assert levels.size == 2**t.bits
    assert (np.diff(levels) > 0).all()
    np.testing.assert_array_equal(levels, -levels[::-1])


@pytest.mark.parametrize(
    ("ones", "rest"),
    [
        ((16, 8), 0),  # lane 0: 2^24 + 1 = 2^24, then lane 8: 2^24 again
        ((8, 24), 2),  # lane 8 is 2 by itself
        ((4, 12), 2),  # lanes 4 and 12 meet before either meets lane 0
        ((1, 2), 0),  # lane 0 meets 2 first, then 1
        ((1, 3), 2),  # lanes 1 and 3 meet first
    ],
)
def test_lane_sum_has_its_own_order(ones: tuple[int, int], rest: int) -> None:
    x = np.zeros((1, 64), dtype=np.float32)
    x[0, 0] = 2.0**24  # from here on adding 1 does nothing, adding 2 does
    x[0, list(ones)] = 1
    assert codec.lane_sum(x)[0] == 2.0**24 + rest


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@all_types
def test_step_1_nan_and_infinity(t: TurboType, value: float) -> None:
    x = normal(3, t.n)
    clean = codec.encode(x, t)
    x[1, t.n - 1] = value
    blocks = codec.encode(x, t)
    assert blocks[1].tobytes() == bytes([0x00, 0x7E]) + bytes(t.block_bytes - 2)
    np.testing.assert_array_equal(blocks[[0, 2]], clean[[0, 2]])
    assert np.isnan(codec.decode(blocks, t)[1]).all()


@all_types
def test_step_2_zero_rule(t: TurboType) -> None:
    x = np.zeros((4, t.n), dtype=np.float32)
    x[1] = -0.0
    x[2, 3] = np.nextafter(np.float32(2.0**-40), np.float32(0))
    x[3, 3] = -(2.0**-40)
    blocks = codec.encode(x, t)
    assert not blocks[:3].any()
    assert (codec.decode(blocks[:3], t) == 0).all()
    half = 2 ** (t.bits - 1)
    expected = np.full(t.n, half)
    expected[3] = 0
    np.testing.assert_array_equal(codes_of(blocks[3:], t)[0], expected)
    assert scale_of(blocks)[3] == 0


@all_types
def test_step_3_a_power_of_two_changes_the_scale_only(t: TurboType) -> None:
    x = normal(20, t.n)
    base = codec.encode(x, t)
    for k in (-9, 3, 12):
        moved = codec.encode(np.ldexp(x, k), t)
        np.testing.assert_array_equal(moved[:, 2:], base[:, 2:])
        np.testing.assert_array_equal(scale_of(moved).astype(float), scale_of(base).astype(float) * 2.0**k)
    for k in (-30, 120):  # beyond binary16: zero or saturated, same codes
        np.testing.assert_array_equal(codec.encode(np.ldexp(x, k), t)[:, 2:], base[:, 2:])


def test_step_3_largest_exponent_does_not_overflow() -> None:
    x = np.full((1, 128), np.finfo(np.float32).max, dtype=np.float32)
    x[0, ::2] *= -1
    with np.errstate(all="raise"):
        blocks = codec.encode(x, TURBO3)
    assert scale_of(blocks)[0] == 65504
    assert len(np.unique(codes_of(blocks, TURBO3))) == 2


def test_step_5_ties_take_the_lower_index() -> None:
    for t in TYPES:
        book = codebook.load(t.bits, t.n)
        half = 2 ** (t.bits - 1)
        x = ties(t.n, Random(t.id))
        thresholds = book.boundaries * rms(x)
        codes = codes_of(codec.encode(x[None, :], t), t)[0]
        for i, threshold in enumerate(thresholds):
            above = np.nextafter(threshold, np.float32(2))
            for value, code in ((threshold, half + i), (-threshold, half - 1 - i), (above, half + i + 1)):
                where = np.flatnonzero(x == value)
                assert where.size >= 1
                assert (codes[where] == code).all()


def test_step_5_both_zeros_count_as_positive_and_so_does_an_underflow() -> None:
    x = normal(1, 128)
    x[0, :4] = [0.0, -0.0, 1e-44, -1e-44]
    assert codes_of(codec.encode(x, TURBO3), TURBO3)[0, :4].tolist() == [4, 4, 4, 3]
    x[0, 4:] *= np.float32(1e37)  # now u of the last two is a zero
    assert codes_of(codec.encode(x, TURBO3), TURBO3)[0, :4].tolist() == [4, 4, 4, 4]


@all_types
def test_step_6_scale_is_the_least_squares_scale(t: TurboType) -> None:
    x = normal(50, t.n)
    blocks = codec.encode(x, t)
    levels = codebook.load(t.bits, t.n).levels[codes_of(blocks, t)].astype(np.float64)
    best = (x * levels).sum(axis=1) / (levels**2).sum(axis=1)
    np.testing.assert_allclose(scale_of(blocks).astype(np.float64), best, rtol=2.0**-11 + 1e-6)


@all_types
def test_step_7_saturation_and_binary16_rounding(t: TurboType) -> None:
    x = np.stack([np.full(t.n, v, dtype=np.float32) for v in (3e38, 1e6, 1e-7, 2.0**-30)])
    x[:, 1::2] *= -1
    scales = scale_of(codec.encode(x, t))
    assert scales[0] == scales[1] == 65504
    level = codebook.load(t.bits, t.n)
    c = level.centroids[(np.float32(1) > level.boundaries).sum()]
    assert scales[2] == np.float16(1e-7 / float(c))
    assert 0 < scales[2] < 2.0**-14
    assert scales[3] == 0


@all_types
def test_decode_multiplies_the_level_by_the_scale(t: TurboType) -> None:
    blocks = np.random.default_rng(t.id).integers(0, 256, (200, t.block_bytes)).astype(np.uint8)
    y = codec.decode(blocks, t)
    assert y.dtype == np.float32
    for row, block in zip(y, blocks, strict=True):
        scale = np.float32(struct.unpack("<e", block[:2].tobytes())[0])
        stream = int.from_bytes(block[2:].tobytes(), "little")
        levels = codebook.load(t.bits, t.n).levels
        expected = [levels[stream >> (t.bits * j) & (2**t.bits - 1)] * scale for j in range(t.n)]
        np.testing.assert_array_equal(row, np.array(expected, dtype=np.float32))


@all_types
def test_encoding_what_was_decoded_keeps_almost_every_code(t: TurboType) -> None:
    x = normal(200, t.n)
    first = codec.encode(x, t)
    y = codec.decode(first, t)
    second = codec.encode(y, t)
    assert (codes_of(first, t) == codes_of(second, t)).mean() > 0.999
    np.testing.assert_allclose(codec.decode(second, t), y, atol=0.05 * float(np.abs(y).max()))
    # Where the codes stayed, the scale is a fixed point: to one binary16 step, whatever the float32 sums round to.
    same = (codes_of(first, t) == codes_of(second, t)).all(axis=1)
    assert same.mean() > 0.9
    steps = np.abs(first[same, :2].copy().view("<i2").astype(int) - second[same, :2].copy().view("<i2"))
    assert steps.max() <= 1


@all_types
def test_negation_mirrors_the_codes(t: TurboType) -> None:
    x = normal(50, t.n)
    plus, minus = codec.encode(x, t), codec.encode(-x, t)
    np.testing.assert_array_equal(plus[:, :2], minus[:, :2])
    np.testing.assert_array_equal(codes_of(minus, t), 2**t.bits - 1 - codes_of(plus, t))
    np.testing.assert_array_equal(codec.decode(minus, t), -codec.decode(plus, t))


PAPER = {2: 0.1160, 3: 0.0340, 4: 0.0093}


@pytest.mark.parametrize("bits", PAPER)
def test_nmse_on_rotated_unit_vectors(bits: int) -> None:
    x = np.random.default_rng(11).standard_normal((20_000, 128))
    x /= np.linalg.norm(x, axis=1, keepdims=True)
    y = rotation.forward(x.astype(np.float32), 1)

    t = by_shape(bits, 128)
    book = codebook.load(bits, 128)
    # Without a stored scale: the norm is known, and the codebook is used as it is.
    u = np.sqrt(128) * y
    unscaled = book.levels[np.searchsorted(np.sort(np.concatenate([-book.boundaries, [0], book.boundaries])), u)]
    nmse = float(((unscaled - u) ** 2).sum() / (u**2).sum())
    assert nmse == pytest.approx(PAPER[bits], rel=0.01)
    stored = codec.decode(codec.encode(y, t), t)
    assert float(((stored - y) ** 2).sum() / (y**2).sum()) <= nmse
    # The rotation back keeps the error.
    back = rotation.inverse(stored, 1)
    assert float(((back - x) ** 2).sum()) <= nmse * len(x) * (1 + 1e-3)


def test_no_rows() -> None:
    blocks = codec.encode(np.empty((0, 128), dtype=np.float32), TURBO3)
    assert blocks.shape == (0, 50)
    assert codec.decode(blocks, TURBO3).shape == (0, 128)


def test_input_is_not_changed() -> None:
    x = normal(2, 128)
    x[0, 0] = np.nan
    before = x.copy()
    codec.encode(x, TURBO3)
    np.testing.assert_array_equal(x, before)


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(TypeError, match="x must be a NumPy array of float32, got float64"):
        codec.encode(np.zeros((1, 128)), TURBO3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"x must have shape \(rows, 128\), got \(1, 64\)"):
        codec.encode(np.zeros((1, 64), dtype=np.float32), TURBO3)
    with pytest.raises(ValueError, match=r"got \(128,\)"):
        codec.encode(np.zeros(128, dtype=np.float32), TURBO3)
    with pytest.raises(TypeError, match="blocks must be a NumPy array of uint8, got list"):
        codec.decode([0] * 50, TURBO3)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"blocks must have shape \(rows, 50\), got \(1, 49\)"):
        codec.decode(np.zeros((1, 49), dtype=np.uint8), TURBO3)
    with pytest.raises(ValueError, match="multiple of 16"):
        codec.lane_sum(np.zeros((1, 24), dtype=np.float32))
    with pytest.raises(ValueError, match="unknown turbo type 'turbo5'; known: turbo2, turbo3"):
        by_name("turbo5")
    with pytest.raises(ValueError, match="no turbo type has 3 bits and blocks of 72"):
        by_shape(3, 72)
    with pytest.raises(ValueError, match="no codebook for 5 bits"):
        codebook.load(5, 128)
