"""Trajectory and needles with the built programs on the small default model."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from turbokv_eval.cli import main
from turbokv_eval.comparison import trajectory
from turbokv_eval.comparison.evaluation import REFERENCE
from turbokv_eval.machine import assets, build, runner
from turbokv_eval.models.types import KVConfig
from turbokv_eval.programs import generate, kv_log

pytestmark = pytest.mark.live

PLAN = trajectory.Plan(prompts=4, n_prompt=32, n_predict=24)
CACHES = {"q8_0": KVConfig("q8_0", "q8_0"), "turbo2@off": KVConfig("turbo2", "turbo2", "off"), "f32": REFERENCE}


def test_the_reference_agrees_with_itself_to_the_end_and_coarse_caches_less(tmp_path: Path) -> None:
    text = assets.fetch(assets.TEXT).read_text(encoding="utf-8")

    def answers(config: KVConfig, along: list[generate.Answer] | None) -> list[generate.Answer]:
        file = tmp_path / "prompts.jsonl"
        file.write_text(generate.lines(trajectory.prompts(PLAN, [text], along)), encoding="utf-8")
        exact = config == REFERENCE
        model = assets.fetch(assets.MODEL)
        argv = generate.command(build.default_bin(), model, config, file, ctx=PLAN.ctx, threads=2, flash_attn=not exact)
        done = runner.run(argv)
        assert done.returncode == 0, done.stderr[-2000:]
        assert kv_log.problems(config, not exact, kv_log.parse_contexts(done.output)[-1:]) == []
        return generate.parse(done.stdout, trajectory.ids(PLAN))

    reference = answers(REFERENCE, None)
    assert all(len(answer.tokens) == PLAN.n_predict for answer in reference)
    scores = {name: trajectory.score(PLAN, answers(config, reference), None) for name, config in CACHES.items()}
    assert scores["f32"]["lengths"] == [PLAN.n_predict] * PLAN.prompts
    assert scores["f32"]["top1"] == 100
    assert scores["turbo2@off"]["mean"] < scores["q8_0"]["mean"]
    assert scores["turbo2@off"]["top1"] < scores["q8_0"]["top1"]


def test_needles_are_found_and_lost(tmp_path: Path) -> None:
    fixed = ["needle", assets.fetch(assets.MODEL), "--types", "q8_0,turbo2@off", "--contexts", "256", "-n", "1"]
    args = [*map(str, fixed), "--positions", "0,33,67,100", "--run", str(tmp_path / "out"), "-o", "json"]
    result = CliRunner().invoke(main, args)
    assert result.exit_code == 0, result.stderr
    document = json.loads(result.stdout)
    [entry] = document["needle"]
    assert 200 < entry["n_prompt"] <= 256
    assert entry_found(entry) >= 3, "a form that the small model solves"
    q8_0, turbo2 = (row["needle"][0] for row in document["rows"])
    assert q8_0["all"]["found"] >= entry_found(entry) - 1
    assert abs(q8_0["dlogprob"]) < 1
    assert turbo2["dlogprob"] < -2


def entry_found(entry: dict[str, list[dict[str, bool]]]) -> int:
    return sum(needle["found"] for needle in entry["needles"])
