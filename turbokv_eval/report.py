"""The tables of a comparison: a pure function of its document."""

from collections.abc import Callable, Iterator
from typing import Any

import pandas as pd
from rich import box
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from turbokv_eval import attention_time, tabular, wide
from turbokv_eval.recommend import recommend


def quality_frame(document: dict[str, Any]) -> pd.DataFrame:
    """One row for each type, numbers unrounded, missing ones NaN.

    Columns: type, status, bits_per_value, kv_mib, keys (cond. or plain, as the run reports), and the fields of the
    rows' `quality`.
    """
    records = [
        {
            "type": row["label"],
            "status": row["status"],
            "bits_per_value": row["bits_per_value"],
            "kv_mib": row["kv"]["mib"] if row["kv"] else None,
            "keys": "" if not row["kv"] else "cond." if row["kv"]["conditioned"] else "plain",
            **(row["quality"] or {}),
        }
        for row in document["rows"]
    ]
    return pd.DataFrame.from_records(records)


def speed_frame(document: dict[str, Any]) -> pd.DataFrame:
    """One row for each type, depth and kind (prompt or generation); tokens a second: median, min, max, n samples."""
    records = [
        {"type": row["label"], "depth": entry["depth"], "kind": kind}
        | {name: entry[kind].get(name) for name in ("median", "min", "max", "n")}
        for row in document["rows"]
        for entry in row["speed"]
        for kind in ("prompt", "generation")
    ]
    return pd.DataFrame.from_records(records, columns=["type", "depth", "kind", "median", "min", "max", "n"])


def render(document: dict[str, Any]) -> Group:
    """The tables and what must be known to read them."""
    parts: list[RenderableType] = [Text(_title(document), style="bold")]
    parts.append(_quality_table(document))
    parts += _speed_tables(document)
    parts += _attention_table(document)
    parts += [Text(line, style="bold red") for line in _failures(document)]
    parts += [Text(line) for line in _footer(document)]
    return Group(*parts)


def print_to(console: Console, document: dict[str, Any]) -> None:
    """Prints the tables, wide enough for every cell."""
    wide.print_to(console, render(document))


def as_text(document: dict[str, Any]) -> str:
    """The tables as plain text."""
    return wide.as_text(render(document))


def as_markdown(document: dict[str, Any]) -> str:
    """The tables in GitHub-flavoured Markdown, cells as `as_text` has them."""
    parts: list[str] = []
    for part in render(document).renderables:
        if isinstance(part, Table):
            columns = [str(column.header).replace("\n", " ") for column in part.columns]
            rows = [[str(cell) for cell in row] for row in zip(*(column.cells for column in part.columns), strict=True)]
            parts.append(tabular.Table("", columns, [*rows]).as_markdown())
        else:
            parts.append(f"{part}\n")
    return "\n".join(parts)


def _title(document: dict[str, Any]) -> str:
    model, settings = document["model"], document["settings"]
    title = f"{model['file']} ({model['arch']}, head dim {model['key_length']})"
    if document["reference"]:
        reference = document["reference"]
        title += f", {document['text']['file']}, {reference['chunks']} chunks of {settings['ctx']} tokens"
    return title


def _fixed(digits: int) -> Callable[[Any], str]:
    return lambda value: "-" if pd.isna(value) else f"{value:.{digits}f}"


def _with_error(digits: int) -> Callable[[Any, Any], str]:
    return lambda value, error: "-" if pd.isna(value) else f"{value:.{digits}f} ±{error:.{digits}f}"


def _table(*headers: str) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for index, header in enumerate(headers):
        table.add_column(header, justify="left" if index == 0 else "right", no_wrap=True, overflow="ignore")
    return table


def _quality_table(document: dict[str, Any]) -> Table:
    frame = quality_frame(document)
    f16 = {row["label"]: row["kv"]["mib"] for row in document["rows"] if row["kv"]}.get("f16")
    memory = ["bits/\nvalue", "KV\nMiB", *(["vs\nf16"] if f16 else [])]
    quality = [
        "PPL",
        "mean\nKLD",
        "median\nKLD",
        "99%\nKLD",
        "99.9%\nKLD",
        "max\nKLD",
        "same top\ntoken %",
        "RMS\nΔp %",
    ]
    measured = document["reference"] is not None
    table = _table("cache\nK/V", "keys", *memory, *(quality if measured else []))
    for row in [*_floor_record(document), *frame.to_dict("records")]:
        failed = row["status"] == "failed"
        cells = [f"{row['type']} FAILED" if failed else str(row["type"])]
        cells += [row["keys"], _fixed(2)(row["bits_per_value"]), _fixed(2)(row["kv_mib"])]
        if f16:
            cells.append("-" if pd.isna(row["kv_mib"]) else f"{f16 / row['kv_mib']:.2f}x")
        if measured:
            number = row.get
            cells += [
                _with_error(2)(number("ppl"), number("ppl_err")),
                _with_error(4)(number("kld_mean"), number("kld_err")),
                _fixed(4)(number("kld_median")),
                _fixed(3)(number("kld_p99")),
                _fixed(3)(number("kld_p999")),
                _fixed(2)(number("kld_max")),
                _with_error(1)(number("same_top"), number("same_top_err")),
                _fixed(2)(number("rms_dp")),
            ]
        table.add_row(*cells, style="red" if failed else None)
    return table


