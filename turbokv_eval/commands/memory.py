"""`turbokv-eval memory`: options, and the outputs of its document."""

import json
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import Any

import click

from turbokv_eval.commands.command import PATH, Command, form_option
from turbokv_eval.errors import BadInput
from turbokv_eval.models import kv_layout, memory
from turbokv_eval.models.gguf_meta import read
from turbokv_eval.models.kv_layers import parse as parse_rules
from turbokv_eval.models.types import parse_types
from turbokv_eval.output import tabular
from turbokv_eval.results import reader
from turbokv_eval.results.break_even import break_even
from turbokv_eval.units import MIB, format_size, parse_size

DEFAULT_TYPES = "f16,q8_0,q4_0,turbo4,turbo3,turbo2"


@click.command(
    "memory",
    cls=Command,
    examples=(
        "turbokv-eval memory MODEL.gguf --ctx 32768 --budget 16GiB",
        "turbokv-eval memory MODEL.gguf --types f16,turbo3,q8_0/turbo3 -o csv",
    ),
)
@click.argument("model", type=PATH)
@click.option("--ctx", "-c", type=click.IntRange(min=1), help="Tokens, over all sequences.  [default: as trained]")
@click.option("--budget", "-b", multiple=True, metavar="SIZE", help="Memory for weights and cache: 16GiB. Repeatable.")
@click.option("--reserve", metavar="SIZE", default="0", show_default=True, help="Kept free of a budget (buffers).")
@click.option("--types", default=DEFAULT_TYPES, show_default=True, help="Cache types; K/V for a pair; all.")
@click.option("--kv-layers", default="", metavar="RULES", help="Types of single layers, as --kv-layers: 0-1,-1:q8_0.")
@click.option("--parallel", "-np", type=click.IntRange(1, 256), default=1, show_default=True, help="Sequences.")
@click.option("--unified", is_flag=True, help="The sequences share one cache (-kvu).")
@click.option("--ubatch", "-ub", type=click.IntRange(min=1), default=memory.UBATCH, show_default=True, help="As -ub.")
@click.option("--swa-full", is_flag=True, help="Sliding windows are kept whole, as --swa-full.")
@click.option("--run", "measured", type=PATH, metavar="COMPARE.json", help="A comparison, for the break-even.")
@form_option
def memory_command(
    model: Path,
    ctx: int | None,
    budget: tuple[str, ...],
    reserve: str,
    types: str,
    kv_layers: str,
    parallel: int,
    unified: bool,
    ubatch: int,
    swa_full: bool,
    measured: Path | None,
    form: str,
) -> None:
    """How much memory each cache type takes, from the model's metadata alone: nothing is run.

    The sizes are those of the buffers that llama.cpp allocates, to the byte. Compute buffers come on top of a budget:
    leave room for them with --reserve. The break-even is the number of generated tokens after which fewer bytes to read
    have repaid a slower prompt; it needs measured speeds, so it is only there with --run.
    """
    layout = kv_layout.read_layout(read(model))
    shape = memory.Shape(ctx or layout.n_ctx_train, parallel, unified, ubatch, swa_full)
    if shape.ctx <= 0:
        raise BadInput(f"{model} does not say how long a context it was trained for: give one with --ctx")
    configs = parse_types(",".join(memory.KNOWN) if types == "all" else types, memory.KNOWN)
    rules = parse_rules(kv_layers, memory.KNOWN)
    found = memory.document(layout, configs, shape, [parse_size(size) for size in budget], parse_size(reserve), rules)
    _add_break_even(found, measured, layout.weights)
    click.echo(render(found, form), nl=False)


def _add_break_even(document: dict[str, Any], measured: Path | None, weights: int) -> None:
    """Adds `break_even` to every row: from the run, or None."""
    run = None if measured is None else reader.load(measured)
    if run is not None and (size := run.document.get("model", {}).get("bytes")) not in (None, weights):
        raise BadInput(f"{measured} is a comparison of another model ({size} bytes, not {weights}): give one of this")
    for row in document["rows"]:
        row["break_even"] = None if run is None else asdict(break_even(run, row["label"]))
    if run is None:
        document["notes"].append("no break-even: it needs measured speeds, from a comparison given with --run")


def render(document: dict[str, Any], form: str) -> str:
    """The document in one of tabular.FORMATS."""
    if form == "json":
        return json.dumps(document, indent=2) + "\n"
    if form == "csv":
        return _csv(document)
    tables = [_sizes(document), _layers(document)]
    if form == "md":
        remarks = [f"- {line}" for line in _remarks(document)]
        return "\n".join([*(table.as_markdown() for table in tables), *remarks, ""])
    return "\n".join([*(table.as_text() for table in tables), *_remarks(document), ""])


