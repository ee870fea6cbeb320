"""Makes a key conditioning file ahead of time, with the built llama-kv-condition."""

from dataclasses import dataclass
from pathlib import Path

from turbokv_eval.programs import file_program

PROGRAM = "llama-kv-condition"


@dataclass(frozen=True)
class Sample:
    """What is measured: a text, or random tokens where `text` is None.

    tokens, segment, span: counts of tokens, of those of one run, and of the positions over which the runs' starts are
    spread; None: the program's default.
    ctx: tokens of the contexts that the file is for, which choose the default sample; None: the model's own.
    """

    text: Path | None = None
    tokens: int | None = None
    segment: int | None = None
    span: int | None = None
    ctx: int | None = None

    @property
    def args(self) -> list[str]:
        """The arguments of llama-kv-condition."""
        options = {"-f": self.text, "-n": self.tokens, "-s": self.segment, "-p": self.span, "-c": self.ctx}
        return [str(part) for name, value in options.items() if value is not None for part in (name, value)]


def make(bin_dir: Path, model: Path, output: Path, sample: Sample, threads: int) -> Path:
    """Measures the keys of `model` and writes `output`, a GGUF. Returns its path. Raises as `file_program.write`."""
    return file_program.write(bin_dir, PROGRAM, ["-m", model, "-t", str(threads), *sample.args], output)
