"""`gate`: what passes, what fails, and that nothing unmeasured passes."""

import copy
import csv
import io
import json
import re
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from compare_world import whole

from turbokv_eval.cli import main
from turbokv_eval.errors import BadInput
from turbokv_eval.results import gate, reader
from turbokv_eval.results.reader import Needle, Number, Quality, Row, Run, Speed, Trajectory


def row(label: str, **changes: Any) -> Row:
    values: dict[str, Any] = {
        "label": label,
        "k": label,
        "v": label,
        "status": "ok",
        "errors": (),
        "conditioned": True,
        "bits": 3.25,
        "kv_bytes": 9 << 20,
        "cells": 2048,
        "rss_bytes": 600 << 20,
        "caches": (),
        "quality": (
            Quality(512, "a", 4, {"kld_mean": Number(0.08), "ppl": Number(21.0), "same_top": Number(83.0)}),
            Quality(4096, "a", 4, {"kld_mean": Number(0.11), "ppl": Number(19.0), "same_top": Number(80.0)}),
        ),
        "speed": (Speed(0, Number(300.0), Number(150.0)), Speed(4096, Number(240.0), Number(90.0))),
        "needle": (Needle(4096, 0, 5, 5, -1.0), Needle(4096, 50, 4, 5, -2.0), Needle(4096, 99, 0, 0, -9.0)),
        "trajectory": Trajectory(48, 8, 2, Number(20.5, 11.0, 29.0), Number(18.0), Number(83.0), Number(-9.0)),
        "commands": (),
    }
    return Row(**{**values, **changes})


F16 = row("f16", bits=16.0, speed=(Speed(0, Number(320.0), Number(160.0)), Speed(4096, Number(160.0), Number(60.0))))
TURBO = row("turbo3")


def run_of(*rows: Row, status: str = "complete") -> Run:
    return Run({}, rows, status, (), "f32")


def checked(text: str, tmp_path: Path, run: Run | None = None) -> dict[tuple[str, str], gate.Line]:
    file = tmp_path / "budgets.toml"
    file.write_text(text, encoding="utf-8")
    lines = gate.check(run or run_of(F16, TURBO), gate.read_budgets(file))
    return {(line.row, line.budget): line for line in lines}


@pytest.mark.parametrize(
    ("budget", "passes", "fails", "value", "where"),
    [
        ("max_kld", "0.11", "0.1099", "0.11", "context 4096"),
        ("max_ppl", "21", "20.9", "21", "context 512"),
        ("min_same_top", "80", "80.1", "80", "context 4096"),
        ("max_bits", "3.25", "3.2", "3.25", ""),
        ("max_kv", '"9MiB"', '"8MiB"', "9.00 MiB", ""),
        ("max_rss", '"600MiB"', "1000", "600 MiB", ""),
        ("min_tg", "90", "91", "90", "depth 4096"),
        ("min_pp", "240", "241", "240", "depth 4096"),
        ("min_tg_ratio", "0.9375", "0.94", "0.9375", "depth 0"),
        ("min_pp_ratio", "0.93", "0.94", "0.9375", "depth 0"),
        ("min_needle", "0.8", "0.81", "0.8", "context 4096, depth 50%"),
        ("min_greedy", "20.5", "20.6", "20.5", ""),
        ("max_ppl_ratio", "1.0", "0.99", "1", ""),
    ],
)
def test_each_budget_holds_the_worst_value(
    budget: str, passes: str, fails: str, value: str, where: str, tmp_path: Path
) -> None:
    for limit, passed in ((passes, True), (fails, False)):
        line = checked(f"[rows.turbo3]\n{budget} = {limit}\n", tmp_path)["turbo3", budget]
        assert (line.passed, line.value, line.where) == (passed, value, where)


def test_own_limits_come_before_common_ones_and_false_is_none(tmp_path: Path) -> None:
    text = "max_kld = 0.01\nmax_bits = 99\n[rows.turbo3]\nmax_kld = 0.2\n[rows.f16]\nmax_kld = false\n"
    lines = checked(text, tmp_path)
    assert lines["turbo3", "max_kld"].passed
    assert ("f16", "max_kld") not in lines
    assert lines["f16", "max_bits"].passed


@pytest.mark.parametrize("budget", sorted(gate.BUDGETS))
def test_what_was_not_measured_fails(budget: str, tmp_path: Path) -> None:
    bare = row("turbo3", bits=None, kv_bytes=None, rss_bytes=None, quality=(), speed=(), needle=(), trajectory=None)
    limit = 10**12 if budget.startswith("max") else 0
    line = checked(f"[rows.turbo3]\n{budget} = {limit}\n", tmp_path, run_of(F16, bare))["turbo3", budget]
    assert (line.passed, line.value, line.reason) == (False, None, "not measured")


