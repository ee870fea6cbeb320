"""python -m matrix: writes the zoo, runs every cell and every planted fault, prints the tables."""

import os
import sys
import tempfile
import time
from pathlib import Path

import click
from rich.console import Console
from zoo.catalogue import Entry, entries
from zoo.write import write_all

from turbokv_eval.errors import BadInput, CheckFailed

from . import table
from .judge import cells_of, missing, refusal
from .program import FAULTS, ModelRun, locate, refused_architectures, run_models


def _problems(entry: Entry, run: ModelRun, fault: str) -> list[str]:
    found = [f"{verdict.run.cell.label}: {text}" for verdict in cells_of(run, fault) for text in verdict.problems]
    found += filter(None, (refusal(entry, refused) for refused in run.refused))
    return [f"{entry.name}: {text}" for text in found + missing(entry, run)]


@click.command()
@click.option("--bin", "bin_dir", type=click.Path(path_type=Path), default=Path("build/cpu/bin"), show_default=True)
@click.option("--model", "names", multiple=True, help="Only this model of the zoo; may be given again.")
@click.option("--plant", type=click.Choice(FAULTS), help="Judge the cells with this fault in them: must exit with 1.")
@click.option("--no-faults", is_flag=True, help="Leave the planted faults out.")
@click.option("--jobs", default=os.cpu_count() or 1, show_default=True, help="Models at a time.")
def main(bin_dir: Path, names: tuple[str, ...], plant: str | None, no_faults: bool, jobs: int) -> None:
    """Head dimension or attention x family x sides x flash attention, on the zoo. Exit 1: a cell failed."""
    known = {entry.name: entry for entry in entries()}
    for name in names:
        if name not in known:
            raise BadInput(f"no model {name!r} in the zoo: there are {', '.join(known)}")
    chosen = [known[name] for name in names] or list(known.values())
    program = locate(bin_dir)
    began = time.monotonic()
    runs: list[tuple[Entry, ModelRun]] = []
    with tempfile.TemporaryDirectory() as folder:
        paths = write_all(chosen, Path(folder))
        click.echo(f"{len(paths)} models, {sum(p.stat().st_size for p in paths) / 1e6:.0f} MB", err=True)
        with_faults = plant is not None or not no_faults
        for entry, run in zip(
            chosen, run_models(program, paths, Path(folder) / "cache", with_faults, jobs), strict=True
        ):
            runs.append((entry, run))
            click.echo(f"  {entry.name}: {len(run.runs)} runs, {len(run.refused)} refused", err=True)
    architectures = refused_architectures(program)

    console = Console(width=max(Console().width, 150))
    table.print_cells(console, runs)
    if not names:
        table.print_architectures(console, architectures)
    faults = [verdict for _, run in runs for fault in FAULTS for verdict in cells_of(run, fault)]
    if faults:
        table.print_controls(console, faults)

    problems = [problem for entry, run in runs for problem in _problems(entry, run, plant or "")]
    if plant is None:
        problems += [
            f"planted fault {verdict.run.fault!r} was not noticed: {verdict.run.cell.label}, KLD {verdict.run.kld:.4g}"
            for verdict in faults
            if verdict.ok
        ]
    if not architectures:
        problems.append("no architecture is refused: is the program that of this build?")
    cells = sum(len(cells_of(run)) for _, run in runs)
    refused = sum(len(run.refused) for _, run in runs)
    console.print(
        f"{len(runs)} models, {cells} cells ran, {refused} refused, {len(faults)} planted faults,"
        f" {time.monotonic() - began:.0f} s, {len(problems)} problems",
        highlight=False,
    )
    for problem in problems:
        click.echo(f"error: {problem}", err=True)
    if problems:
        raise CheckFailed(f"the matrix has {len(problems)} problems, listed above")


if __name__ == "__main__":
    sys.exit(main())
