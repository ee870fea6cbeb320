"""ci/cuda_occupancy.py: known occupancies, the head comments of the real kernels, and what it must notice."""

import csv
import re
import subprocess
import sys
from pathlib import Path

import cuda_occupancy as tool
import pytest

HEAD = """// Attention.
//
// Occupancy kernel          threads  dynamic shared  sm_75  sm_90
//           turbo_a<*,2>        256               0      2      2
//           turbo_a<*>          384            1024      1      1
//           turbo_b             128               0      -     12

#include "x.cuh"
"""
ROWS = [
    {"kernel": "turbo_a<0,2>", "arch": "sm_90", "registers": "128", "shared": "4096"},
    {"kernel": "turbo_a<0,4>", "arch": "sm_75", "registers": "168", "shared": "40000"},
    {"kernel": "turbo_b", "arch": "sm_75", "registers": "24", "shared": "0"},
    {"kernel": "turbo_b", "arch": "sm_90", "registers": "36", "shared": "0"},
]


# Worked by hand from the technical specifications in the CUDA C++ Programming Guide.
@pytest.mark.parametrize(
    ("arch", "threads", "registers", "shared", "blocks"),
    [
        ("sm_90", 256, 32, 0, 8),  # threads: 2048
        ("sm_90", 128, 168, 0, 3),  # registers: 12 warps of 5376
        ("sm_90", 128, 169, 0, 2),  # one more register is 8 more: 11 warps, of which 8 are whole blocks
        ("sm_90", 384, 168, 0, 1),
        ("sm_90", 1024, 64, 0, 1),
        ("sm_90", 1024, 65, 0, 0),  # does not run
        ("sm_90", 32, 16, 0, 32),  # blocks: 32
        ("sm_90", 128, 32, 49152, 4),  # shared memory: 48 KiB and the system's 1 KiB, of 228
        ("sm_90", 128, 32, 232448, 1),  # 227 KiB: the most that a block can have
        ("sm_90", 128, 32, 232449, 0),
        ("sm_80", 256, 64, 0, 4),
        ("sm_86", 256, 40, 0, 6),  # threads: 1536
        ("sm_89", 32, 16, 0, 24),
        ("sm_75", 256, 32, 0, 4),
        ("sm_75", 128, 32, 32768, 2),  # 64 KiB, nothing reserved
        ("sm_75", 128, 32, 32769, 1),
    ],
)
def test_known_occupancies(arch: str, threads: int, registers: int, shared: int, blocks: int) -> None:
    assert tool.occupancy(arch, threads, registers, shared) == blocks


def test_the_kernels_have_what_their_head_comments_plan() -> None:
    plans = tool.read_plans(tool.SOURCES)
    with tool.TABLE.open(newline="") as f:
        rows = list(csv.DictReader(f))
    assert len(rows) > 100
    assert tool.compare(plans, rows) == []


def test_a_head_comment_is_read() -> None:
    plans = tool.parse_plans(HEAD, "a.cu")
    assert [(p.kernel, p.threads, p.dynamic) for p in plans] == [
        ("turbo_a<*,2>", 256, 0),
        ("turbo_a<*>", 384, 1024),
        ("turbo_b", 128, 0),
    ]
    assert plans[2].blocks == {"sm_75": None, "sm_90": 12}
    assert tool.parse_plans("// Attention.\n", "a.cu") == []
    assert tool.compare(plans, ROWS) == []


def test_a_table_that_cannot_be_read() -> None:
    with pytest.raises(ValueError, match=r"a\.cu: turbo_b has 1 figures for 2 architectures"):
        tool.parse_plans(HEAD.replace("     -     12", "    12"), "a.cu")
    with pytest.raises(ValueError, match=r"a\.cu: the table of occupancy has no line"):
        tool.parse_plans(HEAD.replace("//           turbo", "// turbo is"), "a.cu")


@pytest.mark.parametrize(
    ("row", "field", "value", "said"),
    [
        (
            0,
            "registers",
            "129",
            r"turbo_a<0,2> \(sm_90\): a.cu plans 2 blocks a multiprocessor, 129 registers .* allow 1",
        ),
        (1, "shared", "70000", r"turbo_a<0,4> \(sm_75\): .* 168 registers and 71024 bytes of shared memory allow 0"),
        (1, "shared", "102000", r"a block has 103024 bytes of shared memory, more than 102400"),
        (3, "registers", "32", r"turbo_b \(sm_90\): a.cu plans 12 blocks .* allow 16"),
        (3, "kernel", "turbo_c", r"turbo_c \(sm_90\): no head comment plans its occupancy"),
        (3, "arch", "sm_80", r"turbo_b \(sm_80\): no head comment plans its occupancy"),
        (0, "kernel", "turbo_a<0,1>", r"a.cu: no kernel is called turbo_a<\*,2>"),
    ],
)
def test_what_it_must_notice(row: int, field: str, value: str, said: str) -> None:
    rows = [dict(r) for r in ROWS]
    rows[row][field] = value
    problems = tool.compare(tool.parse_plans(HEAD, "a.cu"), rows)
    assert any(re.search(said, problem) for problem in problems), problems


@pytest.mark.parametrize(
    ("missing", "more", "said"),
    [
        (None, None, None),
        (("turbo_a", 384, 1024), None, "turbo_a<*>: no block of 384 threads and 1024 bytes was launched"),
        (None, ("turbo_a", 384, 2048), "turbo_a: a block of 384 threads and 2048 bytes was launched"),
        (None, ("turbo_a", 512, 0), "turbo_a: a block of 512 threads and 0 bytes was launched"),
        (None, ("turbo_a", 384, 512), None),
        (None, ("turbo_b", 64, 0), None),
        (None, ("upstream", 64, 999999), None),
    ],
)
def test_launches(missing: tuple[str, int, int] | None, more: tuple[str, int, int] | None, said: str | None) -> None:
    launches = {("turbo_a", 256, 0), ("turbo_a", 384, 1024), ("turbo_b", 128, 0)} - {missing} | (
        {more} if more else set()
    )
    problems = tool.compare_launches(tool.parse_plans(HEAD, "a.cu"), launches)
    assert problems == ([said] if said else [])


def test_the_script(tmp_path: Path) -> None:
    (tmp_path / "a.cu").write_text(HEAD)
    table = tmp_path / "table.csv"
    launches = tmp_path / "launches.txt"
    launches.write_text("turbo_a 256 0\nturbo_a 384 1024\nturbo_b 128 0\n")
    argv = [sys.executable, "ci/cuda_occupancy.py", "--sources", str(tmp_path), "--table", str(table)]
    argv += ["--launches", str(launches)]
    for registers, code in (("36", 0), ("64", 1)):
        with table.open("w", newline="") as f:
            writer = csv.DictWriter(f, list(ROWS[0]))
            writer.writeheader()
            writer.writerows([*ROWS[:3], {**ROWS[3], "registers": registers}])
        done = subprocess.run(argv, capture_output=True, text=True)
        assert done.returncode == code, done.stdout + done.stderr
    assert done.stderr.startswith("error: turbo_b (sm_90): a.cu plans 12 blocks")
