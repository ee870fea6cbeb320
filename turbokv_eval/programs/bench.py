"""llama-bench: command lines, and the numbers in what it prints."""

import json
from dataclasses import dataclass
from pathlib import Path

from turbokv_eval.errors import CheckFailed
from turbokv_eval.models.types import KVConfig

PROGRAM = "llama-bench"
N_PROMPT = 256
N_GEN = 32


@dataclass(frozen=True)
class Measurement:
    """One test of one run. samples: tokens a second of each repetition; one of n_prompt and n_gen is 0."""

    n_prompt: int
    n_gen: int
    depth: int
    k_type: str
    v_type: str
    flash_attn: bool
    samples: tuple[float, ...]

    @property
    def kind(self) -> str:
        """`prompt` or `generation`."""
        return "prompt" if self.n_gen == 0 else "generation"


def command(bin_dir: Path, model: Path, config: KVConfig, *, depth: int, repetitions: int, threads: int) -> list[str]:
    """Prompt and generation speed of one configuration at one depth.

    `-v` makes it report the cache; inside the timed part it prints one line, when the thread count is set.
    """
    argv = [str(bin_dir / PROGRAM), "-m", str(model), "-o", "jsonl", "-v", "--progress", "-t", str(threads)]
    argv += ["-p", str(N_PROMPT), "-n", str(N_GEN), "-d", str(depth), "-r", str(repetitions), "-fa", "1"]
    return [*argv, *config.args]


def has_result(output: str) -> bool:
    """Whether a run printed both of its tests."""
    try:
        parse(output)
    except CheckFailed:
        return False
    return True


def parse(stdout: str) -> list[Measurement]:
    """Reads the output of `-o jsonl`. Raises CheckFailed when it is not that."""
    found: list[Measurement] = []
    try:
        for line in stdout.splitlines():
            if not line.startswith("{"):
                continue
            test = json.loads(line)
            found.append(
                Measurement(
                    n_prompt=int(test["n_prompt"]),
                    n_gen=int(test["n_gen"]),
                    depth=int(test["n_depth"]),
                    k_type=str(test["type_k"]),
                    v_type=str(test["type_v"]),
                    flash_attn=int(test["flash_attn"]) == 1,
                    samples=tuple(float(sample) for sample in test["samples_ts"]),
                )
            )
    except (ValueError, KeyError, TypeError) as e:
        raise CheckFailed(f"{PROGRAM} printed something that is not its JSON ({type(e).__name__}: {e})") from e
    if {m.kind for m in found if m.samples} != {"prompt", "generation"}:
        raise CheckFailed(f"{PROGRAM} ended without a prompt and a generation test")
    return found
