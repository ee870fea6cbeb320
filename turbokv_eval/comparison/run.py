"""Runs a comparison: loads every cache type, scores it on every text and context, then times it in interleaved rounds.

Every number is read from the output of a program, and every row states which cache the program really used. The
document that comes out is the record; `report` turns it into tables.
"""

import json
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from turbokv_eval.comparison import row_checks
from turbokv_eval.comparison.attempts import OnShare, why
from turbokv_eval.comparison.document import blank
from turbokv_eval.comparison.evaluation import Evaluation
from turbokv_eval.comparison.generation import Needles, Trajectories
from turbokv_eval.comparison.record import Record
from turbokv_eval.comparison.settings import Settings
from turbokv_eval.comparison.store import Store
from turbokv_eval.comparison.unit_runs import Units
from turbokv_eval.errors import BadInput, CheckFailed, MachineCannot, ToolError
from turbokv_eval.machine import provenance
from turbokv_eval.models.types import KVConfig
from turbokv_eval.programs import bench, kv_log, perplexity
from turbokv_eval.progress import Meter
from turbokv_eval.results import chunk_statistics, schema
from turbokv_eval.results.recommend import recommend

# Share of the processors that others may keep busy during a speed run before it is called disturbed.
_DISTURBED = 0.05


@dataclass(frozen=True)
class _Step:
    """weight: in tokens processed, a rough measure of its time. then: what is done after it, at once."""

    name: str
    weight: float
    run: Callable[[OnShare], None]
    then: Callable[[], None] = lambda: None


