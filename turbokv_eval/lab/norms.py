"""How the length of a row is stored: fp16, or one byte of its logarithm."""

from __future__ import annotations

from typing import Literal

import numpy as np

from turbokv_eval.lab.method import F32, FP16_BITS, U8, require_float32

NormFormat = Literal["fp16", "log8", "exact"]

LOG8_MIN, LOG8_MAX = -16.0, 16.0
"""Range of log2 of a norm that the byte spans; code 0 is the norm 0, codes 1..255 are evenly spaced."""
LOG8_STEP = (LOG8_MAX - LOG8_MIN) / 254

BITS: dict[NormFormat, int] = {"fp16": FP16_BITS, "log8": 8, "exact": 32}


def store(norms: F32, form: NormFormat) -> F32:
    """The norms as they come back. norms: float32, any shape, not negative, in the unit of the rows; same shape.

    fp16 rounds to binary16 and saturates at 65504: relative error up to 2^-11 in its normal range. log8 rounds log2 to
    steps of 0.126, a relative error up to 4.5 %, which costs a row an NMSE of up to 0.002. exact keeps float32.
    Raises ValueError for another format, TypeError for another dtype.
    """
    require_float32(norms, "norms")
    if form == "exact":
        return norms
    if form == "fp16":
        return np.minimum(norms, np.float32(65504)).astype(np.float16).astype(np.float32)
    if form == "log8":
        code = log8_codes(norms).astype(np.float32)
        decoded = np.exp2(LOG8_MIN + (code - 1) * LOG8_STEP).astype(np.float32)
        return np.where(code == 0, np.float32(0), decoded)
    raise ValueError(f"unknown norm format {form!r}; there are {', '.join(BITS)}")


def log8_codes(norms: F32) -> U8:
    """The byte of each norm: 0 below 2^LOG8_MIN by over half a step, else 1 + round(log2 / step). Same shape."""
    with np.errstate(divide="ignore"):
        position = (np.log2(norms) - LOG8_MIN) / LOG8_STEP
    code = np.where(position < -0.5, 0, 1 + np.rint(np.maximum(position, 0)))
    return np.minimum(code, 255).astype(np.uint8)
