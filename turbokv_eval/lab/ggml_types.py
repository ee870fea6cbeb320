"""ggml's q8_0, q5_0, q4_0 and iq4_nl: bytes and values as `quantize_row_*_ref` and `dequantize_row_*` make them.

All arithmetic is binary32 in ggml's order, without fused multiply-add, which is how x86-64 builds of ggml-base
compute. Blocks of 32 values, one fp16 scale first. Rows must be finite. (The vectorised twins in ggml-cpu may round
ties otherwise; and ggml leaves the code bits of an all-zero iq4_nl block undefined under its scale of 0, where this
writes zeros.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from turbokv_eval.lab.method import F32, U8, Uncalibrated, require_multiple, require_rows

BLOCK = 32
IQ4_NL = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], dtype=np.float32)
IQ4_NL_MIN = np.float32(1e-15)
"""GROUP_MAX_EPS: below this largest magnitude iq4_nl stores zeros."""


def _signed_peak(x: F32) -> F32:
    """The first value of largest magnitude of each block. (blocks, 32) -> (blocks,)."""
    return np.asarray(x[np.arange(len(x)), np.abs(x).argmax(axis=1)])


def _reciprocal(d: F32) -> F32:
    # A subnormal scale has an infinite reciprocal in ggml as well.
    with np.errstate(over="ignore"):
        return np.where(d != 0, np.float32(1) / np.where(d != 0, d, np.float32(1)), np.float32(0))


def _fp16_bytes(d: F32) -> U8:
    with np.errstate(over="ignore"):
        return d.astype("<f2").view(np.uint8).reshape(-1, 2)


def _fp16(blocks: U8) -> F32:
    return np.ascontiguousarray(blocks[:, :2]).view("<f2").astype(np.float32)


def _symmetric_codes(x: F32, half: int) -> tuple[F32, U8]:
    """q4_0 and q5_0: the peak gets the most negative code. half: 8 or 16. Scales (blocks,), codes (blocks, 32)."""
    d = _signed_peak(x) / np.float32(-half)
    y = x * _reciprocal(d)[:, None] + np.float32(half + 0.5)
    return d, np.minimum(y.astype(np.int8), 2 * half - 1).astype(np.uint8)


def _nibbles(codes: U8) -> U8:
    return np.asarray((codes[:, :16] & 15) | ((codes[:, 16:] & 15) << 4), dtype=np.uint8)


def _unnibble(packed: U8) -> U8:
    return np.concatenate([packed & 15, packed >> 4], axis=1)


def _encode_q8_0(x: F32) -> U8:
    d = np.abs(x).max(axis=1) / np.float32(127)
    y = x * _reciprocal(d)[:, None]
    # roundf: halves away from zero. In binary64, because 0.5 - 2^-25 plus 0.5 is 1 in binary32.
    codes = np.trunc(y + np.copysign(0.5, y).astype(np.float64)).astype(np.int8)
    return np.concatenate([_fp16_bytes(d), codes.view(np.uint8)], axis=1)


def _decode_q8_0(blocks: U8) -> F32:
    return np.ascontiguousarray(blocks[:, 2:]).view(np.int8).astype(np.float32) * _fp16(blocks)


def _encode_q4_0(x: F32) -> U8:
    d, codes = _symmetric_codes(x, 8)
    return np.concatenate([_fp16_bytes(d), _nibbles(codes)], axis=1)


def _decode_q4_0(blocks: U8) -> F32:
    return (_unnibble(blocks[:, 2:]).astype(np.float32) - np.float32(8)) * _fp16(blocks)


def _encode_q5_0(x: F32) -> U8:
    d, codes = _symmetric_codes(x, 16)
    high = np.packbits(codes >> 4, axis=1, bitorder="little")
    return np.concatenate([_fp16_bytes(d), high, _nibbles(codes)], axis=1)


def _decode_q5_0(blocks: U8) -> F32:
    high = np.unpackbits(blocks[:, 2:6], axis=1, bitorder="little")
    codes = _unnibble(blocks[:, 6:]) | (high << 4)
    return (codes.astype(np.float32) - np.float32(16)) * _fp16(blocks)


def _nearest_iq4_nl(y: F32) -> U8:
    """best_index_int8: the nearer neighbour, the upper one on a tie."""
    upper = np.clip(np.searchsorted(IQ4_NL, y, side="right"), 1, 15)
    low, high = IQ4_NL[upper - 1], IQ4_NL[upper]
    return np.where((y <= IQ4_NL[0]) | (y - low < high - y), upper - 1, upper).astype(np.uint8)


def _encode_iq4_nl(x: F32) -> U8:
    peak = _signed_peak(x)
    small = np.abs(peak) < IQ4_NL_MIN
    inverse = np.float32(1) / (np.where(small, np.float32(1), peak) / IQ4_NL[0])
    codes = _nearest_iq4_nl(x * inverse[:, None])
    q = IQ4_NL[codes]
    wq = (x * x) * q
    # The scale is the least-squares one with weights x^2, the sums in the order of the loop in C.
    cross, square = np.zeros_like(peak), np.zeros_like(peak)
    for j in range(BLOCK):
        cross = cross + wq[:, j] * x[:, j]
        square = square + wq[:, j] * q[:, j]
    some = np.logical_not(small) & (square > 0)
    d = np.where(some, cross / np.where(some, square, np.float32(1)), np.float32(0))
    codes[small] = 0
    return np.concatenate([_fp16_bytes(d), _nibbles(codes)], axis=1)


def _decode_iq4_nl(blocks: U8) -> F32:
    return IQ4_NL[_unnibble(blocks[:, 2:])] * _fp16(blocks)


@dataclass(frozen=True)
class GgmlType(Uncalibrated):
    """One block type. type_id: ggml's number; block_bytes: bytes for 32 values."""

    name: str
    type_id: int
    block_bytes: int
    _encode: Callable[[F32], U8]
    _decode: Callable[[U8], F32]

    def encode(self, x: F32) -> U8:
        """Blocks of the rows. x: float32, shape (n, d), d a multiple of 32. Returns uint8, (n, d/32 * block_bytes).

        Raises TypeError and ValueError as `Fitted.encode_decode`, ValueError too for rows that are not finite.
        """
        require_multiple(require_rows(x, "x"), BLOCK, self.name)
        if not np.isfinite(x).all():
            raise ValueError(f"{self.name} takes finite rows only")
        return self._encode(x.reshape(-1, BLOCK)).reshape(len(x), x.shape[1] // BLOCK * self.block_bytes)

    def decode(self, blocks: U8) -> F32:
        """uint8, shape (n, k * block_bytes) -> float32, shape (n, k * 32). Raises TypeError and ValueError."""
        if not isinstance(blocks, np.ndarray) or blocks.dtype != np.uint8:
            raise TypeError(f"blocks must be a NumPy array of uint8, got {getattr(blocks, 'dtype', type(blocks))}")
        if blocks.ndim != 2 or blocks.shape[1] % self.block_bytes:
            raise ValueError(f"blocks must have shape (rows, k*{self.block_bytes}), got {blocks.shape}")
        width = blocks.shape[1] // self.block_bytes * BLOCK
        return self._decode(blocks.reshape(-1, self.block_bytes)).reshape(len(blocks), width)

    def encode_decode(self, x: F32) -> F32:
        """Interface: `Fitted.encode_decode`. d a multiple of 32."""
        return self.decode(self.encode(x))

    def bits_per_value(self, n: int, d: int) -> float:
        """The block's bytes; ValueError unless 32 divides d."""
        require_multiple(d, BLOCK, self.name)
        return 8 * self.block_bytes / BLOCK


Q4_0 = GgmlType("q4_0", 2, 18, _encode_q4_0, _decode_q4_0)
Q5_0 = GgmlType("q5_0", 6, 22, _encode_q5_0, _decode_q5_0)
Q8_0 = GgmlType("q8_0", 8, 34, _encode_q8_0, _decode_q8_0)
IQ4_NL_TYPE = GgmlType("iq4_nl", 20, 18, _encode_iq4_nl, _decode_iq4_nl)
TYPES = (Q8_0, Q5_0, Q4_0, IQ4_NL_TYPE)
