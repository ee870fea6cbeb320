"""Compares the occupancy that the kernels' head comments plan with the one that the compiler's figures give.

A head comment has a table, one kernel or more a line; the first line that matches a kernel's name counts:

    // Occupancy kernel              threads  dynamic shared  sm_75  sm_90
    //           turbo_fattn_mma<64>     256           36864      -      2

threads a block, bytes of dynamic shared memory a block at most, and the blocks that a multiprocessor holds (`-`: no
kernel there). Registers and static shared memory are those of tests/cuda/resources.csv, which ci/cuda_report.py
compares with the compiler. With --launches, threads and dynamic shared memory are compared with what the emulator ran.

Usage: cuda_occupancy.py [--sources DIR] [--table CSV] [--launches FILE]; ci/cuda-check.sh calls it.
"""

import argparse
import csv
import re
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

SOURCES = Path("llama.cpp/overlay/ggml/src/ggml-cuda/turbo")
TABLE = Path("tests/cuda/resources.csv")
WARP = 32
# A register allocation is made for a whole warp, in this many registers, and warps are spread over 4 schedulers.
REGISTER_UNIT, WARP_UNIT = 256, 4
MAX_SHARED = 100 * 1024


@dataclass(frozen=True)
class Multiprocessor:
    """What a multiprocessor has: CUDA C++ Programming Guide, technical specifications per compute capability.

    shared and reserved in bytes: of all blocks together, and what the system takes of it for every block; unit: bytes
    that shared memory is allocated in.
    """

    registers: int
    threads: int
    blocks: int
    shared: int
    reserved: int
    unit: int


MULTIPROCESSORS = {
    "sm_75": Multiprocessor(65536, 1024, 16, 64 * 1024, 0, 256),
    "sm_80": Multiprocessor(65536, 2048, 32, 164 * 1024, 1024, 128),
    "sm_86": Multiprocessor(65536, 1536, 16, 100 * 1024, 1024, 128),
    "sm_89": Multiprocessor(65536, 1536, 24, 100 * 1024, 1024, 128),
    "sm_90": Multiprocessor(65536, 2048, 32, 228 * 1024, 1024, 128),
}


@dataclass(frozen=True)
class Plan:
    """A line of a head comment. blocks: by architecture; None where there is no kernel."""

    unit: str
    kernel: str
    threads: int
    dynamic: int
    blocks: dict[str, int | None]


def round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


