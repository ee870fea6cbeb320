"""`turbokv-eval compare` from the command line to exit code, on programs that replay recorded logs."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compare_world import World, fails, invoke, recorded, write_model

from turbokv_eval.comparison.settings import Settings
from turbokv_eval.machine import assets
from turbokv_eval.machine.others import Watch
from turbokv_eval.machine.provenance import cpu_count
from turbokv_eval.models.gguf_info import read_model


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_a_whole_comparison(world: World) -> None:
    result = invoke(*world.args())
    assert result.exit_code == 0, result.stderr
    document = world.document
    assert document["status"] == "complete"
    assert document["schema_version"] == 2
    f16, pair, turbo2 = document["rows"]
    assert (f16["label"], pair["label"], turbo2["label"]) == ("f16", "q8_0/turbo3", "turbo2")
    assert pair["quality"][0]["kld_mean"] == 0.022344
    assert pair["kv"]["mib"] == 16.52
    assert turbo2["bits_per_value"] == pytest.approx(2.25, abs=0.005)
    [evaluation] = document["evaluations"]
    assert evaluation["reference"]["type"] == "f32"
    assert evaluation["reference"]["flash_attn"] is False
    assert document["model"]["sha256"] == assets.sha256_file(world.model)
    assert document["texts"][0]["sha256"] == assets.sha256_file(world.text)
    assert "commit fake" in document["build"]["version"][0]
    assert "0.0223" in result.stdout
    assert "92.2 ±0.8" in result.stdout
    assert (world.out / "compare.txt").read_text(encoding="utf-8").strip() == result.stdout.strip()
    assert not list(world.out.glob("reference-logits*.tmp"))


def test_progress_goes_to_stderr_only(world: World) -> None:
    result = invoke(*world.args())
    assert "[1/14] load f16" in result.stderr
    assert "[4/14] reference" in result.stderr
    assert "[1/14]" not in result.stdout
    assert "\x1b" not in result.stdout + result.stderr


def test_speed_rounds_are_interleaved_and_medians_taken(world: World) -> None:
    invoke(*world.args("--no-quality"))
    types = ["f16", "q8_0-turbo3", "turbo2"]
    assert world.calls == [f"load {t}" for t in types] + [f"speed {t} 0" for t in types] * 2
    speed = world.document["rows"][1]["speed"]
    assert [entry["depth"] for entry in speed] == [0]
    prompt = speed[0]["prompt"]
    assert prompt["n"] == 4
    assert len(prompt["rounds"]) == 2
    assert prompt["median"] == pytest.approx((494.225 + 468.626) / 2, abs=0.001)
    assert (prompt["min"], prompt["max"]) == (468.626, 494.225)


def test_the_depths_of_a_type_follow_each_other(world: World) -> None:
    invoke(*world.args("--no-quality", "--types", "f16,q8_0/turbo3", "--depths", "0,512", "--rounds", "1"))
    assert world.calls[2:] == ["speed f16 0", "speed f16 512", "speed q8_0-turbo3 0", "speed q8_0-turbo3 512"]


@pytest.mark.parametrize(
    ("depths", "rounds", "expected"),
    [
        # a depth that has one round has it in the middle
        ((0, 4096), None, [[(0, 1)], [(0, 2), (4096, 1)], [(0, 3)]]),
        ((4096,), None, [[(4096, 1)]]),
        ((0, 512, 8192), 2, [[(0, 1), (512, 1), (8192, 1)], [(0, 2), (512, 2), (8192, 2)]]),
        ((), None, []),
    ],
)
def test_rounds_of_speed(
    tmp_path: Path, depths: tuple[int, ...], rounds: int | None, expected: list[list[tuple[int, int]]]
) -> None:
    model = read_model(write_model(tmp_path / "m.gguf"))
    assert Settings((), model, (), tmp_path, depths=depths, rounds=rounds).speed_rounds() == expected


def test_without_speed(world: World) -> None:
    result = invoke(*world.args("--no-speed"))
    assert result.exit_code == 0
    assert not any(call.startswith("speed") for call in world.calls)
    assert "prompt" not in result.stdout


def test_bench_is_the_comparison_without_quality(world: World) -> None:
    args = ["bench", *world.args()[1:]]
    for option, values in (("-f", 1), ("--chunks", 1), ("--no-trajectory", 0), ("--no-needle", 0)):
        del args[args.index(option) : args.index(option) + 1 + values]
    result = invoke(*args)
    assert result.exit_code == 0, result.stderr
    assert not any(call.startswith(("reference", "quality")) for call in world.calls)


def test_nothing_to_do(world: World) -> None:
    fails(invoke(*world.args("--no-speed", "--no-quality")), 2, "leave nothing to do")


# What a run reports is held against what was asked.


def test_reference_with_flash_attention_is_none(world: World) -> None:
    log = recorded("reference.log").replace("flash_attn            = disabled", "flash_attn            = enabled")
    world.reply(reference_f32={"text": log})
    assert invoke(*world.args()).exit_code != 0
    assert "quality f16" not in world.calls


@pytest.mark.parametrize(("others", "noted"), [(0.04, False), (0.06, True), (None, False)])
def test_speeds_that_others_disturbed_are_noted(
    world: World, monkeypatch: pytest.MonkeyPatch, others: float | None, noted: bool
) -> None:
    monkeypatch.setattr(Watch, "cpus", lambda self, ours: others and others * cpu_count())
    result = invoke(*world.args("--rounds", "2", "--no-quality"))
    assert result.exit_code == 0, result.stdout
    assert ("during 6 of 6 speed runs" in " ".join(result.stdout.split())) is noted
    assert world.document["rows"][0]["speed"][0]["other_cpus"] == [others and round(others * cpu_count(), 3)] * 2


def test_a_speed_run_that_measures_keys_first(world: World) -> None:
    world.reply(speed_turbo2={"log": "speed-0-turbo2-first.log"})
    result = invoke(*world.args())
    assert result.exit_code == 0, result.stdout
    assert world.document["rows"][2]["speed"]


def test_one_cache_by_two_names_is_only_noted(world: World) -> None:
    types = ("--types", "turbo2,turbo2@on", "--no-speed")
    result = invoke(*world.args(*types))
    assert result.exit_code == 0, result.output
    assert "turbo2 and turbo2@on are the same cache and gave identical numbers" in result.stdout


def test_a_crash_fails_the_row(world: World) -> None:
    world.reply(quality_turbo2={"text": "GGML_ASSERT(x) failed\n", "rc": 134})
    fails(invoke(*world.args()), 1, "turbo2")
    assert "GGML_ASSERT" in world.document["rows"][2]["errors"][0]


def test_exit_0_without_statistics_fails_the_row(world: World) -> None:
    log = recorded("quality-turbo2.log")
    world.reply(quality_turbo2={"text": log[: log.index("====== Perplexity")]})
    fails(invoke(*world.args()), 1, "turbo2")


def test_output_lost_at_exit_is_got_by_a_second_run(world: World) -> None:
    whole = recorded("quality-turbo2.log")
    world.reply(
        load_f16={"text": "constructing llama_context\n", "once": True},
        reference_f32={"text": "tokenizing\n", "once": True},
        quality_turbo2={"text": whole[: whole.index("Same top p:")], "once": True},
    )
    result = invoke(*world.args("--no-speed"))
    assert result.exit_code == 0, result.stderr
    assert world.document["rows"][2]["quality"][0]["same_top"] > 0
    for call in ("load f16", "reference f32", "quality turbo2"):
        assert world.calls.count(call) == 2


def test_a_hidden_setting_does_not_reach_the_programs(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    from turbokv_eval.machine import runner

    monkeypatch.setenv("LLAMA_ARG_CACHE_TYPE_K", "q4_0")
    monkeypatch.setenv("LLAMA_ATTN_ROT_DISABLE", "1")
    monkeypatch.setenv("UNRELATED", "stays")
    done = runner.run([sys.executable, "-c", "import os; print(sorted(os.environ))"])
    assert "LLAMA_" not in done.stdout
    assert "UNRELATED" in done.stdout


# Bad input: one line, before the long runs.


def test_unknown_type_lists_what_the_build_knows(world: World) -> None:
    fails(invoke(*world.args("--types", "f16,turbo9")), 2, "unknown cache type 'turbo9'.*q8_0.*turbo4")
    assert world.calls == []


def test_programs_not_built(world: World) -> None:
    shutil.rmtree(world.bin)
    fails(invoke(*world.args()), 3, "llama-perplexity and llama-bench not found in .*turbokv-eval build")


def test_no_turbo_block_for_the_head_dimension(world: World) -> None:
    world.reply(load_turbo2={"log": "failed-no-block.log", "rc": 1})
    fails(
        invoke(*world.args()),
        2,
        "does not load with cache type turbo2.*heads of 32 values.*types that work here.*--types",
    )
    assert not any(call.startswith(("reference", "quality")) for call in world.calls)


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda path: path.write_bytes(b""), "is empty"),
        (lambda path: path.write_bytes(b"PK\x03\x04" * 100), "is not a GGUF file"),
        (lambda path: path.write_bytes(b"GGUF" + bytes(range(256)) * 4), "is truncated or damaged"),
        (
            lambda path: path.write_bytes(write_model(path).read_bytes()[:-1]),
            r"is truncated: it has \d+ bytes and its tensors need",
        ),
        (lambda path: path.write_bytes(write_model(path).read_bytes()[:200]), "is truncated or damaged"),
        (lambda path: write_model(path, arch="mamba", heads=0, kv_heads=0), r"has no attention \(architecture mamba\)"),
        (lambda path: path.mkdir(), "cannot read the model .*directory"),
        (lambda path: None, "cannot read the model .*No such file"),
    ],
)
def test_bad_models(world: World, make: Any, said: str) -> None:
    bad = world.root / "bad.gguf"
    make(bad)
    fails(
        invoke(*world.args("-m", str(bad))), 2, said + r".*(give (a GGUF|another|a whole GGUF) model|download it again)"
    )
    assert world.calls == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"", "is empty"),
        (b"  \n \n", "is empty"),
        (b"A short one.", "too short: it has 12 bytes, and two contexts of 512 tokens"),
        (None, "cannot read the text .*No such file"),
    ],
)
def test_bad_texts(world: World, text: bytes | None, said: str) -> None:
    path = world.root / "bad.txt"
    if text is not None:
        path.write_bytes(text)
    fails(invoke(*world.args("-f", str(path))), 2, said)
    assert world.calls == []


def test_text_that_only_the_tokenizer_finds_too_short(world: World) -> None:
    world.reply(reference_f32={"log": "failed-too-short.log", "text": recorded("failed-too-short.log")})
    fails(invoke(*world.args()), 2, "too short: it has 1 tokens, and two contexts of 512 make 1024")
    assert world.document["status"] == "failed"


def test_too_few_tokens_for_statistics(world: World) -> None:
    fails(invoke(*world.args("--ctx", "64", "--chunks", "2")), 2, "too few tokens for statistics: use --chunks 4")


def test_output_folder_in_the_way(world: World) -> None:
    world.out.write_text("a file")
    fails(invoke(*world.args()), 2, "cannot write in the output folder .*--run")
    assert world.calls == []


def test_output_folder_read_only(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(self: Path, *args: Any, **kwargs: Any) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS))

    # Permissions do not stop root, who runs tests in containers.
    monkeypatch.setattr(Path, "mkdir", refuse)
    fails(
        invoke(*world.args()), 2, "cannot write in the output folder .*Read-only file system; choose another with --run"
    )
    assert world.calls == []


def test_two_comparisons_in_one_folder(world: World) -> None:
    from turbokv_eval.comparison import store

    with store.opened(world.out):
        fails(invoke(*world.args()), 2, "another comparison is writing")


@pytest.mark.parametrize("depths", ["a", "", "-1", "0,0", "1.5"])
def test_bad_depths(world: World, depths: str) -> None:
    fails(invoke(*world.args("--depths", depths)), 2, "--depths")


@pytest.mark.parametrize("stop", [signal.SIGINT, signal.SIGTERM])
def test_a_stop_keeps_what_was_measured_and_leaves_nothing_running(world: World, stop: signal.Signals) -> None:
    world.reply(quality_turbo2={"sleep": 60})
    process = subprocess.Popen(
        [sys.executable, "-m", "turbokv_eval", *world.args()],
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[1],
        # As in a shell: a test runner may ignore the signal, and its children would inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    pid = world.bin / "pid"
    deadline = time.monotonic() + 30
    while not (pid.exists() and pid.read_text()):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    process.send_signal(stop)
    _, stderr = process.communicate(timeout=20)
    assert process.returncode == 130
    assert f"what was measured so far is in {world.out / 'compare.json'}" in stderr
    assert world.document["status"] == "interrupted"
    assert world.document["rows"][0]["quality"][0]["kld_mean"] == 0.003194
    assert world.document["rows"][2]["quality"] == []
    assert list(world.out.glob("reference-logits*.tmp"))
    with pytest.raises(ProcessLookupError):
        os.kill(int(pid.read_text()), 0)


def test_json_has_no_nan(world: World) -> None:
    invoke(*world.args())
    text = (world.out / "compare.json").read_text(encoding="utf-8")
    json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} in the JSON"))
    assert np.isfinite(world.document["rows"][0]["quality"][0]["ppl"])


def test_the_noise_floor_is_a_row_of_its_own(world: World) -> None:
    result = invoke(*world.args("--no-speed"))
    assert result.exit_code == 0, result.output
    [evaluation] = world.document["evaluations"]
    floor = evaluation["noise_floor"]
    assert floor["kv"]["conditioned"]
    assert floor["quality"]["chunks"] == evaluation["reference"]["chunks"]
    lines = [line for line in result.stdout.splitlines() if "noise floor" in line]
    assert f"{floor['quality']['ppl']:.2f}" in lines[0]
    assert f"{floor['quality']['kld_mean']:.4f}" in lines[1]
    assert world.calls.count("quality f32") == 1
    assert "f32" not in [row["label"] for row in world.document["rows"]]


@pytest.mark.parametrize(
    ("logged", "instead"),
    [(", K conditioned", ""), ("flash_attn            = disabled", "flash_attn            = enabled")],
)
def test_a_noise_floor_of_another_cache_is_none(world: World, logged: str, instead: str) -> None:
    log = recorded("quality-f32.log")
    assert logged in log
    world.reply(quality_f32={"text": log.replace(logged, instead)})
    result = invoke(*world.args("--no-speed"))
    assert result.exit_code == 0, result.output
    assert world.document["evaluations"][0]["noise_floor"] is None
    assert "the noise floor was not measured" in result.stdout


def test_a_gpu_that_was_used(world: World) -> None:
    def there(name: str) -> dict[str, str]:
        return {"text": recorded(name).replace("CPU KV buffer", "CUDA0 KV buffer")}

    world.reply(load_turbo2=there("load-turbo2.log"), quality_turbo2=there("quality-turbo2.log"))
    result = invoke(*world.args("--no-speed", "--types", "turbo2", "-ngl", "99"))
    assert result.exit_code == 0, result.output
    [row] = world.document["rows"]
    assert row["kv"]["devices"] == ["CUDA0"]
    assert row["commands"][-1][-2:] == ["-ngl", "99"]


# What the programs log (overlay/src/llama-turbo-fallback.cpp).
FALLBACK = "turbo operations fall back: {}; the cache is on {}, "


def test_operations_that_fell_back_to_the_processor_fail_the_row(world: World) -> None:
    source = Path("llama.cpp/overlay/src/llama-turbo-fallback.cpp").read_text(encoding="utf-8")
    assert FALLBACK.format("%s", "%s") in source
    line = FALLBACK.format("2 FLASH_ATTN_EXT on CPU, 8 TURBO_ROTATE on CPU", "CUDA0")
    log = recorded("load-turbo2.log").replace("CPU KV buffer", "CUDA0 KV buffer")
    world.reply(load_turbo2={"text": f"{log}\nllama_turbo_log_fallback: {line}which has no kernel for them\n"})
    fails(invoke(*world.args("--no-speed", "-ngl", "99", "--types", "turbo2")), 1, "turbo2")
    [row] = world.document["rows"]
    said = "2 FLASH_ATTN_EXT on CPU, 8 TURBO_ROTATE on CPU, the cache is on CUDA0"
    assert row["kv"]["fallback"] == said
    assert row["errors"] == [f"{said}: use -ngl 0, or a build that has these kernels"]
