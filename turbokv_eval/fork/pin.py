"""The pin (`llama.cpp/UPSTREAM`) and the sdist it names: read, fetch, verify."""

import hashlib
import os
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path

from turbokv_eval.errors import BadInput, CheckFailed, MachineCannot

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Pin:
    """One llama.cpp tree: a source distribution in the package registry, its hash, and the folder inside it."""

    package: str
    version: str
    sdist: str
    sha256: str
    subdir: str
    commit: str
    licence: str

    @property
    def key(self) -> str:
        """Names the upstream tree: changes when, and only when, other files or another commit message come out."""
        return hashlib.sha256("\0".join(vars(self).values()).encode()).hexdigest()[:16]


def load_pin(source: Path) -> Pin:
    """Reads `source/UPSTREAM`. Raises ToolError when it is missing, no TOML, or lacks a field."""
    path = source / "UPSTREAM"
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as e:
        raise BadInput(f"cannot read the pin {path}: {e.strerror}") from e
    except tomllib.TOMLDecodeError as e:
        raise BadInput(f"{path} is not valid TOML: {e}") from e
    names = [f.name for f in fields(Pin)]
    bad = [n for n in names if not isinstance(data.get(n), str) or not data[n]]
    bad += sorted(set(data) - set(names))
    if bad:
        raise BadInput(f"{path}: missing, empty or unknown field {', '.join(bad)}; it has exactly: {', '.join(names)}")
    if not re.fullmatch(r"[0-9a-f]{64}", data["sha256"]):
        raise BadInput(f"{path}: sha256 must be 64 lower-case hex digits")
    return Pin(**data)


def fetch_sdist(pin: Pin, cache: Path, progress: Progress) -> Path:
    """The verified sdist: from `cache`, else downloaded into it.

    The hash is checked on every call. Raises CheckFailed on a wrong hash and MachineCannot when the file can be
    neither found nor downloaded.
    """
    path = cache / pin.sdist
    if not path.exists():
        _download(pin, path, progress)
    with path.open("rb") as f:
        got = hashlib.file_digest(f, "sha256").hexdigest()
    if got != pin.sha256:
        raise CheckFailed(
            f"wrong hash: {path} has sha256 {got}, UPSTREAM says {pin.sha256}; delete that file and run again"
        )
    return path


def _download(pin: Pin, path: Path, progress: Progress) -> None:
    progress(f"downloading {pin.sdist} (once; kept in {path.parent})")
    by_hand = f"or put {pin.sdist} (sha256 {pin.sha256}) into {path.parent} by hand"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        scratch = tempfile.TemporaryDirectory(dir=path.parent)
    except OSError as e:
        raise MachineCannot(
            f"cannot write the cache {path.parent}: {e.strerror}; set XDG_CACHE_HOME to a writable folder"
        ) from e
    with scratch as tmp:
        # pip reads the metadata of an sdist by running its build backend. A hash in a requirements file makes pip
        # verify the archive before that.
        requirements = Path(tmp, "requirements.txt")
        requirements.write_text(f"{pin.package}=={pin.version} --hash=sha256:{pin.sha256}\n", encoding="utf-8")
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--no-cache-dir"]
        command += ["--no-binary", pin.package, "--requirement", str(requirements), "--dest", tmp]
        done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
        if done.returncode == 0 and Path(tmp, pin.sdist).is_file():
            os.replace(Path(tmp, pin.sdist), path)
            return
        files = [p.name for p in Path(tmp).iterdir() if p != requirements]
    said = done.stdout + done.stderr
    if done.returncode == 0:
        raise CheckFailed(f"pip downloaded {files}, UPSTREAM says {pin.sdist}: correct `sdist` in UPSTREAM")
    if got := re.search(r"\bGot\s+([0-9a-f]{64})", said):
        raise CheckFailed(
            f"wrong hash: the registry's {pin.sdist} has sha256 {got[1]}, UPSTREAM says {pin.sha256}; do not build it:"
            f" either UPSTREAM was edited by mistake or the archive was replaced"
        )
    if "No module named pip" in said:
        raise MachineCannot(f"{sys.executable} has no pip: run `{sys.executable} -m ensurepip`, {by_hand}")
    errors = [line for line in said.splitlines() if line.startswith("ERROR: ")]
    cause = errors[-1].removeprefix("ERROR: ") if errors else (said.strip().splitlines() or ["pip failed"])[-1]
    raise MachineCannot(
        f"cannot download {pin.package} {pin.version} ({cause}): connect to the network and run again, {by_hand}"
    )
