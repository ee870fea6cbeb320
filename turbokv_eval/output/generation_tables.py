"""The tables of what came out when cache types generated: the trajectory, and needles by context and position."""

from collections.abc import Iterator
from typing import Any

import pandas as pd
from rich.table import Table

from turbokv_eval.output import wide


def tables(document: dict[str, Any]) -> Iterator[Table]:
    """The trajectory, then needles at each context, as far as they were measured."""
    if document["trajectory"]:
        yield _trajectory(document)
    for entry in document["needle"]:
        yield _needles(document, entry)


def _trajectory(document: dict[str, Any]) -> Table:
    measured = document["trajectory"]
    table = wide.table(
        "cache\nK/V",
        f"tokens like\nf32, of {measured['n_predict']}",
        "95%",
        "median",
        "95%",
        "to the\nend",
        "less\nnoise floor",
        "same top\ntoken %",
        "95%",
    )
    floor = measured["noise_floor"]
    scores = [("noise floor", floor["score"])] if floor else []
    scores += [(row["label"], row["trajectory"]) for row in document["rows"]]
    for label, score in scores:
        table.add_row(label, *(_agreement(score) if score else ["-"] * 8))
    return table


def _agreement(score: dict[str, Any]) -> list[str]:
    return [
        f"{score['mean']:.1f}",
        _ends(score["mean_interval"], 1),
        f"{score['median']:g}",
        _ends(score["median_interval"], 1),
        f"{score['censored']}/{len(score['lengths'])}",
        "-" if score["from_floor"] is None else f"{score['from_floor']:+.1f}",
        f"{score['top1']:.1f}",
        _ends(score["top1_interval"], 1),
    ]


def _needles(document: dict[str, Any], entry: dict[str, Any]) -> Table:
    positions = sorted({needle["position"] for needle in entry["needles"]})
    table = wide.table(
        f"needles at\ncontext {entry['ctx']}",
        *(f"at\n{position:g}%" for position in positions),
        "all",
        "95%,\n%",
        "answer's\nlog p",
        "less\nf32's",
        "95%",
    )
    table.add_row(entry["reference"]["type"], *_reference(entry, positions))
    for row in document["rows"]:
        score = at(row, entry["ctx"])
        cells = [_share(cell) for cell in (*score["cells"], score["all"])] if score else ["-"] * (len(positions) + 1)
        table.add_row(row["label"], *cells, *(_summary(score) if score else ["-"] * 4))
    return table


def at(row: dict[str, Any], ctx: int) -> dict[str, Any] | None:
    """A row's needles at one context; None where they were not measured."""
    return next((score for score in row["needle"] if score["ctx"] == ctx), None)


def _reference(entry: dict[str, Any], positions: list[float]) -> list[str]:
    needles = entry["needles"]
    groups = [[n for n in needles if n["position"] == position] for position in positions]
    found = [f"{sum(n['found'] for n in group)}/{len(group)}" for group in (*groups, needles)]
    return [*found, "", f"{sum(n['logprob'] for n in needles) / len(needles):.2f}", "", ""]


def _share(cell: dict[str, Any]) -> str:
    return f"{cell['found']}/{cell['n']}" if cell["n"] else "none"


def _summary(score: dict[str, Any]) -> list[str]:
    ends = score["all"]["interval"]
    return [
        "-" if ends is None else f"{100 * ends[0]:.0f} to {100 * ends[1]:.0f}",
        f"{score['all']['logprob']:.2f}",
        f"{score['dlogprob']:+.2f}",
        _ends(score["dlogprob_interval"], 2, sign="+"),
    ]


def _ends(ends: list[float] | None, digits: int, sign: str = "") -> str:
    return "-" if ends is None else f"{ends[0]:{sign}.{digits}f} to {ends[1]:{sign}.{digits}f}"


def about(document: dict[str, Any]) -> Iterator[str]:
    """What must be known to read the tables."""
    if measured := document["trajectory"]:
        yield (
            f"Tokens like f32: greedy ones before the first that differs from the f32 reference's own text, over"
            f" {measured['prompts']} prompts of {measured['n_prompt']} tokens; an agreement to the end counts as"
            f" {measured['n_predict']} (censored). Same top token: along that text. 95%: bootstrap over prompts."
        )
    if document["needle"]:
        yield (
            "Needles: planted facts that greedy generation finds, of those that the f32 reference finds (its own line:"
            " of all); none: the reference finds none there, no evidence. 95%: Wilson. Log p of the answer, nats, mean"
            " over all needles; 95%: bootstrap over needles."
        )


def columns(row: dict[str, Any]) -> dict[str, Any]:
    """The trajectory and the needles of a row as columns of a CSV."""
    found: dict[str, Any] = {}
    if score := row["trajectory"]:
        for name in ("mean", "median", "top1", "from_floor"):
            low, high = score[f"{name}_interval"] or (None, None)
            found |= {f"trajectory_{name}": score[name]}
            found |= {f"trajectory_{name}_low": low, f"trajectory_{name}_high": high}
        found["trajectory_censored"] = score["censored"]
    for score in row["needle"]:
        name = f"needle_{score['ctx']}"
        low, high = score["dlogprob_interval"] or (None, None)
        found |= {f"{name}_found": score["all"]["found"], f"{name}_n": score["all"]["n"]}
        found |= {f"{name}_dlogprob": score["dlogprob"], f"{name}_dlogprob_low": low, f"{name}_dlogprob_high": high}
    return found


def needle_csv(document: dict[str, Any]) -> str:
    """One line for each type, context and position; logprob: mean over its needles, nats."""
    records = [
        {"type": row["label"], "ctx": score["ctx"], "position": cell["position"], "found": cell["found"]}
        | {"n": cell["n"], "low": (cell["interval"] or [None])[0], "high": (cell["interval"] or [None])[-1]}
        | {"logprob": cell["logprob"]}
        for row in document["rows"]
        for score in row["needle"]
        for cell in score["cells"]
    ]
    names = ["type", "ctx", "position", "found", "n", "low", "high", "logprob"]
    return pd.DataFrame.from_records(records, columns=names).to_csv(index=False, lineterminator="\n")
