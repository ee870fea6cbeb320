"""`turbokv-eval report`: reads a comparison, writes its page."""

import errno
from pathlib import Path

import click

from turbokv_eval.commands.command import PATH, Command
from turbokv_eval.errors import BadInput, MachineCannot
from turbokv_eval.results import reader


@click.command(
    "report",
    cls=Command,
    examples=("turbokv-eval report turbokv-compare/compare.json -o report.html",),
    cannot="the disk is full",
)
@click.argument("comparison", metavar="COMPARE.json", type=PATH)
@click.option("--output", "-o", type=PATH, default="report.html", show_default=True, help="The page to write.")
def report_command(comparison: Path, output: Path) -> None:
    """Make one HTML page of a comparison: tables, plots, where the numbers come from. Prints its path.

    The page is one file that loads nothing and runs no script; the JSON is inside, to download.
    """
    # Here, because matplotlib takes longer to import than most commands take to run.
    from turbokv_eval.output import html_report

    page = html_report.render(reader.load(comparison))
    part = output.with_name(output.name + ".part")
    try:
        part.write_text(page, encoding="utf-8")
        # Whole or not at all: an older page stays when the disk is full.
        part.replace(output)
    except OSError as e:
        part.unlink(missing_ok=True)
        if e.errno == errno.ENOSPC:
            raise MachineCannot(f"cannot write {output}: the disk is full; free some space") from e
        raise BadInput(f"cannot write {output}: {e.strerror}; give another path with -o") from e
    click.echo(output)