def test_a_number_that_one_context_lacks_was_not_measured(tmp_path: Path) -> None:
    partly = row("turbo3", quality=(TURBO.quality[0], Quality(4096, "a", 4, {})))
    assert not checked("[rows.turbo3]\nmax_kld = 9\n", tmp_path, run_of(partly))["turbo3", "max_kld"].passed


def test_a_depth_that_only_the_baseline_has_was_not_measured(tmp_path: Path) -> None:
    shallow = row("turbo3", speed=TURBO.speed[:1])
    line = checked("[rows.turbo3]\nmin_tg_ratio = 0\n", tmp_path, run_of(F16, shallow))["turbo3", "min_tg_ratio"]
    assert not line.passed


def test_ratios_need_their_baseline(tmp_path: Path) -> None:
    line = checked("[rows.turbo3]\nmin_tg_ratio = 0\n", tmp_path, run_of(TURBO))["turbo3", "min_tg_ratio"]
    assert (line.passed, line.reason) == (False, "no row f16 to compare with (baseline)")
    own = checked('baseline = "turbo3"\n[rows.turbo3]\nmin_tg_ratio = 1\n', tmp_path, run_of(TURBO))
    assert own["turbo3", "min_tg_ratio"].passed


def test_a_failed_row_a_missing_row_and_a_run_that_did_not_end_fail(tmp_path: Path) -> None:
    broken = row("turbo3", status="failed", errors=("K was f16, not turbo3",))
    lines = checked("max_bits = 99\n[rows.turbo9]\nmax_kld = 1\n", tmp_path, run_of(F16, broken, status="interrupted"))
    assert lines["f16", "max_bits"].passed
    assert lines["turbo3", "-"].reason == "K was f16, not turbo3"
    assert "no such row; it has f16, turbo3" in lines["turbo9", "-"].reason
    assert lines["(run)", "-"].reason == "the comparison is interrupted, not complete"


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("max_kdl = 1", "unknown budget 'max_kdl': did you mean 'max_kld'"),
        (
            "[rows.turbo3]\nmin_tgratio = 1",
            r"\[rows.turbo3\] unknown budget 'min_tgratio': did you mean 'min_tg_ratio'",
        ),
        ("[turbo3]\nmax_kld = 1", "unknown budget 'turbo3'"),
        ("max_kld = '3'", "max_kld is '3', and must be a number"),
        ("max_kld = true", "max_kld is True, and must be a number"),
        ("max_rss = 'big'", "'big' is not a size"),
        ("max_rss = []", "must be a number of bytes or a size"),
        ("baseline = 3\nmax_kld = 1", "baseline must be a row's label"),
        ("[rows]\nturbo3 = 1", "rows.turbo3 is no table"),
        ("", "has no budget"),
        ("max_kld = ", "is not TOML"),
    ],
)
def test_a_wrong_file_is_one_line(text: str, why: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=why):
        checked(text, tmp_path)


def test_no_file(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="cannot read"):
        gate.read_budgets(tmp_path / "none.toml")


# documents


VERSION_1 = whole(
    {
        "schema_version": 1,
        "status": "complete",
        "settings": {"ctx": 512},
        "text": {"file": "wiki.txt"},
        "reference": {"type": "f32"},
        "notes": [],
        "rows": [
            {
                "label": "turbo3",
                "k": "turbo3",
                "v": "turbo3",
                "status": "ok",
                "errors": [],
                "kv": {
                    "conditioned": True,
                    "mib": 9.0,
                    "cells": 2048,
                    "caches": [
                        {"cells": 512, "streams": 4, "k_mib": 4.0, "v_mib": 4.0},
                        {"cells": 256, "streams": 4, "k_mib": 0.5, "v_mib": 0.5},
                    ],
                },
                "bits_per_value": 3.25,
                "quality": {
                    "chunks": 4,
                    "ppl": 21.2,
                    "ppl_err": 1.0,
                    "kld_mean": 0.0872,
                    "kld_err": 0.0017,
                    "kld_median": 0.06,
                    "kld_p99": 0.46,
                    "kld_p999": 0.97,
                    "kld_max": 1.44,
                    "same_top": 82.7,
                    "same_top_err": 0.7,
                    "rms_dp": 7.15,
                },
                "speed": [
                    {"depth": 0, "prompt": {"median": 366, "min": 358, "max": 370}, "generation": {"rounds": []}},
                ],
                "commands": [["llama-bench"]],
            }
        ],
    }
)


