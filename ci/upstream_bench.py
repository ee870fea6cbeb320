"""The cache types that upstream has: are they as fast as in a build of upstream without this fork?

Usage: upstream_bench.py [ROUNDS] [--model GGUF] [--depth N] [--instructions], after `turbokv-eval build`

Builds upstream alone in build/upstream, with the options of the fork's build, then runs llama-bench of both in turn.
Prints the ratio of the medians, fork to upstream, with its 95 % percentile bootstrap interval, paired by round.

With --instructions, counts them instead (valgrind's callgrind, one thread): no noise, but no times either. Both are
then built without AVX-512, which valgrind does not know.
"""

import json
import re
import shutil
import statistics
import subprocess
import sys
from pathlib import Path

import click
import numpy as np
from scipy.stats import bootstrap

from turbokv_eval import fork
from turbokv_eval.machine import assets, build

TYPES = ("f16", "q8_0", "q4_0")
N_PROMPT, N_GEN = 256, 32
# of a run that is counted, which takes minutes
COUNTED = {"-p": "8", "-n": "4", "-d": "56", "-t": "1"}


def build_bench(tree: Path, out: Path, *more: str) -> Path:
    """llama-bench of a tree, as the fork was configured but for the folders and `more`."""
    layout = fork.Layout.default()
    stamp = json.loads((build.build_dir() / build.STAMP).read_text(encoding="utf-8"))
    other = {str(layout.tree): str(tree), str(build.build_dir()): str(out)}
    subprocess.run([*(other.get(word, word) for word in stamp[0]), *more], check=True, stdout=2)
    subprocess.run([build.find_tool("cmake"), "--build", out, "--target", "llama-bench"], check=True, stdout=2)
    return out / "bin"


def upstream_tree() -> Path:
    """The first commit of the fork's tree, which is upstream's."""
    layout = fork.Layout.default()
    tree = layout.build / "upstream" / "llama.cpp"
    root = subprocess.run(
        ["git", "-C", layout.tree, "rev-list", "--max-parents=0", "HEAD"], check=True, capture_output=True, text=True
    ).stdout.split()[-1]
    tree.mkdir(parents=True, exist_ok=True)
    archive = subprocess.run(["git", "-C", layout.tree, "archive", root], check=True, capture_output=True).stdout
    subprocess.run(["tar", "-x", "-C", tree], input=archive, check=True)
    return tree


def compare_instructions(model: Path) -> None:
    if not shutil.which("valgrind"):
        print("error: --instructions needs valgrind: install it with the system's package manager", file=sys.stderr)
        sys.exit(3)
    layout = fork.Layout.default()
    trees = {"fork": layout.tree, "upstream": upstream_tree()}
    bins = {
        name: build_bench(tree, layout.build / "upstream" / f"{name}-portable", "-DGGML_NATIVE=OFF")
        for name, tree in trees.items()
    }
    for cache in TYPES:
        found = {name: instructions(bin_dir, model, cache) for name, bin_dir in bins.items()}
        print(
            f"{cache:5} billions of instructions: fork {found['fork'] / 1e9:.4f},"
            f" upstream {found['upstream'] / 1e9:.4f}, ratio {found['fork'] / found['upstream']:.5f}",
            flush=True,
        )


def instructions(bin_dir: Path, model: Path, cache: str) -> int:
    """Of a whole llama-bench, loading included."""
    argv: list[str | Path] = ["valgrind", "--tool=callgrind", "--callgrind-out-file=/dev/null", bin_dir / "llama-bench"]
    argv += ["-m", model, "-r", "1", "--no-warmup", "-fa", "1", "-ctk", cache, "-ctv", cache]
    argv += [word for option in COUNTED.items() for word in option]
    out = subprocess.run(argv, check=True, capture_output=True, text=True).stderr
    return int(re.findall(r"Collected : (\d+)", out)[-1])


def speeds(bin_dir: Path, model: Path, cache: str, depth: int) -> tuple[float, float]:
    """Tokens a second of a prompt and of generation."""
    argv: list[str | Path] = [bin_dir / "llama-bench", "-m", model, "-o", "json", "-d", str(depth)]
    argv += ["-r", "1", "-t", "2", "-fa", "1"]
    argv += ["-p", str(N_PROMPT), "-n", str(N_GEN), "-ctk", cache, "-ctv", cache]
    tests = json.loads(subprocess.run(argv, check=True, capture_output=True, text=True).stdout)
    return tests[0]["avg_ts"], tests[1]["avg_ts"]


@click.command(context_settings={"help_option_names": ["-h", "--help"]}, help=__doc__)
@click.argument("rounds", type=click.IntRange(min=2), default=15)
@click.option("--model", type=click.Path(path_type=Path, exists=True), envvar="MODEL", help="[default: SmolLM2-135M]")
@click.option("--depth", type=click.IntRange(min=0), default=1024, show_default=True, envvar="DEPTH", help="Tokens.")
@click.option("--instructions", "count", is_flag=True, help="Count instructions; ROUNDS and --depth do not apply.")
def main(rounds: int, model: Path | None, depth: int, count: bool) -> None:
    model = model or assets.fetch(assets.MODEL)
    if count:
        compare_instructions(model)
        return
    upstream = build_bench(upstream_tree(), fork.Layout.default().build / "upstream" / "build")
    bins = {"fork": build.default_bin(), "upstream": upstream}
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


if __name__ == "__main__":
    main()
