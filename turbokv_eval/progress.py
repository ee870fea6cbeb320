"""Progress on stderr: a bar on a terminal, else a line now and then."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


class Meter(Protocol):
    """Shows how far a job of known size is."""

    def say(self, line: str) -> None:
        """A line that stays."""

    def update(self, done: float, total: float, what: str) -> None:
        """done out of total, in any unit that grows evenly with time; what: the step that runs now."""


class Silent:
    """Says nothing."""

    def say(self, line: str) -> None:
        """Nothing."""

    def update(self, done: float, total: float, what: str) -> None:
        """Nothing."""


class BarMeter:
    """A rich bar with elapsed and remaining time."""

    def __init__(self, console: Console, progress: Progress) -> None:
        self._console = console
        self._progress = progress
        self._task = progress.add_task("", total=None)

    def say(self, line: str) -> None:
        """Prints a line above the bar."""
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def update(self, done: float, total: float, what: str) -> None:
        """Moves the bar to `done` of `total`; `what` is its text."""
        self._progress.update(self._task, completed=done, total=total, description=what)


class LineMeter:
    """A line at each new step, and at each tenth of the job."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._began = time.monotonic()
        self._tenth = -1
        self._what = ""

    def say(self, line: str) -> None:
        """Prints a line."""
        self._console.print(line, markup=False, highlight=False, soft_wrap=True)

    def update(self, done: float, total: float, what: str) -> None:
        """Prints a line when a step or a tenth of the job is new."""
        tenth = int(10 * done / total) if total else 0
        # A step that has a number of its own in its name is worth a line; one that has none shares those of the tenths.
        if tenth <= self._tenth and (what == self._what or not what.startswith("[")):
            return
        self._tenth, self._what = max(tenth, self._tenth), what
        elapsed = time.monotonic() - self._began
        share = done / total if total else 0.0
        left = f", about {_minutes(elapsed / share - elapsed)} left" if share > 0.02 else ""
        self.say(f"{what} ({100 * share:.0f} %, {_minutes(elapsed)}{left})")


def _minutes(seconds: float) -> str:
    return f"{int(seconds) // 60}:{int(seconds) % 60:02d}"


@contextmanager
def meter(console: Console) -> Iterator[Meter]:
    """The kind that suits the console."""
    if not console.is_terminal:
        yield LineMeter(console)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TimeElapsedColumn(),
        TextColumn("/"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=console, transient=True, speed_estimate_period=1800) as progress:
        yield BarMeter(console, progress)
