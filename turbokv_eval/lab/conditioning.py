"""Calibrated maps of keys: per-channel centre and equalise (the fork's key conditioning), and the dense balanced map.

Softmax ignores what is added to all scores of a query, so a fixed vector may be taken from every key; and an invertible
map of the keys is free where the queries get its inverse transpose. Both serve to make keys isotropic for the code.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from turbokv_eval.lab.method import F32, F64, require_calibration, require_rows
from turbokv_eval.lab.transform import FittedTransform, Linear

MAX_SCALE = 32.0
"""Clip of the per-channel scales on either side of their median: a dead channel must not blow up the others."""
RIDGE = 1e-4
"""Share of the mean variance added to a covariance: calibration rows may be fewer than channels."""


@dataclass(frozen=True)
class CentreEqualise:
    """Store s * (k - mu), ask with q / s, per channel.

    mu is the mean key. s^2 = sqrt(E[q^2] / E[(k - mu)^2]) minimises the logit noise of a quantiser whose error is the
    same in all channels: the noise is proportional to sum(E[q^2] / s^2) * sum(s^2 E[(k - mu)^2]), and Cauchy-Schwarz.
    s is clipped to MAX_SCALE and has geometric mean 1.
    """

    centre: bool = True
    equalise: bool = True

    @property
    def name(self) -> str:
        """`centre`, `equalise` or `condition`."""
        if self.centre and self.equalise:
            return "condition"
        return "centre" if self.centre else "equalise" if self.equalise else "none"

    def fit(self, keys: F32, queries: F32 | None = None) -> FittedTransform:
        """Means and second moments over the rows. Arguments and errors as `Method.fit`."""
        d = require_calibration(keys, queries)
        k = keys.astype(np.float64)
        mu = k.mean(axis=0) if self.centre else np.zeros(d)
        s = _scales(k - mu, queries) if self.equalise else np.ones(d)
        return _Diagonal(mu.astype(np.float32), s.astype(np.float32))


@dataclass(frozen=True)
class _Diagonal:
    mu: F32
    s: F32

    def forward(self, x: F32) -> F32:
        require_rows(x, "x", len(self.mu))
        return (x - self.mu) * self.s

    def inverse(self, y: F32) -> F32:
        require_rows(y, "y", len(self.mu))
        return y / self.s + self.mu

    def query(self, q: F32) -> F32:
        require_rows(q, "q", len(self.mu))
        return q / self.s


def _scales(centred: F64, queries: F32 | None) -> F64:
    key = (centred**2).mean(axis=0)
    query = np.ones_like(key) if queries is None else (queries.astype(np.float64) ** 2).mean(axis=0)
    tiny = np.finfo(np.float64).tiny
    log_s = 0.25 * (np.log(np.maximum(query, tiny)) - np.log(np.maximum(key, tiny)))
    log_s = np.clip(log_s - np.median(log_s), -np.log(MAX_SCALE), np.log(MAX_SCALE))
    return np.asarray(np.exp(log_s - log_s.mean()))


@dataclass(frozen=True)
class Balanced:
    """The dense map M with M Sigma_k M^T = M^-T Sigma_q M^-1 = diag, channels in order of falling variance.

    Sigma_k is the covariance of the keys about their mean, Sigma_q the second moment of the queries. With Cholesky
    factors Sigma_k = A A^T, Sigma_q = B B^T and the singular values B^T A = U S V^T, M = S^(1/2) V^T A^-1 gives S both
    times (balanced truncation, Moore 1981, "Principal component analysis in linear systems", section VI). Without
    queries Sigma_q = I. Each channel then costs logits and holds variance alike, so a rotation or
    unequal widths may follow.
    """

    name: str = "balanced"

    def fit(self, keys: F32, queries: F32 | None = None) -> FittedTransform:
        """Covariances over the rows, regularised by RIDGE. Arguments and errors as `Method.fit`."""
        d = require_calibration(keys, queries)
        k = keys.astype(np.float64)
        mu = k.mean(axis=0)
        a = np.linalg.cholesky(_covariance(k - mu))
        b = np.eye(d) if queries is None else np.linalg.cholesky(_covariance(queries.astype(np.float64)))
        _, s, vt = np.linalg.svd(b.T @ a)
        root = np.sqrt(s)
        inverse = a @ vt.T / root
        forward = root[:, None] * np.linalg.solve(a.T, vt.T).T
        return Linear(mu.astype(np.float32), forward.astype(np.float32), inverse.astype(np.float32))


def _covariance(rows: F64) -> F64:
    sigma = rows.T @ rows / len(rows)
    mean = np.trace(sigma) / len(sigma)
    return np.asarray(sigma + (RIDGE * mean if mean > 0 else 1.0) * np.eye(len(sigma)))
