"""The token trajectory: how far a cache type's greedy continuation goes along with that of the reference.

Every cache type is led along the reference's continuation, one token at a time. Up to the first position at which its
most probable token is another one, this is what it generates by itself; the positions behind are still comparable.
"""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from turbokv_eval.programs import generate
from turbokv_eval.programs.generate import Answer
from turbokv_eval.results import paired


@dataclass(frozen=True)
class Plan:
    """prompts: how many, spread evenly over the texts. n_prompt, n_predict: tokens of each and of its continuation."""

    prompts: int = 8
    n_prompt: int = 48
    n_predict: int = 48

    @property
    def ctx(self) -> int:
        """Tokens of the context that it needs, and one for a token that begins every prompt."""
        return self.n_prompt + self.n_predict + 1

    def document(self) -> dict[str, Any]:
        """The plan as the document has it."""
        return asdict(self)


def excerpts(plan: Plan, texts: Sequence[str]) -> list[str]:
    """What each prompt is cut from: prompt i is of text i mod the number of texts, at even steps through that text."""
    found = []
    for i in range(plan.prompts):
        text = texts[i % len(texts)]
        own = len(range(i % len(texts), plan.prompts, len(texts)))
        found.append(generate.excerpt(text, len(text) * (i // len(texts)) // own, plan.n_prompt))
    return found


def prompts(plan: Plan, texts: Sequence[str], along: Sequence[Answer] | None = None) -> list[dict[str, Any]]:
    """Lines for llama-kv-generate. along: answers of the reference, which these follow; None: free generation."""
    found: list[dict[str, Any]] = []
    for i, excerpt in enumerate(excerpts(plan, texts)):
        found.append({"text": str(i), "content": excerpt})
        piece = {"of": str(i), "from": 0, "to": plan.n_prompt}
        what = {"n_predict": plan.n_predict} if along is None else {"reference": list(along[i].tokens)}
        found.append({"id": str(i), "prompt": [piece], **what})
    return found


def ids(plan: Plan) -> list[str]:
    """The names of the prompts, in order."""
    return [str(i) for i in range(plan.prompts)]


def score(plan: Plan, answers: Sequence[Answer], floor: Sequence[int] | None) -> dict[str, Any]:
    """The agreement of a row with the reference, as the document has it.

    lengths: tokens before the first difference, of each prompt; those of n_predict are censored: they agree to the end.
    mean, median: of the lengths, so at most n_predict. top1: percent of all positions with the same most probable
    token, given the same tokens before. _interval: 95%, bootstrap over prompts. floor: lengths of the noise floor, and
    from_floor the mean of the lengths less those, paired by prompt.
    """
    lengths = np.array([answer.agreement for answer in answers], dtype=np.float64)
    shares = [
        100 * np.mean([own == other for own, other in zip(answer.tokens, answer.reference, strict=True)])
        for answer in answers
    ]
    top1 = np.array(shares, dtype=np.float64)
    difference = None if floor is None else lengths - np.array(floor, dtype=np.float64)
    return {
        "lengths": [int(length) for length in lengths],
        "censored": int((lengths >= plan.n_predict).sum()),
        "mean": float(lengths.mean()),
        "mean_interval": _within(paired.interval(lengths), plan.n_predict),
        "median": float(np.median(lengths)),
        "median_interval": paired.median_interval(lengths),
        "top1": float(top1.mean()),
        "top1_interval": _within(paired.interval(top1), 100),
        "from_floor": None if difference is None else float(difference.mean()),
        "from_floor_interval": None if difference is None else paired.interval(difference),
    }


def _within(ends: tuple[float, float] | None, most: float) -> tuple[float, float] | None:
    """The interval without values that the mean cannot have. None where nothing varied, which shows no certainty."""
    if ends is None or ends[0] == ends[1]:
        return None
    return max(ends[0], 0.0), min(ends[1], float(most))
