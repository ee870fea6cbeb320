"""Unequal widths: each channel as many bits as its share of the logit noise is worth, and no rotation."""

from __future__ import annotations

import heapq
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from turbokv_eval.lab import norms
from turbokv_eval.lab.levels import lloyd_max
from turbokv_eval.lab.method import F32, F64, Fitted, require_calibration, require_rows

# Codebooks of a Gaussian channel: the marginal of a coordinate in so many dimensions is within 0.2 % of one.
GAUSSIAN = 1024
# Of the row's scale, which depends on the codes, which depend on it.
PASSES = 2


def gaussian_nmse(bits: int) -> float:
    """Mean squared error of the Lloyd-Max quantiser of a unit Gaussian with 2^bits levels, 0 to 8 bits.

    By quantiles: 1 at 0 bits, 0.363 at 1, 0.117 at 2, 0.0345 at 3 (Max 1960, table I).
    """
    from scipy.special import ndtri

    grid = ndtri((np.arange(1 << 16) + 0.5) / (1 << 16)).astype(np.float32)
    return float(((grid - lloyd_max(bits, GAUSSIAN).nearest(grid)) ** 2).mean())


def allocate(importance: F64, bits: int, least: int, most: int, group: int) -> npt.NDArray[np.int64]:
    """Widths of the channels, int64 (d,), that minimise sum(importance * gaussian_nmse(width)).

    importance: float64 (d,), the noise of a channel's logits at 0 bits. bits: sum of the widths at most. Channels get a
    bit in groups of `group` of like importance. Greedy, which is optimal because each bit of a channel saves less than
    the one before (Shoham & Gersho 1988; reverse water-filling, Cover & Thomas, theorem 10.3.3, in whole bits).

    Raises ValueError when d is no multiple of group, or no such widths exist.
    """
    d = len(importance)
    if group < 1 or d % group:
        raise ValueError(f"groups of {group} channels do not divide {d}")
    if not 0 <= least <= most <= 8 or not least * d <= bits <= most * d:
        raise ValueError(f"{bits} bits cannot be shared by {d} channels of {least} to {most}")
    order = np.argsort(-importance, kind="stable").reshape(-1, group)
    weight = importance[order].sum(axis=1)
    nmse = [gaussian_nmse(b) for b in range(most + 1)]
    width = np.full(len(order), least)
    left = (bits - least * d) // group
    gains = [(-weight[g] * (nmse[least] - nmse[least + 1]), g) for g in range(len(order))] if least < most else []
    heapq.heapify(gains)
    for _ in range(left):
        _, g = heapq.heappop(gains)
        width[g] += 1
        if width[g] < most:
            heapq.heappush(gains, (-weight[g] * (nmse[width[g]] - nmse[width[g] + 1]), g))
    out = np.empty(d, dtype=np.int64)
    out[order] = width[:, None]
    return out


@dataclass(frozen=True)
class WaterFilled:
    """Channels of unequal widths behind one fp16 scale a row. Stands behind a transform that centres.

    rate: mean bits of a channel. least, most: bounds of a width. group: channels that share a width.

    Channel j is divided by its standard deviation over the calibration rows and quantised as a Gaussian; its importance
    is E[k_j^2] E[q_j^2], the share of the logit noise that it has when it is not stored. The scale of a row minimises
    the noise so weighted. Deviations and widths belong to the head, not to a token, and are not counted.
    """

    rate: float
    least: int = 1
    most: int = 6
    group: int = 1

    @property
    def name(self) -> str:
        """`waterfill-3`, with the group where it is not 1."""
        return f"waterfill-{self.rate:g}" + (f"-g{self.group}" if self.group > 1 else "")

    def fit(self, keys: F32, queries: F32 | None = None) -> Fitted:
        """Second moments over the rows; white queries where there are none. Errors as `Method.fit`."""
        d = require_calibration(keys, queries)
        energy = (keys.astype(np.float64) ** 2).mean(axis=0)
        asked = np.ones(d) if queries is None else (queries.astype(np.float64) ** 2).mean(axis=0)
        # A channel that the sample saw empty must not be divided by nothing.
        energy = np.maximum(energy, 1e-8 * energy.mean() + np.finfo(np.float64).tiny)
        importance = energy * np.maximum(asked, 1e-8 * asked.mean())
        widths = allocate(importance, int(self.rate * d + 1e-9), self.least, self.most, self.group)
        return _Fitted(np.sqrt(energy).astype(np.float32), (importance / importance.sum()).astype(np.float32), widths)


@dataclass(frozen=True)
class _Fitted(Fitted):
    deviation: F32
    importance: F32
    widths: npt.NDArray[np.int64]

    def encode_decode(self, x: F32) -> F32:
        require_rows(x, "x", len(self.widths))
        u = x / self.deviation
        scale = norms.store(np.sqrt((u**2).mean(axis=1, keepdims=True)), "fp16")
        levels = np.zeros_like(u)
        for _ in range(PASSES):
            scaled = u / np.where(scale > 0, scale, np.float32(1))
            for width in np.unique(self.widths):
                channels = self.widths == width
                levels[:, channels] = lloyd_max(int(width), GAUSSIAN).nearest(scaled[:, channels])
            cross = (u * levels) @ self.importance
            square = levels**2 @ self.importance
            found = np.where(square > 0, cross / np.where(square > 0, square, 1), 0)
            scale = norms.store(np.maximum(found, 0).astype(np.float32)[:, None], "fp16")
        return np.asarray(levels * scale * self.deviation, dtype=np.float32)

    def bits_per_value(self, n: int, d: int) -> float:
        require_rows(np.zeros((1, d), dtype=np.float32), "rows", len(self.widths))
        return float(self.widths.mean()) + norms.BITS["fp16"] / d
