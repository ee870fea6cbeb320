"""`turbokv-eval build`: the fork's programs."""

from typing import Any

import click
from rich.console import Console

from turbokv_eval.commands.command import Command
from turbokv_eval.errors import Interrupted
from turbokv_eval.machine import build
from turbokv_eval.progress import meter


@click.command(
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
