"""llama-perplexity: command lines, and the numbers in what it prints."""

import math
import re
from dataclasses import dataclass
from pathlib import Path

from turbokv_eval.errors import CheckFailed
from turbokv_eval.models.types import KVConfig

PROGRAM = "llama-perplexity"
# llama-perplexity prints no statistics over fewer values.
MIN_VALUES = 100

_NUMBER = r"(-?(?:[\d.]+(?:e[+-]?\d+)?|nan|inf))"
_PREFIX = re.compile(r"^\d+\.\d\d\.\d{3}\.\d{3} [A-Z] (?:\w+ +)?")


@dataclass(frozen=True)
class Reference:
    """The run that stored its log-probabilities. ppl_err: standard error; values: scored tokens."""

    ppl: float
    ppl_err: float
    chunks: int
    values: int


@dataclass(frozen=True)
class Quality:
    """One row against the reference, over `values` scored tokens. `_err` is the standard error that the run prints.

    KL divergences in nats. same_top, rms_dp: percent. ln_ratio: ln(PPL / PPL of the stored reference); dppl: PPL less
    that of the stored reference.
    """

    chunks: int
    values: int
    ppl: float
    ppl_err: float
    ppl_base: float
    ppl_base_err: float
    ln_ratio: float
    ln_ratio_err: float
    dppl: float
    dppl_err: float
    kld_mean: float
    kld_err: float
    kld_median: float
    kld_p99: float
    kld_p999: float
    kld_max: float
    same_top: float
    same_top_err: float
    rms_dp: float
    rms_dp_err: float


_PAIR = rf"{_NUMBER} ± +{_NUMBER}"
_PATTERNS: dict[tuple[str, ...], str] = {
    ("ppl", "ppl_err"): rf"Mean PPL\(Q\) +: +{_PAIR}",
    ("ppl_base", "ppl_base_err"): rf"Mean PPL\(base\) +: +{_PAIR}",
    ("ln_ratio", "ln_ratio_err"): rf"Mean ln\(PPL\(Q\)/PPL\(base\)\) +: +{_PAIR}",
    ("dppl", "dppl_err"): rf"Mean PPL\(Q\)-PPL\(base\) +: +{_PAIR}",
    ("kld_mean", "kld_err"): rf"Mean +KLD: +{_PAIR}",
    ("kld_max",): rf"Maximum KLD: +{_NUMBER}",
    ("kld_p999",): rf"99\.9% +KLD: +{_NUMBER}",
    ("kld_p99",): rf"99\.0% +KLD: +{_NUMBER}",
    ("kld_median",): rf"Median +KLD: +{_NUMBER}",
    ("rms_dp", "rms_dp_err"): rf"RMS Δp +: +{_PAIR}",
    ("same_top", "same_top_err"): rf"Same top p: +{_PAIR}",
}


def values_per_chunk(ctx: int) -> int:
    """Tokens scored in a chunk: its second half, but for the last token, which has no successor."""
    return ctx - 1 - ctx // 2


