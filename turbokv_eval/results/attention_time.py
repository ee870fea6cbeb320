"""What the cache type decides of a speed: the time of attention, as the time at a depth less the time at depth 0."""

import math
from typing import Any, NamedTuple

import numpy as np

from turbokv_eval.results.paired import CONFIDENCE, RESAMPLES, Series

KINDS = ("prompt", "generation")


class Ratio(NamedTuple):
    """A ratio of medians and its bootstrap interval. hi is infinite where the base may have spent no time at all."""

    value: float
    lo: float
    hi: float


def ratio(row: dict[str, Any], base: dict[str, Any], depth: int, kind: str) -> Ratio | None:
    """Attention time of one token of `kind` at `depth`, of `row` over that of `base`.

    The interval is a percentile bootstrap over the samples of the four speeds that it is made of, so that a disturbed
    depth 0 makes it wide. None where a speed is missing, or where either time is not above 0 (all of it is noise).
    """
    medians = [_median(one, at, kind) for one in (row, base) for at in (depth, 0)]
    if None in medians:
        return None
    own, other = _seconds(*medians[:2]), _seconds(*medians[2:])
    if own <= 0 or other <= 0:
        return None
    if row is base:
        return Ratio(1.0, 1.0, 1.0)
    rng = np.random.default_rng(0)
    drawn = [_resampled(one, at, kind, rng) for one in (row, base) for at in (depth, 0)]
    owns, others = np.maximum(_seconds(*drawn[:2]), 0.0), _seconds(*drawn[2:])
    ratios = np.divide(owns, others, out=np.full(RESAMPLES, math.inf), where=others > 0)
    # Without interpolation, which would make a NaN beside an infinite one.
    ends = np.quantile(ratios, [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2], method="inverted_cdf")
    return Ratio(own / other, float(ends[0]), float(ends[1]))


def _seconds(deep: Any, shallow: Any) -> Any:
    """Attention of a token, from tokens a second."""
    return 1 / deep - 1 / shallow


def _side(row: dict[str, Any], depth: int, kind: str) -> dict[str, Any]:
    return next((entry[kind] for entry in row["speed"] if entry["depth"] == depth), {})


def _median(row: dict[str, Any], depth: int, kind: str) -> Any:
    return _side(row, depth, kind).get("median")


def _resampled(row: dict[str, Any], depth: int, kind: str, rng: np.random.Generator) -> Series:
    """Medians of RESAMPLES drawings from all samples of a speed."""
    samples = np.concatenate([np.asarray(found) for found in _side(row, depth, kind)["rounds"]])
    found: Series = np.median(rng.choice(samples, size=(RESAMPLES, len(samples))), axis=1)
    return found
