"""What a quantiser does to real attention: scores, distribution, top tokens and output, head by head.

Queries of the second half of a capture attend to all keys before them; the keys, or the values, come out of a
quantiser. The other side stays exact, so that each table says what one side costs.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from turbokv_eval.errors import BadInput
from turbokv_eval.lab.capture import Capture, Layer
from turbokv_eval.lab.method import Fitted, Method

F32 = NDArray[np.float32]
Bools = NDArray[np.bool_]
Positions = NDArray[np.int64]
OnShare = Callable[[float, str], None]

SCHEMA = "turbokv-lab-attention/1"
SIDES = ("keys", "values")
# Of a key method; a value method has the last one only.
METRICS = ("cosine", "score_error", "kl", "top1", "top5", "output_error")
# By which methods are ranked and compared with the baseline.
RANKED_BY = {"keys": "kl", "values": "output_error"}
# A kept token is stored as f16.
KEPT_BITS = 16.0
# Logit of a token that is not seen: its weight is 0, and unlike -inf it can be subtracted from itself.
UNSEEN = np.float32(-1e9)
# Suffix of a method's name that makes it quantise keys before RoPE.
PRE_ROPE = "@pre"


@dataclass(frozen=True)
class Settings:
    """How to measure.

    queries: about so many for each head, in blocks of `block` consecutive ones, spread over the second half.
    window:  recent tokens, the query's own included, that stay as they are.
    sinks:   first tokens that stay as they are.
    resamples, seed: of the bootstrap.
    """

    queries: int = 256
    block: int = 16
    window: int = 0
    sinks: int = 0
    resamples: int = 2000
    seed: int = 0

    def positions(self, n: int) -> Positions:
        """Token positions of the queries, int64 [blocks * block]: in the second half of n tokens, ascending.

        Raises BadInput when the second half is shorter than a block.
        """
        first, last = n // 2, n - self.block
        if last < first or self.block < 1 or self.queries < self.block:
            raise BadInput(f"{n} tokens have no {self.block} queries in their second half: capture more (--ctx)")
        blocks = min(self.queries // self.block, (n - first) // self.block)
        starts = np.linspace(first, last, blocks).astype(np.int64)
        return (starts[:, None] + np.arange(self.block)).reshape(-1)


# --- exact attention --------------------------------------------------------------------------------------------------


def visible(positions: Positions, n: int, window: int) -> Bools:
    """bool [m, n]: which of n tokens a query at each of m positions sees. window: see Layer."""
    distance = positions[:, None] - np.arange(n)
    seen = distance >= 0
    return seen & (distance < window) if window else seen


def logits(products: F32, layer: Layer, seen: Bools) -> F32:
    """products: f32 [..., m, n] of queries and keys; seen: bool [m, n]. The logits, UNSEEN where not seen."""
    scores = products * np.float32(layer.scale)
    if layer.softcap:
        cap = np.float32(layer.softcap)
        scores = cap * np.tanh(scores / cap)
    return np.where(seen, scores, UNSEEN)


@dataclass(frozen=True)
class Reference:
    """Exact attention of the query heads of one KV head: g heads, m queries, n tokens.

    queries: f32 [g, m, d], keys f32 [n, d], values f32 [n, dv]; seen, kept (seen and not quantised): bool [m, n].
    offset: f32 [g, m, 1], the highest logit of each row, which is taken out of all of them before exp.
    scores: f32 [g, m, n] logits less offset; sinks: f32 [g, m, 1] less offset, or None.
    log_z: f32 [g, m], log of the denominator of the softmax; weights: f32 [g, m, n]; output: f32 [g, m, dv].
    centred: f32 [g, m, n], the logits less the mean of those that are seen, 0 elsewhere; norm: f32 [g, m], its length.
    top: int [g, m, 5], the five heaviest tokens, the heaviest first.
    """

    layer: Layer
    queries: F32
    keys: F32
    values: F32
    seen: Bools
    kept: Bools
    offset: F32
    scores: F32
    sinks: F32 | None
    log_z: F32
    weights: F32
    output: F32
    centred: F32
    norm: F32
    top: NDArray[np.intp]


def reference(layer: Layer, kv_head: int, positions: Positions, settings: Settings) -> Reference:
    """Exact attention at `positions` for the query heads that read KV head `kv_head`."""
    heads = slice(kv_head * layer.group, (kv_head + 1) * layer.group)
    keys = np.asarray(layer.k[kv_head], dtype=np.float32)
    values = np.asarray(layer.v[kv_head], dtype=np.float32)
    queries = np.asarray(layer.q[heads], dtype=np.float32)[:, positions]
    n = len(keys)
    seen = visible(positions, n, layer.window)
    recent = visible(positions, n, settings.window) if settings.window else np.zeros_like(seen)
    kept = seen & (recent | (np.arange(n) < settings.sinks))
    scores = logits(queries @ keys.T, layer, seen)
    offset = scores.max(axis=-1, keepdims=True)
    scores = scores - offset
    sinks = None if layer.sinks is None else layer.sinks[heads, None, None] - offset
    log_z = _log_z(scores, sinks)
    weights = np.exp(scores - log_z[..., None])
    centred = _centred(scores, seen)
    return Reference(
        layer=layer,
        queries=queries,
        keys=keys,
        values=values,
        seen=seen,
        kept=kept,
        offset=offset,
        scores=scores,
        sinks=sinks,
        log_z=log_z,
        weights=weights,
        output=weights @ values,
        centred=centred,
        norm=np.linalg.norm(centred, axis=-1),
        top=top_tokens(scores, 5),
    )


def _log_z(scores: F32, sinks: F32 | None) -> F32:
    """log of the softmax's denominator, f32 [g, m]. A sink is a logit more, of a token without a value."""
    # The exact scores are at most 0 and estimated ones not far above: exp does not overflow.
    total = np.log(np.exp(np.minimum(scores, np.float32(80))).sum(axis=-1))
    if sinks is not None:
        total = np.logaddexp(total, sinks[..., 0])
    return np.asarray(total, dtype=np.float32)


