"""`turbokv-eval build --backend cuda` with stand-ins for nvcc, pip, CMake and the compilers."""

import sys
from pathlib import Path

import pytest
from test_tools_build import Machine, fails, invoke, machine

from turbokv_eval.machine import cuda_toolkit, nvidia

__all__ = ["machine"]

# The fixture `machine` hides it.
PYTHON = sys.executable

# Knows sm_75 to sm_120; says what the file `refuse` beside it holds instead of compiling.
_NVCC = """#!{python}
import os, sys
here, args = os.path.dirname(os.path.abspath(__file__)), sys.argv[1:]
if "--version" in args:
    print("Cuda compilation tools, release {version}, V{version}.88")
elif "--dryrun" in args:
    print("#$ _HERE_=" + here + "\\n#$ TOP=" + here + "/..", file=sys.stderr)
elif "--list-gpu-arch" in args:
    print("\\n".join("compute_%d" % n for n in (75, 80, 86, 89, 90, 100, 120) if n <= {newest}))
else:
    open(os.path.join(here, "compiled.txt"), "a").write(" ".join(args) + "\\n")
    refuse = os.path.join(here, "refuse")
    if os.path.exists(refuse):
        sys.exit(open(refuse).read())
"""


class Cuda:
    """A toolkit in the folder cuda; on PATH, after use()."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.root = machine.root / "cuda"
        for name in ("bin", "include", "lib64"):
            (self.root / name).mkdir(parents=True)
        (self.root / "include" / "cublas_v2.h").touch()
        (self.root / "lib64" / "libcublas.so").touch()
        self.nvcc = self.root / "bin" / "nvcc"
        self.write()

    def write(self, version: str = "13.0", newest: int = 120) -> None:
        self.nvcc.write_text(_NVCC.format(python=PYTHON, version=version, newest=newest))
        self.nvcc.chmod(0o755)

    def use(self) -> None:
        self.machine.add("nvcc", f'#!/bin/sh\nexec {self.nvcc} "$@"\n')

    @property
    def compiled(self) -> str:
        return (self.root / "bin" / "compiled.txt").read_text()


@pytest.fixture
def cuda(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> Cuda:
    monkeypatch.setattr(nvidia, "cards", lambda: [])
    for variable in ("CUDACXX", "CUDAHOSTCXX"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(cuda_toolkit.Toolkit, "driver_library", None)
    return Cuda(machine)


def test_a_complete_toolkit_on_path_is_used(cuda: Cuda) -> None:
    cuda.use()
    result = invoke("--backend", "cuda", "--cuda-arch", "90,86")
    assert result.exit_code == 0, result.stderr
    assert result.stdout.strip() == str(cuda.machine.root / "build" / "cuda" / "bin")
    configure = cuda.machine.calls[0]
    for option in (
        "-DGGML_CUDA=ON",
        f"-DCUDAToolkit_ROOT={cuda.root}",
        "-DCMAKE_CUDA_ARCHITECTURES=86-real;90-real",
        "-DGGML_CUDA_NO_VMM=ON",
        f"-DCMAKE_BUILD_RPATH={cuda.root / 'lib64'}",
        "-DGGML_NATIVE=ON",
    ):
        assert option in configure.split()
    assert "-arch=sm_86" in cuda.compiled
    assert "CUDA 13.0 in" in result.stderr


def test_the_cpu_build_is_untouched(cuda: Cuda) -> None:
    cuda.use()
    invoke()
    assert "CUDA" not in cuda.machine.calls[0]
    assert f"-B {cuda.machine.root / 'build' / 'cpu'}" in cuda.machine.calls[0]


def test_ccache_and_the_driver_library(cuda: Cuda, monkeypatch: pytest.MonkeyPatch) -> None:
    cuda.use()
    cuda.machine.add("ccache", "#!/bin/sh\n")
    monkeypatch.setattr(cuda_toolkit.Toolkit, "driver_library", Path("/usr/lib64/libcuda.so.1"))
    invoke("--backend", "cuda", "--cuda-arch", "90")
    assert f"-DCMAKE_CUDA_COMPILER_LAUNCHER={cuda.machine.tools / 'ccache'}" in cuda.machine.calls[0]
    assert "-DCUDA_cuda_driver_LIBRARY=/usr/lib64/libcuda.so.1" in cuda.machine.calls[0]
    assert "NO_VMM" not in cuda.machine.calls[0]


def test_architectures_by_default(cuda: Cuda, monkeypatch: pytest.MonkeyPatch) -> None:
    cuda.use()
    everything = "-DCMAKE_CUDA_ARCHITECTURES=" + ";".join(cuda_toolkit.EVERY_ARCHITECTURE)
    invoke("--backend", "cuda")
    assert everything in cuda.machine.calls[0]
    monkeypatch.setattr(nvidia, "cards", lambda: [nvidia.Card("H200", "580", 90), nvidia.Card("L4", "580", 89)])
    invoke("--backend", "cuda")
    assert "-DCMAKE_CUDA_ARCHITECTURES=89-real;90-real" in cuda.machine.calls[2]
    invoke("--backend", "cuda", "--cuda-arch", "native", "--portable")
    assert "-DCMAKE_CUDA_ARCHITECTURES=89-real;90-real" in cuda.machine.calls[4]
    invoke("--backend", "cuda", "--portable")
    assert everything in cuda.machine.calls[6]


def test_an_older_toolkit_builds_what_it_knows(cuda: Cuda) -> None:
    cuda.write("12.4", newest=90)
    cuda.use()
    invoke("--backend", "cuda")
    assert (
        "-DCMAKE_CUDA_ARCHITECTURES=75-virtual;80-virtual;86-real;89-real;90-virtual" in cuda.machine.calls[0].split()
    )
    cuda.write("11.0", newest=70)
    fails(invoke("--backend", "cuda"), 3, "knows no GPU that the kernels are for: install a newer CUDA toolkit")


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (("--cuda-arch", "74"), 2, r"--cuda-arch 74: nvcc 13.0 knows 75, 80, .*, 120; choose from these"),
        (("--cuda-arch", "hopper"), 2, r"--cuda-arch 'hopper' is no architecture: give numbers such as"),
        (("--cuda-arch", "9.0"), 2, r"--cuda-arch '9.0' is no architecture"),
        (("--cuda-arch", "native"), 3, r"no GPU found .*: name one, as --cuda-arch 90"),
        (("--sanitize", "address"), 2, "--sanitize is for the processor's code"),
    ],
)
def test_what_cannot_be_built(cuda: Cuda, args: tuple[str, ...], code: int, said: str) -> None:
    cuda.use()
    fails(invoke("--backend", "cuda", *args), code, said)
    assert cuda.machine.calls == []


def test_an_architecture_without_the_backend(cuda: Cuda) -> None:
    fails(invoke("--cuda-arch", "90"), 2, "--cuda-arch needs --backend cuda")


@pytest.mark.parametrize(
    ("refusal", "said"),
    [
        (
            "crt/host_config.h:129:2: error: #error -- unsupported GNU version! gcc versions later than 15 are not"
            " supported! The nvcc flag '-allow-unsupported-compiler' can be used",
            r"does not take this C\+\+ compiler \(gcc versions later than 15 are not supported\).*CUDAHOSTCXX=g",
        ),
        ("nvcc fatal   : Failed to preprocess host compiler properties.", r"nvcc cannot compile here: nvcc fatal"),
    ],
)
def test_a_host_compiler_that_nvcc_refuses(cuda: Cuda, refusal: str, said: str) -> None:
    cuda.use()
    (cuda.root / "bin" / "refuse").write_text(refusal)
    fails(invoke("--backend", "cuda", "--cuda-arch", "90"), 3, said)
    assert cuda.machine.calls == []


def test_the_host_compiler_can_be_named(cuda: Cuda, monkeypatch: pytest.MonkeyPatch) -> None:
    cuda.use()
    invoke("--backend", "cuda", "--cuda-arch", "90")
    monkeypatch.setenv("CUDAHOSTCXX", "g++-14")
    invoke("--backend", "cuda", "--cuda-arch", "90")
    assert "-ccbin g++-14" in cuda.compiled
    assert sum("-S" in call.split() for call in cuda.machine.calls) == 2


def test_an_nvcc_that_does_not_run(cuda: Cuda, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDACXX", str(cuda.machine.root / "none"))
    fails(invoke("--backend", "cuda"), 3, "none does not run .*unset CUDACXX")
    cuda.machine.add("nvcc", "#!/bin/sh\n")
    monkeypatch.delenv("CUDACXX")
    fails(invoke("--backend", "cuda"), 3, "does not say its version and folder")


class Index:
    """pip: leaves what the packages hold, or the error in `fail`."""

    def __init__(self, cuda: Cuda) -> None:
        self.calls = cuda.machine.root / "pip.txt"
        self.fail = cuda.machine.root / "fail-pip"
        nvcc = _NVCC.format(python=PYTHON, version="13.0", newest=120)
        python = cuda.machine.root / "venv" / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.write_text(
            f"""#!{PYTHON}
