"""What `llama.cpp/` holds: the patch series and the overlay, read into memory, linted, and written back."""

import hashlib
import re
import textwrap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from turbokv_eval.errors import BadInput
from turbokv_eval.fork.paths import Layout

FIELDS = ("Why", "Kind", "Retire-when")
PLACEHOLDER = "TODO"
_JUNK = {".DS_Store", "__pycache__"}
_JUNK_SUFFIXES = (".pyc", ".swp", "~", ".orig", ".rej")


@dataclass(frozen=True)
class Patch:
    """A header of fields (`Why:`, `Kind:`, `Retire-when:`), then a unified diff.

    Both are text in which undecodable bytes are surrogates.
    """

    name: str
    header: str
    diff: str

    @property
    def text(self) -> str:
        """The file, header and diff."""
        return self.header + self.diff

    @property
    def fields(self) -> dict[str, str]:
        """The header fields; a value runs on over the lines that follow until the next field."""
        parts = re.split(rf"^({'|'.join(FIELDS)}):", self.header, flags=re.MULTILINE)
        return {key: " ".join(value.split()) for key, value in zip(parts[1::2], parts[2::2], strict=True)}

    @property
    def paths(self) -> list[str]:
        """The files that the diff touches."""
        return re.findall(r"^diff --git a/(.+) b/\1$", self.diff, flags=re.MULTILINE)


@dataclass(frozen=True)
class OverlayFile:
    """Content and executable bit of one overlay file."""

    data: bytes
    executable: bool

    @property
    def mode(self) -> str:
        """The mode that git gives the file."""
        return "100755" if self.executable else "100644"


@dataclass(frozen=True)
class Sources:
    """The series in order and the overlay by path in the tree; `digest` also covers UPSTREAM."""

    patches: tuple[Patch, ...]
    overlay: Mapping[str, OverlayFile]
    digest: str = field(default="", compare=False)

    def owners(self) -> dict[str, str]:
        """The patch that touches a file, by path. The first one, where a faulty series has two."""
        return {path: patch.name for patch in reversed(self.patches) for path in patch.paths}


def encode(text: str) -> bytes:
    """The bytes of a diff, which need not be UTF-8."""
    return text.encode(errors="surrogateescape")


def patch_header(why: str, kind: str, retire_when: str) -> str:
    """The header of a new patch; an empty value becomes a placeholder that `check` refuses."""
    values = (why, kind, retire_when)
    lines = [
        textwrap.fill(f"{name}: {value or PLACEHOLDER}", 120, subsequent_indent="  ", break_on_hyphens=False)
        for name, value in zip(FIELDS, values, strict=True)
    ]
    return "\n".join(lines) + "\n\n"


def series_names(layout: Layout) -> list[str]:
    """The lines of the series file, in order, without comments. No series file is an empty series."""
    path = layout.patches / "series"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    return [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]


def load_sources(layout: Layout) -> Sources:
    """Reads series, patches and overlay. Raises ToolError when a listed patch is missing or a file is a link."""
    digest = hashlib.sha256((layout.source / "UPSTREAM").read_bytes())
    patches = []
    for name in series_names(layout):
        path = layout.patches / name
        if not path.is_file():
            raise BadInput(f"patches/series lists {name}, which does not exist: create it or delete the line")
        text = path.read_bytes().decode(errors="surrogateescape")
        start = re.search(r"^diff --git ", text, flags=re.MULTILINE)
        cut = start.start() if start else len(text)
        patches.append(Patch(name, text[:cut], text[cut:]))
        digest.update(encode(f"\0{name}\0{len(text)}\0{text}"))
    overlay = {}
    for path in _overlay_paths(layout):
        name = path.relative_to(layout.overlay).as_posix()
        if path.is_symlink():
            raise BadInput(f"overlay/{name} is a symbolic link: the overlay holds plain files only")
        overlay[name] = OverlayFile(path.read_bytes(), bool(path.stat().st_mode & 0o100))
        digest.update(encode(f"\0{name}\0{overlay[name].mode}\0{len(overlay[name].data)}\0") + overlay[name].data)
    return Sources(tuple(patches), overlay, digest.hexdigest())


