"""`turbokv-eval condition` passes on what was asked, and turns the program's failures into one line."""

import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from compare_world import write_model

from turbokv_eval.cli import main

PROGRAM = """#!{python}
import sys
args = sys.argv[1:]
open({calls!r}, "w").write(" ".join(args))
if {fails}:
    sys.stderr.write("error: the keys of this model cannot be conditioned: values are a view of the keys\\n")
    sys.exit(1)
open(args[args.index("-o") + 1], "wb").write(b"GGUF")
"""


def fake(folder: Path, *, fails: bool = False) -> Path:
    program = folder / "llama-kv-condition"
    program.write_text(PROGRAM.format(python=sys.executable, calls=str(folder / "calls.txt"), fails=fails))
    program.chmod(0o755)
    return folder


def condition(tmp_path: Path, *args: str | Path) -> tuple[int, str, str]:
    model = write_model(tmp_path / "model.gguf")
    result = CliRunner().invoke(main, ["condition", str(model), "--bin", str(tmp_path), *map(str, args)])
    return result.exit_code, result.stdout, result.stderr


def test_the_file_is_written_and_named(tmp_path: Path) -> None:
    fake(tmp_path)
    code, out, _ = condition(tmp_path, "-o", tmp_path / "keys.gguf", "-n", "1024", "-s", "512", "-c", "4096", "-t", "1")
    assert (code, out) == (0, f"{tmp_path / 'keys.gguf'}\n")
    assert (tmp_path / "calls.txt").read_text().endswith("-t 1 -n 1024 -s 512 -c 4096")


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (("-o", "nowhere/keys.gguf"), 2, "there is no folder"),
        (("-o", "keys.gguf", "-f", "missing.txt"), 2, "cannot read the text"),
        (("-o", "keys.gguf"), 2, "values are a view of the keys"),
    ],
)
def test_failures_are_one_line(tmp_path: Path, args: tuple[str, ...], code: int, said: str) -> None:
    fake(tmp_path, fails=True)
    found, out, err = condition(tmp_path, *(tmp_path / arg if "." in arg else arg for arg in args))
    assert (found, out) == (code, "")
    assert said in err
    assert len(err.strip().splitlines()) == 1


def test_programs_that_are_not_built(tmp_path: Path) -> None:
    code, _, err = condition(tmp_path, "-o", tmp_path / "keys.gguf")
    assert code == 3
    assert "turbokv-eval build" in err
