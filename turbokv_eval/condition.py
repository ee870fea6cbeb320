"""Makes a key conditioning file ahead of time, with the built llama-kv-condition."""

from dataclasses import dataclass
from pathlib import Path

from turbokv_eval import runner
from turbokv_eval.build import missing_programs
from turbokv_eval.errors import BadInput, CheckFailed, MachineCannot

PROGRAM = "llama-kv-condition"


@dataclass(frozen=True)
class Sample:
    """What is measured: a text, or random tokens where `text` is None.

    tokens, segment, span: counts of tokens, of those of one run, and of the positions over which the runs' starts are
    spread; None: the program's default.
    """

    text: Path | None = None
    tokens: int | None = None
    segment: int | None = None
    span: int | None = None

    @property
    def args(self) -> list[str]:
        options = {"-f": self.text, "-n": self.tokens, "-s": self.segment, "-p": self.span}
        return [str(part) for name, value in options.items() if value is not None for part in (name, value)]


def make(bin_dir: Path, model: Path, output: Path, sample: Sample, threads: int) -> Path:
    """Measures the keys of `model` and writes `output`, a GGUF. Returns its path.

    Raises BadInput (a folder that cannot be written, a model that cannot be conditioned), MachineCannot (the program is
    not built) or CheckFailed (it ended without a file).
    """
    if missing_programs(bin_dir, (PROGRAM,)):
        raise MachineCannot(f"{PROGRAM} not found in {bin_dir}: `turbokv-eval build` (or `make build`) builds it")
    if not output.parent.is_dir():
        raise BadInput(f"cannot write {output}: there is no folder {output.parent}")
    done = runner.run([bin_dir / PROGRAM, "-m", model, "-o", output, "-t", str(threads), *sample.args])
    if done.returncode != 0:
        said = [line for line in done.stderr.splitlines() if line.startswith("error:")]
        raise BadInput(said[-1].removeprefix("error:").strip() if said else f"{PROGRAM} failed without a word")
    if not output.is_file():
        raise CheckFailed(f"{PROGRAM} ended without writing {output}")
    return output
