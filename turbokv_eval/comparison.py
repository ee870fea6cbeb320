"""Runs a comparison: a reference, then every cache type against it, then speed in interleaved rounds.

Every number is read from the output of a program, and every row states which cache the program really used. The
document that comes out is the record; `report` turns it into tables.
"""

import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from turbokv_eval import bench, chunk_statistics, compare_schema, kv_log, perplexity, preflight, provenance, runner
from turbokv_eval.assets import sha256_file
from turbokv_eval.attempts import ChunkReader, OnShare, check_reference_file, run_until, why
from turbokv_eval.document import blank
from turbokv_eval.errors import BadInput, CheckFailed, ToolError
from turbokv_eval.progress import Meter
from turbokv_eval.recommend import recommend
from turbokv_eval.record import Record, identity
from turbokv_eval.settings import Settings
from turbokv_eval.store import Store
from turbokv_eval.types import KVConfig

# The reference runs without flash attention: with it, llama.cpp converts an f32 cache to f16 at every use, so that an
# f32 and an f16 cache give the same logits, and the reference would be an f16 one by another name.
REFERENCE = KVConfig("f32", "f32")

# The reference computed in another way that is exactly equivalent: its keys shifted and scaled, which the softmax does
# not notice. Only rounding differs, so its divergence is the floor under every row; quantised weights amplify it.
NOISE_FLOOR = KVConfig("f32", "f32", "on")

# Two ways to count the same bits: printed sizes have two decimals.
_BITS_TOLERANCE = 0.02


@dataclass(frozen=True)
class _Step:
    """weight: in tokens processed, a rough measure of its time."""

    name: str
    weight: float
    run: Callable[[OnShare], None]


