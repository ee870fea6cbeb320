"""Encode and decode blocks: docs/FORMAT.md sections 2 and 4. Step numbers are those of section 4.

Arrays stay float32 throughout, so each NumPy operation rounds once to binary32, as the format demands.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from turbokv_eval.reference import codebook
from turbokv_eval.reference.types import TurboType

F32 = npt.NDArray[np.float32]
U8 = npt.NDArray[np.uint8]

LANES = 16
ZERO_BELOW = np.float32(2.0**-40)
MAX_EXPONENT = 126
MAX_SCALE = np.float32(65504.0)
NAN_SCALE = 0x7E00


def encode(x: F32, turbo_type: TurboType) -> U8:
    """Encode rows of n values as rows of block bytes.

    x: float32, shape (rows, n). Returns uint8, shape (rows, block_bytes).
    Raises TypeError for another dtype, ValueError for another shape.
    """
    _require(x, "x", np.float32, turbo_type.n)
    n, half = turbo_type.n, 2 ** (turbo_type.bits - 1)
    book = codebook.load(turbo_type.bits, n)

    bad = np.logical_not(np.isfinite(x).all(axis=1))  # step 1
    magnitude = np.abs(np.where(bad[:, None], np.float32(0), x)).max(axis=1)
    zero = magnitude < ZERO_BELOW  # step 2
    skip = bad | zero

    # Rows without a scale go through the arithmetic as ones, and are overwritten at the end.
    v = np.where(skip[:, None], np.float32(1), x)
    exponent = _exponent(np.where(skip, np.float32(1), magnitude))  # step 3
    u = v * np.ldexp(np.float32(1), -exponent)[:, None]
    size = np.abs(u)

    r = np.sqrt(lane_sum(u * u) / np.float32(n))  # step 4
    thresholds = book.boundaries[None, :] * r[:, None]

    index = (size[:, :, None] > thresholds[:, None, :]).sum(axis=2)  # step 5
    codes = np.where(u >= 0, half + index, half - 1 - index).astype(np.uint8)

    c = book.centroids[index]  # step 6
    g = lane_sum(size * c) / lane_sum(c * c)

    with np.errstate(over="ignore"):  # step 7: an infinite product saturates too
        scale = np.minimum(g * np.ldexp(np.float32(1), exponent), MAX_SCALE).astype("<f2")

    blocks = np.empty((x.shape[0], turbo_type.block_bytes), dtype=np.uint8)
    blocks[:, :2] = scale.view(np.uint8).reshape(-1, 2)
    blocks[:, 2:] = pack(codes, turbo_type.bits)
    blocks[skip] = 0
    blocks[bad, :2] = np.array([NAN_SCALE], dtype="<u2").view(np.uint8)
    return blocks


def decode(blocks: U8, turbo_type: TurboType) -> F32:
    """Decode rows of block bytes; every bit pattern is a valid block.

    blocks: uint8, shape (rows, block_bytes). Returns float32, shape (rows, n).
    Raises TypeError for another dtype, ValueError for another shape.
    """
    _require(blocks, "blocks", np.uint8, turbo_type.block_bytes)
    scale = np.ascontiguousarray(blocks[:, :2]).view("<f2").astype(np.float32)
    codes = unpack(blocks[:, 2:], turbo_type.bits)
    with np.errstate(invalid="ignore"):  # a signalling NaN is a legal scale
        return np.asarray(scale * codebook.load(turbo_type.bits, turbo_type.n).levels[codes], dtype=np.float32)


def lane_sum(values: F32) -> F32:
    """*Lane sum* of each row. values: float32, shape (rows, n), n a multiple of 16. Returns float32, shape (rows,).

    Raises TypeError for another dtype, ValueError for another shape.
    """
    if values.ndim != 2 or values.shape[1] == 0 or values.shape[1] % LANES:
        raise ValueError(f"values must have shape (rows, n) with n a positive multiple of {LANES}, got {values.shape}")
    _require(values, "values", np.float32, values.shape[1])
    groups = values.reshape(values.shape[0], values.shape[1] // LANES, LANES)
    lanes = groups[:, 0].copy()
    for g in range(1, groups.shape[1]):
        lanes = lanes + groups[:, g]
    for width in (8, 4, 2, 1):
        lanes = lanes[:, :width] + lanes[:, width : 2 * width]
    return np.asarray(lanes[:, 0], dtype=np.float32)


def pack(codes: U8, bits: int) -> U8:
    """Codes to the little-endian bit string of section 2. uint8 (rows, n) -> uint8 (rows, n*bits/8).

    Raises TypeError for another dtype, ValueError for another shape, or for a code that bits cannot hold.
    """
    if codes.ndim != 2 or codes.shape[1] % 8:
        raise ValueError(f"codes must have shape (rows, n) with n a multiple of 8, got {codes.shape}")
    _require(codes, "codes", np.uint8, codes.shape[1])
    if codes.size and codes.max() >= 1 << bits:
        raise ValueError(f"code {codes.max()} does not fit {bits} bits")
    stream = (codes[:, :, None] >> np.arange(bits, dtype=np.uint8)) & 1
    return np.packbits(stream.reshape(codes.shape[0], codes.shape[1] * bits), axis=1, bitorder="little")


def unpack(code_bytes: U8, bits: int) -> U8:
    """The inverse of pack. uint8 (rows, n*bits/8) -> uint8 (rows, n).

    Raises TypeError for another dtype, ValueError for another shape.
    """
    if code_bytes.ndim != 2 or code_bytes.shape[1] % bits:
        raise ValueError(f"code bytes must have shape (rows, k*{bits}), got {code_bytes.shape}")
    _require(code_bytes, "code_bytes", np.uint8, code_bytes.shape[1])
    n = code_bytes.shape[1] * 8 // bits
    stream = np.unpackbits(code_bytes, axis=1, bitorder="little").reshape(code_bytes.shape[0], n, bits)
    return np.asarray((stream << np.arange(bits, dtype=np.uint8)).sum(axis=2, dtype=np.uint8))


def _exponent(magnitude: F32) -> npt.NDArray[np.int32]:
    """min(floor(log2 m), 126) for m > 0, exactly. frexp has its mantissa in [0.5, 1), hence the -1."""
    return np.asarray(np.minimum(np.frexp(magnitude)[1] - 1, MAX_EXPONENT), dtype=np.int32)


def _require(array: object, what: str, dtype: type[np.generic], width: int) -> None:
    if not isinstance(array, np.ndarray) or array.dtype != dtype:
        found = array.dtype if isinstance(array, np.ndarray) else type(array).__name__
        raise TypeError(f"{what} must be a NumPy array of {np.dtype(dtype)}, got {found}")
    if array.ndim != 2 or array.shape[1] != width:
        raise ValueError(f"{what} must have shape (rows, {width}), got {array.shape}")
