"""Runs one program: output streamed to a callback and a log, no inherited settings, nothing left running."""

import os
import selectors
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

from turbokv_eval.errors import MachineCannot
from turbokv_eval.machine.others import Watch

if TYPE_CHECKING:
    import resource  # not on Windows

OnOutput = Callable[[str], None]

# Variables that change what a run does without showing in its command line: `LLAMA_ARG_CACHE_TYPE_K` and its kind, the
# switch that turns the rotation of the baselines off, a forced instruction set.
_HIDDEN_PREFIXES = ("LLAMA_ARG_", "LLAMA_ATTN_ROT", "GGML_TURBO_", "LLAMA_KV_")


@dataclass(frozen=True)
class Result:
    """A finished run. Wall-clock seconds; output decoded as UTF-8 with replacement characters.

    peak_rss: bytes, the largest resident set of the program; 0 where the system does not tell.
    other_cpus: processors that others kept busy meanwhile, on average; None where the system does not tell.
    """

    argv: tuple[str, ...]
    returncode: int
    stdout: str
    stderr: str
    seconds: float
    peak_rss: int = 0
    other_cpus: float | None = None

    @property
    def output(self) -> str:
        """stderr, then stdout. The programs log to the first and print results to the second."""
        return self.stderr + self.stdout


def clean_environment(base: Mapping[str, str] | None = None) -> dict[str, str]:
    """The environment without variables that silently change what llama.cpp does."""
    source = os.environ if base is None else base
    return {name: value for name, value in source.items() if not name.startswith(_HIDDEN_PREFIXES)}


def run(
    argv: Sequence[str | Path],
    *,
    log: Path | None = None,
    on_output: OnOutput | None = None,
    timeout: float | None = None,
    environment: Mapping[str, str] | None = None,
) -> Result:
    """Runs `argv` to its end, whatever its exit status.

    log:       file that gets the command line, then both streams as they come; replaced if it exists.
    on_output: called with every piece of text as it comes, from either stream; pieces need not end at a line end.
    timeout:   seconds after which the program is killed.
    environment: variables on top of `clean_environment`.

    Raises MachineCannot when it cannot be started, does not end in time or the log cannot be written. On any exception,
    Ctrl-C included, the program is ended before the exception leaves.
    """
    args = tuple(str(arg) for arg in argv)
    began = time.monotonic()
    watch = Watch()
    with ExitStack() as stack:
        sink: BinaryIO | None = None
        if log is not None:
            try:
                sink = stack.enter_context(log.open("wb", buffering=0))
                sink.write(f"$ {' '.join(args)}\n".encode())
            except OSError as e:
                raise MachineCannot(
                    f"cannot write {log}: {e.strerror}; free some space or choose another folder"
                ) from e
        try:
            process = subprocess.Popen(
                args,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**clean_environment(), **(environment or {})},
            )
        except OSError as e:
            raise MachineCannot(f"cannot start {args[0]}: {e.strerror}") from e
        try:
            chunks = _pump(process, sink, on_output, None if timeout is None else began + timeout, args[0])
            returncode, usage = _wait(process)
        except BaseException:
            _end(process)
            raise
        finally:
            for pipe in (process.stdout, process.stderr):
                if pipe is not None:
                    pipe.close()
    if returncode < 0 and sink is not None and log is not None:
        with log.open("ab") as end:
            end.write(f"\nkilled by signal {-returncode}\n".encode())
    stdout, stderr = (b"".join(chunks[name]).decode("utf-8", errors="replace") for name in ("stdout", "stderr"))
    seconds = time.monotonic() - began
    if usage is None:
        return Result(args, returncode, stdout, stderr, seconds)
    # kilobytes, but bytes on macOS
    peak_rss = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
    return Result(args, returncode, stdout, stderr, seconds, peak_rss, watch.cpus(usage.ru_utime + usage.ru_stime))


def _wait(process: "subprocess.Popen[bytes]") -> tuple[int, "resource.struct_rusage | None"]:
    """Exit status as Popen gives it, and what the program used; None where the system does not tell."""
    if not hasattr(os, "wait4"):
        return process.wait(), None
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, usage


def _pump(
    process: "subprocess.Popen[bytes]",
    sink: BinaryIO | None,
    on_output: OnOutput | None,
    deadline: float | None,
    name: str,
) -> dict[str, list[bytes]]:
    """Reads both pipes until they close; returns what came through each."""
    chunks: dict[str, list[bytes]] = {"stdout": [], "stderr": []}
    with selectors.DefaultSelector() as selector:
        for stream, pipe in (("stdout", process.stdout), ("stderr", process.stderr)):
            assert pipe is not None
            selector.register(pipe, selectors.EVENT_READ, stream)
        while selector.get_map():
            left = None if deadline is None else deadline - time.monotonic()
            if left is not None and left <= 0:
                raise MachineCannot(f"{name} did not end in time and was stopped")
            for key, _ in selector.select(left):
                data = os.read(key.fd, 1 << 16)
                if not data:
                    selector.unregister(key.fileobj)
                    continue
                chunks[key.data].append(data)
                if sink is not None:
                    try:
                        sink.write(data)
                    except OSError as e:
                        raise MachineCannot(f"cannot write the log {sink.name}: {e.strerror}; free some space") from e
                if on_output is not None:
                    on_output(data.decode("utf-8", errors="replace"))
    return chunks


def _end(process: "subprocess.Popen[bytes]") -> None:
    """Asks the program to end, then makes it."""
    process.terminate()
    try:
        process.wait(timeout=5)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
