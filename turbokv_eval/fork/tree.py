"""Materialises upstream + patches + overlay as a git repository, and keeps it up to date.

The wanted state is built in git's object store first; the work tree is then moved to it by git, which writes only the
files whose content differs. So an unchanged file keeps its modification time, and Ninja rebuilds only what changed.
"""

import json
import re
import shutil
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path, PurePosixPath

from turbokv_eval.errors import BadInput, CheckFailed, MachineCannot
from turbokv_eval.fork.git import DATE, EMAIL, NAME, Git
from turbokv_eval.fork.paths import Layout
from turbokv_eval.fork.pin import Pin, Progress, fetch_sdist, load_pin
from turbokv_eval.fork.series import Patch, Sources, encode, load_sources

try:
    import fcntl
except ImportError:  # no such module on Windows, where two runs at once are the user's to avoid
    fcntl = None  # type: ignore[assignment]

_EXCLUDE = "*.orig\n*.rej\n*~\n.DS_Store\n__pycache__/\n.cache/\ncompile_commands.json\n"


@dataclass(frozen=True)
class Stamp:
    """What the tree was made from (digest of the sources) and what was made (object names)."""

    sources: str
    pristine: str
    applied: str
    tree: str


@dataclass(frozen=True)
class Change:
    """One line of a tree comparison: status is A(dded), D(eleted), M(odified) or T(ype changed)."""

    status: str
    path: str
    mode: str
    blob: str


class Tree:
    """The materialised tree, a git repository of its own."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.git = Git(path)

    @property
    def _stamp_path(self) -> Path:
        return self.git.dir / "turbokv.json"

    @property
    def _index(self) -> Path:
        return self.git.dir / "turbokv-index"

    def stamp(self) -> Stamp | None:
        """None when there is no tree, or none that `apply` finished."""
        try:
            return Stamp(**json.loads(self._stamp_path.read_text(encoding="utf-8")))
        except (OSError, ValueError, TypeError):
            return None

    def create(self) -> None:
        """Makes an empty repository that ignores what a build leaves."""
        self.git.init()
        (self.git.dir / "info").mkdir(exist_ok=True)
        (self.git.dir / "info" / "exclude").write_text(_EXCLUDE, encoding="utf-8")

    def snapshot(self) -> str:
        """The work tree as a git tree object, without touching git's own index (CMake watches that file)."""
        self._index.with_name(self._index.name + ".lock").unlink(missing_ok=True)
        self._index.unlink(missing_ok=True)
        if (self.git.dir / "index").exists():
            # With its times: git tells a file that changed within the index's own clock tick by them.
            shutil.copy2(self.git.dir / "index", self._index)
        self.git("add", "--all", index=self._index)
        return self.git("write-tree", index=self._index)

    def compare(self, old: str, new: str) -> list[Change]:
        """What differs between two tree objects, by path; a file that moved is one gone and one new."""
        fields = self.git("diff-tree", "-r", "-z", "--no-renames", "--raw", old, new).split("\0")
        return [
            Change(status=(info := meta.split())[4][0], path=path, mode=info[1], blob=info[3])
            for meta, path in zip(fields[0:-1:2], fields[1::2], strict=True)
        ]

    def lost(self, stamp: Stamp, now: str, new: str) -> list[str]:
        """Paths whose content is neither what was applied nor what is wanted: edits that moving to `new` would lose."""
        differs = {change.path for change in self.compare(new, now)}
        return [change.path for change in self.compare(stamp.tree, now) if change.path in differs]

    def commit_series(self, pristine: str, sources: Sources) -> str:
        """Commits every patch, then the overlay, onto `pristine`, in the object store only; returns the last commit."""
        index = self.git.dir / "turbokv-series-index"
        index.unlink(missing_ok=True)
        upstream = set(self.git("ls-tree", "-r", "-z", "--name-only", pristine).split("\0"))
        self.git("read-tree", pristine, index=index)
        commit = pristine
        for patch in sources.patches:
            for path in patch.paths:
                if path not in upstream:
                    raise CheckFailed(
                        f"patches/{patch.name} touches {path}, which upstream does not have: it was moved or removed,"
                        f" or it is a new file, and new files belong in the overlay. {_reasons(patch)}"
                    )
            done = self.git.attempt("apply", "--cached", "-C1", "-", stdin=encode(patch.diff), index=index)
            if done.returncode != 0:
                raise CheckFailed(_explain(patch, done.stderr.decode(errors="replace")))
            commit = self._commit(index, commit, patch.name + "\n\n" + patch.header.strip() + "\n")
        entries = []
        for path, file in sources.overlay.items():
            if path in upstream:
                raise CheckFailed(f"overlay/{path} is a file of upstream: change it with a patch instead")
            blob = self.git("hash-object", "-w", "--stdin", "--no-filters", stdin=file.data)
            entries.append(f"{file.mode} {blob}\t{path}\0")
        self.git("update-index", "-z", "--index-info", stdin=encode("".join(entries)), index=index)
        return self._commit(index, commit, "overlay\n")

    def _commit(self, index: Path, parent: str, message: str) -> str:
        tree = self.git("write-tree", index=index)
        return self.git("commit-tree", tree, "-p", parent, "-F", "-", stdin=encode(message))

    def move(self, pristine: str, new: str, digest: str) -> None:
        """Makes work tree, branch and stamp those of the commit `new`. Everything else in the work tree is lost."""
        before = self.snapshot()
        tree = self.git("rev-parse", f"{new}^{{tree}}")
        if before != tree:
            self.git("read-tree", "-m", "-u", before, tree, index=self._index)
        self.git("symbolic-ref", "HEAD", "refs/heads/turbokv")
        self.git("update-ref", "refs/heads/turbokv", new)
        self.git("update-ref", "refs/heads/upstream", pristine)
        self._index.replace(self.git.dir / "index")
        stamp = Stamp(sources=digest, pristine=pristine, applied=new, tree=tree)
        scratch = self._stamp_path.with_suffix(".tmp")
        scratch.write_text(json.dumps(asdict(stamp), indent=1) + "\n", encoding="utf-8")
        scratch.replace(self._stamp_path)

    def pristine(self, pin: Pin, sdist: Callable[[], Path], progress: Progress) -> str:
        """The commit of unchanged upstream; read from the sdist unless this repository has it already."""
        ref = f"refs/turbokv/{pin.key}"
        have = self.git.attempt("rev-parse", "--quiet", "--verify", ref)
        if have.returncode == 0:
            return have.stdout.decode().strip()
        archive = sdist()
        progress(f"unpacking llama.cpp {pin.commit} from {archive.name}")
        message = f"llama.cpp {pin.commit}\n\nFrom {pin.sdist} ({pin.licence}), sha256 {pin.sha256}\n".encode()
        stream = [
            f"commit {ref}\ncommitter {NAME} <{EMAIL}> {DATE}\ndata {len(message)}\n".encode() + message,
            *_import_lines(archive, pin.subdir),
        ]
        self.git("fast-import", "--quiet", "--depth=0", stdin=b"".join(stream))
        return self.git("rev-parse", ref)


