"""Needle retrieval: facts planted at positions of a haystack of text, and asked for behind it.

One haystack holds facts at every position, each with a key of its own, and is asked for all of them, so that a fact
has to be told from the others (Hsieh et al. 2024, RULER, multi-key NIAH). The questions share the haystack, which is
computed once. The model goes along the expected answer: greedy generation would give that answer exactly where every
token of it is the most probable one, and its log-probability tells types apart where a small model finds nothing.
"""

import random
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from turbokv_eval.errors import BadInput
from turbokv_eval.programs import generate
from turbokv_eval.programs.generate import Answer
from turbokv_eval.results import paired

# With facts of one kind only ("the magic number of A"), small models take the number of another name.
_KINDS = (
    "magic number,door code,flight number,locker number,invoice number,phone extension,bus line,account number,"
    "room number,lottery number,ticket number,case number,radio frequency,serial number,post code,patent number,"
    "badge number,licence number,order number,train number"
)
_NAMES = (
    "Lisbon,Cairo,Oslo,Lima,Quito,Seoul,Dakar,Riga,Perth,Hanoi,Milan,Turin,Delhi,Accra,Sofia,Tunis,Athens,Berlin,"
    "Boston,Geneva,Havana,Kyoto,London,Madrid,Moscow,Munich,Naples,Nairobi,Prague,Venice"
)
MAX_POSITIONS = len(_KINDS.split(","))
_DIGITS = 5

# Tokens that a fact and all the rest but the haystack take with most tokenisers; where more, the haystack shrinks.
_FACT_TOKENS, _OTHER_TOKENS = 20, 24


