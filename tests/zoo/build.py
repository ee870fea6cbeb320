"""The parts that models are put together from: metadata, attention and feed-forward tensors, one Model as the result.

Shapes are NumPy's, [out, in]; GGUF stores them reversed.
"""

from dataclasses import dataclass, field

import numpy as np

from . import draw
from .draw import F32

N_VOCAB = 256
N_CTX = 1024
N_FF = 64

Value = int | float | bool | str | list[int] | list[bool]


@dataclass
class Model:
    """One GGUF in memory. metadata: keys without the prefix of the architecture. tensors: in file order."""

    name: str
    arch: str
    n_embd: int
    n_layer: int = 2
    metadata: dict[str, Value] = field(default_factory=dict)
    tensors: dict[str, F32] = field(default_factory=dict)

    def gen(self, tensor: str) -> np.random.Generator:
        return draw.rng(self.name, tensor)

    def linear(self, tensor: str, n_out: int, n_in: int, gain: float = 1.0) -> None:
        self.tensors[tensor] = draw.linear(self.gen(tensor), n_out, n_in, gain)

    def ones(self, tensor: str, n: int) -> None:
        self.tensors[tensor] = draw.ones(n)

    def zeros(self, tensor: str, n: int) -> None:
        self.tensors[tensor] = draw.zeros(n)


def start(
    name: str, arch: str, *, n_embd: int, n_layer: int, heads: int | list[int], kv_heads: int | list[int]
) -> Model:
    """A model with the metadata that every architecture wants."""
    model = Model(name, arch, n_embd, n_layer)
    model.metadata |= {
        "vocab_size": N_VOCAB,
        "context_length": N_CTX,
        "embedding_length": n_embd,
        "block_count": n_layer,
        "feed_forward_length": N_FF,
        "attention.head_count": heads,
        "attention.head_count_kv": kv_heads,
        "attention.layer_norm_rms_epsilon": 1e-5,
    }
    return model


def head_dims(model: Model, d_k: int, d_v: int, n_rot: int | None = None) -> None:
    model.metadata |= {"attention.key_length": d_k, "attention.value_length": d_v}
    model.metadata["rope.dimension_count"] = d_k if n_rot is None else n_rot


def ends(
    model: Model,
    *,
    embd_size: float = 1.0,
    norm: str = "output_norm.weight",
    output: bool = True,
    logit_std: float = 2.0,
) -> None:
    """Embedding, final norm and output matrix. Tied to the embedding without `output`.

    Tied, the token itself would win every time: a final norm with random signs makes it one word among the others.
    """
    model.tensors["token_embd.weight"] = draw.embedding(
        model.gen("token_embd.weight"), N_VOCAB, model.n_embd, embd_size
    )
    if output:
        model.ones(norm, model.n_embd)
        model.linear("output.weight", N_VOCAB, model.n_embd, logit_std)
    else:
        gain = logit_std / (embd_size * np.sqrt(model.n_embd))
        model.tensors[norm] = model.gen(norm).standard_normal(model.n_embd, dtype=np.float32) * np.float32(gain)


def qkv(model: Model, il: int, n_head: int, n_kv: int, d_k: int, d_v: int, scale: float) -> tuple[F32, F32, F32]:
    """The three projections, each head with the channel gains of its KV head. scale: what scores are multiplied by."""
    rows_q, rows_k, rows_v = [], [], []
    for h in range(n_kv):
        gains = draw.channel_gains(model.gen(f"blk.{il}.k_gains.{h}"), d_k)
        size = draw.score_gain(gains, scale)
        rows_k.append(size * gains)
        rows_q.extend([size * gains] * (n_head // n_kv))
        rows_v.append(draw.channel_gains(model.gen(f"blk.{il}.v_gains.{h}"), d_v))
    return (
        draw.linear(model.gen(f"blk.{il}.q"), n_head * d_k, model.n_embd) * np.concatenate(rows_q)[:, None],
        draw.linear(model.gen(f"blk.{il}.k"), n_kv * d_k, model.n_embd) * np.concatenate(rows_k)[:, None],
        draw.linear(model.gen(f"blk.{il}.v"), n_kv * d_v, model.n_embd) * np.concatenate(rows_v)[:, None],
    )


def attention(
    model: Model,
    il: int,
    n_head: int,
    n_kv: int,
    d_k: int,
    d_v: int,
    *,
    scale: float | None = None,
    prefix: str = "blk",
    part: str = "attn",
    norm: str | None = None,
) -> None:
    """Norm, separate projections and output of one layer. scale: 1/sqrt(d_k) unless given."""
    stem = f"{prefix}.{il}.{part}"
    q, k, v = qkv(model, il, n_head, n_kv, d_k, d_v, scale or d_k**-0.5)
    model.ones(f"{norm or stem + '_norm'}.weight", model.n_embd)
    model.tensors[f"{stem}_q.weight"] = q
    model.tensors[f"{stem}_k.weight"] = k
    model.tensors[f"{stem}_v.weight"] = v
    out = "_o" if prefix != "blk" else "_output"
    # an average over several tokens is smaller than one value
    model.linear(f"{stem}{out}.weight", model.n_embd, n_head * d_v, 2.0)


def qk_norm(model: Model, il: int, d: int, scale: float) -> None:
    """Norms of Q and K that set their sizes, whatever the projections did."""
    gains = draw.channel_gains(model.gen(f"blk.{il}.k_gains"), d)
    size = np.float32(draw.score_gain(gains, scale))
    model.tensors[f"blk.{il}.attn_q_norm.weight"] = size * gains
    model.tensors[f"blk.{il}.attn_k_norm.weight"] = size * gains


def feed_forward(model: Model, il: int, *, prefix: str = "blk", gated: bool = True, norm: bool = True) -> None:
    stem = f"{prefix}.{il}.ffn"
    if norm:
        model.ones(f"{stem}_norm.weight", model.n_embd)
    if gated:
        model.linear(f"{stem}_gate.weight", N_FF, model.n_embd)
    model.linear(f"{stem}_up.weight", N_FF, model.n_embd)
    model.linear(f"{stem}_down.weight", model.n_embd, N_FF)
