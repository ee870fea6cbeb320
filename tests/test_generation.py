"""Trajectory and needles: what is asked, how answers are scored, and the steps of a comparison that ask."""

import csv
import io
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from compare_world import World, fails, invoke, recorded

from turbokv_eval.comparison import needle, trajectory
from turbokv_eval.errors import BadInput, CheckFailed
from turbokv_eval.output import html_report
from turbokv_eval.programs import generate
from turbokv_eval.programs.generate import Answer
from turbokv_eval.results import paired, reader, schema
from turbokv_eval.results.recommend import recommend


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def answer(tokens: list[int], reference: list[int], logprob: float = -0.5) -> Answer:
    return Answer("0", 10, tuple(tokens), tuple(reference), (logprob,) * len(tokens))


# The program's output.


def test_agreement_ends_at_the_first_other_token() -> None:
    assert answer([1, 2, 3], [1, 2, 3]).agreement == 3
    assert answer([1, 9, 3], [1, 2, 3]).agreement == 1
    assert answer([9, 2, 3], [1, 2, 3]).agreement == 0


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"id": "0"', "not its JSON"),
        ('{"id": "0", "n_prompt": 1, "tokens": [1], "reference": [1], "logprobs": []}', "0 log-probabilities"),
        ('{"id": "0", "n_prompt": 1, "tokens": [1], "reference": [1], "logprobs": [NaN]}', "not its JSON"),
        ('{"id": "1", "n_prompt": 1, "tokens": [1], "reference": [1], "logprobs": [-1]}', "not those that were asked"),
        ("", "answered 0 of 1 prompts"),
    ],
)
def test_damaged_answers_are_refused(line: str, said: str) -> None:
    with pytest.raises(CheckFailed, match=said):
        generate.parse(line, ["0"])


def test_a_short_text_begins_again() -> None:
    assert generate.excerpt("abc", 1, 1) == "bcabcabcabca"


# The trajectory.


def test_prompts_are_spread_over_the_texts() -> None:
    plan = trajectory.Plan(prompts=4, n_prompt=1, n_predict=2)
    texts = ["".join(chr(97 + i % 26) for i in range(100)), "".join(chr(65 + i % 26) for i in range(40))]
    assert [found[:2] for found in trajectory.excerpts(plan, texts)] == ["ab", "AB", "yz", "UV"]


def test_the_agreement_is_censored_and_paired_with_the_noise_floor() -> None:
    plan = trajectory.Plan(prompts=8, n_prompt=4, n_predict=4)
    lengths = [0, 1, 2, 3, 4, 4, 2, 2]
    reference = [1, 2, 3, 4]
    answers = [answer([t if i != n else 9 for i, t in enumerate(reference)], reference) for n in lengths]
    found = trajectory.score(plan, answers, [4] * 8)
    assert found["lengths"] == lengths
    assert (found["censored"], found["mean"], found["median"]) == (2, 18 / 8, 2.0)
    assert found["from_floor"] == 18 / 8 - 4
    low, high = found["mean_interval"]
    assert 0 <= low < found["mean"] < high <= 4
    # one of four tokens differs in six of eight prompts
    assert found["top1"] == pytest.approx(100 * (1 - 6 / 32))


def test_equal_answers_show_no_interval() -> None:
    plan = trajectory.Plan(prompts=8, n_prompt=4, n_predict=2)
    found = trajectory.score(plan, [answer([1, 2], [1, 2])] * 8, None)
    assert (found["mean"], found["censored"], found["mean_interval"], found["median_interval"]) == (2.0, 8, None, None)
    assert found["from_floor"] is None


# Needles.


def test_facts_are_seeded_and_keys_are_never_twice_in_a_haystack() -> None:
    plan = needle.Plan(contexts=(512, 2048), needles=5, seed=3)
    for ctx, haystacks in ((512, 3), (2048, 2)):
        found = needle.needles(plan, ctx)
        assert found == needle.needles(plan, ctx)
        assert plan.haystacks(ctx) == haystacks
        assert [sum(one.position == p for one in found) for p in range(5)] == [5] * 5
        for haystack in range(haystacks):
            keys = [one.question for one in found if one.haystack == haystack]
            assert len(keys) == len(set(keys))
    assert needle.needles(needle.Plan(seed=4), 512) != needle.needles(needle.Plan(seed=3), 512)


def test_facts_lie_where_they_were_asked_and_questions_share_the_haystack() -> None:
    plan = needle.Plan(contexts=(512,), positions=(0, 50, 100), needles=1)
    lines = needle.prompts(plan, "some text " * 900, 512, 200)
    asked = [line for line in lines if "id" in line]
    assert len(asked) == 3
    first = asked[0]["prompt"]
    cuts = [piece if isinstance(piece, str) else (piece["from"], piece["to"]) for piece in first]
    assert (cuts[1], cuts[3]) == ((0, 100), (100, 200))
    facts = [f"{one.question}{one.answer}." for one in needle.needles(plan, 512)]
    for fact, piece in zip(facts, cuts[::2], strict=True):
        assert fact in str(piece)
    shared = {json.dumps(line["prompt"][:-1]) for line in asked}
    assert len(shared) == 1
    for line, one in zip(asked, needle.needles(plan, 512), strict=True):
        assert line["prompt"][-1].endswith(f"\n{one.question}")
        assert line["reference"] == one.answer


