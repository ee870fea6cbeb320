"""Inputs of the codec vectors: a block of n float32 values for each property of docs/FORMAT.md section 4 worth pinning.

Made from SplitMix64 by correctly rounded operations only, so every NumPy on every machine makes the same bytes.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from turbokv_eval.reference import codebook, codec
from turbokv_eval.reference.rotation import splitmix64
from turbokv_eval.reference.types import BITS, by_shape

F32 = npt.NDArray[np.float32]

ATTEMPTS = 1000


class Random:
    """Portable random float32 arrays from one seed."""

    def __init__(self, seed: int) -> None:
        self._words = splitmix64(seed)

    def uniform(self, n: int) -> F32:
        """Multiples of 2^-24 in [0, 1). Shape (n,)."""
        return np.array([(next(self._words) >> 40) * 2.0**-24 for _ in range(n)], dtype=np.float32)

    def normal(self, n: int) -> F32:
        """Nearly standard normal: the sum of 12 uniform 16-bit numbers, centred. Shape (n,)."""
        out = []
        for _ in range(n):
            words = [next(self._words) for _ in range(3)]
            total = sum((w >> shift) & 0xFFFF for w in words for shift in (0, 16, 32, 48))
            out.append((total - 6 * 0xFFFF) / 65536)
        return np.array(out, dtype=np.float32)

    def signs(self, n: int) -> F32:
        """+1 or -1. Shape (n,)."""
        return np.array([1.0 - 2.0 * (next(self._words) & 1) for _ in range(n)], dtype=np.float32)

    def powers(self, n: int, low: int, high: int) -> F32:
        """2^k with k uniform in low..high, as float32 (denormal where k < -126). Shape (n,)."""
        exponents = [low + next(self._words) % (high - low + 1) for _ in range(n)]
        return np.array([2.0**k for k in exponents], dtype=np.float32)


def codec_inputs(n: int) -> Iterator[tuple[str, F32]]:
    """(name, block) pairs; block is float32 of shape (n,). Raises ValueError for an n of no type."""
    by_shape(BITS[0], n)
    rng = Random(n)
    f32 = np.float32
    index = np.arange(n)

    def full(value: float) -> F32:
        return np.full(n, value, dtype=np.float32)

    def one_hot(position: int, value: float) -> F32:
        return np.where(index == position, f32(value), f32(0))

    yield "normal_0", rng.normal(n)
    yield "normal_1", rng.normal(n) * f32(3.7)
    yield "zero", full(0.0)
    yield "negative_zero", full(-0.0)
    # Both zeros, each with code H, in a block that has a scale.
    yield "mixed_zeros", np.where(index % 3 == 0, f32(0), np.where(index % 3 == 1, f32(-0.0), rng.normal(n)))
    yield "denormal", rng.signs(n) * f32(2.0**-149) * (rng.uniform(n) * f32(2.0**20))
    yield "below_zero_rule", rng.signs(n) * np.nextafter(codec.ZERO_BELOW, f32(0))
    yield "at_zero_rule", np.where(index == 1, codec.ZERO_BELOW, codec.ZERO_BELOW * rng.normal(n) * f32(0.125))
    yield "denormals_beside_normals", np.where(index % 2 == 0, rng.signs(n) * f32(2.0**-140), rng.normal(n))
    yield "huge", rng.signs(n) * f32(3e38)
    yield "largest_finite", rng.signs(n) * np.finfo(np.float32).max * (f32(0.5) + rng.uniform(n) * f32(0.5))
    yield "constant", full(1.1)
    yield "negative_constant", full(-0.3)
    yield "one_hot", one_hot(n // 3, 5.0)
    yield "one_hot_negative_last", one_hot(n - 1, -0.01)
    yield "alternating", np.where(index % 2 == 0, f32(0.7), f32(-0.7))
    yield "heavy_tailed", rng.normal(n) / (rng.uniform(n) + f32(2.0**-10))
    # u_j of the small ones underflows to a zero, whose sign does not count: code H even for a negative x_j.
    yield "tiny_and_huge", rng.signs(n) * rng.powers(n, -149, 127)
    yield "scale_saturates", rng.normal(n) * f32(1e6)
    yield "scale_just_below_saturation", rng.normal(n) * f32(30000.0)
    yield "scale_denormal", rng.normal(n) * f32(1e-6)
    yield "scale_smallest_denormal", rng.normal(n) * f32(1.5 * 2.0**-24)
    yield "one_nan", np.where(index == n // 2, f32(np.nan), rng.normal(n))
    yield "one_inf", np.where(index == 3, f32(np.inf), rng.normal(n))
    yield "one_negative_inf", np.where(index == n - 1, f32(-np.inf), rng.normal(n))
    yield "ties", ties(n, rng)
    for bits in BITS:
        down, up = scale_edge(n, bits, rng)
        yield f"scale_edge_{bits}_down", down
        yield f"scale_edge_{bits}_up", up


def rms(x: F32) -> np.float32:
    """r of section 4, step 4, for one block whose largest magnitude is in [1, 2), so that u = x. Shape (n,)."""
    return np.float32(np.sqrt(codec.lane_sum((x * x)[None, :]) / np.float32(x.size))[0])


def ties(n: int, rng: Random) -> F32:
    """A block with every threshold of every bit width in it, of both signs, and the next value above each.

    A value on a threshold takes the lower index. r must come out as the very float32 that the thresholds were made
    from; one free value is moved by bisection until it does.
    """
    boundaries = np.concatenate([codebook.load(bits, n).boundaries for bits in BITS])
    for _ in range(ATTEMPTS):
        r = np.float32(0.5) + rng.uniform(1)[0] * np.float32(0.125)
        on = boundaries * r
        special = np.concatenate([on, -on, np.nextafter(on, np.float32(2))])
        # Fillers near r leave the sum of squares close to n r^2, whatever the thresholds add.
        fill = n - special.size - 1
        target = n * float(r) ** 2 - float((special.astype(np.float64) ** 2).sum())
        if target <= 0:
            raise AssertionError(f"thresholds alone exceed the sum of squares for n={n}")
        size = np.sqrt(target / (fill + 0.5))
        fillers = rng.signs(fill) * np.float32(size) * (np.float32(0.75) + rng.uniform(fill) * np.float32(0.5))
        x = np.concatenate([[np.float32(0)], special, fillers]).astype(np.float32)

        def with_free(bit_pattern: int, x: F32 = x) -> F32:
            return np.concatenate([_float(bit_pattern)[None], x[1:]])

        # r is a step function of the free value. At the two ends of its step, a sum divided otherwise gives another r.
        patterns = range(_bits(0.0), _bits(1.0))
        first = bisect.bisect_left(patterns, r, key=lambda p: rms(with_free(p)))
        after = bisect.bisect_right(patterns, r, key=lambda p: rms(with_free(p)))
        for block in (with_free(first), with_free(max(after - 1, 0))):
            if rms(block) == r and 1 <= np.abs(block).max() < 2 and (n & (n - 1) == 0 or _division_matters(block)):
                return block
    raise AssertionError(f"no block with ties found for n={n}")


def _division_matters(x: F32) -> bool:
    """Whether r comes out differently when the sum is multiplied by a rounded 1/n in place of the division."""
    total = codec.lane_sum((x * x)[None, :])[0]
    return bool(np.sqrt(total * (np.float32(1) / np.float32(x.size))) != rms(x))


def scale_edge(n: int, bits: int, rng: Random) -> tuple[F32, F32]:
    """Two blocks that differ in the last bit of x_0, with equal codes, and scales one binary16 step apart.

    Sums in another order, fused operations or wider arithmetic round g elsewhere and give both the same scale.
    """
    turbo_type = by_shape(bits, n)
    for _ in range(ATTEMPTS):
        x = rng.normal(n)

        def variants(patterns: tuple[int, int], x: F32 = x) -> F32:
            return np.stack([np.concatenate([_float(p)[None], x[1:]]) for p in patterns])

        low, high = _bits(0.5), _bits(0.9)
        scale = codec.encode(variants((low, high)), turbo_type)[:, :2]
        if (scale[0] == scale[1]).all():
            continue
        while high - low > 1:
            middle = (low + high) // 2
            probe = codec.encode(variants((middle, high)), turbo_type)[0, :2]
            low, high = (middle, high) if (probe == scale[0]).all() else (low, middle)
        down, up = variants((low, high))
        blocks = codec.encode(np.stack([down, up]), turbo_type)
        if (blocks[0, 2:] == blocks[1, 2:]).all():
            return down, up
    raise AssertionError(f"no scale edge found for n={n}, bits={bits}")


def _bits(value: float) -> int:
    return int(np.array(value, dtype=np.float32).view(np.uint32))


def _float(bit_pattern: int) -> npt.NDArray[np.float32]:
    return np.array(bit_pattern, dtype=np.uint32).view(np.float32)
