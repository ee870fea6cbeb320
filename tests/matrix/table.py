"""The matrix as a table for people."""

from collections.abc import Iterable
from itertools import groupby

from rich.console import Console
from rich.table import Table
from zoo.catalogue import Entry

from .expected import FAMILY_BITS
from .judge import Verdict, cells_of, refusal
from .program import FAULTS, Measured, ModelRun, Refused


def _bits(verdict: Verdict) -> str:
    k, v = verdict.bits
    return f"{'-' if k is None else f'{k:.4g}'} / {'K' if v is None else f'{v:.4g}'}"


def _refusals(entry: Entry, refused: Iterable[Refused]) -> list[tuple[str, str, str, str]]:
    """(families, sides, flash attention, verdict), one for each reason; families stand for one another in it."""

    def reason(item: Refused) -> str:
        return refusal(entry, item) or item.reason.replace(item.cell.family, "turbo*")

    rows = []
    for text, group in groupby(sorted(refused, key=reason), key=reason):
        cells = [item.cell for item in group]
        families = ", ".join(dict.fromkeys(cell.family for cell in cells))
        families = "turbo*" if len({cell.family for cell in cells}) == len(FAMILY_BITS) else families
        sides = ", ".join(dict.fromkeys(cell.sides for cell in cells))
        flash = "/".join(dict.fromkeys("on" if cell.flash_attn else "off" for cell in cells))
        rows.append((families, sides, flash, text))
    return rows


def print_cells(console: Console, runs: list[tuple[Entry, ModelRun]]) -> None:
    """One table for each group of the zoo: every cell that ran, and what was refused with the reason."""
    for group, members in groupby(runs, key=lambda pair: pair[0].group):
        table = Table(title=group, title_justify="left", box=None, header_style="bold", pad_edge=False)
        table.add_column(group, no_wrap=True)
        for name in ("family", "sides", "FA"):
            table.add_column(name)
        for name in ("bits K / V", "KLD", "channel", "bound", "f16"):
            table.add_column(name, justify="right", no_wrap=True)
        table.add_column("verdict")
        refused = Table(box=None, show_header=False, pad_edge=False)
        for entry, run in members:
            name = entry.what
            for verdict in cells_of(run):
                measured = verdict.run
                table.add_row(
                    name,
                    measured.cell.family,
                    measured.cell.sides,
                    "on" if measured.cell.flash_attn else "off",
                    _bits(verdict),
                    f"{measured.kld:.5f}",
                    f"{measured.channel:.5f}",
                    f"{verdict.bound:.5f}",
                    f"{measured.floor:.0e}",
                    "ok" if verdict.ok else f"[red]FAILED[/red] {'; '.join(verdict.problems)}",
                )
                name = ""
            for families, sides, flash, reason in _refusals(entry, run.refused):
                refused.add_row(entry.what, families, sides, flash, f"refused: {reason}")
        console.print(table)
        console.print(refused)
        console.print()


def print_architectures(console: Console, refused: list[tuple[str, str, str]]) -> None:
    table = Table(title="architectures", title_justify="left", box=None, header_style="bold", pad_edge=False)
    for name in ("architecture", "sides", "verdict"):
        table.add_column(name)
    for name, sides, reason in refused:
        table.add_row(name, sides, f"refused: {reason.replace('turbo3', 'turbo*')}")
    console.print(table)
    console.print()


def print_controls(console: Console, faults: list[Verdict]) -> None:
    """For each planted fault: in how many cells it failed the checks, and by how much in the least clear one."""
    table = Table(title="planted faults", title_justify="left", box=None, header_style="bold", pad_edge=False)
    for name in ("fault", "family", "sides"):
        table.add_column(name)
    for name in ("cells", "caught", "least KLD / bound"):
        table.add_column(name, justify="right")

    def key(verdict: Verdict) -> tuple[int, str, str]:
        run: Measured = verdict.run
        return FAULTS.index(run.fault), run.cell.family, run.cell.sides

    for (fault, family, sides), group in groupby(sorted(faults, key=key), key=key):
        verdicts = list(group)
        caught = sum(not verdict.ok for verdict in verdicts)
        least = min(verdict.run.kld / verdict.bound for verdict in verdicts)
        colour = "red" if caught < len(verdicts) else "default"
        table.add_row(
            FAULTS[fault], family, sides, str(len(verdicts)), f"[{colour}]{caught}[/{colour}]", f"{least:.2f}"
        )
    console.print(table)
    console.print()
