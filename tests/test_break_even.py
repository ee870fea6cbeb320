"""The break-even of a cache type: counted by hand, and refused wherever a figure is missing."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from gguf_world import write_metadata
from test_gate import VERSION_1, row, run_of
from test_memory import PLAIN

from turbokv_eval.cli import main
from turbokv_eval.results.break_even import break_even
from turbokv_eval.results.reader import Number, Row, Speed

F16 = row("f16", speed=(Speed(0, Number(200.0), Number(100.0)), Speed(1000, Number(100.0), Number(50.0))))


def turbo(pp: tuple[float, float], tg: float | Number, label: str = "turbo3") -> Row:
    end = tg if isinstance(tg, Number) else Number(tg)
    return row(label, speed=(Speed(0, Number(pp[0]), Number(90.0)), Speed(1000, Number(pp[1]), end)))


def test_a_slower_prompt_is_repaid_by_faster_tokens() -> None:
    # Prompt of 1000 tokens: f16 1000 * (1/200 + 1/100)/2 = 7.5 s, turbo 1000 * (1/100 + 1/80)/2 = 11.25 s.
    # A token at that depth: 20 ms against 12.5 ms.
    found = break_even(run_of(F16, turbo((100, 80), 80)), "turbo3")
    assert found.depth == 1000
    assert found.prompt_seconds == pytest.approx(3.75)
    assert found.token_seconds == pytest.approx(0.0075)
    assert found.tokens == 500


def test_a_faster_prompt_and_faster_tokens_pay_at_once() -> None:
    assert break_even(run_of(F16, turbo((250, 250), 80)), "turbo3").tokens == 0


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (turbo((100, 80), 40), "generation is not faster at depth 1000: never"),
        (turbo((100, 80), Number(55, 45, 60)), None),
        (row("turbo3", speed=()), "speeds at depth 0 and at one more are needed"),
        (row("turbo3", speed=F16.speed[1:]), "speeds at depth 0 and at one more are needed"),
        (row("turbo3", speed=(Speed(0, None, Number(1)), Speed(1000, Number(1), Number(1)))), "a speed is missing"),
        (row("other"), "the run has no row turbo3"),
    ],
)
def test_no_number_without_its_figures(other: Row, why: str | None) -> None:
    found = break_even(run_of(F16, other), "turbo3")
    if why is None:
        assert found.tokens is not None  # f16 has no samples here, so nothing can overlap
    else:
        assert (found.tokens, found.reason) == (None, why)


def test_samples_that_overlap_show_no_difference() -> None:
    base = row("f16", speed=(F16.speed[0], Speed(1000, Number(100.0), Number(50, 48, 56))))
    found = break_even(run_of(base, turbo((100, 80), Number(60, 55, 65))), "turbo3")
    assert (found.tokens, found.reason) == (None, "no difference in generation is shown at depth 1000")


def test_no_baseline() -> None:
    assert break_even(run_of(turbo((1, 1), 1)), "turbo3").reason == "the run has no row f16"


def measured(speed: list[tuple[int, float, float]], label: str) -> dict[str, Any]:
    entries = [
        {"depth": depth, "prompt": rate(prompt), "generation": rate(generation)} for depth, prompt, generation in speed
    ]
    return {**VERSION_1["rows"][0], "label": label, "k": label, "v": label, "speed": entries}


def rate(value: float) -> dict[str, Any]:
    return {"rounds": [[value]], "median": value, "min": value, "max": value, "n": 1}


def test_the_command_takes_speeds_from_a_run(tmp_path: Path) -> None:
    model = write_metadata(tmp_path / "m.gguf", "llama", **PLAIN)
    rows = [
        measured([(0, 200, 100), (1000, 100, 50)], "f16"),
        measured([(0, 100, 90), (1000, 80, 80)], "turbo3"),
        measured([(0, 100, 90), (1000, 80, 40)], "q8_0"),
    ]
    document = {**VERSION_1, "rows": rows, "model": {**VERSION_1["model"], "bytes": model.stat().st_size}}
    (tmp_path / "compare.json").write_text(json.dumps(document), encoding="utf-8")
    args = ["memory", str(model), "--types", "f16,turbo3,q8_0,q4_0", "--run", str(tmp_path)]
    found = json.loads(CliRunner().invoke(main, [*args, "-o", "json"]).stdout)
    tokens = {entry["label"]: entry["break_even"]["tokens"] for entry in found["rows"]}
    assert tokens == {"f16": None, "turbo3": 500, "q8_0": None, "q4_0": None}
    table = CliRunner().invoke(main, args).stdout
    assert "break-even at 1000" in table
    assert "500 tokens" in table
    assert "q8_0: no break-even: generation is not faster at depth 1000: never" in table
    assert "q4_0: no break-even: the run has no row q4_0" in table
    document["model"]["bytes"] = 5
    (tmp_path / "compare.json").write_text(json.dumps(document), encoding="utf-8")
    result = CliRunner().invoke(main, args)
    assert (result.exit_code, "of another model" in result.stderr) == (2, True)


def test_without_a_run_the_reason_is_given(tmp_path: Path) -> None:
    model = write_metadata(tmp_path / "m.gguf", "llama", **PLAIN)
    found = json.loads(CliRunner().invoke(main, ["memory", str(model), "-o", "json"]).stdout)
    assert {entry["break_even"] for entry in found["rows"]} == {None}
    assert "no break-even: it needs measured speeds, from a comparison given with --run" in found["notes"]