def _import_lines(archive: Path, subdir: str) -> Iterator[bytes]:
    """The files below `subdir` of the sdist, as input of git fast-import. Modes come from the archive, not a disk."""
    found = False
    with tarfile.open(archive) as tar:
        for member in tar:
            inside = PurePosixPath(*PurePosixPath(member.name).parts[1:])
            if member.isdir() or not inside.is_relative_to(subdir) or ".git" in inside.parts:
                continue
            reader = None if member.issym() else tar.extractfile(member)
            data = member.linkname.encode() if reader is None else reader.read()
            mode = "120000" if member.issym() else "100755" if member.mode & 0o100 else "100644"
            found = True
            yield f"M {mode} inline {inside.relative_to(subdir)}\ndata {len(data)}\n".encode() + data + b"\n"
    if not found:
        raise BadInput(f"{archive.name} has no folder {subdir}: correct `subdir` in UPSTREAM")


def _reasons(patch: Patch) -> str:
    fields = patch.fields
    return f"Why: {fields.get('Why', '-')}; Retire-when: {fields.get('Retire-when', '-')}"


def _explain(patch: Patch, said: str) -> str:
    """git's complaint about a patch, as patch, file, hunk, reasons and next step."""
    next_step = (
        f"if it is retired, delete it and its line in patches/series; else correct that hunk by hand in"
        f" patches/{patch.name} and run again"
    )
    failed = re.search(r"^error: patch failed: (.+):(\d+)$", said, flags=re.MULTILINE)
    if failed is None:
        return f"patches/{patch.name} cannot be read: {' '.join(said.split())}. {_reasons(patch)}. Next: {next_step}"
    path, line = failed[1], failed[2]
    section = next(s for s in re.split(r"^(?=diff --git )", patch.diff, flags=re.MULTILINE) if f" b/{path}\n" in s)
    starts = re.findall(r"^@@ -(\d+)[, ]", section, flags=re.MULTILINE)
    # git names the line, not the number, of the hunk.
    number = starts.index(line) + 1 if line in starts else "?"
    return (
        f"patches/{patch.name} no longer applies: {path}, hunk {number} of {len(starts)} (line {line})."
        f" {_reasons(patch)}. Next: {next_step}"
    )


