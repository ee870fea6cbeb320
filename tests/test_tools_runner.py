"""Programs are run to their end or stopped, their output streamed; files are written whole or not at all."""

import io
import sys
import time
from collections import namedtuple
from pathlib import Path

import psutil
import pytest
from rich.console import Console

from turbokv_eval import progress
from turbokv_eval.comparison import store
from turbokv_eval.errors import MachineCannot
from turbokv_eval.machine import runner


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def test_both_streams_are_kept_apart_and_logged(tmp_path: Path) -> None:
    seen: list[str] = []
    done = runner.run(
        python("import sys; print('out', flush=True); print('é', file=sys.stderr); sys.exit(3)"),
        log=tmp_path / "run.log",
        on_output=seen.append,
    )
    assert (done.returncode, done.stdout, done.stderr) == (3, "out\n", "é\n")
    assert sorted("".join(seen)) == sorted("out\né\n")
    log = (tmp_path / "run.log").read_text(encoding="utf-8")
    assert log.startswith("$ ")
    assert "out" in log


def test_output_comes_while_the_program_runs() -> None:
    times: list[float] = []
    began = time.monotonic()
    runner.run(
        python("import time; print('a', flush=True); time.sleep(0.5)"),
        on_output=lambda _: times.append(time.monotonic() - began),
    )
    assert times[0] < time.monotonic() - began - 0.4


def test_what_others_used_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    Times = namedtuple("Times", "user system idle iowait guest")
    began, own = time.monotonic(), time.process_time()
    # Others take 10 seconds of processor time, our program what it takes (next to nothing); waiting does not count.
    readings = iter([Times(0.0, own, 5.0, 1.0, 0.5), Times(8.0, own + 2.0, 9.0, 4.0, 0.5)])
    monkeypatch.setattr(psutil, "cpu_times", lambda: next(readings))
    used = runner.run(python("import time; time.sleep(0.5)")).other_cpus
    least = 9.5 / (time.monotonic() - began)
    assert used is not None
    assert least < used < 10 / 0.5

    def refuse() -> None:
        raise OSError

    monkeypatch.setattr(psutil, "cpu_times", refuse)
    assert runner.run(python("pass")).other_cpus is None


def test_a_program_that_does_not_end_is_stopped() -> None:
    began = time.monotonic()
    with pytest.raises(MachineCannot, match="did not end in time"):
        runner.run(python("import time; time.sleep(60)"), timeout=0.3)
    assert time.monotonic() - began < 10


def test_a_log_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(MachineCannot, match="No space left on device; free some space"):
        runner.run(python("pass"), log=Path("/dev/full"))
    with pytest.raises(MachineCannot, match="Is a directory; free some space or choose another folder"):
        runner.run(python("pass"), log=tmp_path)


def test_a_program_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(MachineCannot, match=r"cannot start .*No such file"):
        runner.run([tmp_path / "nothing"])


def test_a_killed_program_says_so_in_its_log(tmp_path: Path) -> None:
    done = runner.run(python("import os; os.kill(os.getpid(), 9)"), log=tmp_path / "log")
    assert done.returncode == -9
    assert "killed by signal 9" in (tmp_path / "log").read_text(encoding="utf-8")


def test_a_failed_save_keeps_the_former_file(tmp_path: Path) -> None:
    with store.opened(tmp_path / "out") as opened:
        opened.save({"a": 1})
        with pytest.raises(ValueError, match="Out of range float"):
            opened.save({"a": float("nan")})
        assert '"a": 1' in opened.json.read_text(encoding="utf-8")


def test_the_temporary_file_goes_with_the_run(tmp_path: Path) -> None:
    with store.opened(tmp_path) as opened:
        opened.reference("0" * 64).write_bytes(b"big")
    assert not opened.reference("0" * 64).exists()


def test_lines_off_a_terminal_are_few_and_plain() -> None:
    out = io.StringIO()
    with progress.meter(Console(file=out)) as meter:
        for done in range(1001):
            meter.update(done, 1000, "building")
    lines = out.getvalue().splitlines()
    assert 10 <= len(lines) <= 12
    assert lines[-1].startswith("building (100 %")
    assert "\x1b" not in out.getvalue()


def test_a_bar_on_a_terminal() -> None:
    out = io.StringIO()
    with progress.meter(Console(file=out, force_terminal=True, width=100)) as meter:
        meter.update(1, 2, "[1/2] reference")
        meter.say("a line that stays")
    assert "a line that stays" in out.getvalue()
    assert "[1/2] reference" in out.getvalue()
