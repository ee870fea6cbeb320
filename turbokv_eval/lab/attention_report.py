"""The tables of `lab attention`: a pure function of its document."""

import json
from typing import Any

import pandas as pd
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from turbokv_eval.lab.attention import RANKED_BY, SIDES
from turbokv_eval.output import wide

_COLUMNS = {
    "cosine": ("cosine of\nscores", 4),
    "score_error": ("rel. error\nof scores", 3),
    "kl": ("KL\nnats", 4),
    "top1": ("same\ntop 1 %", 1),
    "top5": ("same\ntop 5 %", 1),
    "output_error": ("rel. error\nof output", 4),
}


def frame(document: dict[str, Any]) -> pd.DataFrame:
    """One row for each method and side; numbers unrounded, missing ones NaN.

    Columns: side, group, bits_per_value, method, pareto, the metrics, baseline, ratio, ratio_low, ratio_high.
    """
    records = []
    for row in document["rows"]:
        against = row["ratio"] or {"baseline": None, "value": None, "low": None, "high": None}
        records.append(
            {name: row[name] for name in ("side", "group", "bits_per_value", "method", "pareto")}
            | {metric: row["metrics"].get(metric) for metric in _COLUMNS}
            | {"baseline": against["baseline"]}
            | {"ratio": against["value"], "ratio_low": against["low"], "ratio_high": against["high"]}
        )
    return pd.DataFrame.from_records(records)


def as_csv(document: dict[str, Any]) -> str:
    """`frame` as CSV."""
    return frame(document).to_csv(index=False, lineterminator="\n")


def as_text(document: dict[str, Any]) -> str:
    """The tables as plain text."""
    return wide.as_text(render(document))


def as_markdown(document: dict[str, Any]) -> str:
    """The tables in GitHub-flavoured Markdown."""
    return wide.as_markdown(render(document))


def as_json(document: dict[str, Any]) -> str:
    """The document itself."""
    return json.dumps(document, indent=1) + "\n"


# By the names in tabular.FORMATS.
FORMS = {"table": as_text, "md": as_markdown, "csv": as_csv, "json": as_json}


def render(document: dict[str, Any]) -> Group:
    """The tables and what must be known to read them."""
    capture = document["capture"]
    layers = ", ".join(map(str, capture["layers"]))
    parts: list[RenderableType] = [
        Text(f"{capture['model']} (head dim {capture['head_dim']}), layers {layers}", style="bold")
    ]
    for side in SIDES:
        rows = [row for row in document["rows"] if row["side"] == side]
        if rows:
            parts += [Text(f"\n{side.capitalize()} quantised, the other side exact", style="bold"), _table(side, rows)]
    parts += [Text(line) for line in _footer(document)]
    return Group(*parts)


def _table(side: str, rows: list[dict[str, Any]]) -> Table:
    metrics = [metric for metric in _COLUMNS if metric in rows[0]["metrics"]]
    ranked = RANKED_BY[side]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    table.add_column("group", no_wrap=True)
    table.add_column("bits/\nvalue", justify="right", no_wrap=True)
    table.add_column("method", no_wrap=True)
    for metric in metrics:
        table.add_column(_COLUMNS[metric][0], justify="right", no_wrap=True)
    name = "KL" if ranked == "kl" else "error"
    table.add_column(f"{name} / baseline\n(95% interval)", no_wrap=True)
    last = None
    for row in rows:
        if last is not None and row["group"] != last:
            table.add_section()
        cells = [f"{row['group']:g}" if row["group"] != last else "", f"{row['bits_per_value']:.3f}"]
        cells.append(row["method"] + (" *" if row["pareto"] else ""))
        for metric in metrics:
            value = row["metrics"][metric] * (100 if metric.startswith("top") else 1)
            cells.append(f"{value:.{_COLUMNS[metric][1]}f}")
        table.add_row(*cells, _ratio(row))
        last = row["group"]
    return table


def _ratio(row: dict[str, Any]) -> str:
    found = row["ratio"]
    if found is None:
        return "-"
    if found["baseline"] == row["method"]:
        return "baseline"
    # An interval with 1 in it: no difference was seen.
    same = " ~" if found["low"] <= 1 <= found["high"] else ""
    return f"{found['value']:.3f} [{found['low']:.3f}, {found['high']:.3f}]{same}"


def _footer(document: dict[str, Any]) -> list[str]:
    settings, capture, calibration = (document[key] for key in ("settings", "capture", "calibration"))
    first, last = settings["evaluated"]
    units = len(document["rows"][0]["heads"]) if document["rows"] else 0
    lines = [
        f"Queries: tokens {first} to {last - 1} of {capture['text_file']}, in blocks of {settings['block']}; every key"
        f" before them; means over {units} heads.",
        f"Calibration: tokens {calibration['tokens'][0]} to {calibration['tokens'][1] - 1} of"
        f" {calibration['text_file']} ({calibration['file']}).",
    ]
    if settings["window"] or settings["sinks"]:
        lines.append(f"Kept as f16 and counted: {settings['sinks']} sinks, {settings['window']} recent tokens.")
    lines.append(
        "* on the Pareto front of its side; ~ no difference seen; intervals: paired bootstrap over heads x query"
        " blocks, against the baseline of the same half bit."
    )
    lines += [f"Left out: {row['method']} ({row['side']}): {row['why']}." for row in document["skipped"]]
    return lines
