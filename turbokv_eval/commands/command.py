"""The form of every command: its help starts with examples and ends with exit codes; options that many share."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from turbokv_eval.errors import Interrupted
from turbokv_eval.output import tabular

PATH = click.Path(path_type=Path)

# The last option: how the result comes out of stdout.
form_option = click.option(
    "-o",
    "--format",
    "form",
    type=click.Choice(tabular.FORMATS),
    default="table",
    show_default=True,
    help="Of the result on stdout.",
)
bin_option = click.option(
    "--bin", "bin_dir", type=PATH, help="Folder of the programs.  [default: where `build` left them]"
)
threads_option = click.option("--threads", "-t", type=click.IntRange(min=1), help="[default: all processors]")


class _Help(click.Command):
    """examples: whole command lines. failed, cannot: when the exit code is 1 and 3."""

    def __init__(
        self,
        *args: Any,
        examples: Sequence[str],
        failed: str = "a check failed (none here)",
        cannot: str = "the machine cannot",
        **kwargs: Any,
    ) -> None:
        super().__init__(*args, **kwargs)
        self.examples = tuple(examples)
        self._exits = f"Exit codes: 0 ok; 1 {failed}; 2 bad usage or input; 3 {cannot}; 130 interrupted."

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:  # which click would make a 1
            raise Interrupted("stopped") from None

    def format_help(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write("Example:\n" + "".join(f"  {line}\n" for line in self.examples) + "\n")
        super().format_help(ctx, formatter)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        formatter.write_paragraph()
        formatter.write_text(self._exits)


class Command(_Help):
    """A command; see _Help for what it takes beyond click's."""


class Group(_Help, click.Group):
    """A group of commands; see _Help for what it takes beyond click's."""
