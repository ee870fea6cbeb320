"""Several texts and contexts in one comparison: each has its own reference, and nothing is compared across them."""

import copy
import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from compare_world import World, fails, invoke

from turbokv_eval import compare
from turbokv_eval.cli import main
from turbokv_eval.errors import BadInput
from turbokv_eval.output import html_report, report
from turbokv_eval.results import chunk_statistics, reader


def several(world: World, *more: str) -> list[str]:
    other = world.root / "other.txt"
    other.write_text("Another sentence. " * 900, encoding="utf-8")
    return world.args("--no-speed", "--contexts", "512,256", "-f", str(other), *more)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    world = World(Path(tmp_path_factory.mktemp("several")))
    result = CliRunner().invoke(main, several(world))
    assert result.exit_code == 0, result.output
    return world


def test_every_text_at_every_context(world: World) -> None:
    document = world.document
    places = [(0, 512), (0, 256), (1, 512), (1, 256)]
    assert [(entry["text"], entry["ctx"]) for entry in document["evaluations"]] == places
    for row in document["rows"]:
        assert [(quality["text"], quality["ctx"]) for quality in row["quality"]] == places
    f16 = document["rows"][0]["quality"]
    assert [quality["kld_mean"] for quality in f16] == [0.003194, f16[1]["kld_mean"]] * 2
    assert f16[1]["kld_mean"] != 0.003194
    assert [entry["reference"]["ppl"] for entry in document["evaluations"]] == [18.0036, 20.0658] * 2
    # each reference is made, used and deleted before the next
    one = ["reference f32", "quality f32", "quality f16", "quality q8_0-turbo3", "quality turbo2"]
    assert world.calls[3:] == one * 4
    assert not list(world.out.glob("reference-logits*"))


def test_the_family_is_declared_before_the_run_and_corrected_over_all(world: World) -> None:
    document = world.document
    family = [["q8_0/turbo3", "f16"], ["turbo2", "f16"], ["turbo2", "q8_0/turbo3"]]
    assert document["family"] == family
    for entry in document["evaluations"]:
        assert [[found["a"], found["b"]] for found in entry["differences"]] == family
        # 4 chunks give p = 2/16 at the least, and there are 12 tests
        assert all(found["p_holm"] == 1.0 and not found["shown"] for found in entry["differences"])


def test_the_same_again_runs_nothing_and_one_context_is_taken_out_of_it(world: World) -> None:
    before = len(world.calls)
    assert invoke(*several(world)).exit_code == 0
    assert len(world.calls) == before
    assert invoke(*world.args("--no-speed", "--contexts", "512")).exit_code == 0
    # text 1 at context 512 is known
    assert len(world.calls) == before
    assert invoke(*several(world)).exit_code == 0
    assert len(world.calls) == before


def test_tables_and_csv_have_all_of_them(world: World) -> None:
    text = report.as_text(world.document)
    for heading in ("text.txt, 4 chunks of 512 tokens", "other.txt, 4 chunks of 256 tokens"):
        assert f"\n{heading}\n" in text
    assert text.count("noise floor") == 2 * 4
    assert max(map(len, text.splitlines())) <= 120
    rows = list(csv.DictReader(io.StringIO(report.as_csv(world.document))))
    assert [(row["text"], row["ctx"]) for row in rows[:4]] == [
        ("text.txt", "512"),
        ("text.txt", "256"),
        ("other.txt", "512"),
        ("other.txt", "256"),
    ]
    assert rows[0]["kld_mean"] == "0.003194"
    assert float(rows[0]["dppl_low"]) < float(rows[0]["dppl"]) < float(rows[0]["dppl_high"])


def test_the_report_has_the_plot_over_contexts(world: World) -> None:
    run = reader.view(world.document)
    page = html_report.render(run)
    assert "Mean KL divergence at 256 and 512 tokens of context" in page
    assert page.count("<caption><span>Quality: ") == 4
    assert len(set(run.noise_floors)) == 4


def test_the_recommendation_holds_at_the_worst_of_them(world: World) -> None:
    document = world.document
    worst = max(quality["kld_mean"] for quality in document["rows"][1]["quality"])
    assert document["recommendation"]["label"] == "q8_0/turbo3"
    assert f"(KLD {worst:.4f}" in document["recommendation"]["text"]
    assert "Measured at contexts 512, 256 on these 2 texts only." in document["recommendation"]["text"]


def test_from_python(world: World) -> None:
    found = compare(
        world.model,
        "f16",
        text=[world.text, world.root / "other.txt"],
        ctx=[512, 256],
        chunks=4,
        speed=False,
        run=world.root / "python",
        bin_dir=world.bin,
    )
    assert [(quality.text, quality.ctx) for quality in found.rows[0].quality] == [
        ("text.txt", 512),
        ("text.txt", 256),
        ("other.txt", 512),
        ("other.txt", 256),
    ]