def reference_bytes(ctx: int, chunks: int, n_vocab: int) -> int:
    """Size of the file of stored log-probabilities: 16 bits for each word of the vocabulary and scored token."""
    words = 2 * ((n_vocab + 1) // 2) + 4
    return 8 + 3 * 4 + chunks * ctx * 4 + chunks * values_per_chunk(ctx) * words * 2


def _command(bin_dir: Path, model: Path, config: KVConfig, ctx: int, threads: int, flash_attn: bool) -> list[str]:
    # Log level 4 is the lowest at which the KV cache is reported.
    argv = [str(bin_dir / PROGRAM), "-m", str(model), "-c", str(ctx), "-t", str(threads), "-lv", "4"]
    return [*argv, "-fa", "on" if flash_attn else "off", *config.args]


def reference_command(
    bin_dir: Path, model: Path, text: Path, config: KVConfig, *, ctx: int, chunks: int, threads: int, store: Path
) -> list[str]:
    """Runs `config` without flash attention (which would turn an f32 cache into f16), stores its log-probabilities."""
    argv = _command(bin_dir, model, config, ctx, threads, flash_attn=False)
    return [*argv, "-f", str(text), "--chunks", str(chunks), "--kl-divergence-base", str(store)]


def plain_command(
    bin_dir: Path, model: Path, text: Path, config: KVConfig, *, ctx: int, chunks: int, threads: int
) -> list[str]:
    """Runs `config` over a text with flash attention, for its perplexity alone."""
    argv = _command(bin_dir, model, config, ctx, threads, flash_attn=True)
    return [*argv, "-f", str(text), "--chunks", str(chunks)]


def row_command(
    bin_dir: Path, model: Path, config: KVConfig, *, ctx: int, threads: int, store: Path, flash_attn: bool = True
) -> list[str]:
    """Runs `config` over the tokens in `store`, against the log-probabilities there."""
    argv = _command(bin_dir, model, config, ctx, threads, flash_attn)
    return [*argv, "--kl-divergence", "--kl-divergence-base", str(store)]


def probe_command(
    bin_dir: Path, model: Path, config: KVConfig, *, ctx: int, threads: int, flash_attn: bool
) -> list[str]:
    """Makes the context and then ends, for want of text: shows in a moment whether and how a configuration loads."""
    return [*_command(bin_dir, model, config, ctx, threads, flash_attn), "--no-warmup", "-p", "-"]


def parse_known_types(help_text: str) -> list[str]:
    """The K types in the output of `--help`, in its order. Raises CheckFailed."""
    section = re.search(r"--cache-type-k TYPE\b.*?allowed values:(.*?)\(default", help_text, flags=re.DOTALL)
    types = [name.strip() for name in section[1].split(",")] if section else []
    if not types or not all(re.fullmatch(r"\w+", name) for name in types):
        raise CheckFailed(f"{PROGRAM} --help lists no cache types: is it from this build? Run `turbokv-eval build`")
    return types


def parse_chunks(output: str) -> int:
    """How many chunks a run said it would compute; 0 when it did not get that far."""
    found = re.search(r"(?:calculating perplexity|computing) over (\d+) chunks", output)
    return int(found[1]) if found else 0


def parse_reference(output: str, ctx: int) -> Reference | None:
    """The final estimate; None when the run did not get there."""
    found = re.search(rf"Final estimate: PPL = {_NUMBER} \+/- {_NUMBER}", output)
    if found is None or not all(math.isfinite(float(text)) for text in found.groups()):
        return None
    chunks = parse_chunks(output)
    return Reference(float(found[1]), float(found[2]), chunks, chunks * values_per_chunk(ctx))


def has_statistics(output: str) -> bool:
    """Whether a row's run printed the last of its statistics."""
    return re.search(_PATTERNS["same_top", "same_top_err"], output) is not None


def parse_quality(output: str, ctx: int) -> Quality:
    """The statistics at the end of a run. Raises CheckFailed when one is missing or not finite."""
    numbers: dict[str, float] = {}
    for names, pattern in _PATTERNS.items():
        found = re.search(pattern, output)
        if found is None:
            raise CheckFailed(failure(output) or "the run ended without statistics")
        for name, text in zip(names, found.groups(), strict=True):
            numbers[name] = float(text)
            if not math.isfinite(numbers[name]):
                raise CheckFailed(f"the run's {name} is {text}: the cache gives values that are not finite")
    chunks = parse_chunks(output)
    return Quality(chunks=chunks, values=chunks * values_per_chunk(ctx), **numbers)


def failure(output: str) -> str:
    """The line of a failed run that says most about why; empty when none does."""
    lines = [line.strip() for line in output.splitlines()]
    plain = [line for line in lines if re.match(r"error:", line)]
    if plain:
        return plain[-1].removeprefix("error:").strip()
    asserts = [line for line in lines if "GGML_ASSERT" in line or "terminate called" in line]
    if asserts:
        return asserts[0]
    # The first error is the cause; those after it only pass it on.
    errors = [_PREFIX.sub("", line) for line in lines if re.match(r"\d+\.\d\d\.\d{3}\.\d{3} E ", line)]
    if errors:
        return re.sub(r"^\w+ ?: ", "", errors[0])
    return next((line for line in lines if "error" in line.lower()), "")


def too_short(output: str) -> tuple[int, int] | None:
    """(needed, found) tokens when the run refused the text as too short."""
    needed = re.search(r"you need at least (\d+) tokens", output)
    found = re.search(r"tokenizes to only (\d+) tokens", output)
    return (int(needed[1]), int(found[1])) if needed and found else None


def running_means(output: str) -> tuple[list[float], list[float]]:
    """ln(PPL / PPL of the reference) and KLD (nats) after each chunk of a row's run, as printed: five decimals."""
    number = r"(-?\d+\.\d{5})"
    lines = re.findall(rf"^ *\d+ +\S+ ± +\S+ +{number} ± +\S+ +{number} ± ", output, flags=re.MULTILINE)
    return [float(ratio) for ratio, _ in lines], [float(kld) for _, kld in lines]


def finished_chunks(output: str) -> int:
    """Chunks done so far, from the partial output of either kind of run."""
    marks = re.findall(r"\[(\d+)\]-?[\d.]+|^ *(\d+) +-?[\d.]+ ±", output, flags=re.MULTILINE)
    return max((int(a or b) for a, b in marks), default=0)