def test_a_context_without_room_is_refused() -> None:
    with pytest.raises(BadInput, match="a context of 128 tokens has no room"):
        needle.haystack_tokens(needle.Plan(contexts=(128,)), 128)


def test_what_the_reference_does_not_find_is_no_evidence() -> None:
    reference = [
        {"position": 0.0, "found": True, "logprob": -1.0},
        {"position": 0.0, "found": True, "logprob": -1.0},
        {"position": 50.0, "found": False, "logprob": -8.0},
    ]
    good, bad = answer([1], [1], -2.0), answer([9], [1], -2.0)
    found = needle.score(512, reference, [good, bad, good])
    assert [(cell["found"], cell["n"]) for cell in found["cells"]] == [(1, 2), (0, 0)]
    assert found["cells"][1]["interval"] is None
    assert (found["all"]["found"], found["all"]["n"]) == (1, 2)
    assert found["dlogprob"] == pytest.approx((-1 - 1 + 6) / 3)


def test_wilson_against_its_formula() -> None:
    n, share, z = 10, 0.8, 1.959964
    centre = (share + z * z / (2 * n)) / (1 + z * z / n)
    half = z / (1 + z * z / n) * np.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    assert paired.wilson(8, 10) == pytest.approx((centre - half, centre + half), abs=1e-6)
    assert paired.wilson(0, 3)[0] == 0
    assert paired.wilson(0, 3)[1] > 0.5


# In a comparison.


def test_a_comparison_generates(world: World) -> None:
    result = invoke(*world.generating("--no-speed"))
    assert result.exit_code == 0, result.output
    document = world.document
    assert schema.problem(document) is None
    assert document["trajectory"]["noise_floor"]["score"]["censored"] == 8
    f16, _, turbo2 = document["rows"]
    assert f16["trajectory"]["censored"] == 8
    assert turbo2["trajectory"]["lengths"] == [3] * 8
    assert turbo2["trajectory"]["from_floor"] == 3 - 48
    [entry] = document["needle"]
    assert (entry["ctx"], len(entry["needles"])) == (512, 10)
    assert (f16["needle"][0]["all"]["found"], turbo2["needle"][0]["all"]["found"]) == (10, 0)
    assert "It finds 0 of the 10 planted facts that an f32 cache finds." in recommend(document, max_kld=10)["text"]
    assert turbo2["needle"][0]["dlogprob"] == pytest.approx(6 * -1.9)
    # identical answers of f16 and the pair are no error
    assert all(row["errors"] == [] for row in document["rows"])
    assert "2/2" in result.stdout
    assert max(map(len, result.stdout.splitlines())) <= 120
    run = reader.view(document)
    assert run.rows[2].trajectory is not None
    assert run.rows[2].trajectory.mean.value == 3
    page = html_report.render(run)
    for said in ("Token trajectory", "Needles found at 512 tokens", "Needle retrieval at 512 tokens"):
        assert said in page
    assert page.index("Needles found at 512") < page.index('<title id="needle-512-map-title">')


def test_the_same_command_generates_nothing_again_and_a_switch_leaves_it_out(world: World) -> None:
    assert invoke(*world.generating("--no-speed")).exit_code == 0
    calls, before = len(world.calls), world.document
    assert invoke(*world.generating("--no-speed")).exit_code == 0
    assert len(world.calls) == calls
    assert world.document["rows"] == before["rows"]
    assert invoke(*world.args("--no-speed")).exit_code == 0
    assert len(world.calls) == calls
    assert (world.document["trajectory"], world.document["needle"]) == (None, [])
    # another build of the program answers anew
    with (world.bin / "llama-kv-generate").open("a") as file:
        file.write("# another\n")
    assert invoke(*world.generating("--no-speed")).exit_code == 0
    assert world.calls[calls:].count("trajectory f16") == 1


def test_a_run_with_another_cache_fails_its_row(world: World) -> None:
    world.reply(**{"needle_turbo2": {"text": recorded("load-f16.log")}})
    fails(invoke(*world.generating("--no-speed")), 1, "turbo2")
    assert "K was f16, not turbo2" in world.document["rows"][2]["errors"]
    assert world.document["rows"][2]["needle"] == []


