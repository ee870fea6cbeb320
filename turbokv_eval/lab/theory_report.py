"""The tables of `lab theory`: a pure function of its document."""

from __future__ import annotations

import json
from typing import Any

import pandas as pd
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from turbokv_eval.output import wide


def render(document: dict[str, Any]) -> Group:
    """The tables and what must be known to read them."""
    rows = document["distortion"]
    parts: list[RenderableType] = [Text(line) for line in _head(document["settings"])]
    parts.append(_mse_table([row for row in rows if row["method"] == "turboquant_mse"]))
    parts.append(_product_table([row for row in rows if row["method"] != "turboquant_mse"]))
    parts.append(_other_table(document["others"]))
    parts += [Text(f"broken: {claim}") for claim in document["broken"]]
    return Group(*parts)


def as_text(document: dict[str, Any]) -> str:
    """The tables as plain text."""
    return wide.as_text(render(document))


def as_markdown(document: dict[str, Any]) -> str:
    """The tables in GitHub-flavoured Markdown."""
    return wide.as_markdown(render(document))


def as_csv(document: dict[str, Any]) -> str:
    """One row for each method, dimension and rate; numbers unrounded, what a method does not have is empty."""
    frame = pd.json_normalize([*document["distortion"], *document["others"]])
    return frame.to_csv(index=False, lineterminator="\n")


def as_json(document: dict[str, Any]) -> str:
    """The document itself."""
    return json.dumps(document, indent=1) + "\n"


# By the names in tabular.FORMATS.
FORMS = {"table": as_text, "md": as_markdown, "csv": as_csv, "json": as_json}


def _head(settings: dict[str, Any]) -> list[str]:
    share = f"{100 * settings['confidence']:g} %"
    return [
        f"{settings['draws']} draws of {settings['rows']} unit vectors, seed {settings['seed']};"
        f" ± is half a {share} interval;",
        f"queries at cosine {settings['cosine']:g} to the rows. Bounds and paper: TurboQuant, arXiv:2504.19874.",
    ]


def _table(title: str, *headers: str) -> Table:
    table = Table(title=title, title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for index, header in enumerate(headers):
        table.add_column(header, justify="left" if index == 0 else "right", no_wrap=True)
    return table


def _spread(found: dict[str, float], digits: int) -> str:
    return f"{found['mean']:.{digits}f} ±{found['high'] - found['mean']:.{digits}f}"


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _mse_table(rows: list[dict[str, Any]]) -> Table:
    headers = ("bits", "MSE", "exact", "4^-b", "√3π/2 4^-b", "paper", "<q,x~>/<q,x>", "1 - exact")
    table = _table("TurboQuant_mse: |x - x~|² of unit vectors, and how much inner products shrink", "d", *headers)
    for row in rows:
        table.add_row(
            str(row["d"]),
            str(row["bits"]),
            _spread(row["mse"], 5),
            _number(row["mse_exact"], 5),
            _number(row["lower"], 5),
            _number(row["mse_bound"], 5),
            _number(row["mse_paper"], 3),
            _spread(row["slope"], 5),
            _number(row["slope_exact"], 5),
        )
    return table


def _product_table(rows: list[dict[str, Any]]) -> Table:
    headers = ("d", "bits", "<q,x~>/<q,x>", "d E(error²)", "4^-b", "bound", "π/2 |r|²", "paper")
    table = _table("Unbiased inner products: TurboQuant_prod and QJL", "method", *headers)
    for row in sorted(rows, key=lambda row: row["method"] == "qjl"):
        table.add_row(
            row["method"],
            str(row["d"]),
            str(row["bits"]),
            _spread(row["slope"], 4),
            _spread(row["d_ip_error"], 4),
            _number(row["lower"], 4) if row["method"] != "qjl" else "",
            _number(row["ip_bound"], 4),
            _number(row.get("ip_sharp_bound"), 4),
            _number(row.get("ip_paper"), 3),
        )
    return table


def _other_table(rows: list[dict[str, Any]]) -> Table:
    table = _table("Codes at their true rate, Gaussian rows", "method", "d", "bits/value", "NMSE", "4^-rate", "ratio")
    for row in rows:
        table.add_row(
            row["method"],
            str(row["d"]),
            f"{row['bits_per_value']:.4f}",
            _spread(row["nmse"], 5),
            _number(row["lower"], 5),
            f"{row['nmse']['mean'] / row['lower']:.2f}",
        )
    return table