class Comparison:
    """One run. `document` is always what has been found so far, and so is the file in the store."""

    def __init__(self, settings: Settings, store: Store, meter: Meter, command: Sequence[str]) -> None:
        self.settings = settings
        self.store = store
        self.meter = meter
        self._reference_chunks = 0
        self._reference_key = ""
        self._record = Record(store.record)
        self.document = blank(settings, command)

    def run(self) -> dict[str, Any]:
        """Does every step and returns the document. A row that fails is marked and the others go on.

        Raises BadInput (the text is too short, the model cannot take a type), MachineCannot, or CheckFailed (no
        reference).
        """
        found, wanted = self.document["model"]["sha256"], self.settings.model_sha256
        if wanted is not None and wanted.lower() != found:
            raise BadInput(
                f"{self.settings.model.path} has SHA-256 {found}, not {wanted}: it is another file, or damaged"
            )
        self._note_conditions()
        # Saved first, so that a folder that cannot take the result is found out before the work.
        self.store.save(self.document)
        steps = self._plan()
        total, done = sum(step.weight for step in steps), 0.0
        try:
            for number, step in enumerate(steps, 1):
                what = f"[{number}/{len(steps)}] {step.name}"
                self.meter.update(done, total, what)

                def share(part: float, done: float = done, step: _Step = step, what: str = what) -> None:
                    self.meter.update(done + step.weight * min(part, 1.0), total, what)

                step.run(share)
                done += step.weight
                self.store.save(self.document)
        except KeyboardInterrupt:
            self.store.keep_reference = True
            self._finish("interrupted")
            raise
        except ToolError as e:
            self._finish("failed", e.message)
            raise
        self._judge_twins()
        for row in self.document["rows"]:
            row["status"] = "failed" if row["errors"] else "ok"
        self.document["statistics"] = chunk_statistics.differences(self.document["rows"])
        if self.settings.quality:
            self.document["recommendation"] = recommend(
                self.document, max_kld=self.settings.max_kld, budget=self.settings.budget
            )
        self._finish("failed" if self.failed_rows else "complete")
        # as a reader will see it, and after it was saved: a fault of ours must not lose what was measured
        if wrong := compare_schema.problem(json.loads(json.dumps(self.document))):
            raise CheckFailed(f"{self.store.json} does not keep its own schema ({wrong}): this is a bug of the tool")
        return self.document

    @property
    def failed_rows(self) -> list[dict[str, Any]]:
        return [row for row in self.document["rows"] if row["errors"]]

    def _finish(self, status: str, error: str | None = None) -> None:
        self.document["status"] = status
        self.document["finished"] = provenance.now()
        if error is not None:
            self.document["error"] = error
        self.store.save(self.document)

    def _plan(self) -> list[_Step]:
        s = self.settings
        rows = list(zip(s.configs, self.document["rows"], strict=True))
        tokens = s.chunks * s.ctx
        steps = [_Step(f"load {config.label}", tokens / 50, _bind(self._probe, config, row)) for config, row in rows]
        if s.quality:
            steps.append(_Step("reference", tokens, self._reference))
            steps.append(_Step("noise floor", tokens * 1.2, self._noise_floor))
            steps += [
                _Step(f"quality {config.label}", tokens * 1.2, _bind(self._quality, config, row))
                for config, row in rows
            ]
        if s.speed:
            for depth in s.depths:
                for number in range(1, s.rounds_at(depth) + 1):
                    weight = 3 * depth + s.repetitions * (bench.N_PROMPT + 4 * bench.N_GEN) + bench.N_PROMPT
                    name = f"speed at depth {depth}, round {number}"
                    steps += [
                        _Step(f"{name}, {config.label}", weight, _bind(self._speed, config, row, depth, number))
                        for config, row in rows
                    ]
        return steps

    def _row_command(self, config: KVConfig) -> list[str]:
        s = self.settings
        argv = perplexity.row_command(
            s.bin_dir, s.model.path, config, ctx=s.ctx, threads=s.threads, store=self.store.reference
        )
        return [*argv, *s.placement]

    def _floor_command(self) -> list[str]:
        s = self.settings
        argv = perplexity.row_command(
            s.bin_dir,
            s.model.path,
            NOISE_FLOOR,
            ctx=s.ctx,
            threads=s.threads,
            store=self.store.reference,
            flash_attn=False,
        )
        return [*argv, *s.placement]

    def _key(self, name: str, config: KVConfig, argv: Sequence[str]) -> str:
        """The identity of a unit. Rotation and codebook are in the hashes of the build, the other settings in argv."""
        document = self.document
        file = Path(config.condition) if config.condition not in ("", "auto", "on", "off") else None
        return identity(
            {
                "name": name,
                "argv": list(argv),
                "build": document["build"]["sha256"],
                "model": document["model"]["sha256"],
                "text": document["text"] and document["text"]["sha256"],
                "condition": sha256_file(file) if file else config.condition,
                "reference": self._reference_key if name.startswith("quality") else "",
                "cpu": [document["host"]["cpu"], document["host"]["cpus"]],
            }
        )

    def _all_rows_known(self) -> bool:
        """Whether no row needs the stored log-probabilities any more."""
        units = [(f"quality {config.label}", config, self._row_command(config)) for config in self.settings.configs]
        units.append(("quality noise floor", NOISE_FLOOR, self._floor_command()))
        return all(self._record.get(self._key(*unit)) for unit in units)

    def _unit(
        self,
        name: str,
        config: KVConfig,
        argv: Sequence[str],
        log: Path,
        has_result: Callable[[str], bool],
        reader: Callable[[], runner.OnOutput] | None = None,
        again: bool = False,
    ) -> runner.Result:
        """A run out of the record, or else a new one, which goes there when it ended well. again: in any case anew."""
        key = self._key(name, config, argv)
        known = self._record.get(key)
        if known is not None and not again:
            return known
        done = run_until(has_result, argv, log, reader)
        if done.returncode == 0 and has_result(done.output):
            self._record.add(name, key, done)
        return done

    def _probe(self, config: KVConfig, row: dict[str, Any], share: OnShare) -> None:
        """Loads the model with the row's cache: before the long runs it shows what cannot work."""
        s = self.settings
        argv = perplexity.probe_command(s.bin_dir, s.model.path, config, ctx=s.ctx, threads=s.threads, flash_attn=True)
        argv += s.placement
        log = self.store.log(f"load-{config.slug}")
        done = self._unit(f"load {config.label}", config, argv, log, lambda output: bool(kv_log.parse_contexts(output)))
        row["commands"].append(argv)
        contexts = kv_log.parse_contexts(done.output)
        if done.returncode != 0 or not contexts:
            raise BadInput(
                f"{s.model.path.name} does not load with cache type {config.label}: {why(done)};"
                f" choose others with --types; log: {log}"
            )
        self._take_report(config, row, contexts[-1])

    def _problems(self, config: KVConfig, reports: list[kv_log.KVReport]) -> list[str]:
        """How a row's run differs from what was asked for: its cache, and where that is."""
        found = kv_log.problems(config, True, reports)
        if self.settings.gpu_layers and any(set(report.devices) <= {"CPU"} for report in reports):
            found.append(
                f"{self.settings.gpu_layers} layers were asked onto a GPU, and the cache was in the CPU's memory: is it"
                f" a GPU build, and does the driver see the device? `turbokv-eval doctor` tells"
            )
        return found

    def _take_report(self, config: KVConfig, row: dict[str, Any], report: kv_log.KVReport) -> None:
        row["errors"] += self._problems(config, [report])
        row["kv"] = report.as_dict()
        bits = kv_log.bits_per_value(report, self.settings.model)
        row["bits_per_value"] = None if bits is None else round(bits, 4)
        logged = kv_log.logged_bits(report)
        if bits is not None and logged is not None and abs(bits / logged - 1) > _BITS_TOLERANCE:
            row["errors"].append(f"the run reports {logged:.3f} bits a value, but its bytes make {bits:.3f}")

    def _reference(self, share: OnShare) -> None:
        s = self.settings
        assert s.text is not None
        # Never more chunks than the text can have: a token is at least a byte.
        chunks = min(s.chunks, s.text.stat().st_size // s.ctx)
        self.store.need(
            perplexity.reference_bytes(s.ctx, chunks, s.model.n_vocab),
            "the reference (its log-probabilities, deleted later)",
        )
        self._reference_key = self._key("reference", REFERENCE, [str(s.ctx), str(s.chunks), str(s.threads)])
        self.store.reference = self.store.folder / f"reference-logits-{self._reference_key[:16]}.tmp"
        argv = perplexity.reference_command(
            s.bin_dir,
            s.model.path,
            s.text,
            REFERENCE,
            ctx=s.ctx,
            chunks=s.chunks,
            threads=s.threads,
            store=self.store.reference,
        )
        argv += s.placement
        log = self.store.log("reference")
        done = self._unit(
            "reference",
            REFERENCE,
            argv,
            log,
            lambda output: bool(perplexity.parse_reference(output, s.ctx) or perplexity.too_short(output)),
            lambda: ChunkReader(s.chunks, share),
            again=not self.store.reference.is_file() and not self._all_rows_known(),
        )
        if short := perplexity.too_short(done.output):
            raise BadInput(
                f"the text {s.text} is too short: it has {short[1]} tokens, and two contexts of {s.ctx} make {short[0]}"
                f"; give a longer one with -f or a smaller --ctx"
            )
        result = perplexity.parse_reference(done.output, s.ctx)
        if done.returncode != 0 or result is None:
            raise CheckFailed(f"the reference run failed: {why(done)}; log: {log}")
        contexts = kv_log.parse_contexts(done.output)
        if wrong := kv_log.problems(REFERENCE, False, contexts[-1:]):
            raise CheckFailed(f"the reference run is not what was asked: {'; '.join(wrong)}; log: {log}")
        if self.store.reference.is_file() or not self._all_rows_known():
            check_reference_file(self.store.reference)
        preflight.check_values(s.ctx, result.chunks)
        if result.chunks < s.chunks:
            self._note(f"the text has only {result.chunks} chunks of the {s.chunks} that were asked for")
        self._reference_chunks = result.chunks
        self.document["reference"] = {
            "type": REFERENCE.label,
            "flash_attn": False,
            "kv": contexts[-1].as_dict(),
            "command": argv,
            "seconds": round(done.seconds, 1),
            **asdict(result),
        }

    def _noise_floor(self, share: OnShare) -> None:
        """The reference again, by another way; without it, where keys cannot be conditioned, there is a note."""
        argv = self._floor_command()
        done = self._unit(
            "quality noise floor",
            NOISE_FLOOR,
            argv,
            self.store.log("noise-floor"),
            perplexity.has_statistics,
            lambda: ChunkReader(self._reference_chunks, share),
        )
        contexts = kv_log.parse_contexts(done.output)[-1:]
        wrong = [f"it failed ({why(done)})"] if done.returncode else kv_log.problems(NOISE_FLOOR, False, contexts)
        try:
            result = None if wrong else perplexity.parse_quality(done.output, self.settings.ctx)
        except CheckFailed as e:
            wrong.append(e.message)
        if wrong or result is None:
            self._note(f"the noise floor was not measured: {'; '.join(wrong)}")
            return
        self.document["noise_floor"] = {
            "label": "noise floor",
            "kv": contexts[0].as_dict(),
            "command": argv,
            "quality": {**asdict(result), "seconds": round(done.seconds, 1)},
        }

    def _quality(self, config: KVConfig, row: dict[str, Any], share: OnShare) -> None:
        if row["errors"]:
            return
        s = self.settings
        argv = self._row_command(config)
        log = self.store.log(f"quality-{config.slug}")
        done = self._unit(
            f"quality {config.label}",
            config,
            argv,
            log,
            perplexity.has_statistics,
            lambda: ChunkReader(self._reference_chunks, share),
        )
        row["commands"].append(argv)
        if done.returncode != 0:
            row["errors"].append(f"{perplexity.PROGRAM} failed: {why(done)}")
            return
        contexts = kv_log.parse_contexts(done.output)[-1:]
        wrong = self._problems(config, contexts)
        try:
            result = perplexity.parse_quality(done.output, s.ctx)
        except CheckFailed as e:
            wrong.append(e.message)
        else:
            if result.chunks != self._reference_chunks:
                wrong.append(f"it ran {result.chunks} chunks, the reference {self._reference_chunks}")
        row["errors"] += wrong
        if not wrong:
            self._take_report(config, row, contexts[0])
            row["quality"] = {**asdict(result), "seconds": round(done.seconds, 1)}
            row["rss_bytes"] = done.peak_rss or None
            row["chunks"] = chunk_statistics.of_run(done.output)

    def _speed(self, config: KVConfig, row: dict[str, Any], depth: int, number: int, share: OnShare) -> None:
        if row["errors"]:
            return
        s = self.settings
        argv = bench.command(s.bin_dir, s.model.path, config, depth=depth, repetitions=s.repetitions, threads=s.threads)
        argv += s.placement
        done = self._unit(
            f"speed at depth {depth}, round {number}, {config.label}",
            config,
            argv,
            self.store.log(f"speed-{depth}-round{number}-{config.slug}"),
            lambda _: True,
        )
        if number == 1:
            row["commands"].append(argv)
        if done.returncode != 0:
            row["errors"].append(f"{bench.PROGRAM} failed at depth {depth}: {why(done)}")
            return
        wrong = self._problems(config, kv_log.parse_contexts(done.stderr))
        try:
            found = bench.parse(done.stdout)
        except CheckFailed as e:
            wrong.append(e.message)
            found = []
        wrong += [f"{bench.PROGRAM} ran at depth {m.depth}, not {depth}" for m in found if m.depth != depth][:1]
        row["errors"] += wrong
        if wrong:
            return
        entry = next((entry for entry in row["speed"] if entry["depth"] == depth), None)
        if entry is None:
            entry = {"depth": depth, "prompt": {"rounds": []}, "generation": {"rounds": []}}
            row["speed"].append(entry)
        for m in found:
            side = entry[m.kind]
            side["rounds"].append(list(m.samples))
            # The median over rounds of a round's median: one disturbed round cannot move it.
            side["median"] = round(statistics.median(statistics.median(samples) for samples in side["rounds"]), 3)
            flat = [sample for samples in side["rounds"] for sample in samples]
            side["min"], side["max"], side["n"] = min(flat), max(flat), len(flat)

    def _note(self, text: str) -> None:
        self.document["notes"].append(text)
        self.meter.say(f"note: {text}")

    def _note_conditions(self) -> None:
        s = self.settings
        load, cpus = self.document["host"]["load_average_at_start"], self.document["host"]["cpus"]
        if s.speed and load is not None and load > 0.5 * cpus:
            self._note(f"the machine was busy at the start (load {load} on {cpus} processors): speeds may be too low")
        longest = max(
            [s.ctx if s.quality else 0, *(depth + bench.N_PROMPT for depth in s.depths if s.speed)], default=0
        )
        if 0 < s.model.n_ctx_train < longest:
            self._note(f"the model was trained on {s.model.n_ctx_train} tokens of context, fewer than {longest}")

    def _judge_twins(self) -> None:
        """Two rows with the same numbers to the last digit ran the same cache.

        Where the runs report the same cache, that is a note (`turbo3` and `turbo3@on`). Where they report different
        ones, an option did nothing, and neither row can be believed.
        """
        seen: dict[tuple[float, ...], dict[str, Any]] = {}
        for row in self.document["rows"]:
            if not (quality := row["quality"]):
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


def _bind(method: Callable[..., None], *args: Any) -> Callable[[OnShare], None]:
    return lambda share: method(*args, share)