def _floor_record(document: dict[str, Any]) -> Iterator[dict[Any, Any]]:
    """The noise floor as a row of the table of quality; it is no cache type to choose, so it has no bits."""
    if floor := document.get("noise_floor"):
        size = {"status": "ok", "bits_per_value": None, "kv_mib": None}
        yield {"type": floor["label"], "keys": "cond.", **size, **floor["quality"]}


def _speed_tables(document: dict[str, Any]) -> Iterator[Table]:
    """Two depths to a table, so that a line stays short."""
    frame = speed_frame(document)
    depths = sorted(frame["depth"].unique())
    for first in range(0, len(depths), 2):
        shown = [(depth, kind) for depth in depths[first : first + 2] for kind in ("prompt", "generation")]
        table = _table("t/s\n(min-max)", *(f"{kind}\nat depth {depth}" for depth, kind in shown))
        for row in document["rows"]:
            cells = [row["label"]]
            for depth, kind in shown:
                cell = frame[(frame["type"] == row["label"]) & (frame["depth"] == depth) & (frame["kind"] == kind)]
                cells.append("-" if cell.empty else _rate(cell.iloc[0].to_dict()))
            table.add_row(*cells)
        yield table


def _attention_table(document: dict[str, Any]) -> Iterator[Table]:
    """The part of the time that the cache type decides, against f16's; none without f16, depth 0 and another depth."""
    f16 = next((row for row in document["rows"] if row["label"] == "f16"), None)
    depths = [entry["depth"] for entry in f16["speed"] if entry["depth"] > 0] if f16 else []
    shown = [(depth, kind) for depth in depths for kind in attention_time.KINDS]
    if f16 is None or not any(attention_time.ratio(f16, f16, *column) for column in shown):
        return
    table = _table("attention time,\nf16 = 1", *(f"{kind}\nat depth {depth}" for depth, kind in shown))
    for row in document["rows"]:
        ratios = [attention_time.ratio(row, f16, *column) for column in shown]
        table.add_row(row["label"], *("-" if ratio is None else f"{ratio:.2f}" for ratio in ratios))
    yield table


def _rate(entry: dict[Any, Any]) -> str:
    digits = 0 if entry["median"] >= 100 else 1
    text = f"{entry['median']:.{digits}f}"
    return text if entry["n"] < 2 else f"{text} ({entry['min']:.{digits}f}-{entry['max']:.{digits}f})"


def _failures(document: dict[str, Any]) -> Iterator[str]:
    for row in document["rows"]:
        for error in row["errors"]:
            yield f"FAILED {row['label']}: {error}"


def _footer(document: dict[str, Any]) -> Iterator[str]:
    settings, reference = document["settings"], document["reference"]
    cells = next((row["kv"]["cells"] for row in document["rows"] if row["kv"]), 0)
    if cells:
        yield f"KV MiB: as the run reports it, for {cells} tokens; bits/value: from that and the model's head sizes."
    if reference:
        yield (
            f"Reference: {reference['type']} cache without flash attention, PPL {reference['ppl']:.2f}"
            f" ±{reference['ppl_err']:.2f}, {reference['values']} scored tokens; KLD in nats. Every row has flash"
            f" attention on."
            + (
                " Noise floor: the reference again, its keys shifted and scaled, which is exactly equivalent: only"
                " rounding differs, and a smaller KLD means nothing."
                if document.get("noise_floor")
                else ""
            )
        )
    if any(row["speed"] for row in document["rows"]):
        rounds = ", ".join(f"{count} at depth {depth}" for depth, count in settings["rounds"].items())
        yield (
            f"Speed: {settings['n_prompt']} prompt and {settings['n_gen']} generated tokens, {settings['threads']}"
            f" threads; medians over interleaved rounds ({rounds}) of {settings['repetitions']};"
            f" {document['host']['cpu']}. Attention time: that of a token at a depth less that of one at depth 0."
        )
    pairs = [pair for pair in document.get("statistics") or [] if not pair["shown"]]
    chunks = reference["chunks"] if reference else 0
    # the smallest p that flipping signs of so many differences can give
    if pairs and len(document["statistics"]) * 2.0 ** (1 - chunks) > 0.05:
        yield f"{chunks} chunks are too few to show a difference of KLD between rows: use more --chunks."
    elif pairs:
        yield (
            "~ no difference of mean KLD shown (paired permutation test over chunks, Holm): "
            + ", ".join(f"{pair['a']} ~ {pair['b']}" for pair in pairs)
            + "."
        )
    # from the rows that are shown, so that it never speaks of one that failed
    if document.get("recommendation"):
        yield recommend(document, max_kld=settings["max_kld"], budget=settings["budget"])["text"]
    for note in document["notes"]:
        yield f"Note: {note}."
    if document["status"] != "complete":
        yield f"Status: {document['status']}: not every number is there."
