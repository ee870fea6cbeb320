"""What holds for every command: the form of its help, and of its result on stdout."""

import csv
import io
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.testing import CliRunner
from compare_world import World, fails, recorded
from lab_world import write_capture

from turbokv_eval.cli import main
from turbokv_eval.output import tabular
from turbokv_eval.results import reader


def walk(command: click.Command = main, *path: str) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Every command and group, with the words that call it."""
    yield path, command
    if isinstance(command, click.Group):
        for name, sub in command.commands.items():
            yield from walk(sub, *path, name)


COMMANDS = dict(walk())
TABULAR = [
    path
    for path, command in COMMANDS.items()
    if any(isinstance(p.type, click.Choice) and tuple(p.type.choices) == tabular.FORMATS for p in command.params)
]


def test_the_commands_are_found() -> None:
    named = {"build", "compare", "bench", "needle", "perplexity", "memory", "condition", "report", "gate", "doctor"}
    assert {path[0] for path in COMMANDS if path} == named | {"lab"}
    tables = {
        "compare",
        "bench",
        "needle",
        "perplexity",
        "memory",
        "gate",
        "doctor",
        "lab theory",
        "lab methods",
        "lab attention",
    }
    assert {" ".join(path) for path in TABULAR} == tables


@pytest.mark.parametrize("path", COMMANDS, ids=lambda path: " ".join(path) or "turbokv-eval")
def test_help_starts_with_examples_and_ends_with_exit_codes(path: tuple[str, ...]) -> None:
    result = CliRunner().invoke(main, [*path, "--help"], prog_name="turbokv-eval")
    assert result.exit_code == 0
    first, example, *lines = result.stdout.splitlines()
    assert first == "Example:"
    assert example.startswith(f"  turbokv-eval {' '.join(path)}".rstrip() + " " * (not path))
    assert "" in lines[:4], "a blank line ends the examples"
    assert any(line.startswith("Usage: ") for line in lines)
    said = re.sub(r"\s+", " ", result.stdout[result.stdout.index("Exit codes:") :])
    assert re.fullmatch(r"Exit codes: 0 ok; 1 [^;]+; 2 bad usage or input; 3 [^;]+; 130 interrupted\. ?", said)


@pytest.mark.parametrize("path", COMMANDS, ids=lambda path: " ".join(path) or "turbokv-eval")
def test_examples_are_command_lines(path: tuple[str, ...]) -> None:
    """Parses every example of this program, options, values and all, without running it."""
    examples = getattr(COMMANDS[path], "examples", ())
    calls = [call.strip() for line in examples for call in line.split("&&")]
    own = [call for call in calls if call.startswith("turbokv-eval ")]
    assert own
    for call in own:
        context, command, words = click.Context(main), main, shlex.split(call)[1:]
        while isinstance(command, click.Group):
            found = command.get_command(context, words.pop(0))
            assert found is not None, call
            command = found
        assert isinstance(command, click.Command)
        command.make_context("example", words, parent=context).close()


def test_ctrl_c_ends_any_command_with_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(path: Path) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(reader, "load", stopped)
    fails(CliRunner().invoke(main, ["report", "compare.json"]), 130, "stopped")


@pytest.fixture(scope="module")
def arguments(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, ...], list[str]]:
    """What each command with a table is called with, but for its form."""
    root = tmp_path_factory.mktemp("commands")
    world = World(root)
    start, end = recorded("quality-f16.log"), recorded("reference.log")
    log = start[: start.index("kl_divergence: computing")] + "\n" + end[end.index("perplexity: calculating") :]
    world.reply(plain_f16={"text": log})
    budgets = root / "budgets.toml"
    budgets.write_text("max_kld = 10\n", encoding="utf-8")
    measured = Path(__file__).parent / "data" / "compare-1.json"
    compare = world.args("--no-speed")
    found: dict[tuple[str, ...], list[object]] = {
        ("compare",): compare[1:],
        ("bench",): ["-m", world.model, "--bin", world.bin, "--run", root / "bench", "--types", "f16", "--depths", "0"],
        ("needle",): [world.model, "-f", world.text, "--bin", world.bin, "--run", root / "needle", "--types", "f16"],
        ("perplexity",): [world.model, "-f", world.text, "--bin", world.bin, "--type", "f16", "--chunks", 4],
        ("memory",): [world.model, "--ctx", 512],
        ("gate",): [measured, "--budgets", budgets],
        ("doctor",): ["--bin", world.bin],
        ("lab", "theory"): ["--dims", 64, "--bits", 1, "--draws", 2, "--rows", 20],
        ("lab", "methods"): [],
        ("lab", "attention"): [write_capture(root / "capture.gguf"), "--methods", "uniform-3", "--queries", 16],
    }
    return {path: list(map(str, args)) for path, args in found.items()}


@pytest.mark.parametrize("form", tabular.FORMATS)
@pytest.mark.parametrize("path", TABULAR, ids=" ".join)
def test_stdout_is_the_result_and_nothing_else(
    path: tuple[str, ...], form: str, arguments: dict[tuple[str, ...], list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("FORCE_COLOR", raising=False)
    result = CliRunner().invoke(main, [*path, *arguments[path], "-o", form])
    # a claim of the paper that 20 vectors do not show; programs that `doctor` misses
    assert result.exit_code in {("lab", "theory"): (0, 1), ("doctor",): (3,)}.get(path, (0,)), result.stderr
    assert "\x1b" not in result.stdout
    if path in (("compare",), ("bench",), ("needle",)):
        assert "[1/" in result.stderr
        assert "[1/" not in result.stdout
    if form == "json":
        assert json.loads(result.stdout)
    elif form == "csv":
        head, *rows = csv.reader(io.StringIO(result.stdout))
        assert rows
        assert len(head) > 1
        assert {len(row) for row in rows} == {len(head)}
    elif form == "md":
        assert re.search(r"^\| :?---.* \|\n\| .* \|$", result.stdout, re.MULTILINE)
    else:
        assert result.stdout.strip()
        assert not re.search(r"^\| ---", result.stdout, re.MULTILINE)
