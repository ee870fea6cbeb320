"""`memory`: metadata reader, layouts, bytes, budgets, outputs. The live test compares with real buffers."""

import csv
import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from click.testing import CliRunner, Result
from compare_world import recorded
from gguf_world import write_metadata

from turbokv_eval import fork
from turbokv_eval.cli import main
from turbokv_eval.errors import BadInput
from turbokv_eval.models import gguf_meta, kv_archs, kv_layers, kv_layout, memory
from turbokv_eval.models.kv_layout import Layout
from turbokv_eval.models.memory import Shape, block_of, cache_bytes, largest_context
from turbokv_eval.models.types import KVConfig
from turbokv_eval.programs import perplexity
from turbokv_eval.units import GIB, format_size, parse_size

PLAIN = {
    "block_count": 4,
    "context_length": 4096,
    "embedding_length": 512,
    "attention__head_count": 4,
    "attention__head_count_kv": 2,
}


def layout_of(folder: Path, arch: str = "llama", **own: Any) -> Layout:
    return kv_layout.read_layout(gguf_meta.read(write_metadata(folder / "m.gguf", arch, **{**PLAIN, **own})))


def bytes_of(layout: Layout, types: str = "f16", **shape: Any) -> memory.CacheBytes:
    k, _, v = types.partition("/")
    return cache_bytes(layout, KVConfig(k, v or k), Shape(**{"ctx": 4096, **shape}))


# the reader


def test_metadata_are_what_gguf_reads(tmp_path: Path) -> None:
    path = write_metadata(
        tmp_path / "m.gguf", "llama", a=7, b=1.5, c=[1, 2, 3], d=[True, False], e=list(range(5000)), f=[-1, 5]
    )
    meta = gguf_meta.read(path)
    assert (meta.arch, meta.number("a"), meta["llama.b"]) == ("llama", 7, 1.5)
    assert meta["llama.c"] == [1, 2, 3]
    assert meta["llama.d"] == [True, False]
    assert meta["llama.f"] == [-1, 5]
    # Long arrays and vocabularies are stepped over, and what stands behind them is read.
    assert isinstance(meta["llama.e"], gguf_meta.Skipped)
    tokens = meta["tokenizer.ggml.tokens"]
    assert isinstance(tokens, gguf_meta.Skipped)
    assert tokens.length == 50
    assert meta.size == path.stat().st_size


@pytest.mark.parametrize("cut", [0, 3, 4, 8, 20, 30, 60, 200])
def test_a_truncated_header_is_one_line(tmp_path: Path, cut: int) -> None:
    path = write_metadata(tmp_path / "m.gguf", "llama", **PLAIN)
    path.write_bytes(path.read_bytes()[:cut])
    with pytest.raises(BadInput, match=r"truncated|is empty|not a GGUF"):
        gguf_meta.read(path)


def test_no_gguf_and_no_file(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"hello world")
    with pytest.raises(BadInput, match="is not a GGUF file"):
        gguf_meta.read(tmp_path / "x")
    with pytest.raises(BadInput, match="No such file"):
        gguf_meta.read(tmp_path / "y")


def test_an_array_that_claims_more_than_the_file_has(tmp_path: Path) -> None:
    path = write_metadata(tmp_path / "m.gguf", "llama", **PLAIN)
    data = bytearray(path.read_bytes())
    at = data.index(b"tokenizer.ggml.tokens") + len("tokenizer.ggml.tokens") + 4 + 4
    data[at : at + 8] = (1 << 60).to_bytes(8, "little")
    path.write_bytes(data)
    with pytest.raises(BadInput, match="truncated or damaged"):
        gguf_meta.read(path)


