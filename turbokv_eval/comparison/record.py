"""The append-only record of finished program runs, each under the identity of everything that can change its result."""

import errno
import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from turbokv_eval.errors import MachineCannot
from turbokv_eval.machine.runner import Result

# Part of every identity: what is measured, and how it is asked for. A change makes every older unit useless.
METRIC_VERSION = 1


def identity(facts: Mapping[str, Any]) -> str:
    """SHA-256 of the facts, hexadecimal; their order does not matter."""
    data = json.dumps({"metric": METRIC_VERSION, **facts}, sort_keys=True, ensure_ascii=False)
    return hashlib.sha256(data.encode()).hexdigest()


class Record:
    """Units in a file of JSON lines. A unit is written at once and synced: a kill loses the running one only."""

    def __init__(self, path: Path) -> None:
        """Reads what is there. A last line that a kill cut is dropped. Raises MachineCannot."""
        self.path = path
        self._units: dict[str, Result] = {}
        try:
            data = path.read_bytes() if path.exists() else b""
            whole = data.rfind(b"\n") + 1
            if whole < len(data):
                with path.open("r+b") as file:
                    file.truncate(whole)
        except OSError as e:
            raise MachineCannot(f"cannot read {path}: {e.strerror}; choose another folder with --run") from e
        for line in data[:whole].splitlines():
            try:
                unit = json.loads(line)
                result = Result(**{**unit["result"], "argv": tuple(unit["result"]["argv"])})
                self._units[unit["identity"]] = result
            except (ValueError, KeyError, TypeError):
                continue  # a damaged line is a unit that runs again

    def get(self, key: str) -> Result | None:
        """The result of the unit of that identity; None when it has to run."""
        return self._units.get(key)

    def add(self, name: str, key: str, result: Result) -> None:
        """Raises MachineCannot."""
        fields = {field: getattr(result, field) for field in Result.__dataclass_fields__}
        line = json.dumps({"name": name, "identity": key, "result": fields}, ensure_ascii=False) + "\n"
        try:
            with self.path.open("ab") as file:
                file.write(line.encode())
                file.flush()
                os.fsync(file.fileno())
        except OSError as e:
            cause = "the disk is full" if e.errno == errno.ENOSPC else e.strerror
            raise MachineCannot(f"cannot write {self.path}: {cause}; free some space and run the same again") from e
        self._units[key] = result
