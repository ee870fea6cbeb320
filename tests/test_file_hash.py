"""The hash of a large file is remembered while the file is the same, and never when it may not be."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import pytest
from compare_world import World, fails, invoke

from turbokv_eval.machine import file_hash

OLD = 1_600_000_000_000_000_000


class Files:
    """reads: what was really hashed, in order."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path = root / "model.gguf"
        self.reads: list[Path] = []
        monkeypatch.setenv("XDG_CACHE_HOME", str(root / "cache"))
        monkeypatch.setattr(file_hash, "MIN_BYTES", 16)
        real = file_hash.sha256_file

        def hashed(path: Path) -> str:
            self.reads.append(path)
            return real(path)

        monkeypatch.setattr(file_hash, "sha256_file", hashed)
        self.write(b"a" * 32)

    def write(self, data: bytes, mtime_ns: int = OLD) -> None:
        self.path.write_bytes(data)
        os.utime(self.path, ns=(mtime_ns, mtime_ns))

    def check(self, *, read: bool, **options: bool) -> None:
        """The hash is right, and the file was read for it or not."""
        before = len(self.reads)
        truth = hashlib.sha256(self.path.read_bytes()).hexdigest()
        assert file_hash.model_sha256(self.path, **options) == truth
        assert (len(self.reads) > before) == read


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Files:
    return Files(tmp_path, monkeypatch)


def test_the_second_time_the_file_is_not_read(files: Files) -> None:
    files.check(read=True)
    files.check(read=False)
    link = files.path.with_name("link.gguf")
    link.symlink_to(files.path)
    files.path = link
    files.check(read=False)


def test_anything_that_changed_is_read_again(files: Files) -> None:
    files.check(read=True)
    files.write(b"b" * 33)  # size
    files.check(read=True)
    files.write(b"c" * 33, OLD + 1)  # time
    files.check(read=True)
    other = files.path.with_name("other")
    other.write_bytes(b"d" * 33)
    os.utime(other, ns=(OLD + 1, OLD + 1))
    other.replace(files.path)  # inode
    files.check(read=True)
    files.check(read=False)


def test_without_trust_the_file_is_always_read(files: Files) -> None:
    files.check(read=True)
    files.check(read=True, trust=False)
    # what the key cannot show: rewritten in place, with its old time
    with files.path.open("r+b") as file:
        file.write(b"z")
    os.utime(files.path, ns=(OLD, OLD))
    assert file_hash.model_sha256(files.path) == hashlib.sha256(b"a" * 32).hexdigest()
    files.check(read=True, trust=False)
    files.check(read=False)


def test_a_file_that_was_just_written_is_not_remembered(files: Files) -> None:
    files.path.write_bytes(b"e" * 40)
    files.check(read=True)
    files.check(read=True)


def test_a_file_that_changes_while_it_is_read_is_not_remembered(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    def torn(path: Path) -> str:
        files.write(b"f" * 50, OLD + 5)
        return "0" * 64

    monkeypatch.setattr(file_hash, "sha256_file", torn)
    file_hash.model_sha256(files.path)
    assert not file_hash.store().exists()


def test_small_files_are_not_remembered(files: Files) -> None:
    files.write(b"small")
    files.check(read=True)
    files.check(read=True)
    assert not file_hash.store().exists()


ENTRY = {"size": 32, "mtime_ns": OLD, "inode": 1, "sha256": "0" * 64}


@pytest.mark.parametrize(
    "content",
    [
        "not JSON",
        "[]",
        "null",
        '"text"',
        json.dumps({"version": 1}),
        json.dumps({"version": 2, "files": {"PATH": ENTRY}}),
        json.dumps({"version": 1, "files": ["PATH"]}),
        json.dumps({"version": 1, "files": {"PATH": {**ENTRY, "sha256": "short"}}}),
        json.dumps({"version": 1, "files": {"PATH": {**ENTRY, "sha256": "x" * 64}}}),
        json.dumps({"version": 1, "files": {"PATH": {**ENTRY, "size": "32"}}}),
        json.dumps({"version": 1, "files": {"PATH": {**ENTRY, "more": 1}}}),
        json.dumps({"version": 1, "files": {"PATH": 7}}),
        b"\xff\xfe\x00",
    ],
)
def test_a_foreign_or_damaged_store_is_ignored_and_rewritten(files: Files, content: str | bytes) -> None:
    file_hash.store().parent.mkdir(parents=True)
    if isinstance(content, str):
        inode = f'"inode": {files.path.stat().st_ino}'
        content = content.replace("PATH", str(files.path)).replace('"inode": 1', inode).encode()
    file_hash.store().write_bytes(content)
    files.check(read=True)
    files.check(read=False)
    found = json.loads(file_hash.store().read_text(encoding="utf-8"))
    assert list(found["files"]) == [str(files.path)]


def test_a_cache_that_cannot_be_written_costs_time_only(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    blocked = files.path.with_name("a-file")
    blocked.write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(blocked))
    files.check(read=True)
    files.check(read=True)


def test_files_that_are_gone_are_forgotten(files: Files) -> None:
    files.check(read=True)
    first = files.path
    files.path = first.with_name("next.gguf")
    files.write(b"g" * 64)
    first.unlink()
    files.check(read=True)
    found: dict[str, Any] = json.loads(file_hash.store().read_text(encoding="utf-8"))
    assert list(found["files"]) == [str(files.path)]


def test_a_comparison_reads_the_model_again_only_for_a_hash_that_was_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path)
    files = Files(tmp_path / "bin", monkeypatch)
    os.utime(world.model, ns=(OLD, OLD))
    for _ in range(2):
        assert invoke(*world.args("--no-speed")).exit_code == 0
    assert files.reads == [world.model.resolve()]
    truth = hashlib.sha256(world.model.read_bytes()).hexdigest()
    assert world.document["model"]["sha256"] == truth
    assert invoke(*world.args("--no-speed", "--model-sha256", truth)).exit_code == 0
    assert len(files.reads) == 2
    fails(invoke(*world.args("--no-speed", "--model-sha256", "0" * 64)), 2, "it is another file, or damaged")
    assert len(files.reads) == 3
