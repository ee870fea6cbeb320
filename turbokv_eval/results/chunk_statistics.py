"""Single chunks of a row's run, intervals of its means, and paired differences between rows."""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from turbokv_eval.programs import perplexity
from turbokv_eval.results import paired

BASELINE = "f16"


def of_run(output: str, ppl_base: float) -> dict[str, Any] | None:
    """Single chunks of a run, a bound of their rounding error, and 95% intervals of their means.

    ppl_base: of the reference on the same tokens, as the run prints it. The intervals of PPL and of its difference to
    ppl_base are those of the mean of ln(PPL / ppl_base), so that what makes a chunk hard for both cancels.

    None when the run prints no running means; an interval is None where the chunks are too few for one, or vary less
    than what rounding may have made of them.
    """
    ratios, klds = perplexity.running_means(output)
    if not klds:
        return None
    kld, error = paired.per_chunk(klds, 5)
    ratio, _ = paired.per_chunk(ratios, 5)
    ln_ratio = _interval(ratio, error)
    ppl = None if ln_ratio is None else [ppl_base * math.exp(end) for end in ln_ratio]
    return {
        "kld": kld.round(5).tolist(),
        "ln_ratio": ratio.round(5).tolist(),
        "rounding": error,
        "kld_interval": _interval(kld, error),
        "ln_ratio_interval": ln_ratio,
        "ppl_interval": ppl,
        "dppl_interval": None if ppl is None else [ppl_base * math.expm1(end) for end in ln_ratio or ()],
    }


def _interval(values: paired.Series, rounding: float) -> tuple[float, float] | None:
    return paired.interval(values) if values.std() > rounding else None


def family(labels: Sequence[str]) -> list[tuple[str, str]]:
    """The differences that are tested: each row against f16 and against the row before it, as far as that is not f16.

    It depends on what was asked for and not on what came out, so it is declared before the run.
    """
    pairs = [(label, BASELINE) for label in labels if BASELINE in labels and label != BASELINE]
    return pairs + [(b, a) for a, b in itertools.pairwise(labels) if BASELINE not in (a, b)]


def add_differences(document: dict[str, Any]) -> None:
    """Tests the family in every evaluation of the document, with Holm's correction over all of them.

    A pair of which a row failed stays in the family, with p = 1: the correction is for what was declared.
    """
    tested: list[dict[str, Any]] = []
    for entry in document["evaluations"]:
        place = entry["text"], entry["ctx"]
        chunks = {
            row["label"]: quality["by_chunk"]["kld"]
            for row in document["rows"]
            for quality in row["quality"]
            if not row["errors"] and quality["by_chunk"] and (quality["text"], quality["ctx"]) == place
        }
        entry["differences"] = [_difference(a, b, chunks) for a, b in document["family"]]
        tested += entry["differences"]
    for found, p in zip(tested, paired.holm([found["p"] for found in tested]), strict=True):
        found["p_holm"], found["shown"] = p, p < 1 - paired.CONFIDENCE


def _difference(a: str, b: str, chunks: dict[str, list[float]]) -> dict[str, Any]:
    if a not in chunks or b not in chunks:
        return {"a": a, "b": b, "difference": None, "interval": None, "p": 1.0}
    difference = np.subtract(chunks[a], chunks[b])
    return {
        "a": a,
        "b": b,
        "difference": float(difference.mean()),
        "interval": paired.interval(difference),
        "p": paired.permutation_p(difference),
    }


def alike(document: dict[str, Any], entry: dict[str, Any], label: str) -> list[str]:
    """The rows that `label` was held against in an evaluation and is not told apart from; none where none could be."""
    if not entry["reference"] or too_few(document, entry["reference"]["chunks"]):
        return []
    pairs = [
        (found["a"], found["b"])
        for found in entry["differences"]
        if found["difference"] is not None and not found["shown"]
    ]
    return [b if a == label else a for a, b in pairs if label in (a, b)]


def too_few(document: dict[str, Any], chunks: int) -> bool:
    """Whether so many chunks can show no difference at all: the smallest p that flipping signs can give is too high."""
    tested = len(document["family"]) * len(document["evaluations"])
    return tested * 2.0 ** (1 - chunks) >= 1 - paired.CONFIDENCE
