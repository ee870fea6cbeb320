"""Documents of older versions in the form of the current one; what they did not measure stays empty."""

import math
from collections.abc import Callable
from typing import Any

from turbokv_eval.results import schema


def from_version_1(document: dict[str, Any]) -> dict[str, Any]:
    """A document of version 1, which had one text and one context. Raises LookupError, TypeError or AttributeError.

    The result keeps the schema exactly when the old document kept its own.
    """
    moved = ("text", "reference", "noise_floor", "statistics", "rows", "settings")
    found = {key: value for key, value in document.items() if key not in moved}
    settings, text = dict(document["settings"]), document["text"]
    ctx = settings.pop("ctx")
    entry = {
        "text": 0,
        "ctx": ctx,
        "reference": _with_kv(document["reference"]),
        "noise_floor": _noise_floor(document.get("noise_floor")),
        "differences": document.get("statistics") or [],
    }
    upgraded = {
        **found,
        "schema_version": schema.VERSION,
        "settings": {**settings, "contexts": [ctx]},
        "texts": [text] if text else [],
        "family": [[pair["a"], pair["b"]] for pair in entry["differences"]],
        "evaluations": [entry] if text else [],
        "rows": [_row(row, ctx) for row in document["rows"]],
    }
    return filled(upgraded)


def filled(document: dict[str, Any]) -> dict[str, Any]:
    """A document of version 2 with what the first ones did not have: generation, not measured."""
    absent = {"trajectory": None, "needle": None}
    return {
        "trajectory": None,
        "needle": [],
        **document,
        "settings": absent | document["settings"],
        "rows": [{"trajectory": None, "needle": [], **row} for row in document["rows"]],
    }


def _row(row: dict[str, Any], ctx: int) -> dict[str, Any]:
    found = {key: value for key, value in _with_kv(row).items() if key != "chunks"}
    quality = row["quality"]
    by_chunk = _by_chunk(row.get("chunks"), quality)
    own = [{"text": 0, "ctx": ctx, **_with_dppl(quality), "by_chunk": by_chunk}] if quality else []
    return {**found, "layers": "", "quality": own}


def _by_chunk(chunks: dict[str, Any] | None, quality: dict[str, Any]) -> dict[str, Any] | None:
    if not chunks:
        return None
    base, ends = quality["ppl_base"], chunks["ln_ratio_interval"]
    return {
        **chunks,
        "ppl_interval": ends and [base * math.exp(end) for end in ends],
        "dppl_interval": ends and [base * math.expm1(end) for end in ends],
    }


def _noise_floor(floor: dict[str, Any] | None) -> dict[str, Any] | None:
    return {**_with_kv(floor), "quality": {**_with_dppl(floor["quality"]), "by_chunk": None}} if floor else None


def _with_dppl(quality: dict[str, Any]) -> dict[str, Any]:
    # as llama-perplexity prints it, from numbers with as many decimals
    return {**quality, "dppl": round(quality["ppl"] - quality["ppl_base"], 6)}


def _with_kv(holder: Any) -> Any:
    """The same with the fields of a cache that version 1 did not have."""
    if not holder or not holder["kv"]:
        return holder
    kv = holder["kv"]
    kinds = [{**kind, "members": ""} for kind in kv["kinds"]]
    return {**holder, "kv": {"fallback": "", **kv, "kinds": kinds, "conditioning": ""}}


# By the version that each reads.
OLDER: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {1: from_version_1}
