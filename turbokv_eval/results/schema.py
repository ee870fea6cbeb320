"""The committed JSON schema of a comparison's document: checked when one is finished and when one is read."""

import json
from functools import cache
from importlib import resources
from typing import Any

# A change of meaning of any field is a new number, and a step in upgrades.
VERSION = 2


@cache
def schema() -> dict[str, Any]:
    """JSON Schema, draft 2020-12."""
    file = resources.files(__package__).joinpath(f"compare-{VERSION}.schema.json")
    found: dict[str, Any] = json.loads(file.read_text("utf-8"))
    return found


def problem(document: Any) -> str | None:
    """What is wrong with a document of this version and where, in one line; None when it is valid."""
    from jsonschema import Draft202012Validator  # here: it takes a while, which every command would pay
    from jsonschema.exceptions import best_match

    error = best_match(Draft202012Validator(schema()).iter_errors(document))
    if error is None:
        return None
    message = error.message if len(error.message) <= 120 else error.message[:117] + "..."
    return f"{error.json_path}: {message}"