class Comparison:
    """One run. `document` is always what has been found so far, and so is the file in the store."""

    def __init__(self, settings: Settings, store: Store, meter: Meter, command: Sequence[str]) -> None:
        self.settings = settings
        self.store = store
        self.meter = meter
        self.document = blank(settings, command)
        self._units = Units(self.document, Record(store.record))
        shared = settings, store, self._units, self.document
        self._evaluations = [Evaluation(*shared, entry, self._note) for entry in self.document["evaluations"]]
        self._generations: list[Trajectories | Needles] = []
        if settings.trajectory:
            self._generations.append(Trajectories(settings.trajectory, *shared, self._note))
        if settings.needle:
            self._generations += [
                Needles(settings.needle, ctx, *shared, self._note) for ctx in settings.needle.contexts
            ]

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
        self._note_long_contexts()
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
                step.then()
                done += step.weight
                self.store.save(self.document)
        except KeyboardInterrupt:
            self.store.keep_references = True
            self._finish("interrupted")
            raise
        except ToolError as e:
            # Another try, with more space or memory, goes on where this one ended.
            self.store.keep_references = isinstance(e, MachineCannot)
            self._finish("failed", e.message)
            raise
        self._note_disturbed_speeds()
        for evaluation in self._evaluations:
            evaluation.judge_twins()
        for row in self.document["rows"]:
            row["status"] = "failed" if row["errors"] else "ok"
        chunk_statistics.add_differences(self.document)
        if self.settings.quality:
            self.document["recommendation"] = recommend(
                self.document, max_kld=self.settings.max_kld, budget=self.settings.budget
            )
        self._finish("failed" if self.failed_rows else "complete")
        # as a reader will see it, and after it was saved: a fault of ours must not lose what was measured
        if wrong := schema.problem(json.loads(json.dumps(self.document))):
            raise CheckFailed(f"{self.store.json} does not keep its own schema ({wrong}): this is a bug of the tool")
        return self.document

    @property
    def failed_rows(self) -> list[dict[str, Any]]:
        """The rows of the document that have errors."""
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
        tokens = s.chunks * max(s.contexts)
        steps = [_Step(f"load {config.label}", tokens / 50, _bind(self._probe, config, row)) for config, row in rows]
        for evaluation in self._evaluations:
            *most, last = (_Step(*step) for step in evaluation.steps())
            steps += [*most, replace(last, then=evaluation.close)]
        steps += [_Step(*step) for generation in self._generations for step in generation.steps()]
        if s.speed:
            steps += [
                _Step(
                    f"speed at depth {depth}, round {number}, {config.label}",
                    3 * depth + s.repetitions * (bench.N_PROMPT + 4 * bench.N_GEN) + bench.N_PROMPT,
                    _bind(self._speed, config, row, depth, number),
                )
                for pairs in s.speed_rounds()
                for config, row in rows
                for depth, number in pairs
            ]
        return steps

    def _probe(self, config: KVConfig, row: dict[str, Any], share: OnShare) -> None:
        """Loads the model with the row's cache: before the long runs it shows what cannot work."""
        s = self.settings
        argv = perplexity.probe_command(
            s.bin_dir, s.model.path, config, ctx=max(s.contexts), threads=s.threads, flash_attn=True
        )
        argv += s.placement
        log, name = self.store.log(f"load-{config.slug}"), f"load {config.label}"
        key = self._units.key(name, config, argv)
        done = self._units.run(name, key, argv, log, lambda output: bool(kv_log.parse_contexts(output)))
        row["commands"].append(argv)
        contexts = kv_log.parse_contexts(done.output)
        if done.returncode != 0 or not contexts:
            raise BadInput(
                f"{s.model.path.name} does not load with cache type {config.label}: {why(done)};"
                f" choose others with --types; log: {log}"
            )
        row_checks.take_report(s, config, row, contexts[-1])

    def _speed(self, config: KVConfig, row: dict[str, Any], depth: int, number: int, share: OnShare) -> None:
        if row["errors"]:
            return
        s = self.settings
        argv = bench.command(s.bin_dir, s.model.path, config, depth=depth, repetitions=s.repetitions, threads=s.threads)
        argv += s.placement
        name = f"speed at depth {depth}, round {number}, {config.label}"
        log = self.store.log(f"speed-{depth}-round{number}-{config.slug}")
        done = self._units.run(name, self._units.key(name, config, argv), argv, log, bench.has_result)
        if number == 1:
            row["commands"].append(argv)
        if done.returncode != 0:
            row["errors"].append(f"{bench.PROGRAM} failed at depth {depth}: {why(done)}")
            return
        wrong = row_checks.problems(s, config, kv_log.parse_contexts(done.stderr))
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
            entry = {"depth": depth, "prompt": {"rounds": []}, "generation": {"rounds": []}, "other_cpus": []}
            row["speed"].append(entry)
        entry["other_cpus"].append(None if done.other_cpus is None else round(done.other_cpus, 3))
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

    def _note_disturbed_speeds(self) -> None:
        cpus = self.document["host"]["cpus"]
        runs = [
            (others, f"{row['label']} at depth {entry['depth']}")
            for row in self.document["rows"]
            for entry in row["speed"]
            for others in entry["other_cpus"]
            if others is not None
        ]
        disturbed = [run for run in runs if run[0] > _DISTURBED * cpus]
        if disturbed:
            others, run = max(disturbed)
            self._note(
                f"others kept more than {100 * _DISTURBED:.0f} % of the processors busy during {len(disturbed)} of"
                f" {len(runs)} speed runs, at most {others:.2f} of {cpus} ({run}): such speeds may be too low"
            )

    def _note_long_contexts(self) -> None:
        s = self.settings
        longest = max(
            [
                *(s.contexts if s.quality else ()),
                *(s.needle.contexts if s.needle else ()),
                *(depth + bench.N_PROMPT for depth in s.depths if s.speed),
            ],
            default=0,
        )
        if 0 < s.model.n_ctx_train < longest:
            self._note(f"the model was trained on {s.model.n_ctx_train} tokens of context, fewer than {longest}")


def _bind(method: Callable[..., None], *args: Any) -> Callable[[OnShare], None]:
    return lambda share: method(*args, share)
