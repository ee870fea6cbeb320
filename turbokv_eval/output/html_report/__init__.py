"""One self-contained HTML page from a comparison: a pure function of its document. Tables first, then plots.

It needs no script, loads nothing, and follows the reader's light or dark setting.
"""

import base64
import json
import shlex
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from turbokv_eval.output.html_report.needle_plot import heat_map, needle_contexts
from turbokv_eval.output.html_report.plots import all_plots, front_points, pareto_front
from turbokv_eval.results.reader import Needle, Number, Quality, Run
from turbokv_eval.units import MIB, format_size

_NONE, _TO, _TIMES, _MINUS = "\N{EN DASH}", "\N{EN DASH}", "\N{MULTIPLICATION SIGN}", "\N{MINUS SIGN}"


@dataclass(frozen=True)
class Table:
    """heads: of the columns; rows: their head cell and the others. note: below. marked: head cells to point out."""

    name: str
    caption: str
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    note: str = ""
    marked: frozenset[str] = frozenset()


def render(run: Run) -> str:
    """The page. Every number comes from the document; what is missing is named."""
    environment = Environment(
        loader=PackageLoader("turbokv_eval.output.html_report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["command"] = shlex.join
    document = run.document
    raw = json.dumps(document, indent=1).encode()
    return environment.get_template("report.html.j2").render(
        title=_title(document),
        subtitle=_subtitle(run),
        status=run.status,
        recommendation=run.recommendation,
        failures=[(row.label, error) for row in run.rows for error in row.errors],
        notes=run.notes,
        tables=tables(run),
        plots=all_plots(run),
        needle_tables=[needle_table(run, ctx) for ctx in needle_contexts(run)],
        needle_plots=[heat_map(run, ctx) for ctx in needle_contexts(run)],
        provenance=provenance(run),
        command=document.get("command") or [],
        commands=[(row.label, row.commands) for row in run.rows if row.commands],
        data=base64.b64encode(raw).decode("ascii"),
        data_size=format_size(len(raw)),
    )


def tables(run: Run) -> list[Table]:
    """Sizes and quality by text and context, then speed."""
    front = frozenset(pareto_front(front_points(run)))
    found = [_sizes(run)]
    keys = list(dict.fromkeys((quality.text, quality.ctx) for row in run.rows for quality in row.quality))
    found += [_quality(run, number, text, ctx, front) for number, (text, ctx) in enumerate(keys, 1)]
    if any(row.trajectory for row in run.rows):
        found.append(_trajectory(run))
    if any(row.speed for row in run.rows):
        found.append(_speed(run))
    return found


def _sizes(run: Run) -> Table:
    f16 = run.row("f16")
    rows = []
    with_rss = any(row.rss_bytes is not None for row in run.rows)
    for row in run.rows:
        ratio = _NONE
        if f16 and f16.kv_bytes and row.kv_bytes and f16.cells == row.cells:
            ratio = f"{f16.kv_bytes / row.kv_bytes:.2f}{_TIMES}"
        keys = _NONE if row.conditioned is None else "conditioned" if row.conditioned else "plain"
        cells = [row.label, keys, _fixed(row.bits, 3), _fixed(row.kv_bytes and row.kv_bytes / MIB, 2), ratio]
        rows.append(cells + ([_size(row.rss_bytes)] if with_rss else []))
    cells_said = next((f" for {row.cells} tokens" for row in run.rows if row.cells), "")
    return Table(
        "size",
        "Size of the cache",
        ["cache K/V", "keys", "bits a value", "MiB", "against f16", *(["peak memory"] if with_rss else [])],
        rows,
        f"MiB as the runs report them{cells_said}; bits a value from these and the model's head sizes.",
    )


# name of a quality number, head of its column, digits
_COLUMNS = (
    ("ppl", "perplexity", 2),
    ("dppl", "less reference", 2),
    ("kld_mean", "mean KLD", 4),
    ("kld_median", "median", 4),
    ("kld_p99", "99%", 3),
    ("kld_p999", "99.9%", 3),
    ("kld_max", "max", 2),
    ("same_top", "same top %", 1),
    ("rms_dp", "RMS Δp %", 2),
)


def _quality(run: Run, number: int, text: str, ctx: int, front: frozenset[str]) -> Table:
    at: dict[str, Quality | None] = {
        row.label: next((q for q in row.quality if (q.text, q.ctx) == (text, ctx)), None) for row in run.rows
    }
    present = [
        column for column in _COLUMNS if any(quality and column[0] in quality.numbers for quality in at.values())
    ]
    heads = ["cache K/V", *(head for _, head, _ in present)]
    rows = [[label, *(_cell(quality, name, digits) for name, _, digits in present)] for label, quality in at.items()]
    if any(quality and quality.alike for quality in at.values()):
        heads.append("not told apart from")
        for cells, quality in zip(rows, at.values(), strict=True):
            cells.append(f"~ {', '.join(quality.alike)}" if quality and quality.alike else "")
    chunks = max((quality.chunks for quality in at.values() if quality), default=0)
    return Table(
        f"quality-{number}",
        f"Quality: {text or 'text'}, {chunks} chunks of {ctx} tokens",
        heads,
        rows,
        f"Against {_article(run.reference or 'a reference')}. KLD in nats; ± is half a 95% interval, of"
        " perplexity paired with the reference. "
        + (
            f"Noise floor: rounding alone gives a mean KLD of {floor:.4f}, a smaller one means nothing. "
            if (floor := run.noise_floors.get((text, ctx))) is not None
            else ""
        )
        + "~: no difference shown, of perplexity by its interval, of mean KLD by a permutation test. "
        + "● no other type has both fewer bits and less KLD.",
        front,
    )


def _cell(quality: Quality | None, name: str, digits: int) -> str:
    number = quality.numbers.get(name) if quality else None
    text = _measured(number, digits)
    if name != "dppl" or number is None:
        return text
    alike = number.low is not None and number.high is not None and number.low <= 0 <= number.high
    return f"{'+' if number.value > 0 else ''}{text}{' ~' if alike else ''}"


def _article(noun: str) -> str:
    return noun if noun.startswith(("a ", "an ")) else f"{'an' if noun[0] in 'aeiouf' else 'a'} {noun}"


def _speed(run: Run) -> Table:
    depths = sorted({speed.depth for row in run.rows for speed in row.speed})
    heads = [f"{kind} at {depth}" for depth in depths for kind in ("prompt", "generation")]
    rows = []
    for row in run.rows:
        cells = [row.label]
        for depth in depths:
            speed = row.speed_at(depth)
            cells += [_rate(speed.pp if speed else None), _rate(speed.tg if speed else None)]
        rows.append(cells)
    return Table(
        "speed",
        "Speed, tokens a second at depths of the cache",
        ["cache K/V", *heads],
        rows,
        "Medians; lowest and highest sample in brackets.",
    )


def _trajectory(run: Run) -> Table:
    rows, shapes = [], []
    for row in run.rows:
        found = row.trajectory
        if found is None:
            rows.append([row.label, *[_NONE] * 5])
            continue
        shapes.append((found.n, found.n_predict))
        cells = [_measured(found.mean, 1), f"{found.median.value:g}", f"{found.censored} of {found.n}"]
        rows.append([row.label, *cells, _measured(found.from_floor, 1), _measured(found.top1, 1)])
    n, n_predict = shapes[0]
    floor = run.trajectory_floor
    return Table(
        "trajectory",
        f"Token trajectory: {n} prompts, {n_predict} greedy tokens each",
        ["cache K/V", "tokens like f32", "median", "to the end", "less noise floor", "same top %"],
        rows,
        "Greedy tokens before the first that differs from the f32 reference's own text; an agreement to the end counts"
        f" as {n_predict} (censored). Same top token: along that text. ± is half a 95% bootstrap interval over prompts."
        + (f" Rounding alone (noise floor) gives {floor.value:.1f} tokens." if floor else ""),
    )


def needle_table(run: Run, ctx: int) -> Table:
    """Needles found at one context, by position."""
    depths = sorted({needle.depth for row in run.rows for needle in row.needle if needle.ctx == ctx})
    reference = {needle.depth: needle for needle in run.needle_reference if needle.ctx == ctx}
    rows = [["f32, of all", *(_share(reference.get(depth)) for depth in depths), _NONE]] if reference else []
    for row in run.rows:
        own = {needle.depth: needle for needle in row.needle if needle.ctx == ctx}
        rows.append([row.label, *(_share(own.get(depth)) for depth in depths), _measured(row.dlogprob.get(ctx), 2)])
    return Table(
        f"needle-{ctx}",
        f"Needles found at {ctx} tokens, by position in the text",
        ["cache K/V", *(f"{depth:g}%" for depth in depths), "log p less f32's"],
        rows,
        "Planted facts that greedy generation finds, of those that the f32 reference finds. Log p: of the answer, nats,"
        " mean over all facts; ± is half a 95% bootstrap interval.",
    )


def _share(needle: Needle | None) -> str:
    if needle is None:
        return _NONE
    return f"{needle.found} of {needle.n}" if needle.n else "no evidence"


def provenance(run: Run) -> list[tuple[str, str]]:
    """Where the numbers come from, as names and values."""
    document = run.document
    found: list[tuple[str, str]] = []

    def add(name: str, value: Any) -> None:
        if value not in (None, "", [], {}):
            found.append((name, value if isinstance(value, str) else ", ".join(map(str, _flat(value)))))

    model, texts = document.get("model") or {}, document.get("texts") or []
    build, host = document.get("build") or {}, document.get("host") or {}
    add("status", run.status)
    add("started", document.get("started"))
    add("finished", document.get("finished"))
    add("model", model.get("path") or model.get("file"))
    add("model SHA-256", model.get("sha256"))
    add("text", [entry["path"] for entry in texts])
    add("text SHA-256", [entry["sha256"] for entry in texts])
    add("programs", build.get("version"))
    for name, digest in (build.get("sha256") or {}).items():
        add(f"SHA-256 of {name}", digest)
    add("processor", f"{host.get('cpu')}, {host.get('cpus')} processors" if host.get("cpu") else None)
    add("memory", _size(host.get("memory_bytes")) if host.get("memory_bytes") else None)
    add("system", host.get("system"))
    for name, version in (document.get("versions") or {}).items():
        add(name, version)
    return found


def _flat(value: Any) -> list[Any]:
    if isinstance(value, dict):
        return [f"{key}: {item}" for key, item in value.items()]
    return list(value) if isinstance(value, list | tuple) else [value]


def _title(document: dict[str, Any]) -> str:
    model = document.get("model") or {}
    return str(model.get("name") or model.get("file") or "a model")


def _subtitle(run: Run) -> str:
    model = run.document.get("model") or {}
    parts = [str(model[name]) for name in ("file", "arch") if model.get(name)]
    if model.get("key_length"):
        parts.append(f"heads of {model['key_length']} values")
    parts.append(f"{len(run.rows)} cache types")
    return ", ".join(parts)


def _fixed(value: float | None, digits: int) -> str:
    return _NONE if value is None else f"{value:.{digits}f}".replace("-", _MINUS)


def _measured(number: Number | None, digits: int) -> str:
    if number is None:
        return _NONE
    text = _fixed(number.value, digits)
    if number.low is None or number.high is None:
        return text
    return f"{text} ±{(number.high - number.low) / 2:.{digits}f}"


def _rate(number: Number | None) -> str:
    if number is None:
        return _NONE
    digits = 0 if number.value >= 100 else 1
    text = f"{number.value:.{digits}f}"
    if number.low is None or number.high is None or number.low == number.high:
        return text
    return f"{text} ({number.low:.{digits}f}{_TO}{number.high:.{digits}f})"


def _size(value: int | None) -> str:
    return _NONE if value is None else format_size(value)
