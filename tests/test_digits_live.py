"""The figures that are reported are those that the programs print, digit for digit.

llama-perplexity is run by hand, as the document says that it was run; its speed differs from run to run, so llama-bench
prints one run twice, as JSON and as the Markdown that people read.
"""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
from compare_world import invoke
from test_compare_live import tiny_model

from turbokv_eval.machine import build
from turbokv_eval.models.types import KVConfig
from turbokv_eval.output import report
from turbokv_eval.programs import bench
from turbokv_eval.results import reader

pytestmark = pytest.mark.live

# Label of a line, its numbers in the document, decimals; read here as a person would.
LINES = (
    ("Mean PPL(Q)  ", ("ppl", "ppl_err"), 6),
    ("Mean PPL(base)", ("ppl_base", "ppl_base_err"), 6),
    ("Mean ln(PPL(Q)/PPL(base))", ("ln_ratio", "ln_ratio_err"), 6),
    ("Mean PPL(Q)-PPL(base)", ("dppl", "dppl_err"), 6),
    ("Mean    KLD", ("kld_mean", "kld_err"), 6),
    ("Maximum KLD", ("kld_max",), 6),
    ("99.9%   KLD", ("kld_p999",), 6),
    ("99.0%   KLD", ("kld_p99",), 6),
    ("Median  KLD", ("kld_median",), 6),
    ("RMS Δp", ("rms_dp", "rms_dp_err"), 3),
    ("Same top p", ("same_top", "same_top_err"), 3),
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = Path(tmp_path_factory.mktemp("digits"))
    tiny_model(folder / "tiny.gguf", 64)
    (folder / "text.txt").write_text("".join(chr(97 + i * i % 23) for i in range(2400)), encoding="utf-8")
    return folder


def by_hand(argv: list[str]) -> str:
    done = subprocess.run(argv, capture_output=True, text=True, check=True)
    return done.stdout + done.stderr


def test_quality_has_the_digits_of_llama_perplexity(folder: Path) -> None:
    args = ["compare", "-m", folder / "tiny.gguf", "-f", folder / "text.txt", "--run", folder / "out", "--no-speed"]
    types = ["--types", "f16,turbo3,q8_0/turbo2@on,turbo4+0:q8_0", "--contexts", "128,192", "--chunks", "8"]
    result = invoke(*map(str, args), *types)
    assert result.exit_code == 0, result.output
    document = json.loads((folder / "out" / "compare.json").read_text(encoding="utf-8"))
    table = report.as_text(document)
    for number, evaluation in enumerate(document["evaluations"]):
        reference, store = evaluation["reference"], str(folder / f"by-hand-{number}")
        argv = with_store(reference["command"], store)
        [(ppl, error)] = re.findall(r"Final estimate: PPL = (\S+) \+/- (\S+)", by_hand(argv))
        assert (f"{reference['ppl']:.4f}", f"{reference['ppl_err']:.5f}") == (ppl, error)
        for row in document["rows"]:
            quality, command = row["quality"][number], row["commands"][1 + number]
            printed = by_hand(with_store(command, store))
            for label, names, digits in LINES:
                [line] = [line for line in printed.splitlines() if line.startswith(label)]
                said = re.findall(r"-?\d+\.\d+", line.partition(":")[2])
                assert [f"{quality[name]:.{digits}f}" for name in names] == said, (row["label"], label)
            for shown in (f"{quality['ppl']:.2f}", f"{quality['kld_mean']:.4f}", f"{quality['kld_max']:.2f}"):
                assert shown in table
            last = re.findall(r"^ *\d+ .*$", printed.partition("chunk ")[2].partition("=====")[0], flags=re.MULTILINE)
            assert len(last) == len(quality["by_chunk"]["kld"]) == 8
            # five decimals are printed of the running means
            mean = sum(quality["by_chunk"]["kld"]) / 8
            assert mean == pytest.approx(quality["kld_mean"], abs=2e-5)
            # where the divergence is not lost in the rounding of those
            if quality["kld_mean"] > 0.001:
                low, high = quality["by_chunk"]["kld_interval"]
                assert low < quality["kld_mean"] < high
                assert quality["by_chunk"]["rounding"] < high - low
    assert reader.view(document).status == "complete"


def with_store(command: list[str], store: str) -> list[str]:
    """The command with the reference's log-probabilities in another file."""
    at = command.index("--kl-divergence-base") + 1
    return [*command[:at], store, *command[at + 1 :]]


def test_perplexity_has_the_digits_of_llama_perplexity(folder: Path) -> None:
    args = [
        "perplexity",
        folder / "tiny.gguf",
        "-f",
        folder / "text.txt",
        "--ctx",
        "128",
        "--chunks",
        "4",
        "-o",
        "json",
    ]
    result = invoke(*map(str, args), "--type", "turbo3")
    assert result.exit_code == 0, result.output
    document = json.loads(result.stdout)
    [said] = re.findall(r"Final estimate: PPL = (\S+) \+/- (\S+)", by_hand(document["command"]))
    assert (f"{document['ppl']:.4f}", f"{document['ppl_err']:.5f}") == said


def test_speed_has_the_digits_of_llama_bench(folder: Path) -> None:
    bin_dir, config = build.default_bin(), KVConfig("turbo3", "turbo3")
    argv = bench.command(bin_dir, folder / "tiny.gguf", config, depth=64, repetitions=3, threads=2)
    done = subprocess.run([*argv, "-oe", "md"], capture_output=True, text=True, check=True)
    rows = [line.split("|") for line in done.stderr.splitlines() if line.startswith("|") and "t/s" not in line]
    printed = [row[-2].strip() for row in rows if "±" in row[-2]]
    found = bench.parse(done.stdout)
    assert [m.kind for m in found] == ["prompt", "generation"]
    for measured, raw, said in zip(found, map(json.loads, jsonl(done.stdout)), printed, strict=True):
        assert list(measured.samples) == raw["samples_ts"]
        mean = sum(measured.samples) / len(measured.samples)
        assert f"{raw['avg_ts']:.2f} ± {raw['stddev_ts']:.2f}" == said
        # the samples are printed with six digits
        assert mean == pytest.approx(raw["avg_ts"], rel=1e-5)


def jsonl(text: str) -> list[str]:
    return [line for line in text.splitlines() if line.startswith("{")]


def test_bench_reports_the_samples_that_its_log_has(folder: Path) -> None:
    out = folder / "bench"
    args = [
        "bench",
        "-m",
        folder / "tiny.gguf",
        "--run",
        out,
        "--types",
        "f16,turbo3",
        "--depths",
        "0",
        "--rounds",
        "2",
    ]
    result = invoke(*map(str, args), "-o", "json")
    assert result.exit_code == 0, result.output
    document: dict[str, Any] = json.loads(result.stdout)
    for row in document["rows"]:
        logs = [out / "logs" / f"speed-0-round{number}-{row['label']}.log" for number in (1, 2)]
        raw = [[json.loads(line) for line in jsonl(log.read_text(encoding="utf-8"))] for log in logs]
        [entry] = row["speed"]
        for side, place in (("prompt", 0), ("generation", 1)):
            assert entry[side]["rounds"] == [tests[place]["samples_ts"] for tests in raw]
