"""The tables are a function of the document: numbers are shown whole, whatever the width, and failures stand out."""

import copy
import io
import math
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
from click.testing import CliRunner
from compare_world import World
from rich.console import Console

from turbokv_eval.cli import main
from turbokv_eval.output import report
from turbokv_eval.results import attention_time


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    world = World(Path(tmp_path_factory.mktemp("report")))
    assert CliRunner().invoke(main, world.args()).exit_code == 0
    return world.document


def test_frames_hold_the_numbers_unrounded(document: dict[str, Any]) -> None:
    quality = report.quality_frame(document).set_index("type")
    assert quality.loc["q8_0/turbo3", "kld_mean"] == 0.022344
    speed = report.speed_frame(document)
    assert set(speed["kind"]) == {"prompt", "generation"}
    assert len(speed) == 3 * 2


def test_same_document_same_text(document: dict[str, Any]) -> None:
    assert report.as_text(document) == report.as_text(document)


@pytest.mark.parametrize("width", [20, 80, 200])
def test_no_cell_is_cut(document: dict[str, Any], width: int) -> None:
    out = io.StringIO()
    report.print_to(Console(file=out, width=width), document)
    text = out.getvalue()
    assert "…" not in text
    for cell in ("0.0223", "18.12", "+0.11", "92.2 ±0.8", "q8_0/turbo3", "99.9%", "median"):
        assert cell in text


def test_the_default_table_fits_120_columns(document: dict[str, Any]) -> None:
    assert max(map(len, report.as_text(document).splitlines())) <= 120


def test_a_failed_row_shows_its_reason_and_no_numbers(document: dict[str, Any]) -> None:
    failed = {**document["rows"][1], "status": "failed", "errors": ["K was f16, not turbo3"], "quality": []}
    text = report.as_text({**document, "rows": [document["rows"][0], failed]})
    assert "q8_0/turbo3 FAILED" in text
    assert "FAILED q8_0/turbo3: K was f16, not turbo3" in text
    assert "0.0223" not in text


def test_footer_names_reference_and_notes(document: dict[str, Any]) -> None:
    text = report.as_text({**document, "notes": ["a remark"], "status": "interrupted"})
    assert "Reference: f32 cache without flash attention" in text
    assert "Note: a remark." in text
    assert "Status: interrupted" in text


def test_partial_document_is_never_an_error(document: dict[str, Any]) -> None:
    rows = [
        {**row, "status": "pending", "kv": None, "bits_per_value": None, "quality": [], "speed": []}
        for row in document["rows"]
    ]
    partial = {**document, "status": "interrupted", "evaluations": [], "rows": rows}
    assert pd.isna(report.quality_frame(partial)["kv_mib"]).all()
    text = report.as_text(partial)
    assert "q8_0/turbo3" in text


def test_attention_time_is_what_a_depth_adds_over_f16s(document: dict[str, Any]) -> None:
    def speed(depth: int, rate: float) -> dict[str, Any]:
        side = {"rounds": [[rate]], "median": rate, "min": rate, "max": rate, "n": 1}
        return {"depth": depth, "prompt": side, "generation": side}

    document = copy.deepcopy(document)
    rows = {row["label"]: row for row in document["rows"]}
    rows["f16"]["speed"] = [speed(0, 100.0), speed(4096, 50.0)]  # 10 ms, then 20
    rows["q8_0/turbo3"]["speed"] = [speed(0, 125.0), speed(4096, 100.0)]  # 8 ms, then 10
    rows["turbo2"]["speed"] = [speed(0, 100.0), speed(4096, 101.0)]  # noise
    lines = report.as_text(document).splitlines()
    first = next(i for i, line in enumerate(lines) if "attention time," in line)
    found = {line.split()[0]: line.split()[1:] for line in lines[first + 3 : first + 3 + len(document["rows"])]}
    assert (found["f16"], found["q8_0/turbo3"], found["turbo2"]) == (["1.00"] * 2, ["0.20"] * 2, ["-"] * 2)
    # A depth 0 that was disturbed in one of two rounds: the medians are the same, and the interval says it.
    rows["q8_0/turbo3"]["speed"][0]["generation"] = {"rounds": [[125.0, 125.0], [125.0, 101.0]], "median": 125.0}
    found_ratio = attention_time.ratio(rows["q8_0/turbo3"], rows["f16"], 4096, "generation")
    assert found_ratio is not None
    assert (round(found_ratio.value, 2), round(found_ratio.lo, 2), round(found_ratio.hi, 2)) == (0.2, 0.01, 0.2)
    # It may be that f16 spent no time at all.
    rows["f16"]["speed"][0]["generation"] = {"rounds": [[100.0], [100.0], [40.0]], "median": 100.0}
    found_ratio = attention_time.ratio(rows["q8_0/turbo3"], rows["f16"], 4096, "generation")
    assert found_ratio is not None
    assert found_ratio.hi == math.inf
    rows["f16"]["speed"].pop()
    assert "attention time" not in report.as_text(document).split("Speed:")[0]


def test_markdown_has_the_cells_of_the_tables(document: dict[str, Any]) -> None:
    text = report.as_markdown(document)
    rows = [line for line in text.splitlines() if line.startswith("|")]
    assert {line.count("|") for line in rows if "f16" in line or "turbo2" in line} == {line.count("|") for line in rows}
    cells = {cell.strip() for line in rows for cell in line.split("|")}
    for row in document["rows"]:
        assert {row["label"], f"{row['quality'][0]['kld_median']:.4f}", f"{row['quality'][0]['kld_max']:.2f}"} <= cells
    assert "\n\n" in text
    assert report.as_markdown(document) == text
