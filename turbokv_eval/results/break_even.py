"""When a smaller cache repays what it costs to fill: from the speeds of a comparison, never from a model of them.

A cache type that takes longer to store a token (quantising, rotating) loses time over the prompt, and gains some of it
back with every generated token, because attention reads fewer bytes.
"""

import math
from dataclasses import dataclass

from turbokv_eval.results.reader import Number, Row, Run, Speed


@dataclass(frozen=True)
class BreakEven:
    """Against the baseline, with a prompt of `depth` tokens.

    prompt_seconds: what the prompt takes more (negative: less). token_seconds: what each generated token takes less.
    tokens:         generated tokens after which the whole took less time; None where it never does, or is not known.
    reason:         why there is no number.
    """

    depth: int
    prompt_seconds: float | None
    token_seconds: float | None
    tokens: int | None
    reason: str = ""


def break_even(run: Run, label: str, baseline: str = "f16") -> BreakEven:
    """Of one row, at the greatest depth that it and the baseline were measured at."""
    row, base = run.row(label), run.row(baseline)
    if base is None or row is None:
        return _unknown(f"the run has no row {baseline if base is None else label}")
    depths = sorted({speed.depth for speed in row.speed} & {speed.depth for speed in base.speed})
    if len(depths) < 2 or depths[0] != 0:
        return _unknown("speeds at depth 0 and at one more are needed")
    depth = depths[-1]
    slow, fast = _prompt_seconds(row, depths), _prompt_seconds(base, depths)
    own, other = _generation(row.speed_at(depth)), _generation(base.speed_at(depth))
    if slow is None or fast is None or own is None or other is None:
        return _unknown("a speed is missing")
    cost, gain = slow - fast, 1 / other.value - 1 / own.value
    if _overlap(own, other):
        return BreakEven(depth, cost, gain, None, f"no difference in generation is shown at depth {depth}")
    if gain <= 0:
        return BreakEven(depth, cost, gain, None, f"generation is not faster at depth {depth}: never")
    return BreakEven(depth, cost, gain, max(0, math.ceil(cost / gain)))


def _unknown(reason: str) -> BreakEven:
    return BreakEven(0, None, None, None, reason)


def _prompt_seconds(row: Row, depths: list[int]) -> float | None:
    """Seconds for a prompt as long as the last depth: time a token at each depth, joined by straight lines."""
    times = []
    for depth in depths:
        speed = row.speed_at(depth)
        if speed is None or speed.pp is None or speed.pp.value <= 0:
            return None
        times.append(1 / speed.pp.value)
    steps = zip(depths, depths[1:], times, times[1:], strict=False)
    return sum((b - a) * (time_a + time_b) / 2 for a, b, time_a, time_b in steps)


def _generation(speed: Speed | None) -> Number | None:
    return speed.tg if speed is not None and speed.tg is not None and speed.tg.value > 0 else None


def _overlap(a: Number, b: Number) -> bool:
    """Whether the samples overlap; without samples, not."""
    if a.low is None or a.high is None or b.low is None or b.high is None:
        return False
    return a.low <= b.high and b.low <= a.high
