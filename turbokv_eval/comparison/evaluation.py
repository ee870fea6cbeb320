"""One text at one context: the reference, the noise floor, and every row against the reference."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from turbokv_eval.comparison import preflight, row_checks
from turbokv_eval.comparison.attempts import ChunkReader, OnShare, check_reference_file, why
from turbokv_eval.comparison.settings import Settings
from turbokv_eval.comparison.store import Store
from turbokv_eval.comparison.unit_runs import Units
from turbokv_eval.errors import BadInput, CheckFailed
from turbokv_eval.models.types import KVConfig
from turbokv_eval.programs import kv_log, perplexity
from turbokv_eval.results import chunk_statistics

# The reference runs without flash attention: with it, llama.cpp converts an f32 cache to f16 at every use, so that an
# f32 and an f16 cache give the same logits, and the reference would be an f16 one by another name.
REFERENCE = KVConfig("f32", "f32")

# The reference computed in another way that is exactly equivalent: its keys shifted and scaled, which the softmax does
# not notice. Only rounding differs, so its divergence is the floor under every row; quantised weights amplify it.
NOISE_FLOOR = KVConfig("f32", "f32", "on")

# A step's name, its weight in tokens, and what it does.
Step = tuple[str, float, Callable[[OnShare], None]]


class Evaluation:
    """entry: its part of the document, of which `entry["text"]` is a number; note: takes a remark for the reader."""

    def __init__(
        self,
        settings: Settings,
        store: Store,
        units: Units,
        document: dict[str, Any],
        entry: dict[str, Any],
        note: Callable[[str], None],
    ) -> None:
        self._settings = settings
        self._store = store
        self._units = units
        self._rows = document["rows"]
        self._entry = entry
        self._note = note
        self._ctx: int = entry["ctx"]
        self._text: Path = settings.texts[entry["text"]]
        self._sha256: str = document["texts"][entry["text"]]["sha256"]
        self._tag = str(self._ctx) + (f"-text{entry['text'] + 1}" if len(settings.texts) > 1 else "")
        several = len(settings.evaluations) > 1
        self._at = f", {self._text.name} at context {self._ctx}" if several else ""
        argv = [str(self._ctx), str(settings.chunks), str(settings.threads)]
        self._key = units.key("reference", REFERENCE, argv, text=self._sha256)
        self._logits = store.reference(self._key)

    def steps(self) -> Iterator[Step]:
        """Every step, in order; the rows read what the reference stored, which `close` deletes."""
        tokens = self._settings.chunks * self._ctx
        yield f"reference{self._at}", tokens, self._reference
        yield f"noise floor{self._at}", tokens * 1.2, self._noise_floor
        for config, row in zip(self._settings.configs, self._rows, strict=True):
            yield f"quality {config.label}{self._at}", tokens * 1.2, _bound(self._row, config, row)

    def close(self) -> None:
        """Deletes what no row needs any more, so that one reference at a time is on the disk."""
        self._logits.unlink(missing_ok=True)

    def _command(self, config: KVConfig, *, flash_attn: bool = True) -> list[str]:
        s = self._settings
        argv = perplexity.row_command(
            s.bin_dir,
            s.model.path,
            config,
            ctx=self._ctx,
            threads=s.threads,
            store=self._logits,
            flash_attn=flash_attn,
        )
        return [*argv, *s.placement]

    def _row_key(self, name: str, config: KVConfig, argv: Sequence[str]) -> str:
        return self._units.key(name, config, argv, text=self._sha256, reference=self._key)

    def _all_rows_known(self) -> bool:
        """Whether no row needs the stored log-probabilities any more."""
        units = [(f"quality {config.label}", config, self._command(config)) for config in self._settings.configs]
        units.append(("quality noise floor", NOISE_FLOOR, self._command(NOISE_FLOOR, flash_attn=False)))
        return all(self._units.known(self._row_key(*unit)) for unit in units)

    def _reference(self, share: OnShare) -> None:
        s, ctx = self._settings, self._ctx
        # Never more chunks than the text can have: a token is at least a byte.
        chunks = min(s.chunks, self._text.stat().st_size // ctx)
        finished = self._all_rows_known()
        if not finished and not self._logits.is_file():
            self._store.need(
                perplexity.reference_bytes(ctx, chunks, s.model.n_vocab),
                "the reference (its log-probabilities, deleted later)",
            )
        argv = perplexity.reference_command(
            s.bin_dir,
            s.model.path,
            self._text,
            REFERENCE,
            ctx=ctx,
            chunks=s.chunks,
            threads=s.threads,
            store=self._logits,
        )
        argv += s.placement
        log = self._store.log(f"reference-{self._tag}")
        done = self._units.run(
            f"reference{self._at}",
            self._key,
            argv,
            log,
            lambda output: bool(perplexity.parse_reference(output, ctx) or perplexity.too_short(output)),
            lambda: ChunkReader(s.chunks, share),
            again=not self._logits.is_file() and not finished,
        )
        if short := perplexity.too_short(done.output):
            raise BadInput(
                f"the text {self._text} is too short: it has {short[1]} tokens, and two contexts of {ctx} make"
                f" {short[0]}; give a longer one with -f or a smaller --contexts"
            )
        result = perplexity.parse_reference(done.output, ctx)
        if done.returncode != 0 or result is None:
            raise CheckFailed(f"the reference run failed: {why(done)}; log: {log}")
        contexts = kv_log.parse_contexts(done.output)
        if wrong := kv_log.problems(REFERENCE, False, contexts[-1:]):
            raise CheckFailed(f"the reference run is not what was asked: {'; '.join(wrong)}; log: {log}")
        if self._logits.is_file() or not finished:
            check_reference_file(self._logits)
        preflight.check_values(ctx, result.chunks)
        if result.chunks < s.chunks:
            name = f"{self._text.name} at context {ctx}"
            self._note(f"{name} has only {result.chunks} chunks of the {s.chunks} that were asked for")
        self._entry["reference"] = {
            "type": REFERENCE.label,
            "flash_attn": False,
            "kv": contexts[-1].as_dict(),
            "command": argv,
            "seconds": round(done.seconds, 1),
            **asdict(result),
        }

    def _noise_floor(self, share: OnShare) -> None:
        """The reference again, by another way; without it, where keys cannot be conditioned, there is a note."""
        argv = self._command(NOISE_FLOOR, flash_attn=False)
        done = self._units.run(
            f"quality noise floor{self._at}",
            self._row_key("quality noise floor", NOISE_FLOOR, argv),
            argv,
            self._store.log(f"noise-floor-{self._tag}"),
            perplexity.has_statistics,
            lambda: ChunkReader(self._entry["reference"]["chunks"], share),
        )
        contexts = kv_log.parse_contexts(done.output)[-1:]
        wrong = [f"it failed ({why(done)})"] if done.returncode else kv_log.problems(NOISE_FLOOR, False, contexts)
        try:
            result = None if wrong else perplexity.parse_quality(done.output, self._ctx)
        except CheckFailed as e:
            wrong.append(e.message)
        if wrong or result is None:
            self._note(f"the noise floor{self._at} was not measured: {'; '.join(wrong)}")
            return
        self._entry["noise_floor"] = {
            "label": "noise floor",
            "kv": contexts[0].as_dict(),
            "command": argv,
            "quality": {
                **asdict(result),
                "seconds": round(done.seconds, 1),
                "by_chunk": chunk_statistics.of_run(done.output, result.ppl_base),
            },
        }

    def _row(self, config: KVConfig, row: dict[str, Any], share: OnShare) -> None:
        if row["errors"]:
            return
        argv = self._command(config)
        name = f"quality {config.label}"
        chunks = self._entry["reference"]["chunks"]
        done = self._units.run(
            f"{name}{self._at}",
            self._row_key(name, config, argv),
            argv,
            self._store.log(f"quality-{self._tag}-{config.slug}"),
            perplexity.has_statistics,
            lambda: ChunkReader(chunks, share),
        )
        row["commands"].append(argv)
        if done.returncode != 0:
            row["errors"].append(f"{perplexity.PROGRAM} failed: {why(done)}")
            return
        contexts = kv_log.parse_contexts(done.output)[-1:]
        wrong = row_checks.problems(self._settings, config, contexts)
        try:
            result = perplexity.parse_quality(done.output, self._ctx)
        except CheckFailed as e:
            wrong.append(e.message)
        else:
            if result.chunks != chunks:
                wrong.append(f"it ran {result.chunks} chunks, the reference {chunks}")
        row["errors"] += wrong
        if wrong:
            return
        if row["kv"] is None or contexts[0].cells >= row["kv"]["cells"]:
            row_checks.take_report(self._settings, config, row, contexts[0])
        row["rss_bytes"] = max(row["rss_bytes"] or 0, done.peak_rss) or None
        row["quality"].append(
            {
                "text": self._entry["text"],
                "ctx": self._ctx,
                **asdict(result),
                "seconds": round(done.seconds, 1),
                "by_chunk": chunk_statistics.of_run(done.output, result.ppl_base),
            }
        )

    def judge_twins(self) -> None:
        """Two rows with the same numbers to the last digit ran the same cache.

        Where the runs report the same cache, that is a note (`turbo3` and `turbo3@on`). Where they report different
        ones, an option did nothing, and neither row can be believed.
        """
        seen: dict[tuple[float, ...], dict[str, Any]] = {}
        for row in self._rows:
            quality = quality_at(row, self._entry)
            if quality is None:
                continue
            key = tuple(quality[name] for name in ("ppl", "kld_mean", "kld_max", "kld_p999", "rms_dp"))
            other = seen.setdefault(key, row)
            if other is row:
                continue
            if other["kv"] == row["kv"]:
                self._note(f"{other['label']} and {row['label']} are the same cache and gave identical numbers")
                continue
            for one, two in ((other, row), (row, other)):
                one["errors"].append(f"its numbers are identical to those of {two['label']}, another cache")


def quality_at(row: dict[str, Any], entry: dict[str, Any]) -> dict[str, Any] | None:
    """The numbers of a row in one evaluation of its document; None where they were not measured."""
    place = entry["text"], entry["ctx"]
    found: Iterator[dict[str, Any]] = (q for q in row["quality"] if (q["text"], q["ctx"]) == place)
    return next(found, None)


def _bound(method: Callable[..., None], config: KVConfig, row: dict[str, Any]) -> Callable[[OnShare], None]:
    return lambda share: method(config, row, share)
