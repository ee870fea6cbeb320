"""Runs a program of the build until it has a result, tells how far it is, and says why it failed."""

import struct
from collections.abc import Callable, Sequence
from pathlib import Path

from turbokv_eval.errors import MachineCannot
from turbokv_eval.machine import runner
from turbokv_eval.programs import perplexity

# llama.cpp logs from a thread of its own that it does not wait for at exit, so that the end of the output is sometimes
# lost on a busy machine. A run without any result is repeated.
_ATTEMPTS = 3

# Share of a step that is done, 0 to 1.
OnShare = Callable[[float], None]


class ChunkReader:
    """Turns the output of llama-perplexity into a share of the chunks."""

    def __init__(self, chunks: int, share: OnShare) -> None:
        self._chunks = max(chunks, 1)
        self._share = share
        self._text = ""

    def __call__(self, text: str) -> None:
        """Takes what the program printed next."""
        self._text += text
        if done := perplexity.finished_chunks(self._text):
            self._share(done / self._chunks)


def run_until(
    has_result: Callable[[str], bool],
    argv: Sequence[str],
    log: Path,
    reader: Callable[[], runner.OnOutput] | None = None,
) -> runner.Result:
    """Runs `argv` again while its output has neither a result nor a reason for having none."""
    for attempt in range(1, _ATTEMPTS + 1):
        done = runner.run(argv, log=log, on_output=reader() if reader else None)
        if attempt == _ATTEMPTS or done.returncode < 0 or has_result(done.output) or perplexity.failure(done.output):
            break
    return done


def check_reference_file(path: Path) -> None:
    """llama-perplexity does not notice when its file could not be written; the rows would then read garbage."""
    try:
        size = path.stat().st_size
        with path.open("rb") as file:
            magic, ctx, n_vocab, chunks = struct.unpack("=8sIii", file.read(20))
    except (OSError, struct.error) as e:
        raise MachineCannot(f"{path} was not written whole (is the disk full?): free some space or use --run") from e
    need = perplexity.reference_bytes(ctx, chunks, n_vocab)
    if magic != b"_logits_" or size < need:
        raise MachineCannot(
            f"{path} has {size} bytes of {need} (is the disk full?): free some space, or use another --run"
        )


def is_whole(path: Path) -> bool:
    """Whether the file of a reference can be read again."""
    try:
        check_reference_file(path)
    except MachineCannot:
        return False
    return True


def why(done: runner.Result) -> str:
    """Why a run failed, in a few words."""
    said = perplexity.failure(done.output)
    if done.returncode < 0:
        return (
            f"killed by signal {-done.returncode}"
            + (f" ({said})" if said else "")
            + (", perhaps out of memory" if done.returncode == -9 else "")
        )
    return said or f"exit status {done.returncode} without a message"