def _centred(scores: F32, seen: Bools) -> F32:
    """Softmax does not see a constant added to a row, so the row's mean over what is seen is taken out."""
    filled = np.where(seen, scores, np.float32(0))
    mean = filled.sum(axis=-1, keepdims=True) / seen.sum(axis=-1, keepdims=True)
    return np.where(seen, filled - mean, np.float32(0)).astype(np.float32, copy=False)


def top_tokens(scores: F32, count: int) -> NDArray[np.intp]:
    """int [..., min(count, n)]: indices of the highest entries of the last axis, the highest first."""
    count = min(count, scores.shape[-1])
    picked = np.argpartition(scores, -count, axis=-1)[..., -count:]
    order = np.argsort(-np.take_along_axis(scores, picked, axis=-1), axis=-1, kind="stable")
    return np.take_along_axis(picked, order, axis=-1)


# --- what quantising changes ------------------------------------------------------------------------------------------


def key_metrics(exact: Reference, products: F32) -> dict[str, F32]:
    """products: f32 [g, m, n], estimates of queries @ keys.T. Each of METRICS as f32 [g, m].

    cosine, score_error: of the visible logits, each row less its mean; the error relative to the exact row.
    kl:           of the exact attention distribution from the estimated one, nats.
    top1, top5:   the heaviest token is the same one; share of the five heaviest that are the same.
    output_error: length of the change of the output, with exact values, relative to the output.
    """
    if exact.kept.any():
        products = np.where(exact.kept, exact.queries @ exact.keys.T, products)
    scores = logits(products, exact.layer, exact.seen) - exact.offset
    # A constant on all logits of a row changes nothing, and without it the sums below lose fewer digits.
    shift = 0 if exact.sinks is not None else scores.max(axis=-1, keepdims=True)
    scores = scores - shift
    log_z = _log_z(scores, exact.sinks)
    weights = np.exp(scores - log_z[..., None])
    centred = _centred(scores, exact.seen)
    difference = centred - exact.centred
    change = np.where(exact.seen, scores - exact.scores, np.float32(0))
    top = top_tokens(scores, exact.top.shape[-1])
    same = (top[..., :, None] == exact.top[..., None, :]).any(axis=-1)
    return {
        "cosine": np.einsum("gmn,gmn->gm", centred, exact.centred)
        / _positive(exact.norm * np.linalg.norm(centred, axis=-1)),
        "score_error": np.linalg.norm(difference, axis=-1) / _positive(exact.norm),
        "kl": log_z - exact.log_z - np.einsum("gmn,gmn->gm", exact.weights, change),
        "top1": (top[..., 0] == exact.top[..., 0]).astype(np.float32),
        "top5": same.mean(axis=-1, dtype=np.float32),
        "output_error": _relative(weights @ exact.values, exact.output),
    }


