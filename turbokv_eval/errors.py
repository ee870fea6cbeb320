"""What the tools raise: one line that names the cause and the way out, and the exit code of the command."""

import click


class ToolError(click.ClickException):
    """Base of all. A click command shows the message on stderr and exits with `exit_code`."""

    exit_code = 1


class CheckFailed(ToolError):
    """Something was checked and is not as it must be: a row of a comparison, a hash, a compilation."""


class BadInput(ToolError):
    """A wrong option, model, text or folder."""

    exit_code = 2


class MachineCannot(ToolError):
    """The machine lacks something: a compiler, the programs, the network, disk space."""

    exit_code = 3


class Interrupted(ToolError):
    """Ctrl-C; the exit code is that of a process killed by SIGINT, as a shell reports it."""

    exit_code = 130
