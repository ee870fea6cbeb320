"""Model metadata: what is read, what is refused (the other refusals are in test_compare_run)."""

from pathlib import Path

import gguf
import numpy as np
import pytest
from compare_world import finish, write_model

from turbokv_eval.errors import BadInput
from turbokv_eval.models.gguf_info import read_model


def test_a_plain_model(tmp_path: Path) -> None:
    info = read_model(write_model(tmp_path / "m.gguf", vocab=77))
    assert (info.arch, info.head_count, info.key_length, info.value_length) == ("llama", 9, 64, 64)
    assert info.head_count_kv == (3,) * 30
    assert info.n_vocab == 77
    assert info.values_per_cell(30) == (30 * 3 * 64, 30 * 3 * 64)
    assert info.values_per_cell(10) == (10 * 3 * 64, 10 * 3 * 64)
    assert info.values_per_cell(31) is None


def _writer(path: Path, heads_kv: list[int]) -> gguf.GGUFWriter:
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(len(heads_kv))
    writer.add_embedding_length(256)
    writer.add_head_count(4)
    writer.add_head_count_kv(heads_kv)
    writer.add_tensor("token_embd.weight", np.zeros((8, 256), dtype=np.float32))
    return writer


def test_layers_without_attention_and_unlike_layers(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    finish(_writer(path, [0, 2, 0, 1]))
    info = read_model(path)
    assert info.attention_layers == 2
    assert info.values_per_cell(2) == (3 * 64, 3 * 64)
    # Which of the two layers a cache of one layer holds, metadata cannot tell.
    assert info.values_per_cell(1) is None


def test_own_key_and_value_lengths(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    writer = _writer(path, [2, 2])
    writer.add_key_length(192)
    writer.add_value_length(128)
    finish(writer)
    assert read_model(path).values_per_cell(2) == (2 * 2 * 192, 2 * 2 * 128)


def test_latent_attention_cannot_be_counted(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    writer = _writer(path, [1, 1])
    writer.add_kv_lora_rank(512)
    finish(writer)
    assert read_model(path).values_per_cell(2) is None


def test_a_vocabulary_only(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_embedding_length(64)
    writer.add_head_count(1)
    finish(writer)
    with pytest.raises(BadInput, match="holds no tensors"):
        read_model(path)


def test_nonsense_metadata_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_string("llama.block_count", "many")
    writer.add_tensor("token_embd.weight", np.zeros((8, 8), dtype=np.float32))
    finish(writer)
    with pytest.raises(BadInput, match="metadata that makes no sense"):
        read_model(path)


@pytest.mark.parametrize("cut", [5, 8, 16, 23, 24, 40, 100])
def test_any_truncation_is_refused(tmp_path: Path, cut: int) -> None:
    path = write_model(tmp_path / "m.gguf")
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(BadInput, match="truncated"):
        read_model(path)
