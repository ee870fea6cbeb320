"""Unequal widths over channels sorted by how much they matter: more bits where variance times query energy is large."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from codebook_gen.lloyd_max import MAX_BITS
from turbokv_eval.lab.levels import lloyd_max, lloyd_max_nmse
from turbokv_eval.lab.method import F32, F64, FP16_BITS, Fitted, require_calibration, require_multiple, require_rows
from turbokv_eval.lab.norms import store
from turbokv_eval.lab.rotations import haar_matrix
from turbokv_eval.lab.scalar import unit_rows


def allocate(importance: F64, total: int, d: int) -> tuple[int, ...]:
    """Whole bits for groups of equal size that minimise the sum of importance * nmse(bits): greedy, which is optimal.

    (Each further bit of a group gains less than the one before, so the best next bit is always part of the best plan.)
    importance: float64 (groups,), not negative. total: sum of the bits. d: of the Lloyd-Max levels. Returns 0..8 each.
    Raises ValueError for another shape and for a total that does not fit.
    """
    if importance.ndim != 1:
        raise ValueError(f"importance must have shape (groups,), got {importance.shape}")
    if not 0 <= total <= MAX_BITS * len(importance):
        raise ValueError(f"{total} bits do not fit {len(importance)} groups of 0..{MAX_BITS}")
    nmse = np.array([lloyd_max_nmse(bits, d) for bits in range(MAX_BITS + 1)])
    gain = importance[:, None] * (nmse[:-1] - nmse[1:])
    widths = np.zeros(len(importance), dtype=np.intp)
    for _ in range(total):
        following = np.where(widths < MAX_BITS, gain[np.arange(len(gain)), np.minimum(widths, MAX_BITS - 1)], -1.0)
        widths[int(following.argmax())] += 1
    return tuple(int(w) for w in widths)


@dataclass(frozen=True)
class _FittedWidths(Fitted):
    order: npt.NDArray[np.intp]
    sigma: F32
    widths: tuple[int, ...]
    seed: int

    def encode_decode(self, x: F32) -> F32:
        d = require_rows(x, "x", len(self.order))
        groups = len(self.widths)
        size = d // groups
        rotation = haar_matrix(size, self.seed).astype(np.float32)
        grouped = x[:, self.order].reshape(len(x), groups, size) @ rotation.T / self.sigma[:, None]
        u, length = unit_rows(np.ascontiguousarray(grouped.reshape(len(x), d)))
        coded = np.stack(
            [lloyd_max(w, d).nearest(part) for w, part in zip(self.widths, _parts(u, groups), strict=True)], axis=1
        )
        back = coded * (store(length, "fp16") / np.float32(d**0.5))[:, :, None] * self.sigma[:, None] @ rotation
        y = np.empty_like(x)
        y[:, self.order] = back.reshape(len(x), d)
        return y

    def bits_per_value(self, n: int, d: int) -> float:
        if d != len(self.order):
            raise ValueError(f"fitted on rows of {len(self.order)} values, asked for {d}")
        return float(np.mean(self.widths)) + FP16_BITS / d


def _parts(u: F32, groups: int) -> list[F32]:
    return np.split(u, groups, axis=1)


@dataclass(frozen=True)
class UnequalWidths:
    """Channels sorted by E[k^2] E[q^2], cut into equal groups, each rotated, scaled by its rms, coded at its own width.

    bits: the mean, a multiple of 1/groups. widths: bits of the groups from the most important on, or None to allocate
    them on the calibration rows. Order, rms and widths are calibration; a row stores codes and one fp16 norm.
    Expects rows without a mean: put a centring transform before it. d a multiple of groups.
    """

    bits: float
    groups: int = 8
    widths: tuple[int, ...] | None = None
    seed: int = 0

    def __post_init__(self) -> None:
        if self.widths is not None and (len(self.widths), sum(self.widths)) != (self.groups, self.groups * self.bits):
            raise ValueError(f"{self.widths} are not {self.groups} widths with a mean of {self.bits:g}")
        if self.bits * self.groups % 1:
            raise ValueError(f"a mean of {self.bits:g} bits is no whole number of bits over {self.groups} groups")

    @property
    def name(self) -> str:
        """`widths-3` or, with given widths, `widths.5322-3`."""
        given = "" if self.widths is None else "." + "".join(str(w) for w in self.widths)
        return f"widths{given}-{self.bits:g}"

    def fit(self, keys: F32, queries: F32 | None = None) -> Fitted:
        """Orders the channels and allocates the bits. Errors as `Method.fit`; ValueError unless groups divides d."""
        d = require_calibration(keys, queries)
        require_multiple(d, self.groups, self.name)
        key = (keys.astype(np.float64) ** 2).mean(axis=0)
        query = np.ones(d) if queries is None else (queries.astype(np.float64) ** 2).mean(axis=0)
        order = np.argsort(-key * query, kind="stable")
        variance = key[order].reshape(self.groups, -1).mean(axis=1)
        energy = query[order].reshape(self.groups, -1).mean(axis=1)
        widths = self.widths or allocate(variance * energy, round(self.bits * self.groups), d)
        sigma = np.sqrt(np.maximum(variance, np.finfo(np.float32).tiny)).astype(np.float32)
        return _FittedWidths(order, sigma, widths, self.seed)
