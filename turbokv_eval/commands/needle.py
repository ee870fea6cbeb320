"""`turbokv-eval needle`: planted facts at many contexts and positions; a comparison without anything else."""

from pathlib import Path
from typing import Any

import click

from turbokv_eval import api
from turbokv_eval.commands import measured
from turbokv_eval.commands.command import (
    CONTEXTS,
    PATH,
    Command,
    Numbers,
    bin_option,
    form_option,
    gpu_layers_option,
    threads_option,
)
from turbokv_eval.comparison import needle
from turbokv_eval.errors import CheckFailed
from turbokv_eval.output import generation_tables, report

_DEFAULT = needle.Plan(contexts=(512, 1024, 2048), needles=4)


def _few(ctx: click.Context, param: click.Parameter, positions: tuple[float, ...]) -> tuple[float, ...]:
    if len(positions) > needle.MAX_POSITIONS:
        raise click.BadParameter(f"{len(positions)} positions are more than the {needle.MAX_POSITIONS} facts there are")
    return tuple(sorted(positions))


def _sorted(ctx: click.Context, param: click.Parameter, contexts: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(sorted(contexts))


def _listed(values: tuple[float, ...]) -> str:
    return ",".join(f"{value:g}" for value in values)


@click.command(
    "needle",
    cls=Command,
    examples=(
        "turbokv-eval needle MODEL.gguf",
        "turbokv-eval needle MODEL.gguf -f TEXT --types f16,turbo3 --contexts 1024,4096",
    ),
    failed="a row failed, or a context was not measured",
    cannot="the programs are not built, or the disk is full",
)
@click.argument("model", type=PATH)
@click.option("-f", "--file", "text", type=PATH, help="The haystack, plain text.  [default: as compare]")
@click.option("--types", default=api.DEFAULT_TYPES, show_default=True, help="Cache types, as compare takes them.")
@click.option(
    "--contexts",
    "-c",
    type=CONTEXTS,
    callback=_sorted,
    default=_listed(_DEFAULT.contexts),
    show_default=True,
    help="Tokens of haystack, question and answer.",
)
@click.option(
    "--positions",
    type=Numbers("0,50,100", least=0, most=100, kind=float),
    callback=_few,
    default=_listed(_DEFAULT.positions),
    show_default=True,
    metavar="P,P,...",
    help="Of the facts, percent of the haystack before them.",
)
@click.option(
    "--needles",
    "-n",
    type=click.IntRange(min=1),
    default=_DEFAULT.needles,
    show_default=True,
    help="At each context and position.",
)
@click.option("--seed", type=int, default=_DEFAULT.seed, show_default=True, help="Of facts and haystacks.")
@threads_option
@gpu_layers_option
@click.option("--run", "folder", type=PATH, default="turbokv-needle", show_default=True, help="Folder of results.")
@bin_option
@form_option
def needle_command(
    model: Path,
    text: Path | None,
    types: str,
    threads: int | None,
    gpu_layers: int | None,
    folder: Path,
    bin_dir: Path | None,
    form: str,
    **plan: Any,
) -> None:
    """Whether a model finds planted facts again, by context length and position, with each cache type.

    A haystack holds facts at every position and is asked for each. Found: greedy generation gives the answer, of
    those that the f32 reference finds; where it finds none, there is no evidence. The log-probability of the answers
    tells types apart there too. Resumes like `compare`; `turbokv-eval report` draws the heat map.
    """
    document = measured.run_and_print(
        lambda show: api.settings(
            show,
            model=model,
            types=types,
            texts=(text,) if text else (),
            contexts=plan["contexts"],
            chunks=0,
            depths=(),
            rounds=None,
            repetitions=0,
            quality=False,
            speed=False,
            trajectory=None,
            needle=needle.Plan(**plan),
            threads=threads,
            gpu_layers=gpu_layers,
            max_kld=0.1,
            budget=None,
            bin_dir=bin_dir,
            model_sha256=None,
        ),
        folder,
        form,
        {**report.FORMS, "csv": generation_tables.needle_csv},
    )
    if len(document["needle"]) < len(plan["contexts"]):
        raise CheckFailed("; ".join(document["notes"]) or "not every context was measured")
