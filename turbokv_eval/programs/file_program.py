"""Runs one of the built programs that measure a model and write a file: their failures become one line."""

from collections.abc import Sequence
from pathlib import Path

from turbokv_eval.errors import BadInput, CheckFailed, MachineCannot
from turbokv_eval.machine import runner
from turbokv_eval.machine.build import missing_programs


def write(bin_dir: Path, program: str, args: Sequence[str | Path], output: Path) -> Path:
    """Runs `program` with `args` and `-o output`; returns the path of the file that it wrote.

    Raises BadInput (a folder that cannot be written, or what the program refuses), MachineCannot (it is not built) or
    CheckFailed (it ended without a file).
    """
    if missing_programs(bin_dir, (program,)):
        raise MachineCannot(f"{program} not found in {bin_dir}: `turbokv-eval build` (or `make build`) builds it")
    if not output.parent.is_dir():
        raise BadInput(f"cannot write {output}: there is no folder {output.parent}")
    done = runner.run([bin_dir / program, "-o", output, *args])
    if done.returncode != 0:
        said = [line for line in done.stderr.splitlines() if line.startswith("error:")]
        raise BadInput(said[-1].removeprefix("error:").strip() if said else f"{program} failed without a word")
    if not output.is_file():
        raise CheckFailed(f"{program} ended without writing {output}")
    return output
