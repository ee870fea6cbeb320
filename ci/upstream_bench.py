"""llama-bench of the fork and of upstream alone, in turn (see upstream-bench.sh)."""

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

import numpy as np
from scipy.stats import bootstrap

from turbokv_eval import assets, build, fork

TYPES = ("f16", "q8_0", "q4_0")
N_PROMPT, N_GEN = 256, 32


def build_upstream() -> Path:
    """llama-bench of the first commit of the fork's tree, which is upstream's."""
    layout = fork.Layout.default()
    tree, out = layout.build / "upstream" / "llama.cpp", layout.build / "upstream" / "build"
    root = subprocess.run(
        ["git", "-C", layout.tree, "rev-list", "--max-parents=0", "HEAD"], check=True, capture_output=True, text=True
    ).stdout.split()[-1]
    tree.mkdir(parents=True, exist_ok=True)
    archive = subprocess.run(["git", "-C", layout.tree, "archive", root], check=True, capture_output=True).stdout
    subprocess.run(["tar", "-x", "-C", tree], input=archive, check=True)
    # as the fork was configured, but for the folders
    stamp = json.loads((build.build_dir() / build.STAMP).read_text(encoding="utf-8"))
    other = {str(layout.tree): str(tree), str(build.build_dir()): str(out)}
    subprocess.run([other.get(word, word) for word in stamp[0]], check=True, stdout=2)
    subprocess.run([build.find_tool("cmake"), "--build", out, "--target", "llama-bench"], check=True, stdout=2)
    return out / "bin"


def speeds(bin_dir: Path, model: Path, cache: str, depth: str) -> tuple[float, float]:
    """Tokens a second of a prompt and of generation."""
    argv = [bin_dir / "llama-bench", "-m", model, "-o", "json", "-r", "1", "-t", "2", "-fa", "1", "-d", depth]
    argv += ["-p", str(N_PROMPT), "-n", str(N_GEN), "-ctk", cache, "-ctv", cache]
    tests = json.loads(subprocess.run(argv, check=True, capture_output=True, text=True).stdout)
    return tests[0]["avg_ts"], tests[1]["avg_ts"]


def main() -> None:
    rounds = int(sys.argv[1])
    model = Path(os.environ["MODEL"]) if "MODEL" in os.environ else assets.fetch(assets.MODEL)
    depth = os.environ.get("DEPTH", "1024")
    bins = {"fork": build.default_bin(), "upstream": build_upstream()}
    for cache in TYPES:
        found: dict[str, list[tuple[float, float]]] = {name: [] for name in bins}
        for r in range(rounds):
            for name in sorted(bins, reverse=r % 2 == 1):
                found[name].append(speeds(bins[name], model, cache, depth))
        for i, kind in enumerate(("prompt", "generation")):
            ours, theirs = (np.array([pair[i] for pair in found[name]]) for name in ("fork", "upstream"))
            interval = bootstrap(
                (ours, theirs),
                lambda a, b, axis: np.median(a, axis) / np.median(b, axis),
                paired=True,
                method="percentile",
                rng=np.random.default_rng(1),
            ).confidence_interval
            ratio = statistics.median(ours) / statistics.median(theirs)
            print(
                f"{cache:5} {kind:10} depth {depth:>5}: fork {statistics.median(ours):7.1f}, upstream"
                f" {statistics.median(theirs):7.1f} t/s, ratio {ratio:.3f} [{interval.low:.3f}, {interval.high:.3f}]",
                flush=True,
            )


main()
