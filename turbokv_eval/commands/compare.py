"""`turbokv-eval compare` and `bench`, which is a part of it."""

from typing import Any

import click
from rich.console import Console

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
    model_option,
    threads_option,
)
from turbokv_eval.comparison import selftest
from turbokv_eval.comparison.needle import Plan as NeedlePlan
from turbokv_eval.comparison.settings import Settings
from turbokv_eval.comparison.trajectory import Plan as TrajectoryPlan
from turbokv_eval.errors import BadInput, CheckFailed
from turbokv_eval.output import selftest_table
from turbokv_eval.progress import LineMeter, Meter
from turbokv_eval.units import parse_size


def _shared(command: Any) -> Any:
    """The options that `compare` and `bench` have in common."""
    options = (
        model_option,
        click.option("--model-sha256", metavar="HEX", help="Read all of the model, refuse another SHA-256."),
        click.option(
            "--types",
            default=api.DEFAULT_TYPES,
            show_default=True,
            help="Cache types; K/V: a pair, +0-1,-1:q8_0: some layers, @off: plain keys.",
        ),
        threads_option,
        gpu_layers_option,
        click.option(
            "--depths",
            type=Numbers("0,4096", least=0),
            default="0,4096",
            show_default=True,
            help="Tokens in the cache before.",
        ),
        click.option("--rounds", type=click.IntRange(min=1), help="At each depth.  [default: 3, beyond depth 1024: 1]"),
        click.option(
            "-r", "--repetitions", type=click.IntRange(min=1), default=2, show_default=True, help="In a round."
        ),
        click.option(
            "--run",
            "output",
            type=PATH,
            default="turbokv-compare",
            show_default=True,
            help="Folder of results.",
        ),
        form_option,
        bin_option,
    )
    for option in reversed(options):
        command = option(command)
    return command


# When `compare` and `bench` end with 1 and with 3.
_FAILED = "a row failed, or the reference"
_CANNOT = "the programs are not built, no network for the default model, no disk space"


@click.command(
    "compare",
    cls=Command,
    examples=(
        "turbokv-eval compare",
        "turbokv-eval compare -m MODEL.gguf -f TEXT --types f16,q8_0,turbo3,q8_0/turbo3",
    ),
    failed=_FAILED,
    cannot=_CANNOT,
)
@click.option(
    "-f",
    "--file",
    "texts",
    type=PATH,
    multiple=True,
    help="Plain text; repeatable.  [default: State of the Union messages, downloaded once]",
)
@click.option(
    "--contexts",
    "--ctx",
    "-c",
    type=CONTEXTS,
    default="512",
    show_default=True,
    help="Tokens of a chunk.",
)
@click.option("--chunks", type=click.IntRange(min=1), default=12, show_default=True, help="Of each text and context.")
@click.option("--no-quality", is_flag=True, help="Only sizes and speed.")
@click.option("--max-kld", type=click.FloatRange(min=0), default=0.1, show_default=True, help="Of the recommendation.")
@click.option("--budget", metavar="SIZE", help="Memory for the cache, as 16GiB; of the recommendation.")
@click.option("--no-trajectory", is_flag=True, help="Without how far greedy texts agree with the reference's.")
@click.option("--no-needle", is_flag=True, help="Without the retrieval of planted facts.")
@click.option(
    "--needle-contexts",
    type=CONTEXTS,
    default="512",
    show_default=True,
    help="Tokens of haystack and question.",
)
@click.option("--no-speed", is_flag=True, help="Only sizes and quality.")
@click.option("--selftest", is_flag=True, help="Only runs that are not what they claim: each must be noticed.")
@_shared
def compare_command(selftest: bool, **options: Any) -> None:
    """What each cache type costs and keeps, on a real model: size, perplexity, KL divergence, generation, speed.

    Prints tables; the folder of results gets compare.json (all numbers and where they came from), compare.txt and the
    log of every run. About 10 minutes with the defaults on 2 processors.
    """
    if selftest:
        _selftest(options)
    else:
        _compare(options)


@click.command(
    "bench",
    cls=Command,
    examples=("turbokv-eval bench -m MODEL.gguf --types f16,turbo3 --depths 0,8192",),
    failed="a row failed",
    cannot=_CANNOT,
)
@_shared
def bench_command(**options: Any) -> None:
    """Size and speed of each cache type, without the quality part: `compare --no-quality`."""
    _compare({**options, "texts": (), "contexts": (512,), "chunks": 1, "no_quality": True, "no_speed": False})


def _compare(options: dict[str, Any]) -> None:
    if options["no_quality"] and options["no_speed"]:
        raise BadInput("--no-quality and --no-speed leave nothing to do: drop one")
    measured.run_and_print(lambda show: _settings(options, show), options["output"], options["form"])


def _selftest(options: dict[str, Any]) -> None:
    show = LineMeter(Console(stderr=True))
    chosen = _settings({**options, "texts": (), "no_quality": True}, show)
    outcomes = selftest.check(chosen.bin_dir, chosen.model.path, ctx=max(chosen.contexts), threads=chosen.threads)
    click.echo(selftest_table.render(outcomes, options["form"]), nl=False)
    if slipped := [outcome.name for outcome in outcomes if outcome.passed is False]:
        raise CheckFailed(f"{len(slipped)} of {len(outcomes)} controls failed ({', '.join(slipped)})")


def _settings(options: dict[str, Any], show: Meter) -> Settings:
    generates = not options["no_quality"]
    contexts = options.get("needle_contexts", ())
    return api.settings(
        show,
        model=options["model"],
        types=options["types"],
        texts=options["texts"],
        contexts=options["contexts"],
        chunks=options["chunks"],
        depths=options["depths"],
        rounds=options["rounds"],
        repetitions=options["repetitions"],
        quality=not options["no_quality"],
        speed=not options["no_speed"],
        trajectory=TrajectoryPlan() if generates and not options["no_trajectory"] else None,
        needle=NeedlePlan(contexts) if generates and not options["no_needle"] else None,
        threads=options["threads"],
        gpu_layers=options["gpu_layers"],
        max_kld=options.get("max_kld", 0.1),
        budget=parse_size(options["budget"]) if options.get("budget") else None,
        bin_dir=options["bin_dir"],
        model_sha256=options["model_sha256"],
    )
