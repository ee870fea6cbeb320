"""The outcomes of negative controls as a table."""

import json
from collections.abc import Sequence
from dataclasses import asdict

from turbokv_eval.comparison.selftest import Outcome
from turbokv_eval.output import tabular


def render(outcomes: Sequence[Outcome], form: str) -> str:
    """The outcomes in one of tabular.FORMATS."""
    if form == "json":
        return json.dumps([asdict(outcome) for outcome in outcomes], indent=1) + "\n"
    verdicts = {True: "pass", False: "FAIL", None: "-"}
    columns = ("control", "result", "what the checks said")
    rows: list[Sequence[str]] = [(outcome.name, verdicts[outcome.passed], outcome.said) for outcome in outcomes]
    return tabular.Table("", columns, rows, left=frozenset(columns)).rendered(form)
