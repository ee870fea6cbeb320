"""Negative controls: runs that are not what they claim to be, which the checks of a comparison must notice."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from turbokv_eval.machine import runner
from turbokv_eval.models.types import KVConfig
from turbokv_eval.programs import kv_log, perplexity


@dataclass(frozen=True)
class Control:
    """claimed: what the run is held against; ran, flash_attn, environment: what it is. sound: nothing is wrong."""

    name: str
    claimed: KVConfig
    ran: KVConfig
    flash_attn: bool = True
    environment: Mapping[str, str] = field(default_factory=dict)
    sound: bool = False


@dataclass(frozen=True)
class Outcome:
    """passed: a fault was noticed, a sound run was not faulted; None: the control does not apply to this model."""

    name: str
    passed: bool | None
    said: str


_F16, _Q8_0 = KVConfig("f16", "f16"), KVConfig("q8_0", "q8_0")
_NO_ROTATION = {"LLAMA_ATTN_ROT_DISABLE": "1"}

CONTROLS = (
    Control("nothing is wrong", _F16, _F16, sound=True),
    Control("nothing is wrong, quantised", _Q8_0, _Q8_0, sound=True),
    Control("K is another type", _F16, KVConfig("q8_0", "f16")),
    Control("V is another type", _F16, KVConfig("f16", "q8_0")),
    Control("flash attention is off", _F16, _F16, flash_attn=False),
    Control("keys are plain", KVConfig("q8_0", "q8_0", "on"), KVConfig("q8_0", "q8_0", "off")),
    Control("rotation is off", _Q8_0, _Q8_0, environment=_NO_ROTATION),
)


def check(bin_dir: Path, model: Path, *, ctx: int, threads: int) -> list[Outcome]:
    """Loads the model once for each control; no text is run. Raises MachineCannot."""
    return [_outcome(control, bin_dir, model, ctx, threads) for control in CONTROLS]


def _outcome(control: Control, bin_dir: Path, model: Path, ctx: int, threads: int) -> Outcome:
    argv = perplexity.probe_command(
        bin_dir, model, control.ran, ctx=ctx, threads=threads, flash_attn=control.flash_attn
    )
    reports = kv_log.parse_contexts(runner.run(argv, environment=control.environment).output)[-1:]
    if not reports:
        return Outcome(control.name, False, "the model did not load")
    if control.environment == _NO_ROTATION and reports[0].rotation.get("k") is None:
        return Outcome(control.name, None, "llama.cpp does not rotate heads of this size")
    found = kv_log.problems(control.claimed, True, reports)
    return Outcome(control.name, bool(found) != control.sound, "; ".join(found) or "no fault found")
