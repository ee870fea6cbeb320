"""The tables of quality in a comparison's document: perplexity and KL divergence of each row, by evaluation."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from turbokv_eval.comparison.evaluation import quality_at
from turbokv_eval.output import wide
from turbokv_eval.results import chunk_statistics, reader

# A header and a cell for each record.
Column = tuple[str, list[str]]
_Number = Callable[[float], str]


def tables(document: dict[str, Any]) -> Iterator[Table | Text]:
    """Sizes and perplexity, then divergence; with several evaluations sizes apart, and a heading above each."""
    measured = [entry for entry in document["evaluations"] if entry["reference"]]
    if len(measured) != 1:
        yield _table(document, None, sizes(document))
    for entry in measured:
        if len(measured) > 1:
            yield Text(f"\n{place(document, entry)}", style="bold")
        yield _table(document, entry, [*(sizes(document, entry) if len(measured) == 1 else ()), *_ppl(document, entry)])
        yield _table(document, entry, _divergence(document, entry))


def place(document: dict[str, Any], entry: dict[str, Any]) -> str:
    """The text of an evaluation, its chunks and its context."""
    name = reader.text_names(document)[entry["text"]]
    return f"{name}, {entry['reference']['chunks']} chunks of {entry['ctx']} tokens"


def sizes(document: dict[str, Any], entry: dict[str, Any] | None = None) -> list[Column]:
    """Keys, bits and bytes of every record."""
    rows = document["rows"]
    # the noise floor is no cache type to choose, so it has no bits
    floor = ["cond.", "-", "-", "-"] if entry and entry["noise_floor"] else []
    f16 = next((row["kv"]["mib"] for row in rows if row["kv"] and row["label"] == chunk_statistics.BASELINE), None)
    cells = [
        [
            "" if not row["kv"] else "cond." if row["kv"]["conditioned"] else "plain",
            "-" if row["bits_per_value"] is None else f"{row['bits_per_value']:.2f}",
            "-" if not row["kv"] else f"{row['kv']['mib']:.2f}",
            "-" if not row["kv"] or not f16 else f"{f16 / row['kv']['mib']:.2f}x",
        ]
        for row in rows
    ]
    heads = ("keys", "bits/\nvalue", "KV\nMiB", *(["vs\nf16"] if f16 else []))
    all_cells = [*([floor] if floor else []), *cells]
    return [(head, [record[i] for record in all_cells]) for i, head in enumerate(heads)]


def _ppl(document: dict[str, Any], entry: dict[str, Any]) -> list[Column]:
    qualities = _qualities(document, entry)
    ends = _ends(qualities, "dppl")
    same = [found is not None and found[0] <= 0 <= found[1] for found in ends]
    columns = [
        ("PPL", _numbers(qualities, "ppl", "{:.2f}".format)),
        ("95%,\npaired", _intervals(qualities, "ppl", "{:.2f}".format)),
        ("ΔPPL", _numbers(qualities, "dppl", "{:+.2f}".format)),
        ("95%,\npaired", _intervals(qualities, "dppl", "{:+.2f}".format)),
    ]
    return columns + ([("", ["~" if alike else "" for alike in same])] if any(same) else [])


def _divergence(document: dict[str, Any], entry: dict[str, Any]) -> list[Column]:
    qualities = _qualities(document, entry)
    columns = [
        ("mean\nKLD", _numbers(qualities, "kld_mean", "{:.4f}".format)),
        ("95%", _intervals(qualities, "kld_mean", "{:.4f}".format)),
        ("median\nKLD", _numbers(qualities, "kld_median", "{:.4f}".format)),
        ("99%\nKLD", _numbers(qualities, "kld_p99", "{:.3f}".format)),
        ("99.9%\nKLD", _numbers(qualities, "kld_p999", "{:.3f}".format)),
        ("max\nKLD", _numbers(qualities, "kld_max", "{:.2f}".format)),
        ("same top\ntoken %", _with_error(qualities, "same_top", "same_top_err", 1)),
        ("RMS\nΔp %", _with_error(qualities, "rms_dp", "rms_dp_err", 2)),
    ]
    floor: list[list[str]] = [[]] if entry["noise_floor"] else []
    alike = floor + [chunk_statistics.alike(document, entry, row["label"]) for row in document["rows"]]
    cells = [f"~ {', '.join(names)}" if names else "" for names in alike]
    return columns + ([("not told\napart from", cells)] if any(alike) else [])


def _qualities(document: dict[str, Any], entry: dict[str, Any]) -> list[dict[str, Any] | None]:
    floor = [entry["noise_floor"]["quality"]] if entry["noise_floor"] else []
    return [*floor, *(quality_at(row, entry) for row in document["rows"])]


def _table(document: dict[str, Any], entry: dict[str, Any] | None, columns: Sequence[Column]) -> Table:
    table = wide.table("cache\nK/V", *(head for head, _ in columns))
    failed = [row["status"] == "failed" for row in document["rows"]]
    labels = [
        f"{row['label']} FAILED" if bad else row["label"] for row, bad in zip(document["rows"], failed, strict=True)
    ]
    if entry and entry["noise_floor"]:
        labels, failed = [entry["noise_floor"]["label"], *labels], [False, *failed]
    for i, (label, bad) in enumerate(zip(labels, failed, strict=True)):
        table.add_row(label, *(cells[i] for _, cells in columns), style="red" if bad else None)
    return table


def _numbers(qualities: Sequence[dict[str, Any] | None], name: str, shown: _Number) -> list[str]:
    return ["-" if found is None else shown(found[name]) for found in qualities]


def _with_error(qualities: Sequence[dict[str, Any] | None], name: str, error: str, digits: int) -> list[str]:
    return ["-" if found is None else f"{found[name]:.{digits}f} ±{found[error]:.{digits}f}" for found in qualities]


def _intervals(qualities: Sequence[dict[str, Any] | None], name: str, shown: _Number) -> list[str]:
    found = _ends(qualities, name)
    return ["-" if ends is None else f"{shown(ends[0])} to {shown(ends[1])}" for ends in found]


def _ends(qualities: Sequence[dict[str, Any] | None], name: str) -> list[tuple[float, float] | None]:
    return [None if quality is None else reader.interval(quality, name) for quality in qualities]
