"""The measured keys of a tiny model: the same bytes for any number of threads, one file for each class of context."""

import os
import subprocess
from pathlib import Path

import pytest
from zoo import attention
from zoo.write import write

pytestmark = pytest.mark.live

BIN = Path("build/cpu/bin")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    made = attention.plain("tiny", 64)
    made.metadata["context_length"] = 8192
    write(made, path)
    return path


def run(program: str, *args: str | Path, cache: Path) -> str:
    environment = {**os.environ, "XDG_CACHE_HOME": str(cache)}
    done = subprocess.run(
        [str(BIN / program), *map(str, args)], capture_output=True, text=True, timeout=300, env=environment
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


@pytest.mark.parametrize("ctx", ["512", "4096"])
def test_threads_do_not_change_a_byte(model: Path, tmp_path: Path, ctx: str) -> None:
    for threads in ("1", "2"):
        run("llama-kv-condition", "-m", model, "-o", tmp_path / threads, "-c", ctx, "-t", threads, cache=tmp_path)
    assert (tmp_path / "1").read_bytes() == (tmp_path / "2").read_bytes()


def test_short_and_long_contexts_are_measured_apart_and_once(model: Path, tmp_path: Path) -> None:
    def files(depth: int) -> dict[str, int]:
        speed = ("-m", model, "-ctk", "turbo3", "-fa", "1", "-p", "8", "-n", "0", "-r", "1", "-d", str(depth))
        run("llama-bench", *speed, cache=tmp_path)
        return {path.name: path.stat().st_mtime_ns for path in (tmp_path / "turbokv" / "kv-condition").iterdir()}

    short = files(0)
    assert len(short) == 1
    both = files(1200)
    assert len(both) == 2
    assert both.items() > short.items()
    assert files(512) == both
    assert files(1100) == both
