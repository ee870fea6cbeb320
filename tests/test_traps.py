"""The traps: runs that are not what they claim to be, and files that are not what they were. Each has its test here.

A row that fails any of them is marked, has no numbers, and makes the exit code 1; what concerns the whole comparison
ends it before the long runs.
"""

import hashlib
import re
import shutil
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest
from compare_world import World, fails, invoke, recorded, write_model

from turbokv_eval.models.types import KVConfig
from turbokv_eval.programs import kv_log


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_trap_k_silently_f16(world: World) -> None:
    world.reply(quality_turbo2={"log": "quality-f16.log"})
    result = invoke(*world.args())
    fails(result, 1, r"1 of 3 rows failed \(turbo2\)")
    assert "turbo2 FAILED" in result.stdout
    assert "FAILED turbo2: K was f16, not turbo2" in result.stdout
    assert [row["status"] for row in world.document["rows"]] == ["ok", "ok", "failed"]
    assert world.document["rows"][2]["quality"] == []


def test_trap_k_silently_f16_already_at_load(world: World) -> None:
    world.reply(load_turbo2={"log": "load-f16.log"})
    fails(invoke(*world.args()), 1, "turbo2")
    assert "quality turbo2" not in world.calls


def test_trap_k_silently_f16_in_the_speed_runs(world: World) -> None:
    world.reply(speed_turbo2={"log": "speed-0-f16.log"})
    result = invoke(*world.args())
    fails(result, 1, "turbo2")
    assert world.document["rows"][2]["speed"] == []


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        ({"text": "0.00.001.000 E ggml: out of threads\n", "rc": 1}, "llama-bench failed at depth 0: out of threads"),
        ({"log": "load-turbo2.log"}, "ended without a prompt and a generation test"),
        ({"log": "speed-512-f16.log"}, "ran at depth 512, not 0"),
    ],
)
def test_trap_a_speed_run_that_is_none(world: World, reply: dict[str, Any], said: str) -> None:
    world.reply(speed_turbo2=reply)
    fails(invoke(*world.args()), 1, "1 of 3 rows failed")
    row = world.document["rows"][2]
    assert any(said in error for error in row["errors"])
    assert row["speed"] == []
    # nothing that another try would take for a result was recorded, unless it is one
    world.reply()
    assert invoke(*world.args()).exit_code == (1 if "depth 512" in said else 0)


def test_trap_flash_attention_off(world: World) -> None:
    log = recorded("quality-turbo2.log").replace("flash_attn            = enabled", "flash_attn            = disabled")
    world.reply(quality_turbo2={"text": log})
    fails(invoke(*world.args("--no-speed")), 1, "turbo2")
    assert world.document["rows"][2]["errors"] == ["flash attention was disabled, not enabled"]


@pytest.mark.parametrize("reply", ["quality_turbo2", "load_turbo2"])
def test_trap_rotation_of_a_turbo_cache_off(world: World, reply: str) -> None:
    log = recorded(reply.replace("_", "-", 1) + ".log")
    assert ", rotated (turbo)" in log
    world.reply(**{reply: {"text": log.replace(", rotated (turbo)", "")}})
    fails(invoke(*world.args("--no-speed")), 1, "turbo2")
    said = [f"{side} was not rotated: its error is larger than it has to be" for side in "KV"]
    assert world.document["rows"][2]["errors"] == said


def test_trap_rotation_of_a_baseline_off() -> None:
    log = recorded("load-q8_0-turbo3.log")
    [report] = kv_log.parse_contexts(log)
    config = KVConfig("q8_0", "turbo3")
    assert kv_log.problems(config, True, [report]) == []
    plain = log.replace("turbo3_64", "q4_0").replace("turbo3", "q4_0").replace(", rotated (turbo)", "")
    plain = plain.replace("attn_rot_v = 0", "attn_rot_v = 1")
    [report] = kv_log.parse_contexts(plain)
    assert kv_log.problems(KVConfig("q8_0", "q4_0"), True, [report]) == []
    [report] = kv_log.parse_contexts(re.sub(r"attn_rot_k = 1, (\w+) = 64", r"attn_rot_k = 0, \1 = 0", plain))
    assert kv_log.problems(KVConfig("q8_0", "q4_0"), True, [report]) == []  # heads of several sizes
    [report] = kv_log.parse_contexts(plain.replace("attn_rot_k = 1", "attn_rot_k = 0"))
    said = "K was not rotated: its error is larger than it has to be"
    assert kv_log.problems(KVConfig("q8_0", "q4_0"), True, [report]) == [said]


def test_trap_different_chunk_counts(world: World) -> None:
    world.reply(quality_f16={"text": recorded("quality-f16.log").replace("over 4 chunks", "over 3 chunks")})
    fails(invoke(*world.args("--no-speed")), 1, "f16")
    assert "3 chunks, the reference 4" in world.document["rows"][0]["errors"][0]


def test_trap_identical_logits(world: World) -> None:
    same = recorded("quality-f16.log")
    numbers = same[same.index("====== Perplexity") :]
    turbo2 = recorded("quality-turbo2.log")
    world.reply(quality_turbo2={"text": turbo2[: turbo2.index("====== Perplexity")] + numbers})
    fails(invoke(*world.args("--no-speed")), 1, "turbo2")
    f16, mixed, turbo2 = world.document["rows"]
    assert f16["errors"] == ["its numbers are identical to those of turbo2, another cache"]
    assert turbo2["errors"] == ["its numbers are identical to those of f16, another cache"]
    assert mixed["errors"] == []


