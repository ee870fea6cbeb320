"""The CUDA compiler and libraries: the machine's own toolkit, or else its parts from the package index.

`python -m turbokv_eval.machine.cuda_toolkit` prints the compiler and the folders of its headers, for scripts.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from turbokv_eval import fork
from turbokv_eval.errors import BadInput, MachineCannot, ToolError
from turbokv_eval.machine import nvidia

Progress = Callable[[str], None]

PARTS = Path(__file__).with_name("cuda-toolkit.txt")
# Where the packages put the toolkit.
_ROOT = Path("nvidia", "cu13")
# For any GPU from Turing on: llama.cpp's own choice. Those without code of their own get PTX, compiled at first use.
EVERY_ARCHITECTURE = ("75-virtual", "80-virtual", "86-real", "89-real", "90-virtual", "120-real")
# A kernel that needs the C++ library, its host compiler and the assembler for one architecture.
_PROBE = "#include <cstdio>\n__global__ void f(float * x) { x[0] += 1.0f; }\nint main() { f<<<1, 1>>>(nullptr); }\n"
_LIBRARY_FOLDERS = ("lib64", "lib", "targets/x86_64-linux/lib", "targets/sbsa-linux/lib", "lib/x86_64-linux-gnu")


@dataclass(frozen=True)
class Toolkit:
    """nvcc: the compiler. root: holds include and lib. version: as (13, 0)."""

    nvcc: Path
    root: Path
    version: tuple[int, int]

    @property
    def includes(self) -> tuple[Path, ...]:
        """Folders of headers. From CUDA 13 on, CCCL (CUB, Thrust) has its own."""
        return tuple(folder for folder in (self.root / "include", self.root / "include" / "cccl") if folder.is_dir())

    @property
    def libraries(self) -> tuple[Path, ...]:
        """The folders of libraries that exist."""
        return tuple(folder for name in _LIBRARY_FOLDERS if (folder := self.root / name).is_dir())

    @property
    def complete(self) -> bool:
        """Whether cuBLAS is there, which ggml's CUDA backend is linked with, and which is a part of its own."""
        return (self.root / "include" / "cublas_v2.h").is_file() and any(
            (folder / "libcublas.so").exists() for folder in self.libraries
        )

    @property
    def driver_library(self) -> Path | None:
        """What a program that calls the driver itself is linked with: the toolkit's stub or the driver."""
        folders = [folder / "stubs" for folder in self.libraries]
        folders += [Path("/usr/lib/x86_64-linux-gnu"), Path("/usr/lib/aarch64-linux-gnu"), Path("/usr/lib64")]
        names = ("libcuda.so", "libcuda.so.1")
        return next((path for folder in folders for name in names if (path := folder / name).exists()), None)

    @property
    def release(self) -> str:
        """The version, as in `13.0`."""
        return ".".join(map(str, self.version))

    def __str__(self) -> str:
        return f"CUDA {self.release} in {self.root}"


def find(progress: Progress) -> Toolkit:
    """The machine's toolkit when it is complete; else the parts of PARTS, installed once for all checkouts of a user.

    The machine's is that of the variable CUDACXX or of nvcc on PATH. Raises MachineCannot.
    """
    nvcc = os.environ.get("CUDACXX") or shutil.which("nvcc")
    if nvcc:
        own = _describe(Path(nvcc))
        if own.complete:
            return own
        progress(f"{own} has no cuBLAS: its parts are taken from the package index instead")
    return _describe(_installed(progress) / "bin" / "nvcc")


