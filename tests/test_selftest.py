"""`compare --selftest`: a fault that the checks miss is a failure, and the real programs' faults are all noticed."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from compare_world import World, recorded

from turbokv_eval.cli import main
from turbokv_eval.comparison import selftest
from turbokv_eval.machine import assets
from turbokv_eval.output import selftest_table


def quantised() -> str:
    text = recorded("load-q8_0-turbo3.log").replace("turbo3_64", "q8_0").replace("turbo3", "q8_0")
    return text.replace(", rotated (turbo)", "").replace("attn_rot_v = 0", "attn_rot_v = 1")


def test_programs_that_hide_what_they_do_do_not_pass(tmp_path: Path) -> None:
    world = World(tmp_path)
    f16 = recorded("load-f16.log")
    replies = {"load_q8_0": quantised(), "load_q8_0-f16": f16, "load_f16-q8_0": quantised()}
    world.reply(**{key: {"text": text} for key, text in replies.items()})
    result = CliRunner().invoke(main, world.args("--selftest", "-o", "json"))
    found = {outcome["name"]: outcome["passed"] for outcome in json.loads(result.stdout)}
    # these programs log flash attention and rotation whatever is asked, and f16 for one q8_0
    assert found == {
        "nothing is wrong": True,
        "nothing is wrong, quantised": True,
        "K is another type": False,
        "V is another type": True,
        "flash attention is off": False,
        "keys are plain": True,
        "rotation is off": False,
    }
    assert result.exit_code == 1
    assert "3 of 7 controls failed (K is another type, flash attention is off, rotation is off)" in result.stderr
    assert not world.out.exists(), "a self-test is no comparison"


def test_a_model_that_does_not_load_proves_nothing(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.reply(load_f16={"text": "error: no such model\n", "rc": 1})
    result = CliRunner().invoke(main, world.args("--selftest"))
    assert result.exit_code == 1
    assert "the model did not load" in result.stdout


@pytest.mark.parametrize("form", ["table", "md", "csv"])
def test_outputs(form: str) -> None:
    text = selftest_table.render([selftest.Outcome("a", True, "b"), selftest.Outcome("c", None, "d")], form)
    assert [name in text for name in ("control", "pass", "b", "-")] == [True] * 4


@pytest.mark.live
def test_the_built_programs_are_caught() -> None:
    model = assets.fetch(assets.MODEL, print)
    result = CliRunner().invoke(main, ["compare", "--selftest", "-m", str(model)])
    assert result.exit_code == 0, result.output
    assert result.stdout.count("pass") == len(selftest.CONTROLS)
