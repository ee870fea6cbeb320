"""ci/gpu_pack.py on a build of small programs: the package runs in an empty folder; what must not be packed is not."""

import json
import os
import re
import subprocess
import sys
import tarfile
from pathlib import Path

import pytest

# needs a C compiler
pytestmark = pytest.mark.live

PACK = Path("ci/gpu_pack.py").resolve()
PROGRAMS = ("llama-bench", "llama-perplexity", "test-backend-ops")
# Stand-ins: a backend that calls cuBLAS, which has versioned symbols, and the CUDA runtime.
BACKEND = """
#include <stdio.h>
int cublasCreate_v2(void ** handle);
const char * cublasGetStatusString(int status);
int cudart_works(void);
int backend(void) {
    void * handle;
    int status = cublasCreate_v2(&handle);
    printf("cudart %d, cuBLAS %d: %s\\n", cudart_works(), status, cublasGetStatusString(status));
    return status;
}
"""
CUBLAS = """
int cublasCreate_v2(void ** handle) { return 0; }
const char * cublasGetStatusString(int status) { return "the real one"; }
"""


def cc(source: str, out: Path, *options: str) -> None:
    code = out.with_suffix(".c")
    code.write_text(source)
    subprocess.run(["cc", "-w", str(code), "-o", str(out), *options], check=True)
    code.unlink()


class Build:
    """bin: a CUDA build; toolkit: the libraries it is linked with, which a machine with a GPU does not have."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.bin = root / "build" / "bin"
        self.toolkit = root / "toolkit"
        for folder in (self.bin, self.toolkit):
            folder.mkdir(parents=True)
        script = root / "cublas.map"
        script.write_text("libcublas.so.13 { global: *; };\n")
        self.library("libcublas.so.13", CUBLAS, self.toolkit, f"-Wl,--version-script={script}")
        self.library("libcudart.so.13", "int cudart_works(void) { return 1; }", self.toolkit)
        links = [str(self.toolkit / name) for name in ("libcublas.so.13", "libcudart.so.13")]
        self.library("libggml-cuda.so.0", BACKEND, self.bin, *links, f"-Wl,-rpath,{self.toolkit}")
        for name in PROGRAMS:
            main = "int backend(void); int main(void) { return backend(); }"
            cc(main, self.bin / name, str(self.bin / "libggml-cuda.so.0"), f"-Wl,-rpath,{self.bin}:{self.toolkit}")
        self.configured(native="OFF")

    def library(self, name: str, source: str, folder: Path, *options: str) -> None:
        cc(source, folder / name, "-shared", "-fPIC", f"-Wl,-soname,{name}", *options)

    def configured(self, native: str) -> None:
        argv = ["cmake", f"-DGGML_NATIVE={native}"]
        (self.bin.parent / "turbokv-options.json").write_text(json.dumps([argv, None, None, None]))

    def pack(self, *options: str) -> subprocess.CompletedProcess[str]:
        argv = [sys.executable, str(PACK), str(self.bin), str(self.root / "out.tar.gz"), *PROGRAMS, *options]
        return subprocess.run(argv, capture_output=True, text=True, timeout=120)

    def unpack(self) -> Path:
        with tarfile.open(self.root / "out.tar.gz") as tar:
            tar.extractall(self.root / "elsewhere", filter="data")
        return self.root / "elsewhere" / "turbo-gpu"


@pytest.fixture
def built(tmp_path: Path) -> Build:
    return Build(tmp_path)


def run(program: Path, *folders: Path) -> str:
    environment = {"PATH": os.environ["PATH"], "LD_LIBRARY_PATH": ":".join(map(str, folders))}
    done = subprocess.run([program], env=environment, capture_output=True, text=True)
    return done.stdout + done.stderr


def test_what_is_packed_runs_elsewhere(built: Build) -> None:
    done = built.pack()
    assert done.returncode == 0, done.stderr
    assert re.search(
        r"out\.tar\.gz: 0\.\d MiB, unpacked .* files\nthe machine must have: libc\.so\.6$", done.stdout.strip()
    )
    there = built.unpack()
    assert {p.name for p in there.iterdir()} == {"bin", "gpu.sh", "gpu_model.py"}
    stub = there / "bin" / "no-cublas"
    assert {p.name for p in stub.iterdir()} == {"libcublas.so.13"}
    # nothing of this machine is searched any more
    (built.root / "toolkit").rename(built.root / "gone")
    assert "libggml-cuda.so.0" in run(there / "bin" / "llama-bench")
    said = run(there / "bin" / "llama-bench", there / "bin", stub)
    assert said.startswith("cudart 1, cuBLAS 15: cuBLAS is not in this package: put a folder with libcublas.so.13"), (
        said
    )
    assert "the real one" in run(there / "bin" / "llama-bench", there / "bin", built.root / "gone", stub)


def test_a_package_cannot_be_packed(built: Build) -> None:
    built.pack()
    there = built.unpack()
    argv = ["sh", str(there / "gpu.sh"), "--pack", str(there / "bin"), "x.tar.gz"]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (2, "error: a package cannot be packed again: use the sources\n")


def test_what_cannot_be_packed(built: Build) -> None:
    built.configured(native="ON")
    done = built.pack()
    assert done.returncode == 2
    assert "is built for this processor only: turbokv-eval build --backend cuda --portable" in done.stderr
    built.configured(native="OFF")
    done = built.pack("--max-mib", "0")
    assert done.returncode == 1
    assert re.fullmatch(r"error: .*out\.tar\.gz has 0\.\d MiB, more than 0\n", done.stderr)
    (built.toolkit / "libcudart.so.13").unlink()
    done = built.pack()
    assert done.returncode == 1
    assert "libggml-cuda.so.0 needs libcudart.so.13, which is neither beside it nor on this machine" in done.stderr
    (built.bin / "libggml-cuda.so.0").unlink()
    done = built.pack()
    assert done.returncode == 2
    assert "has no libggml-cuda: it is no CUDA build" in done.stderr
    (built.bin / "llama-bench").unlink()
    assert "has no llama-bench: turbokv-eval build" in built.pack().stderr
