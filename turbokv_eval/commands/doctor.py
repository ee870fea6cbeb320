"""`turbokv-eval doctor`: options, and the outputs of its checks."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from turbokv_eval import doctor
from turbokv_eval.commands.command import PATH, Command, bin_option, form_option
from turbokv_eval.errors import MachineCannot
from turbokv_eval.output import tabular

_COLORS = {"ok": "green", "warn": "yellow", "fail": "red"}


@click.command(
    "doctor",
    cls=Command,
    examples=("turbokv-eval doctor", "turbokv-eval doctor MODEL.gguf"),
    cannot="a line says fail",
)
@click.argument("model", type=PATH, required=False)
@bin_option
@form_option
def doctor_command(model: Path | None, bin_dir: Path | None, form: str) -> None:
    """What is built, what it runs on, and whether a model can have a turbo cache; what to do about what is missing.

    Each line is ok, warn or fail. A MODEL is loaded once, with a small cache.
    """
    checks = []
    for check in doctor.examine(bin_dir, model):
        checks.append(check)
        if form == "table":
            # As it is found: a load can take a while. click drops the colours where stdout is no terminal.
            click.echo(f"{click.style(f'{check.verdict:4}', fg=_COLORS[check.verdict])}  {check.name}: {check.found}")
            if check.way_out:
                click.echo(f"      -> {check.way_out}")
    document = doctor.document(checks)
    if form != "table":
        click.echo(_render(document, form), nl=False)
    failed = [check.name for check in checks if check.verdict == "fail"]
    if failed:
        raise MachineCannot(f"{len(failed)} of {len(checks)} checks failed: {', '.join(failed)}")


def _render(document: dict[str, Any], form: str) -> str:
    columns = ("verdict", "name", "found", "way_out")
    rows: list[Sequence[str]] = [[check[column] for column in columns] for check in document["checks"]]
    if form == "json":
        return json.dumps(document, indent=2) + "\n"
    if form == "csv":
        return tabular.as_csv(columns, rows)
    table = tabular.Table("", ("verdict", "check", "found", "what to do"), rows)
    table.left = frozenset(table.columns)
    return table.as_markdown()
