"""Writes a synthetic Llama model: random Q8_0 weights, a vocabulary of bytes. Usage: gpu_model.py tiny|8b OUT.gguf [N]

N layers. `8b`: those of Llama-3-8B (4096 wide, 32 query and 8 KV heads of 128). `tiny`: for CPU/GPU parity. Needs
nothing but Python: it runs on a machine that has no packages. Quantised weights, because their products need no cuBLAS.
"""

import random
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

# name: (width, feed-forward, query heads, KV heads, layers)
SHAPES = {"tiny": (512, 1024, 4, 1, 4), "8b": (4096, 14336, 32, 8, 2)}

# GGUF: types of values and tensors
U32, I32, F32, STRING, ARRAY = 4, 5, 6, 8, 9
TENSOR_F32, TENSOR_Q8_0 = 0, 8
ALIGNMENT = 32

Q8_0_BLOCK = 32
# Blocks of the pool that all weights are cut from; prime, so that no two rows of a matrix are alike.
POOL = 65537
UNIFORM_DEVIATION = 73.9  # of a random signed byte


def text(s: bytes) -> bytes:
    return struct.pack("<Q", len(s)) + s


def value(kind: int, x: object) -> bytes:
    if kind == STRING:
        assert isinstance(x, bytes)
        return text(x)
    return struct.pack({U32: "<I", I32: "<i", F32: "<f"}[kind], x)


class Tensor:
    """name and dimensions as ggml counts them, the row's length first; pieces: its bytes."""

    def __init__(self, name: str, dims: tuple[int, ...], kind: int, size: int, pieces: Iterator[bytes]) -> None:
        self.name, self.dims, self.kind, self.size, self.pieces = name, dims, kind, size, pieces


class Weights:
    """Random matrices, cut from one pool at another offset each time: random enough for speed and parity, and quick."""

    def __init__(self) -> None:
        self.random = random.Random(1)
        self.noise = self.random.randbytes(POOL * Q8_0_BLOCK)
        self.pools: dict[float, bytes] = {}

    def matrix(self, name: str, rows: int, columns: int, deviation: float | None = None) -> Tensor:
        """Values of this standard deviation, 1/sqrt(columns) by default."""
        size = rows * columns // Q8_0_BLOCK * (Q8_0_BLOCK + 2)
        pieces = self._pieces(size, deviation or columns**-0.5)
        return Tensor(name, (columns, rows), TENSOR_Q8_0, size, pieces)

    def _pieces(self, size: int, deviation: float) -> Iterator[bytes]:
        pool = self.pools.get(deviation)
        if pool is None:
            scale = struct.pack("<e", deviation / UNIFORM_DEVIATION)
            blocks = (self.noise[i : i + Q8_0_BLOCK] for i in range(0, len(self.noise), Q8_0_BLOCK))
            pool = self.pools[deviation] = scale + scale.join(blocks)
        start = self.random.randrange(POOL) * (Q8_0_BLOCK + 2)
        while size > 0:
            piece = pool[start : start + size]
            yield piece
            size -= len(piece)
            start = 0


def ones(name: str, n: int) -> Tensor:
    return Tensor(name, (n,), TENSOR_F32, 4 * n, iter([struct.pack("<f", 1.0) * n]))


def tensors(width: int, ff: int, kv_width: int, layers: int, vocabulary: int) -> list[Tensor]:
    w = Weights()
    found = [
        w.matrix("token_embd.weight", vocabulary, width, 1.0),
        w.matrix("output.weight", vocabulary, width),
        ones("output_norm.weight", width),
    ]
    for i in range(layers):
        found += [ones(f"blk.{i}.attn_norm.weight", width), ones(f"blk.{i}.ffn_norm.weight", width)]
        shapes = {"attn_q": (width, width), "attn_k": (kv_width, width), "attn_v": (kv_width, width)}
        shapes |= {"attn_output": (width, width)}
        shapes |= {"ffn_gate": (ff, width), "ffn_up": (ff, width), "ffn_down": (width, ff)}
        found += [w.matrix(f"blk.{i}.{name}.weight", *shape) for name, shape in shapes.items()]
    return found


def write(path: Path, shape: str, layers: int | None = None) -> None:
    width, ff, heads, kv_heads, default_layers = SHAPES[shape]
    layers = layers or default_layers
    tokens = [b"<unk>", b"<s>", b"</s>", *(f"<0x{i:02X}>".encode() for i in range(256))]
    # unknown, control, control, bytes
    kinds = [2, 3, 3, *[6] * 256]
    keys: list[tuple[str, int, object]] = [
        ("general.architecture", STRING, b"llama"),
        ("llama.context_length", U32, 1 << 18),
        ("llama.embedding_length", U32, width),
        ("llama.block_count", U32, layers),
        ("llama.feed_forward_length", U32, ff),
        ("llama.attention.head_count", U32, heads),
        ("llama.attention.head_count_kv", U32, kv_heads),
        ("llama.rope.dimension_count", U32, width // heads),
        ("llama.rope.freq_base", F32, 500000.0),
        ("llama.attention.layer_norm_rms_epsilon", F32, 1e-5),
        ("llama.vocab_size", U32, len(tokens)),
        ("tokenizer.ggml.model", STRING, b"llama"),
        ("tokenizer.ggml.bos_token_id", U32, 1),
        ("tokenizer.ggml.eos_token_id", U32, 2),
    ]
    arrays: list[tuple[str, int, list[object]]] = [
        ("tokenizer.ggml.tokens", STRING, [*tokens]),
        ("tokenizer.ggml.scores", F32, [0.0] * len(tokens)),
        ("tokenizer.ggml.token_type", I32, [*kinds]),
    ]
    weights = tensors(width, ff, width // heads * kv_heads, layers, len(tokens))
    head = b"GGUF" + struct.pack("<IQQ", 3, len(weights), len(keys) + len(arrays))
    for name, kind, x in keys:
        head += text(name.encode()) + struct.pack("<I", kind) + value(kind, x)
    for name, kind, xs in arrays:
        head += text(name.encode()) + struct.pack("<IIQ", ARRAY, kind, len(xs)) + b"".join(value(kind, x) for x in xs)
    offset = 0
    for t in weights:
        head += text(t.name.encode()) + struct.pack(f"<I{len(t.dims)}QIQ", len(t.dims), *t.dims, t.kind, offset)
        offset += t.size + -t.size % ALIGNMENT
    with path.open("wb") as f:
        f.write(head + bytes(-len(head) % ALIGNMENT))
        for t in weights:
            for piece in t.pieces:
                f.write(piece)
            f.write(bytes(-t.size % ALIGNMENT))


if __name__ == "__main__":
    if len(sys.argv) < 3 or sys.argv[1] not in SHAPES:
        print(__doc__, file=sys.stderr)
        raise SystemExit(2)
    write(Path(sys.argv[2]), sys.argv[1], int(sys.argv[3]) if len(sys.argv) > 3 else None)
