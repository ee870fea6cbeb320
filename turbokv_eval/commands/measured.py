"""Runs a comparison for a command: progress on stderr, its result on stdout, exit code 1 when a row failed."""

import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from turbokv_eval.comparison import store
from turbokv_eval.comparison.run import Comparison
from turbokv_eval.comparison.settings import Settings
from turbokv_eval.errors import CheckFailed, Interrupted
from turbokv_eval.output import report
from turbokv_eval.progress import Meter, meter


def run_and_print(
    settings: Callable[[Meter], Settings],
    folder: Path,
    form: str,
    forms: Mapping[str, Callable[[dict[str, Any]], str]] = report.FORMS,
) -> dict[str, Any]:
    """Takes up the run in `folder`, or begins one, and prints its document, which it returns, in one of the forms."""
    try:
        with meter(Console(stderr=True)) as show, store.opened(folder) as opened:
            measured = Comparison(settings(show), opened, show, sys.argv)
            document = measured.run()
            opened.save_table(report.as_text(document))
    except KeyboardInterrupt:
        found = folder / "compare.json"
        where = f"; what was measured so far is in {found}" if found.is_file() else ""
        raise Interrupted(f"stopped{where}") from None
    console = Console()
    if form == "table" and console.is_terminal:
        report.print_to(console, document)
    else:
        click.echo(forms[form](document), nl=False)
    click.echo(f"results: {opened.json}", err=True)
    if failed := measured.failed_rows:
        names = ", ".join(row["label"] for row in failed)
        raise CheckFailed(f"{len(failed)} of {len(document['rows'])} rows failed ({names}); logs: {opened.logs}")
    return document
