"""Compiles CUDA units with nvcc and compares what their kernels use with a committed table.

For every unit and architecture: warnings are errors in our own units, and no kernel may use more registers, spill
more or have more static shared memory than the table allows. Kernels that write the cache must hold no approximate
division or root and flush no denormal number: their bytes are a format. ci/cuda-check.sh calls this.
"""

from __future__ import annotations

import argparse
import csv
import re
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

FIELDS = ("unit", "arch", "kernel", "registers", "spill_stores", "spill_loads", "shared", "stack")
LIMITS = ("registers", "spill_stores", "spill_loads", "shared", "stack")
MAX_SHARED = 100 * 1024
# Decode kernels must not spill: their loop is what a token costs.
NO_SPILLS = re.compile(r"^turbo_(fattn_vec|get_rows|cpy|set_rows|rotate)")
# Kernels whose output is packed bytes.
EXACT_UNIT = "turbo/turbo-encode.cu"
INEXACT = re.compile(r"\b(?:div|sqrt|rcp|rsqrt)\.(?:approx|full)\S*|\b\w+\.(?:rn\.)?ftz\.f32")


@dataclass(frozen=True)
class Row:
    unit: str
    arch: str
    kernel: str
    registers: int
    spill_stores: int
    spill_loads: int
    shared: int
    stack: int

    @property
    def key(self) -> tuple[str, str, str]:
        return self.unit, self.arch, self.kernel


def base_flags(tree: Path, includes: list[Path], ours: bool) -> list[str]:
    """The flags that ggml's CMake files give to a unit, plus warnings for ours."""
    src = tree / "ggml" / "src"
    pairs = ("F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0")
    flags = ["-std=c++17", "-O3", "-use_fast_math", "-extended-lambda", "-DGGML_CUDA_NO_VMM", "-DGGML_CUDA_USE_GRAPHS"]
    flags += ["-DGGML_BACKEND_SHARED", "-DGGML_BACKEND_BUILD", "-DGGML_SCHED_MAX_COPIES=4"]
    flags += [f"-DGGML_CUDA_FA_{k}_{v}={int(k == v)}" for k in pairs for v in pairs]
    flags += ["-I", str(src), "-I", str(src.parent / "include"), "-I", str(src / "ggml-cuda")]
    for folder in includes:
        flags += ["-isystem", str(folder)]
    if ours:
        # what turbo.cmake sets for our units is read from there: one place
        text = (src / "ggml-cuda" / "turbo" / "turbo.cmake").read_text()
        match = re.search(r'COMPILE_OPTIONS\s+"([^"]*)"', text)
        if not match:
            raise SystemExit(
                "error: turbo.cmake sets no COMPILE_OPTIONS: the compilation here would not be the build's"
            )
        flags += match.group(1).split(";")
        flags += ["-Werror", "all-warnings", "-Xcompiler", "-Wall,-Wextra,-Wno-unused-parameter,-Wno-unused-function"]
    return flags


def patched_units(patches: Path) -> list[str]:
    """Paths (relative to ggml-cuda) of upstream's .cu files that a patch touches."""
    found = set()
    for patch in sorted(patches.glob("*.patch")):
        for match in re.finditer(r"^\+\+\+ b/ggml/src/ggml-cuda/(\S+\.cu)$", patch.read_text(), re.M):
            found.add(match.group(1))
    return sorted(found)


def demangle(names: list[str]) -> dict[str, str]:
    """Short names: without the namespace, the parameters and the return type."""
    done = subprocess.run(["c++filt", "-p"], input="\n".join(names), text=True, capture_output=True, check=True)
    res = {}
    for name, line in zip(names, done.stdout.splitlines(), strict=True):
        short = re.sub(r"^(?:[\w:]+\s+)?(?=\w)", "", line) if " " in line.split("<")[0] else line
        res[name] = re.sub(r"\((\w+)\)(?=\d)", "", short).replace(", ", ",").replace("_INTERNAL_", "")
    return res


