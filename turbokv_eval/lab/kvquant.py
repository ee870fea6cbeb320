"""Keys in the manner of KVQuant (Hooper et al. 2024, arXiv:2401.18079): per channel, non-uniform, dense and sparse."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from turbokv_eval.lab.levels import Levels, from_samples
from turbokv_eval.lab.method import F32, FP16_BITS, Fitted, require_calibration, require_rows
from turbokv_eval.lab.rope import Rope
from turbokv_eval.lab.transform import FittedTransform, Identity


@dataclass(frozen=True)
class _FittedKvQuant(Fitted):
    rope: FittedTransform
    low: F32
    high: F32
    levels: Levels
    bits: int
    outliers: int

    def encode_decode(self, x: F32) -> F32:
        require_rows(x, "x", len(self.low))
        k = self.rope.forward(x)
        # To [-1, 1] within the channel's thresholds; what is outside is an outlier or is clipped.
        u = (2 * k - self.low - self.high) / (self.high - self.low)
        y = (self.levels.nearest(u) * (self.high - self.low) + self.low + self.high) / np.float32(2)
        if self.outliers:
            rows = np.arange(len(x))[:, None]
            sparse = np.argpartition(np.abs(u), -self.outliers, axis=1)[:, -self.outliers :]
            y[rows, sparse] = np.clip(k[rows, sparse], -65504, 65504).astype(np.float16)
        return self.rope.inverse(y)

    def bits_per_value(self, n: int, d: int) -> float:
        if d != len(self.low):
            raise ValueError(f"fitted on rows of {len(self.low)} values, asked for {d}")
        return self.bits + self.outliers * (FP16_BITS + math.ceil(math.log2(d))) / d


@dataclass(frozen=True)
class KvQuantKeys:
    """Per-channel thresholds and one non-uniform code of all channels, calibrated; per token the worst values in fp16.

    Section 3.1 (per-channel keys), 3.2 (before RoPE), 3.3 (nuq: k-means levels of the normalised values; the Fisher
    weights of the paper need gradients, so all weigh alike), 3.4 (dense and sparse). The paper's share of 1 % of values
    outside the thresholds is stored here as a fixed count a token, so the size does not depend on the data: the
    ceil(share * d) values furthest outside their channel's range, each an fp16 and a channel number.

    bits: 1..8. share: of outliers, 0 for none. rope: how to take the rotation off, None for rows that carry none.
    """

    bits: int
    share: float = 0.01
    rope: Rope | None = None

    def __post_init__(self) -> None:
        if not 0 <= self.share < 0.5:
            raise ValueError(f"share must be at least 0 and below 0.5, got {self.share}")

    @property
    def name(self) -> str:
        """`kvquant_keys-3`, `kvquant_keys-prerope-3`, with the share where it is not 1 %."""
        share = "" if self.share == 0.01 else f"-{100 * self.share:g}%"
        return f"kvquant_keys{'' if self.rope is None else '-prerope'}{share}-{self.bits}"

    def fit(self, keys: F32, queries: F32 | None = None) -> Fitted:
        """Thresholds are the share/2 and 1 - share/2 quantiles of each channel. Errors as `Method.fit`."""
        d = require_calibration(keys, queries)
        rope: FittedTransform = (self.rope or Identity()).fit(keys)
        k = rope.forward(keys).astype(np.float64)
        low, high = np.quantile(k, [self.share / 2, 1 - self.share / 2], axis=0)
        # A constant channel still needs a range to divide by.
        spread = np.maximum(high - low, 1e-6 * np.maximum(np.abs(high), 1))
        high = low + spread
        u = (2 * k - low - high) / spread
        levels = from_samples(u[np.abs(u) <= 1 + 1e-9], self.bits)
        outliers = math.ceil(self.share * d)
        return _FittedKvQuant(rope, low.astype(np.float32), high.astype(np.float32), levels, self.bits, outliers)
