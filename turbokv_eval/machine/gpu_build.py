"""Which GPUs the programs of a build can use, and whether its turbo kernels are for them."""

import mmap
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

from turbokv_eval.machine import build, nvidia, runner


def examine(folder: Path) -> tuple[Literal["ok", "warn", "fail"], str, str]:
    """Verdict, what was found and what to do, of the programs in `folder`."""
    done = runner.run([folder / "llama-bench", "--list-devices"], timeout=120)
    section = done.output.partition("Available devices:")[2]
    devices = [line.strip() for line in section.splitlines() if line.strip() and "(none)" not in line]
    cards = nvidia.cards()
    shown = "; ".join(f"{card.name} (sm_{card.architecture}, driver {card.driver})" for card in cards)
    library = next(iter(sorted(folder.glob("libggml-cuda.*"))), None)
    if library is None:
        if devices:
            return "ok", "; ".join(devices), ""
        if cards:
            return "warn", f"{shown}, which this build does not use", _other_build()
        return "ok", "none: everything runs on the processor", ""
    if not has_turbo_kernels(library):
        return "fail", f"{library.name} has no kernels for turbo types", "`turbokv-eval build --backend cuda`"
    built = build.cuda_architectures(folder)
    build_of = f"turbo kernels for {', '.join(built) or 'architectures that are not told'}"
    if not devices:
        why = f"{shown}, which the driver does not offer to it" if cards else "no GPU"
        way_out = (
            "update the NVIDIA driver: CUDA 13 needs 580 or newer"
            if cards
            else "install the NVIDIA driver, or use the CPU build"
        )
        return "warn", f"{build_of}, but {why}: everything runs on the processor", way_out
    if built and (alien := [card for card in cards if not _runs(built, card.architecture)]):
        return (
            "fail",
            f"{build_of}, and {alien[0].name} is sm_{alien[0].architecture}",
            f"`turbokv-eval build --backend cuda --cuda-arch {alien[0].architecture}`",
        )
    return "ok", f"{'; '.join(devices)}; {build_of}{f'; {shown}' if shown else ''}", ""


def _other_build() -> str:
    """What to do on a machine with a GPU about a build without CUDA."""
    there = build.default_bin("cuda")
    if not build.missing_programs(there, build.PROGRAMS):
        return f"use the CUDA build: --bin {there}"
    return "`turbokv-eval build --backend cuda`, then --bin with the folder that it prints"


def has_turbo_kernels(library: Path) -> bool:
    """Whether a built CUDA backend is the fork's. Read in its names: a machine without a GPU cannot ask it."""
    if library.stat().st_size == 0:
        return False
    with library.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        return data.find(b"ggml_cuda_turbo_compute") >= 0


def _runs(built: Iterable[str], card: int) -> bool:
    """Whether code for one of these architectures runs on a card: the same major version, or PTX of an older one."""
    for entry in built:
        number, _, kind = entry.partition("-")
        major, minor = divmod(int(number), 10)
        # code of "architecture-specific" 12x (llama.cpp makes it so) runs on no other one
        if kind == "real" and (card == int(number) if major == 12 else major == card // 10 and minor <= card % 10):
            return True
        if kind != "real" and int(number) <= card:
            return True
    return False
