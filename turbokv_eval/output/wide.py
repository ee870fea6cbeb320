"""Prints rich tables as wide as they need to be: no cell is ever cut, on a narrow terminal or in a pipe."""

from rich import box
from rich.console import Console, Group
from rich.measure import Measurement
from rich.table import Table

from turbokv_eval.output import tabular

# A terminal narrower than that, or than a table, wraps lines.
MIN_WIDTH = 100


def table(*headers: str) -> Table:
    """An empty table whose cells are not cut: the first column to the left, numbers to the right."""
    found = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1, 0, 0))
    for index, header in enumerate(headers):
        found.add_column(header, justify="left" if index == 0 else "right", no_wrap=True, overflow="ignore")
    return found


def print_to(console: Console, rendered: Group) -> None:
    """Prints texts and tables, wide enough for every cell."""
    # rich would cut cells to fit a narrow terminal, or a pipe, which it takes to be 80 columns wide.
    wide = console.options.update(width=1000)
    tables = [Measurement.get(console, wide, part).maximum for part in rendered.renderables if isinstance(part, Table)]
    console.width = max(console.width, MIN_WIDTH, *tables)
    console.print(rendered)


def as_text(rendered: Group) -> str:
    """Texts and tables as plain text, without blanks at the ends of lines."""
    console = Console(width=MIN_WIDTH, color_system=None, force_terminal=False)
    with console.capture() as capture:
        print_to(console, rendered)
    return "\n".join(line.rstrip() for line in capture.get().splitlines()) + "\n"


def as_markdown(rendered: Group) -> str:
    """Texts and tables in GitHub-flavoured Markdown, cells as `as_text` has them."""
    parts: list[str] = []
    for part in rendered.renderables:
        if isinstance(part, Table):
            columns = [str(column.header).replace("\n", " ") for column in part.columns]
            rows = [[str(cell) for cell in row] for row in zip(*(column.cells for column in part.columns), strict=True)]
            parts.append(tabular.Table(str(part.title or ""), columns, [*rows]).as_markdown())
        else:
            parts.append(f"{part}\n")
    return "\n".join(parts)
