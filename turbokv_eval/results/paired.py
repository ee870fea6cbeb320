"""Paired statistics over the chunks of a text: intervals, tests of differences, and Holm's correction."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

CONFIDENCE = 0.95
RESAMPLES = 2000
# With 4 values of a gamma distribution the interval is twice as wide as Student's, and 7 times in a tenth of samples,
# because some resamples hardly vary; with 8 it is a tenth wider.
MIN_VALUES = 8

Series = NDArray[np.float64]


def per_chunk(running: Sequence[float], digits: int) -> tuple[Series, float]:
    """Values of single chunks (float64, shape (n,)) from running means printed with `digits` decimals.

    Chunk k is k*m_k - (k-1)*m_(k-1). The second result bounds the rounding error of any value: (2n - 1) half units of
    the last decimal. Raises ValueError when there is no mean.
    """
    if not len(running):
        raise ValueError("no running mean to recover chunks from")
    means = np.asarray(running, dtype=np.float64)
    sums = means * np.arange(1, len(means) + 1)
    return np.diff(sums, prepend=0.0), (2 * len(means) - 1) * 0.5 * 10.0**-digits


def interval(values: Series, *, confidence: float = CONFIDENCE, seed: int = 0) -> tuple[float, float] | None:
    """Bootstrap-t interval of the mean of `values`, shape (n,); for a paired difference, of the differences.

    Studentised (Efron and Tibshirani, An Introduction to the Bootstrap, section 12.5): percentiles of plain resampled
    means are too narrow for a dozen chunks. None below MIN_VALUES.
    """
    n = len(values)
    if n < MIN_VALUES:
        return None
    mean, error = float(values.mean()), float(values.std(ddof=1)) / n**0.5
    if error == 0.0:
        return mean, mean
    picks = values[np.random.default_rng(seed).integers(0, n, (RESAMPLES, n))]
    errors = picks.std(axis=1, ddof=1) / n**0.5
    usable = errors > 0
    t = (picks.mean(axis=1)[usable] - mean) / errors[usable]
    low, high = np.quantile(t, [(1 - confidence) / 2, (1 + confidence) / 2])
    return mean - float(high) * error, mean - float(low) * error


def median_interval(values: Series, *, confidence: float = CONFIDENCE, seed: int = 0) -> tuple[float, float] | None:
    """Percentile bootstrap interval of the median of `values`, shape (n,). None below MIN_VALUES, or if all agree."""
    if len(values) < MIN_VALUES or values.min() == values.max():
        return None
    picks = values[np.random.default_rng(seed).integers(0, len(values), (RESAMPLES, len(values)))]
    low, high = np.quantile(np.median(picks, axis=1), [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)


def wilson(found: int, n: int, *, confidence: float = CONFIDENCE) -> tuple[float, float]:
    """Wilson's score interval of a share, 0 to 1 (Wilson 1927): it holds for few trials and for shares of 0 and 1."""
    from scipy import stats  # here: it takes a second, which every command would pay

    ends = stats.binomtest(found, n).proportion_ci(confidence, method="wilson")
    return float(ends.low), float(ends.high)


def permutation_p(differences: Series, *, seed: int = 0) -> float:
    """Two-sided p of the paired permutation (sign-flip) test that the differences, shape (n,), are symmetric about 0.

    Exact where 2^n flips are fewer than the 9999 that are drawn otherwise.
    """
    from scipy import stats  # here: it takes a second, which every command would pay

    if len(differences) < 2 or not differences.any():
        return 1.0
    found = stats.permutation_test(
        (differences, np.zeros_like(differences)),
        lambda x, y, axis: np.mean(x - y, axis=axis),
        permutation_type="samples",
        vectorized=True,
        n_resamples=9999,
        rng=np.random.default_rng(seed),
    )
    return float(found.pvalue)


def holm(p: Sequence[float]) -> list[float]:
    """Holm's adjusted p values, in the order given (Holm 1979, A simple sequentially rejective procedure)."""
    adjusted, highest = [0.0] * len(p), 0.0
    for rank, index in enumerate(np.argsort(p, kind="stable")):
        highest = max(highest, min(1.0, (len(p) - rank) * p[index]))
        adjusted[index] = highest
    return adjusted
