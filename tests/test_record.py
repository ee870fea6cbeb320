"""A run that was killed goes on where it was; a changed setting never takes an old result."""

import errno
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from click.testing import CliRunner
from compare_world import World, fails, invoke

from turbokv_eval.cli import main
from turbokv_eval.results import reader
from turbokv_eval.results.recommend import recommend


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_the_same_command_runs_nothing_again(world: World) -> None:
    assert CliRunner().invoke(main, world.args()).exit_code == 0
    before, calls = world.document, len(world.calls)
    assert CliRunner().invoke(main, world.args()).exit_code == 0
    assert len(world.calls) == calls
    assert world.document["rows"] == before["rows"]


@pytest.mark.parametrize("change", ["threads", "text", "build", "model"])
def test_a_changed_setting_runs_again(world: World, change: str) -> None:
    assert CliRunner().invoke(main, world.args("-t", "1")).exit_code == 0
    calls = len(world.calls)
    if change == "text":
        world.text.write_text("Another one. " * 900, encoding="utf-8")
    if change == "build":
        (world.bin / "libggml-cpu.so").write_bytes(b"other kernels")
    if change == "model":
        with world.model.open("ab") as file:
            file.write(b"x")
    assert CliRunner().invoke(main, world.args("-t", "2" if change == "threads" else "1")).exit_code == 0
    # a load and a speed do not depend on the text
    again = 5 if change == "text" else calls
    assert len(world.calls) == calls + again


def test_kill_9_at_random_moments_loses_at_most_one_unit(world: World) -> None:
    roles = ("load_f16", "load_turbo2", "reference_f32", "quality_f16", "quality_turbo2", "speed_f16", "speed_turbo2")
    world.reply(**{role: {"sleep": 0.15} for role in roles})
    chance = random.Random(4)
    units = world.out / "units.jsonl"
    for _ in range(5):
        process = subprocess.Popen(
            [sys.executable, "-m", "turbokv_eval", *world.args()],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=Path(__file__).parents[1],
            start_new_session=True,
        )
        had = units.read_bytes().count(b"\n") if units.exists() else 0
        deadline = time.monotonic() + 30
        while process.poll() is None and time.monotonic() < deadline:
            if units.exists() and units.read_bytes().count(b"\n") > had:
                break
            time.sleep(0.01)
        time.sleep(chance.uniform(0, 0.3))
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert CliRunner().invoke(main, world.args()).exit_code == 0
    done = [json.loads(line)["name"] for line in units.read_text(encoding="utf-8").splitlines()]
    assert len(done) == len(set(done)) == 14
    # Each kill may have cost the run that was going on, and nothing else.
    assert len(world.calls) <= 14 + 5


def test_a_line_cut_by_a_kill_is_a_unit_that_runs_again(world: World) -> None:
    assert CliRunner().invoke(main, world.args()).exit_code == 0
    units, calls = world.out / "units.jsonl", len(world.calls)
    units.write_bytes(units.read_bytes()[:-20])
    assert CliRunner().invoke(main, world.args()).exit_code == 0
    assert len(world.calls) == calls + 1


def test_a_damaged_line_is_a_unit_that_runs_again(world: World) -> None:
    assert invoke(*world.args()).exit_code == 0
    record = world.out / "units.jsonl"
    first, second, *rest = record.read_text(encoding="utf-8").splitlines(keepends=True)
    record.write_text(first + second.replace('"returncode"', '"code"') + "}{\n" + "".join(rest), encoding="utf-8")
    before = len(world.calls)
    assert invoke(*world.args()).exit_code == 0
    assert len(world.calls) == before + 1


def test_a_record_that_cannot_be_read(world: World) -> None:
    (world.out / "units.jsonl").mkdir(parents=True)
    fails(invoke(*world.args()), 3, r"cannot read .*units\.jsonl: Is a directory; choose another folder with --run")


def test_recommendation_is_the_smallest_within_its_limits(world: World) -> None:
    assert CliRunner().invoke(main, world.args()).exit_code == 0
    document = world.document
    assert recommend(document, max_kld=0.1)["label"] == "q8_0/turbo3"
    assert recommend(document, max_kld=10)["label"] == "turbo2"
    assert recommend(document, max_kld=0.01)["label"] == "f16"
    assert recommend(document, max_kld=0.01, budget=1 << 20)["label"] is None
    assert document["recommendation"]["label"] == "q8_0/turbo3"
    assert document["rows"][0]["rss_bytes"] > 1 << 20


def test_gate_and_report_read_what_a_run_records(world: World) -> None:
    assert CliRunner().invoke(main, world.args()).exit_code == 0
    run = reader.view(world.document)
    assert [row.rss_bytes for row in run.rows] == [row["rss_bytes"] for row in world.document["rows"]]
    assert run.recommendation == world.document["recommendation"]["text"]


def test_without_quality_nothing_is_recommended(world: World) -> None:
    result = CliRunner().invoke(main, world.args("--no-quality"))
    assert result.exit_code == 0, result.stderr
    assert world.document["recommendation"] is None
    assert "ecommend" not in result.stdout


def test_json_and_csv_on_stdout_are_the_document(world: World) -> None:
    result = CliRunner().invoke(main, world.args("-o", "json"))
    assert json.loads(result.stdout) == world.document
    assert "q8_0/turbo3,ok," in CliRunner().invoke(main, world.args("-o", "csv")).stdout


def test_a_disk_that_fills_up_while_a_unit_is_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path)
    synced, real = [], os.fsync

    def fsync(fd: int) -> None:
        if os.readlink(f"/proc/self/fd/{fd}").endswith("units.jsonl"):
            synced.append(fd)
            if len(synced) == 5:
                os.ftruncate(fd, os.fstat(fd).st_size - 20)  # the end of the line did not fit
                raise OSError(errno.ENOSPC, "No space left on device")
        real(fd)

    monkeypatch.setattr(os, "fsync", fsync)
    result = CliRunner().invoke(main, world.args())
    assert result.exit_code == 3, result.output
    assert "the disk is full; free some space and run the same again" in result.stderr
    ran = len(world.calls)
    assert ran == 5
    assert CliRunner().invoke(main, world.args()).exit_code == 0
    names = [json.loads(line)["name"] for line in (world.out / "units.jsonl").read_text().splitlines()]
    # the reference was whole and stayed, so that only the unit that did not fit is made again
    assert len(set(names)) == len(names) == 14
    assert len(world.calls) - ran == 14 - 4
    assert not list(world.out.glob("reference-logits*.tmp"))
