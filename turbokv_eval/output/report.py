"""The tables of a comparison: a pure function of its document."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import pandas as pd
from rich.console import Console, Group, RenderableType
from rich.table import Table
from rich.text import Text

from turbokv_eval.output import generation_tables, quality_tables, wide
from turbokv_eval.results import attention_time, chunk_statistics, paired, reader
from turbokv_eval.results.recommend import recommend


def quality_frame(document: dict[str, Any]) -> pd.DataFrame:
    """One row for each type, text and context; numbers unrounded, missing ones NaN.

    Columns: type, status, bits_per_value, kv_mib, keys (cond. or plain, as the run reports), text, ctx, the fields of
    the rows' `quality`, and the ends of their intervals, `NAME_low` and `NAME_high`.
    """
    return pd.DataFrame.from_records(_quality_records(document))


def _quality_records(document: dict[str, Any]) -> list[dict[str, Any]]:
    names = reader.text_names(document)
    records: list[dict[str, Any]] = []
    for row in document["rows"]:
        size = {
            "type": row["label"],
            "status": row["status"],
            "bits_per_value": row["bits_per_value"],
            "kv_mib": row["kv"]["mib"] if row["kv"] else None,
            "keys": "" if not row["kv"] else "cond." if row["kv"]["conditioned"] else "plain",
        }
        records += [size | _flat(quality, names) for quality in row["quality"]] or [size]
    return records


def _flat(quality: dict[str, Any], names: Sequence[str]) -> dict[str, Any]:
    found = {**quality, "text": names[quality["text"]]}
    del found["by_chunk"]
    for name in ("ppl", "dppl", "kld_mean"):
        found |= zip((f"{name}_low", f"{name}_high"), reader.interval(quality, name), strict=True)
    return found


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


def as_csv(document: dict[str, Any]) -> str:
    """`quality_frame` with generation, and the median, lowest and highest speed of each depth, in further columns."""
    more = {
        row["label"]: generation_tables.columns(row)
        | {
            f"{kind}_d{entry['depth']}_{name}": entry[kind].get(name)
            for entry in row["speed"]
            for kind in ("prompt", "generation")
            for name in ("median", "min", "max")
        }
        for row in document["rows"]
    }
    records = [record | more[record["type"]] for record in _quality_records(document)]
    return pd.DataFrame.from_records(records).to_csv(index=False, lineterminator="\n")


def render(document: dict[str, Any]) -> Group:
    """The tables and what must be known to read them."""
    parts: list[RenderableType] = [Text(_title(document), style="bold")]
    parts += quality_tables.tables(document)
    parts += generation_tables.tables(document)
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
    return wide.as_markdown(render(document))


def as_json(document: dict[str, Any]) -> str:
    """The document itself."""
    return json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n"


# By the names in tabular.FORMATS.
FORMS = {"table": as_text, "md": as_markdown, "csv": as_csv, "json": as_json}


def _title(document: dict[str, Any]) -> str:
    model = document["model"]
    title = f"{model['file']} ({model['arch']}, head dim {model['key_length']})"
    measured = [entry for entry in document["evaluations"] if entry["reference"]]
    return f"{title}, {quality_tables.place(document, measured[0])}" if len(measured) == 1 else title


def _speed_tables(document: dict[str, Any]) -> Iterator[Table]:
    """Two depths to a table, so that a line stays short."""
    frame = speed_frame(document)
    depths = sorted(frame["depth"].unique())
    for first in range(0, len(depths), 2):
        shown = [(depth, kind) for depth in depths[first : first + 2] for kind in ("prompt", "generation")]
        table = wide.table("t/s\n(min-max)", *(f"{kind}\nat depth {depth}" for depth, kind in shown))
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
    table = wide.table("attention time,\nf16 = 1", *(f"{kind}\nat depth {depth}" for depth, kind in shown))
    for row in document["rows"]:
        ratios = [attention_time.ratio(row, f16, *column) for column in shown]
        table.add_row(row["label"], *map(_ratio, ratios))
    yield table


def _ratio(found: attention_time.Ratio | None) -> str:
    if found is None:
        return "-"
    text = f"{found.value:.2f}"
    return text if found.lo == found.hi else f"{text} ({found.lo:.2f}-{found.hi:.2f})"


def _rate(entry: dict[Any, Any]) -> str:
    digits = 0 if entry["median"] >= 100 else 1
    text = f"{entry['median']:.{digits}f}"
    return text if entry["n"] < 2 else f"{text} ({entry['min']:.{digits}f}-{entry['max']:.{digits}f})"


def _failures(document: dict[str, Any]) -> Iterator[str]:
    for row in document["rows"]:
        for error in row["errors"]:
            yield f"FAILED {row['label']}: {error}"


def _footer(document: dict[str, Any]) -> Iterator[str]:
    settings = document["settings"]
    cells = next((row["kv"]["cells"] for row in document["rows"] if row["kv"]), 0)
    if cells:
        yield f"KV MiB: as the run reports it, for {cells} tokens; bits/value: from that and the model's head sizes."
    yield from _about_quality(document)
    yield from generation_tables.about(document)
    if any(row["speed"] for row in document["rows"]):
        rounds = ", ".join(f"{count} at depth {depth}" for depth, count in settings["rounds"].items())
        yield (
            f"Speed: {settings['n_prompt']} prompt and {settings['n_gen']} generated tokens, {settings['threads']}"
            f" threads; medians over interleaved rounds ({rounds}) of {settings['repetitions']};"
            f" {document['host']['cpu']}. Attention time: that of a token at a depth less that of one at depth 0."
        )
    # from the rows that are shown, so that it never speaks of one that failed
    if document.get("recommendation"):
        yield recommend(document, max_kld=settings["max_kld"], budget=settings["budget"])["text"]
    for note in document["notes"]:
        yield f"Note: {note}."
    if document["status"] != "complete":
        yield f"Status: {document['status']}: not every number is there."


def _about_quality(document: dict[str, Any]) -> Iterator[str]:
    entries = [entry for entry in document["evaluations"] if entry["reference"]]
    for entry in entries:
        reference = entry["reference"]
        at = f"{quality_tables.place(document, entry)}: " if len(entries) > 1 else ""
        yield (
            f"{at}Reference: {reference['type']} cache without flash attention, PPL {reference['ppl']:.2f}"
            f" ±{reference['ppl_err']:.2f}, {reference['values']} scored tokens; KLD in nats."
        )
    if entries:
        yield (
            "Every row has flash attention on. ±: standard error over tokens, as the run prints it."
            f" 95%: {_interval(entries)}; paired: of ln(PPL / PPL of the reference). ~: no difference shown."
        )
    if any(entry["noise_floor"] for entry in entries):
        yield (
            "Noise floor: the reference again, its keys shifted and scaled, which is exactly equivalent: only rounding"
            " differs, and a smaller KLD means nothing."
        )
    tests = len(document["family"]) * len(document["evaluations"])
    if entries and tests:
        chunks = min(entry["reference"]["chunks"] for entry in entries)
        if chunk_statistics.too_few(document, chunks):
            yield f"{chunks} chunks are too few to show a difference of KLD between rows: use more --chunks."
        else:
            yield (
                f"Told apart by mean KLD: paired permutation test over chunks, Holm over {tests} differences named"
                " before the run (each row against f16 and against the row before it)."
            )


def _interval(entries: Sequence[dict[str, Any]]) -> str:
    enough = min(entry["reference"]["chunks"] for entry in entries) >= paired.MIN_VALUES
    return "bootstrap over chunks" if enough else f"from the same (over chunks from {paired.MIN_VALUES} chunks on)"
