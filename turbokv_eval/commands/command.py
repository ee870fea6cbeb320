"""The form of every command: its help starts with examples and ends with exit codes; options that many share."""

import math
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
model_option = click.option(
    "-m", "--model", type=PATH, help="GGUF model.  [default: SmolLM2-135M-Instruct, downloaded once]"
)
gpu_layers_option = click.option(
    "--gpu-layers",
    "-ngl",
    type=click.IntRange(min=0),
    metavar="N",
    help="Layers on the GPU; a row whose cache is not there fails.  [default: the programs decide]",
)
threads_option = click.option("--threads", "-t", type=click.IntRange(min=1), help="[default: all processors]")


class Numbers(click.ParamType[tuple[float, ...]]):
    """Comma-separated numbers, whole ones unless `kind` is float, each from `least` to `most`, none twice."""

    name = "numbers"

    def __init__(self, example: str, *, least: float, most: float = math.inf, kind: type[int] | type[float] = int):
        self.example, self.least, self.most, self.kind = example, least, most, kind

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        """How help names the value."""
        return "N,N,..."

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[float, ...]:
        """The numbers of `value`. Raises click.BadParameter."""
        if isinstance(value, tuple):
            return value
        try:
            numbers = tuple(self.kind(part) for part in value.split(","))
        except ValueError:
            what = "whole numbers" if self.kind is int else "numbers"
            self.fail(f"{value!r} is not a list of {what} such as {self.example}", param, ctx)
        if not all(self.least <= number <= self.most for number in numbers) or len(set(numbers)) != len(numbers):
            above = "" if self.most == math.inf else f" or above {self.most}"
            self.fail(f"{value!r} has a number below {self.least}{above}, or one twice", param, ctx)
        return numbers


# Tokens of a context, and of a chunk of it.
CONTEXTS = Numbers("512,4096", least=16)


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
