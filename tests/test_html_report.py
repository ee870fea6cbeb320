"""The HTML report: complete, self-contained, and never empty. A browser looks at it in ci/report-check.sh."""

import base64
import errno
import json
import os
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from test_gate import VERSION_1, row

from turbokv_eval.cli import main
from turbokv_eval.output import html_report
from turbokv_eval.output.html_report import needle_plot, plots
from turbokv_eval.results import reader
from turbokv_eval.results.reader import Cache, Needle, Number, Quality, Run, Speed

_VOID = {"meta", "link", "br", "img", "hr", "input"}


class Page(HTMLParser):
    """Checks nesting, and keeps what the tests ask for."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: list[str] = []
        self.links: list[dict[str, str | None]] = []
        self.tags: list[str] = []
        self.cells: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        found = dict(attrs)
        if found.get("id"):
            self.ids.append(str(found["id"]))
        if tag == "a":
            self.links.append(found)
        if tag not in _VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.ids += [str(value) for name, value in attrs if name == "id"]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in ("td", "th"):
            self.cells.append(data.strip())


def full_run(**changes: Any) -> Run:
    """Two contexts, two depths, needles, windows: every part of the page has something to show."""
    caches = (Cache(2048, 9 << 20, False), Cache(512, 1 << 20, True))
    rows = [
        row("f16", bits=16.0, kv_bytes=45 << 20, caches=caches, needle=(), trajectory=None),
        row("turbo3", caches=caches),
        row("q8_0/turbo3", bits=5.875, caches=caches, quality=row("x").quality[:1]),
    ]
    document = {
        **VERSION_1,
        "command": ["turbokv-eval", "compare", "-f", "my text.txt"],
        "model": {"n_ctx_train": 8192},
    }
    values: dict[str, Any] = {
        "document": document,
        "rows": tuple(rows),
        "status": "complete",
        "notes": ("a note",),
        "reference": "f32 cache",
        "recommendation": "Use turbo3.",
        **changes,
    }
    return Run(**values)


def test_every_part_of_the_page_is_there() -> None:
    text = html_report.render(full_run())
    page = Page(text)
    assert {"tables", "plots", "needle", "provenance", "commands", "data"} <= set(page.ids)
    # five plots and one needle map
    assert page.tags.count("svg") == 6
    assert "No plot" not in text
    assert "Use turbo3." in text
    assert "a note" in text
    # tables of size, two qualities, trajectory, speed and needles
    assert page.tags.count("table") == 6
    for number in ("0.0800", "0.1100", "16.000", "4 of 5", "no evidence", "20.5 ±9.0", "2 of 8", "240", "90.0"):
        assert number in page.cells
    assert "turbokv-eval compare -f &#39;my text.txt&#39;" in text


def test_the_page_loads_nothing_and_no_id_is_used_twice() -> None:
    text = html_report.render(full_run())
    page = Page(text)
    assert len(page.ids) == len(set(page.ids))
    assert not {"script", "img", "iframe", "object"} & set(page.tags)
    for found in re.findall(r'(?:href|src)="([^"]*)"|url\(([^)]*)\)', text):
        target = "".join(found)
        assert target.startswith(("#", "data:")), target
        if target.startswith("#"):
            assert target[1:] in page.ids, target


def test_the_plots_take_their_colours_from_the_page() -> None:
    for plot in plots.all_plots(full_run()):
        colors = set(re.findall(r"#[0-9a-f]{6}", plot.svg))
        assert colors == set(), plot.name
        assert 'role="img"' in plot.svg
        assert f'<title id="{plot.name}-title">' in plot.svg


def test_the_download_is_the_document() -> None:
    run = full_run()
    [link] = [link for link in Page(html_report.render(run)).links if link.get("download")]
    href = str(link["href"])
    assert href.startswith("data:application/json;base64,")
    assert json.loads(base64.b64decode(href.partition(",")[2])) == run.document


def test_the_same_document_gives_the_same_page() -> None:
    assert html_report.render(full_run()) == html_report.render(full_run())


def test_nothing_measured_is_said_and_not_left_empty() -> None:
    bare = row("turbo3", bits=None, kv_bytes=None, cells=None, quality=(), speed=(), needle=(), trajectory=None)
    text = html_report.render(full_run(rows=(bare,), notes=(), recommendation=""))
    Page(text)
    assert text.count("No plot: ") == 5
    assert "Not measured in this comparison." in text
    assert "Recommendation" not in text


def test_failures_come_before_the_tables_and_text_is_escaped() -> None:
    broken = row("turbo3", status="failed", errors=("K was <f16> & not turbo3",))
    text = html_report.render(full_run(rows=(broken,), status="interrupted"))
    assert "K was &lt;f16&gt; &amp; not turbo3" in text
    assert text.index("This comparison is interrupted") < text.index('id="tables"')


def test_a_recorded_comparison_is_shown_whole() -> None:
    run = reader.load(Path(__file__).parent / "data" / "compare-1.json")
    text = html_report.render(run)
    page = Page(text)
    turbo3 = next(found for found in run.document["rows"] if found["label"] == "turbo3")
    cells = set(page.cells)
    half = 1.959964 * turbo3["quality"][0]["kld_err"]
    assert f"{turbo3['quality'][0]['kld_mean']:.4f} ±{half:.4f}" in cells
    assert f"{turbo3['kv']['mib']:.2f}" in cells
    for row_document in run.document["rows"]:
        for entry in row_document["speed"]:
            assert any(cell.startswith(f"{entry['generation']['median']:.0f} (") for cell in cells) or any(
                cell.startswith(f"{entry['generation']['median']:.1f} (") for cell in cells
            )
    assert run.document["model"]["sha256"] in text
    # one context only: every other plot is there
    assert (page.tags.count("svg"), text.count("No plot: ")) == (4, 1)


# the numbers behind the plots


def test_the_front_is_what_nothing_beats_in_both() -> None:
    points = [
        (2.25, 0.4, "a"),
        (3.25, 0.09, "b"),
        (3.25, 0.18, "c"),
        (4.5, 0.04, "d"),
        (4.25, 0.03, "e"),
        (16, 0.03, "f"),
    ]
    assert plots.pareto_front(points) == ["a", "b", "e"]
    assert plots.pareto_front([]) == []


def test_a_failed_row_is_not_on_the_front() -> None:
    rows = (row("turbo3", errors=("no",)), row("q8_0", bits=8.5))
    assert [label for _, _, label in plots.front_points(full_run(rows=rows))] == ["q8_0"]


@pytest.mark.parametrize(
    ("plot", "rows", "why"),
    [
        (plots.kld_against_context, (row("a", quality=row("a").quality[:1]),), "measured at 512 tokens only"),
        (plots.memory_against_context, (row("a"),), "no row tells how its cache grows"),
        (plots.kld_against_bits, (row("a"),), "fewer than two rows"),
        (lambda run: plots.speed_against_depth(run, "tg", "t"), (row("a", speed=()),), "measured nowhere"),
    ],
)
def test_a_plot_without_data_says_what_is_missing(plot: Any, rows: Any, why: str) -> None:
    found = plot(full_run(rows=rows))
    assert (found.svg, why in found.missing) == ("", True)


def test_a_window_grows_to_its_end_and_no_further() -> None:
    grown = row("a", caches=(Cache(2048, 2048, False), Cache(512, 512, True)))
    assert [grown.bytes_at(ctx) for ctx in (256, 512, 4096)] == [512, 1024, 4608]
    # A window as large as the context was may grow: unknown.
    assert row("a", caches=(Cache(512, 1, False), Cache(512, 1, True))).bytes_at(1024) is None
    assert row("a").bytes_at(1024) is None


def test_needle_cells_lie_where_they_were_measured() -> None:
    needles = (Needle(1024, 0, 5, 5, -1.0), Needle(2048, 50, 2, 5, -2.0), Needle(2048, 75, 0, 0, -3.0))
    run = full_run(rows=(row("a", needle=needles),), needle_reference=(Needle(2048, 50, 5, 6, -1.5),))
    assert needle_plot.needle_contexts(run) == [1024, 2048]
    table = html_report.needle_table(run, 2048)
    assert table.heads[1:3] == ["50%", "75%"]
    assert [row[:3] for row in table.rows] == [["f32, of all", "5 of 6", "\N{EN DASH}"], ["a", "2 of 5", "no evidence"]]
    plot = needle_plot.heat_map(run, 2048)
    assert [mark in plot.svg for mark in ("40%", "75%", "100%")] == [True, True, False]
    assert re.findall(r"#[0-9a-f]{6}", plot.svg) == []


def test_numbers_are_shown_with_half_their_interval() -> None:
    quality = (Quality(512, "a", 4, {"kld_mean": Number(0.1, 0.08, 0.12)}),)
    rows = (row("a", quality=quality, speed=(Speed(0, Number(99.94, 90, 120), None),)),)
    cells = Page(html_report.render(full_run(rows=rows))).cells
    assert "0.1000 ±0.0200" in cells
    assert "99.9 (90.0\N{EN DASH}120.0)" in cells


# the command


def ran(folder: Path, *args: str) -> Result:
    (folder / "compare.json").write_text(json.dumps(VERSION_1), encoding="utf-8")
    return CliRunner().invoke(main, ["report", str(folder / "compare.json"), *args])


def test_the_command_writes_the_page_and_prints_its_path(tmp_path: Path) -> None:
    result = ran(tmp_path, "-o", str(tmp_path / "r.html"))
    assert (result.exit_code, result.stdout) == (0, f"{tmp_path / 'r.html'}\n")
    text = (tmp_path / "r.html").read_text(encoding="utf-8")
    assert text == html_report.render(reader.view(VERSION_1))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["compare.json", "r.html"]


def test_a_folder_that_is_not_there_and_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result = ran(tmp_path, "-o", str(tmp_path / "no" / "r.html"))
    assert (result.exit_code, "give another path with -o" in result.stderr) == (2, True)
    (tmp_path / "r.html").write_text("old")

    def full(*_: object, **__: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(Path, "replace", full)
    result = ran(tmp_path, "-o", str(tmp_path / "r.html"))
    assert (result.exit_code, "the disk is full" in result.stderr) == (3, True)
    assert (tmp_path / "r.html").read_text() == "old"
    assert not (tmp_path / "r.html.part").exists()
