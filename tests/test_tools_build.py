"""`turbokv-eval build` with stand-ins for CMake, Ninja and the compilers."""

import os
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from turbokv_eval import fork
from turbokv_eval.cli import main
from turbokv_eval.errors import BadInput
from turbokv_eval.fork import Layout
from turbokv_eval.machine import build

_CMAKE = """#!{python}
import os, sys
args, here = sys.argv[1:], {here!r}
open(os.path.join(here, "ccache.txt"), "w").write(str(dict((k, v) for k, v in os.environ.items() if "CCACHE" in k)))
open(os.path.join(here, "calls.txt"), "a").write(" ".join(args) + "\\n")
if "-S" in args:
    if os.path.exists(os.path.join(here, "fail-configure")):
        print("CMake Error at CMakeLists.txt:1: no such thing")
        sys.exit(1)
    open(os.path.join(args[args.index("-B") + 1], "build.ninja"), "w").write("")
    sys.exit(0)
folder = args[args.index("--build") + 1]
print("[1/2] Building a")
fail = os.path.join(here, "fail-build")
if os.path.exists(fail):
    print(open(fail).read())
    sys.exit(1)
os.makedirs(os.path.join(folder, "bin"), exist_ok=True)
for name in args[args.index("--target") + 1 :]:
    open(os.path.join(folder, "bin", name), "w").write("")
print("[2/2] Linking")
"""