def _overlay_paths(layout: Layout) -> Iterator[Path]:
    for path in sorted(layout.overlay.rglob("*")):
        junk = _JUNK.intersection(path.relative_to(layout.overlay).parts) or path.name.endswith(_JUNK_SUFFIXES)
        if not junk and (path.is_symlink() or not path.is_dir()):
            yield path


def write_sources(layout: Layout, old: Sources, new: Sources) -> list[str]:
    """Writes what differs between old and new; returns one line for each file written or removed."""
    done = []
    before, after = ({p.name: p.text for p in s.patches} for s in (old, new))
    for name, text in after.items():
        if before.get(name) != text:
            layout.patches.mkdir(parents=True, exist_ok=True)
            (layout.patches / name).write_bytes(encode(text))
            done.append(f"wrote patches/{name}")
    for name in before.keys() - after.keys():
        (layout.patches / name).unlink()
        done.append(f"removed patches/{name}: it changes no file any more")
    _write_series(layout, before, after)
    for name, file in new.overlay.items():
        if old.overlay.get(name) != file:
            path = layout.overlay / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(file.data)
            path.chmod(0o755 if file.executable else 0o644)
            done.append(f"wrote overlay/{name}")
    for name in sorted(old.overlay.keys() - new.overlay.keys()):
        path = layout.overlay / name
        path.unlink()
        while (path := path.parent) != layout.overlay and not any(path.iterdir()):
            path.rmdir()
        done.append(f"removed overlay/{name}")
    return done


def _write_series(layout: Layout, before: Mapping[str, str], after: Mapping[str, str]) -> None:
    if list(before) == list(after):
        return
    path = layout.patches / "series"
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    lines = [line for line in lines if line.strip() not in before or line.strip() in after]
    lines += [name for name in after if name not in before]
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def lint(layout: Layout) -> list[str]:
    """Findings that need no upstream: the series file, headers, context, owners."""
    names = series_names(layout)
    findings = [f"patches/series lists {n} more than once" for n in sorted(set(names)) if names.count(n) > 1]
    findings += [f"patches/series lists {n}, which does not exist" for n in names if not (layout.patches / n).is_file()]
    on_disk = {path.name for path in layout.patches.glob("*.patch")}
    findings += [f"patches/{n} is not in patches/series" for n in sorted(on_disk - set(names))]
    if findings:
        return findings
    owner: dict[str, str] = {}
    for patch in load_sources(layout).patches:
        for name in FIELDS:
            value = patch.fields.get(name, "")
            if not value or value.startswith(PLACEHOLDER):
                findings.append(f"patches/{patch.name}: the header has no `{name}:`")
        if not patch.paths:
            findings.append(f"patches/{patch.name} holds no diff")
        findings += [f"patches/{patch.name}: {text}" for text in _context_findings(patch.diff)]
        for path in patch.paths:
            if path in owner:
                findings.append(f"{path} is touched by patches/{owner[path]} and patches/{patch.name}: join them")
            owner[path] = patch.name
    return findings


def _context_findings(diff: str) -> Iterator[str]:
    """Hunks with more than one line of context, or that join changes which one line of context would keep apart."""
    for section in re.split(r"^(?=diff --git )", diff, flags=re.MULTILINE)[1:]:
        where = section.splitlines()[0].rpartition(" b/")[2]
        for number, hunk in enumerate(re.split(r"^@@ .*\n", section, flags=re.MULTILINE)[1:], 1):
            runs = [len(run.splitlines()) for run in re.split(r"(?:^[-+\\].*\n?)+", hunk, flags=re.MULTILINE)]
            if max(runs[0], runs[-1]) > 1 or any(run > 2 for run in runs):
                yield f"{where}, hunk {number} has more than one line of context: regenerate it with `make fork-export`"
