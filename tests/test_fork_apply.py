"""`fork apply`: the tree is exactly upstream + patches + overlay, is made once, moves by content, and loses no edit."""

import os
import re
import subprocess
from pathlib import Path

import pytest
from fork_world import A_C, HOOK, UPSTREAM_FILES, World, one_line_diff

from turbokv_eval.errors import ToolError
from turbokv_eval.fork import apply, status


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def run(world: World, **options: bool) -> list[str]:
    said: list[str] = []
    assert apply(said.append, layout=world.layout, **options) == world.tree
    return said


def times(world: World) -> dict[str, int]:
    return {
        p.relative_to(world.tree).as_posix(): p.stat().st_mtime_ns
        for p in world.tree.rglob("*")
        if p.is_file() and ".git" not in p.parts
    }


def age(world: World) -> dict[str, int]:
    """Sets every time to one in the past, so that a rewrite shows."""
    for path in times(world):
        os.utime(world.tree / path, ns=(10**18, 10**18))
    return times(world)


def test_tree_is_upstream_plus_patches_plus_overlay(world: World) -> None:
    world.patch("hook.patch", HOOK)
    world.overlay("src/turbo/t.c", "int t;\n")
    world.overlay("tools/go.sh", "#!/bin/sh\n").chmod(0o755)
    run(world)
    expected = {k: v for k, v in UPSTREAM_FILES.items() if k != ".git"}
    expected["src/a.c"] = A_C.replace("int a10;", "int hooked;")
    expected |= {"src/turbo/t.c": "int t;\n", "tools/go.sh": "#!/bin/sh\n"}
    assert {name: (world.tree / name).read_bytes().decode() for name in times(world)} == expected
    assert os.access(world.tree / "run.sh", os.X_OK)
    assert os.access(world.tree / "tools/go.sh", os.X_OK)
    assert not os.access(world.tree / "src/a.c", os.X_OK)


def test_tree_is_a_clean_repository_with_a_commit_for_each_step(world: World) -> None:
    world.patch("one.patch", HOOK)
    world.patch("two.patch", one_line_diff("src/b.c", 2, "int b1;", "int b2;", "int x;", "int b3;"))
    run(world)
    assert world.git("rev-parse", "--show-toplevel") == str(world.tree)
    assert world.git("log", "--format=%s").splitlines() == ["overlay", "two.patch", "one.patch", "llama.cpp abc123"]
    assert world.git("status", "--porcelain") == ""
    assert "Why: the cache needs it." in world.git("log", "-1", "--format=%b", "HEAD~1")


def test_commits_do_not_depend_on_user_place_or_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heads = set()
    for name in ("here", "there"):
        world = World(tmp_path / name)
        world.patch("hook.patch", HOOK)
        if name == "there":
            config = tmp_path / "gitconfig"
            config.write_text("[core]\nautocrlf = true\n[commit]\ngpgSign = true\n[user]\nname = Someone\n")
            monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(config))
            monkeypatch.setenv("GIT_DIR", str(tmp_path / "here" / ".git"))
            monkeypatch.setenv("GIT_INDEX_FILE", str(tmp_path / "nowhere"))
            monkeypatch.setenv("TZ", "Asia/Tokyo")
        run(world)
        monkeypatch.undo()
        heads.add(world.git("rev-parse", "HEAD"))
        assert (world.tree / "docs/crlf.txt").read_bytes() == b"one\r\ntwo\r\nthree\r\n"
    assert len(heads) == 1


def test_hooks_of_the_user_do_not_run(world: World, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hook = tmp_path / "hooks" / "post-checkout"
    hook.parent.mkdir()
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n")
    for name in ("post-checkout", "post-index-change", "reference-transaction"):
        target = hook.with_name(name)
        target.write_text(hook.read_text())
        target.chmod(0o755)
    (tmp_path / "gitconfig").write_text(f"[core]\nhooksPath = {hook.parent}\n")
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "gitconfig"))
    run(world)
    assert not (tmp_path / "ran").exists()


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="only root can give files away")
def test_tree_owned_by_somebody_else_still_updates(world: World) -> None:
    run(world)
    subprocess.run(["chown", "-R", "12345:12345", str(world.root)], check=True)
    world.overlay("new.c", "int n;\n")
    run(world)
    assert (world.tree / "new.c").exists()


