"""One table, many outputs: the terminal's, Markdown, CSV."""

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, field

from rich import box
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

FORMATS = ("table", "md", "csv", "json")


@dataclass
class Table:
    """Cells are strings, as they are shown. left: columns that are not aligned to the right."""

    title: str
    columns: Sequence[str]
    rows: list[Sequence[str]] = field(default_factory=list)
    left: frozenset[str] = frozenset()

    def as_text(self) -> str:
        """Plain text, as wide as it needs to be; no cell is cut."""
        table = RichTable(box=box.SIMPLE, pad_edge=False, show_edge=False)
        for column in self.columns:
            table.add_column(Text(column), justify="left" if self._is_left(column) else "right", no_wrap=True)
        for row in self.rows:
            table.add_row(*(Text(cell) for cell in row))
        console = Console(width=1000, color_system=None, force_terminal=False, file=io.StringIO())
        with console.capture() as capture:
            console.print(table)
        lines = [line.rstrip() for line in capture.get().splitlines()]
        return "\n".join([self.title, *lines] if self.title else lines).strip("\n") + "\n"

    def as_markdown(self) -> str:
        """A GitHub-flavoured Markdown table, its title a bold line."""

        def line(cells: Sequence[str]) -> str:
            return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"

        rule = ["---" if self._is_left(column) else "---:" for column in self.columns]
        title = [f"**{self.title}**", ""] if self.title else []
        return "\n".join([*title, line(self.columns), line(rule), *(line(row) for row in self.rows)]) + "\n"

    def rendered(self, form: str) -> str:
        """The table in one of FORMATS that is not `json`, which comes from what the cells are made of."""
        if form == "csv":
            return as_csv(self.columns, self.rows)
        return self.as_markdown() if form == "md" else self.as_text()

    def _is_left(self, column: str) -> bool:
        return column in self.left or column == self.columns[0]


def as_csv(columns: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """RFC 4180 with a header line; None is an empty field."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(rows)
    return out.getvalue()
