"""Distortion of the codes on random unit vectors, next to the bounds and the figures of TurboQuant (arXiv:2504.19874).

One draw is a new rotation, a new sketch and new rows; intervals come from the spread between draws, because the rows of
a draw share its matrices. Norms are kept exactly where a theorem speaks of unit vectors.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy import stats

from turbokv_eval.errors import BadInput
from turbokv_eval.lab import ggml_types
from turbokv_eval.lab.groups import TokenGroups
from turbokv_eval.lab.levels import lloyd_max_nmse
from turbokv_eval.lab.method import F32, F64, Method
from turbokv_eval.lab.mixed import HalfChannels
from turbokv_eval.lab.polarquant import PolarQuant
from turbokv_eval.lab.rotations import Haar
from turbokv_eval.lab.sketch import Qjl
from turbokv_eval.lab.trellis import Trellis
from turbokv_eval.lab.turbo import Turbo
from turbokv_eval.lab.turboquant import TurboQuantMse, TurboQuantProd

VERSION = 1
DIMS = (64, 80, 96, 128, 256)
BITS = (1, 2, 3, 4)
CONFIDENCE = 0.95
COSINE = 0.5
"""Between query and row. Not 0: an estimator that shrinks every inner product would look unbiased there."""
TOLERATED_ERRORS = 5
"""Standard errors at which a claim counts as broken. With 140 claims a run, one breaks by chance in a few hundred."""

PAPER_MSE = {1: 0.36, 2: 0.117, 3: 0.03, 4: 0.009}
"""Theorem 1."""
PAPER_PROD = {1: 1.57, 2: 0.56, 3: 0.18, 4: 0.047}
"""Theorem 2, times d."""

Tell = Callable[[float, float, str], None]


@dataclass(frozen=True)
class Settings:
    """dims: head dimensions, at least 4 each. bits: 1..8. draws: at least 2. rows: vectors a draw. seed: at least 0."""

    dims: tuple[int, ...] = DIMS
    bits: tuple[int, ...] = BITS
    draws: int = 40
    rows: int = 400
    seed: int = 0

    def __post_init__(self) -> None:
        if min(self.dims) < 4:
            raise BadInput(f"a head dimension of {min(self.dims)} is too small: take 4 or more")
        if not 1 <= min(self.bits) <= max(self.bits) <= 8:
            raise BadInput(f"bits must be 1 to 8, got {','.join(map(str, self.bits))}")
        if self.draws < 2 or self.rows < 1 or self.seed < 0:
            raise BadInput("take at least 2 draws, 1 row and a seed of 0 or more")


def mse_bound(bits: float) -> float:
    """Theorem 1: sqrt(3) pi/2 4^-b, for unit vectors."""
    return float(math.sqrt(3) * math.pi / 2 * 4.0**-bits)


def prod_bound(bits: float) -> float:
    """Theorem 2, times d: sqrt(3) pi^2 4^-b, for unit vectors and queries."""
    return float(math.sqrt(3) * math.pi**2 * 4.0**-bits)


def qjl_bound(residual: float = 1.0) -> float:
    """Lemma 4, times d: pi/2 |r|^2, for unit queries and m = d signs. residual: |r|^2."""
    return math.pi / 2 * residual


def unit_pairs(n: int, d: int, rng: np.random.Generator) -> tuple[F32, F32]:
    """Uniform unit vectors x and unit queries at cosine COSINE to them. Two float32 (n, d)."""
    x = _unit(rng.standard_normal((n, d)))
    z = rng.standard_normal((n, d))
    z = _unit(z - (z * x).sum(axis=1, keepdims=True) * x)
    return x.astype(np.float32), (COSINE * x + math.sqrt(1 - COSINE**2) * z).astype(np.float32)


def _unit(x: F64) -> F64:
    return np.asarray(x / np.linalg.norm(x, axis=1, keepdims=True))


def interval(samples: F64) -> dict[str, float]:
    """Mean of independent samples, its standard error, and Student's interval at CONFIDENCE.

    samples: float64, shape (n,), n >= 2.
    """
    mean, error = float(samples.mean()), float(samples.std(ddof=1) / math.sqrt(len(samples)))
    reach = float(stats.t.ppf((1 + CONFIDENCE) / 2, len(samples) - 1)) * error
    return {"mean": mean, "error": error, "low": mean - reach, "high": mean + reach}


def _methods(bits: int, seed: int) -> Iterator[tuple[str, Method]]:
    rotation = Haar(seed)
    yield "turboquant_mse", TurboQuantMse(bits, rotation, "exact")
    yield "turboquant_prod", TurboQuantProd(bits, rotation, "exact", seed)
    yield "qjl", Qjl(bits, seed, norm="exact")


def measure(settings: Settings, tell: Tell) -> dict[str, Any]:
    """The document of the tables. tell(done, total, what) is called between the steps."""
    total = len(settings.dims) * (settings.draws + 1)
    distortion: list[dict[str, Any]] = []
    others: list[dict[str, Any]] = []
    for i, d in enumerate(settings.dims):
        samples: dict[tuple[str, int], list[tuple[float, float, float]]] = {}
        for draw in range(settings.draws):
            tell(i * (settings.draws + 1) + draw, total, f"d = {d}")
            rng = np.random.default_rng([settings.seed, d, draw])
            x, queries = unit_pairs(settings.rows, d, rng)
            for bits in settings.bits:
                for name, method in _methods(bits, int(rng.integers(2**62))):
                    samples.setdefault((name, bits), []).append(_sample(method, x, queries))
        distortion += [_row(name, bits, d, np.array(found)) for (name, bits), found in samples.items()]
        tell((i + 1) * (settings.draws + 1) - 1, total, f"d = {d}, other codes")
        others += _others(d, settings)
    return {
        "kind": "lab-theory",
        "version": VERSION,
        "settings": {**vars(settings), "confidence": CONFIDENCE, "cosine": COSINE},
        "distortion": distortion,
        "others": others,
        "broken": [claim for row in distortion for claim in _broken(row)],
    }


def _sample(method: Method, x: F32, queries: F32) -> tuple[float, float, float]:
    """Of one draw: mean |x - x~|^2; mean <q, x~>/<q, x>; d times the mean square of <q, x~> - <q, x>."""
    y = method.fit(x).encode_decode(x).astype(np.float64)
    error = y - x
    product = (queries * error).sum(axis=1)
    return (
        float((error**2).sum(axis=1).mean()),
        1 + float(product.mean()) / COSINE,
        x.shape[1] * float((product**2).mean()),
    )


def _row(name: str, bits: int, d: int, samples: F64) -> dict[str, Any]:
    residual = lloyd_max_nmse(bits if name == "turboquant_mse" else bits - 1, d)
    row: dict[str, Any] = {
        "method": name,
        "bits": bits,
        "d": d,
        "mse": interval(samples[:, 0]),
        "slope": interval(samples[:, 1]),
        "d_ip_error": interval(samples[:, 2]),
        "lower": 4.0**-bits,
    }
    if name == "turboquant_mse":
        # The centroid condition makes E<x, x~> = E|x~|^2, so inner products shrink by exactly the MSE.
        row |= {"mse_exact": residual, "slope_exact": 1 - residual, "mse_bound": mse_bound(bits)}
        row |= {"mse_paper": PAPER_MSE.get(bits)}
    elif name == "turboquant_prod":
        row |= {"slope_exact": 1.0, "ip_bound": prod_bound(bits), "ip_paper": PAPER_PROD.get(bits)}
        row |= {"ip_sharp_bound": qjl_bound(residual)}
    else:
        row |= {"slope_exact": 1.0, "ip_bound": qjl_bound() / bits}
    return row


def _broken(row: dict[str, Any]) -> Iterator[str]:
    """Claims of the papers that the row contradicts by more than TOLERATED_ERRORS standard errors."""
    where = f"{row['method']} at {row['bits']} bits, d = {row['d']}"

    def beyond(key: str, limit: float, sign: int) -> bool:
        found = row[key]
        return bool(sign * (found["mean"] - limit) > TOLERATED_ERRORS * found["error"])

    if beyond("slope", row["slope_exact"], 1) or beyond("slope", row["slope_exact"], -1):
        yield f"{where}: <q, x~>/<q, x> is {row['slope']['mean']:.5f}, expected {row['slope_exact']:.5f}"
    if "mse_bound" in row and beyond("mse", row["mse_bound"], 1):
        yield f"{where}: the MSE {row['mse']['mean']:.5f} is above its bound {row['mse_bound']:.5f}"
    if "mse_exact" in row and (beyond("mse", row["mse_exact"], 1) or beyond("mse", row["mse_exact"], -1)):
        yield f"{where}: the MSE {row['mse']['mean']:.5f} is not the exact {row['mse_exact']:.5f}"
    if "ip_bound" in row and beyond("d_ip_error", row["ip_bound"], 1):
        yield f"{where}: the inner product's error {row['d_ip_error']['mean']:.5f}/d is above {row['ip_bound']:.5f}/d"


def _others(d: int, settings: Settings) -> list[dict[str, Any]]:
    """NMSE of further codes at their true rate, on Gaussian rows; those that have no form for d are left out."""
    batches = 8
    rows = max(16, settings.rows // batches)
    x = np.random.default_rng([settings.seed, d]).standard_normal((batches * rows, d)).astype(np.float32)
    found = []
    for method in _other_methods():
        fitted = method.fit(x)
        try:
            y = fitted.encode_decode(x).astype(np.float64)
        except ValueError:
            continue
        rate = fitted.bits_per_value(len(x), d)
        square = ((y - x) ** 2).sum(axis=1) / (x.astype(np.float64) ** 2).sum(axis=1)
        row = {"method": method.name, "d": d, "bits_per_value": rate, "lower": 4.0**-rate}
        found.append({**row, "nmse": interval(square.reshape(batches, rows).mean(axis=1))})
    return found


def _other_methods() -> Iterator[Method]:
    for bits in (2, 3, 4):
        yield TurboQuantMse(bits)
        yield Turbo(bits)
    for bits in (2, 3):
        yield TurboQuantMse(bits, norm="log8")
        yield HalfChannels(bits)
        yield Trellis(bits, 256)
        yield Trellis(bits, 4096)
        yield TokenGroups(bits)
    yield PolarQuant(3, 1)
    yield PolarQuant(4, 2)
    yield from ggml_types.TYPES