def test_second_apply_touches_nothing_and_needs_no_sdist(world: World) -> None:
    world.patch("hook.patch", HOOK)
    run(world)
    before = age(world)
    world.git("status")  # refresh git's index after the change of times
    index = world.tree / ".git" / "index"
    index_before = index.stat().st_mtime_ns
    for path in world.layout.cache.iterdir():
        path.unlink()
    assert run(world) == []
    assert times(world) == before
    assert index.stat().st_mtime_ns == index_before, "CMake would configure again"


def test_update_writes_only_what_changed(world: World) -> None:
    world.patch("hook.patch", HOOK)
    world.overlay("src/turbo/same.c", "int same;\n")
    world.overlay("src/turbo/edit.c", "int old;\n")
    gone = world.overlay("src/turbo/gone.c", "int gone;\n")
    run(world)
    before = age(world)
    world.overlay("src/turbo/edit.c", "int new;\n")
    world.overlay("src/turbo/more.c", "int more;\n")
    gone.unlink()
    (world.layout.patches / "hook.patch").write_text(
        (world.layout.patches / "hook.patch").read_text().replace("int hooked;", "int caught;")
    )
    run(world)
    after = times(world)
    assert {p for p in after if after[p] != before.get(p)} == {"src/a.c", "src/turbo/edit.c", "src/turbo/more.c"}
    assert "int caught;" in (world.tree / "src/a.c").read_text()
    assert "src/turbo/gone.c" not in after
    assert world.git("status", "--porcelain") == ""


def test_new_upstream_release_moves_the_tree_and_shifted_hunks_follow(world: World) -> None:
    world.patch("hook.patch", HOOK)
    run(world)
    before = age(world)
    world.release(UPSTREAM_FILES | {"src/a.c": "int first;\nint second;\n" + A_C})
    run(world)
    assert "int first;\nint second;\nint a1;" in (world.tree / "src/a.c").read_text()
    assert "int a9;\nint hooked;\nint a11;" in (world.tree / "src/a.c").read_text()
    after = times(world)
    assert {p for p in after if after[p] != before.get(p)} == {"src/a.c"}


@pytest.mark.parametrize("edit", ["modify", "same-size", "delete", "create", "overlay"])
def test_edits_that_are_not_exported_are_refused_and_kept(world: World, edit: str) -> None:
    world.overlay("src/turbo/t.c", "int t;\n")
    run(world)
    path = world.tree / {"create": "src/new.c", "overlay": "src/turbo/t.c"}.get(edit, "src/b.c")
    if edit == "delete":
        path.unlink()
    else:
        path.write_text("int b1;\nint bX;\nint b3;\n" if edit == "same-size" else "int mine;\n")
    name = path.relative_to(world.tree).as_posix()
    assert status(world.layout) == ("edited", [name])
    for change_sources in (False, True):
        if change_sources:
            world.overlay("src/turbo/other.c", "int o;\n")
        with pytest.raises(ToolError, match=f"{re.escape(name)}.*fork-export.*--discard") as e:
            apply(layout=world.layout)
        assert (e.value.exit_code, "\n" in e.value.message) == (2, False)
        assert path.exists() == (edit != "delete")
    run(world, discard=True)
    assert status(world.layout) == ("clean", [])
    assert path.exists() == (edit != "create")


def test_a_commit_by_the_developer_is_an_edit_too(world: World) -> None:
    run(world)
    (world.tree / "src/b.c").write_text("int mine;\n")
    world.git("commit", "-q", "-a", "-m", "mine")
    with pytest.raises(ToolError, match=r"src/b\.c"):
        apply(layout=world.layout)


def test_an_edit_that_the_sources_now_hold_is_no_loss(world: World) -> None:
    world.overlay("src/turbo/t.c", "int t;\n")
    run(world)
    (world.tree / "src/turbo/t.c").write_text("int better;\n")
    world.overlay("src/turbo/t.c", "int better;\n")
    before = age(world)
    run(world)
    assert times(world) == before
    assert status(world.layout) == ("clean", [])


