"""Budgets for a comparison: which rows keep them. What was not measured does not pass."""

import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from turbokv_eval.errors import BadInput
from turbokv_eval.results.reader import Number, Row, Run, Speed
from turbokv_eval.units import format_size, parse_size

SCHEMA_VERSION = 1


@dataclass(frozen=True)
class Measured:
    """What a budget is held against: the worst value of a row, and where it was."""

    value: float
    where: str = ""


# The value of a row, with the baseline row at hand; None where it was not measured.
Measure = Callable[[Row, Row | None], Measured | None]


@dataclass(frozen=True)
class Budget:
    """A kind of budget. highest: the value may not exceed it, else may not fall below. size: it is in bytes."""

    name: str
    what: str
    highest: bool
    measure: Measure
    size: bool = False

    def keeps(self, value: float, limit: float) -> bool:
        """Whether a value is within the limit."""
        return value <= limit if self.highest else value >= limit

    def shown(self, value: float) -> str:
        """A value as text, with its unit where it has one."""
        return format_size(round(value)) if self.size else f"{value:.4g}"


@dataclass(frozen=True)
class Line:
    """One budget of one row. value: None where there is none; reason: why the line failed, where it did."""

    row: str
    budget: str
    limit: str
    value: str | None
    where: str
    passed: bool
    reason: str = ""


@dataclass(frozen=True)
class Budgets:
    """What a TOML file asks for.

    baseline: label of the row that ratios are taken against.
    common:   limits of every row; own: those of single rows, by label. A limit of None is none.
    """

    baseline: str
    common: Mapping[str, float | None]
    own: Mapping[str, Mapping[str, float | None]]

    def of(self, label: str) -> dict[str, float]:
        """The limits of a row: its own before the common ones."""
        merged = {**self.common, **self.own.get(label, {})}
        return {name: limit for name, limit in merged.items() if limit is not None}


def _quality(name: str, highest: bool) -> Measure:
    def measure(row: Row, _: Row | None) -> Measured | None:
        found = row.worst(name, highest=highest)
        if found is None:
            return None
        at = next(quality for quality in row.quality if quality.numbers[name] is found)
        return Measured(found.value, f"context {at.ctx}" if len(row.quality) > 1 else "")

    return measure


def _speed(side: str, ratio: bool) -> Measure:
    """The lowest speed over all depths, of itself or against the baseline's at the same depth."""

    def of(speed: Speed | None) -> Number | None:
        return None if speed is None else (speed.pp if side == "pp" else speed.tg)

    def measure(row: Row, baseline: Row | None) -> Measured | None:
        if ratio and baseline is None:
            return None
        # Of the baseline's depths too: a row that lacks one has not been measured.
        depths = {speed.depth for speed in (*row.speed, *(baseline.speed if ratio and baseline else ()))}
        found: list[Measured] = []
        for depth in sorted(depths):
            own, other = of(row.speed_at(depth)), of(baseline.speed_at(depth)) if baseline else None
            if own is None or (ratio and (other is None or other.value <= 0)):
                return None
            value = own.value / other.value if ratio and other is not None else own.value
            found.append(Measured(value, f"depth {depth}"))
        return min(found, key=lambda item: item.value) if found else None

    return measure


def _plain(attribute: str) -> Measure:
    def measure(row: Row, _: Row | None) -> Measured | None:
        value = getattr(row, attribute)
        return None if value is None else Measured(value)

    return measure


def _greedy(row: Row, _: Row | None) -> Measured | None:
    return None if row.trajectory is None else Measured(row.trajectory.mean.value)


def _needle(row: Row, _: Row | None) -> Measured | None:
    """The lowest share of all places where the reference finds anything."""
    found = [
        Measured(needle.score, f"context {needle.ctx}, depth {needle.depth:g}%")
        for needle in row.needle
        if needle.score is not None
    ]
    return min(found, key=lambda measured: measured.value) if found else None


def _ppl_ratio(row: Row, baseline: Row | None) -> Measured | None:
    own, other = row.worst("ppl", highest=True), baseline.worst("ppl", highest=True) if baseline else None
    return Measured(own.value / other.value) if own is not None and other is not None else None


