"""ggml's types: its own bytes through the built library, and without it a scalar form of its loops."""

from __future__ import annotations

import ctypes
import struct
from pathlib import Path

import numpy as np
import pytest
from lab_rows import F32, normal

from turbokv_eval.lab.ggml_types import IQ4_NL, IQ4_NL_TYPE, Q4_0, Q5_0, Q8_0, TYPES, GgmlType
from turbokv_eval.machine import build

all_types = pytest.mark.parametrize("t", TYPES, ids=lambda t: t.name)


def rows(seed: int) -> F32:
    """Gaussian rows of many sizes, rows with one large value, and values on ties of the rounding."""
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((600, 256)) * np.exp(rng.uniform(-8, 8, (600, 1)))
    x[100:200, ::32] *= 50
    ties = rng.integers(-254, 255, (200, 256)) / 2
    ties[:, ::32] = 127
    x[200:400] = ties
    return x.astype(np.float32)


def library() -> Path:
    found = sorted(build.default_bin().glob("libggml-base.*"))
    if not found:
        pytest.fail(f"no libggml-base in {build.default_bin()}: run `turbokv-eval build`")
    return found[0]


@pytest.mark.live
@all_types
def test_bytes_and_values_are_those_of_ggml(t: GgmlType) -> None:
    ggml = ctypes.CDLL(str(library()))
    encode, decode = getattr(ggml, f"quantize_row_{t.name}_ref"), getattr(ggml, f"dequantize_row_{t.name}")
    for function in (encode, decode):
        function.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64]
        function.restype = None
    ggml.ggml_type_name.argtypes, ggml.ggml_type_name.restype = [ctypes.c_int], ctypes.c_char_p
    assert ggml.ggml_type_name(t.type_id) == t.name.encode()
    x = rows(t.type_id)
    theirs = np.empty((len(x), 256 // 32 * t.block_bytes), dtype=np.uint8)
    encode(x.ctypes.data, theirs.ctypes.data, x.size)
    np.testing.assert_array_equal(t.encode(x), theirs)
    values = np.empty_like(x)
    decode(theirs.ctypes.data, values.ctypes.data, x.size)
    np.testing.assert_array_equal(t.decode(theirs), values)


def scalar_block(x: F32, t: GgmlType) -> bytes:
    """One block, one scalar at a time, in binary32."""
    f = np.float32
    if t is Q8_0:
        d = f(np.abs(x).max() / f(127))
        inverse = f(1) / d if d else f(0)
        codes = [int(np.floor(abs(float(v * inverse)) + 0.5)) * (1 if v >= 0 else -1) for v in x]
        return struct.pack("<e32b", d, *codes)
    peak = f(0)
    for v in x:
        if abs(v) > abs(peak):
            peak = v
    if t is IQ4_NL_TYPE:
        inverse = f(1) / f(peak / f(-127))
        codes = []
        cross = square = f(0)
        for v in x:
            y = v * inverse
            code = 0
            while code < 15 and IQ4_NL[code + 1] - y <= y - IQ4_NL[code]:
                code += 1
            codes.append(code)
            q = IQ4_NL[code]
            cross, square = cross + v * v * q * v, square + v * v * q * q
        return struct.pack("<e", cross / square) + bytes(
            a | b << 4 for a, b in zip(codes[:16], codes[16:], strict=True)
        )
    half = 8 if t is Q4_0 else 16
    d = f(peak / f(-half))
    inverse = f(1) / d if d else f(0)
    codes = [min(2 * half - 1, int(v * inverse + f(half + 0.5))) for v in x]
    high = sum((c >> 4) << j for j, c in enumerate(codes)) if t is Q5_0 else 0
    head = struct.pack("<e", d) + (struct.pack("<I", high) if t is Q5_0 else b"")
    return head + nibbles(codes)


def nibbles(codes: list[int]) -> bytes:
    return bytes((a & 15) | (b & 15) << 4 for a, b in zip(codes[:16], codes[16:], strict=True))


@all_types
def test_vectorised_bytes_agree_with_a_scalar_transliteration(t: GgmlType) -> None:
    x = rows(t.type_id)[::7]
    found = t.encode(x).reshape(-1, t.block_bytes)
    for block, row in zip(found, x.reshape(-1, 32), strict=True):
        assert block.tobytes().hex() == scalar_block(row, t).hex()


def test_decoded_values_are_level_times_scale() -> None:
    x = normal(4, 64)
    q8 = Q8_0.encode(x)
    scale = q8[0, :2].view("<f2")[0].astype(np.float32)
    np.testing.assert_array_equal(Q8_0.decode(q8)[0, :32], q8[0, 2:34].view(np.int8) * scale)
    assert {
        float(v) for v in np.round(Q4_0.decode(Q4_0.encode(x))[0, :32] / Q4_0.encode(x)[0, :2].view("<f2")[0])
    } <= set(map(float, range(-8, 8)))
    for t in TYPES:
        peak = np.abs(x.reshape(-1, 32)).max(axis=1)
        error = np.abs(t.encode_decode(x) - x).reshape(-1, 32).max(axis=1)
        assert (error < peak * {8.5: 0.005, 5.5: 0.07, 4.5: 0.15}[t.bits_per_value(1, 64)]).all()


def test_bad_arguments_are_refused() -> None:
    with pytest.raises(ValueError, match="q4_0 needs rows of a multiple of 32 values, got 80"):
        Q4_0.encode(normal(1, 80))
    with pytest.raises(ValueError, match="finite"):
        Q8_0.encode(np.full((1, 32), np.nan, dtype=np.float32))
    with pytest.raises(TypeError, match="blocks must be a NumPy array of uint8"):
        Q8_0.decode(normal(1, 34))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"shape \(rows, k\*34\), got \(1, 33\)"):
        Q8_0.decode(np.zeros((1, 33), dtype=np.uint8))
    with pytest.raises(ValueError, match="multiple of 32"):
        Q8_0.bits_per_value(1, 48)