def test_a_split_model_is_weighed_whole(tmp_path: Path) -> None:
    first = write_metadata(tmp_path / "m-00001-of-00002.gguf", "llama", **PLAIN)
    data = first.read_bytes()
    # the same file again, with the key that llama-gguf-split writes
    writer = gguf.GGUFWriter(first, "llama")
    writer.add_uint16("split.count", 2)
    writer.add_tensor("a", np.zeros((4,), dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(BadInput, match=r"m-00002-of-00002\.gguf is not beside it"):
        gguf_meta.read(first)
    (tmp_path / "m-00002-of-00002.gguf").write_bytes(data)
    assert gguf_meta.read(first).size == first.stat().st_size + len(data)
    with pytest.raises(BadInput, match="give the first"):
        gguf_meta.read(first.rename(tmp_path / "other.gguf"))


# layouts: the numbers in these tests are counted by hand from the metadata above them


def test_a_plain_model(tmp_path: Path) -> None:
    layout = layout_of(tmp_path)
    assert [(layer.heads, layer.k_length, layer.v_length) for layer in layout.layers] == [(2, 128, 128)] * 4
    cache = bytes_of(layout, "f16/turbo3", ctx=1000)
    # rounded up to 1024 cells; a row of V is two blocks of 50 bytes
    assert cache.kv == 1024 * 4 * (2 * 128 * 2 + 2 * 50)
    assert (cache.per_token, cache.per_token_full) == (4 * 612, 4 * 612)
    assert cache.recurrent == 0


def test_sliding_windows_by_period_and_by_array(tmp_path: Path) -> None:
    gemma = layout_of(tmp_path, "gemma3", block_count=7, attention__sliding_window=512)
    assert [layer.windowed for layer in gemma.layers] == [True] * 5 + [False, True]
    cache = bytes_of(gemma, "q8_0", ctx=8192)
    row = 2 * 2 * 128 // 32 * 34
    assert cache.kv == row * (6 * 1024 + 1 * 8192)
    assert (cache.per_token, cache.per_token_full) == (7 * row, row)
    assert bytes_of(gemma, ctx=8192, swa_full=True).kv == 7 * 8192 * 2 * 2 * 128 * 2
    pattern = [True, False, False, True]
    gemma4 = layout_of(
        tmp_path,
        "gemma4",
        attention__sliding_window=1024,
        attention__sliding_window_pattern=pattern,
        attention__shared_kv_layers=1,
        attention__key_length=256,
        attention__value_length=256,
        attention__key_length_swa=64,
        attention__value_length_swa=64,
    )
    assert [(layer.windowed, layer.k_length) for layer in gemma4.layers] == [(True, 64), (False, 256), (False, 256)]
    assert gemma4.shared == 1


def test_the_first_of_a_period_can_be_the_full_one(tmp_path: Path) -> None:
    layout = layout_of(tmp_path, "cohere2moe", attention__sliding_window=4096)
    assert [layer.windowed for layer in layout.layers] == [False, True, True, True]


@pytest.mark.parametrize(
    ("said", "window", "windowed"), [({}, 8192, 3), ({"attention__sliding_window": 0}, 0, 0)], ids=["none", "zero"]
)
def test_llama4_has_chunks_unless_told_otherwise(
    tmp_path: Path, said: dict[str, int], window: int, windowed: int
) -> None:
    layout = layout_of(tmp_path, "llama4", **said)
    assert (layout.window, sum(layer.windowed for layer in layout.layers)) == (window, windowed)


def test_a_window_without_a_length_or_a_pattern_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"no cohere2\.attention\.sliding_window"):
        layout_of(tmp_path, "cohere2")
    with pytest.raises(BadInput, match=r"no array mimo2\.attention\.sliding_window_pattern"):
        layout_of(tmp_path, "mimo2", attention__sliding_window=128)


@pytest.mark.parametrize(
    ("shape", "cells"),
    [
        # window + one batch, in steps of 256, and never more than the context
        (Shape(8192), 1024),
        (Shape(512), 512),
        (Shape(8192, ubatch=100), 768),
        (Shape(8192, parallel=4), 1024),
        (Shape(8192, parallel=4, unified=True), 2560),
        (Shape(300, ubatch=4096), 512),
    ],
    ids=str,
)
def test_cells_of_a_window(shape: Shape, cells: int) -> None:
    assert shape.window_cells(512) == cells


def test_sequences_share_or_split_the_context() -> None:
    assert (Shape(5000).cells, Shape(5000).streams) == (5120, 1)
    assert (Shape(5000, parallel=3).cells, Shape(5000, parallel=3).streams) == (1792, 3)
    assert (Shape(5000, parallel=3, unified=True).cells, Shape(5000, parallel=3, unified=True).streams) == (5120, 1)


def test_latent_attention_stores_keys_only(tmp_path: Path) -> None:
    layout = layout_of(
        tmp_path,
        "deepseek2",
        attention__head_count_kv=1,
        attention__key_length=576,
        attention__value_length=512,
        attention__key_length_mla=192,
        attention__value_length_mla=128,
    )
    cache = bytes_of(layout, "turbo3")
    # 576 = 9 blocks of 64: FORMAT.md section 1
    assert {(layer.k_type, layer.v_type, layer.k, layer.v) for layer in cache.layers} == {("turbo3_64", None, 234, 0)}
    with pytest.raises(BadInput, match="both must be of one type"):
        bytes_of(layout, "f16/q8_0")


def test_recurrent_layers_have_a_state_of_fixed_size(tmp_path: Path) -> None:
    layout = layout_of(
        tmp_path,
        "jamba",
        attention__head_count_kv=[0, 2, 0, 0],
        ssm__conv_kernel=4,
        ssm__inner_size=1024,
        ssm__state_size=16,
    )
    assert [layer.index for layer in layout.layers] == [1]
    assert [(layer.index, layer.r, layer.s) for layer in layout.recurrent] == [
        (i, 3 * 1024, 16 * 1024) for i in (0, 2, 3)
    ]
    one, two = bytes_of(layout), bytes_of(layout, parallel=2)
    assert one.recurrent == 3 * 4 * (3 * 1024 + 16 * 1024)
    assert two.recurrent == 2 * one.recurrent
    assert two.kv == one.kv


SSM = {"ssm__conv_kernel": 4, "ssm__inner_size": 1024, "ssm__state_size": 16, "ssm__group_count": 2}


@pytest.mark.parametrize(
    ("arch", "own", "attention", "recurrent", "state"),
    [
        # every fourth layer is attention; the last one predicts and has neither
        (
            "qwen3next",
            {**SSM, "block_count": 9, "nextn_predict_layers": 1},
            [3, 7],
            [0, 1, 2, 4, 5, 6],
            (3 * (1024 + 64), 16384),
        ),
        ("qwen35", {**SSM, "attention__recurrent_layers": [1, 0, 0, 1]}, [1, 2], [0, 3], (3264, 16384)),
        ("qwen35moe", {**SSM, "full_attention_interval": 2}, [1, 3], [0, 2], (3264, 16384)),
        ("falcon-h1", SSM, [0, 1, 2, 3], [0, 1, 2, 3], (3264, 16384)),
        # a layer that is neither: a feed-forward one
        (
            "nemotron_h",
            {**SSM, "attention__head_count_kv": [0, 2, 0, 0], "feed_forward_length": [0, 0, 0, 9]},
            [1],
            [0, 2],
            (3264, 16384),
        ),
        ("lfm2", {"shortconv__l_cache": 3, "attention__head_count_kv": [0, 2, 0, 2]}, [1, 3], [0, 2], (1024, 0)),
        (
            "kimi-linear",
            {"ssm__conv_kernel": 4, "kda__head_dim": 128, "attention__head_count_kv": [0, 0, 0, 1]},
            [3],
            [0, 1, 2],
            (3 * 3 * 4 * 128, 4 * 128 * 128),
        ),
        ("minimax-01", {"block_count": 8}, [7], list(range(7)), (0, 4 * 128 * 128)),
    ],
)
def test_hybrid_models_by_their_own_rules(
    tmp_path: Path, arch: str, own: dict[str, Any], attention: list[int], recurrent: list[int], state: tuple[int, int]
) -> None:
    layout = layout_of(tmp_path, arch, **own)
    assert [layer.index for layer in layout.layers] == attention
    assert [layer.index for layer in layout.recurrent] == recurrent
    assert {(layer.r, layer.s) for layer in layout.recurrent} == {state}


def test_a_window_of_a_hybrid_model_is_on_its_attention_layers(tmp_path: Path) -> None:
    own = {"shortconv__l_cache": 3, "attention__head_count_kv": [0, 2, 0, 2], "attention__sliding_window": 100}
    assert [layer.windowed for layer in layout_of(tmp_path, "lfm2", **own).layers] == [True, True]


def test_layers_that_are_run_again_or_added(tmp_path: Path) -> None:
    again = layout_of(tmp_path, "nanbeige", num_loops=3, attention__head_count_kv=[1, 2, 3, 4])
    assert [layer.heads for layer in again.layers] == [1, 2, 3, 4] * 3
    router = layout_of(tmp_path, "graniteswitch")
    assert [layer.heads for layer in router.layers] == [2, 2, 2, 2, 1]
    shared = layout_of(tmp_path, "gemma3n", block_count=30, attention__sliding_window=512)
    assert (len(shared.layers), shared.shared) == (20, 10)
    assert [layer.index for layer in shared.layers if not layer.windowed] == [4, 9, 14, 19]


@pytest.mark.parametrize(
    ("arch", "own", "window"),
    [
        ("smallthinker", {"attention__sliding_window": 7}, 4096),
        ("smallthinker", {}, 0),
        ("exaone4", {"attention__sliding_window": 7}, 0),
        ("exaone4", {"block_count": 64}, 4096),
        ("gemma3", {}, 0),
        ("gemma2", {}, 4096),
        ("phi3", {"attention__sliding_window": 7}, 0),
    ],
)
def test_windows_that_an_architecture_fixes_or_ignores(
    tmp_path: Path, arch: str, own: dict[str, Any], window: int
) -> None:
    assert layout_of(tmp_path, arch, **own).window == window


def test_a_pattern_in_the_file_comes_before_the_period(tmp_path: Path) -> None:
    by_number = layout_of(tmp_path, "gemma3", attention__sliding_window=9, attention__sliding_window_pattern=2)
    assert [layer.windowed for layer in by_number.layers] == [True, False, True, False]
    own = {"attention__sliding_window": 9, "attention__sliding_window_pattern": [False, True, True, False]}
    assert [layer.windowed for layer in layout_of(tmp_path, "gemma3", **own).layers] == [False, True, True, False]


def test_prediction_layers_have_no_cache(tmp_path: Path) -> None:
    assert len(layout_of(tmp_path, "glm4moe", nextn_predict_layers=1).layers) == 3


@pytest.mark.parametrize(
    ("arch", "why"),
    [
        ("mamba", "is recurrent"),
        ("bert", "has no KV cache"),
        ("glm-dsa", "are not counted here"),
        ("gemma4-assistant", "the model that it assists"),
    ],
)
def test_what_cannot_be_counted_is_refused_by_name(tmp_path: Path, arch: str, why: str) -> None:
    with pytest.raises(BadInput, match=rf"{arch} .*{why}|{why}"):
        layout_of(tmp_path, arch)


def test_an_unknown_architecture_is_counted_with_a_note(tmp_path: Path) -> None:
    [note] = layout_of(tmp_path, "brandnew").notes
    assert "brandnew is not known here" in note


def test_no_attention_and_nonsense(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="has no attention"):
        layout_of(tmp_path, attention__head_count=0, attention__head_count_kv=0)
    with pytest.raises(BadInput, match="make no sense"):
        layout_of(tmp_path, nextn_predict_layers=9)
    with pytest.raises(BadInput, match="2 values for 4 layers"):
        layout_of(tmp_path, attention__head_count_kv=[1, 2])
    meta = gguf_meta.read(write_metadata(tmp_path / "e.gguf", "llama", block_count=1, attention__head_count=1))
    with pytest.raises(BadInput, match=r"no llama\.embedding_length"):
        kv_layout.read_layout(meta)


# the tables of kv_archs against the sources


def enum_to_name(enum: str) -> str:
    return enum.lower().replace("_", "-")


@pytest.mark.parametrize(
    ("function", "table"),
    [
        ("llama_turbo_reads_cache_elsewhere", kv_archs.READS_CACHE_ELSEWHERE),
        ("llama_turbo_lacks_flash_attn", kv_archs.LACKS_FLASH_ATTENTION),
    ],
)
def test_the_refused_architectures_are_those_of_the_fork(function: str, table: frozenset[str]) -> None:
    source = (fork.Layout.default().overlay / "src" / "llama-turbo-archs.cpp").read_text(encoding="utf-8")
    body = source.partition(f"bool {function}(")[2].partition("\n}")[0]
    named = {enum_to_name(enum) for enum in re.findall(r"case LLM_ARCH_(\w+):", body)}
    assert named == {name.replace("_", "-") for name in table}


# blocks


@pytest.mark.parametrize(
    ("name", "length", "block"),
    [
        ("turbo3", 64, ("turbo3_64", 64, 26)),
        ("turbo3", 128, ("turbo3", 128, 50)),
        ("turbo2", 256, ("turbo2", 128, 34)),
        ("turbo4", 576, ("turbo4_64", 64, 34)),
        ("turbo4", 80, ("turbo4_80", 80, 42)),
        ("q8_0", 64, ("q8_0", 32, 34)),
        ("iq4_nl", 64, ("iq4_nl", 32, 18)),
        ("bf16", 7, ("bf16", 1, 2)),
    ],
)
def test_a_family_is_resolved_by_head_length(name: str, length: int, block: tuple[str, int, int]) -> None:
    found = block_of(name, length)
    assert (found.name, found.values, found.bytes) == block


@pytest.mark.parametrize(("name", "length"), [("turbo3", 32), ("turbo3", 704), ("q8_0", 80)])
def test_what_no_block_divides_is_refused(name: str, length: int) -> None:
    # 704 = 11 blocks of 64, but no Hadamard matrix of order 44 is defined
    with pytest.raises(ValueError, match=str(length)):
        block_of(name, length)


def test_architectures_that_read_their_cache_elsewhere_have_no_turbo_types(tmp_path: Path) -> None:
    layout = replace(layout_of(tmp_path), arch="hy_v4")
    assert bytes_of(layout, "q8_0").kv
    with pytest.raises(BadInput, match="turbo types are refused for architecture hy_v4"):
        bytes_of(layout, "f16/turbo3")


def test_grok_has_no_flash_attention_for_a_quantised_v(tmp_path: Path) -> None:
    layout = layout_of(tmp_path, "grok")
    assert bytes_of(layout, "turbo3/f16").kv
    with pytest.raises(BadInput, match="needs flash attention"):
        bytes_of(layout, "turbo3")
    with pytest.raises(BadInput, match="needs flash attention"):
        bytes_of(layout, "q8_0")


def test_t5_has_no_turbo_v(tmp_path: Path) -> None:
    layout = layout_of(tmp_path, "t5")
    assert bytes_of(layout, "q8_0").kv
    assert bytes_of(layout, "turbo3/f16").kv
    with pytest.raises(BadInput, match="V in turbo3 needs flash attention, which architecture t5 does not have"):
        bytes_of(layout, "turbo3")
    with pytest.raises(BadInput, match="V in q8_0 needs flash attention"):
        cache_bytes(layout, KVConfig("f16", "f16"), Shape(256), kv_layers.parse("0:q8_0", memory.KNOWN))


# types by layer


def test_rules_give_single_layers_their_own_types(tmp_path: Path) -> None:
    layout = layout_of(tmp_path)
    rules = kv_layers.parse("0-1,-1:q8_0;1:f16/turbo2", memory.KNOWN)
    cache = cache_bytes(layout, KVConfig("turbo3", "turbo4"), Shape(1024), rules)
    types = [(layer.k_type, layer.v_type) for layer in cache.layers]
    assert types == [("q8_0", "q8_0"), ("f16", "turbo2"), ("turbo3", "turbo4"), ("q8_0", "q8_0")]
    assert cache.kv == 1024 * (2 * 2 * 2 * 136 + (512 + 2 * 34) + 2 * (50 + 66))


@pytest.mark.parametrize(
    ("rules", "why"),
    [
        ("0-1", "is no rule"),
        (":q8_0", "is no rule"),
        ("0:f16/f16/f16", "is no rule"),
        ("0:q9", "unknown cache type 'q9'"),
        ("x:q8_0", "'x' is no layer"),
        ("12345:q8_0", "'12345' is no layer"),
        ("0-4:q8_0", "layer 4 does not exist: the model has layers 0 to 3"),
        ("-5:q8_0", "layer -5 does not exist"),
        ("2-1:q8_0", "the range 2-1 is empty"),
    ],
)
def test_wrong_rules_are_one_line(tmp_path: Path, rules: str, why: str) -> None:
    model = write_metadata(tmp_path / "m.gguf", "llama", **PLAIN)
    result = ran(model, "--kv-layers", rules)
    assert result.exit_code == 2
    assert why in result.stderr


def test_refusals_hold_for_the_types_of_a_layer(tmp_path: Path) -> None:
    rules = kv_layers.parse("1:turbo3", memory.KNOWN)
    with pytest.raises(BadInput, match="needs flash attention"):
        cache_bytes(layout_of(tmp_path, "grok"), KVConfig("f16", "f16"), Shape(256), rules)


def test_layers_of_other_types_have_a_line_of_their_own(tmp_path: Path) -> None:
    model = write_metadata(tmp_path / "m.gguf", "llama", **PLAIN)
    table = ran(model, "--types", "turbo3,f16", "--kv-layers", "0,-1:q8_0").stdout
    assert re.search(r"^0, 3 +full .* 544 +544$", table, re.M)
    assert re.search(r"^1-2 +full .* 200 +1024$", table, re.M)


# budgets


def test_the_largest_context_fits_and_the_next_does_not(tmp_path: Path) -> None:
    layout = layout_of(tmp_path, "gemma3", block_count=7, attention__sliding_window=512)

    def size(ctx: int) -> int:
        return bytes_of(layout, "turbo3", ctx=ctx).total

    for budget in (size(256), size(256) + 1, size(100_096) - 1, size(100_096), 10**9):
        found = largest_context(size, budget)
        assert size(found) <= budget < size(found + 256)
    assert largest_context(size, size(256) - 1) == 0


def test_sizes_are_read_and_written() -> None:
    assert [parse_size(text) for text in ("16GiB", "16G", "1.5 MiB", "8GB", "0", "42")] == [
        16 * GIB,
        16 * GIB,
        3 << 19,
        8 * 10**9,
        0,
        42,
    ]
    assert [format_size(n) for n in (5, 2048, 3 << 19, 200 << 20, 16 << 30)] == [
        "5 B",
        "2.00 KiB",
        "1.50 MiB",
        "200 MiB",
        "16.00 GiB",
    ]
    for wrong in ("", "GiB", "1 XB", "-1G", "1e9"):
        with pytest.raises(BadInput, match="is not a size"):
            parse_size(wrong)


# the command


def ran(*args: object) -> Result:
    return CliRunner().invoke(main, ["memory", *map(str, args)])


@pytest.fixture
def gemma(tmp_path: Path) -> Path:
    return write_metadata(
        tmp_path / "m.gguf", "gemma3", **{**PLAIN, "block_count": 7, "attention__sliding_window": 512}
    )


def test_every_output_tells_the_same_numbers(gemma: Path) -> None:
    args = (gemma, "--ctx", 8192, "--types", "f16,turbo3,q8_0/turbo3", "--budget", "1GiB", "-o")
    document = json.loads(ran(*args, "json").stdout)
    rows = {row["label"]: row for row in document["rows"]}
    assert rows["f16"]["bytes"] == 1024 * (6 * 1024 + 8192)
    assert rows["q8_0/turbo3"]["bytes_per_token"] == 7 * (2 * 136 + 2 * 50)
    table = ran(*args, "table").stdout
    assert re.search(r"^f16 +16\.000 +7168 +14\.00 +1\.00x", table, re.M)
    assert re.search(r"^turbo3 +3\.125 +1400 +2\.73 +5\.12x", table, re.M)
    assert "6 of 7 layers keep a sliding window of 512 tokens" in table
    markdown = ran(*args, "md").stdout
    assert re.search(r"^\| turbo3 \| 3\.125 \| 1400 \| 2\.73 \|", markdown, re.M)
    lines = list(csv.DictReader(io.StringIO(ran(*args, "csv").stdout)))
    assert len(lines) == 3 * 7
    assert sum(int(line["bytes"]) for line in lines if line["k"] == "turbo3") == rows["turbo3"]["bytes"]
    assert {line["k_type"] for line in lines} == {"f16", "turbo3", "q8_0"}


def test_a_budget_counts_weights_and_reserve(gemma: Path) -> None:
    weights = gemma.stat().st_size
    fixed = ("--types", "f16", "-o", "json", "--budget", weights + (1 << 30))
    free = json.loads(ran(gemma, *fixed).stdout)["rows"][0]["largest_context"][0]
    kept = json.loads(ran(gemma, *fixed, "--reserve", "512MiB").stdout)["rows"][0]["largest_context"][0]
    # a window of 1024 tokens in 6 layers, 1 KiB a token and layer
    assert free["ctx"] == (1 << 20) - 6 * 1024
    assert kept["ctx"] == (1 << 19) - 6 * 1024
    assert f"{free['ctx']}*" in ran(gemma, "--types", "f16", "--budget", weights + (1 << 30)).stdout
    assert "does not fit" in ran(gemma, "--types", "f16", "--budget", "1k").stdout


def test_sequences_and_latent_attention_are_said(tmp_path: Path) -> None:
    model = write_metadata(
        tmp_path / "m.gguf",
        "deepseek2",
        **{**PLAIN, "attention__key_length": 576, "attention__key_length_mla": 192, "attention__value_length_mla": 128},
    )
    table = ran(model, "--parallel", 2, "--ctx", 2000).stdout
    assert "2 sequences, each with 1024 cells" in table
    assert "view of K" in table
    assert "only K is stored" in table
    assert "2 sequences, sharing 2048 cells" in ran(model, "--parallel", 2, "--ctx", 2000, "--unified").stdout


def test_layers_are_named_in_ranges(tmp_path: Path) -> None:
    own = {**PLAIN, "block_count": 9, "attention__sliding_window": 9}
    assert re.search(r"^4 of 1-7 ", ran(write_metadata(tmp_path / "m.gguf", "gpt-oss", **own)).stdout, re.M)


def test_a_model_that_does_not_say_its_context(tmp_path: Path) -> None:
    model = write_metadata(tmp_path / "m.gguf", "llama", **{**PLAIN, "context_length": 0})
    result = ran(model)
    assert (result.exit_code, "give one with --ctx" in result.stderr) == (2, True)
    assert ran(model, "--ctx", 512).exit_code == 0


def test_a_type_that_does_not_work_keeps_its_row_with_the_reason(tmp_path: Path) -> None:
    model = write_metadata(tmp_path / "m.gguf", "llama", **{**PLAIN, "embedding_length": 320})
    result = ran(model, "--types", "f16,turbo3,q8_0")
    assert result.exit_code == 0
    assert re.search(r"^q8_0 +-", result.stdout, re.M)
    assert "q8_0: layer 0 cannot have K in q8_0: q8_0 stores 32 values a block" in result.stdout
    assert re.search(r"^turbo3 +3\.200", result.stdout, re.M)
    failed = ran(model, "--types", "q8_0")
    assert failed.exit_code == 2
    assert "no type of the list works for this model" in failed.stderr


def test_all_types_are_all_that_the_programs_know(gemma: Path) -> None:
    document = json.loads(ran(gemma, "--types", "all", "-o", "json").stdout)
    assert [row["label"] for row in document["rows"]] == list(memory.KNOWN)
    help_text = recorded("help.txt")
    assert perplexity.parse_known_types(help_text) == list(memory.KNOWN)


def test_bad_usage_is_one_line(gemma: Path, tmp_path: Path) -> None:
    for args, why in (
        ((gemma, "--types", "turbo5"), "unknown cache type 'turbo5'"),
        ((gemma, "--budget", "lots"), "'lots' is not a size"),
        ((tmp_path / "none.gguf",), "cannot read the model"),
    ):
        result = ran(*args)
        assert result.exit_code == 2
        [line] = result.stderr.splitlines()
        assert why in line
