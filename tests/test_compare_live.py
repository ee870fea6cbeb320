"""The toolkit on the programs that `turbokv-eval build` made, with a made-up model of two layers: seconds, no more."""

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
from click.testing import CliRunner
from compare_world import finish

from turbokv_eval.cli import main
from turbokv_eval.comparison import preflight
from turbokv_eval.machine import build

pytestmark = pytest.mark.live

LAYERS, HEADS, KV_HEADS, VOCAB = 2, 4, 2, 260


def tiny_model(path: Path, dim: int) -> Path:
    """A llama with random weights and a byte vocabulary; dim: values in a head."""
    rng = np.random.default_rng(0)
    n, kv, ff = HEADS * dim, KV_HEADS * dim, 64
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(512)
    writer.add_embedding_length(n)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(ff)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(dim)
    writer.add_tokenizer_model("llama")
    writer.add_token_list(["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), " "])
    writer.add_token_scores([0.0] * VOCAB)
    writer.add_token_types([2, 3, 3, *[6] * 256, 1])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    writer.add_unk_token_id(0)

    def tensor(name: str, *shape: int) -> None:
        data = np.ones(shape) if len(shape) == 1 else rng.normal(0, 2 / shape[1] ** 0.5, shape)
        writer.add_tensor(name, data.astype(np.float32))

    tensor("token_embd.weight", VOCAB, n)
    tensor("output_norm.weight", n)
    tensor("output.weight", VOCAB, n)
    for layer in range(LAYERS):
        for name, *shape in (
            ("attn_norm", n),
            ("attn_q", n, n),
            ("attn_k", kv, n),
            ("attn_v", kv, n),
            ("attn_output", n, n),
            ("ffn_norm", n),
            ("ffn_gate", ff, n),
            ("ffn_up", ff, n),
            ("ffn_down", n, ff),
        ):
            tensor(f"blk.{layer}.{name}.weight", *shape)
    finish(writer)
    return path


def compared(root: Path, model: Path, types: str) -> dict[str, Any]:
    text = root / "text.txt"
    text.write_text("".join(chr(97 + i * i % 23) for i in range(2000)), encoding="utf-8")
    args = [
        "compare",
        "-m",
        model,
        "-f",
        text,
        "--run",
        root / "out",
        "--contexts",
        "128",
        "--chunks",
        "4",
        "--types",
        types,
    ]
    result = CliRunner().invoke(main, [*map(str, args), "--depths", "0,64", "--rounds", "1", "-r", "1"])
    assert result.exit_code == 0, result.stderr
    found: dict[str, Any] = json.loads((root / "out" / "compare.json").read_text(encoding="utf-8"))
    return found


def test_the_programs_know_the_turbo_types() -> None:
    preflight.check_programs(build.default_bin())
    assert {"turbo2", "turbo3", "turbo4"} <= set(preflight.known_types(build.default_bin()))


@pytest.mark.parametrize(("dim", "overhead"), [(64, 16 / 64), (128, 16 / 128)])
def test_a_comparison_of_every_turbo_type(tmp_path: Path, dim: int, overhead: float) -> None:
    document = compared(tmp_path, tiny_model(tmp_path / "tiny.gguf", dim), "f16,turbo4,turbo3,turbo2,q8_0/turbo3")
    rows = {row["label"]: row for row in document["rows"]}
    for bits in (2, 3, 4):
        # Sizes are printed with two decimals of a MiB, and this cache is small.
        assert rows[f"turbo{bits}"]["bits_per_value"] == pytest.approx(bits + overhead, rel=0.02)
    assert rows["f16"]["bits_per_value"] == pytest.approx(16, rel=0.02)
    kld = [rows[name]["quality"][0]["kld_mean"] for name in ("f16", "turbo4", "turbo3", "turbo2")]
    assert kld == sorted(kld)
    assert kld[0] < kld[1] / 4
    for row in rows.values():
        assert [entry["depth"] for entry in row["speed"]] == [0, 64]


def test_a_head_dimension_without_a_block_is_one_line(tmp_path: Path) -> None:
    model, text = tiny_model(tmp_path / "tiny.gguf", 32), tmp_path / "text.txt"
    text.write_text("a" * 2000, encoding="utf-8")
    args = ["compare", "-m", model, "-f", text, "--run", tmp_path / "out", "--contexts", "128", "--types", "f16,turbo3"]
    result = CliRunner().invoke(main, [str(arg) for arg in args])
    assert result.exit_code == 2
    [error] = [line for line in result.stderr.splitlines() if line.startswith("Error: ")]
    assert "heads of 32 values" in error
    assert "types that work here" in error
