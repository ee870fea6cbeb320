"""A context shift on the default model: a turbo cache loses no more by it than the types of llama.cpp do."""

import os
import subprocess
from pathlib import Path

import pytest

from turbokv_eval.machine import assets

pytestmark = pytest.mark.live

PROGRAM = Path("build/cpu/bin/turbo-shift")

# Nats. Measured on wiki-like text: f16 adds 0.010, q8_0 0.008, turbo4 0.008.
SPARE = 0.01


def test_a_shift_adds_no_more_to_turbo4_than_to_q8_0(tmp_path: Path) -> None:
    model, text = assets.fetch(assets.MODEL, print), assets.fetch(assets.TEXT, print)
    environment = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    done = subprocess.run(
        [str(PROGRAM), str(model), str(text)], capture_output=True, text=True, timeout=300, env=environment
    )
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines()[1:]]
    added = {name: float(value) for name, _, _, value in rows}
    assert added["f16"] > 0, "the shift changed nothing: was it done?"
    assert added["turbo4"] < added["q8_0"] + SPARE, done.stdout
