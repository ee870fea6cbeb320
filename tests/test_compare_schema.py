"""The committed schema is a schema, holds for what is written, and says where a document breaks it."""

import copy
import json
import math
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from compare_world import World
from jsonschema import Draft202012Validator

from turbokv_eval.cli import main
from turbokv_eval.errors import BadInput
from turbokv_eval.results import reader, schema

OLD = Path(__file__).parent / "data" / "compare-1.json"


@pytest.fixture(scope="module")
def document(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    world = World(Path(tmp_path_factory.mktemp("schema")))
    assert CliRunner().invoke(main, world.args()).exit_code == 0
    return world.document


def test_the_schema_is_one_and_closed(document: dict[str, Any]) -> None:
    Draft202012Validator.check_schema(schema.schema())
    assert schema.problem(document) is None
    assert set(document) | {"error"} == set(schema.schema()["properties"])
    assert schema.schema()["properties"]["schema_version"] == {"const": schema.VERSION}
    assert set(document["rows"][0]) == set(schema.schema()["$defs"]["row"]["properties"])


def test_documents_of_before_some_fields_are_still_read() -> None:
    document = json.loads(OLD.read_text(encoding="utf-8"))
    assert "noise_floor" not in document
    run = reader.view(document)
    assert schema.problem(run.document) is None
    assert run.document["schema_version"] == schema.VERSION
    assert "fallback" not in document["rows"][0]["kv"]
    assert {row["kv"]["fallback"] for row in run.document["rows"]} == {""}
    old, new = document["rows"][4], run.row("turbo3")
    assert new is not None
    assert (old["label"], old["quality"]["kld_mean"]) == ("turbo3", new.quality[0].numbers["kld_mean"].value)
    low, high = new.quality[0].numbers["dppl"].low, new.quality[0].numbers["dppl"].high
    assert low is not None
    assert high is not None
    assert low < old["quality"]["ppl"] - old["quality"]["ppl_base"] < high


def test_chunks_and_noise_floor_of_version_1_are_read() -> None:
    document = json.loads(OLD.read_text(encoding="utf-8"))
    row = document["rows"][4]
    interval = [-0.1, 0.2]
    row["chunks"] = {
        "kld": [0.1] * 8,
        "ln_ratio": [0.05] * 8,
        "rounding": 1e-4,
        "kld_interval": [0.05, 0.15],
        "ln_ratio_interval": interval,
    }
    document["noise_floor"] = {"label": "noise floor", "kv": row["kv"], "command": [], "quality": row["quality"]}
    run = reader.view(document)
    found = run.document["rows"][4]["quality"][0]
    base = found["ppl_base"]
    assert found["by_chunk"]["ppl_interval"] == pytest.approx([base * math.exp(end) for end in interval])
    assert found["by_chunk"]["dppl_interval"] == pytest.approx([base * math.exp(end) - base for end in interval])
    assert list(run.noise_floors.values()) == [row["quality"]["kld_mean"]]


def test_a_partial_document_is_valid(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.reply(reference_f32={"text": "error: no such thing\n", "rc": 1})
    assert CliRunner().invoke(main, world.args()).exit_code == 1
    assert world.document["status"] == "failed"
    assert schema.problem(world.document) is None


@pytest.mark.parametrize(
    ("path", "value", "said"),
    [
        (("rows", 0, "quality", 0, "kld_mean"), "0.1", r"$.rows[0].quality"),
        (("rows", 1, "status"), "fine", "$.rows[1].status: 'fine' is not one of"),
        (("model", "sha256"), "abc", "$.model.sha256"),
        (("settings", "chunks"), -1, "$.settings.chunks"),
        (("extra",), 1, "'extra' was unexpected"),
    ],
)
def test_damage_is_named_and_refused(document: dict[str, Any], path: tuple[Any, ...], value: Any, said: str) -> None:
    broken = copy.deepcopy(document)
    place = broken
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    problem = schema.problem(broken)
    assert problem is not None
    assert said in problem
    with pytest.raises(BadInput, match="damaged"):
        reader.view(broken)


def test_a_cache_that_does_not_say_what_fell_back_is_damaged(document: dict[str, Any]) -> None:
    broken = copy.deepcopy(document)
    del broken["rows"][1]["kv"]["fallback"]
    with pytest.raises(BadInput, match="'fallback' is a required property"):
        reader.view(broken)
