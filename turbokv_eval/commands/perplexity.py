"""`turbokv-eval perplexity`: one cache type over a text, in llama-perplexity's own digits."""

import json
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from turbokv_eval.commands.command import PATH, Command, bin_option, form_option, threads_option
from turbokv_eval.comparison import preflight
from turbokv_eval.errors import BadInput, CheckFailed
from turbokv_eval.machine import build, provenance, runner
from turbokv_eval.models.gguf_info import read_model
from turbokv_eval.models.types import parse_types
from turbokv_eval.output import tabular
from turbokv_eval.programs import kv_log, perplexity


@click.command(
    "perplexity",
    cls=Command,
    examples=("turbokv-eval perplexity MODEL.gguf -f TEXT --type turbo3 --ctx 2048",),
    failed="the run gave no perplexity, or did not use the cache that was asked for",
    cannot="the programs are not built or do not run",
)
@click.argument("model", type=PATH)
@click.option("-f", "--file", "text", type=PATH, required=True, help="Plain text.")
@click.option("--type", "spec", default="turbo3", show_default=True, help="Cache type; K/V for a pair, @off: plain.")
@click.option("--ctx", "-c", type=click.IntRange(min=16), default=512, show_default=True, help="Tokens of a chunk.")
@click.option("--chunks", type=click.IntRange(min=1), default=12, show_default=True, help="Chunks of the text.")
@threads_option
@bin_option
@form_option
def perplexity_command(
    model: Path,
    text: Path,
    spec: str,
    ctx: int,
    chunks: int,
    threads: int | None,
    bin_dir: Path | None,
    form: str,
) -> None:
    """The perplexity of one cache type over a text, as llama-perplexity prints it; `compare` says more."""
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
    click.echo(render(document, form), nl=False)


def render(document: dict[str, Any], form: str) -> str:
    """The document in one of tabular.FORMATS."""
    if form == "json":
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
    return tabular.Table("", columns, [row], left=frozenset(("keys",))).rendered(form)
