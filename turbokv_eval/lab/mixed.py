"""Rates between whole bits by channel: half of the rotated channels one bit more, or TurboQuant's outlier channels."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from turbokv_eval.lab.levels import lloyd_max
from turbokv_eval.lab.method import F32, FP16_BITS, Fitted, Uncalibrated, require_calibration, require_rows
from turbokv_eval.lab.norms import store
from turbokv_eval.lab.rotations import HAAR
from turbokv_eval.lab.scalar import unit_rows
from turbokv_eval.lab.transform import Transform
from turbokv_eval.lab.turboquant import TurboQuantMse


@dataclass(frozen=True)
class HalfChannels(Uncalibrated):
    """b + 1/2 bits: after the rotation all channels are alike, and the first half of them takes one bit more.

    bits: b, 1..7. One fp16 norm a row. d even.
    """

    bits: int
    rotation: Transform = HAAR

    @property
    def name(self) -> str:
        """`half_channels-2.5`."""
        return f"half_channels-{self.bits + 0.5}"

    def encode_decode(self, x: F32) -> F32:
        """Interface: `Fitted.encode_decode`."""
        u, size = unit_rows(x)
        d = x.shape[1]
        if d % 2:
            raise ValueError(f"{self.name} needs rows of an even number of values, got {d}")
        rotation = self.rotation.fit(u)
        y = rotation.forward(u)
        more, fewer = lloyd_max(self.bits + 1, d), lloyd_max(self.bits, d)
        back = np.concatenate([more.nearest(y[:, : d // 2]), fewer.nearest(y[:, d // 2 :])], axis=1)
        return rotation.inverse(back) * (store(size, "fp16") / np.float32(d**0.5))

    def bits_per_value(self, n: int, d: int) -> float:
        """The codes and the norm."""
        return self.bits + 0.5 + FP16_BITS / d


@dataclass(frozen=True)
class _FittedOutliers(Fitted):
    high: np.typing.NDArray[np.bool_]
    bits: int
    rotation: Transform

    def encode_decode(self, x: F32) -> F32:
        require_rows(x, "x", len(self.high))
        y = np.empty_like(x)
        for channels, bits in ((self.high, self.bits + 1), (~self.high, self.bits)):
            y[:, channels] = TurboQuantMse(bits, self.rotation).encode_decode(np.ascontiguousarray(x[:, channels]))
        return y

    def bits_per_value(self, n: int, d: int) -> float:
        if d != len(self.high):
            raise ValueError(f"fitted on rows of {len(self.high)} values, asked for {d}")
        return self.bits + float(self.high.mean()) + 2 * FP16_BITS / d


@dataclass(frozen=True)
class OutlierChannels:
    """TurboQuant section 4.3: the `count` channels of largest mean square, before any rotation, at one bit more.

    Two independent instances of Algorithm 1, so two norms a row. With 32 of 128 channels at 3 bits and 96 at 2 the
    codes are 2.25 bits a value, although the paper calls that 2.5. bits: 1..7. 4 <= count <= d - 4.
    """

    bits: int
    count: int = 32
    rotation: Transform = HAAR

    @property
    def name(self) -> str:
        """`outlier_channels32-2`."""
        return f"outlier_channels{self.count}-{self.bits}"

    def fit(self, keys: F32, queries: F32 | None = None) -> Fitted:
        """Chooses the channels. Errors as `Method.fit`; ValueError for a d that the count does not fit."""
        d = require_calibration(keys, queries)
        if not 4 <= self.count <= d - 4:
            raise ValueError(f"{self.count} outlier channels of {d}: take 4 to {d - 4}")
        high = np.zeros(d, dtype=np.bool_)
        high[np.argsort(-(keys.astype(np.float64) ** 2).mean(axis=0), kind="stable")[: self.count]] = True
        return _FittedOutliers(high, self.bits, self.rotation)
