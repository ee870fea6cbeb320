"""Configures and builds the materialised fork with CMake and Ninja."""

import json
import os
import re
import shutil
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from turbokv_eval import fork
from turbokv_eval.errors import BadInput, CheckFailed, MachineCannot
from turbokv_eval.machine import cuda_toolkit, provenance, runner
from turbokv_eval.machine.native import unusable_isa_flags

Progress = Callable[[str], None]
# Called with the number of finished and of all steps of the build.
OnStep = Callable[[int, int], None]

PROGRAMS = (
    "llama-cli",
    "llama-completion",
    "llama-server",
    "llama-bench",
    "llama-perplexity",
    "llama-quantize",
    "llama-kv-capture",
    "llama-kv-condition",
    "llama-kv-generate",
)
# Those that `ctest -L turbo` runs.
TEST_PROGRAMS = (
    "test-turbo-codec",
    "test-turbo-fattn",
    "test-turbo-archs",
    "test-turbo-fallback",
    "turbo-matrix",
    "turbo-shift",
    "test-llama-archs",
    "test-quantize-fns",
    "test-backend-ops",
    "bench-turbo-kernels",
    "bench-turbo-depth",
)
# Those that are worth their time under a sanitizer.
SANITIZED_PROGRAMS = ("test-turbo-codec",)
BACKENDS = ("cpu", "cuda")
SANITIZERS = {"address": "ADDRESS", "undefined": "UNDEFINED", "thread": "THREAD"}

STAMP = "turbokv-options.json"


@dataclass(frozen=True)
class Options:
    """What to build.

    portable:  for any processor of the architecture, not only this one; and for any GPU where none is named.
    tests:     the test programs too.
    sanitize:  names out of SANITIZERS; then only SANITIZED_PROGRAMS are built, into a folder of their own.
    jobs:      compilations at a time.
    backend:   one of BACKENDS; each has a folder of its own, and `cuda` has the processor's kernels too.
    cuda_arch: as cuda_toolkit.parse_architectures() takes it.

    Raises BadInput for options that exclude each other.
    """

    portable: bool = False
    tests: bool = False
    sanitize: tuple[str, ...] = ()
    jobs: int | None = None
    backend: str = "cpu"
    cuda_arch: str | None = None

    def __post_init__(self) -> None:
        if self.backend != "cuda" and self.cuda_arch is not None:
            raise BadInput("--cuda-arch needs --backend cuda")
        if self.backend == "cuda" and self.sanitize:
            raise BadInput("--sanitize is for the processor's code: leave out --backend cuda")

    @property
    def folder(self) -> Path:
        """Where the build lies."""
        return build_dir("sanitize" if self.sanitize else self.backend)

    @property
    def targets(self) -> tuple[str, ...]:
        """The programs to build."""
        if self.sanitize:
            return SANITIZED_PROGRAMS
        return PROGRAMS + (TEST_PROGRAMS if self.tests else ())

    def cmake(self) -> list[str]:
        """The options of the configuration, without folders and tools."""
        options = {
            "CMAKE_BUILD_TYPE": "RelWithDebInfo" if self.sanitize else "Release",
            "GGML_NATIVE": "OFF" if self.portable else "ON",
            "LLAMA_BUILD_NUMBER": "0",
            "LLAMA_CURL": "OFF",
            "LLAMA_OPENSSL": "OFF",
            "LLAMA_BUILD_UI": "OFF",
            "LLAMA_BUILD_TESTS": "ON",
            "LLAMA_BUILD_EXAMPLES": "OFF",
        }
        for name in self.sanitize:
            options[f"LLAMA_SANITIZE_{SANITIZERS[name]}"] = "ON"
            options[f"GGML_SANITIZE_{SANITIZERS[name]}"] = "ON"
            # The OpenMP runtime is not built with the sanitizer, which reports it.
            options["GGML_OPENMP"] = "OFF"
        return [f"-D{name}={value}" for name, value in options.items()]


