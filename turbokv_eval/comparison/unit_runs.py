"""Runs the units of a comparison: a result out of the record, or of a new run, which goes there if it ended well."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from turbokv_eval.comparison.attempts import run_until
from turbokv_eval.comparison.record import Record, identity
from turbokv_eval.machine import runner
from turbokv_eval.machine.assets import sha256_file
from turbokv_eval.models.types import KVConfig


class Units:
    """document: of the comparison; its build, model and machine are part of every identity."""

    def __init__(self, document: dict[str, Any], record: Record) -> None:
        self._document = document
        self._record = record

    def key(self, name: str, config: KVConfig, argv: Sequence[str], *, text: str = "", reference: str = "") -> str:
        """The identity of a unit. Rotation and codebook are in the hashes of the build, the other settings in argv.

        text: SHA-256 of what it reads; reference: identity of the reference that it is held against.
        """
        document = self._document
        file = Path(config.condition) if config.condition not in ("", "auto", "on", "off") else None
        return identity(
            {
                "name": name,
                "argv": list(argv),
                "build": document["build"]["sha256"],
                "model": document["model"]["sha256"],
                "text": text,
                "condition": sha256_file(file) if file else config.condition,
                "reference": reference,
                "cpu": [document["host"]["cpu"], document["host"]["cpus"]],
            }
        )

    def known(self, key: str) -> bool:
        """Whether the record has the unit."""
        return self._record.get(key) is not None

    def run(
        self,
        name: str,
        key: str,
        argv: Sequence[str],
        log: Path,
        has_result: Callable[[str], bool],
        reader: Callable[[], runner.OnOutput] | None = None,
        again: bool = False,
    ) -> runner.Result:
        """The result of a unit. again: of a new run in any case. Raises MachineCannot."""
        known = self._record.get(key)
        if known is not None and not again:
            return known
        done = run_until(has_result, argv, log, reader)
        if done.returncode == 0 and has_result(done.output):
            self._record.add(name, key, done)
        return done