@contextmanager
def locked(layout: Layout) -> Iterator[None]:
    """Lets one run at a time work on the tree; a second one waits."""
    try:
        layout.build.mkdir(parents=True, exist_ok=True)
        lock = (layout.build / "llama.cpp.lock").open("w")
    except OSError as e:
        raise MachineCannot(f"cannot write {layout.build}: {e.strerror}") from e
    with lock:
        if fcntl is not None:
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def apply(progress: Progress = lambda _: None, *, layout: Layout | None = None, discard: bool = False) -> Path:
    """Makes the tree what UPSTREAM, patches and overlay say; returns its path. Does nothing when it already is.

    discard: throw away edits in the tree instead of refusing. Raises ToolError.
    """
    layout = layout or Layout.default()
    with locked(layout):
        return apply_locked(progress, layout, discard)


def apply_locked(progress: Progress, layout: Layout, discard: bool) -> Path:
    """`apply` for a caller that holds the lock."""
    pin, sources = load_pin(layout.source), load_sources(layout)

    def sdist() -> Path:
        return fetch_sdist(pin, layout.cache, progress)

    tree = Tree(layout.tree)
    stamp = tree.stamp()
    if stamp is None:
        _create(layout, pin, sources, sdist, progress, discard)
        return layout.tree
    now = tree.snapshot()
    if stamp.sources == sources.digest and stamp.tree == now:
        return layout.tree
    pristine = tree.pristine(pin, sdist, progress)
    new = tree.commit_series(pristine, sources)
    edits = tree.lost(stamp, now, f"{new}^{{tree}}")
    if edits and not discard:
        shown = ", ".join(edits[:4]) + (f" and {len(edits) - 4} more" if len(edits) > 4 else "")
        raise BadInput(
            f"{layout.tree} has edits that are not exported ({shown}): `make fork-export` keeps them,"
            f" `python -m turbokv_eval.fork apply --discard` throws them away"
        )
    if writes := len(tree.compare(now, new)):
        progress(f"updating {layout.tree}: {writes} files")
    tree.move(pristine, new, sources.digest)
    return layout.tree


def _create(
    layout: Layout, pin: Pin, sources: Sources, sdist: Callable[[], Path], progress: Progress, discard: bool
) -> None:
    if layout.tree.exists() and any(layout.tree.iterdir()) and not discard:
        raise BadInput(
            f"{layout.tree} exists but was not made by this tool: move it away,"
            f" or `python -m turbokv_eval.fork apply --discard` deletes it"
        )
    # Under another name until it is whole: what is interrupted starts afresh.
    scratch = layout.build / "llama.cpp.new"
    shutil.rmtree(scratch, ignore_errors=True)
    tree = Tree(scratch)
    tree.create()
    pristine = tree.pristine(pin, sdist, progress)
    new = tree.commit_series(pristine, sources)
    progress(f"writing {layout.tree}: {len(sources.patches)} patches, {len(sources.overlay)} overlay files")
    tree.move(pristine, new, sources.digest)
    shutil.rmtree(layout.tree, ignore_errors=True)
    scratch.rename(layout.tree)


def status(layout: Layout | None = None) -> tuple[str, list[str]]:
    """State of the tree: `absent`, `clean`, `stale` (sources changed since) or `edited`; and the paths edited in it."""
    layout = layout or Layout.default()
    sources = load_sources(layout)
    with locked(layout):
        tree = Tree(layout.tree)
        stamp = tree.stamp()
        if stamp is None:
            return "absent", []
        edits = [change.path for change in tree.compare(stamp.tree, tree.snapshot())]
        return "edited" if edits else "clean" if stamp.sources == sources.digest else "stale", edits
