"""What gates and reports read in a comparison: one view of its document, whatever the version of that."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from turbokv_eval.errors import BadInput
from turbokv_eval.results import chunk_statistics, schema, upgrades
from turbokv_eval.units import MIB


@dataclass(frozen=True)
class Number:
    """A measured value, with the ends of its interval where there is one."""

    value: float
    low: float | None = None
    high: float | None = None


@dataclass(frozen=True)
class Quality:
    """A row against the reference, over one text at one context.

    numbers: by name: ppl, dppl (less the reference's), kld_mean, kld_median, kld_p99, kld_p999, kld_max (nats),
             same_top, rms_dp (percent), and what else the document has.
    alike:   labels of the rows that it is not told apart from, of those that its mean KLD was held against.
    """

    ctx: int
    text: str
    chunks: int
    numbers: Mapping[str, Number] = field(default_factory=dict)
    alike: tuple[str, ...] = ()


@dataclass(frozen=True)
class Speed:
    """Tokens a second with `depth` tokens in the cache before. pp: prompt; tg: generation."""

    depth: int
    pp: Number | None
    tg: Number | None


@dataclass(frozen=True)
class Trajectory:
    """Greedy tokens like the reference's before the first other one.

    Mean and median over prompts, of at most n_predict tokens, which `censored` of n prompts agree to the end. top1:
    percent of all positions with the same most probable token. from_floor: mean less that of the noise floor.
    """

    n_predict: int
    n: int
    censored: int
    mean: Number
    median: Number
    top1: Number
    from_floor: Number | None


@dataclass(frozen=True)
class Needle:
    """Needles found, of n that the reference finds, at a context length, at a depth of the text in percent.

    n is 0 where the reference finds none, which is no evidence. logprob: of the answer, nats, mean over all needles.
    """

    ctx: int
    depth: float
    found: int
    n: int
    logprob: float

    @property
    def score(self) -> float | None:
        """The share that was found, 0 to 1."""
        return self.found / self.n if self.n else None


@dataclass(frozen=True)
class Cache:
    """One part of a cache as allocated: bytes for `cells` tokens. windowed: it has a sliding window."""

    cells: int
    bytes: float
    windowed: bool


@dataclass(frozen=True)
class Row:
    """One cache type. None or empty: not measured.

    kv_bytes: of the cache as the run reports it, for `cells` tokens; caches: its parts. rss_bytes: peak resident memory
    of a run. conditioned: whether its keys were. commands: what was run. dlogprob: by context, log-probability of the
    needles' answers less the reference's, nats.
    """

    label: str
    k: str
    v: str
    status: str
    errors: tuple[str, ...]
    conditioned: bool | None
    bits: float | None
    kv_bytes: int | None
    cells: int | None
    rss_bytes: int | None
    caches: tuple[Cache, ...]
    quality: tuple[Quality, ...]
    speed: tuple[Speed, ...]
    trajectory: Trajectory | None
    needle: tuple[Needle, ...]
    commands: tuple[tuple[str, ...], ...]
    dlogprob: Mapping[int, Number] = field(default_factory=dict)

    def worst(self, name: str, *, highest: bool) -> Number | None:
        """The highest or lowest value of a quality number over all texts and contexts; None when any lacks it."""
        found = [quality.numbers.get(name) for quality in self.quality]
        numbers = [number for number in found if number is not None]
        if not numbers or len(numbers) < len(found):
            return None
        return (max if highest else min)(numbers, key=lambda number: number.value)

    def bytes_at(self, ctx: int) -> float | None:
        """Bytes of the cache at another context; None where it is not known how it grows.

        A window grows to its end only, which does not show as long as it is as large as the context was.
        """
        full = max((cache.cells for cache in self.caches), default=0)
        if not self.caches or any(cache.windowed and cache.cells >= full for cache in self.caches):
            return None
        return sum(
            cache.bytes * (min(ctx / cache.cells, 1.0) if cache.windowed else ctx / cache.cells)
            for cache in self.caches
        )

    def speed_at(self, depth: int) -> Speed | None:
        """The speeds at a depth of that many tokens; None when they were not measured."""
        return next((speed for speed in self.speed if speed.depth == depth), None)


@dataclass(frozen=True)
class Run:
    """A comparison.

    document:     as it was read, in the form of the current version.
    noise_floors: by text and context: mean KLD, in nats, that rounding alone gives.
    trajectory_floor: mean of the tokens of a trajectory that rounding alone leaves like the reference's.
    needle_reference: what the reference finds, of all needles.
    """

    document: dict[str, Any]
    rows: tuple[Row, ...]
    status: str
    notes: tuple[str, ...]
    reference: str
    recommendation: str = ""
    noise_floors: Mapping[tuple[str, int], float] = field(default_factory=dict)
    trajectory_floor: Number | None = None
    needle_reference: tuple[Needle, ...] = ()

    def row(self, label: str) -> Row | None:
        """The row of that label; None when there is none."""
        return next((row for row in self.rows if row.label == label), None)

    @property
    def labels(self) -> list[str]:
        """The labels of the rows, in order."""
        return [row.label for row in self.rows]


def load(path: Path) -> Run:
    """Reads the JSON of a comparison, or of the folder that holds it. Raises BadInput."""
    file = path / "compare.json" if path.is_dir() else path
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except OSError as e:
        raise BadInput(f"cannot read {file}: {e.strerror}; give the compare.json of `turbokv-eval compare`") from e
    except ValueError as e:
        raise BadInput(f"{file} is not JSON ({e}): give the compare.json of `turbokv-eval compare`") from e
    return view(document, str(file))


def view(document: Any, name: str = "the document") -> Run:
    """The view of a document. Raises BadInput for one that is no comparison, or of an unknown version."""
    if not isinstance(document, dict) or "rows" not in document or "schema_version" not in document:
        raise BadInput(f"{name} is no comparison: give the compare.json of `turbokv-eval compare`")
    version = document["schema_version"]
    try:
        if version == schema.VERSION:
            document = upgrades.filled(document)
        else:
            upgrade = upgrades.OLDER.get(version) if isinstance(version, int) else None
            if upgrade is None:
                known = " and ".join(map(str, (*upgrades.OLDER, schema.VERSION)))
                raise BadInput(f"{name} has schema version {version}, and this program reads {known}: update it")
            document = upgrade(document)
    except (LookupError, TypeError, AttributeError) as e:
        raise BadInput(f"{name} is damaged ({type(e).__name__}: {e}): run the comparison again") from e
    if wrong := schema.problem(document) or _unlike(document):
        raise BadInput(f"{name} is damaged ({wrong}): run the comparison again")
    return _view(document)


def _unlike(document: dict[str, Any]) -> str | None:
    """A row whose quality is not of the text, context and chunks that the others are held against, in words."""
    chunks = {
        (entry["text"], entry["ctx"]): entry["reference"] and entry["reference"]["chunks"]
        for entry in document["evaluations"]
    }
    if any(text >= len(document["texts"]) for text, _ in chunks):
        return "an evaluation is of a text that is not listed"
    for row in document["rows"]:
        for quality in row["quality"]:
            own, place = quality["chunks"], (quality["text"], quality["ctx"])
            if chunks.get(place) != own:
                return f"{row['label']} has {own} chunks of text {place[0]} at context {place[1]}, unlike the reference"
    return None


_QUALITY = ("kld_median", "kld_p99", "kld_p999", "kld_max", "rms_dp")
_WITH_ERROR = {"kld_mean": "kld_err", "same_top": "same_top_err"}
# 95% of a normal distribution lie within that many standard errors.
_Z95 = 1.959964


def text_names(document: dict[str, Any]) -> list[str]:
    """Names of the texts that tell them apart: of the files, else their paths."""
    files = [text["file"] for text in document["texts"]]
    return files if len(set(files)) == len(files) else [text["path"] for text in document["texts"]]


def interval(quality: dict[str, Any], name: str) -> tuple[float, float]:
    """95% interval of ppl, dppl, kld_mean or same_top.

    Over chunks where that was made, else from the standard error that the run prints. Those of the perplexities are
    paired with the reference: of ln(PPL / PPL of the reference).
    """
    by_chunk = (quality.get("by_chunk") or {}).get({"kld_mean": "kld_interval"}.get(name, f"{name}_interval"))
    if by_chunk:
        return by_chunk[0], by_chunk[1]
    if name in ("ppl", "dppl"):
        half = _Z95 * quality["ln_ratio_err"]
        low, high = (quality["ppl_base"] * math.exp(quality["ln_ratio"] + end) for end in (-half, half))
        return (low, high) if name == "ppl" else (low - quality["ppl_base"], high - quality["ppl_base"])
    half = _Z95 * quality[_WITH_ERROR[name]]
    return quality[name] - half, quality[name] + half


def _view(document: dict[str, Any]) -> Run:
    names = text_names(document)
    entries = document["evaluations"]
    at = {(entry["text"], entry["ctx"]): entry for entry in entries}

    def quality(label: str, found: dict[str, Any]) -> Quality:
        numbers = {name: Number(found[name]) for name in _QUALITY}
        for name in ("ppl", "dppl", "kld_mean", "same_top"):
            numbers[name] = Number(found[name], *interval(found, name))
        alike = tuple(chunk_statistics.alike(document, at[found["text"], found["ctx"]], label))
        return Quality(found["ctx"], names[found["text"]], found["chunks"], numbers, alike)

    def row(found: dict[str, Any]) -> Row:
        kv = found["kv"]
        return Row(
            label=found["label"],
            k=found["k"],
            v=found["v"],
            status=found["status"],
            errors=tuple(found["errors"]),
            conditioned=kv["conditioned"] if kv else None,
            bits=found["bits_per_value"],
            kv_bytes=round(kv["mib"] * MIB) if kv else None,
            cells=kv["cells"] if kv else None,
            rss_bytes=found.get("rss_bytes"),
            caches=_caches(kv) if kv else (),
            quality=tuple(quality(found["label"], one) for one in found["quality"]),
            speed=tuple(
                Speed(entry["depth"], _rate(entry["prompt"]), _rate(entry["generation"])) for entry in found["speed"]
            ),
            trajectory=_trajectory(document, found["trajectory"]),
            needle=tuple(
                Needle(score["ctx"], cell["position"], cell["found"], cell["n"], cell["logprob"])
                for score in found["needle"]
                for cell in score["cells"]
            ),
            commands=tuple(tuple(argv) for argv in found["commands"]),
            dlogprob={score["ctx"]: _with_ends(score, "dlogprob") for score in found["needle"]},
        )

    floor = (document["trajectory"] or {}).get("noise_floor")
    reference = next((entry["reference"]["type"] for entry in entries if entry["reference"]), None)
    return Run(
        document=document,
        rows=tuple(row(found) for found in document["rows"]),
        status=document["status"],
        notes=tuple(document["notes"]),
        reference=f"{reference} cache without flash attention" if reference else "",
        # documents of before these were measured lack them
        recommendation=(document.get("recommendation") or {}).get("text", ""),
        noise_floors={
            (names[entry["text"]], entry["ctx"]): entry["noise_floor"]["quality"]["kld_mean"]
            for entry in entries
            if entry["noise_floor"]
        },
        trajectory_floor=_with_ends(floor["score"], "mean") if floor else None,
        needle_reference=tuple(needle for entry in document["needle"] for needle in _needle_reference(entry)),
    )


def _trajectory(document: dict[str, Any], score: dict[str, Any] | None) -> Trajectory | None:
    if score is None:
        return None

    return Trajectory(
        n_predict=document["trajectory"]["n_predict"],
        n=len(score["lengths"]),
        censored=score["censored"],
        mean=_with_ends(score, "mean"),
        median=_with_ends(score, "median"),
        top1=_with_ends(score, "top1"),
        from_floor=None if score["from_floor"] is None else _with_ends(score, "from_floor"),
    )


def _with_ends(score: dict[str, Any], name: str) -> Number:
    return Number(score[name], *(score[f"{name}_interval"] or ()))


def _needle_reference(entry: dict[str, Any]) -> list[Needle]:
    cells: dict[float, list[dict[str, Any]]] = {}
    for needle in entry["needles"]:
        cells.setdefault(needle["position"], []).append(needle)
    return [
        Needle(
            entry["ctx"],
            position,
            sum(needle["found"] for needle in cell),
            len(cell),
            sum(needle["logprob"] for needle in cell) / len(cell),
        )
        for position, cell in sorted(cells.items())
    ]


def _caches(kv: dict[str, Any]) -> tuple[Cache, ...]:
    # A context has one cache, or one of full layers and then one of windows.
    windows = [index > 0 for index in range(len(kv["caches"]))]
    return tuple(
        Cache(found["cells"] * found["streams"], (found["k_mib"] + found["v_mib"]) * MIB, windowed)
        for found, windowed in zip(kv["caches"], windows, strict=True)
    )


def _rate(found: dict[str, Any]) -> Number | None:
    return Number(found["median"], found["min"], found["max"]) if "median" in found else None
