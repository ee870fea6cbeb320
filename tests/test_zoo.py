"""The zoo's files: the same bytes every time, readable, complete, and with the statistics that they promise."""

from pathlib import Path

import gguf
import numpy as np
import pytest
from zoo import draw
from zoo.build import N_VOCAB
from zoo.catalogue import HEAD_DIMS, Entry, entries
from zoo.write import write, write_all

ENTRIES = {entry.name: entry for entry in entries()}
# one of each function in zoo.attention
KINDS = ("d80", "k192-v128", "swa", "softcap", "sinks-64", "alibi", "mla", "hybrid", "enc-dec")


@pytest.mark.parametrize("name", KINDS)
def test_the_same_source_gives_the_same_bytes(name: str, tmp_path: Path) -> None:
    write(ENTRIES[name].make(), tmp_path / "a.gguf")
    write(ENTRIES[name].make(), tmp_path / "b.gguf")
    assert (tmp_path / "a.gguf").read_bytes() == (tmp_path / "b.gguf").read_bytes()


@pytest.mark.parametrize("name", KINDS)
def test_gguf_reads_back_what_was_made(name: str, tmp_path: Path) -> None:
    model = ENTRIES[name].make()
    write(model, tmp_path / "m.gguf")
    reader = gguf.GGUFReader(tmp_path / "m.gguf")
    assert reader.fields["general.architecture"].contents() == model.arch
    for key, value in model.metadata.items():
        read = reader.fields[f"{model.arch}.{key}"].contents()
        assert read == (pytest.approx(value) if isinstance(value, float) else value), key
    assert {t.name for t in reader.tensors} == set(model.tensors)
    for tensor in reader.tensors:
        np.testing.assert_array_equal(tensor.data, model.tensors[tensor.name])
        assert np.isfinite(tensor.data).all()
    assert len(reader.fields["tokenizer.ggml.tokens"].data) == N_VOCAB


def test_every_head_dimension_and_name_is_there_once() -> None:
    assert len(ENTRIES) == len(entries())
    assert {f"d{d}" for d in HEAD_DIMS} <= set(ENTRIES)
    for d in HEAD_DIMS:
        metadata = ENTRIES[f"d{d}"].make().metadata
        assert (metadata["attention.key_length"], metadata["attention.value_length"]) == (d, d)


def test_one_model_does_not_change_another() -> None:
    a, b = ENTRIES["d64"].make(), ENTRIES["d80"].make()
    assert not np.array_equal(a.tensors["token_embd.weight"], b.tensors["token_embd.weight"])
    weights = [t.ravel()[:64] for n, t in a.tensors.items() if "norm" not in n]
    assert len({w.tobytes() for w in weights}) == len(weights)


def test_scores_have_the_deviation_that_was_asked_for() -> None:
    gen = draw.rng("test", "scores")
    gains = draw.channel_gains(gen, 128)
    size = draw.score_gain(gains, 128**-0.5, std=3.0)
    q, k = (size * gains * gen.standard_normal((20000, 128)) for _ in range(2))
    scores = 128**-0.5 * np.sum(q * k, axis=1)
    # the standard error of a deviation over n scores of kurtosis below 9 is under 1.5 percent
    assert np.std(scores) == pytest.approx(3.0, rel=0.06)


def test_channel_gains_keep_the_size_and_have_outliers() -> None:
    gains = draw.channel_gains(draw.rng("test", "gains"), 64)
    assert np.mean(gains**2) == pytest.approx(1.0, rel=1e-5)
    assert np.sort(gains)[-8] > 2 * np.sort(gains)[-9]


def test_the_whole_zoo_is_small(tmp_path: Path) -> None:
    chosen: list[Entry] = entries()
    paths = write_all(chosen, tmp_path)
    assert [path.stem for path in paths] == [entry.name for entry in chosen]
    assert sum(path.stat().st_size for path in paths) < 100e6