@pytest.mark.parametrize("change", [{"chunks": 3}, {"ctx": 1024}, {"text": 1, "ctx": 1024}])
def test_rows_that_differ_in_text_context_or_chunks_are_refused(world: World, change: dict[str, Any]) -> None:
    document = copy.deepcopy(world.document)
    document["rows"][1]["quality"][0] |= change
    with pytest.raises(BadInput, match=r"damaged \(q8_0/turbo3 has .* unlike the reference\)"):
        reader.view(document)


@pytest.mark.parametrize("contexts", ["", "8", "512,512", "a"])
def test_bad_contexts(world: World, contexts: str) -> None:
    fails(invoke(*world.args("--contexts", contexts)), 2, "--contexts")


def test_bad_types_of_single_layers(world: World) -> None:
    for types, said in (
        ("turbo3+", "behind . stand types of single layers"),
        ("turbo3+0-1", "is no rule for layers"),
        ("turbo3+0-1:q9", "unknown cache type 'q9'"),
        ("f16,turbo3+40:q8_0", "layer 40 does not exist: the model has layers 0 to 29"),
    ):
        fails(invoke(*world.args("--types", types)), 2, said)


# statistics, on documents made up for them


def entry(document: dict[str, Any], chunks: int) -> dict[str, Any]:
    found: dict[str, Any] = document["evaluations"][0]
    found["reference"]["chunks"] = chunks
    return found


def with_chunks(document: dict[str, Any], kld: dict[str, list[float]]) -> dict[str, Any]:
    """The document, of one evaluation, with these divergences of single chunks."""
    found = copy.deepcopy(document)
    found["evaluations"] = found["evaluations"][:1]
    for row in found["rows"]:
        row["quality"] = row["quality"][:1]
        if row["label"] in kld:
            row["quality"][0]["by_chunk"]["kld"] = kld[row["label"]]
            row["quality"][0]["chunks"] = len(kld[row["label"]])
    entry(found, len(next(iter(kld.values()))))
    chunk_statistics.add_differences(found)
    as_read: dict[str, Any] = json.loads(json.dumps(found))
    return as_read


def test_rows_that_are_not_told_apart_are_marked(world: World) -> None:
    base = [0.01 + 0.001 * (i % 5) for i in range(12)]
    noise = [kld + (0.0005 if i % 2 else -0.0005) for i, kld in enumerate(base)]
    document = with_chunks(world.document, {"f16": base, "q8_0/turbo3": noise, "turbo2": [kld + 0.3 for kld in base]})
    assert [found["shown"] for found in entry(document, 12)["differences"]] == [False, True, True]
    lines = [line for line in report.as_text(document).splitlines() if "~ " in line]
    assert [(line.split()[0], line.split("~ ")[-1].strip()) for line in lines if "~ f16" in line or "~ q8" in line] == [
        ("f16", "q8_0/turbo3"),
        ("q8_0/turbo3", "f16"),
    ]
    run = reader.view(document)
    assert [row.quality[0].alike for row in run.rows] == [("q8_0/turbo3",), ("f16",), ()]
    assert "~ q8_0/turbo3" in html_report.render(run)


def test_a_failed_row_stays_in_the_family(world: World) -> None:
    base = [0.01 + 0.001 * i for i in range(12)]
    document = copy.deepcopy(world.document)
    document["rows"][2] |= {"errors": ["it failed"], "quality": []}
    found = with_chunks(document, {"f16": base, "q8_0/turbo3": [kld + 0.1 for kld in base]})
    first, *others = entry(found, 12)["differences"]
    assert [pair["p"] for pair in others] == [1.0, 1.0]
    assert [pair["difference"] for pair in others] == [None, None]
    assert first["p_holm"] == pytest.approx(3 * first["p"])
    assert reader.view(found).rows[0].quality[0].alike == ()


def test_a_perplexity_that_is_not_told_from_the_references_is_marked(world: World) -> None:
    document = copy.deepcopy(world.document)
    row = document["rows"][1]["quality"][0]
    for ends, marked in (((-0.5, 0.7), True), ((0.1, 0.2), False)):
        row["by_chunk"]["dppl_interval"] = list(ends)
        line = next(
            line
            for line in report.as_text(document).splitlines()
            if "+0.11" in line and line.startswith(" q8_0/turbo3")
        )
        assert line.rstrip().endswith("~") is marked
        assert f"{ends[0]:+.2f} to {ends[1]:+.2f}" in line
