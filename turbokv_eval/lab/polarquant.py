"""PolarQuant (Han, Kacham, Karbasi, Mirrokni, Zandieh 2025, arXiv:2502.02617): angles of a recursive polar form."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
from scipy import special

from turbokv_eval.lab import levels
from turbokv_eval.lab.method import F32, FP16_BITS, Uncalibrated, require_multiple, require_rows
from turbokv_eval.lab.rotations import HAAR
from turbokv_eval.lab.transform import Transform


@cache
def angle_levels(level: int, bits: int) -> levels.Levels:
    """MSE-optimal levels in [0, pi/2] of the angle at a level of the recursion. level >= 2. bits: 1..8.

    The density is proportional to sin(2 psi)^(2^(level-1) - 1), so sin^2(psi) is Beta(m/2, m/2) with
    m = 2^(level-1).
    Raises ValueError outside these.
    """
    if level < 2:
        raise ValueError(f"level must be at least 2, got {level}; the first level is uniform on the circle")
    half = 2.0 ** (level - 2)
    points = 1 << 14
    quantiles = np.arcsin(np.sqrt(special.betaincinv(half, half, (np.arange(points) + 0.5) / points)))
    return levels.from_samples(np.asarray(quantiles), bits, iterations=200)


@dataclass(frozen=True)
class PolarQuant(Uncalibrated):
    """Precondition by a rotation; replace pairs by radius and angle, the radii again, `depth` times; store the angles.

    first_bits for the angles of level 1 (the whole circle), rest_bits above (a quarter circle); the d / 2^depth radii
    that remain in fp16. The paper's setting is 4, 2 and depth 4: 3.875 bits a value. d a multiple of 2^depth.
    """

    first_bits: int = 4
    rest_bits: int = 2
    depth: int = 4
    rotation: Transform = HAAR

    def __post_init__(self) -> None:
        if not (1 <= self.first_bits <= 8 and 1 <= self.rest_bits <= 8 and self.depth >= 1):
            raise ValueError(f"bits must be 1..8 and depth at least 1, got {self}")

    @property
    def name(self) -> str:
        """`polarquant-4.2`, with the depth where it is not 4."""
        return f"polarquant{'' if self.depth == 4 else f'-l{self.depth}'}-{self.first_bits}.{self.rest_bits}"

    def encode_decode(self, x: F32) -> F32:
        """The recursion, there and back. Interface: `Fitted.encode_decode`."""
        require_multiple(require_rows(x, "x"), 2**self.depth, self.name)
        rotation = self.rotation.fit(x)
        radius, angles = rotation.forward(x), []
        for level in range(1, self.depth + 1):
            a, b = radius[:, 0::2], radius[:, 1::2]
            angles.append(self._quantise(np.arctan2(b, a), level))
            radius = np.hypot(a, b)
        radius = np.minimum(radius, np.float32(65504)).astype(np.float16).astype(np.float32)
        for angle in reversed(angles):
            radius = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=-1).reshape(
                len(x), 2 * radius.shape[1]
            )
        return rotation.inverse(radius)

    def bits_per_value(self, n: int, d: int) -> float:
        """The angles of all levels and the radii."""
        block = 1 << self.depth
        require_multiple(d, block, self.name)
        return (block // 2 * self.first_bits + (block // 2 - 1) * self.rest_bits + FP16_BITS) / block

    def _quantise(self, angle: F32, level: int) -> F32:
        if level > 1:
            return angle_levels(level, self.rest_bits).nearest(angle)
        step = np.float32(2 * math.pi / 2**self.first_bits)
        return np.asarray((np.floor(angle / step) + np.float32(0.5)) * step, dtype=np.float32)
