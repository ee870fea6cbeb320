"""Runs git on one repository so that the result depends on nothing but the arguments.

No user or system configuration, no hooks, a fixed identity and date, English messages, no conversion of line ends. The
repository is named explicitly, so that git never looks for one: an enclosing checkout or a foreign owner is no matter.
"""

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path

from turbokv_eval.errors import MachineCannot

NAME, EMAIL, DATE = "turbokv", "fork@turbokv.invalid", "1577836800 +0000"

_CONFIG = {
    "core.autocrlf": "false",
    "core.safecrlf": "false",
    "core.hooksPath": os.devnull,
    "core.quotePath": "false",
    "core.fsmonitor": "false",
    "core.excludesFile": os.devnull,
    "core.attributesFile": os.devnull,
    "core.compression": "1",
    "gc.auto": "0",
    "init.defaultBranch": "turbokv",
    "init.defaultObjectFormat": "sha1",
    "apply.whitespace": "nowarn",
    "apply.ignoreWhitespace": "no",
}


@dataclass(frozen=True)
class Git:
    """git on the repository `<tree>/.git` with the work tree `<tree>`."""

    tree: Path

    @property
    def dir(self) -> Path:
        """The repository itself."""
        return self.tree / ".git"

    def init(self) -> None:
        """Creates the repository. Its own configuration lets a developer commit and stash there without any set-up."""
        self.tree.mkdir(parents=True, exist_ok=True)
        self._run(["init", "--quiet", "--template="], self._environment(named=False))
        for key, value in (
            ("user.name", NAME),
            ("user.email", EMAIL),
            ("core.autocrlf", "false"),
            ("gc.auto", "0"),
        ):
            self("config", key, value)

    def __call__(self, *args: str, stdin: bytes = b"", index: Path | None = None) -> str:
        """Runs `git args`; returns stdout without the last newline. Raises MachineCannot when git fails."""
        return self.raw(*args, stdin=stdin, index=index).decode(errors="surrogateescape").removesuffix("\n")

    def raw(self, *args: str, stdin: bytes = b"", index: Path | None = None) -> bytes:
        """`__call__`, but stdout as bytes, all of it."""
        done = self.attempt(*args, stdin=stdin, index=index)
        if done.returncode != 0:
            said = done.stderr.decode(errors="replace").strip() or f"exit code {done.returncode}"
            raise MachineCannot(f"git {args[0]} failed in {self.tree}: {' '.join(said.split())}")
        return done.stdout

    def attempt(self, *args: str, stdin: bytes = b"", index: Path | None = None) -> subprocess.CompletedProcess[bytes]:
        """Runs `git args`, whatever its exit code."""
        environment = self._environment(named=True)
        if index is not None:
            environment["GIT_INDEX_FILE"] = str(index)
        return self._run(list(args), environment, stdin)

    def _run(
        self, args: list[str], environment: dict[str, str], stdin: bytes = b""
    ) -> subprocess.CompletedProcess[bytes]:
        config = [part for key, value in _CONFIG.items() for part in ("-c", f"{key}={value}")]
        try:
            return subprocess.run(
                ["git", *config, *args], cwd=self.tree, env=environment, input=stdin, capture_output=True, check=False
            )
        except FileNotFoundError as e:
            raise MachineCannot("git is not installed: install it with your package manager") from e

    def _environment(self, *, named: bool) -> dict[str, str]:
        # Inside a git hook the caller's GIT_DIR and GIT_INDEX_FILE point at the enclosing repository: drop them all.
        environment = {k: v for k, v in os.environ.items() if not k.startswith("GIT_") and k != "LANGUAGE"}
        environment |= {"GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": os.devnull, "GIT_ATTR_NOSYSTEM": "1"}
        environment |= {"LC_ALL": "C", "GIT_OPTIONAL_LOCKS": "0", "GIT_TERMINAL_PROMPT": "0"}
        for who in ("AUTHOR", "COMMITTER"):
            environment |= {f"GIT_{who}_NAME": NAME, f"GIT_{who}_EMAIL": EMAIL, f"GIT_{who}_DATE": DATE}
        if named:
            environment |= {"GIT_DIR": str(self.dir), "GIT_WORK_TREE": str(self.tree)}
        return environment
