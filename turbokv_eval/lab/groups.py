"""Asymmetric integer groups with an fp16 scale and zero each: along a token's channels, or KIVI's along tokens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from turbokv_eval.lab.method import F32, FP16_BITS, Uncalibrated, require_float32, require_multiple, require_rows

SIDE_BITS = 2 * FP16_BITS


def quantise_groups(x: F32, bits: int) -> F32:
    """Round trip of groups along the last axis: Q(x) = round((x - z)/s), x' = Q s + z.

    z = min, s = (max - min)/(2^b - 1): section 3.1 of KIVI (arXiv:2402.02750). s and z are rounded to fp16 before the
    codes are taken with them.
    x: float32, any shape, within fp16's range. Returns the same shape. Raises TypeError for another dtype.
    """
    require_float32(x, "x")
    top = np.float32(2**bits - 1)
    low = x.min(axis=-1, keepdims=True)
    zero = _fp16(low)
    scale = _fp16((x.max(axis=-1, keepdims=True) - low) / top)
    code = np.clip(np.rint((x - zero) / np.where(scale > 0, scale, np.float32(1))), 0, top)
    return np.asarray(code * scale + zero, dtype=np.float32)


def _fp16(x: F32) -> F32:
    return np.clip(x, -65504, 65504).astype(np.float16).astype(np.float32)


def _check_bits(bits: int) -> None:
    if not 1 <= bits <= 8:
        raise ValueError(f"bits must be 1..8, got {bits}")


@dataclass(frozen=True)
class TokenGroups(Uncalibrated):
    """Groups of neighbouring channels of one token: the common 2-bit form of values. d a multiple of group."""

    bits: int
    group: int = 32

    def __post_init__(self) -> None:
        _check_bits(self.bits)

    @property
    def name(self) -> str:
        """`group32-2`."""
        return f"group{self.group}-{self.bits}"

    def encode_decode(self, x: F32) -> F32:
        """Interface: `Fitted.encode_decode`."""
        d = require_rows(x, "x")
        require_multiple(d, self.group, self.name)
        return quantise_groups(x.reshape(len(x), d // self.group, self.group), self.bits).reshape(x.shape)

    def bits_per_value(self, n: int, d: int) -> float:
        """The codes, a scale and a zero a group."""
        require_multiple(d, self.group, self.name)
        return self.bits + SIDE_BITS / self.group


def _mixed_bits(coded: int, n: int, bits: float) -> float:
    """Mean bits a value when `coded` of n tokens are quantised and the rest stay in fp16."""
    return (coded * bits + (n - coded) * FP16_BITS) / max(n, 1)


@dataclass(frozen=True)
class KiviKeys(Uncalibrated):
    """KIVI's keys: groups of `group` successive tokens of one channel; the newest n mod `residual` tokens stay in fp16.

    arXiv:2402.02750, Algorithm 1: keys wait in the residual until there are `residual` of them, then are quantised at
    once. residual: a multiple of group; with residual = group the fewest tokens wait.
    """

    bits: int
    group: int = 32
    residual: int = 128

    def __post_init__(self) -> None:
        _check_bits(self.bits)
        if self.group < 1 or self.residual < 1 or self.residual % self.group:
            raise ValueError(f"residual must be a multiple of group, got {self.residual} and {self.group}")

    @property
    def name(self) -> str:
        """`kivi_keys-2`, with the residual where it is not the paper's 128."""
        return f"kivi_keys{'' if self.residual == 128 else f'-r{self.residual}'}-{self.bits}"

    def encode_decode(self, x: F32) -> F32:
        """Interface: `Fitted.encode_decode`. The rows are the whole cache from its first token on."""
        d = require_rows(x, "x")
        coded = self._coded(len(x))
        by_channel = x[:coded].reshape(coded // self.group, self.group, d).transpose(0, 2, 1)
        back = quantise_groups(by_channel, self.bits) if coded else by_channel
        return np.concatenate([back.transpose(0, 2, 1).reshape(coded, d), _fp16(x[coded:])])

    def bits_per_value(self, n: int, d: int) -> float:
        """The codes, a scale and a zero a group, and the fp16 tokens."""
        return _mixed_bits(self._coded(n), n, self.bits + SIDE_BITS / self.group)

    def _coded(self, n: int) -> int:
        return n - n % self.residual


@dataclass(frozen=True)
class KiviValues(Uncalibrated):
    """KIVI's values: `TokenGroups`, but the newest `residual` tokens stay in fp16 (Algorithm 1, a sliding window)."""

    bits: int
    group: int = 32
    residual: int = 128

    def __post_init__(self) -> None:
        _check_bits(self.bits)
        if self.residual < 0:
            raise ValueError(f"residual must be at least 0, got {self.residual}")

    @property
    def name(self) -> str:
        """`kivi_values-2`, with the residual where it is not the paper's 128."""
        return f"kivi_values{'' if self.residual == 128 else f'-r{self.residual}'}-{self.bits}"

    def encode_decode(self, x: F32) -> F32:
        """Interface: `Fitted.encode_decode`. The rows are the whole cache from its first token on."""
        require_rows(x, "x")
        coded = self._coded(len(x))
        return np.concatenate([self._groups.encode_decode(x[:coded]), _fp16(x[coded:])])

    def bits_per_value(self, n: int, d: int) -> float:
        """The codes, a scale and a zero a group, and the fp16 tokens."""
        return _mixed_bits(self._coded(n), n, self._groups.bits_per_value(n, d))

    @property
    def _groups(self) -> TokenGroups:
        return TokenGroups(self.bits, self.group)

    def _coded(self, n: int) -> int:
        return max(0, n - self.residual)
