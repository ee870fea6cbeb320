"""Records what the real programs print, as the tests of the comparison replay it, into tests/fixtures/compare.

    .venv/bin/python tests/record_compare.py [--windows GEMMA3.gguf]

On the default model and text of the command line; about six minutes on 2 processors. Paths are cut to names. The help,
and the logs of failures, of dry runs and of an unpatched llama.cpp are not made here.
"""

import argparse
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from turbokv_eval.comparison.evaluation import NOISE_FLOOR, REFERENCE
from turbokv_eval.machine import assets, build, runner
from turbokv_eval.models.types import KVConfig
from turbokv_eval.programs import bench, perplexity

FIXTURES = Path(__file__).parent / "fixtures" / "compare"
CHUNKS, THREADS = 4, 2
_METADATA = re.compile(r"[\d.]+ I (?:llama_model_loader|print_info|load): ")
_NOT_OF_BENCH = re.compile(r"(?![{$]|(?:[\d.]+ I )?(?:llama_context|llama_kv_cache|kv cache|key cond|llama-bench))")
ROWS = {
    "f16": KVConfig("f16", "f16"),
    "q8_0-turbo3": KVConfig("q8_0", "turbo3"),
    "turbo2": KVConfig("turbo2", "turbo2"),
    "turbo2@off": KVConfig("turbo2", "turbo2", "off"),
    "turbo3+layers": KVConfig("turbo3", "turbo3", layers="0-1,-1:q8_0"),
}
# At another context too, for comparisons over several.
AT_256 = ("f16", "q8_0-turbo3", "turbo2")


def commands(bin_dir: Path, model: Path, text: Path, scratch: Path) -> Iterator[tuple[str, list[str]]]:
    """Names of logs and what makes them, in an order in which each has what it needs."""
    for label, config in ROWS.items():
        yield (
            f"load-{label}",
            perplexity.probe_command(bin_dir, model, config, ctx=512, threads=THREADS, flash_attn=True),
        )
    for ctx, end, labels in ((512, "", tuple(ROWS)), (256, "-256", AT_256)):
        store = scratch / f"reference-logits{end}.tmp"
        yield (
            f"reference{end}",
            perplexity.reference_command(
                bin_dir, model, text, REFERENCE, ctx=ctx, chunks=CHUNKS, threads=THREADS, store=store
            ),
        )
        yield (
            f"quality-f32{end}",
            perplexity.row_command(
                bin_dir, model, NOISE_FLOOR, ctx=ctx, threads=THREADS, store=store, flash_attn=False
            ),
        )
        for label in labels:
            yield (
                f"quality-{label}{end}",
                perplexity.row_command(bin_dir, model, ROWS[label], ctx=ctx, threads=THREADS, store=store),
            )
    speeds = [(0, label) for label in ROWS] + [(512, "f16")]
    for depth, label in speeds:
        yield (
            f"speed-{depth}-{label}",
            bench.command(bin_dir, model, ROWS[label], depth=depth, repetitions=2, threads=THREADS),
        )


def record(name: str, argv: Sequence[str], environment: Mapping[str, str] | None = None) -> None:
    print(name, flush=True)
    done = runner.run(argv, environment=environment)
    if done.returncode != 0 and not name.startswith("load-"):
        raise SystemExit(f"{name} failed: {perplexity.failure(done.output)}")
    text = f"$ {' '.join(argv)}\n{done.output}"
    text = re.sub(r"(?<=[ '\"=])/[^\s'\"]+/(?=[^\s'\"/]+)", "", text)
    # The model's metadata and graph, which nothing here reads, are most of a log.
    drop = _NOT_OF_BENCH if name.startswith("speed-") else _METADATA
    lines = [line.rstrip() for line in text.splitlines() if not drop.match(line)]
    (FIXTURES / f"{name}.log").write_text("\n".join(lines) + "\n", encoding="utf-8")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--windows", type=Path, help="a Gemma 3, whose sliding windows have a cache of their own")
    options = parser.parse_args()
    bin_dir, model, text = build.default_bin(), assets.fetch(assets.MODEL), assets.fetch(assets.TEXT)
    # Measured and kept first, so that no log depends on what the cache folder held.
    for path in filter(None, (model, options.windows)):
        runner.run(perplexity.probe_command(bin_dir, path, ROWS["turbo2"], ctx=512, threads=THREADS, flash_attn=True))
    with tempfile.TemporaryDirectory() as scratch:
        for name, argv in commands(bin_dir, model, text, Path(scratch)):
            record(name, argv)
        first = bench.command(bin_dir, model, ROWS["turbo2"], depth=0, repetitions=1, threads=THREADS)
        record("speed-0-turbo2-first", first, {"XDG_CACHE_HOME": scratch})
    if options.windows:
        pair = KVConfig("turbo3", "q8_0")
        record(
            "load-gemma3-turbo3-q8_0",
            perplexity.probe_command(bin_dir, options.windows, pair, ctx=512, threads=THREADS, flash_attn=True),
        )


if __name__ == "__main__":
    main()