def occupancy(arch: str, threads: int, registers: int, shared: int) -> int:
    """Blocks that a multiprocessor holds at a time.

    registers: of a thread. shared: bytes of a block, static and dynamic. Raises KeyError for an unknown architecture.
    """
    sm = MULTIPROCESSORS[arch]
    warps = -(-threads // WARP)
    resident = sm.registers // round_up(registers * WARP, REGISTER_UNIT) // WARP_UNIT * WARP_UNIT
    by_registers = resident // round_up(warps, WARP_UNIT)
    by_threads = sm.threads // (warps * WARP)
    by_shared = sm.shared // max(1, round_up(shared + sm.reserved, sm.unit))
    return min(sm.blocks, by_registers, by_threads, by_shared)


def parse_plans(text: str, unit: str) -> list[Plan]:
    """The lines of the occupancy table in a head comment; none when there is no table. Raises ValueError."""
    plans: list[Plan] = []
    archs: list[str] = []
    for line in text.splitlines():
        if match := re.match(r"// Occupancy\s+kernel\s+threads\s+dynamic shared\s+(sm_\d+(?:\s+sm_\d+)*)$", line):
            archs = match[1].split()
        elif archs and (match := re.match(r"//\s+(\w+(?:<\S+>)?)\s+(\d+)\s+(\d+)((?:\s+(?:\d+|-))+)$", line)):
            blocks = [None if word == "-" else int(word) for word in match[4].split()]
            if len(blocks) != len(archs):
                raise ValueError(f"{unit}: {match[1]} has {len(blocks)} figures for {len(archs)} architectures")
            plans.append(Plan(unit, match[1], int(match[2]), int(match[3]), dict(zip(archs, blocks, strict=True))))
        elif archs:
            break
    if archs and not plans:
        raise ValueError(f"{unit}: the table of occupancy has no line that can be read")
    return plans


def read_plans(sources: Path) -> list[Plan]:
    files = sorted([*sources.glob("*.cu"), *sources.glob("*.cuh")])
    return [plan for path in files for plan in parse_plans(path.read_text(encoding="utf-8"), path.name)]


def compare(plans: list[Plan], rows: Iterable[dict[str, str]]) -> list[str]:
    """What differs, one line each. rows: of the table of resources."""
    problems = []
    used = set()
    for row in rows:
        kernel, arch = row["kernel"], row["arch"]
        at = f"{kernel} ({arch})"
        plan = next((p for p in plans if fnmatchcase(kernel, p.kernel)), None)
        if plan is None or arch not in plan.blocks:
            problems.append(f"{at}: no head comment plans its occupancy")
            continue
        used.add((plan.unit, plan.kernel))
        planned = plan.blocks[arch]
        if planned is None:
            continue
        shared = int(row["shared"]) + plan.dynamic
        if shared > MAX_SHARED:
            problems.append(f"{at}: a block has {shared} bytes of shared memory, more than {MAX_SHARED}")
        found = occupancy(arch, plan.threads, int(row["registers"]), shared)
        if found != planned:
            problems.append(
                f"{at}: {plan.unit} plans {planned} blocks a multiprocessor, {row['registers']} registers and {shared}"
                f" bytes of shared memory allow {found}"
            )
    problems += [f"{p.unit}: no kernel is called {p.kernel}" for p in plans if (p.unit, p.kernel) not in used]
    return problems


def compare_launches(plans: list[Plan], launches: set[tuple[str, int, int]]) -> list[str]:
    """What differs, one line each. launches: kernel without template arguments, threads, bytes of dynamic memory.

    Every planned figure must have been launched, and nothing that is not planned.
    """
    problems = []
    for kernel in sorted({p.kernel.partition("<")[0] for p in plans}):
        planned = [p for p in plans if p.kernel.partition("<")[0] == kernel]
        # Launch code that has a pointer calls it by the start of the name.
        seen = {(threads, dynamic) for name, threads, dynamic in launches if kernel.startswith(name)}
        most = max(p.threads for p in planned)
        for p in planned:
            if (p.threads, p.dynamic) not in seen:
                problems.append(f"{p.kernel}: no block of {p.threads} threads and {p.dynamic} bytes was launched")
        for threads, dynamic in sorted(seen):
            allowed = [p.dynamic for p in planned if p.threads == threads or (len(planned) == 1 and threads < most)]
            if not allowed or dynamic > max(allowed):
                problems.append(f"{kernel}: a block of {threads} threads and {dynamic} bytes was launched")
    return problems


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sources", type=Path, default=SOURCES)
    parser.add_argument("--table", type=Path, default=TABLE)
    parser.add_argument("--launches", type=Path, help="what the emulator launched: kernel, threads, bytes a line")
    args = parser.parse_args()
    plans = read_plans(args.sources)
    with args.table.open(newline="", encoding="utf-8") as f:
        rows = list(csv.DictReader(f))
    problems = compare(plans, rows)
    if args.launches:
        lines = [line.split() for line in args.launches.read_text(encoding="utf-8").splitlines()]
        problems += compare_launches(plans, {(name, int(threads), int(dynamic)) for name, threads, dynamic in lines})
    for problem in problems:
        print(f"error: {problem}", file=sys.stderr)
    print(f"occupancy: {len(rows)} kernels against {len(plans)} planned figures, {len(problems)} differences")
    return 1 if problems or not plans or not rows else 0


if __name__ == "__main__":
    raise SystemExit(main())
