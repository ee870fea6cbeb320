"""Turns edits in the materialised tree back into patches and overlay files."""

from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from turbokv_eval.errors import BadInput, CheckFailed
from turbokv_eval.fork.git import Git
from turbokv_eval.fork.paths import Layout
from turbokv_eval.fork.pin import Progress
from turbokv_eval.fork.series import (
    OverlayFile,
    Patch,
    Sources,
    load_sources,
    patch_header,
    series_names,
    write_sources,
)
from turbokv_eval.fork.tree import Change, Tree, apply_locked, locked

# Every switch that a user's configuration or git's version could set otherwise.
_DIFF = (
    *("--patch", "--unified=1", "--inter-hunk-context=0", "--diff-algorithm=myers", "--indent-heuristic"),
    *("--no-renames", "--no-color", "--no-ext-diff", "--no-textconv", "--full-index", "--binary"),
    *("--src-prefix=a/", "--dst-prefix=b/"),
)


@dataclass(frozen=True)
class Into:
    """Which patch, an existing one or a new one with this header, takes changed upstream files.

    Without `glob`: every file that no patch owns. With it: the files that match, also out of other patches.
    """

    name: str
    glob: str = ""
    why: str = ""
    kind: str = ""
    retire_when: str = ""


def export(
    progress: Progress = lambda _: None, *, layout: Layout | None = None, into: Sequence[Into] = ()
) -> list[str]:
    """Regenerates patches and overlay from the tree; returns one line for each file written or removed.

    Raises ToolError when there is no tree, when `llama.cpp/` changed since the tree was made (the export would undo
    that change), or when a modified upstream file belongs to no patch and nothing in `into` takes it.
    """
    layout = layout or Layout.default()
    for target in into:
        if "/" in target.name or not target.name.endswith(".patch"):
            raise BadInput(f"--into {target.name}: give a file name that ends in .patch, without a folder")
    with locked(layout):
        tree = Tree(layout.tree)
        stamp = tree.stamp()
        if stamp is None:
            raise BadInput(f"there is no tree in {layout.tree}: run `make fork-apply` first")
        old = load_sources(layout)
        listed = series_names(layout)
        for target in into:
            if target.name not in listed and (layout.patches / target.name).exists():
                raise BadInput(f"patches/{target.name} is not in patches/series: add it there or choose another name")
        if stamp.sources != old.digest:
            raise BadInput(
                f"llama.cpp/ changed since {layout.tree} was made, and exporting would undo that: put your edits aside"
                f" (`git -C {layout.tree} stash -u`), run `make fork-apply`, take them back"
                f" (`git -C {layout.tree} stash pop`), and export again"
            )
        now = tree.snapshot()
        new = sources_of(tree, stamp.pristine, now, old, into)
        made = tree.git("rev-parse", tree.commit_series(stamp.pristine, new) + "^{tree}")
        if wrong := [change.path for change in tree.compare(now, made)]:
            raise CheckFailed(f"the export would not reproduce the tree, nothing was written: {wrong}")
        for path in _ignored(tree.git):
            progress(f"not exported, upstream's .gitignore names it: {path} (`git add -f` in the tree includes it)")
        done = write_sources(layout, old, new)
        apply_locked(progress, layout, discard=False)
        return done


def sources_of(tree: Tree, pristine: str, now: str, old: Sources, into: Sequence[Into]) -> Sources:
    """The patches and the overlay that turn the commit `pristine` into the tree `now`.

    old: gives the order and the headers of the patches, and says which patch owns which file.
    """
    changes = tree.compare(pristine, now)
    if links := [change.path for change in changes if change.mode in ("120000", "160000")]:
        raise BadInput(f"neither a symbolic link nor a repository can be exported: {', '.join(links)}")
    added = [change for change in changes if change.status == "A"]
    owners = old.owners()
    edited = [change.path for change in changes if change.status != "A"]
    headers = {patch.name: patch.header for patch in old.patches}
    for target in into:
        taken = [p for p in edited if (fnmatchcase(p, target.glob) if target.glob else p not in owners)]
        if not taken:
            raise BadInput(f"--into {target.name}: there is no changed upstream file to put into it")
        owners |= dict.fromkeys(taken, target.name)
        headers.setdefault(target.name, patch_header(target.why, target.kind, target.retire_when))
    if homeless := [path for path in edited if path not in owners]:
        raise BadInput(
            f"no patch owns the changed upstream file {', '.join(homeless)}: put it into one with"
            f" `python -m turbokv_eval.fork export --into NAME.patch --why REASON` (a new or an existing patch)"
        )
    patches = []
    for name, header in headers.items():
        paths = sorted(path for path in edited if owners[path] == name)
        if paths:
            patches.append(Patch(name, header, "".join(_diff(tree.git, pristine, now, path) for path in paths)))
    return Sources(tuple(patches), {change.path: _file(tree.git, change) for change in added})


def _diff(git: Git, old: str, new: str, path: str) -> str:
    text = git("diff-tree", *_DIFF, old, new, "--", f":(literal){path}").split("\n")
    if "GIT binary patch" in text:
        raise BadInput(f"{path} is binary: a patch cannot carry it")
    # The object names say nothing that the hunks do not, and would change with every upgrade.
    hunks = next((i for i, line in enumerate(text) if line.startswith("@@ ")), len(text))
    return "\n".join([line for line in text[:hunks] if not line.startswith("index ")] + text[hunks:]) + "\n"


def _file(git: Git, change: Change) -> OverlayFile:
    return OverlayFile(git.raw("cat-file", "blob", change.blob), change.mode == "100755")


def _ignored(git: Git) -> list[str]:
    """Untracked files that upstream's .gitignore hides, build junk aside: someone may miss them in the overlay."""
    listed = git("ls-files", "-z", "--others", "--ignored", "--exclude-per-directory=.gitignore").split("\0")
    return [path for path in listed if path and "__pycache__" not in path and not path.startswith(("build", ".cache"))]
