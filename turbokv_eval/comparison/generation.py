"""What comes out when a cache type generates: the steps of a comparison that run llama-kv-generate.

A row fails when its run is not the one that was asked for. Where the reference cannot be run, there is a note and no
number. Identical answers are no error here: two good caches say the same.
"""

import hashlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from turbokv_eval.comparison import needle, row_checks, trajectory
from turbokv_eval.comparison.attempts import OnShare, why
from turbokv_eval.comparison.evaluation import NOISE_FLOOR, REFERENCE, Step
from turbokv_eval.comparison.settings import Settings
from turbokv_eval.comparison.store import Store
from turbokv_eval.comparison.unit_runs import Units
from turbokv_eval.errors import CheckFailed
from turbokv_eval.machine.runner import Result
from turbokv_eval.models.types import KVConfig
from turbokv_eval.programs import generate, kv_log

# Refusals of a prompt after which the haystack is shortened again; each tells how much is too much.
_REFITS = 3


class _Generation:
    """document: of the comparison. note: takes a remark for the reader."""

    def __init__(
        self, settings: Settings, store: Store, units: Units, document: dict[str, Any], note: Callable[[str], None]
    ) -> None:
        self._settings = settings
        self._store = store
        self._units = units
        self._document = document
        self._note = note
        self._texts = [text.read_text(encoding="utf-8", errors="replace") for text in settings.texts]

    def _run(
        self, name: str, slug: str, config: KVConfig, prompts: Sequence[dict[str, Any]], ctx: int, share: OnShare
    ) -> tuple[Result, list[str]]:
        """A run of the prompts and its command. The file of prompts stays in the folder, named by what is in it."""
        s = self._settings
        asked = sum("id" in line for line in prompts)
        content = generate.lines(prompts)
        digest = hashlib.sha256(content.encode()).hexdigest()
        path = self._store.save_prompts(f"{slug.partition('-')[0]}-{digest[:12]}", content)
        argv = generate.command(
            s.bin_dir,
            s.model.path,
            config,
            path,
            ctx=ctx,
            threads=s.threads,
            # an f32 cache is one only without, as in an evaluation
            flash_attn=config not in (REFERENCE, NOISE_FLOOR),
        )
        argv += s.placement

        def done(output: str) -> bool:
            return generate.count(output) >= asked or generate.too_long(output) is not None

        key = self._units.key(name, config, argv, text=digest)
        return self._units.run(name, key, argv, self._store.log(slug), done, lambda: _Reader(asked, share)), argv

    def _base(
        self, done: Result, config: KVConfig, ids: Sequence[str]
    ) -> tuple[list[generate.Answer], kv_log.KVReport]:
        """Answers and cache of the reference or the noise floor. Raises CheckFailed."""
        if done.returncode != 0:
            raise CheckFailed(f"it failed ({why(done)})")
        contexts = kv_log.parse_contexts(done.output)[-1:]
        if wrong := kv_log.problems(config, False, contexts):
            raise CheckFailed("; ".join(wrong))
        return generate.parse(done.stdout, ids), contexts[0]

    def _row(self, done: Result, config: KVConfig, row: dict[str, Any], ids: Sequence[str]) -> list[generate.Answer]:
        """Answers of a row; none where it failed, which the row tells then."""
        if done.returncode != 0:
            row["errors"].append(f"{generate.PROGRAM} failed: {why(done)}")
            return []
        wrong = row_checks.problems(self._settings, config, kv_log.parse_contexts(done.output)[-1:])
        answers: list[generate.Answer] = []
        try:
            answers = generate.parse(done.stdout, ids)
        except CheckFailed as e:
            wrong.append(e.message)
        row["errors"] += wrong
        return [] if wrong else answers

    def _rows(self) -> Iterator[tuple[KVConfig, dict[str, Any]]]:
        return zip(self._settings.configs, self._document["rows"], strict=True)


