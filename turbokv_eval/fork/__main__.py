"""`python -m turbokv_eval.fork apply|export|check|status`. stdout is the result, stderr is progress."""

import click

from turbokv_eval.errors import CheckFailed
from turbokv_eval.fork.check import check
from turbokv_eval.fork.export import Into, export
from turbokv_eval.fork.paths import Layout
from turbokv_eval.fork.pin import load_pin
from turbokv_eval.fork.tree import apply, status


def _progress(text: str) -> None:
    click.echo(text, err=True)


_INTO = (
    "The patch, made if new, for changed upstream files that no patch owns. With GLOB: for the files that match,"
    " also out of other patches. May be given several times."
)


@click.group()
def main() -> None:
    """The soft fork of llama.cpp: materialise it, export edits back, check it."""


@main.command("apply")
@click.option("--discard", is_flag=True, help="Throw away edits in the tree that are not exported.")
def apply_command(discard: bool) -> None:
    """Make the tree what UPSTREAM, patches and overlay say, and print its path."""
    click.echo(apply(_progress, discard=discard))


@main.command("export")
@click.option("--into", "targets", multiple=True, metavar="NAME.patch[=GLOB]", help=_INTO)
@click.option("--why", default="", help="With --into, for a new patch: why it is needed.")
@click.option("--kind", default="", help="With --into, for a new patch: include, registration, call, ...")
@click.option("--retire-when", default="", help="With --into, for a new patch: when it can go.")
def export_command(targets: tuple[str, ...], why: str, kind: str, retire_when: str) -> None:
    """Turn edits in the tree into patches and overlay files, and print what was written."""
    if not targets and (why or kind or retire_when):
        raise click.UsageError("--why, --kind and --retire-when describe a new patch: name it with --into NAME.patch")
    parts = [target.partition("=") for target in targets]
    into = [Into(name, glob, why, kind, retire_when) for name, _, glob in parts]
    for line in export(_progress, into=into):
        click.echo(line)


@main.command("check")
def check_command() -> None:
    """Print one line for each fault of the series and the overlay; exit 1 if there is any."""
    findings = check(_progress)
    for line in findings:
        click.echo(line)
    if findings:
        raise SystemExit(CheckFailed.exit_code)
    _progress("the fork is sound: series, headers, context, owners, and apply then export gives no difference")


@main.command("status")
def status_command() -> None:
    """Print the pin, the tree's path and state, and the files edited in it."""
    layout = Layout.default()
    pin = load_pin(layout.source)
    state, edits = status(layout)
    click.echo(f"llama.cpp {pin.commit} from {pin.sdist}\n{layout.tree}: {state}")
    for path in edits:
        click.echo(f"  {path}")


if __name__ == "__main__":
    main(prog_name="python -m turbokv_eval.fork")