def test_a_crash_fails_its_row_and_the_others_go_on(world: World) -> None:
    world.reply(trajectory_f16={"text": "GGML_ASSERT(x) failed\n", "rc": 134})
    fails(invoke(*world.generating("--no-speed")), 1, "f16")
    assert world.document["rows"][0]["errors"] == ["llama-kv-generate failed: GGML_ASSERT(x) failed"]
    assert world.document["rows"][2]["needle"]


def test_a_reference_that_does_not_run_is_a_note(world: World) -> None:
    world.reply(trajectory_f32={"rc": 1}, needle_f32={"text": recorded("load-f16.log")})
    result = invoke(*world.generating("--no-speed"))
    assert result.exit_code == 0, result.output
    assert "the trajectory was not measured: of the reference, it failed" in result.stdout
    assert "needles at context 512 were not measured: of the reference, K was f16, not f32" in result.stdout
    assert world.document["rows"][0]["trajectory"] is None


def test_a_haystack_is_shortened_until_it_fits(world: World) -> None:
    full = needle.haystack_tokens(needle.Plan(), 512)
    world.reply(needle_f32={"excess": 7})
    assert invoke(*world.generating("--no-speed")).exit_code == 0
    assert world.document["needle"][0]["n_text"] == full - 7
    assert world.calls.count("needle f32") == 2


def test_csv_and_markdown_have_it(world: World) -> None:
    result = invoke(*world.generating("--no-speed", "-o", "csv"))
    row = next(row for row in csv.DictReader(io.StringIO(result.stdout)) if row["type"] == "turbo2")
    assert (row["trajectory_mean"], row["needle_512_found"], row["needle_512_n"]) == ("3.0", "0", "10")
    assert "needles at context 512" in invoke(*world.generating("--no-speed", "-o", "md")).stdout


def test_documents_of_before_are_read(world: World) -> None:
    assert invoke(*world.args("--no-speed")).exit_code == 0
    document: dict[str, Any] = world.document
    for holder in (document, document["settings"], *document["rows"]):
        del holder["trajectory"], holder["needle"]
    assert reader.view(document).rows[0].trajectory is None


def test_kill_9_loses_at_most_one_unit(world: World) -> None:
    names = ("trajectory_f32", "trajectory_f16", "trajectory_turbo2", "needle_f32", "needle_f16", "needle_turbo2")
    world.reply(**{name: {"sleep": 0.2} for name in names})
    argv = world.generating("--no-speed")
    chance, units, kills = random.Random(5), world.out / "units.jsonl", 3
    for _ in range(kills):
        process = subprocess.Popen(
            [sys.executable, "-m", "turbokv_eval", *argv],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd=Path(__file__).parents[1],
            start_new_session=True,
        )
        had = units.read_bytes().count(b"\n") if units.exists() else 0
        while process.poll() is None and (not units.exists() or units.read_bytes().count(b"\n") <= had):
            time.sleep(0.01)
        time.sleep(chance.uniform(0, 1.0))
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    assert invoke(*argv).exit_code == 0
    done = [json.loads(line)["name"] for line in units.read_text(encoding="utf-8").splitlines()]
    assert len(done) == len(set(done)) == 3 + 5 + 5 + 4
    assert len(world.calls) <= len(done) + kills


# The command `needle`.


def needle_args(world: World, *more: str) -> list[str]:
    fixed = ["needle", world.model, "-f", world.text, "--bin", world.bin, "--run", world.out]
    return [*map(str, fixed), "--types", "f16,turbo2", "--contexts", "256,512", "-n", "1", *more]


def test_the_command_runs_needles_alone(world: World) -> None:
    result = invoke(*needle_args(world, "--positions", "0,50,100"))
    assert result.exit_code == 0, result.output
    assert not any(call.startswith(("quality", "speed", "trajectory", "reference")) for call in world.calls)
    assert [entry["ctx"] for entry in world.document["needle"]] == [256, 512]
    assert "needles at" in result.stdout
    assert "PPL" not in result.stdout
    rows = list(csv.DictReader(io.StringIO(invoke(*needle_args(world, "--positions", "0,50,100", "-o", "csv")).stdout)))
    assert len(rows) == 2 * 2 * 3
    assert (rows[0]["type"], rows[0]["ctx"], rows[0]["position"], rows[0]["found"]) == ("f16", "256", "0.0", "1")


def test_the_command_fails_where_nothing_was_measured(world: World) -> None:
    world.reply(needle_f32={"rc": 1})
    fails(invoke(*needle_args(world)), 1, "needles at context 256 were not measured")


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (("--positions", "0,a"), "not a list of numbers"),
        (("--positions", "0,101"), "below 0 or above 100"),
        (("--contexts", "0"), "below 1"),
        (("--contexts", "64"), "no room for text"),
        (("-n", "0"), "--needles"),
    ],
)
def test_bad_options_of_the_command(world: World, more: tuple[str, ...], said: str) -> None:
    fails(invoke(*needle_args(world, *more)), 2, said)
    assert world.calls == []
