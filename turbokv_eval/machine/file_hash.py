"""SHA-256 of large files, remembered in the user's cache folder, so that 40 GB are not read at every resume."""

import json
import os
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from platformdirs import user_cache_dir

from turbokv_eval.machine.assets import sha256_file

# Smaller ones take less than a second.
MIN_BYTES = 64 << 20
# A file that was written so recently may change again with the same time: clocks of file systems are coarse.
SETTLED_SECONDS = 2.0
_VERSION = 1


@dataclass(frozen=True)
class _Known:
    """What a file was when it was hashed. mtime_ns: modification time in nanoseconds."""

    size: int
    mtime_ns: int
    inode: int
    sha256: str


def store() -> Path:
    """Where the hashes are kept. It can be deleted at any time."""
    return Path(user_cache_dir("turbokv", appauthor=False)) / "sha256.json"


def model_sha256(path: Path, *, trust: bool = True) -> str:
    """SHA-256 of a file, hexadecimal: the remembered one, while resolved path, size, time and inode are the same.

    trust: False reads the file in any case. Raises OSError for the file itself; a hash that cannot be kept is not.
    """
    path = path.resolve()
    before = path.stat()
    if before.st_size < MIN_BYTES:
        return sha256_file(path)
    known = _read().get(str(path))
    if trust and known is not None and known == _of(before, known.sha256):
        return known.sha256
    found = _of(before, sha256_file(path))
    if _of(path.stat(), found.sha256) == found and time.time() - before.st_mtime > SETTLED_SECONDS:
        _keep(path, found)
    return found.sha256


def _of(stat: os.stat_result, sha256: str) -> _Known:
    return _Known(stat.st_size, stat.st_mtime_ns, stat.st_ino, sha256)


def _read() -> dict[str, _Known]:
    """By resolved path. Nothing of a file that is not ours, or damaged."""
    try:
        document = json.loads(store().read_text(encoding="utf-8"))
        if document["version"] != _VERSION:
            return {}
        return {path: _entry(fields) for path, fields in document["files"].items()}
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return {}


def _entry(fields: dict[str, Any]) -> _Known:
    entry = _Known(**fields)
    if len(entry.sha256) != 64 or not all(type(n) is int for n in (entry.size, entry.mtime_ns, entry.inode)):
        raise ValueError("no hash of a file")
    int(entry.sha256, 16)
    return entry


def _keep(path: Path, entry: _Known) -> None:
    """Replaces the store as a whole; files that are gone are dropped. Does nothing where it cannot be written."""
    files = {name: known for name, known in _read().items() if Path(name).is_file()} | {str(path): entry}
    document = {"version": _VERSION, "files": {name: asdict(known) for name, known in files.items()}}
    try:
        store().parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=store().parent, prefix="sha256-") as scratch:
            part = Path(scratch) / "part"
            part.write_text(json.dumps(document, indent=1), encoding="utf-8")
            part.replace(store())
    except OSError:
        return
