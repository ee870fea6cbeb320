"""Where a result came from is told as far as the machine tells it."""

import os
import platform
from importlib import metadata
from pathlib import Path
from typing import Any, NoReturn

import pytest

from turbokv_eval.machine import provenance


def refuse(error: type[Exception]) -> Any:
    def call(*args: object, **kwargs: object) -> NoReturn:
        raise error

    return call


def test_this_machine() -> None:
    host = provenance.host()
    assert host["cpu"]
    assert host["cpus"] == provenance.cpu_count() >= 1
    assert host["memory_bytes"] == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert host["system"] == platform.platform()
    assert provenance.versions()["python"] == platform.python_version()


def test_a_system_that_tells_little(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sysconf", refuse(ValueError))
    monkeypatch.setattr(os, "getloadavg", refuse(OSError))
    monkeypatch.setattr(Path, "read_text", refuse(OSError))
    monkeypatch.setattr(platform, "processor", lambda: "")
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")
    host = provenance.host()
    assert (host["cpu"], host["memory_bytes"], host["load_average_at_start"]) == ("riscv64", None, None)


def test_a_package_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metadata, "version", refuse(metadata.PackageNotFoundError))
    assert {name for name, version in provenance.versions().items() if version != "not installed"} == {"python"}