def _describe(nvcc: Path) -> Toolkit:
    """Raises MachineCannot when `nvcc` does not run. nvcc on PATH may be a script, so that it is asked where it is."""
    try:
        version = subprocess.run([nvcc, "--version"], capture_output=True, text=True, timeout=60, check=False)
        dry = subprocess.run(
            [nvcc, "--dryrun", "-x", "cu", "-c", os.devnull, "-o", os.devnull],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as e:
        raise MachineCannot(f"{nvcc} does not run ({e}): install the CUDA toolkit again, or unset CUDACXX") from e
    release = re.search(r"release (\d+)\.(\d+)", version.stdout)
    top = re.search(r"^#\$ TOP=(.+)$", dry.stderr + dry.stdout, re.MULTILINE)
    if release is None or top is None:
        raise MachineCannot(f"{nvcc} does not say its version and folder: install the CUDA toolkit again")
    return Toolkit(nvcc, Path(top[1].strip()).resolve(), (int(release[1]), int(release[2])))


def _installed(progress: Progress) -> Path:
    """The folder of the parts, after they were installed with pip unless they are there.

    One folder for all checkouts: a compiler cache tells compilers apart by path and time, and it is 1.1 GB.
    """
    if not sys.platform.startswith("linux"):
        raise MachineCannot("no CUDA toolkit found (nvcc is not on PATH), and its packages are for Linux: install it")
    version = hashlib.sha256(PARTS.read_bytes()).hexdigest()[:12]
    folder = fork.Layout.default().cache.with_name("cuda-toolkit") / version
    if not folder.is_dir():
        progress(f"installing parts of the CUDA toolkit from the package index into {folder} (1.1 GB)")
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=folder.parent, prefix="install-") as scratch:
                made = Path(scratch) / version
                _install_into(made)
                # Whole or not at all; another process may have been first.
                if not folder.is_dir():
                    made.rename(folder)
        except OSError as e:
            if not folder.is_dir():
                raise MachineCannot(
                    f"cannot install the CUDA toolkit's parts into {folder}: {e.strerror}; free some space, or point"
                    f" XDG_CACHE_HOME to a writable folder"
                ) from e
    return folder / _ROOT


def _install_into(folder: Path) -> None:
    """Raises MachineCannot or OSError."""
    root = folder / _ROOT
    pip = [sys.executable, "-m", "pip", "install", "--disable-pip-version-check", "--quiet", "--no-deps"]
    done = subprocess.run(
        [*pip, "--target", str(folder), "-r", str(PARTS)], capture_output=True, text=True, check=False
    )
    if done.returncode != 0 or not (root / "include" / "cublas_v2.h").is_file():
        said = next((line for line in done.stderr.splitlines() if line.startswith("ERROR")), "no reason given")
        raise MachineCannot(
            f"no CUDA toolkit found (nvcc and cuBLAS), and pip could not install its parts ({said[:160]}): is there a"
            f" network? Or install the toolkit and put its nvcc on PATH"
        )
    for program in (*(root / "bin").iterdir(), *(root / "nvvm" / "bin").iterdir()):
        if program.is_file():
            program.chmod(program.stat().st_mode | 0o111)
    # The packages hold what a program loads, and not the names that a linker and nvcc look for.
    (root / "lib64").symlink_to("lib")
    for library in (root / "lib").glob("lib*.so.*"):
        library.with_name(library.name.partition(".so.")[0] + ".so").symlink_to(library.name)


def parse_architectures(spec: str | None, portable: bool) -> tuple[str, ...]:
    """CMake's names of the GPU architectures to compile for.

    spec:     `90`, `86,90` or `native`; None for this machine's GPUs, or EVERY_ARCHITECTURE where it has none.
    portable: None means EVERY_ARCHITECTURE then.
    Raises BadInput, or MachineCannot when `native` finds no GPU.
    """
    own = sorted({card.architecture for card in nvidia.cards()}) if spec in (None, "native") else []
    if spec == "native" and not own:
        raise MachineCannot("--cuda-arch native: no GPU found (nvidia-smi lists none): name one, as --cuda-arch 90")
    if spec is None and (portable or not own):
        return EVERY_ARCHITECTURE
    numbers = own if spec in (None, "native") else [_number(part) for part in str(spec).split(",")]
    return tuple(f"{number}-real" for number in sorted(set(numbers)))