def test_a_document_of_version_1() -> None:
    run = reader.view(VERSION_1)
    [found] = run.rows
    assert found.bits == 3.25
    [quality] = found.quality
    assert (quality.ctx, quality.text, quality.numbers["kld_p99"]) == (512, "wiki.txt", Number(0.46))
    kld = quality.numbers["kld_mean"]
    assert (kld.low, kld.high) == (pytest.approx(0.0872 - 1.96 * 0.0017), pytest.approx(0.0872 + 1.96 * 0.0017))
    assert found.speed == (Speed(0, Number(366, 358, 370), None),)
    assert run.row("turbo3") is found
    # 8 MiB for 2048 tokens of the full layers, 1 MiB for the windows, which are full at 1024
    assert [found.bytes_at(ctx) for ctx in (512, 4096)] == [2.5 * (1 << 20), 17 * (1 << 20)]
    assert run.row("f16") is None


def test_what_is_no_comparison(tmp_path: Path) -> None:
    for content, why in (
        ("[]", "is no comparison"),
        ('{"rows": []}', "is no comparison"),
        ("nonsense", "is not JSON"),
        ('{"schema_version": 99, "rows": []}', "has schema version 99"),
        ('{"schema_version": 1, "rows": [1]}', "is damaged"),
    ):
        (tmp_path / "c.json").write_text(content, encoding="utf-8")
        with pytest.raises(BadInput, match=why):
            reader.load(tmp_path / "c.json")
    with pytest.raises(BadInput, match="cannot read"):
        reader.load(tmp_path)


# the command


def ran(tmp_path: Path, text: str, *more: str, document: Any = VERSION_1) -> Result:
    (tmp_path / "compare.json").write_text(json.dumps(document), encoding="utf-8")
    (tmp_path / "b.toml").write_text(text, encoding="utf-8")
    return CliRunner().invoke(main, ["gate", str(tmp_path), "--budgets", str(tmp_path / "b.toml"), *more])


def test_a_recorded_comparison_against_its_own_numbers(tmp_path: Path) -> None:
    recorded = Path(__file__).parent / "data" / "compare-1.json"
    document = json.loads(recorded.read_text(encoding="utf-8"))
    kld = max(found["quality"]["kld_mean"] for found in document["rows"])
    assert ran(tmp_path, f"max_kld = {kld}\nmin_tg = 1\n", document=document).exit_code == 0
    failed = ran(tmp_path, f"max_kld = {0.999 * kld}\n", document=document)
    assert failed.exit_code == 1
    [line] = [line for line in failed.stdout.splitlines() if "FAIL" in line]
    assert line.startswith("turbo2 ")


def test_exit_codes_and_outputs(tmp_path: Path) -> None:
    good = ran(tmp_path, "max_kld = 0.1\nmin_same_top = 80\n")
    assert good.exit_code == 0
    assert re.search(r"^turbo3 +max_kld +0\.1 +0\.0872 +pass", good.stdout, re.M)
    bad = ran(tmp_path, "max_kld = 0.05\nmax_rss = '1GiB'\n")
    assert bad.exit_code == 1
    assert re.search(r"^turbo3 +max_rss +1\.00 GiB +- +FAIL +not measured", bad.stdout, re.M)
    assert bad.stderr == "Error: 2 of 2 budgets failed\n"
    assert ran(tmp_path, "max_kdl = 1\n").exit_code == 2
    empty = ran(tmp_path, "max_kld = 1\n", document={**copy.deepcopy(VERSION_1), "rows": []})
    assert (empty.exit_code, "nothing was checked" in empty.stderr) == (1, True)


def test_machine_readable_outputs(tmp_path: Path) -> None:
    document = json.loads(ran(tmp_path, "max_kld = 0.05\n", "-o", "json").stdout)
    assert document["passed"] is False
    assert [line["budget"] for line in document["lines"]] == ["max_kld"]
    [line] = csv.DictReader(io.StringIO(ran(tmp_path, "max_kld = 0.1\n", "-o", "csv").stdout))
    assert (line["row"], line["value"], line["result"]) == ("turbo3", "0.0872", "pass")
    assert "| turbo3 | max_kld | 0.1 | 0.0872 |" in ran(tmp_path, "max_kld = 0.1\n", "-o", "md").stdout


def test_the_help_names_every_budget() -> None:
    text = CliRunner().invoke(main, ["gate", "--help"]).stdout
    assert set(re.findall(r"\b(?:max|min)_\w+", text)) == set(gate.BUDGETS)
