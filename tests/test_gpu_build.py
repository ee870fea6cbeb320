"""What `doctor` says of GPUs: the driver's answer, what the programs see, what they were built for."""

import json
import sys
from pathlib import Path

import pytest

from turbokv_eval.fork import Layout
from turbokv_eval.machine import build, gpu_build, nvidia
from turbokv_eval.machine.build import Options

H200 = nvidia.Card("NVIDIA H200", "580.65.06", 90)
RTX_5090 = nvidia.Card("NVIDIA GeForce RTX 5090", "580.65.06", 120)


class Folder:
    """Programs of a build."""

    def __init__(self, root: Path) -> None:
        self.bin = root / "cuda" / "bin"
        self.bin.mkdir(parents=True)
        self.devices("(none)")

    def devices(self, found: str) -> None:
        program = self.bin / "llama-bench"
        program.write_text(f"#!{sys.executable}\nprint('Available devices:\\n  {found}')\n")
        program.chmod(0o755)

    def cuda(self, architectures: str, symbol: str = "_Z23ggml_cuda_turbo_computeR25") -> None:
        (self.bin / "libggml-cuda.so").write_bytes(b"\x7fELF" + bytes(4096) + symbol.encode())
        stamp = [["cmake", f"-DCMAKE_CUDA_ARCHITECTURES={architectures}"], None, None, None]
        (self.bin.parent / "turbokv-options.json").write_text(json.dumps(stamp))

    def says(self) -> tuple[str, str, str]:
        return gpu_build.examine(self.bin)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    monkeypatch.setattr(nvidia, "cards", lambda: [])
    layout = Layout(source=tmp_path / "llama.cpp", build=tmp_path, cache=tmp_path / "cache")
    monkeypatch.setattr(Layout, "default", classmethod(lambda cls: layout))
    return Folder(tmp_path)


def with_cards(monkeypatch: pytest.MonkeyPatch, *cards: nvidia.Card) -> None:
    monkeypatch.setattr(nvidia, "cards", lambda: list(cards))


def test_a_cpu_build(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    assert folder.says() == ("ok", "none: everything runs on the processor", "")
    with_cards(monkeypatch, H200)
    verdict, found, way_out = folder.says()
    assert (verdict, found) == (
        "warn",
        "NVIDIA H200 (sm_90, driver 580.65.06), which this build does not use",
    )
    assert "turbokv-eval build --backend cuda" in way_out
    for name in build.PROGRAMS:
        (folder.bin / name).touch(mode=0o755)
    assert folder.says()[2] == f"use the CUDA build: --bin {folder.bin}"
    folder.devices("Vulkan0: a card (1 MiB, 1 MiB free)")
    assert folder.says() == ("ok", "Vulkan0: a card (1 MiB, 1 MiB free)", "")


def test_a_cuda_build_and_its_gpu(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.cuda("90-real")
    folder.devices("CUDA0: NVIDIA H200 (141000 MiB, 140000 MiB free)")
    with_cards(monkeypatch, H200)
    verdict, found, _ = folder.says()
    assert verdict == "ok"
    assert found.startswith("CUDA0: NVIDIA H200")
    assert "turbo kernels for 90-real" in found
    assert "driver 580.65.06" in found


def test_a_cuda_build_without_a_gpu(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    folder.cuda("75-virtual;90-real")
    verdict, found, way_out = folder.says()
    assert (verdict, way_out) == ("warn", "install the NVIDIA driver, or use the CPU build")
    assert found == "turbo kernels for 75-virtual, 90-real, but no GPU: everything runs on the processor"
    # The driver lists a card that the programs cannot have: it is older than the toolkit.
    with_cards(monkeypatch, H200)
    assert "update the NVIDIA driver" in folder.says()[2]


@pytest.mark.parametrize(
    ("built", "card", "runs"),
    [
        ("90-real", H200, True),
        ("86-real", H200, False),
        ("86-virtual", H200, True),
        ("75-virtual;89-real", H200, True),
        ("120-real", H200, False),
        ("120-real", RTX_5090, True),
        ("90-real", RTX_5090, False),
        ("80-real", nvidia.Card("RTX 3090", "580", 86), True),
        ("86-real", nvidia.Card("A100", "580", 80), False),
        ("120-real", nvidia.Card("DGX Spark", "580", 121), False),
    ],
)
def test_kernels_must_be_for_the_card(
    folder: Folder, monkeypatch: pytest.MonkeyPatch, built: str, card: nvidia.Card, runs: bool
) -> None:
    folder.cuda(built)
    folder.devices(f"CUDA0: {card.name} (1 MiB, 1 MiB free)")
    with_cards(monkeypatch, card)
    verdict, _, way_out = folder.says()
    assert verdict == ("ok" if runs else "fail")
    if not runs:
        assert way_out == f"`turbokv-eval build --backend cuda --cuda-arch {card.architecture}`"


@pytest.mark.parametrize("symbol", ["ggml_backend_cuda_init", ""])
def test_a_cuda_backend_that_is_not_the_forks(folder: Folder, symbol: str) -> None:
    folder.cuda("90-real", symbol)
    if not symbol:
        (folder.bin / "libggml-cuda.so").write_bytes(b"")
    assert folder.says()[:2] == ("fail", "libggml-cuda.so has no kernels for turbo types")


def test_architectures_are_those_of_the_build(tmp_path: Path) -> None:
    assert build.cuda_architectures(tmp_path / "bin") == ()
    (tmp_path / "turbokv-options.json").write_text(json.dumps([Options().cmake(), None, None, None]))
    assert build.cuda_architectures(tmp_path / "bin") == ()


def test_cards_are_read_from_the_driver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tool = tmp_path / "nvidia-smi"
    monkeypatch.setenv("PATH", str(tmp_path))

    def answer(text: str, code: int = 0) -> list[nvidia.Card]:
        tool.write_text(f"#!{sys.executable}\nprint({text!r}); raise SystemExit({code})\n")
        tool.chmod(0o755)
        return nvidia.cards()

    assert nvidia.cards() == []
    assert answer("NVIDIA H200, 580.65.06, 9.0\nNVIDIA GeForce RTX 5090, 580.65.06, 12.0") == [H200, RTX_5090]
    assert answer("NVIDIA-SMI has failed because it could not communicate with the driver", 9) == []
    assert answer("NVIDIA H200, 450.1, [N/A]") == []
