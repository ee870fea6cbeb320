"""The matrix on the built programs: it passes on one model, and every planted fault makes it exit with 1."""

import subprocess
from pathlib import Path

import pytest
from click.testing import CliRunner
from matrix.__main__ import main
from matrix.program import FAULTS
from zoo.catalogue import entries
from zoo.write import write_all

from turbokv_eval.programs import perplexity

pytestmark = pytest.mark.live

BIN = Path("build/cpu/bin")


def test_one_model_passes() -> None:
    result = CliRunner().invoke(main, ["--bin", str(BIN), "--model", "d80", "--no-faults"])
    assert result.exit_code == 0, result.output
    assert "12 cells ran, 6 refused, 0 planted faults" in result.output


@pytest.mark.parametrize("fault", FAULTS)
def test_a_planted_fault_exits_with_1(fault: str) -> None:
    result = CliRunner().invoke(main, ["--bin", str(BIN), "--model", "d128", "--plant", fault])
    assert result.exit_code == 1, result.output
    # in every one of its twelve cells
    assert result.stderr.count("error: d128: ") == 12, result.stderr


def test_perplexity_reads_the_zoo(tmp_path: Path) -> None:
    [model] = write_all([entry for entry in entries() if entry.name == "d96"], tmp_path)
    text = tmp_path / "text.txt"
    text.write_text("".join(chr(97 + i * i % 26) for i in range(4000)))
    argv = [str(BIN / perplexity.PROGRAM), "-m", str(model), "-f", str(text), "-c", "256", "-ctk", "turbo3"]
    done = subprocess.run([*argv, "-ctv", "turbo3"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert perplexity.parse_reference(done.stdout + done.stderr, 256) is not None
