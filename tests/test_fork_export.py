"""`fork export` and `fork check`: edits in the tree come back, and a faulty series is reported."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner
from fork_world import A_C, HEADER, HOOK, World, one_line_diff

from turbokv_eval.errors import ToolError
from turbokv_eval.fork import apply, check, export, status
from turbokv_eval.fork.__main__ import main
from turbokv_eval.fork.export import Into
from turbokv_eval.fork.paths import Layout

B_HOOK = one_line_diff("src/b.c", 2, "int b1;", "int b2;", "int x;", "int b3;")


@pytest.fixture
def world(tmp_path: Path) -> World:
    """A fork with one patch and one overlay file, applied."""
    world = World(tmp_path)
    world.patch("hook.patch", HOOK)
    world.overlay("src/turbo/t.c", "int t;\n")
    apply(layout=world.layout)
    return world


def sources(world: World) -> dict[str, bytes]:
    return {
        str(p.relative_to(world.layout.source)): p.read_bytes() for p in world.layout.source.rglob("*") if p.is_file()
    }


def edit(world: World, name: str, old: str, new: str) -> None:
    path = world.tree / name
    text = path.read_bytes().decode()
    assert old in text
    path.write_bytes(text.replace(old, new).encode())


def test_apply_then_export_gives_no_difference(world: World) -> None:
    before = sources(world)
    assert export(layout=world.layout) == []
    assert sources(world) == before


def test_edits_come_back_and_survive_a_fresh_apply(world: World) -> None:
    edit(world, "src/a.c", "int a20;", "int second_hook;")
    edit(world, "src/turbo/t.c", "int t;", "int t2;")
    (world.tree / "src/turbo/deep/er").mkdir(parents=True)
    (world.tree / "src/turbo/deep/er/n.c").write_text("int n;\n")
    (world.tree / "tools").mkdir()
    (world.tree / "tools/go.sh").write_text("#!/bin/sh\n")
    (world.tree / "tools/go.sh").chmod(0o755)
    wanted = {n: (world.tree / n).read_bytes() for n in ("src/a.c", "src/turbo/t.c", "src/turbo/deep/er/n.c")}
    mtimes = {n: (world.tree / n).stat().st_mtime_ns for n in wanted}
    assert export(layout=world.layout) == [
        "wrote patches/hook.patch",
        "wrote overlay/src/turbo/deep/er/n.c",
        "wrote overlay/src/turbo/t.c",
        "wrote overlay/tools/go.sh",
    ]
    assert (world.layout.patches / "hook.patch").read_text() == (
        HEADER + HOOK + "@@ -19,3 +19,3 @@ int a18;\n int a19;\n-int a20;\n+int second_hook;\n int a21;\n"
    )
    assert status(world.layout) == ("clean", [])
    assert world.git("status", "--porcelain") == ""
    assert {n: (world.tree / n).stat().st_mtime_ns for n in wanted} == mtimes, "an export must not cause a rebuild"
    shutil.rmtree(world.layout.build)
    apply(layout=world.layout)
    assert {n: (world.tree / n).read_bytes() for n in wanted} == wanted
    assert (world.tree / "tools/go.sh").stat().st_mode & 0o100
    assert check(layout=world.layout) == []


def test_deleted_overlay_files_and_emptied_folders_go(world: World) -> None:
    shutil.rmtree(world.tree / "src/turbo")
    assert export(layout=world.layout) == ["removed overlay/src/turbo/t.c"]
    assert list(world.layout.overlay.iterdir()) == []
    assert check(layout=world.layout) == []


def test_reverted_patch_goes_and_the_series_keeps_its_comments(world: World) -> None:
    series = world.layout.patches / "series"
    series.write_text("# first things first\nhook.patch\n")
    apply(layout=world.layout)
    (world.tree / "src/a.c").write_text(A_C)
    assert export(layout=world.layout) == ["removed patches/hook.patch: it changes no file any more"]
    assert series.read_text() == "# first things first\n"
    assert check(layout=world.layout) == []


def test_upstream_file_without_a_patch_needs_into(world: World) -> None:
    edit(world, "src/b.c", "int b2;", "int x;")
    before = sources(world)
    with pytest.raises(ToolError, match=r"no patch owns .*src/b\.c.*--into NAME\.patch") as e:
        export(layout=world.layout)
    assert (e.value.exit_code, sources(world)) == (2, before)
    assert export(layout=world.layout, into=[Into("new.patch")]) == ["wrote patches/new.patch"]
    assert (world.layout.patches / "series").read_text() == "hook.patch\nnew.patch\n"
    assert [f"patches/new.patch: the header has no `{f}:`" for f in ("Why", "Kind", "Retire-when")] == check(
        layout=world.layout
    )


def test_into_an_existing_patch_and_with_a_full_header(world: World) -> None:
    edit(world, "src/b.c", "int b2;", "int x;")
    export(layout=world.layout, into=[Into("hook.patch")])
    assert (world.layout.patches / "hook.patch").read_text().count("diff --git") == 2
    edit(world, "docs/crlf.txt", "two", "zwei")
    export(layout=world.layout, into=[Into("docs.patch", why="words " * 30, kind="text", retire_when="never")])
    assert check(layout=world.layout) == []
    assert b" one\r\n-two\r\n+zwei\r\n three\r\n" in (world.layout.patches / "docs.patch").read_bytes()


def test_a_glob_moves_files_between_patches(world: World) -> None:
    edit(world, "src/b.c", "int b2;", "int x;")
    edit(world, "docs/crlf.txt", "two", "zwei")
    full = {"why": "w", "kind": "k", "retire_when": "r"}
    export(layout=world.layout, into=[Into("docs.patch", "docs/*", **full), Into("rest.patch", **full)])
    assert (world.layout.patches / "series").read_text() == "hook.patch\ndocs.patch\nrest.patch\n"
    assert "src/b.c" in (world.layout.patches / "rest.patch").read_text()
    done = export(layout=world.layout, into=[Into("all.patch", "src/*", **full)])
    assert sorted(line.split(":")[0] for line in done) == [
        "removed patches/hook.patch",
        "removed patches/rest.patch",
        "wrote patches/all.patch",
    ]
    assert check(layout=world.layout) == []
    with pytest.raises(ToolError, match="no changed upstream file"):
        export(layout=world.layout, into=[Into("x.patch", "nothing/*")])


@pytest.mark.parametrize("name", ["../x.patch", "x.diff"])
def test_into_takes_a_plain_patch_name(world: World, name: str) -> None:
    with pytest.raises(ToolError, match=r"ends in \.patch"):
        export(layout=world.layout, into=[Into(name)])


def test_into_does_not_overwrite_a_patch_outside_the_series(world: World) -> None:
    edit(world, "src/b.c", "int b2;", "int x;")
    (world.layout.patches / "old.patch").write_text("precious")
    with pytest.raises(ToolError, match=r"old\.patch is not in patches/series"):
        export(layout=world.layout, into=[Into("old.patch")])
    assert (world.layout.patches / "old.patch").read_text() == "precious"


def test_deleted_upstream_file_is_a_patch(world: World) -> None:
    (world.tree / "src/b.c").unlink()
    export(layout=world.layout, into=[Into("gone.patch", why="w", kind="k", retire_when="r")])
    shutil.rmtree(world.layout.build)
    apply(layout=world.layout)
    assert not (world.tree / "src/b.c").exists()
    assert check(layout=world.layout) == []


def test_files_without_a_last_newline_and_with_odd_bytes(world: World) -> None:
    (world.tree / "src/b.c").write_bytes(b"int b1;\nint caf\xe9;\nint b3;")
    (world.tree / "src/turbo/bin.dat").write_bytes(bytes(range(256)))
    export(layout=world.layout, into=[Into("odd.patch", why="w", kind="k", retire_when="r")])
    shutil.rmtree(world.layout.build)
    apply(layout=world.layout)
    assert (world.tree / "src/b.c").read_bytes() == b"int b1;\nint caf\xe9;\nint b3;"
    assert (world.tree / "src/turbo/bin.dat").read_bytes() == bytes(range(256))
    assert check(layout=world.layout) == []


def test_export_does_not_depend_on_the_users_git(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    edit(world, "src/a.c", "int a20;", "int second_hook;")
    (tmp_path / "c").write_text("[diff]\nnoprefix = true\ncontext = 9\ninterHunkContext = 9\nalgorithm = patience\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "c"))
    monkeypatch.setenv("GIT_DIFF_OPTS", "-u7")
    export(layout=world.layout)
    assert check(layout=world.layout) == []
    assert "+++ b/src/a.c\n@@ -9,3" in (world.layout.patches / "hook.patch").read_text()


def test_build_junk_stays_out_and_a_hidden_file_is_mentioned(world: World) -> None:
    for name in ("build-x/o.c", "src/__pycache__/x.pyc", "src/a.c.orig", "src/a.c.rej", "src/wanted.log"):
        (world.tree / name).parent.mkdir(exist_ok=True)
        (world.tree / name).write_text("junk")
    said: list[str] = []
    assert export(said.append, layout=world.layout) == []
    assert len(said) == 1
    assert "src/wanted.log" in said[0]
    world.git("add", "-f", "src/wanted.log")
    assert export(layout=world.layout) == ["wrote overlay/src/wanted.log"]
    assert status(world.layout) == ("clean", [])


def test_overlay_file_that_upstream_ignores_is_followed(world: World) -> None:
    world.overlay("data/x.log", "1\n")
    apply(layout=world.layout)
    (world.tree / "data/x.log").write_text("2\n")
    assert export(layout=world.layout) == ["wrote overlay/data/x.log"]


def test_a_link_cannot_be_exported(world: World) -> None:
    (world.tree / "link.c").symlink_to("src/a.c")
    with pytest.raises(ToolError, match=r"symbolic link.*link\.c"):
        export(layout=world.layout)


def test_binary_upstream_change_is_refused(world: World) -> None:
    (world.tree / "src/b.c").write_bytes(b"\0\1\2")
    with pytest.raises(ToolError, match=r"src/b\.c is binary"):
        export(layout=world.layout, into=[Into("b.patch")])


def test_export_without_a_tree_is_one_line(world: World) -> None:
    shutil.rmtree(world.layout.build)
    with pytest.raises(ToolError, match="fork-apply"):
        export(layout=world.layout)


def test_export_does_not_undo_newer_sources_and_the_way_out_works(world: World) -> None:
    edit(world, "src/turbo/t.c", "int t;", "int mine;")
    world.overlay("src/turbo/theirs.c", "int theirs;\n")
    before = sources(world)
    with pytest.raises(ToolError, match="stash"):
        export(layout=world.layout)
    assert sources(world) == before
    world.git("stash", "-q", "-u")
    apply(layout=world.layout)
    world.git("stash", "pop", "-q")
    assert export(layout=world.layout) == ["wrote overlay/src/turbo/t.c"]
    assert (world.tree / "src/turbo/theirs.c").exists()
    assert check(layout=world.layout) == []


NEW_FILE = "diff --git a/n.c b/n.c\nnew file mode 100644\n--- /dev/null\n+++ b/n.c\n@@ -0,0 +1 @@\n+int n;\n"
A_AGAIN = one_line_diff("src/a.c", 20, "int a19;", "int a20;", "int x;", "int a21;")
NO_WHY, NO_KIND, NO_RETIRE = (
    HEADER.replace(*pair)
    for pair in (("Why: the", "The"), ("registration", ""), ("Retire-when: upstream has", "Retire-when: TODO"))
)


@pytest.mark.parametrize(
    ("spoil", "finding"),
    [
        (lambda w: w.patch("hook.patch", HOOK), "patches/series lists hook.patch more than once"),
        (lambda w: (w.layout.patches / "hook.patch").unlink(), "patches/series lists hook.patch, which does not exist"),
        (lambda w: (w.layout.patches / "x.patch").touch(), "patches/x.patch is not in patches/series"),
        (lambda w: w.patch("b.patch", B_HOOK, NO_WHY), "patches/b.patch: the header has no `Why:`"),
        (lambda w: w.patch("b.patch", B_HOOK, NO_KIND), "patches/b.patch: the header has no `Kind:`"),
        (lambda w: w.patch("b.patch", B_HOOK, NO_RETIRE), "patches/b.patch: the header has no `Retire-when:`"),
        (lambda w: w.patch("b.patch", ""), "patches/b.patch holds no diff"),
        (lambda w: w.overlay("src/b.c", "int b;\n"), "overlay/src/b.c is a file of upstream: change it with a patch"),
        (lambda w: w.patch("b.patch", A_AGAIN), "src/a.c is touched by patches/hook.patch and patches/b.patch"),
        (
            lambda w: w.patch("b.patch", HOOK.replace("src/a.c", "src/b.c")),
            "patches/b.patch no longer applies: src/b.c",
        ),
        (lambda w: w.patch("b.patch", NEW_FILE), "patches/b.patch touches n.c, which upstream does not have"),
        (lambda w: w.patch("b.patch", B_HOOK.replace("3 @@", "3 @@ odd")), "patches/b.patch is not what export writes"),
    ],
)
def test_check_names_the_fault(world: World, spoil: object, finding: str) -> None:
    assert check(layout=world.layout) == []
    spoil(world)  # type: ignore[operator]
    assert [line for line in check(layout=world.layout) if line.startswith(finding)], check(layout=world.layout)


@pytest.mark.parametrize("wide", ["before", "after", "between"])
def test_check_names_wide_context(world: World, wide: str) -> None:
    lines = {
        "before": "@@ -8,4 +8,4 @@\n int a8;\n int a9;\n-int a10;\n+int hooked;\n int a11;\n",
        "after": "@@ -9,4 +9,4 @@\n int a9;\n-int a10;\n+int hooked;\n int a11;\n int a12;\n",
        "between": "@@ -9,7 +9,6 @@\n int a9;\n-int a10;\n+int hooked;\n int a11;\n int a12;\n int a13;\n"
        "-int a14;\n int a15;\n",
    }
    head = HOOK.partition("@@")[0]
    (world.layout.patches / "hook.patch").write_text(HEADER + head + lines[wide])
    assert check(layout=world.layout) == [
        "patches/hook.patch: src/a.c, hunk 1 has more than one line of context: regenerate it with `make fork-export`"
    ]


def test_check_leaves_the_tree_alone(world: World) -> None:
    edit(world, "src/turbo/t.c", "int t;", "int mine;")
    check(layout=world.layout)
    assert (world.tree / "src/turbo/t.c").read_text() == "int mine;\n"


def test_command_line(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Layout, "default", classmethod(lambda _: world.layout))
    run = CliRunner().invoke
    done = run(main, ["apply"])
    assert (done.exit_code, done.stdout) == (0, f"{world.tree}\n")
    assert "clean" in run(main, ["status"]).stdout
    edit(world, "src/b.c", "int b2;", "int x;")
    assert "src/b.c" in run(main, ["status"]).stdout
    done = run(main, ["apply"])
    assert (done.exit_code, done.stdout, len(done.stderr.splitlines())) == (2, "", 1)
    assert run(main, ["export", "--why", "x"]).exit_code == 2
    assert run(main, ["export"]).exit_code == 2
    done = run(main, ["export", "--into", "b.patch", "--why", "w"])
    assert (done.exit_code, done.stdout) == (0, "wrote patches/b.patch\n")
    done = run(main, ["check"])
    assert (done.exit_code, len(done.stdout.splitlines())) == (1, 2)
    edit(world, "src/b.c", "int x;", "int b2;")
    run(main, ["export"])
    assert run(main, ["check"]).exit_code == 0
    assert run(main, ["apply", "--discard"]).exit_code == 0


def test_the_module_runs() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "turbokv_eval.fork", "--help"], capture_output=True, text=True, check=True
    )
    assert "export" in done.stdout
