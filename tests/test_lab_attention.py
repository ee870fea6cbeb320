"""The metrics of `lab attention` are those of attention worked out query by query, and its comparisons are fair."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from lab_world import Fake, registry, write_capture
from numpy.typing import NDArray

from turbokv_eval.cli import main
from turbokv_eval.commands import lab_attention
from turbokv_eval.errors import BadInput
from turbokv_eval.lab import attention
from turbokv_eval.lab import registry as lab_registry
from turbokv_eval.lab.attention import Row, Settings
from turbokv_eval.lab.capture import Capture, read_capture

SETTINGS = Settings(queries=16, block=4, resamples=500)


def one(tmp_path: Path, **made: Any) -> tuple[Capture, attention.Reference]:
    capture = read_capture(write_capture(tmp_path / "c.gguf", **made))
    return capture, attention.reference(capture.layers[0], 1, SETTINGS.positions(capture.n), SETTINGS)


def softmax_of(capture: Capture, head: int, position: int, products: np.ndarray) -> np.ndarray:
    """Weights of one query, float64, from the products with all keys."""
    layer = capture.layers[0]
    s = products.astype(np.float64) * layer.scale
    if layer.softcap:
        s = layer.softcap * np.tanh(s / layer.softcap)
    first = max(0, position - layer.window + 1) if layer.window else 0
    s[:first] = s[position + 1 :] = -np.inf
    total = np.exp(s).sum() + (np.exp(layer.sinks[head]) if layer.sinks is not None else 0)
    return np.asarray(np.exp(s) / total)


VARIANTS = [{}, {"window": 20}, {"softcap": 2.0}, {"sinks": True}, {"window": 20, "softcap": 2.0, "sinks": True}]


@pytest.mark.parametrize("made", VARIANTS)
def test_exact_attention_is_the_textbook_one(tmp_path: Path, made: dict[str, Any]) -> None:
    capture, exact = one(tmp_path, **made)
    layer = capture.layers[0]
    for g, m in ((0, 0), (1, 5), (1, 15)):
        head, position = 2 + g, int(SETTINGS.positions(capture.n)[m])
        q = layer.q[head, position].astype(np.float64)
        weights = softmax_of(capture, head, position, layer.k[1].astype(np.float64) @ q)
        np.testing.assert_allclose(exact.weights[g, m], weights, atol=1e-6)
        np.testing.assert_allclose(exact.output[g, m], weights @ layer.v[1].astype(np.float64), atol=1e-5)
        assert exact.top[g, m].tolist() == np.argsort(-weights)[:5].tolist()


@pytest.mark.parametrize("made", VARIANTS)
def test_kl_and_output_error_are_the_textbook_ones(tmp_path: Path, made: dict[str, Any]) -> None:
    capture, exact = one(tmp_path, **made)
    layer = capture.layers[0]
    fake = Fake("noise", error=0.3)
    found = attention.key_metrics(exact, fake.scores(exact.queries.reshape(-1, 16), exact.keys).reshape(2, 16, -1))
    keys = fake.encode_decode(exact.keys).astype(np.float64)
    values = layer.v[1].astype(np.float64)
    for g, m in ((0, 0), (1, 5), (1, 15)):
        head, position = 2 + g, int(SETTINGS.positions(capture.n)[m])
        q = layer.q[head, position].astype(np.float64)
        p = softmax_of(capture, head, position, layer.k[1].astype(np.float64) @ q)
        r = softmax_of(capture, head, position, keys @ q)
        # A sink is an outcome too.
        seen = p > 0
        kl = (p[seen] * np.log(p[seen] / r[seen])).sum()
        if layer.sinks is not None:
            kl += (1 - p.sum()) * np.log((1 - p.sum()) / (1 - r.sum()))
        assert found["kl"][g, m] == pytest.approx(kl, rel=1e-3, abs=1e-6)
        error = np.linalg.norm((r - p) @ values) / np.linalg.norm(p @ values)
        assert found["output_error"][g, m] == pytest.approx(error, rel=1e-3)
        assert found["top1"][g, m] == float(np.argmax(p) == np.argmax(r))
        assert found["top5"][g, m] == pytest.approx(len({*np.argsort(-p)[:5]} & {*np.argsort(-r)[:5]}) / 5)


def test_score_metrics_are_those_of_rows_less_their_mean(tmp_path: Path) -> None:
    capture, exact = one(tmp_path)
    fake = Fake("noise", error=0.3)
    found = attention.key_metrics(exact, fake.scores(exact.queries.reshape(-1, 16), exact.keys).reshape(2, 16, -1))
    position = int(SETTINGS.positions(capture.n)[5])
    q = exact.queries[1, 5]
    a, b = exact.keys[: position + 1] @ q, fake.encode_decode(exact.keys)[: position + 1] @ q
    a, b = a - a.mean(), b - b.mean()
    assert found["cosine"][1, 5] == pytest.approx(a @ b / np.linalg.norm(a) / np.linalg.norm(b), rel=1e-4)
    assert found["score_error"][1, 5] == pytest.approx(np.linalg.norm(a - b) / np.linalg.norm(a), rel=1e-3)


@pytest.mark.parametrize("made", [{}, {"window": 20}])
def test_a_constant_on_all_scores_of_a_query_changes_nothing(tmp_path: Path, made: dict[str, Any]) -> None:
    _, exact = one(tmp_path, **made)
    flat = exact.queries.reshape(-1, 16)
    plain, shifted = (
        attention.key_metrics(exact, Fake("f", error=0.3, constant=c).scores(flat, exact.keys).reshape(2, 16, -1))
        for c in (0.0, 7.0)
    )
    for name in attention.METRICS:
        np.testing.assert_allclose(shifted[name], plain[name], atol=2e-4)


def test_exact_keys_lose_nothing(tmp_path: Path) -> None:
    _, exact = one(tmp_path, window=20)
    found = attention.key_metrics(exact, exact.queries @ exact.keys.T)
    assert np.abs(found["kl"]).max() < 1e-6
    assert found["cosine"].min() > 0.99999
    assert (found["top1"].min(), found["top5"].min()) == (1, 1)
    assert max(found["score_error"].max(), found["output_error"].max()) < 1e-5
    assert attention.value_metrics(exact, exact.values)["output_error"].max() == 0


def test_tokens_that_are_kept_are_exact_whatever_the_method_says(tmp_path: Path) -> None:
    capture = read_capture(write_capture(tmp_path / "c.gguf"))
    positions = SETTINGS.positions(capture.n)
    for kept in (Settings(queries=16, block=4, sinks=96), Settings(queries=16, block=4, sinks=40, window=60)):
        exact = attention.reference(capture.layers[0], 0, positions, kept)
        garbage = np.full((2, 16, 96), 1e3, dtype=np.float32) * np.arange(96, dtype=np.float32)
        assert np.abs(attention.key_metrics(exact, garbage)["kl"]).max() < 1e-6
        assert attention.value_metrics(exact, exact.values + 100)["output_error"].max() < 1e-3
    none = attention.reference(capture.layers[0], 0, positions, Settings(queries=16, block=4, sinks=40, window=4))
    assert attention.key_metrics(none, garbage)["kl"].min() > 1


def test_queries_are_blocks_of_the_second_half() -> None:
    positions = Settings(queries=64, block=16).positions(1000)
    assert (len(positions), positions.min(), positions.max()) == (64, 500, 999)
    assert (np.diff(positions.reshape(-1, 16)) == 1).all()
    assert (np.diff(positions) > 0).all()
    # No more blocks than fit without sharing a query.
    assert len(set(Settings(queries=512, block=16).positions(100))) == len(Settings(queries=512).positions(100)) == 48
    with pytest.raises(BadInput, match="second half"):
        Settings(queries=64, block=16).positions(24)


def test_bits_count_what_is_kept_and_group_by_half_bits() -> None:
    assert attention.true_bits(3.0, 1000, Settings(sinks=4, window=96)) == pytest.approx(0.1 * 16 + 0.9 * 3)
    assert attention.true_bits(3.0, 50, Settings(sinks=4, window=96)) == 16
    assert [attention.group_of(b) for b in (2.0, 2.25, 2.5, 3.125, 3.49, 3.5)] == [2, 2, 2.5, 3, 3, 3.5]


def row(name: str, bits: float, units: np.ndarray, side: str = "keys") -> Row:
    return Row(side, name, bits, {attention.RANKED_BY[side]: units.astype(np.float32)})


def test_the_interval_of_a_ratio_is_paired() -> None:
    base = np.exp(np.random.default_rng(0).normal(0, 2, (40, 8)))
    # Heads differ by orders of magnitude; the methods differ by a tenth in each of them.
    found = attention.ratio(row("b", 3, 0.9 * base), row("a", 3, base), SETTINGS)
    assert (found.baseline, found.value) == ("a", pytest.approx(0.9, rel=1e-5))
    assert 0.899 < found.low <= found.high < 0.901
    noise = base * np.exp(np.random.default_rng(1).normal(0, 0.3, base.shape))
    unsure = attention.ratio(row("b", 3, noise), row("a", 3, base), SETTINGS)
    assert unsure.low < 1 < unsure.high
    assert vars(attention.ratio(row("a", 3, base), row("a", 3, base), SETTINGS)) == {
        "baseline": "a",
        "value": 1.0,
        "low": 1.0,
        "high": 1.0,
    }


def test_a_baseline_is_of_the_same_half_bit_and_side() -> None:
    ones = np.ones((2, 2))
    rows = [row("r2", 2.25, ones), row("r3", 3.25, ones), row("x", 3.1, ones), row("r3", 3.25, ones, "values")]
    found = attention.baselines(rows, ("r3", "r2", "none"))
    assert {key: r.name for key, r in found.items()} == {("keys", 3): "r3", ("keys", 2): "r2", ("values", 3): "r3"}


def test_the_pareto_front_drops_what_another_beats_or_meets() -> None:
    made = (("a", 2, 4), ("b", 3, 1), ("worse", 3, 2), ("equal", 3.5, 1), ("d", 4, 0.5), ("useless", 5, 3))
    rows = [row(name, bits, np.full((2, 2), kl)) for name, bits, kl in made]
    assert attention.pareto(rows) == {("keys", "a"), ("keys", "b"), ("keys", "d")}


def measured(capture: Capture, other: Capture | None, **fakes: Fake) -> tuple[list[Row], dict[tuple[str, str], str]]:
    by_side = {"keys": list(fakes), "values": list(fakes)}
    known = registry(*fakes.values())
    return attention.measure(capture, capture.layers, by_side, known, SETTINGS, other, lambda part, what: None)


def test_calibration_sees_the_first_half_and_the_queries_of_its_group_only(tmp_path: Path) -> None:
    capture = read_capture(write_capture(tmp_path / "c.gguf", layers=(0,)))
    fake = Fake("f")
    measured(capture, None, f=fake)
    (keys, queries), (values, none) = fake.seen[0], fake.seen[1]
    layer = capture.layers[0]
    np.testing.assert_array_equal(keys, layer.k[0, :48])
    assert queries is not None
    np.testing.assert_array_equal(queries, layer.q[:2, :48].reshape(-1, 16))
    np.testing.assert_array_equal(values, layer.v[0, :48])
    assert none is None
    assert len(fake.seen) == 4


def test_calibration_on_another_capture_sees_all_of_it(tmp_path: Path) -> None:
    capture = read_capture(write_capture(tmp_path / "c.gguf"))
    other = read_capture(write_capture(tmp_path / "o.gguf", n=64, seed=5))
    fake = Fake("f")
    measured(capture, other, f=fake)
    np.testing.assert_array_equal(fake.seen[0][0], other.layers[0].k[0])
    stranger = read_capture(write_capture(tmp_path / "s.gguf", model_hash="00000000000000ff"))
    with pytest.raises(BadInput, match="another model"):
        measured(capture, stranger, f=fake)
    with pytest.raises(BadInput, match="no layer 3"):
        measured(capture, read_capture(write_capture(tmp_path / "o.gguf", layers=(0,))), f=fake)


def test_a_width_that_a_method_has_not_is_left_out_with_its_reason(tmp_path: Path) -> None:
    class Narrow(Fake):
        def encode_decode(self, x: NDArray[np.float32]) -> NDArray[np.float32]:
            raise ValueError("narrow needs rows of a multiple of 32 values, got 16")

    capture = read_capture(write_capture(tmp_path / "c.gguf"))
    rows, failed = measured(capture, None, a=Fake("a"), n=Narrow("n"))
    assert {r.name for r in rows} == {"a"}
    assert failed["keys", "n"] == failed["values", "n"] == "narrow needs rows of a multiple of 32 values, got 16"


def test_a_method_that_cannot_is_left_out_and_the_others_are_measured(tmp_path: Path) -> None:
    capture = read_capture(write_capture(tmp_path / "c.gguf"))
    rows, failed = measured(capture, None, a=Fake("a"), b=Fake("b", refuses="needs queries"), c=Fake("c", broken=True))
    assert [(r.side, r.name) for r in rows] == [("keys", "a"), ("values", "a")]
    assert failed["keys", "b"] == "needs queries"
    assert "not finite" in failed["values", "c"]
    # 2 layers of 4 heads, 16 queries in blocks of 4.
    assert rows[0].units["kl"].shape == (8, 4)


def test_keys_before_rope_are_turned_after_they_were_quantised(tmp_path: Path) -> None:
    capture = read_capture(write_capture(tmp_path / "c.gguf", pre_rope=True))
    fake = Fake("a")
    by_side = {"keys": ["a@pre"]}
    rows, _ = attention.measure(
        capture, capture.layers, by_side, registry(fake), SETTINGS, None, lambda part, what: None
    )
    assert rows[0].units["kl"].max() < 1e-5
    k_pre = capture.layers[0].k_pre
    assert k_pre is not None
    np.testing.assert_array_equal(fake.seen[0][0], k_pre[0, :48])
    without = read_capture(write_capture(tmp_path / "c.gguf"))
    _, failed = attention.measure(without, without.layers, by_side, registry(fake), SETTINGS, None, lambda p, w: None)
    assert "--pre-rope" in failed["keys", "a@pre"]


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    known = registry(
        Fake("rough", bits=2.25, error=0.5),
        Fake("fine", bits=3.25, error=0.2),
        Fake("finer", bits=3.1, error=0.1),
        Fake("picky", refuses="needs an even day"),
    )
    monkeypatch.setattr(lab_registry, "METHODS", known)
    path = write_capture(tmp_path / "c.gguf")

    def run(*args: str) -> tuple[int, str, str]:
        fixed = ["lab", "attention", str(path), "--queries", "16", "--block", "4"]
        fixed += [] if "--methods" in args else ["--methods", "*"]
        result = CliRunner().invoke(main, [*fixed, *args])
        return result.exit_code, result.stdout, result.stderr

    return run


def test_the_table_ranks_compares_and_says_what_was_left_out(command: Any) -> None:
    code, out, err = command("--baseline", "fine,rough")
    assert (code, "Error" in err) == (0, False)
    lines = out.splitlines()
    assert [word for word in out.split() if word in ("rough", "fine", "finer")] == ["rough", "finer", "fine"] * 2
    finer = next(line for line in lines if " finer " in line)
    assert "3.100" in finer
    assert "finer *" in finer
    # Two of them are heads of a column.
    assert sum(line.rstrip().endswith("baseline") for line in lines) == 2 + 4
    assert "Left out: picky (keys): needs an even day." in out
    assert "Calibration: tokens 0 to 47" in out
    assert "Queries: tokens 48 to 95" in out


def test_json_holds_every_head_and_csv_every_row(command: Any) -> None:
    code, out, _ = command("-o", "json", "--side", "keys", "--baseline", "fine")
    document = json.loads(out)
    assert (code, document["schema"]) == (0, attention.SCHEMA)
    assert [r["method"] for r in document["rows"]] == ["rough", "finer", "fine"]
    finer = document["rows"][1]
    assert [(h["layer"], h["head"]) for h in finer["heads"]] == [(layer, h) for layer in (0, 3) for h in range(4)]
    assert finer["metrics"]["kl"] == pytest.approx(np.mean([h["kl"] for h in finer["heads"]]))
    assert 0 < finer["ratio"]["low"] < finer["ratio"]["value"] < finer["ratio"]["high"] < 1
    assert document["rows"][0]["ratio"] is None
    code, out, _ = command("-o", "csv")
    assert (code, len(out.splitlines())) == (0, 1 + 6)


def test_wrong_names_and_plots_are_one_line(command: Any, tmp_path: Path) -> None:
    for args, said in (
        (("--methods", "rough,best"), "no method 'best'; `turbokv-eval lab methods` lists them"),
        (("--baseline", "best"), "no method 'best'"),
        (("--layers", "1"), "no layer 1: it has 0, 3"),
        (("--plot", "plot.pdf"), "must end in .svg or .png"),
        (("--plot", str(tmp_path / "nowhere" / "plot.svg")), "there is no folder"),
        (("--calibrate", str(tmp_path / "none.gguf")), "cannot read the capture"),
    ):
        code, out, err = command(*args)
        assert (code, out) == (2, "")
        assert said in err
    code, _, err = command("--methods", "picky")
    assert (code, "needs an even day" in err) == (1, True)


def test_a_plot_names_every_method(command: Any, tmp_path: Path) -> None:
    code, _, _ = command("--plot", str(tmp_path / "plot.svg"))
    drawn = (tmp_path / "plot.svg").read_text(encoding="utf-8")
    assert code == 0
    for name in ("rough", "fine", "finer", "made up"):
        assert f">{name}" in drawn
    command("--plot", str(tmp_path / "again.svg"))
    assert (tmp_path / "again.svg").read_text(encoding="utf-8") == drawn
    code, _, _ = command("--plot", str(tmp_path / "plot.png"))
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_the_default_methods_suit_their_side_and_are_all_there() -> None:
    keys, values = lab_attention._default("keys"), lab_attention._default("values")
    assert set(keys) | set(values) <= set(lab_registry.METHODS)
    assert {"turbo-3", "condition/turbo-3", "kivi_keys-2"} <= set(keys)
    assert {"turbo-3", "kivi_values-2"} <= set(values)
    assert not {"condition/turbo-3", "kivi_keys-2", "trellis4096-3", "q8_0"} & set(values)
    assert set(lab_attention.BASELINES) <= set(keys) & set(values)
    assert lab_attention._named("turbo-[23]@pre, turbo-3", "--methods") == ["turbo-2@pre", "turbo-3@pre", "turbo-3"]
