"""Says what is wrong with the series and the overlay."""

import tempfile
from dataclasses import replace
from pathlib import Path

from turbokv_eval.errors import CheckFailed, ToolError
from turbokv_eval.fork.export import sources_of
from turbokv_eval.fork.paths import Layout
from turbokv_eval.fork.pin import Progress
from turbokv_eval.fork.series import lint, load_sources
from turbokv_eval.fork.tree import Tree, apply


def check(progress: Progress = lambda _: None, *, layout: Layout | None = None) -> list[str]:
    """Findings, one line each; none means sound. Ends with a round trip: apply into a fresh folder, export, compare.

    Raises ToolError only when it cannot check at all (no sdist, no git, a broken UPSTREAM).
    """
    layout = layout or Layout.default()
    findings = lint(layout)
    if any("patches/series" in finding for finding in findings):
        return findings
    with tempfile.TemporaryDirectory() as scratch:
        try:
            tree = Tree(apply(progress, layout=replace(layout, build=Path(scratch))))
        except CheckFailed as e:
            return [*findings, e.message]
        stamp, old = tree.stamp(), load_sources(layout)
        assert stamp is not None
        if findings:
            return findings
        try:
            new = sources_of(tree, stamp.pristine, tree.snapshot(), old, ())
        except ToolError as e:
            return [e.message]
    before, after = ({p.name: p.text for p in s.patches} for s in (old, new))
    findings += [
        f"patches/{n} is not what export writes: run `make fork-export`" for n in before if before[n] != after.get(n)
    ]
    names = sorted(old.overlay.keys() | new.overlay.keys())
    findings += [
        f"overlay/{n} does not survive apply and export" for n in names if old.overlay.get(n) != new.overlay.get(n)
    ]
    return findings