def build_dir(name: str = "cpu") -> Path:
    """Where this package builds: `build/cpu` in a checkout, `build/cuda`, or `build/sanitize`."""
    return fork.Layout.default().build / name


def default_bin(backend: str = "cpu") -> Path:
    """Where `build` leaves the programs."""
    return build_dir(backend) / "bin"


def parse_sanitizers(spec: str | None) -> tuple[str, ...]:
    """`address,undefined` as a tuple. Raises BadInput."""
    names = tuple(name.strip() for name in spec.split(",")) if spec else ()
    for name in names:
        if name not in SANITIZERS:
            raise BadInput(f"unknown sanitizer {name!r}: choose from {', '.join(SANITIZERS)}, separated by commas")
    return names


def find_tool(name: str) -> Path:
    """A program on PATH or else beside this Python, where the packages cmake and ninja put theirs."""
    found = shutil.which(name) or shutil.which(name, path=str(Path(sys.executable).parent))
    if found is None:
        raise MachineCannot(f"{name} is not installed: `{sys.executable} -m pip install {name}` installs it")
    return Path(found)


def check_compilers() -> None:
    """Raises MachineCannot when there is no C or no C++ compiler."""
    for variable, language, names in (("CC", "C", ("cc", "gcc", "clang")), ("CXX", "C++", ("c++", "g++", "clang++"))):
        # CC may carry arguments, as in "ccache gcc".
        wanted = os.environ.get(variable, "").split()[:1]
        if not any(shutil.which(name) for name in wanted or names):
            tried = f"{variable} names {wanted[0]}, which is not there" if wanted else f"none of {', '.join(names)}"
            raise MachineCannot(
                f"no {language} compiler found ({tried}): install one (Debian, Ubuntu: `apt install build-essential`;"
                f" Fedora: `dnf install gcc-c++`; macOS: `xcode-select --install`) or set {variable}"
            )


def build(options: Options, progress: Progress, on_step: OnStep) -> Path:
    """Materialises the fork and builds it; returns the folder of the programs.

    Raises ToolError, MachineCannot (tools, disk, memory) or CheckFailed (it does not compile).
    """
    cmake, ninja = find_tool("cmake"), find_tool("ninja")
    check_compilers()
    cuda = _cuda(options, progress) if options.backend == "cuda" else []
    tree = fork.apply(progress)
    folder = options.folder
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as e:
        raise MachineCannot(f"cannot write {folder}: {e.strerror}") from e
    argv = [str(cmake), "-S", str(tree), "-B", str(folder), "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}"]
    _configure(options, [*argv, *options.cmake(), *cuda], folder, progress)
    progress(f"building {', '.join(options.targets)}")
    jobs = options.jobs or provenance.cpu_count()
    log = folder / "build.log"
    done = runner.run(
        [cmake, "--build", folder, "--parallel", str(jobs), "--target", *options.targets],
        log=log,
        on_output=StepReader(on_step),
        environment=_ccache(options),
    )
    if done.returncode != 0:
        raise _failed("the build", done.output, log, progress)
    bin_dir = folder / "bin"
    missing = [name for name in options.targets if not (bin_dir / name).is_file()]
    if missing:
        raise CheckFailed(f"the build ended without {', '.join(missing)}: delete {folder} and run again; log: {log}")
    return bin_dir


def _cuda(options: Options, progress: Progress) -> list[str]:
    """CMake's options of a CUDA build. Raises BadInput or MachineCannot."""
    wanted = cuda_toolkit.parse_architectures(options.cuda_arch, options.portable)
    toolkit = cuda_toolkit.find(progress)
    architectures = cuda_toolkit.checked(toolkit, wanted)
    progress(f"{toolkit}, GPU architectures {', '.join(architectures)}")
    return cuda_toolkit.cmake_options(toolkit, architectures)


