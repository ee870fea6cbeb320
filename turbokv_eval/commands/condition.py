"""`turbokv-eval condition`: a model's statistics into a file."""

from pathlib import Path
from typing import Any

import click

from turbokv_eval.commands.command import PATH, Command, bin_option, threads_option
from turbokv_eval.comparison import preflight
from turbokv_eval.machine import build, provenance
from turbokv_eval.models.gguf_info import read_model
from turbokv_eval.programs import condition


@click.command(
    "condition",
    cls=Command,
    examples=(
        "turbokv-eval condition MODEL.gguf -o MODEL.kv.gguf",
        "llama-cli -m MODEL.gguf -ctk turbo3 -ctv turbo3 --kv-condition MODEL.kv.gguf",
    ),
    failed="the program wrote no file",
    cannot="the program is not built",
)
@click.argument("model", type=PATH)
@click.option("-f", "--file", "text", type=PATH, help="Measure this text.  [default: random tokens, no text needed]")
@click.option("-o", "--output", type=PATH, required=True, help="The file to write, a GGUF.")
@click.option("--tokens", "-n", type=click.IntRange(min=1), help="Tokens to measure.  [default: as the programs do]")
@click.option("--segment", "-s", type=click.IntRange(min=1), help="Tokens of one run from an empty cache.")
@click.option("--span", "-p", type=click.IntRange(min=1), help="Positions over which the runs' starts are spread.")
@click.option(
    "--ctx", "-c", type=click.IntRange(min=1), help="Tokens of the contexts that it is for.  [default: the model's own]"
)
@threads_option
@bin_option
def condition_command(model: Path, output: Path, threads: int | None, bin_dir: Path | None, **sample: Any) -> None:
    """Measure a model's keys and write the file that `--kv-condition FILE` takes.

    Not needed for normal use: the programs measure a model by themselves, once for contexts of up to 1024 tokens and
    once for longer ones, and keep the result in the user's cache folder.
    """
    read_model(model)
    if sample["text"] is not None:
        preflight.check_text(sample["text"], sample["segment"] or 256)
    folder = bin_dir or build.default_bin()
    click.echo(condition.make(folder, model, output, condition.Sample(**sample), threads or provenance.cpu_count()))