class Trajectories(_Generation):
    """The agreement of every row with the reference's own continuation, and that of the noise floor."""

    def __init__(self, plan: trajectory.Plan, *shared: Any) -> None:
        super().__init__(*shared)
        self._plan = plan
        self._reference: list[generate.Answer] = []
        self._floor: list[int] | None = None

    def steps(self) -> Iterator[Step]:
        """Every step, in order."""
        weight = self._plan.prompts * (self._plan.n_prompt + 3 * self._plan.n_predict)
        yield "trajectory, reference", weight, self._run_reference
        yield "trajectory, noise floor", weight, self._run_floor
        for config, row in self._rows():
            yield f"trajectory {config.label}", weight, _bound(self._run_row, config, row)

    def _generate(
        self, name: str, slug: str, config: KVConfig, share: OnShare, along: Sequence[generate.Answer] | None
    ) -> tuple[Result, list[str]]:
        prompts = trajectory.prompts(self._plan, self._texts, along)
        return self._run(name, f"trajectory-{slug}", config, prompts, self._plan.ctx, share)

    def _run_reference(self, share: OnShare) -> None:
        done, argv = self._generate("trajectory, reference", "reference", REFERENCE, share, None)
        try:
            self._reference, kv = self._base(done, REFERENCE, trajectory.ids(self._plan))
        except CheckFailed as e:
            self._note(f"the trajectory was not measured: of the reference, {e.message}")
            return
        self._document["trajectory"] = {
            **self._plan.document(),
            "reference": _provenance(REFERENCE, kv, argv, done),
            "noise_floor": None,
        }

    def _run_floor(self, share: OnShare) -> None:
        if not self._reference:
            return
        done, argv = self._generate("trajectory, noise floor", "noise-floor", NOISE_FLOOR, share, self._reference)
        try:
            answers, kv = self._base(done, NOISE_FLOOR, trajectory.ids(self._plan))
        except CheckFailed as e:
            self._note(f"the noise floor of the trajectory was not measured: {e.message}")
            return
        scored = trajectory.score(self._plan, answers, None)
        self._floor = scored["lengths"]
        self._document["trajectory"]["noise_floor"] = {**_provenance(NOISE_FLOOR, kv, argv, done), "score": scored}

    def _run_row(self, config: KVConfig, row: dict[str, Any], share: OnShare) -> None:
        if row["errors"] or not self._reference:
            return
        done, argv = self._generate(f"trajectory {config.label}", config.slug, config, share, self._reference)
        row["commands"].append(argv)
        if answers := self._row(done, config, row, trajectory.ids(self._plan)):
            scored = trajectory.score(self._plan, answers, self._floor)
            row["trajectory"] = {**scored, "seconds": round(done.seconds, 1)}


class Needles(_Generation):
    """Needle retrieval of every row at one context, in the first text."""

    def __init__(self, plan: needle.Plan, ctx: int, *shared: Any) -> None:
        super().__init__(*shared)
        self._plan = plan
        self._ctx = ctx
        self._n_hay = needle.haystack_tokens(plan, ctx)
        self._ids = [one.id for one in needle.needles(plan, ctx)]
        self._entry: dict[str, Any] | None = None

    def steps(self) -> Iterator[Step]:
        """Every step, in order."""
        weight = self._plan.haystacks(self._ctx) * self._ctx + 40 * len(self._ids)
        yield f"needles at context {self._ctx}, reference", weight, self._run_reference
        for config, row in self._rows():
            yield f"needles at context {self._ctx}, {config.label}", weight, _bound(self._run_row, config, row)

    def _ask(self, what: str, slug: str, config: KVConfig, share: OnShare) -> tuple[Result, list[str]]:
        prompts = needle.prompts(self._plan, self._texts[0], self._ctx, self._n_hay)
        name = f"needles at context {self._ctx}, {what}"
        return self._run(name, f"needle-{self._ctx}-{slug}", config, prompts, self._ctx, share)

    def _run_reference(self, share: OnShare) -> None:
        for _ in range(_REFITS):
            done, argv = self._ask("reference", "reference", REFERENCE, share)
            excess = generate.too_long(done.output)
            if excess is None or self._n_hay - excess < len(self._plan.positions):
                break
            self._n_hay -= excess
        try:
            answers, kv = self._base(done, REFERENCE, self._ids)
        except CheckFailed as e:
            self._note(f"needles at context {self._ctx} were not measured: of the reference, {e.message}")
            return
        self._entry = {
            "ctx": self._ctx,
            "n_text": self._n_hay,
            "reference": _provenance(REFERENCE, kv, argv, done),
            **needle.reference_score(self._plan, self._ctx, answers),
        }
        self._document["needle"].append(self._entry)

    def _run_row(self, config: KVConfig, row: dict[str, Any], share: OnShare) -> None:
        if row["errors"] or self._entry is None:
            return
        done, argv = self._ask(config.label, config.slug, config, share)
        row["commands"].append(argv)
        if answers := self._row(done, config, row, self._ids):
            scored = needle.score(self._ctx, self._entry["needles"], answers)
            row["needle"].append({**scored, "seconds": round(done.seconds, 1)})


class _Reader:
    """Turns the output of llama-kv-generate into a share of the prompts."""

    def __init__(self, asked: int, share: OnShare) -> None:
        self._asked = asked
        self._share = share
        self._text = ""

    def __call__(self, text: str) -> None:
        self._text += text
        if done := generate.count(self._text):
            self._share(done / self._asked)


def _provenance(config: KVConfig, kv: kv_log.KVReport, argv: list[str], done: Result) -> dict[str, Any]:
    return {"type": config.label, "kv": kv.as_dict(), "command": argv, "seconds": round(done.seconds, 1)}


def _bound(method: Callable[..., None], config: KVConfig, row: dict[str, Any]) -> Callable[[OnShare], None]:
    return lambda share: method(config, row, share)
