"""Unequal widths: each channel as many bits as its share of the logit noise is worth, and no rotation."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from turbokv_eval.lab import norms
from turbokv_eval.lab.levels import lloyd_max
from turbokv_eval.lab.method import F32, Fitted, require_calibration, require_multiple, require_rows
from turbokv_eval.lab.widths import allocate

# Of the row's scale, which depends on the codes, which depend on it.
PASSES = 2


@dataclass(frozen=True)
class WaterFilled:
    """Channels of unequal widths behind one fp16 scale a row. Stands behind a transform that centres.

    rate: mean bits of a channel. group: channels of like importance that share a width; it must divide d.

    Unlike `UnequalWidths` it mixes no channels, and the scale of a row is not its length but the least-squares factor,
    each channel weighed by the noise that it makes. That weight is what keeps rows unlike the calibration (the sink at
    position 0) from being ruined.

    Channel j is divided by its standard deviation over the calibration rows and quantised as a Gaussian; its importance
    is E[k_j^2] E[q_j^2], the share of the logit noise that it has when it is not stored. Bits go where they save most:
    reverse water-filling (Cover & Thomas, theorem 10.3.3) in whole bits. Deviations and widths belong to the head, not
    to a token, and are not counted.
    """

    rate: float
    group: int = 1

    @property
    def name(self) -> str:
        """`waterfill-3`, with the group where it is not 1."""
        return f"waterfill-{self.rate:g}" + (f"-g{self.group}" if self.group > 1 else "")

    def fit(self, keys: F32, queries: F32 | None = None) -> Fitted:
        """Second moments over the rows; white queries where there are none. Errors as `Method.fit`."""
        d = require_calibration(keys, queries)
        require_multiple(d, self.group, self.name)
        energy = (keys.astype(np.float64) ** 2).mean(axis=0)
        asked = np.ones(d) if queries is None else (queries.astype(np.float64) ** 2).mean(axis=0)
        # A channel that the sample saw empty must not be divided by nothing.
        energy = np.maximum(energy, 1e-8 * energy.mean()) if energy.any() else np.ones(d)
        importance = energy * np.maximum(asked, 1e-8 * asked.mean())
        order = np.argsort(-importance, kind="stable").reshape(-1, self.group)
        of_group = allocate(importance[order].sum(axis=1), int(self.rate * len(order) + 1e-9), d)
        widths = np.empty(d, dtype=np.int64)
        widths[order] = np.array(of_group)[:, None]
        return _Fitted(np.sqrt(energy).astype(np.float32), (importance / importance.sum()).astype(np.float32), widths)


@dataclass(frozen=True)
class _Fitted(Fitted):
    deviation: F32
    importance: F32
    widths: npt.NDArray[np.int64]

    def encode_decode(self, x: F32) -> F32:
        d = require_rows(x, "x", len(self.widths))
        u = x / self.deviation
        scale = norms.store(np.sqrt((u**2).mean(axis=1, keepdims=True)), "fp16")
        levels = np.zeros_like(u)
        for _ in range(PASSES):
            scaled = np.asarray(u / np.where(scale > 0, scale, 1), dtype=np.float32)
            for width in np.unique(self.widths):
                channels = self.widths == width
                levels[:, channels] = lloyd_max(int(width), d).nearest(scaled[:, channels])
            cross = (u * levels) @ self.importance
            square = levels**2 @ self.importance
            found = np.where(square > 0, cross / np.where(square > 0, square, 1), 0)
            scale = norms.store(np.maximum(found, 0).astype(np.float32)[:, None], "fp16")
        return np.asarray(levels * scale * self.deviation, dtype=np.float32)

    def bits_per_value(self, n: int, d: int) -> float:
        require_rows(np.zeros((1, d), dtype=np.float32), "rows", len(self.widths))
        return float(self.widths.mean()) + norms.BITS["fp16"] / d
