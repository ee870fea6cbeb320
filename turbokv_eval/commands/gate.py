"""`turbokv-eval gate`: options, and the outputs of its lines."""

import json
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import click

from turbokv_eval.commands.command import PATH, Command, form_option
from turbokv_eval.errors import CheckFailed
from turbokv_eval.output import tabular
from turbokv_eval.results import gate, reader


@click.command(
    "gate",
    cls=Command,
    examples=("turbokv-eval gate turbokv-compare/compare.json --budgets budgets.toml",),
    failed="a budget is not kept, was not measured, or applies to no row",
)
@click.argument("comparison", metavar="COMPARE.json", type=PATH)
@click.option("--budgets", type=PATH, required=True, metavar="FILE.toml", help="The limits.")
@form_option
def gate_command(comparison: Path, budgets: Path, form: str) -> None:
    """Hold a comparison against budgets, for CI.

    \b
    budgets.toml:
      max_kld = 0.2              # every row; false for none
      min_same_top = 80
      [rows.turbo3]              # this row, before the limits of every row
      max_kld = 0.1
      min_tg_ratio = 1.0         # against the row `baseline`, f16 unless you say so
      max_rss = "2GiB"

    \b
    Budgets: max_kld, max_kld_median, max_kld_p99, max_kld_p999, max_kld_max, max_ppl, max_ppl_ratio,
    min_same_top, max_rms_dp, min_greedy, min_needle, max_bits, max_kv, max_rss, min_tg, min_pp,
    min_tg_ratio, min_pp_ratio. Over several texts, contexts or depths, the worst counts.
    """
    lines = gate.check(reader.load(comparison), gate.read_budgets(budgets))
    failed = [line for line in lines if not line.passed]
    click.echo(render(lines, form), nl=False)
    if failed:
        raise CheckFailed(f"{len(failed)} of {len(lines)} budgets failed")
    if not lines:
        raise CheckFailed("no budget applies to any row: nothing was checked")


def render(lines: list[gate.Line], form: str) -> str:
    """The lines in one of tabular.FORMATS."""
    if form == "json":
        passed = all(line.passed for line in lines)
        document = {
            "schema_version": gate.SCHEMA_VERSION,
            "tool": "turbokv-eval gate",
            "passed": passed,
            "lines": [asdict(line) for line in lines],
        }
        return json.dumps(document, indent=2) + "\n"
    columns = ("row", "budget", "limit", "value", "at", "", "why")
    rows: list[Sequence[str]] = [
        [
            line.row,
            line.budget,
            line.limit,
            line.value or "-",
            line.where,
            "pass" if line.passed else "FAIL",
            line.reason,
        ]
        for line in lines
    ]
    if form == "csv":
        return tabular.as_csv((*columns[:5], "result", "why"), rows)
    table = tabular.Table("", columns, rows, left=frozenset(("budget", "at", "", "why")))
    return table.as_markdown() if form == "md" else table.as_text()