def test_trap_gpu_asked_but_cpu_used(world: World) -> None:
    fails(invoke(*world.args("--no-speed", "-ngl", "99")), 1, "turbo2")
    for row in world.document["rows"]:
        assert "99 layers were asked onto a GPU, and the cache was in the CPU's memory" in row["errors"][0]
        assert row["kv"]["devices"] == ["CPU"]


def test_trap_wrong_hash(world: World) -> None:
    fails(invoke(*world.args("--model-sha256", "0" * 64)), 2, "has SHA-256 [0-9a-f]{64}, not 0000.*another file")
    assert world.calls == []
    digest = hashlib.sha256(world.model.read_bytes()).hexdigest().upper()
    assert invoke(*world.args("--no-speed", "--model-sha256", digest)).exit_code == 0


def test_trap_wrong_hash_of_a_recorded_unit(world: World) -> None:
    assert invoke(*world.args("--no-speed")).exit_code == 0
    before = len(world.calls)
    assert invoke(*world.args("--no-speed")).exit_code == 0
    assert len(world.calls) == before
    with world.model.open("ab") as file:
        file.write(bytes(32))
    assert invoke(*world.args("--no-speed")).exit_code == 0
    assert len(world.calls) == 2 * before


def test_trap_full_disk_before_the_reference(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage(1, 1, 10 << 20))
    fails(invoke(*world.args()), 3, "needs .* MiB in .*where 10 MiB are free: use fewer --chunks")
    assert "reference f32" not in world.calls


def test_trap_full_disk_cuts_the_reference(world: World) -> None:
    world.reply(reference_f32={"short": True})
    fails(invoke(*world.args()), 3, "is the disk full")
    assert "quality f16" not in world.calls
    assert not list(world.out.glob("reference-logits*.tmp"))


@pytest.mark.parametrize("role", ["load", "quality", "speed"])
def test_trap_conditioning_off(world: World, role: str) -> None:
    log = {"load": "load-turbo2@off.log", "quality": "quality-turbo2@off.log", "speed": "speed-0-turbo2@off.log"}[role]
    world.reply(**{f"{role}_turbo2": {"log": log}})
    fails(invoke(*world.args()), 1, "turbo2")
    said = ["turbo keys were not conditioned under auto (the run gives no reason); @off asks for that"]
    assert world.document["rows"][2]["errors"] == said
    assert invoke(*world.args("--types", "f16,turbo2@off", "--run", f"{world.out}-off")).exit_code == 0


@pytest.mark.parametrize(
    ("said", "fault"),
    [
        ("off, values are a view of the keys", False),
        ("off, encoder-decoder models are not measured", False),
        ("off, architecture kimi-linear reads its keys outside of attention", False),
        ("off, the model has no weights", True),
        ("found in x.gguf, 30 layers, keys are centred and equalised", True),
    ],
)
def test_trap_conditioning_off_with_and_without_a_good_reason(said: str, fault: bool) -> None:
    log = f"key conditioning: {said}\n" + recorded("load-turbo2@off.log")
    [report] = kv_log.parse_contexts(log)
    assert report.conditioning == said.removeprefix("found in x.gguf, ")
    assert bool(kv_log.problems(KVConfig("turbo2", "turbo2"), True, [report])) is fault
    assert kv_log.problems(KVConfig("turbo2", "turbo2", "off"), True, [report]) == []
    assert kv_log.problems(KVConfig("turbo2", "turbo2", "on"), True, [report]) == [
        "keys were not conditioned, unlike what was asked"
    ]


def test_trap_conditioning_on_where_it_was_not_asked() -> None:
    [report] = kv_log.parse_contexts(recorded("load-turbo2.log"))
    assert report.conditioned
    assert kv_log.problems(KVConfig("turbo2", "turbo2"), True, [report]) == []
    assert kv_log.problems(KVConfig("turbo2", "turbo2", "off"), True, [report]) == [
        "keys were conditioned, unlike what was asked"
    ]


def test_trap_types_of_single_layers_ignored_or_other_ones(world: World) -> None:
    row = "turbo3+0-1,-1:q8_0"
    result = invoke(*world.args("--types", f"f16,{row}"))
    assert result.exit_code == 0, result.output
    assert world.document["rows"][1]["layers"] == "0-1,-1:q8_0"
    [report] = kv_log.parse_contexts(recorded("load-turbo3+layers.log"))
    config = KVConfig("turbo3", "turbo3", layers="0-1,-1:q8_0")
    assert kv_log.problems(config, True, [report], 30) == []
    other = KVConfig("turbo3", "turbo3", layers="0-1,-1:q4_0")
    assert kv_log.problems(other, True, [report], 30) == ["K was q8_0, not q4_0", "V was q8_0, not q4_0"]
    fewer = KVConfig("turbo3", "turbo3", layers="0-1:q8_0")
    assert kv_log.problems(fewer, True, [report], 30) == ["K was q8_0, not turbo3", "V was q8_0, not turbo3"]
    log = recorded("load-turbo2.log").replace("turbo2", "turbo3")
    [ignored] = kv_log.parse_contexts(log)
    assert "not reported" in kv_log.problems(config, True, [ignored], 30)[0]


def test_trap_truncated_model(world: World) -> None:
    whole = write_model(world.root / "bad.gguf")
    whole.write_bytes(whole.read_bytes()[:-1])
    fails(invoke(*world.args("-m", str(whole))), 2, r"is truncated: it has \d+ bytes and its tensors need")
    assert world.calls == []


def test_trap_empty_text(world: World) -> None:
    world.text.write_bytes(b" \n")
    fails(invoke(*world.args()), 2, "is empty")
    assert world.calls == []
