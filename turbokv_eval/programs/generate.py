"""llama-kv-generate: command lines, files of prompts, and the answers in what it prints."""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from turbokv_eval.errors import CheckFailed
from turbokv_eval.models.types import KVConfig

PROGRAM = "llama-kv-generate"


@dataclass(frozen=True)
class Answer:
    """What the model made of one prompt.

    n_prompt:  tokens of the prompt.
    tokens:    the most probable token at each position, ids.
    reference: the tokens that it went along, ids; `tokens` itself when it generated freely.
    logprobs:  of each token of `reference`, nats.
    """

    id: str
    n_prompt: int
    tokens: tuple[int, ...]
    reference: tuple[int, ...]
    logprobs: tuple[float, ...]

    @property
    def agreement(self) -> int:
        """Positions before the first at which the most probable token is another than the reference's."""
        pairs = zip(self.tokens, self.reference, strict=True)
        return next((i for i, (own, other) in enumerate(pairs) if own != other), len(self.tokens))


def command(
    bin_dir: Path, model: Path, config: KVConfig, prompts: Path, *, ctx: int, threads: int, flash_attn: bool
) -> list[str]:
    """Answers every prompt of a file with one load of the model.

    Tokens that end a generation are never chosen, so that every answer has the length that was asked for.
    """
    # Log level 4 is the lowest at which the KV cache is reported.
    argv = [str(bin_dir / PROGRAM), "-m", str(model), "-f", str(prompts), "-c", str(ctx), "-t", str(threads)]
    return [*argv, "-lv", "4", "--ignore-eos", "-fa", "on" if flash_attn else "off", *config.args]


def lines(prompts: Sequence[Mapping[str, Any]]) -> str:
    """The content of a file of prompts."""
    return "".join(json.dumps(prompt, ensure_ascii=False) + "\n" for prompt in prompts)


def excerpt(text: str, start: int, tokens: int) -> str:
    """Text that surely has so many tokens, from a character on; a text that ends before begins again.

    12 characters a token: those of English text have 4 to 5.
    """
    size = 12 * tokens
    return (text[start:] + text * (size // len(text) + 1))[:size]


def count(output: str) -> int:
    """Answers in the output, which may still be going on."""
    return len(re.findall(r'^\{"id":', output, flags=re.MULTILINE))


def too_long(output: str) -> int | None:
    """How many tokens a prompt is too long for its context, when that is why the run ended."""
    found = re.search(r"prompt '.*' needs (\d+) tokens of context, and there are (\d+)", output)
    return int(found[1]) - int(found[2]) if found else None


def parse(stdout: str, ids: Sequence[str]) -> list[Answer]:
    """The answers, in the order of `ids`. Raises CheckFailed when one is missing, damaged or not finite."""
    try:
        found = [_answer(json.loads(line)) for line in stdout.splitlines() if line.startswith('{"id":')]
    except (ValueError, KeyError, TypeError) as e:
        raise CheckFailed(f"{PROGRAM} printed something that is not its JSON ({type(e).__name__}: {e})") from e
    if [answer.id for answer in found] != list(ids):
        raise CheckFailed(f"{PROGRAM} answered {len(found)} of {len(ids)} prompts, or not those that were asked")
    return found


def _answer(line: dict[str, Any]) -> Answer:
    tokens, reference = tuple(map(int, line["tokens"])), tuple(map(int, line["reference"]))
    logprobs = tuple(map(float, line["logprobs"]))
    if not tokens or not len(tokens) == len(reference) == len(logprobs) or not all(map(math.isfinite, logprobs)):
        raise ValueError(f"prompt {line['id']!r} has {len(tokens)} tokens and {len(logprobs)} log-probabilities")
    return Answer(str(line["id"]), int(line["n_prompt"]), tokens, reference, logprobs)