def value_metrics(exact: Reference, values: F32) -> dict[str, F32]:
    """values: f32 [n, dv], decoded. {"output_error": f32 [g, m]}: of the output, with exact attention."""
    change = exact.weights @ (values - exact.values)
    if exact.kept.any():
        change -= np.where(exact.kept, exact.weights, np.float32(0)) @ (values - exact.values)
    return {"output_error": np.linalg.norm(change, axis=-1) / _positive(np.linalg.norm(exact.output, axis=-1))}


def _relative(found: F32, wanted: F32) -> F32:
    return np.asarray(np.linalg.norm(found - wanted, axis=-1) / _positive(np.linalg.norm(wanted, axis=-1)))


def _positive(lengths: F32) -> F32:
    return np.maximum(lengths, np.float32(1e-30))


# --- measuring methods ------------------------------------------------------------------------------------------------


@dataclass
class Row:
    """One method on one side. units: metric -> f32 [layers * heads, blocks], means over the queries of a block."""

    side: str
    name: str
    bits: float
    units: dict[str, F32] = field(default_factory=dict)


def true_bits(stored: float, n: int, settings: Settings) -> float:
    """Bits per value of n tokens of which the sinks and the window are kept as f16 and the rest stored."""
    kept = min(n, settings.sinks + settings.window)
    return (kept * KEPT_BITS + (n - kept) * stored) / n


@dataclass(frozen=True)
class Sample:
    """Calibration data of one KV head: f32 [n, d] vectors and, of the keys, the f32 [m, d] queries of its group."""

    keys: F32
    values: F32
    queries: F32
    keys_pre: F32 | None


def calibration(layer: Layer, kv_head: int, tokens: int) -> Sample:
    """The first `tokens` tokens of a KV head."""
    heads = slice(kv_head * layer.group, (kv_head + 1) * layer.group)
    queries = np.asarray(layer.q[heads, :tokens], dtype=np.float32)
    return Sample(
        keys=np.asarray(layer.k[kv_head, :tokens], dtype=np.float32),
        values=np.asarray(layer.v[kv_head, :tokens], dtype=np.float32),
        queries=queries.reshape(-1, queries.shape[-1]),
        keys_pre=None if layer.k_pre is None else np.asarray(layer.k_pre[kv_head, :tokens], dtype=np.float32),
    )


def _key_products(method: Method, pre: bool, sample: Sample, exact: Reference, kv_head: int) -> tuple[F32, Fitted]:
    g, m, d = exact.queries.shape
    if not pre:
        fitted = method.fit(sample.keys, sample.queries)
        products = fitted.scores(exact.queries.reshape(g * m, d), exact.keys)
    else:
        layer = exact.layer
        if layer.k_pre is None or layer.rope is None or sample.keys_pre is None:
            raise BadInput("the capture holds no keys before RoPE: make it with --pre-rope")
        fitted = method.fit(sample.keys_pre, None)
        decoded = fitted.encode_decode(np.asarray(layer.k_pre[kv_head], dtype=np.float32))
        keys = layer.rope.rotate(decoded, np.arange(len(decoded)))
        products = exact.queries.reshape(g * m, d) @ keys.T
    if products.shape != (g * m, len(exact.keys)):
        raise BadInput(f"its scores have the shape {products.shape}, not {(g * m, len(exact.keys))}")
    return products.reshape(g, m, -1).astype(np.float32, copy=False), fitted


def _checked(metrics: dict[str, F32]) -> dict[str, F32]:
    for name, values in metrics.items():
        if not np.isfinite(values).all():
            raise BadInput(f"its {name} is not finite")
    return metrics


