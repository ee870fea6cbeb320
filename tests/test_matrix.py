"""The matrix's judgement, on runs made up for it: what each check lets pass, and what it does not."""

import json
from dataclasses import replace

import pytest
from matrix import judge
from matrix.expected import ALL_CELLS, BLOCKS, FAMILY_BITS, Cell, bits_per_value, works
from matrix.program import Measured, ModelRun, Refused, parse
from zoo.catalogue import HEAD_DIMS, entries

from turbokv_eval.errors import CheckFailed
from turbokv_eval.programs import kv_log

D64 = next(entry for entry in entries() if entry.name == "d64")
CELL = Cell("turbo3", "K+V", True)
LOG = """llama_context: constructing llama_context
llama_context: flash_attn            = enabled
llama_kv_cache:        CPU KV buffer size =     0.05 MiB
llama_kv_cache: size =    0.05 MiB (   512 cells,   2 layers,  1/1 seqs), K (turbo3):    0.03 MiB, V (turbo3):    0.03 MiB
kv cache layers (full): 2, K turbo3_64 x 64, 3.2500 bits/value, 0.025 MiB, V turbo3_64 x 64, 3.2500 bits/value, 0.025 MiB, rotated (turbo), K conditioned
"""  # noqa: E501


def good(log: str = LOG) -> Measured:
    report = kv_log.parse_contexts(log)[0]
    return Measured(CELL, finite=True, kld=0.05, channel=0.05, floor=1e-6, report=report)


def test_a_good_cell_passes() -> None:
    verdict = judge.judge(good())
    assert verdict.ok, verdict.problems
    assert verdict.bits == (3.25, 3.25)


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"kld": 0.05 * judge.SAFETY * 1.01}, "above"),
        ({"kld": 0.05 / judge.SPARE * 0.99}, "was the type used"),
        ({"kld": 0.0}, "was the type used"),
        ({"floor": 0.02}, "that of f16"),
        ({"finite": False, "kld": float("nan")}, "not finite"),
        ({"kld": float("nan")}, "not finite"),
        ({"admitted": False}, "refuses it"),
        ({"report": None}, "did not report"),
    ],
)
def test_each_check_of_a_cell_can_fail(change: dict[str, object], text: str) -> None:
    problems = judge.judge(replace(good(), **change)).problems  # type: ignore[arg-type]
    assert any(text in problem for problem in problems), problems


@pytest.mark.parametrize(
    ("old", "new", "text"),
    [
        ("K turbo3_64 x 64, 3.2500", "K turbo3_64 x 64, 6.5000", "K takes 6.5000 bits a value, not 3.2500"),
        ("V turbo3_64 x 64, 3.2500", "V turbo3 x 64, 3.1250", "V takes 3.1250 bits a value, not 3.2500"),
        ("K turbo3_64", "K q8_0", "K was q8_0"),
        ("= enabled", "= disabled", "flash attention was disabled"),
    ],
)
def test_another_cache_than_asked_for_fails(old: str, new: str, text: str) -> None:
    problems = judge.judge(good(LOG.replace(old, new))).problems
    assert any(text in problem for problem in problems), problems


def test_a_planted_fault_is_judged_by_its_logits_alone() -> None:
    fault = replace(good(), fault="swap", report=None)
    assert judge.judge(fault).ok
    assert not judge.judge(replace(fault, kld=1.0)).ok


def test_bits_are_those_of_the_table() -> None:
    assert set(HEAD_DIMS) == set(BLOCKS)
    assert all(d % block == 0 for d, block in BLOCKS.items())
    stored = {64: 26, 80: 32, 96: 38, 112: 44, 128: 50}  # bytes of a turbo3 block
    for d, block in BLOCKS.items():
        assert bits_per_value("turbo3", d) == pytest.approx(8 * stored[block] / block)


def full_run() -> ModelRun:
    run = ModelRun("d64", entropy=3.0, entropy_uniform=5.0)
    for cell in ALL_CELLS:
        if works(D64, cell):
            run.runs.append(replace(good(), cell=cell))
        else:
            run.refused.append(Refused(cell, "needs flash attention", announced=True))
    return run


def test_a_whole_model() -> None:
    assert len(ALL_CELLS) == 6 * len(FAMILY_BITS)
    assert judge.missing(D64, full_run()) == []

    dropped = full_run()
    gone = dropped.runs.pop().cell
    assert judge.missing(D64, dropped) == [f"{gone.label}: not run"]

    crashed = full_run()
    crashed.crash = "it ended with -6"
    assert judge.missing(D64, crashed) == ["it ended with -6"]

    bold = full_run()
    cell = bold.refused.pop().cell
    bold.runs.append(replace(good(), cell=cell))
    assert judge.missing(D64, bold) == [f"{cell.label}: ran, and must be refused"]

    flat = full_run()
    flat.entropy = 4.9
    assert "too flat" in judge.missing(D64, flat)[0]
    assert "too flat" in judge.missing(D64, ModelRun("d64"))[-1]


def test_refusals() -> None:
    off = Cell("turbo3", "V", False)
    assert judge.refusal(D64, Refused(off, "needs flash attention", announced=True)) == ""
    assert "weights are loaded" in judge.refusal(D64, Refused(off, "no context", announced=False))
    assert "must work" in judge.refusal(D64, Refused(CELL, "no block", announced=True))


def test_the_programs_lines_are_read() -> None:
    cell = {"family": "turbo3", "sides": "K+V", "flash_attn": True}
    numbers = {"finite": True, "kld": 0.05, "twin": 0.04, "floor": 1e-6}
    lines = [
        {"kind": "reference", "entropy": 3.0, "entropy_uniform": 5.0},
        {"kind": "cell", **cell, **numbers, "admitted": True, "log": LOG},
        {"kind": "fault", "fault": "swap", **cell, **numbers, "finite": False, "kld": None},
        {"kind": "cell", **cell, "refused": "no block", "announced": False},
    ]
    run = parse("d64", "\n".join(json.dumps(line) for line in lines))
    assert (run.entropy, run.entropy_uniform) == (3.0, 5.0)
    measured, fault = run.runs
    assert (measured.cell, measured.kld, measured.channel, measured.fault) == (CELL, 0.05, 0.04, "")
    assert measured.report is not None
    assert measured.report.kinds[0].k_bits == 3.25
    assert fault.fault == "swap"
    assert not judge.judge(fault).ok
    assert run.refused == [Refused(CELL, "no block", announced=False)]
    with pytest.raises(CheckFailed, match="cannot be read"):
        parse("d64", "Segmentation fault")
