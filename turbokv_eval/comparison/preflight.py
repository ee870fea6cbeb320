"""What can be checked of programs, text and settings before a long run."""

from pathlib import Path

from turbokv_eval.comparison.attempts import why
from turbokv_eval.errors import BadInput, MachineCannot
from turbokv_eval.machine import runner
from turbokv_eval.machine.build import missing_programs
from turbokv_eval.programs import bench, perplexity


def check_programs(bin_dir: Path, *more: str) -> None:
    """Raises MachineCannot when the programs of a comparison, or the others that are named, are not built."""
    missing = missing_programs(bin_dir, (perplexity.PROGRAM, bench.PROGRAM, *more))
    if missing:
        raise MachineCannot(
            f"{' and '.join(missing)} not found in {bin_dir}: `turbokv-eval build` (or `make build`) builds the"
            f" programs, --bin names another folder"
        )


def known_types(bin_dir: Path) -> list[str]:
    """The cache types that the built programs name."""
    done = runner.run([bin_dir / perplexity.PROGRAM, "--help"], timeout=60)
    if done.returncode != 0:
        raise MachineCannot(
            f"{bin_dir / perplexity.PROGRAM} does not run ({why(done)}): build it again on this machine"
        )
    return perplexity.parse_known_types(done.output)


def check_text(text: Path, ctx: int) -> None:
    """Raises BadInput for a text that cannot be read or is surely too short (a token is at least a byte)."""
    try:
        data = text.read_bytes()
    except OSError as e:
        raise BadInput(f"cannot read the text {text}: {e.strerror}; give a plain text file with -f") from e
    if not data.strip():
        raise BadInput(f"the text {text} is empty: give a plain text file with -f")
    if len(data) < 2 * ctx:
        raise BadInput(
            f"the text {text} is too short: it has {len(data)} bytes, and two contexts of {ctx} tokens are needed; give"
            f" a longer one with -f or a smaller --ctx"
        )


def check_values(ctx: int, chunks: int) -> None:
    """Raises BadInput when llama-perplexity would print no statistics."""
    per_chunk = perplexity.values_per_chunk(ctx)
    if chunks * per_chunk < perplexity.MIN_VALUES:
        least = -(-perplexity.MIN_VALUES // per_chunk)
        raise BadInput(
            f"--chunks {chunks} of --ctx {ctx} score too few tokens for statistics: use --chunks {least} or more"
        )
