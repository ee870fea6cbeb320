"""Where a result came from: machine, build, versions."""

import os
import platform
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any

from turbokv_eval.machine import runner
from turbokv_eval.machine.assets import sha256_file

_PACKAGES = ("turbokv-eval", "gguf", "numpy", "pandas")


def now() -> str:
    """The time, UTC, ISO 8601 to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def cpu_count() -> int:
    """Processors that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def load_average() -> float | None:
    """Of the last minute, as the system tells it."""
    try:
        return round(os.getloadavg()[0], 2)
    except OSError:
        return None


def host() -> dict[str, Any]:
    """Processor, memory and system. `memory_bytes` is None where the system does not tell."""
    try:
        memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (ValueError, OSError):
        memory = None
    return {
        "cpu": _cpu_name(),
        "cpus": cpu_count(),
        "memory_bytes": memory,
        "system": platform.platform(),
        "load_average_at_start": load_average(),
    }


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()


def versions() -> dict[str, str]:
    """Of Python and of the packages that have a part in the numbers."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "not installed"
    return found


def build(bin_dir: Path, programs: Sequence[str]) -> dict[str, Any]:
    """Identity of the built programs: what the first says of itself, and hashes of the libraries with the code.

    Programs that are not there are left out.
    """
    said = runner.run([bin_dir / programs[0], "--version"], timeout=60).output.strip().splitlines()
    libraries = {path.resolve() for path in bin_dir.glob("lib*") if path.is_file()}
    own = {(bin_dir / program).resolve() for program in programs if (bin_dir / program).is_file()}
    return {
        "bin": str(bin_dir),
        "version": said,
        "sha256": {path.name: sha256_file(path) for path in sorted({*libraries, *own})},
    }
