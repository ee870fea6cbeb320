"""What the fork tool raises: one line that says what is wrong and what to do, and an exit code."""

import click


class ForkError(click.ClickException):
    """Bad input or usage. Any click command shows the message and exits with `exit_code`."""

    exit_code = 2


class CheckFailed(ForkError):
    """Something was checked and is not as it must be: a hash, a patch."""

    exit_code = 1


class MachineCannot(ForkError):
    """The machine lacks something: git, the network, a writable folder."""

    exit_code = 3
