"""ci/gpu.sh in a dry run, on programs that answer what a test wants: each planted fault must fail it."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

# half a minute: too slow for `make check`
pytestmark = pytest.mark.live

SCRIPT = Path("ci/gpu.sh").resolve()
# llama-bench stays until the sampler of memory has seen it; its name is what the sampler looks for.
BENCH = """
argv = sys.argv
cache, depths = argv[argv.index("-ctk") + 1], [int(d) for d in argv[argv.index("-d") + 1].split(",")]
plan = json.load(open(os.path.join(os.path.dirname(argv[0]), "plan.json")))
cache = plan.get("cache", cache)
rows = [(d, p, n) for d in depths for p, n in ((16, 0), (0, 4))][: plan.get("rows", 99)]
for d, p, n in rows:
    row = {"n_prompt": p, "n_gen": n, "n_depth": d, "type_k": cache, "type_v": cache, "avg_ts": 5.0, "stddev_ts": 0.1}
    print(json.dumps(row), flush=True)
time.sleep(0.3)
"""
PERPLEXITY = """
plan = json.load(open(os.path.join(os.path.dirname(sys.argv[0]), "plan.json")))
if "--save-all-logits" in sys.argv:
    open(sys.argv[sys.argv.index("--save-all-logits") + 1], "w").close()
elif "kld" in plan:
    print(f"Mean    KLD: {plan['kld']} +- 0.001")
"""
OPS = """
plan = json.load(open(os.path.join(os.path.dirname(sys.argv[0]), "plan.json")))
print(plan.get("ops", "  396/396 tests passed"))
sys.exit(plan.get("ops_exit", 0))
"""

REAL = Path("build/cpu/bin").resolve()

Run = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, body in (("llama-bench", BENCH), ("llama-perplexity", PERPLEXITY), ("test-backend-ops", OPS)):
        program = folder / name
        program.write_text(f"#!{sys.executable}\nimport json, os, sys, time\n{body}", encoding="utf-8")
        program.chmod(0o755)

    def dry_run(**plan: object) -> subprocess.CompletedProcess[str]:
        (folder / "plan.json").write_text(json.dumps({"kld": 0.001, **plan}), encoding="utf-8")
        path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
        return subprocess.run(
            ["sh", str(SCRIPT), "--dry-run", str(folder)],
            cwd=tmp_path,
            env={**os.environ, "PATH": path},
            capture_output=True,
            text=True,
            timeout=300,
        )

    return dry_run


def test_a_dry_run_on_the_real_programs(tmp_path: Path) -> None:
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    argv = ["sh", str(SCRIPT), "--dry-run", str(REAL)]
    done = subprocess.run(
        argv, cwd=tmp_path, env={**os.environ, "PATH": path}, capture_output=True, text=True, timeout=500
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "nothing ran" not in done.stdout


def test_a_dry_run_that_is_well(run: Run) -> None:
    done = run()
    assert done.returncode == 0, done.stdout + done.stderr
    assert "gpu.sh: ok" in done.stdout
    assert done.stdout.count(" peak memory ") == 6


@pytest.mark.parametrize(
    ("plan", "said"),
    [
        ({"rows": 3}, "bench-turbo3: FAILED, no generation at depth 64"),
        ({"cache": "f16"}, "bench-turbo3: FAILED, ran with f16"),
        ({"kld": 0.5}, "parity-turbo3: FAILED, KLD 0.5"),
        ({"kld": "nan"}, "parity-turbo3: FAILED, KLD nan"),
        ({"ops": "0/0 tests passed"}, "ops: FAILED, nothing ran"),
        ({"ops_exit": 1}, "ops: FAILED (exit 1)"),
    ],
)
def test_each_fault_fails_it(run: Run, plan: dict[str, object], said: str) -> None:
    done = run(**plan)
    assert done.returncode == 1
    assert said in done.stdout + done.stderr
    assert "gpu.sh: FAILED" in done.stdout