def test_interrupted_first_apply_starts_afresh(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    def stop(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as m:
        m.setattr("turbokv_eval.fork.tree.Tree.commit_series", stop)
        with pytest.raises(KeyboardInterrupt):
            apply(layout=world.layout)
    assert not world.tree.exists()
    run(world)
    assert status(world.layout) == ("clean", [])
    assert sorted(p.name for p in world.layout.build.iterdir()) == ["llama.cpp", "llama.cpp.lock"]


def test_interrupted_update_is_finished_by_the_next(world: World) -> None:
    run(world)
    world.overlay("a.c", "int a;\n")
    world.overlay("b.c", "int b;\n")
    (world.tree / "a.c").write_text("int a;\n")  # as if stopped between the two files
    (world.tree / ".git" / "turbokv-index.lock").touch()
    run(world)
    assert (world.tree / "b.c").exists()


def test_a_folder_of_somebody_else_is_not_overwritten(world: World) -> None:
    world.tree.mkdir(parents=True)
    (world.tree / "precious.txt").write_text("mine")
    with pytest.raises(ToolError, match=r"not made by this tool.*--discard"):
        apply(layout=world.layout)
    assert (world.tree / "precious.txt").read_text() == "mine"
    run(world, discard=True)
    assert not (world.tree / "precious.txt").exists()


def test_a_patch_that_no_longer_applies_says_all_there_is_to_know(world: World) -> None:
    second = "@@ -29,3 +29,3 @@\n int a29;\n-int a30;\n+int two;\n int a31;\n"
    world.patch("hook.patch", HOOK + second)
    run(world)
    before = age(world)
    world.release(UPSTREAM_FILES | {"src/a.c": A_C.replace("int a30;", "int renamed;")})
    with pytest.raises(ToolError) as e:
        apply(layout=world.layout)
    for part in ("patches/hook.patch", "src/a.c, hunk 2 of 2 (line 29)", "Why: the cache needs it.", "Next: "):
        assert part in e.value.message
    assert "Retire-when: upstream has a registry." in e.value.message
    assert (e.value.exit_code, "\n" in e.value.message) == (1, False)
    assert times(world) == before


def test_a_patched_file_that_upstream_removed_is_named(world: World) -> None:
    world.patch("hook.patch", HOOK)
    world.release({k: v for k, v in UPSTREAM_FILES.items() if k != "src/a.c"})
    with pytest.raises(ToolError, match=r"hook\.patch touches src/a\.c, which upstream does not have.*Retire-when"):
        apply(layout=world.layout)


def test_a_damaged_patch_is_named(world: World) -> None:
    world.patch("hook.patch", HOOK.replace("@@ -9,3 +9,3 @@", "@@ -9,7 +9,7 @@"))
    with pytest.raises(ToolError, match=r"hook\.patch cannot be read: .*corrupt"):
        apply(layout=world.layout)


def test_an_overlay_file_of_upstream_is_refused(world: World) -> None:
    world.overlay("src/a.c", "int mine;\n")
    with pytest.raises(ToolError, match=r"overlay/src/a\.c is a file of upstream"):
        apply(layout=world.layout)


def test_junk_in_the_overlay_stays_out_and_links_are_refused(world: World) -> None:
    world.overlay("src/__pycache__/x.pyc", "x")
    world.overlay("src/.DS_Store", "x")
    run(world)
    assert status(world.layout) == ("clean", [])
    assert world.git("ls-files", "src") == "src/a.c\nsrc/b.c"
    (world.layout.overlay / "link.c").symlink_to("elsewhere")
    with pytest.raises(ToolError, match=r"overlay/link\.c is a symbolic link"):
        apply(layout=world.layout)


def test_no_git_is_one_line(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(world.root))
    with pytest.raises(ToolError, match="git is not installed") as e:
        apply(layout=world.layout)
    assert e.value.exit_code == 3


def test_state_of_the_tree(world: World) -> None:
    assert status(world.layout) == ("absent", [])
    run(world)
    assert status(world.layout) == ("clean", [])
    world.overlay("x.c", "int x;\n")
    assert status(world.layout) == ("stale", [])