def _ccache(options: Options) -> dict[str, str]:
    """Variables with which a unit that another checkout has compiled is found again; the user's own are left alone."""
    # Debug information holds the folder that it was compiled in.
    wanted = {} if options.sanitize else {"CCACHE_BASEDIR": str(options.folder.parent), "CCACHE_NOHASHDIR": "1"}
    return {name: value for name, value in wanted.items() if name not in os.environ}


def cuda_architectures(bin_dir: Path) -> tuple[str, ...]:
    """The GPU architectures that the programs in `bin_dir` were built for; none when it is no CUDA build of ours."""
    try:
        argv, *_ = json.loads((bin_dir.parent / STAMP).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ()
    given = [str(option).partition("=")[2] for option in argv if str(option).startswith("-DCMAKE_CUDA_ARCHITECTURES=")]
    return tuple(given[0].split(";")) if given else ()


def _configure(options: Options, argv: list[str], folder: Path, progress: Progress) -> None:
    """Runs CMake unless the folder is already configured so. Ninja itself runs it again when a CMake file changed."""
    if not options.portable and (flags := " ".join(unusable_isa_flags())):
        progress(f"AMX does not work with this compiler on this machine: building with {flags}")
        argv = [*argv, f"-DCMAKE_C_FLAGS={flags}", f"-DCMAKE_CXX_FLAGS={flags}"]
    if ccache := shutil.which("ccache"):
        languages = ("C", "CXX", "CUDA") if options.backend == "cuda" else ("C", "CXX")
        argv = [*argv, *(f"-DCMAKE_{language}_COMPILER_LAUNCHER={ccache}" for language in languages)]
    wanted = json.dumps([argv, *(os.environ.get(name) for name in ("CC", "CXX", "CUDAHOSTCXX"))], indent=1)
    stamp = folder / STAMP
    if (folder / "build.ninja").is_file() and stamp.is_file() and stamp.read_text(encoding="utf-8") == wanted:
        return
    progress("configuring with CMake")
    stamp.unlink(missing_ok=True)
    # Options that a former configuration set and this one does not would stay; so would another source folder.
    (folder / "CMakeCache.txt").unlink(missing_ok=True)
    log = folder / "configure.log"
    done = runner.run(argv, log=log)
    if done.returncode != 0:
        raise _failed("CMake", done.output, log, progress)
    stamp.write_text(wanted, encoding="utf-8")


def _failed(what: str, output: str, log: Path, progress: Progress) -> CheckFailed | MachineCannot:
    """The exception for a failed step, after the tail of its output went to `progress`."""
    for line in output.splitlines()[-15:]:
        progress(line)
    if "No space left on device" in output:
        return MachineCannot(f"{what} ran out of disk space: free some and run again; log: {log}")
    if re.search(r"Killed signal|signal 9|Killed\b.*(cc1plus|c\+\+)", output):
        return MachineCannot(f"{what} ran out of memory: run again with --jobs 1; log: {log}")
    error = next((line.strip() for line in output.splitlines() if re.search(r"\berror:|CMake Error", line)), "")
    return CheckFailed(f"{what} failed{': ' + error[:160] if error else ''}; log: {log}")


class StepReader:
    """Turns Ninja's `[n/m]` into calls of `on_step`. Text may come in any pieces."""

    def __init__(self, on_step: OnStep) -> None:
        self._on_step = on_step
        self._rest = ""

    def __call__(self, text: str) -> None:
        """Takes what Ninja printed next."""
        *lines, self._rest = (self._rest + text).split("\n")
        for line in lines:
            if step := re.match(r"\[(\d+)/(\d+)\]", line):
                self._on_step(int(step[1]), int(step[2]))


def missing_programs(bin_dir: Path, programs: Sequence[str]) -> list[str]:
    """Those of `programs` that are not in `bin_dir` as something that can be run."""
    return [name for name in programs if not os.access(bin_dir / name, os.X_OK)]
