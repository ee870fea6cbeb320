"""What the cache type decides of a speed: the time of attention, as the time at a depth less the time at depth 0."""

from typing import Any

KINDS = ("prompt", "generation")


def seconds_per_token(row: dict[str, Any], depth: int, kind: str) -> float | None:
    """Attention of one token of `kind` at `depth`, in seconds, from the medians of a row; None where one is missing."""
    median = {entry["depth"]: entry[kind].get("median") for entry in row["speed"]}
    here, there = median.get(depth), median.get(0)
    return 1 / here - 1 / there if here and there else None


def ratio(row: dict[str, Any], base: dict[str, Any], depth: int, kind: str) -> float | None:
    """Attention time of `row` over that of `base`; None where either is missing or not above 0 (all of it is noise)."""
    own, other = seconds_per_token(row, depth, kind), seconds_per_token(base, depth, kind)
    return None if own is None or other is None or own <= 0 or other <= 0 else own / other