def parse_ptxas(log: str, unit: str, arch: str) -> list[Row]:
    """Rows from the output of `ptxas -v`, for kernels only."""
    rows: list[tuple[str, dict[str, int]]] = []
    current: tuple[str, dict[str, int]] | None = None
    for line in log.splitlines():
        if match := re.search(r"Compiling entry function '(\S+)' for", line):
            current = (match.group(1), dict.fromkeys(LIMITS, 0))
            rows.append(current)
        elif current and (
            match := re.search(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", line)
        ):
            current[1].update(stack=int(match[1]), spill_stores=int(match[2]), spill_loads=int(match[3]))
        elif current and (match := re.search(r"Used (\d+) registers", line)):
            current[1]["registers"] = int(match[1])
            if shared := re.search(r"(\d+) bytes smem", line):
                current[1]["shared"] = int(shared[1])
            current = None
        elif "Function properties for" in line and current and current[0] not in line:
            current = None
    names = demangle([name for name, _ in rows])
    return [Row(unit, arch, names[name], **values) for name, values in rows]


def inexact(ptx: str) -> list[str]:
    return sorted(set(INEXACT.findall(ptx)))


class Report:
    def __init__(self, args: argparse.Namespace) -> None:
        self.args = args
        self.problems: list[str] = []

    def compile(self, unit: str, arch: str, ours: bool) -> list[Row]:
        source = self.args.tree / "ggml" / "src" / "ggml-cuda" / unit
        out = self.args.out / f"{unit.replace('/', '_')}.{arch}.o"
        command = [
            self.args.nvcc,
            *base_flags(self.args.tree, self.args.include, ours),
            f"-arch={arch}",
            "-Xptxas",
            "-v",
        ]
        command += ["-c", str(source), "-o", str(out)]
        start = time.monotonic()
        done = subprocess.run(command, text=True, capture_output=True, check=False)
        log = done.stdout + done.stderr
        out.with_suffix(".log").write_text(" ".join(command) + "\n" + log)
        print(f"  {unit} {arch}: {time.monotonic() - start:.0f} s", file=sys.stderr)
        if done.returncode != 0:
            errors = [line for line in log.splitlines() if "error" in line or "warning" in line]
            self.problems.append(
                f"{unit} {arch} does not compile: {errors[0] if errors else 'see'} ({out.with_suffix('.log')})"
            )
            return []
        if ours and unit == EXACT_UNIT:
            ptx = subprocess.run(
                [*command[: command.index("-Xptxas")], "-ptx", str(source), "-o", "-"],
                text=True,
                capture_output=True,
                check=True,
            ).stdout
            if found := inexact(ptx):
                self.problems.append(
                    f"{unit} {arch}: inexact instructions in kernels that write packed bytes: {', '.join(found)}"
                )
            if "sqrt.rn.f32" not in ptx or "div.rn.f32" not in ptx:
                self.problems.append(
                    f"{unit} {arch}: no sqrt.rn.f32 and div.rn.f32 found: the check of the PTX sees nothing"
                )
        return parse_ptxas(log, unit, arch)

    def judge(self, rows: list[Row], allowed: dict[tuple[str, str, str], Row]) -> None:
        for row in rows:
            at = f"{row.kernel} ({row.unit}, {row.arch})"
            if NO_SPILLS.match(row.kernel) and (row.spill_stores or row.spill_loads):
                self.problems.append(f"{at} spills: {row.spill_stores} bytes stored, {row.spill_loads} loaded")
            if row.shared > MAX_SHARED:
                self.problems.append(f"{at}: {row.shared} bytes of shared memory, over {MAX_SHARED}")
            limit = allowed.get(row.key)
            if limit is None:
                self.problems.append(f"{at} is not in the table: add it with --update")
                continue
            for field in LIMITS:
                if getattr(row, field) > getattr(limit, field):
                    self.problems.append(
                        f"{at}: {field} {getattr(row, field)}, the table allows {getattr(limit, field)}"
                    )
        units = {(row.unit, row.arch) for row in rows}
        seen = {row.key for row in rows}
        for key in allowed:
            if key[:2] in units and key not in seen:
                self.problems.append(
                    f"{key[2]} ({key[0]}, {key[1]}) is in the table but not compiled: remove it with --update"
                )


def read_table(path: Path) -> dict[tuple[str, str, str], Row]:
    if not path.is_file():
        return {}
    with path.open(newline="") as f:
        rows = [Row(r["unit"], r["arch"], r["kernel"], *(int(r[x]) for x in LIMITS)) for r in csv.DictReader(f)]
    return {row.key: row for row in rows}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tree", type=Path, required=True)
    parser.add_argument("--patches", type=Path, default=Path("llama.cpp/patches"))
    parser.add_argument("--nvcc", default="nvcc")
    parser.add_argument(
        "--include", type=Path, action="append", default=[], help="folder of headers, cuBLAS's among them"
    )
    parser.add_argument("--table", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--arch", action="append", help="default: sm_90 and sm_75")
    parser.add_argument("--unit", action="append", help="only these (paths under ggml-cuda)")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--update", action="store_true", help="write the table instead of comparing with it")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)

    cuda = args.tree / "ggml" / "src" / "ggml-cuda"
    ours = sorted(str(p.relative_to(cuda)) for p in (cuda / "turbo").glob("*.cu"))
    if not ours:
        print(f"error: no turbo units in {cuda}: apply the fork first", file=sys.stderr)
        return 2
    work = [(unit, arch, True) for unit in ours for arch in args.arch or ("sm_90", "sm_75")]
    work += [(unit, arch, False) for unit in patched_units(args.patches) for arch in args.arch or ("sm_90", "sm_75")]
    if args.unit:
        work = [w for w in work if w[0] in args.unit]

    report = Report(args)
    with ThreadPoolExecutor(args.jobs) as pool:
        results = list(pool.map(lambda w: (w, report.compile(*w)), work))
    rows = [row for (_, _, own), found in results if own for row in found]

    if args.update and not report.problems:
        kept = {k: r for k, r in read_table(args.table).items() if args.unit or args.arch}
        kept.update({row.key: row for row in rows})
        with args.table.open("w", newline="") as f:
            writer = csv.writer(f, lineterminator="\n")
            writer.writerow(FIELDS)
            for key in sorted(kept):
                writer.writerow([getattr(kept[key], field) for field in FIELDS])
        print(f"{args.table}: {len(kept)} kernels", file=sys.stderr)
    report.judge(rows, read_table(args.table))

    worst = {field: max((getattr(r, field) for r in rows), default=0) for field in LIMITS}
    print(
        f"{len(work)} compilations, {len(rows)} kernels of ours; largest: "
        + ", ".join(f"{k} {v}" for k, v in worst.items())
    )
    for problem in report.problems:
        print(f"error: {problem}", file=sys.stderr)
    return 1 if report.problems or not rows else 0


if __name__ == "__main__":
    raise SystemExit(main())
