"""The folder of one comparison: checked before the long run, locked during it, written whole or not at all."""

import errno
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from turbokv_eval.comparison.attempts import is_whole
from turbokv_eval.errors import BadInput, MachineCannot

try:
    import fcntl
except ImportError:  # no such module on Windows, where two runs into one folder are the user's to avoid
    fcntl = None  # type: ignore[assignment]

# Left free beyond what a run is known to need.
_SPARE_BYTES = 64 << 20


class Store:
    """compare.json, compare.txt, logs/, prompts/ and, during a run, the reference's log-probabilities."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.json = folder / "compare.json"
        self.table = folder / "compare.txt"
        self.logs = folder / "logs"
        self.record = folder / "units.jsonl"
        # Set when the run is to be taken up again, which needs its reference.
        self.keep_references = False

    def reference(self, key: str) -> Path:
        """Where the reference of that identity stores its log-probabilities."""
        return self.folder / f"reference-logits-{key[:16]}.tmp"

    def log(self, name: str) -> Path:
        """Where the output of the unit of that name is kept."""
        return self.logs / f"{name}.log"

    def save(self, document: dict[str, Any]) -> None:
        """Replaces compare.json. Raises MachineCannot."""
        # A NaN would make a file that no other JSON reader takes.
        self._replace(self.json, json.dumps(document, indent=1, ensure_ascii=False, allow_nan=False) + "\n")

    def save_prompts(self, name: str, text: str) -> Path:
        """The path of that file of prompts, which stays: it can be read, and run again. Raises MachineCannot."""
        path = self.folder / "prompts" / f"{name}.jsonl"
        self._replace(path, text)
        return path

    def save_table(self, text: str) -> None:
        """Replaces compare.txt. Raises MachineCannot."""
        self._replace(self.table, text)

    def need(self, size: int, what: str) -> None:
        """Raises MachineCannot unless `size` bytes fit on the disk."""
        free = shutil.disk_usage(self.folder).free
        if free < size + _SPARE_BYTES:
            raise MachineCannot(
                f"{what} needs {_mib(size)} in {self.folder}, where {_mib(free)} are free: use fewer --chunks, or"
                f" another disk with --run"
            )

    def _replace(self, path: Path, text: str) -> None:
        part = path.with_suffix(path.suffix + ".part")
        try:
            path.parent.mkdir(exist_ok=True)
            with part.open("w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            part.replace(path)
        except OSError as e:
            cause = "the disk is full" if e.errno == errno.ENOSPC else e.strerror
            raise MachineCannot(
                f"cannot write {path}: {cause}; free some space or choose another folder with --run"
            ) from e


def _mib(size: int) -> str:
    return f"{size / (1 << 20):.0f} MiB"


@contextmanager
def opened(folder: Path) -> Iterator[Store]:
    """Creates and locks the folder; deletes temporary files at the end. Raises BadInput."""
    store = Store(folder)
    try:
        store.logs.mkdir(parents=True, exist_ok=True)
        lock = (folder / ".lock").open("w")
        # The logs are a folder of their own, and it may be an older one of somebody else.
        store.log("writable").write_bytes(b"")
        store.log("writable").unlink()
    except OSError as e:
        raise BadInput(f"cannot write in the output folder {folder}: {e.strerror}; choose another with --run") from e
    with lock:
        try:
            if fcntl is not None:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as e:
            raise BadInput(f"another comparison is writing in {folder}: choose another folder with --run") from e
        try:
            yield store
        finally:
            for path in folder.glob("reference-logits*.tmp"):
                if not store.keep_references or not is_whole(path):
                    path.unlink(missing_ok=True)
