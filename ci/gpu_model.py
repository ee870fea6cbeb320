"""Writes a synthetic Llama model: random f16 weights, a vocabulary of bytes. Usage: gpu_model.py tiny|8b OUT.gguf [N]

N layers. `8b`: those of Llama-3-8B (4096 wide, 32 query and 8 KV heads of 128). `tiny`: for CPU/GPU parity.
"""

import sys
from pathlib import Path

import gguf
import numpy as np

# name: (width, feed-forward, query heads, KV heads, layers)
SHAPES = {"tiny": (512, 1024, 4, 1, 4), "8b": (4096, 14336, 32, 8, 2)}


def write(path: Path, shape: str, layers: int | None = None) -> None:
    width, ff, heads, kv_heads, default_layers = SHAPES[shape]
    layers = layers or default_layers
    kv_width = width // heads * kv_heads
    rng = np.random.default_rng(1)
    noise = rng.standard_normal(1 << 22, dtype=np.float32).astype(np.float16)

    def weight(rows: int, columns: int) -> np.ndarray:
        # drawn from one pool, at another offset each time: random enough for speed and parity, and quick
        values = np.resize(np.roll(noise, int(rng.integers(len(noise)))), rows * columns)
        return (values.reshape(rows, columns) * np.float16(columns**-0.5)).astype(np.float16)

    w = gguf.GGUFWriter(path, "llama")
    w.add_context_length(1 << 18)
    w.add_embedding_length(width)
    w.add_block_count(layers)
    w.add_feed_forward_length(ff)
    w.add_head_count(heads)
    w.add_head_count_kv(kv_heads)
    w.add_rope_dimension_count(width // heads)
    w.add_rope_freq_base(500000.0)
    w.add_layer_norm_rms_eps(1e-5)
    tokens = [b"<unk>", b"<s>", b"</s>", *(f"<0x{i:02X}>".encode() for i in range(256))]
    kinds = [gguf.TokenType.UNKNOWN, gguf.TokenType.CONTROL, gguf.TokenType.CONTROL, *[gguf.TokenType.BYTE] * 256]
    w.add_tokenizer_model("llama")
    w.add_token_list(tokens)
    w.add_token_scores([0.0] * len(tokens))
    w.add_token_types(kinds)
    w.add_bos_token_id(1)
    w.add_eos_token_id(2)
    w.add_vocab_size(len(tokens))
    w.add_tensor("token_embd.weight", weight(len(tokens), width) * np.float16(width**0.5))
    w.add_tensor("output.weight", weight(len(tokens), width))
    w.add_tensor("output_norm.weight", np.ones(width, np.float32))
    for i in range(layers):
        w.add_tensor(f"blk.{i}.attn_norm.weight", np.ones(width, np.float32))
        w.add_tensor(f"blk.{i}.ffn_norm.weight", np.ones(width, np.float32))
        w.add_tensor(f"blk.{i}.attn_q.weight", weight(width, width))
        w.add_tensor(f"blk.{i}.attn_k.weight", weight(kv_width, width))
        w.add_tensor(f"blk.{i}.attn_v.weight", weight(kv_width, width))
        w.add_tensor(f"blk.{i}.attn_output.weight", weight(width, width))
        w.add_tensor(f"blk.{i}.ffn_gate.weight", weight(ff, width))
        w.add_tensor(f"blk.{i}.ffn_up.weight", weight(ff, width))
        w.add_tensor(f"blk.{i}.ffn_down.weight", weight(width, ff))
    w.write_header_to_file()
    w.write_kv_data_to_file()
    w.write_tensors_to_file()
    w.close()


if __name__ == "__main__":
    if len(sys.argv) < 3 or sys.argv[1] not in SHAPES:
        print(__doc__, file=sys.stderr)
        raise SystemExit(2)
    write(Path(sys.argv[2]), sys.argv[1], int(sys.argv[3]) if len(sys.argv) > 3 else None)
