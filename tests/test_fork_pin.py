"""The pin: read strictly, downloaded once by a real pip from a local folder, verified on every use, fails closed."""

import hashlib
import shutil
from pathlib import Path

import pytest
from fork_world import SDIST, World

from turbokv_eval.errors import ToolError
from turbokv_eval.fork import Layout, apply, load_pin, repo_root


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> World:
    """The cache is empty; the only thing pip can reach is the folder `shop`."""
    world = World(tmp_path)
    (tmp_path / "shop").mkdir()
    shutil.move(world.layout.cache / SDIST, tmp_path / "shop" / SDIST)
    for name, value in (("NO_INDEX", "1"), ("FIND_LINKS", str(tmp_path / "shop")), ("CONFIG_FILE", "/dev/null")):
        monkeypatch.setenv(f"PIP_{name}", value)
    return world


def test_downloads_once(world: World) -> None:
    said: list[str] = []
    apply(said.append, layout=world.layout)
    assert f"downloading {SDIST}" in said[0]
    assert [p.name for p in world.layout.cache.iterdir()] == [SDIST]
    shutil.rmtree(world.root / "shop")
    shutil.rmtree(world.layout.build)
    said.clear()
    apply(said.append, layout=world.layout)
    assert not any("downloading" in line for line in said)


def test_wrong_hash_from_the_registry_fails_closed(world: World) -> None:
    real = load_pin(world.layout.source).sha256
    world.pin("0" * 64)
    with pytest.raises(ToolError) as e:
        apply(layout=world.layout)
    assert real in e.value.message
    assert "0" * 64 in e.value.message
    assert (e.value.exit_code, "\n" in e.value.message) == (1, False)
    assert not world.tree.exists()
    assert list(world.layout.cache.iterdir()) == []


def test_wrong_hash_in_the_cache_fails_closed_every_time(world: World) -> None:
    (world.layout.cache / SDIST).write_bytes(b"tampered")
    got = hashlib.sha256(b"tampered").hexdigest()
    for _ in range(2):
        with pytest.raises(ToolError, match=f"{got}.*{load_pin(world.layout.source).sha256}; delete that file") as e:
            apply(layout=world.layout)
        assert e.value.exit_code == 1
    assert not world.tree.exists()


def test_no_network_and_an_empty_cache_is_one_line(world: World) -> None:
    (world.root / "shop" / SDIST).unlink()
    with pytest.raises(ToolError, match=r"cannot download tiny-upstream 1\.0.*connect to the network.*by hand") as e:
        apply(layout=world.layout)
    assert (e.value.exit_code, "\n" in e.value.message) == (3, False)


def test_a_cache_that_cannot_be_written_is_one_line(world: World) -> None:
    world.layout.cache.rmdir()
    world.layout.cache.write_text("a file in the way")
    with pytest.raises(ToolError, match=r"cannot write the cache.*XDG_CACHE_HOME") as e:
        apply(layout=world.layout)
    assert e.value.exit_code == 3


def test_a_subdir_that_the_sdist_lacks_is_one_line(world: World) -> None:
    world.pin(load_pin(world.layout.source).sha256, subdir="vendor/nothing")
    with pytest.raises(ToolError, match="no folder vendor/nothing: correct `subdir`"):
        apply(layout=world.layout)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("not = [toml", "not valid TOML"),
        ('package = "x"\n', "missing, empty or unknown field version"),
        ("EXTRA", "unknown field colour"),
        ("SHORT", "64 lower-case hex digits"),
    ],
)
def test_a_faulty_pin_is_one_line(world: World, text: str, message: str) -> None:
    path = world.layout.source / "UPSTREAM"
    if text == "EXTRA":
        text = path.read_text() + 'colour = "red"\n'
    elif text == "SHORT":
        text = path.read_text().replace(load_pin(world.layout.source).sha256, "abc")
    path.write_text(text)
    with pytest.raises(ToolError, match=message) as e:
        load_pin(world.layout.source)
    assert e.value.exit_code == 2
    path.unlink()
    with pytest.raises(ToolError, match="cannot read the pin"):
        load_pin(world.layout.source)


def test_the_real_pin_reads() -> None:
    pin = load_pin(repo_root() / "llama.cpp")
    assert pin.sdist == f"{pin.package.replace('-', '_')}-{pin.version}.tar.gz"
    assert Layout.default().tree == repo_root() / "build" / "llama.cpp"


def test_an_installed_package_builds_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = tmp_path / "site-packages" / "turbokv_eval"
    (package / "_fork" / "llama.cpp").mkdir(parents=True)
    monkeypatch.setattr("turbokv_eval.fork.paths._PACKAGE", package)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with pytest.raises(ToolError, match="reinstall"):
        repo_root()
    (package / "_fork" / "llama.cpp" / "UPSTREAM").touch()
    assert repo_root() == package / "_fork"
    assert Layout.default().tree == tmp_path / "cache" / "turbokv" / "build" / "llama.cpp"
