"""A tiny upstream sdist and a fork of it in a temporary folder: what the tests of `turbokv_eval.fork` play with."""

import gzip
import hashlib
import io
import subprocess
import tarfile
from pathlib import Path

from turbokv_eval.fork import Layout

PACKAGE, VERSION = "tiny-upstream", "1.0"
SDIST = "tiny_upstream-1.0.tar.gz"

# A build backend inside the sdist itself: pip can read its metadata with no network and nothing installed.
BACKEND = """
import os
def prepare_metadata_for_build_wheel(directory, config_settings=None):
    info = "tiny_upstream-1.0.dist-info"
    os.mkdir(os.path.join(directory, info))
    with open(os.path.join(directory, info, "METADATA"), "w") as f:
        f.write("Metadata-Version: 2.1\\nName: tiny-upstream\\nVersion: 1.0\\n")
    return info
def build_wheel(*args, **kwargs):
    raise RuntimeError("nobody builds this")
"""
A_C = "".join(f"int a{i};\n" for i in range(1, 41))
UPSTREAM_FILES = {
    "src/a.c": A_C,
    "src/b.c": "int b1;\nint b2;\nint b3;\n",
    "docs/crlf.txt": "one\r\ntwo\r\nthree\r\n",
    "run.sh": "#!/bin/sh\necho hi\n",
    ".gitignore": "*.log\n/build*\n",
    ".git": "gitdir: ../../.git/modules/vendor/llama.cpp\n",
}
HEADER = "Why: the cache needs it.\nKind: registration\nRetire-when: upstream has a registry.\n\n"


def sdist_bytes(files: dict[str, str]) -> bytes:
    """A gzipped sdist with `files` under vendor/llama.cpp."""
    outer = {
        "pyproject.toml": '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n',
        "PKG-INFO": f"Metadata-Version: 2.1\nName: {PACKAGE}\nVersion: {VERSION}\n",
        "backend.py": BACKEND,
        "vendor/other/x.c": "int not_ours;\n",
    } | {f"vendor/llama.cpp/{name}": text for name, text in files.items()}
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as tar:
        for name, text in outer.items():
            info = tarfile.TarInfo(f"tiny_upstream-1.0/{name}")
            info.size, info.mode = len(text.encode()), 0o755 if name.endswith(".sh") else 0o644
            tar.addfile(info, io.BytesIO(text.encode()))
    # tarfile's own "w:gz" writes the time of day, by which two worlds of one test would differ.
    return gzip.compress(buffer.getvalue(), mtime=0)


class World:
    """One fork: `llama.cpp/` in a checkout of its own, a cache that holds the sdist, a build folder in the checkout."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.layout = Layout(source=root / "llama.cpp", build=root / "build", cache=root / "cache")
        self.tree = self.layout.tree
        for folder in (self.layout.patches, self.layout.overlay, self.layout.cache):
            folder.mkdir(parents=True)
        subprocess.run(["git", "init", "-q", str(root)], check=True)
        self.release(UPSTREAM_FILES)

    def release(self, files: dict[str, str]) -> None:
        """Publishes an upstream with these files and pins it."""
        data = sdist_bytes(files)
        (self.layout.cache / SDIST).write_bytes(data)
        self.pin(hashlib.sha256(data).hexdigest())

    def pin(self, sha256: str, subdir: str = "vendor/llama.cpp") -> None:
        values = {"package": PACKAGE, "version": VERSION, "sdist": SDIST, "sha256": sha256}
        values |= {"subdir": subdir, "commit": "abc123", "licence": "MIT"}
        (self.layout.source / "UPSTREAM").write_text("".join(f'{k} = "{v}"\n' for k, v in values.items()))

    def patch(self, name: str, diff: str, header: str = HEADER) -> None:
        """Adds a patch at the end of the series."""
        (self.layout.patches / name).write_text(header + diff)
        with (self.layout.patches / "series").open("a") as f:
            f.write(name + "\n")

    def overlay(self, name: str, text: str) -> Path:
        path = self.layout.overlay / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        return path

    def git(self, *args: str) -> str:
        """Plain git in the tree, as a developer would type it."""
        done = subprocess.run(["git", "-C", str(self.tree), *args], check=True, capture_output=True, text=True)
        return done.stdout.strip()


def one_line_diff(path: str, line: int, before: str, old: str, new: str, after: str, heading: str = "") -> str:
    """A hunk with one line of context that changes line `line` from old to new, written as git writes it."""
    return (
        f"diff --git a/{path} b/{path}\n--- a/{path}\n+++ b/{path}\n"
        f"@@ -{line - 1},3 +{line - 1},3 @@{heading}\n {before}\n-{old}\n+{new}\n {after}\n"
    )


HOOK = one_line_diff("src/a.c", 10, "int a9;", "int a10;", "int hooked;", "int a11;", " int a8;")
