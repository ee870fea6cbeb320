"""TurboQuant_mse and TurboQuant_prod (Zandieh, Daliri, Hadian, Mirrokni 2025, arXiv:2504.19874), Algorithms 1 and 2."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from turbokv_eval.lab import norms, sketch
from turbokv_eval.lab.levels import lloyd_max
from turbokv_eval.lab.method import F32, Uncalibrated, require_rows
from turbokv_eval.lab.rotations import HAAR
from turbokv_eval.lab.scalar import unit_rows
from turbokv_eval.lab.transform import Transform


def _suffix(rotation: Transform, norm: norms.NormFormat) -> str:
    return ("" if rotation.name == "haar" else f"-{rotation.name}") + ("" if norm == "fp16" else f"-{norm}")


def _round_trip(u: F32, bits: int, rotation: Transform) -> F32:
    """Algorithm 1 on rows of mean square 1: y = Pi u (line 5), nearest levels (6), Pi^T c (9, 10)."""
    fitted = rotation.fit(u)
    return fitted.inverse(lloyd_max(bits, u.shape[1]).nearest(fitted.forward(u)))


@dataclass(frozen=True)
class TurboQuantMse(Uncalibrated):
    """Algorithm 1: random rotation, then the Lloyd-Max level of each coordinate. MSE at most sqrt(3) pi/2 4^-b |x|^2.

    bits: 1..8. rotation: Haar is the paper's, the Hadamard forms are what implementations use. norm: format of |x|.
    """

    bits: int
    rotation: Transform = HAAR
    norm: norms.NormFormat = "fp16"

    @property
    def name(self) -> str:
        """`turboquant_mse-3`, with the rotation and the norm's format where they are not the default."""
        return f"turboquant_mse{_suffix(self.rotation, self.norm)}-{self.bits}"

    def encode_decode(self, x: F32) -> F32:
        """Interface: `Fitted.encode_decode`. d at least 4 and one that the rotation has."""
        u, size = unit_rows(x)
        return _round_trip(u, self.bits, self.rotation) * (norms.store(size, self.norm) / np.float32(x.shape[1] ** 0.5))

    def bits_per_value(self, n: int, d: int) -> float:
        """The codes and one norm a row."""
        return self.bits + norms.BITS[self.norm] / d


@dataclass(frozen=True)
class TurboQuantProd(Uncalibrated):
    """Algorithm 2: Algorithm 1 at b-1 bits, then one sign a value of the sketch of the residual, with its norm.

    Inner products are unbiased over S, with a variance of at most sqrt(3) pi^2/d 4^-b |q|^2 |x|^2 (Theorem 2).
    bits: 1..8; 1 is the sketch alone. Two norms a row, |x| and |r|, in one format.
    """

    bits: int
    rotation: Transform = HAAR
    norm: norms.NormFormat = "fp16"
    seed: int = 0

    def __post_init__(self) -> None:
        if self.bits < 1:
            raise ValueError(f"bits must be at least 1, got {self.bits}")

    @property
    def name(self) -> str:
        """`turboquant_prod-3`, with the rotation and the norm's format where they are not the default."""
        return f"turboquant_prod{_suffix(self.rotation, self.norm)}-{self.bits}"

    def encode_decode(self, x: F32) -> F32:
        """x~_mse + sqrt(pi/2)/d |r| S^T qjl (lines 10 and 11). Interface: `Fitted.encode_decode`."""
        mse, z, gamma, s = self._encode(x)
        return mse + sketch.unsketch(z, s) * gamma

    def scores(self, queries: F32, x: F32) -> F32:
        """<q, x~_mse> + sqrt(pi/2)/d |r| <S q, qjl>. Interface: `Fitted.scores`."""
        require_rows(queries, "queries", require_rows(x, "x"))
        mse, z, gamma, s = self._encode(x)
        return queries @ mse.T + sketch.inner(queries, z, s) * gamma.T

    def bits_per_value(self, n: int, d: int) -> float:
        """b-1 bits of code and one sign a value, and two norms a row."""
        return self.bits + 2 * norms.BITS[self.norm] / d

    def _encode(self, x: F32) -> tuple[F32, F32, F32, F32]:
        """Of the rows as stored: x~_mse (n, d), signs (n, d), |x||r| (n, 1); and S (d, d)."""
        u, size = unit_rows(x)
        d = x.shape[1]
        mse = _round_trip(u, self.bits - 1, self.rotation)  # line 5
        residual = (u - mse) / np.float32(d**0.5)  # line 6
        s = sketch.gaussian_matrix(d, d, self.seed)
        z = sketch.signs(residual, s)  # line 7
        gamma = np.sqrt((residual.astype(np.float64) ** 2).sum(axis=1, keepdims=True)).astype(np.float32)
        stored = norms.store(size, self.norm)
        return mse * (stored / np.float32(d**0.5)), z, norms.store(gamma, self.norm) * stored, s
