"""llama-kv-generate on a tiny model: generation, along given tokens, prompts that share a beginning, bad input."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from zoo import attention
from zoo.write import write

pytestmark = pytest.mark.live

BIN = Path("build/cpu/bin")
TEXT = "a text that is cut into pieces by its tokens, more than once"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "tiny.gguf"
    write(attention.plain("tiny", 64), path)
    return path


def run(model: Path, folder: Path, *lines: dict[str, Any], cache: str = "f16") -> subprocess.CompletedProcess[str]:
    prompts = folder / "prompts.jsonl"
    prompts.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    argv = [str(BIN / "llama-kv-generate"), "-m", str(model), "-f", str(prompts), "-c", "256", "-t", "2", "-fa", "on"]
    argv += ["--ignore-eos", "-ctk", cache, "-ctv", cache, "--kv-condition", "off"]
    return subprocess.run(argv, capture_output=True, text=True, timeout=300)


def answers(done: subprocess.CompletedProcess[str]) -> list[dict[str, Any]]:
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.parametrize("cache", ["f16", "turbo3"])
def test_going_along_its_own_tokens_is_free_generation(model: Path, tmp_path: Path, cache: str) -> None:
    prompt = {"prompt": [TEXT]}
    [free] = answers(run(model, tmp_path, {"id": "a", **prompt, "n_predict": 12}, cache=cache))
    assert len(free["tokens"]) == len(free["logprobs"]) == 12
    [along] = answers(run(model, tmp_path, {"id": "a", **prompt, "reference": free["tokens"]}, cache=cache))
    assert along["tokens"] == free["tokens"]
    assert along["logprobs"] == pytest.approx(free["logprobs"], abs=1e-5)


def test_a_shared_beginning_changes_nothing(model: Path, tmp_path: Path) -> None:
    text = {"text": "t", "content": TEXT}
    first = {"id": "1", "prompt": [{"of": "t", "from": 0, "to": 6}], "n_predict": 8}
    second = {"id": "2", "prompt": [{"of": "t", "from": 0, "to": 6}, " and on"], "n_predict": 8}
    together = answers(run(model, tmp_path, text, first, second))
    [alone] = answers(run(model, tmp_path, text, second))
    assert together[1]["n_reused"] >= 6
    assert alone["n_reused"] == 0
    assert together[1]["n_prompt"] == alone["n_prompt"] > together[0]["n_prompt"]
    assert together[1]["tokens"] == alone["tokens"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ({"id": "a", "prompt": [TEXT]}, "either 'n_predict' or 'reference' is needed"),
        ({"id": "a", "prompt": [TEXT], "n_predict": 2, "top": 1}, "unknown key 'top'"),
        ({"id": "a", "prompt": [{"of": "t", "from": 0, "to": 2}], "n_predict": 2}, "no line above has a text 't'"),
        ({"id": "a", "prompt": [TEXT], "reference": [10**8]}, "the vocabulary has no token 100000000"),
    ],
)
def test_a_prompt_that_cannot_be_used(model: Path, tmp_path: Path, line: dict[str, Any], said: str) -> None:
    done = run(model, tmp_path, line)
    assert done.returncode == 2
    assert f"line 1: {said}" in done.stderr
    assert done.stdout == ""