def _sizes(document: dict[str, Any]) -> tabular.Table:
    model, settings, rows = document["model"], document["settings"], document["rows"]
    budgets = settings["budgets"]
    columns = ["cache K/V", "bits/value", "bytes/token", f"MiB at {settings['ctx']}", "vs f16", "with weights"]
    columns += [f"ctx in {format_size(budget)}" for budget in budgets]
    depth = max((row["break_even"]["depth"] for row in rows if row["break_even"]), default=0)
    columns += [f"break-even at {depth}"] if depth else []
    table = tabular.Table(f"{model['name']} ({model['arch']}), weights {format_size(model['weight_bytes'])}", columns)
    f16 = next((row["bytes"] for row in rows if row["label"] == "f16" and not row["error"]), None)
    for row in rows:
        if row["error"]:
            table.rows.append([row["label"], *["-"] * (len(columns) - 1)])
            continue
        table.rows.append(
            [
                row["label"],
                f"{row['bits_per_value']:.3f}",
                str(row["bytes_per_token"]),
                f"{row['bytes'] / MIB:.2f}",
                f"{f16 / row['bytes']:.2f}x" if f16 else "-",
                format_size(row["total_bytes"]),
                *(_context(entry["ctx"], model["n_ctx_train"]) for entry in row["largest_context"]),
                *([_tokens(row["break_even"]["tokens"])] if depth else []),
            ]
        )
    return table


def _tokens(tokens: int | None) -> str:
    return "-" if tokens is None else f"{tokens} tokens"


def _context(ctx: int, trained: int) -> str:
    if ctx == 0:
        return "does not fit"
    return f"{ctx}*" if trained and ctx > trained else str(ctx)


def _layers(document: dict[str, Any]) -> tabular.Table:
    """Layers that are alike in one line; bytes of one token in one of them."""
    rows = [row for row in document["rows"] if not row["error"]]
    layers = document["model"]["layers"]
    columns = ["layers", "kind", "cells", "K heads", "V heads", *(row["label"] for row in rows)]
    table = tabular.Table("Bytes of one token in one layer", columns, left=frozenset(("kind", "K heads", "V heads")))

    def key(i: int) -> tuple[Any, ...]:
        layer = layers[i]
        types = tuple((row["layers"][i]["k_type"], row["layers"][i]["v_type"]) for row in rows)
        return layer["kind"], layer["heads_kv"], layer["key_length"], layer["value_length"], types

    found: dict[tuple[Any, ...], list[int]] = {}
    for i in range(len(layers)):
        found.setdefault(key(i), []).append(i)
    for (kind, heads, k_length, v_length, _), members in found.items():
        first = [row["layers"][members[0]] for row in rows]
        table.rows.append(
            [
                _ranges([layers[i]["layer"] for i in members]),
                kind,
                str(first[0]["cells"]),
                f"{heads} x {k_length}",
                "view of K" if v_length is None else f"{heads} x {v_length}",
                *(str(layer["k_bytes_per_token"] + layer["v_bytes_per_token"]) for layer in first),
            ]
        )
    return table


def _ranges(numbers: list[int]) -> str:
    """`0-4, 6-10`; a regular pattern of more than 3 pieces as `15 of 0-16`."""
    pieces = [[n for _, n in group] for _, group in groupby(enumerate(numbers), key=lambda pair: pair[1] - pair[0])]
    if len(pieces) > 3:
        return f"{len(numbers)} of {numbers[0]}-{numbers[-1]}"
    return ", ".join(str(piece[0]) if len(piece) == 1 else f"{piece[0]}-{piece[-1]}" for piece in pieces)


def _remarks(document: dict[str, Any]) -> list[str]:
    model, settings = document["model"], document["settings"]
    lines = [f"{row['label']}: {row['error']}" for row in document["rows"] if row["error"]]
    lines += [
        f"{row['label']}: no break-even: {row['break_even']['reason']}"
        for row in document["rows"]
        if row["break_even"] and row["break_even"]["reason"] and row["label"] != "f16"
    ]
    lines += document["notes"]
    if any(
        entry["ctx"] > model["n_ctx_train"] > 0 for row in document["rows"] for entry in row.get("largest_context", [])
    ):
        lines.append(f"* beyond the {model['n_ctx_train']} tokens that the model was trained for")
    if settings["budgets"]:
        reserve = format_size(settings["reserve_bytes"])
        lines.append(f"a budget holds weights (the size of the files), cache and {reserve} of reserve (--reserve)")
    if settings["parallel"] > 1:
        cells = settings["cells"] // (1 if settings["unified"] else settings["parallel"])
        how = "sharing" if settings["unified"] else "each with"
        lines.append(f"{settings['parallel']} sequences, {how} {cells} cells")
    return lines


def _csv(document: dict[str, Any]) -> str:
    numbers = ["k_type", "v_type", "k_bytes_per_token", "v_bytes_per_token", "cells", "bytes"]
    lines = [
        [row["k"], row["v"], layer["layer"], shape["kind"], *(layer[name] for name in numbers)]
        for row in document["rows"]
        if not row["error"]
        for layer, shape in zip(row["layers"], document["model"]["layers"], strict=True)
    ]
    return tabular.as_csv(["k", "v", "layer", "kind", *numbers], lines)