def _number(text: str) -> int:
    if not re.fullmatch(r"\d{2,3}", text.strip()):
        raise BadInput(f"--cuda-arch {text!r} is no architecture: give numbers such as 75,86,90, or native")
    return int(text)


def checked(toolkit: Toolkit, architectures: tuple[str, ...]) -> tuple[str, ...]:
    """The architectures, once the toolkit has compiled for one with this machine's C++ compiler.

    Of EVERY_ARCHITECTURE, those that nvcc knows. Raises BadInput for any other that it does not know, and MachineCannot
    where it cannot compile.
    """
    listed = subprocess.run([toolkit.nvcc, "--list-gpu-arch"], capture_output=True, text=True, timeout=60, check=False)
    known = sorted({int(number) for number in re.findall(r"compute_(\d+)", listed.stdout)})
    unknown = [name for name in architectures if int(name.partition("-")[0]) not in known]
    if unknown and architectures != EVERY_ARCHITECTURE:
        raise BadInput(
            f"--cuda-arch {unknown[0].partition('-')[0]}: nvcc {toolkit.release} knows {', '.join(map(str, known))};"
            f" choose from these, or install another CUDA toolkit"
        )
    chosen = tuple(name for name in architectures if name not in unknown)
    if not chosen:
        raise MachineCannot(f"{toolkit.nvcc} knows no GPU that the kernels are for: install a newer CUDA toolkit")
    _compile(toolkit, int(chosen[0].partition("-")[0]))
    return chosen


def _compile(toolkit: Toolkit, architecture: int) -> None:
    """Compiles a kernel. Raises MachineCannot with the reason."""
    host = os.environ.get("CUDAHOSTCXX")
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "probe.cu"
        source.write_text(_PROBE, encoding="utf-8")
        argv = [str(toolkit.nvcc), f"-arch=sm_{architecture}", "-c", str(source), "-o", str(source.with_suffix(".o"))]
        done = subprocess.run(
            [*argv, *(["-ccbin", host] if host else [])], capture_output=True, text=True, timeout=300, check=False
        )
    if done.returncode == 0:
        return
    said = done.stderr + done.stdout
    if limit := re.search(r"unsupported \S+ version! (.+?versions? .+? not supported)", said):
        raise MachineCannot(
            f"nvcc {toolkit.release} does not take this C++ compiler ({limit[1]}): install another and name it, as"
            f" CUDAHOSTCXX=g++-14"
        )
    error = next((line.strip() for line in said.splitlines() if re.search(r"error|fatal|not found", line)), "no reason")
    raise MachineCannot(f"nvcc cannot compile here: {error[:160]}; install g++ or name one with CUDAHOSTCXX")


def cmake_options(toolkit: Toolkit, architectures: Sequence[str]) -> list[str]:
    """What CMake must be told to build ggml's CUDA backend with this toolkit."""
    options = {
        "GGML_CUDA": "ON",
        "CMAKE_CUDA_COMPILER": str(toolkit.nvcc),
        "CUDAToolkit_ROOT": str(toolkit.root),
        "CMAKE_CUDA_ARCHITECTURES": ";".join(architectures),
        # CMake takes nvcc's own folder for one that the system searches, and leaves it out.
        "CMAKE_BUILD_RPATH": ";".join(map(str, toolkit.libraries)),
    }
    if driver := toolkit.driver_library:
        options["CUDA_cuda_driver_LIBRARY"] = str(driver)
    else:
        # ggml's pool of virtual memory calls the driver's own library.
        options["GGML_CUDA_NO_VMM"] = "ON"
    return [f"-D{name}={value}" for name, value in options.items()]


def main() -> int:
    """Prints nvcc's path, then one folder of headers a line."""
    try:
        toolkit = find(lambda text: print(text, file=sys.stderr))
    except ToolError as e:
        print(f"error: {e.message}", file=sys.stderr)
        return e.exit_code
    print(toolkit.nvcc, *toolkit.includes, sep="\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
