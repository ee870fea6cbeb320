"""Is a cell right? Every check, and the constants that decide; the package's docstring derives them."""

import math
from dataclasses import dataclass

from zoo.catalogue import Entry

from turbokv_eval.models.types import KVConfig
from turbokv_eval.programs import kv_log

from .expected import ALL_CELLS, FAMILY_BITS, bits_per_value, works
from .program import Measured, ModelRun, Refused

# A cell may have at most SAFETY times the KLD that its codec's error gives, and must have 1/SPARE of it.
SAFETY = 1.75
SPARE = 4.0
# and FLOORS times the KLD of an f16 cache
FLOORS = 3.0
# printed with four decimals
BITS_TOLERANCE = 1e-4
# Attention whose entropy is nearer to uniform than this does not see an error of one key.
PEAKED = 0.85


@dataclass(frozen=True)
class Verdict:
    """problems: empty when the cell is right. bits: of K and V, as allocated, in the largest kind of layer."""

    run: Measured
    bound: float
    problems: tuple[str, ...]
    bits: tuple[float | None, float | None] = (None, None)

    @property
    def ok(self) -> bool:
        return not self.problems


def bound(run: Measured) -> float:
    """The largest KLD, in nats, that the cell may have."""
    return SAFETY * (run.channel + run.floor)


def quality(run: Measured) -> list[str]:
    """What the run's logits say against it."""
    if not run.finite or not math.isfinite(run.kld):
        return ["logits are not finite"]
    found = []
    if run.kld > bound(run):
        found.append(f"KLD {run.kld:.4g} above {bound(run):.4g}")
    if run.kld < run.channel / SPARE:
        found.append(f"KLD {run.kld:.4g} below {run.channel / SPARE:.4g}: was the type used?")
    if run.kld < FLOORS * run.floor:
        found.append(f"KLD {run.kld:.4g} is that of f16 ({run.floor:.4g}): was the type used?")
    return found


def storage(run: Measured) -> list[str]:
    """How the cache that was allocated differs from the one that was asked for."""
    family, sides = run.cell.family, run.cell.sides
    config = KVConfig(family if "K" in sides else "f16", family if "V" in sides else "f16")
    if run.report is None or not run.report.kinds:
        return ["the run did not report its cache"]
    found = kv_log.problems(config, run.cell.flash_attn, [run.report])
    for kind in run.report.kinds:
        for side, type_, dim, bits in (
            ("K", config.k, kind.k_dim, kind.k_bits),
            ("V", config.v, kind.v_dim, kind.v_bits),
        ):
            if bits is None or dim is None:
                continue
            want = bits_per_value(type_, dim) if type_ in FAMILY_BITS else 16.0
            if abs(bits - want) > BITS_TOLERANCE:
                found.append(f"{side} takes {bits:.4f} bits a value, not {want:.4f}")
    return found


def judge(run: Measured) -> Verdict:
    """All checks of a cell; of a planted fault those that read its logits."""
    problems = quality(run)
    bits: tuple[float | None, float | None] = (None, None)
    if not run.fault:
        problems += storage(run)
        if not run.admitted:
            problems.append("it ran, though the check before loading refuses it")
        if run.report is not None and run.report.kinds:
            kind = max(run.report.kinds, key=lambda kind: kind.layers)
            bits = (kind.k_bits, kind.v_bits)
    return Verdict(run, bound(run), tuple(problems), bits)


def refusal(entry: Entry, refused: Refused) -> str:
    """What is wrong with a refusal; empty when it must be."""
    if works(entry, refused.cell):
        return f"{refused.cell.label}: refused, though it must work: {refused.reason}"
    return "" if refused.announced else f"{refused.cell.label}: refused only after the weights are loaded"


def missing(entry: Entry, run: ModelRun) -> list[str]:
    """What is wrong with a model's run as a whole: cells not run, cells that must not run, attention too flat."""
    ran = {measured.cell for measured in run.runs if not measured.fault}
    seen = ran | {refused.cell for refused in run.refused}
    found = [run.crash] if run.crash else []
    found += [f"{cell.label}: not run" for cell in ALL_CELLS if cell not in seen]
    found += [f"{cell.label}: ran, and must be refused" for cell in ALL_CELLS if cell in ran and not works(entry, cell)]
    if not run.entropy < PEAKED * run.entropy_uniform:
        found.append(f"attention is too flat to notice errors: entropy {run.entropy:.2f} of {run.entropy_uniform:.2f}")
    return found


def cells_of(run: ModelRun, fault: str = "") -> list[Verdict]:
    return [judge(measured) for measured in run.runs if measured.fault == fault]
