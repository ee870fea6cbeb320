"""`turbokv-eval perplexity`: the program's digits, and nothing but the cache that was asked for."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from compare_world import World, recorded

from turbokv_eval.cli import main

FLASH = "flash_attn            = enabled"


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def log(cache: str = "quality-f16.log") -> str:
    """A plain run: the cache of one recorded log, the estimate of another."""
    start, end = recorded(cache), recorded("reference.log")
    return start[: start.index("kl_divergence: computing")] + "\n" + end[end.index("perplexity: calculating") :]


def invoke(world: World, *more: str) -> Result:
    args = ["perplexity", world.model, "-f", world.text, "--bin", world.bin, "--type", "f16", "--chunks", "4", *more]
    return CliRunner().invoke(main, list(map(str, args)))


@pytest.mark.parametrize("form", ["table", "md", "csv", "json"])
def test_digits_are_the_programs(world: World, form: str) -> None:
    world.reply(plain_f16={"text": log()})
    result = invoke(world, "-o", form)
    assert result.exit_code == 0, result.output
    line = next(line for line in recorded("reference.log").splitlines() if "Final estimate" in line)
    ppl, error = line.split("PPL = ")[1].split(" +/- ")
    if form == "json":
        found = json.loads(result.stdout)
        assert (found["ppl"], found["ppl_err"], found["chunks"]) == (float(ppl), float(error), 4)
    else:
        assert ppl in result.stdout
        assert error in result.stdout


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        (log("quality-turbo2.log"), 1, "K was turbo2, not f16"),
        (log().replace(FLASH, FLASH.replace("enabled", "disabled")), 1, "flash attention was disabled"),
        ("0.00.001.000 E llama_load: cannot load the model\n", 1, "cannot load the model"),
        (recorded("failed-too-short.log"), 2, "too short"),
    ],
)
def test_a_run_that_is_not_what_was_asked(world: World, text: str, code: int, said: str) -> None:
    world.reply(plain_f16={"text": text, "rc": 1 if "Final" not in text else 0})
    result = invoke(world)
    assert result.exit_code == code, result.output
    assert said in result.stderr
    assert result.stdout == ""


def test_one_type_only(world: World) -> None:
    result = invoke(world, "--type", "f16,turbo2")
    assert result.exit_code == 2
    assert "takes one cache type" in result.stderr
