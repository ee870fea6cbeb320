"""`turbokv-eval doctor`: options, and the outputs of its checks."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from turbokv_eval import doctor, tabular
from turbokv_eval.errors import MachineCannot

_PATH = click.Path(path_type=Path)
_COLORS = {"ok": "green", "warn": "yellow", "fail": "red"}


@click.command("doctor")
@click.argument("model", type=_PATH, required=False)
@click.option("--bin", "bin_dir", type=_PATH, help="Folder of the programs.  [default: where `build` left them]")
@click.option("--output", "-o", type=click.Choice(tabular.FORMATS), default="table", show_default=True)
def doctor_command(model: Path | None, bin_dir: Path | None, output: str) -> None:
    """What is built, what it runs on, and whether a model can have a turbo cache; what to do about what is missing.

    \b
    Example:
      turbokv-eval doctor
      turbokv-eval doctor MODEL.gguf

    Each line is ok, warn or fail. Exit code 3 when one fails. A MODEL is loaded once, with a small cache.
    """
    checks = []
    for check in doctor.examine(bin_dir, model):
        checks.append(check)
        if output == "table":
            # As it is found: a load can take a while. click drops the colours where stdout is no terminal.
            click.echo(f"{click.style(f'{check.verdict:4}', fg=_COLORS[check.verdict])}  {check.name}: {check.found}")
            if check.way_out:
                click.echo(f"      -> {check.way_out}")
    document = doctor.document(checks)
    if output != "table":
        click.echo(_render(document, output), nl=False)
    failed = [check.name for check in checks if check.verdict == "fail"]
    if failed:
        raise MachineCannot(f"{len(failed)} of {len(checks)} checks failed: {', '.join(failed)}")


def _render(document: dict[str, Any], output: str) -> str:
    columns = ("verdict", "name", "found", "way_out")
    rows: list[Sequence[str]] = [[check[column] for column in columns] for check in document["checks"]]
    if output == "json":
        return json.dumps(document, indent=2) + "\n"
    if output == "csv":
        return tabular.as_csv(columns, rows)
    table = tabular.Table("", ("verdict", "check", "found", "what to do"), rows)
    table.left = frozenset(table.columns)
    return table.as_markdown()
