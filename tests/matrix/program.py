"""Runs `turbo-matrix` on a model and reads what it prints."""

import json
import math
import os
import subprocess
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from turbokv_eval.errors import CheckFailed, MachineCannot
from turbokv_eval.programs import kv_log
from turbokv_eval.programs.kv_log import KVReport

from .expected import Cell

PROGRAM = "turbo-matrix"
FAULTS = ("codebook", "rotation", "unrotated", "swap")
TIMEOUT = 300


@dataclass(frozen=True)
class Measured:
    """One run. KLDs in nats: kld against the f32 cache, channel: what the codec's error must give, floor: f16's.

    fault: what was planted, empty for a cell. report: the cache as the run logged it; None for a planted fault.
    """

    cell: Cell
    finite: bool
    kld: float
    channel: float
    floor: float
    admitted: bool = True
    report: KVReport | None = None
    fault: str = ""


@dataclass(frozen=True)
class Refused:
    cell: Cell
    reason: str
    announced: bool


@dataclass
class ModelRun:
    """All that the program said about one model.

    entropy, entropy_uniform: of the attention, and of a uniform one, in nats, means over heads and tokens.
    crash: how the program ended, when not by itself.
    """

    name: str
    entropy: float = math.nan
    entropy_uniform: float = math.nan
    runs: list[Measured] = field(default_factory=list)
    refused: list[Refused] = field(default_factory=list)
    crash: str = ""


def locate(bin_dir: Path) -> Path:
    program = bin_dir / PROGRAM
    if not os.access(program, os.X_OK):
        raise MachineCannot(f"no program {program}: run `turbokv-eval build --tests`, or name its folder with --bin")
    return program


def parse(name: str, output: str) -> ModelRun:
    """Reads the program's lines. Raises CheckFailed on one that it cannot read."""
    run = ModelRun(name)
    for line in output.splitlines():
        try:
            _add(run, json.loads(line))
        except (ValueError, KeyError, TypeError) as error:
            raise CheckFailed(
                f"{name}: {PROGRAM} printed a line that cannot be read: {line[:120]} ({error})"
            ) from error
    return run


def _add(run: ModelRun, line: dict[str, Any]) -> None:
    if line["kind"] == "reference":
        run.entropy, run.entropy_uniform = float(line["entropy"]), float(line["entropy_uniform"])
        return
    cell = Cell(line["family"], line["sides"], line["flash_attn"])
    if "refused" in line:
        run.refused.append(Refused(cell, line["refused"], line["announced"]))
        return
    kld = math.nan if line["kld"] is None else float(line["kld"])
    measured = Measured(cell, line["finite"], kld, float(line["twin"]), float(line["floor"]))
    if line["kind"] == "fault":
        run.runs.append(replace(measured, fault=line["fault"]))
        return
    contexts = kv_log.parse_contexts(line["log"])
    report = contexts[-1] if contexts else None
    run.runs.append(replace(measured, admitted=line["admitted"], report=report))


def run_model(program: Path, model: Path, cache: Path, faults: bool) -> ModelRun:
    """Runs all cells of one model. cache: where measured key statistics are kept."""
    env = os.environ | {"XDG_CACHE_HOME": str(cache)}
    argv = [str(program), str(model), *(["--faults"] if faults else [])]
    try:
        done = subprocess.run(argv, capture_output=True, text=True, errors="replace", timeout=TIMEOUT, env=env)
    except subprocess.TimeoutExpired:
        return ModelRun(model.stem, crash=f"it did not end within {TIMEOUT} s")
    run = parse(model.stem, done.stdout)
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        run.crash = f"{PROGRAM} ended with {done.returncode}: {last}"
    return run


def run_models(program: Path, models: Iterable[Path], cache: Path, faults: bool, jobs: int) -> Iterable[ModelRun]:
    """Runs the models, `jobs` at a time, and yields them in their order as they are done."""
    with ThreadPoolExecutor(jobs) as pool:
        yield from pool.map(lambda model: run_model(program, model, cache, faults), models)


def refused_architectures(program: Path) -> list[tuple[str, str, str]]:
    """(name, sides, reason) of every architecture without turbo types: sides `K` when nothing works, else `V`."""
    done = subprocess.run([str(program), "--refused"], capture_output=True, text=True, timeout=TIMEOUT)
    if done.returncode != 0:
        raise CheckFailed(f"{PROGRAM} --refused ended with {done.returncode}: {done.stderr.strip()}")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    return [(line["name"], line["sides"].replace("K+V", "V"), line["refused"]) for line in lines]