def measure(
    capture: Capture,
    layers: Sequence[Layer],
    methods: Mapping[str, Sequence[str]],
    registry: Mapping[str, Method],
    settings: Settings,
    calibrate_on: Capture | None,
    progress: OnShare,
) -> tuple[list[Row], dict[tuple[str, str], str]]:
    """Every method of `methods[side]`, on every KV head of `layers`.

    calibrate_on: capture of the same model whose tokens, all of them, calibrate; None: the first half of `capture`.
    Returns a row for each (side, method), and for those that could not be measured the reason.
    Raises BadInput when the calibration is of another model, or lacks a layer.
    """
    positions = settings.positions(capture.n)
    if calibrate_on is not None and calibrate_on.model_hash != capture.model_hash:
        raise BadInput(f"{calibrate_on.path} was captured from another model ({calibrate_on.model_file})")
    samples = (layers if calibrate_on is None else calibrate_on.select([layer.index for layer in layers]), capture)
    tokens = capture.n // 2 if calibrate_on is None else calibrate_on.n
    found: dict[tuple[str, str], list[dict[str, F32]]] = {}
    bits: dict[tuple[str, str], list[float]] = {}
    failed: dict[tuple[str, str], str] = {}
    total = sum(layer.kv_heads for layer in layers) * sum(map(len, methods.values()))
    done = 0
    for layer, of_sample in zip(layers, samples[0], strict=True):
        for kv_head in range(layer.kv_heads):
            exact = reference(layer, kv_head, positions, settings)
            sample = calibration(of_sample, kv_head, tokens)
            for side in methods:
                for name in methods[side]:
                    progress(done / total, f"layer {layer.index}, head {kv_head}: {name}, {side}")
                    done += 1
                    key = (side, name)
                    if key in failed:
                        continue
                    try:
                        metrics, stored = _measure_one(registry, side, name, sample, exact, kv_head)
                    except (BadInput, ValueError) as e:
                        # A method that has not this width, or cannot do without what is missing.
                        failed[key] = e.message if isinstance(e, BadInput) else str(e)
                        continue
                    found.setdefault(key, []).append({k: _blocks(v, settings.block) for k, v in metrics.items()})
                    bits.setdefault(key, []).append(true_bits(stored, capture.n, settings))
    rows = [
        Row(
            side=side,
            name=name,
            bits=float(np.mean(bits[side, name])),
            units={metric: np.concatenate([part[metric] for part in parts]) for metric in parts[0]},
        )
        for (side, name), parts in found.items()
        if (side, name) not in failed
    ]
    return rows, failed


def _measure_one(
    registry: Mapping[str, Method], side: str, name: str, sample: Sample, exact: Reference, kv_head: int
) -> tuple[dict[str, F32], float]:
    """Metrics [g, m] of one method on one KV head, and its bits per value."""
    method = registry[name.removesuffix(PRE_ROPE)]
    n, d = exact.keys.shape
    if side == "keys":
        products, fitted = _key_products(method, name.endswith(PRE_ROPE), sample, exact, kv_head)
        return _checked(key_metrics(exact, products)), fitted.bits_per_value(n, d)
    if name.endswith(PRE_ROPE):
        raise BadInput("values have no RoPE")
    fitted = method.fit(sample.values, None)
    decoded = fitted.encode_decode(exact.values)
    return _checked(value_metrics(exact, decoded)), fitted.bits_per_value(n, exact.values.shape[1])


def _blocks(values: F32, block: int) -> F32:
    """[g, m] to [g, m / block], the mean of each block."""
    return np.asarray(values.reshape(len(values), -1, block).mean(axis=-1))


# --- comparing methods ------------------------------------------------------------------------------------------------


def group_of(bits: float) -> float:
    """The half-bit bin: 2.25 bits are of 2, 2.5 to 2.99 of 2.5."""
    return float(np.floor(2 * bits + 1e-6) / 2)


@dataclass(frozen=True)
class Ratio:
    """Of a method's mean to the baseline's, with its 95% interval."""

    baseline: str
    value: float
    low: float
    high: float