@dataclass(frozen=True)
class Plan:
    """contexts: tokens that prompt and answer may take; each is a haystack length.

    positions: of the facts, percent of the haystack before them. needles: in each cell, which is a context and a
    position; as many of them share a haystack as fill half a context with facts. seed: of facts, and of where in the
    text a haystack begins.
    """

    contexts: tuple[int, ...] = (512,)
    positions: tuple[float, ...] = (0, 25, 50, 75, 100)
    needles: int = 2
    seed: int = 0

    def together(self, ctx: int) -> int:
        """Needles of one cell that share a haystack."""
        facts = min(ctx // (2 * _FACT_TOKENS), MAX_POSITIONS)
        return min(self.needles, max(1, facts // len(self.positions)))

    def haystacks(self, ctx: int) -> int:
        """Haystacks at a context."""
        return -(-self.needles // self.together(ctx))

    def document(self) -> dict[str, Any]:
        """The plan as the document has it."""
        return asdict(self)


@dataclass(frozen=True)
class Needle:
    """One planted fact. id: of its prompt; position: index into Plan.positions."""

    id: str
    haystack: int
    position: int
    question: str
    answer: str


def needles(plan: Plan, ctx: int) -> list[Needle]:
    """Every fact at one context, by haystack and position; the same for the same plan."""
    found: list[Needle] = []
    for haystack in range(plan.haystacks(ctx)):
        rng = random.Random(f"{plan.seed} {ctx} {haystack}")
        own = min(plan.together(ctx), plan.needles - len(found) // len(plan.positions))
        places = [position for position in range(len(plan.positions)) for _ in range(own)]
        kinds, names = (rng.sample(words.split(","), len(places)) for words in (_KINDS, _NAMES))
        for i, (position, kind, name) in enumerate(zip(places, kinds, names, strict=True)):
            answer = f" {rng.randrange(10 ** (_DIGITS - 1), 10**_DIGITS)}"
            found.append(Needle(f"{haystack}/{i}", haystack, position, f"The {kind} of {name} is", answer))
    return found


def haystack_tokens(plan: Plan, ctx: int) -> int:
    """Tokens of text in a haystack, as many as should fit. Raises BadInput when there is no room for text."""
    facts = plan.together(ctx) * len(plan.positions)
    room = ctx - facts * _FACT_TOKENS - _OTHER_TOKENS
    if room < facts:
        raise BadInput(
            f"a context of {ctx} tokens has no room for text beside {facts} facts: use larger contexts or fewer"
            f" positions"
        )
    return room


def prompts(plan: Plan, text: str, ctx: int, n_hay: int) -> list[dict[str, Any]]:
    """Lines for llama-kv-generate, the questions of a haystack together. n_hay: tokens of text in each.

    A haystack begins anywhere in the text. A text that ends too early begins again.
    """
    found: list[dict[str, Any]] = []
    all_needles = needles(plan, ctx)
    for haystack in range(plan.haystacks(ctx)):
        start = random.Random(f"{plan.seed} {ctx} {haystack} text").randrange(len(text))
        name = str(haystack)
        found.append({"text": name, "content": generate.excerpt(text, start, n_hay)})
        own = [needle for needle in all_needles if needle.haystack == haystack]
        pieces = _pieces(plan, name, own, n_hay)
        for needle in own:
            prompt = [*pieces[:-1], f"{pieces[-1]}\n{needle.question}"]
            found.append({"id": needle.id, "prompt": prompt, "reference": needle.answer})
    return found


def _pieces(plan: Plan, name: str, own: Sequence[Needle], n_hay: int) -> list[Any]:
    """The haystack: pieces of the text, and between them the facts, each a line. The last piece is a string."""
    pieces: list[Any] = []
    last = 0
    for needle in sorted(own, key=lambda needle: plan.positions[needle.position]):
        cut = round(n_hay * plan.positions[needle.position] / 100)
        if cut > last:
            pieces.append({"of": name, "from": last, "to": cut})
        pieces.append(f"\n{needle.question}{needle.answer}.\n")
        last = max(last, cut)
    return [*pieces, {"of": name, "from": last, "to": n_hay}, ""] if last < n_hay else pieces


def found(answer: Answer) -> bool:
    """Whether greedy generation would give the expected answer."""
    return answer.agreement == len(answer.reference)


def reference_score(plan: Plan, ctx: int, answers: Sequence[Answer]) -> dict[str, Any]:
    """What the reference found at one context, as the document has it.

    n_prompt: tokens of its longest prompt. needles: each with what was asked, and the reference's own result; logprob
    in nats, summed over the tokens of the answer.
    """
    return {
        "n_prompt": max(answer.n_prompt for answer in answers),
        "needles": [
            {
                "haystack": needle.haystack,
                "position": plan.positions[needle.position],
                "fact": f"{needle.question}{needle.answer}.",
                "found": found(answer),
                "logprob": sum(answer.logprobs),
            }
            for needle, answer in zip(needles(plan, ctx), answers, strict=True)
        ],
    }


def score(ctx: int, reference: Sequence[dict[str, Any]], answers: Sequence[Answer]) -> dict[str, Any]:
    """A row at one context against the reference's `needles`, as the document has it.

    cells: by position, of the n needles that the reference finds, how many the row finds; without any, the cell is no
    evidence. The ends of their Wilson intervals are shares, 0 to 1. Of `all` cells together the interval takes needles
    as independent. dlogprob: mean log-probability of the answers less the reference's, nats, over all needles;
    _interval: 95%, bootstrap over needles.
    """
    own = [found(answer) for answer in answers]
    logprobs = [sum(answer.logprobs) for answer in answers]
    difference = np.array(logprobs) - np.array([needle["logprob"] for needle in reference])

    def cell(members: Sequence[int]) -> dict[str, Any]:
        evidence = [i for i in members if reference[i]["found"]]
        kept = sum(own[i] for i in evidence)
        return {
            "found": kept,
            "n": len(evidence),
            "interval": paired.wilson(kept, len(evidence)) if evidence else None,
            "logprob": float(np.mean([logprobs[i] for i in members])),
        }

    positions = sorted({needle["position"] for needle in reference})
    return {
        "ctx": ctx,
        "found": own,
        "logprobs": logprobs,
        "cells": [
            {"position": position, **cell([i for i, n in enumerate(reference) if n["position"] == position])}
            for position in positions
        ],
        "all": cell(range(len(reference))),
        "dlogprob": float(difference.mean()),
        "dlogprob_interval": paired.interval(difference),
    }
