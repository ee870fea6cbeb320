"""The command line. stdout: result; stderr: progress. Longer commands are in `commands/`."""

import signal
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from turbokv_eval import api
from turbokv_eval.commands import doctor, gate, measured, memory, needle, perplexity
from turbokv_eval.commands import report as report_page
from turbokv_eval.commands.command import PATH, Command, Group, bin_option, form_option, threads_option
from turbokv_eval.comparison import preflight, selftest
from turbokv_eval.comparison.needle import Plan as NeedlePlan
from turbokv_eval.comparison.settings import Settings
from turbokv_eval.comparison.trajectory import Plan as TrajectoryPlan
from turbokv_eval.errors import BadInput, CheckFailed, Interrupted
from turbokv_eval.lab.cli import lab
from turbokv_eval.machine import build, provenance
from turbokv_eval.models.gguf_info import read_model
from turbokv_eval.programs import condition
from turbokv_eval.progress import LineMeter, Meter, meter
from turbokv_eval.units import parse_size


@click.group(
    cls=Group,
    examples=("turbokv-eval build && turbokv-eval compare -m MODEL.gguf -f TEXT",),
    failed="a check failed",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(package_name="turbokv-eval")
@click.pass_context
def main(ctx: click.Context) -> None:
    """Build the turbokv fork of llama.cpp and compare its KV-cache types on your model."""
    # `kill`, or a job that runs out of time: as Ctrl-C, so that no program of a run is left behind.
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    ctx.call_on_close(lambda: signal.signal(signal.SIGTERM, before))


@main.command(
    "build",
    cls=Command,
    examples=(
        "turbokv-eval build",
        "turbokv-eval build --tests --jobs 2",
        "turbokv-eval build --backend cuda --cuda-arch 90",
    ),
    failed="it does not compile, or a source is not the one that is pinned",
    cannot="no compiler, git, network, memory or disk space",
)
@click.option("--backend", type=click.Choice(build.BACKENDS), default="cpu", show_default=True, help="What runs it.")
@click.option(
    "--cuda-arch",
    metavar="LIST",
    help="GPU architectures, as 86,90; native: this machine's.  [default: native, or all where there is no GPU]",
)
@click.option("--portable", is_flag=True, help="For any processor of this architecture (and any GPU), not only this.")
@click.option("--tests", is_flag=True, help="The test programs of the turbo types too (then `ctest -L turbo`).")
@click.option("--jobs", "-j", type=click.IntRange(min=1), help="Compilations at a time.  [default: all processors]")
@click.option("--sanitize", metavar="LIST", help="Only the codec test, with sanitizers: address,undefined or thread.")
def build_command(sanitize: str | None, **chosen: Any) -> None:
    """Materialise the fork and build its programs; print their folder.

    Needs a C++ compiler and git; CMake and Ninja come with this package, ccache is used where it is installed. For CUDA
    the machine's toolkit is used, or else its parts are installed from the package index (1.1 GB).
    """
    options = build.Options(sanitize=build.parse_sanitizers(sanitize), **chosen)
    console = Console(stderr=True)
    try:
        with meter(console) as show:
            folder = build.build(options, show.say, lambda done, total: show.update(done, total, "building"))
    except KeyboardInterrupt:
        raise Interrupted("stopped; run the same command again to go on with the build") from None
    click.echo(folder)


def _numbers(ctx: click.Context, param: click.Parameter, value: str, least: int = 0) -> tuple[int, ...]:
    """Comma-separated whole numbers, none below `least`, none twice."""
    try:
        numbers = tuple(int(part) for part in value.split(","))
    except ValueError:
        raise click.BadParameter(f"{value!r} is not a list of whole numbers such as 0,4096") from None
    if min(numbers) < least or len(set(numbers)) != len(numbers):
        raise click.BadParameter(f"{value!r} has a number below {least}, or one twice")
    return numbers


def _contexts(ctx: click.Context, param: click.Parameter, value: str) -> tuple[int, ...]:
    return _numbers(ctx, param, value, least=16)


def _shared(command: Any) -> Any:
    """The options that `compare` and `bench` have in common."""
    options = (
        click.option("-m", "--model", type=PATH, help="GGUF model.  [default: SmolLM2-135M-Instruct, downloaded once]"),
        click.option("--model-sha256", metavar="HEX", help="Read all of the model, refuse another SHA-256."),
        click.option(
            "--types",
            default=api.DEFAULT_TYPES,
            show_default=True,
            help="Cache types; K/V: a pair, +0-1,-1:q8_0: some layers, @off: plain keys.",
        ),
        threads_option,
        click.option(
            "--gpu-layers",
            "-ngl",
            type=click.IntRange(min=0),
            metavar="N",
            help="Layers on the GPU; a row whose cache is not there fails.  [default: the programs decide]",
        ),
        click.option(
            "--depths",
            callback=_numbers,
            metavar="N,N,...",
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


@main.command(
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
    callback=_contexts,
    metavar="N,N,...",
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
    callback=_contexts,
    metavar="N,N,...",
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
    log of every run. About 12 minutes with the defaults on 2 processors.
    """
    if selftest:
        _selftest(options)
    else:
        _compare(options)


@main.command(
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


@main.command(
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


main.add_command(lab)


def _compare(options: dict[str, Any]) -> None:
    if options["no_quality"] and options["no_speed"]:
        raise BadInput("--no-quality and --no-speed leave nothing to do: drop one")
    measured.run_and_print(lambda show: _settings(options, show), options["output"], options["form"])


def _selftest(options: dict[str, Any]) -> None:
    show = LineMeter(Console(stderr=True))
    chosen = _settings({**options, "texts": (), "no_quality": True}, show)
    outcomes = selftest.check(chosen.bin_dir, chosen.model.path, ctx=max(chosen.contexts), threads=chosen.threads)
    click.echo(selftest.render(outcomes, options["form"]), nl=False)
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


main.add_command(memory.memory_command)
main.add_command(needle.needle_command)
main.add_command(perplexity.perplexity_command)
main.add_command(doctor.doctor_command)
main.add_command(gate.gate_command)
main.add_command(report_page.report_command)