import os, sys
args, root = sys.argv[1:], sys.argv[sys.argv.index("--target") + 1] + "/nvidia/cu13/"
open({str(self.calls)!r}, "a").write(" ".join(args) + "\\n")
if os.path.exists({str(self.fail)!r}):
    sys.exit(open({str(self.fail)!r}).read())
for name, text in (("bin/nvcc", {nvcc!r}), ("nvvm/bin/cicc", ""), ("include/cublas_v2.h", ""),
                   ("lib/libcublas.so.13", ""), ("lib/libcudart.so.13", "")):
    os.makedirs(os.path.dirname(root + name), exist_ok=True)
    open(root + name, "w").write(text)
"""
        )
        python.chmod(0o755)


@pytest.fixture
def index(cuda: Cuda) -> Index:
    return Index(cuda)


@pytest.mark.parametrize("nvcc", [False, True])
def test_parts_come_from_the_package_index_once(
    cuda: Cuda, index: Index, monkeypatch: pytest.MonkeyPatch, nvcc: bool
) -> None:
    # Debian's and NVIDIA's packages of nvcc alone have no cuBLAS.
    if nvcc:
        (cuda.root / "lib64" / "libcublas.so").unlink()
        cuda.use()
    result = invoke("--backend", "cuda", "--cuda-arch", "90")
    assert result.exit_code == 0, result.stderr
    [folder] = (cuda.machine.root / "cuda-toolkit").iterdir()
    root = folder / "nvidia" / "cu13"
    assert f"-DCMAKE_CUDA_COMPILER={root / 'bin' / 'nvcc'}" in cuda.machine.calls[0]
    assert ("has no cuBLAS" in result.stderr) == nvcc
    assert (root / "lib64" / "libcublas.so").resolve() == root / "lib" / "libcublas.so.13"
    assert index.calls.read_text().count("--no-deps") == 1
    invoke("--backend", "cuda", "--cuda-arch", "90")
    assert index.calls.read_text().count("--no-deps") == 1
    # Other parts are another toolkit, and the first one stays.
    parts = cuda.machine.root / "parts.txt"
    parts.write_text("nvidia-cuda-nvcc==12.0\n")
    monkeypatch.setattr(cuda_toolkit, "PARTS", parts)
    assert invoke("--backend", "cuda", "--cuda-arch", "90").exit_code == 0
    assert index.calls.read_text().count("--no-deps") == 2
    assert len(list((cuda.machine.root / "cuda-toolkit").iterdir())) == 2


def test_no_toolkit_and_no_network(cuda: Cuda, index: Index) -> None:
    index.fail.write_text("WARNING: Retrying\nERROR: Could not find a version that satisfies nvidia-cublas==13.1.1.3")
    fails(invoke("--backend", "cuda"), 3, r"no CUDA toolkit found .*ERROR: Could not find .*is there a network\?")
    assert list((cuda.machine.root / "cuda-toolkit").iterdir()) == []
    index.fail.unlink()
    assert invoke("--backend", "cuda").exit_code == 0


def test_the_parts_cannot_be_kept(cuda: Cuda, index: Index) -> None:
    (cuda.machine.root / "cuda-toolkit").write_text("")
    fails(invoke("--backend", "cuda"), 3, r"cannot install the CUDA toolkit's parts .*: File exists; .*XDG_CACHE_HOME")
    assert not index.calls.exists()


def test_the_script_form(cuda: Cuda, capsys: pytest.CaptureFixture[str]) -> None:
    cuda.use()
    (cuda.root / "include" / "cccl").mkdir()
    assert cuda_toolkit.main() == 0
    assert capsys.readouterr().out.splitlines() == [
        str(cuda.machine.tools / "nvcc"),
        str(cuda.root / "include"),
        str(cuda.root / "include" / "cccl"),
    ]
    cuda.machine.add("nvcc", "#!/bin/sh\n")
    assert cuda_toolkit.main() == 3
    assert capsys.readouterr().err.startswith("error: ")