def ratio(row: Row, base: Row, settings: Settings) -> Ratio:
    """Paired percentile bootstrap over heads x query blocks (Efron & Tibshirani 1993, ch. 13).

    It speaks of the heads and texts that were measured: blocks of one head resemble each other, so for heads of other
    models the interval is too narrow.
    """
    metric = RANKED_BY[row.side]
    a, b = (r.units[metric].reshape(-1).astype(np.float64) for r in (row, base))
    value = float(a.mean() / b.mean())
    if row.name == base.name or np.array_equal(a, b):
        return Ratio(base.name, 1.0, 1.0, 1.0)

    def of_means(x: NDArray[np.float64], y: NDArray[np.float64], axis: int = -1) -> Any:
        return x.mean(axis=axis) / y.mean(axis=axis)

    found = stats.bootstrap(
        (a, b),
        of_means,
        paired=True,
        vectorized=True,
        n_resamples=settings.resamples,
        batch=200,
        method="percentile",
        rng=np.random.default_rng(settings.seed),
    ).confidence_interval
    return Ratio(base.name, value, float(found.low), float(found.high))


def baselines(rows: Iterable[Row], wanted: Sequence[str]) -> dict[tuple[str, float], Row]:
    """For each side and half-bit bin the first of `wanted` that is in it."""
    chosen: dict[tuple[str, float], Row] = {}
    by_name: dict[tuple[str, str], Row] = {(row.side, row.name): row for row in rows}
    for side in SIDES:
        for name in wanted:
            row = by_name.get((side, name))
            if row is not None:
                chosen.setdefault((side, group_of(row.bits)), row)
    return chosen


def pareto(rows: Sequence[Row]) -> set[tuple[str, str]]:
    """(side, name) of the methods that no other one beats or meets in both bits and the ranking metric."""
    best: set[tuple[str, str]] = set()
    for side, metric in RANKED_BY.items():
        lowest = np.inf
        for row in sorted((r for r in rows if r.side == side), key=lambda r: (r.bits, r.units[metric].mean())):
            mean = float(row.units[metric].mean())
            if mean < lowest:
                lowest = mean
                best.add((side, row.name))
    return best


def document(
    capture: Capture,
    layers: Sequence[Layer],
    rows: Sequence[Row],
    failed: Mapping[tuple[str, str], str],
    wanted_baselines: Sequence[str],
    settings: Settings,
    calibrate_on: Capture | None,
) -> dict[str, Any]:
    """The result as JSON: every number of the tables and the plot, and the means of each head."""
    chosen = baselines(rows, wanted_baselines)
    front = pareto(rows)
    heads = [(layer.index, head) for layer in layers for head in range(layer.heads)]

    def describe(row: Row) -> dict[str, Any]:
        base = chosen.get((row.side, group_of(row.bits)))
        against = None if base is None else ratio(row, base, settings)
        return {
            "side": row.side,
            "method": row.name,
            "bits_per_value": row.bits,
            "group": group_of(row.bits),
            "pareto": (row.side, row.name) in front,
            "metrics": {metric: float(units.mean()) for metric, units in row.units.items()},
            "ratio": None if against is None else vars(against),
            "heads": [
                {"layer": layer, "head": head}
                | {metric: float(units[index].mean()) for metric, units in row.units.items()}
                for index, (layer, head) in enumerate(heads)
            ],
        }

    described = [describe(row) for row in rows]
    described.sort(key=lambda r: (SIDES.index(r["side"]), r["group"], r["metrics"][RANKED_BY[r["side"]]]))
    return {
        "schema": SCHEMA,
        "capture": _origin(capture) | {"layers": [layer.index for layer in layers], "head_dim": layers[0].k.shape[-1]},
        "calibration": {"tokens": [0, capture.n // 2], **_origin(capture)}
        if calibrate_on is None
        else {"tokens": [0, calibrate_on.n], **_origin(calibrate_on)},
        "settings": vars(settings) | {"evaluated": [capture.n // 2, capture.n]},
        "rows": described,
        "skipped": [{"side": side, "method": name, "why": why} for (side, name), why in failed.items()],
    }


def _origin(capture: Capture) -> dict[str, Any]:
    return {
        "file": capture.path.name,
        "model": capture.model_name,
        "model_file": capture.model_file,
        "model_fnv1a64": capture.model_hash,
        "text_file": capture.text_file,
        "text_fnv1a64": capture.text_hash,
        "n": capture.n,
    }
