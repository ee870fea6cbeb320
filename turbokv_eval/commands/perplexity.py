"""`turbokv-eval perplexity`: one cache type over a text, in llama-perplexity's own digits."""

import json
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from turbokv_eval import build, kv_log, perplexity, preflight, provenance, runner, tabular
from turbokv_eval.errors import BadInput, CheckFailed
from turbokv_eval.gguf_info import read_model
from turbokv_eval.types import parse_types

_PATH = click.Path(path_type=Path)


@click.command("perplexity")
@click.argument("model", type=_PATH)
@click.option("-f", "--file", "text", type=_PATH, required=True, help="Plain text.")
@click.option("--type", "spec", default="turbo3", show_default=True, help="Cache type; K/V for a pair, @off: plain.")
@click.option("--ctx", "-c", type=click.IntRange(min=16), default=512, show_default=True, help="Tokens of a chunk.")
@click.option("--chunks", type=click.IntRange(min=1), default=12, show_default=True, help="Chunks of the text.")
@click.option("--threads", "-t", type=click.IntRange(min=1), help="[default: all processors]")
@click.option("--bin", "bin_dir", type=_PATH, help="Folder of the programs.  [default: where `build` left them]")
@click.option("--output", "-o", type=click.Choice(tabular.FORMATS), default="table", show_default=True)
def perplexity_command(
    model: Path,
    text: Path,
    spec: str,
    ctx: int,
    chunks: int,
    threads: int | None,
    bin_dir: Path | None,
    output: str,
) -> None:
    """The perplexity of one cache type over a text, as llama-perplexity prints it. `compare` says more: read its KLD.

    \b
    Example:
      turbokv-eval perplexity MODEL.gguf -f TEXT --type turbo3 --ctx 2048

    Exit code 1 when the run did not use the cache that was asked for.
    """
    folder = bin_dir or build.default_bin()
    preflight.check_programs(folder)
    configs = parse_types(spec, preflight.known_types(folder))
    if len(configs) != 1:
        raise BadInput(f"--type takes one cache type, not {spec!r}: `turbokv-eval compare --types` takes several")
    preflight.check_text(text, ctx)
    read_model(model)
    argv = perplexity.plain_command(
        folder, model, text, configs[0], ctx=ctx, chunks=chunks, threads=threads or provenance.cpu_count()
    )
    with tempfile.TemporaryDirectory() as scratch:
        done = runner.run(argv, log=Path(scratch) / "log")
    if short := perplexity.too_short(done.output):
        raise BadInput(f"the text {text} is too short: it has {short[1]} tokens, and two contexts make {short[0]}")
    found = perplexity.parse_reference(done.output, ctx)
    if done.returncode != 0 or found is None:
        said = perplexity.failure(done.output) or f"exit status {done.returncode}"
        raise CheckFailed(f"{perplexity.PROGRAM} gave no perplexity: {said}")
    contexts = kv_log.parse_contexts(done.output)[-1:]
    if wrong := kv_log.problems(configs[0], True, contexts):
        raise CheckFailed(f"the run is not what was asked: {'; '.join(wrong)}")
    document = {
        "schema_version": 1,
        "tool": "turbokv-eval perplexity",
        "type": configs[0].label,
        "ctx": ctx,
        "command": argv,
        "kv": contexts[0].as_dict(),
        **asdict(found),
    }
    click.echo(render(document, output), nl=False)


def render(document: dict[str, Any], output: str) -> str:
    """The document in one of tabular.FORMATS."""
    if output == "json":
        return json.dumps(document, indent=2, allow_nan=False) + "\n"
    columns = ("cache", "keys", "KV MiB", "PPL", "±", "chunks", "ctx", "tokens")
    # four and five decimals: those that the program prints
    row = (
        document["type"],
        "cond." if document["kv"]["conditioned"] else "plain",
        f"{document['kv']['mib']:.2f}",
        f"{document['ppl']:.4f}",
        f"{document['ppl_err']:.5f}",
        str(document["chunks"]),
        str(document["ctx"]),
        str(document["values"]),
    )
    if output == "csv":
        return tabular.as_csv(columns, [row])
    table = tabular.Table("", columns, [row], left=frozenset(("keys",)))
    return table.as_markdown() if output == "md" else table.as_text()