BUDGETS = {
    budget.name: budget
    for budget in (
        Budget("max_kld", "mean KL divergence, nats", True, _quality("kld_mean", True)),
        Budget("max_kld_median", "median KL divergence, nats", True, _quality("kld_median", True)),
        Budget("max_kld_p99", "99% of KL divergences, nats", True, _quality("kld_p99", True)),
        Budget("max_kld_p999", "99.9% of KL divergences, nats", True, _quality("kld_p999", True)),
        Budget("max_kld_max", "highest KL divergence, nats", True, _quality("kld_max", True)),
        Budget("max_ppl", "perplexity", True, _quality("ppl", True)),
        Budget("max_ppl_ratio", "perplexity against the baseline's", True, _ppl_ratio),
        Budget("min_same_top", "same most likely token, percent", False, _quality("same_top", False)),
        Budget("max_rms_dp", "RMS change of the token's probability, percent", True, _quality("rms_dp", True)),
        Budget("min_greedy", "tokens until greedy texts part, mean", False, _greedy),
        Budget("min_needle", "share of needles found, worst place", False, _needle),
        Budget("max_bits", "bits a stored value", True, _plain("bits")),
        Budget("max_kv", "bytes of the cache", True, _plain("kv_bytes"), size=True),
        Budget("max_rss", "peak resident memory", True, _plain("rss_bytes"), size=True),
        Budget("min_tg", "generation, tokens a second", False, _speed("tg", False)),
        Budget("min_pp", "prompt, tokens a second", False, _speed("pp", False)),
        Budget("min_tg_ratio", "generation against the baseline's", False, _speed("tg", True)),
        Budget("min_pp_ratio", "prompt against the baseline's", False, _speed("pp", True)),
    )
}
_RATIOS = ("max_ppl_ratio", "min_tg_ratio", "min_pp_ratio")


def read_budgets(path: Path) -> Budgets:
    """Reads a TOML file of budgets.

    Top-level keys are limits of every row, a table [rows.LABEL] those of one; `baseline` names the row of the ratios
    (f16). A limit is a number, a size such as "2GiB", or false for none. Raises BadInput.
    """
    try:
        found = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as e:
        raise BadInput(f"cannot read {path}: {e.strerror}; give a TOML file of budgets") from e
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as e:
        raise BadInput(f"{path} is not TOML: {e}") from e
    baseline, rows = found.pop("baseline", "f16"), found.pop("rows", {})
    if not isinstance(baseline, str) or not isinstance(rows, dict):
        raise BadInput(f"{path}: baseline must be a row's label, and rows a table: [rows.turbo3]")
    own: dict[str, dict[str, float | None]] = {}
    for label, table in rows.items():
        if not isinstance(table, dict):
            raise BadInput(f"{path}: rows.{label} is no table: write [rows.{label}] and limits below it")
        own[label] = _limits(table, path, f"[rows.{label}] ")
    budgets = Budgets(baseline, _limits(found, path, ""), own)
    if not any(limits for limits in (budgets.common, *budgets.own.values())):
        raise BadInput(f"{path} has no budget: {', '.join(BUDGETS)} are known")
    return budgets


def _limits(table: dict[str, Any], path: Path, where: str) -> dict[str, float | None]:
    limits: dict[str, float | None] = {}
    for name, value in table.items():
        budget = BUDGETS.get(name)
        if budget is None:
            near = get_close_matches(name, [*BUDGETS, "baseline", "rows"], n=1, cutoff=0.0)
            raise BadInput(f"{path}: {where}unknown budget {name!r}: did you mean {near[0]!r}?")
        if value is False:
            limits[name] = None
        elif isinstance(value, str) and budget.size:
            limits[name] = parse_size(value)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            limits[name] = float(value)
        else:
            kind = 'a number of bytes or a size such as "2GiB"' if budget.size else "a number"
            raise BadInput(f"{path}: {where}{name} is {value!r}, and must be {kind}, or false for none")
    return limits


def check(run: Run, budgets: Budgets) -> list[Line]:
    """Every budget of every row, in the order of the rows; then what is missing altogether."""
    baseline = run.row(budgets.baseline)
    lines = [line for row in run.rows for line in _row(row, baseline, budgets)]
    for label in budgets.own:
        if run.row(label) is None:
            reason = f"the comparison has no such row; it has {', '.join(run.labels)}"
            lines.append(Line(label, "-", "-", None, "", False, reason))
    if run.status != "complete":
        lines.append(Line("(run)", "-", "-", None, "", False, f"the comparison is {run.status}, not complete"))
    return lines


def _row(row: Row, baseline: Row | None, budgets: Budgets) -> list[Line]:
    limits = budgets.of(row.label)
    if row.errors or row.status == "failed":
        reason = "; ".join(row.errors) or "the row failed"
        return [Line(row.label, "-", "-", None, "", False, reason)]
    lines = []
    for name, limit in limits.items():
        budget = BUDGETS[name]
        measured = budget.measure(row, baseline)
        if measured is None:
            reason = "not measured"
            if name in _RATIOS and baseline is None:
                reason = f"no row {budgets.baseline} to compare with (baseline)"
            lines.append(Line(row.label, name, budget.shown(limit), None, "", False, reason))
            continue
        passed = budget.keeps(measured.value, limit)
        lines.append(Line(row.label, name, budget.shown(limit), budget.shown(measured.value), measured.where, passed))
    return lines