class Machine:
    """tools: the only folder on PATH."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.tools = root / "tools"
        self.tools.mkdir()
        for name in ("ninja", "cc", "c++"):
            self.add(name, "#!/bin/sh\nexit 0\n")
        self.add("cmake", _CMAKE.format(python=sys.executable, here=str(root)))

    def add(self, name: str, text: str) -> None:
        (self.tools / name).write_text(text)
        (self.tools / name).chmod(0o755)

    def remove(self, *names: str) -> None:
        for name in names:
            (self.tools / name).unlink()

    @property
    def calls(self) -> list[str]:
        path = self.root / "calls.txt"
        return path.read_text().splitlines() if path.exists() else []


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine(tmp_path)
    layout = Layout(source=tmp_path / "llama.cpp", build=tmp_path / "build", cache=tmp_path / "cache")
    monkeypatch.setattr(Layout, "default", classmethod(lambda cls: layout))
    monkeypatch.setattr(fork, "apply", lambda progress: tmp_path / "tree")
    monkeypatch.setenv("PATH", str(made.tools))
    # Beside the real Python there may be a real CMake.
    monkeypatch.setattr(sys, "executable", str(tmp_path / "venv" / "bin" / "python"))
    for variable in ("CC", "CXX"):
        monkeypatch.delenv(variable, raising=False)
    return made


def invoke(*args: str) -> Result:
    return CliRunner().invoke(main, ["build", *args])


def fails(result: Result, code: int, said: str) -> None:
    import re

    assert result.exit_code == code, result.stderr
    [error] = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
    assert re.search(said, error), error


def test_builds_the_programs_and_prints_their_folder(machine: Machine) -> None:
    result = invoke()
    assert result.exit_code == 0, result.stderr
    folder = machine.root / "build" / "cpu"
    assert result.stdout.strip() == str(folder / "bin")
    assert "building (100 %" in result.stderr
    configure, compile_ = machine.calls
    for option in ("-G Ninja", "-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON", "-DLLAMA_BUILD_TESTS=ON"):
        assert option in configure
    assert "LAUNCHER" not in configure
    assert compile_.endswith(" ".join(build.PROGRAMS))
    assert "[2/2] Linking" in (folder / "build.log").read_text()


def test_the_second_time_nothing_is_configured(machine: Machine) -> None:
    invoke()
    invoke()
    assert sum("-S" in call.split() for call in machine.calls) == 1


def test_other_options_configure_afresh(machine: Machine) -> None:
    invoke()
    cache = machine.root / "build" / "cpu" / "CMakeCache.txt"
    cache.write_text("old")
    invoke("--portable")
    assert sum("-S" in call.split() for call in machine.calls) == 2
    assert "-DGGML_NATIVE=OFF" in machine.calls[2]
    assert not cache.exists()


def test_ccache_is_used_where_it_is(machine: Machine) -> None:
    machine.add("ccache", "#!/bin/sh\n")
    invoke()
    assert f"-DCMAKE_CXX_COMPILER_LAUNCHER={machine.tools / 'ccache'}" in machine.calls[0]


def test_ccache_finds_what_another_checkout_compiled(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("CCACHE_BASEDIR", "CCACHE_NOHASHDIR"):
        monkeypatch.delenv(name, raising=False)
    said = machine.root / "ccache.txt"
    invoke()
    assert said.read_text() == str({"CCACHE_BASEDIR": str(machine.root / "build"), "CCACHE_NOHASHDIR": "1"})
    invoke("--sanitize", "address")
    assert said.read_text() == "{}"
    monkeypatch.setenv("CCACHE_BASEDIR", "/mine")
    invoke()
    assert eval(said.read_text()) == {"CCACHE_BASEDIR": "/mine", "CCACHE_NOHASHDIR": "1"}


@pytest.mark.parametrize(("probe", "off"), [("exit 0", False), ("exit 1", True), ("kill -ILL $$", True)])
def test_amx_is_left_out_where_a_probe_of_it_dies(machine: Machine, probe: str, off: bool) -> None:
    compiler = f'#!/bin/sh\nprintf \'#!/bin/sh\\n{probe}\\n\' > "$5"\n/bin/chmod +x "$5"\n'
    machine.add("cc", compiler)
    assert invoke().exit_code == 0
    assert ("-DCMAKE_C_FLAGS=-mno-amx-tile -mno-amx-int8 -mno-amx-bf16" in machine.calls[0]) == off
    assert ("-DCMAKE_CXX_FLAGS=-mno-amx-tile" in machine.calls[0]) == off
    assert invoke("--portable").exit_code == 0
    assert "-mno-amx" not in machine.calls[2]


def test_tests_and_jobs(machine: Machine) -> None:
    invoke("--tests", "--jobs", "3")
    assert "--parallel 3" in machine.calls[1]
    assert machine.calls[1].endswith(" ".join(build.TEST_PROGRAMS))


def test_sanitizers_have_a_folder_of_their_own(machine: Machine) -> None:
    result = invoke("--sanitize", "address,undefined")
    assert result.stdout.strip() == str(machine.root / "build" / "sanitize" / "bin")
    for option in ("LLAMA_SANITIZE_ADDRESS=ON", "GGML_SANITIZE_UNDEFINED=ON", "CMAKE_BUILD_TYPE=RelWithDebInfo"):
        assert option in machine.calls[0]
    fails(invoke("--sanitize", "memory"), 2, "unknown sanitizer 'memory': choose from address, undefined, thread")


def test_tools_beside_python_are_found(machine: Machine) -> None:
    beside = machine.root / "venv" / "bin"
    beside.mkdir(parents=True)
    (machine.tools / "ninja").rename(beside / "ninja")
    assert invoke().exit_code == 0
    assert f"-DCMAKE_MAKE_PROGRAM={beside / 'ninja'}" in machine.calls[0]


@pytest.mark.parametrize(
    ("gone", "said"),
    [
        (["cmake"], "cmake is not installed: .*pip install cmake"),
        (["ninja"], "ninja is not installed: .*pip install ninja"),
        (["c++"], r"no C\+\+ compiler found .*build-essential"),
        (["cc"], "no C compiler found"),
    ],
)
def test_missing_tools(machine: Machine, gone: list[str], said: str) -> None:
    machine.remove(*gone)
    fails(invoke(), 3, said)
    assert machine.calls == []


def test_a_compiler_that_cxx_names_wrongly(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "clang++-99")
    fails(invoke(), 3, r"CXX names clang\+\+-99, which is not there")


@pytest.mark.parametrize(
    ("output", "code", "said"),
    [
        (
            "FAILED: a.o\na.cpp:1:1: error: no such thing",
            1,
            r"the build failed: a.cpp:1:1: error: no such thing; log: .*log",
        ),
        ("fatal error: a.o: No space left on device", 3, "out of disk space"),
        ("c++: fatal error: Killed signal terminated program cc1plus", 3, "out of memory: run again with --jobs 1"),
    ],
)
def test_a_build_that_fails(machine: Machine, output: str, code: int, said: str) -> None:
    (machine.root / "fail-build").write_text(output)
    result = invoke()
    fails(result, code, said)
    assert output.splitlines()[0] in result.stderr


def test_a_configuration_that_fails_is_tried_again(machine: Machine) -> None:
    (machine.root / "fail-configure").write_text("")
    fails(invoke(), 1, "CMake failed: CMake Error at CMakeLists.txt:1")
    (machine.root / "fail-configure").unlink()
    assert invoke().exit_code == 0


def test_the_forks_errors_keep_their_exit_code(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(progress: build.Progress) -> Path:
        raise BadInput("the tree has edits: export them")

    monkeypatch.setattr(fork, "apply", refuse)
    fails(invoke(), 2, "the tree has edits: export them")


def test_steps_come_in_any_pieces() -> None:
    steps: list[tuple[int, int]] = []
    reader = build.StepReader(lambda done, total: steps.append((done, total)))
    for piece in ("[1/", "12] a\n[2", "/12] b\nwarning: [3/4] not\n", "[12/12] c\n"):
        reader(piece)
    assert steps == [(1, 12), (2, 12), (12, 12)]


def test_missing_programs(tmp_path: Path) -> None:
    (tmp_path / "there").write_text("")
    os.chmod(tmp_path / "there", 0o755)
    (tmp_path / "no-program").write_text("")
    assert build.missing_programs(tmp_path, ("there", "no-program", "gone")) == ["no-program", "gone"]
