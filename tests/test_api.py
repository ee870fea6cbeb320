"""`from turbokv_eval import compare, KVConfig`: what the command line gives, as values."""

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from compare_world import World

from turbokv_eval import KVConfig, compare
from turbokv_eval.cli import main
from turbokv_eval.errors import BadInput, MachineCannot


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_it_gives_what_the_command_line_writes(world: World, capsys: pytest.CaptureFixture[str]) -> None:
    types = ["f16", KVConfig("q8_0", "turbo3"), "turbo2"]
    found = compare(
        world.model, types, text=world.text, chunks=4, depths=[0], rounds=2, run=world.out, bin_dir=world.bin
    )
    assert capsys.readouterr() == ("", "")
    assert (found.status, found.labels) == ("complete", ["f16", "q8_0/turbo3", "turbo2"])
    assert found.document == world.document
    [quality] = found.rows[1].quality
    assert quality.numbers["kld_mean"].value == 0.022344
    done = len(world.calls)
    assert CliRunner().invoke(main, world.generating()).exit_code == 0
    assert world.document["rows"] == found.document["rows"]
    assert len(world.calls) == done, "the command line took up the run of the function"


def test_failed_rows_are_returned_not_raised(world: World) -> None:
    world.reply(quality_turbo2={"text": "GGML_ASSERT(x) failed\n", "rc": 134})
    found = compare(world.model, "f16,turbo2", text=world.text, chunks=4, speed=False, run=world.out, bin_dir=world.bin)
    assert found.status == "failed"
    assert "GGML_ASSERT" in found.rows[1].errors[0]


def test_what_it_raises(world: World, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="unknown cache type 'f17'"):
        compare(world.model, ["f17"], text=world.text, run=world.out, bin_dir=world.bin)
    with pytest.raises(BadInput, match="leaves nothing to do"):
        compare(world.model, quality=False, speed=False, run=world.out, bin_dir=world.bin)
    with pytest.raises(MachineCannot, match="turbokv-eval build"):
        compare(world.model, text=world.text, run=world.out, bin_dir=tmp_path)


def test_the_package_itself_loads_nothing_heavy() -> None:
    code = "import sys, turbokv_eval; print(sorted({'numpy', 'pandas', 'scipy', 'click'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
