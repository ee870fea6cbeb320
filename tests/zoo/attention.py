"""One function for each kind of attention: the architecture that has it, as small as llama.cpp loads it."""

import numpy as np

from . import build, draw
from .build import Model

WINDOW = 32
SOFTCAP = 4.0


def plain(name: str, d: int, *, n_head: int = 4, n_kv: int = 2) -> Model:
    """llama: multi-head, grouped-query (n_head > n_kv) or multi-query (n_kv = 1) attention."""
    model = build.start(name, "llama", n_embd=128, n_layer=2, heads=n_head, kv_heads=n_kv)
    build.head_dims(model, d, d)
    build.ends(model)
    for il in range(model.n_layer):
        build.attention(model, il, n_head, n_kv, d, d)
        build.feed_forward(model, il)
    return model


def unequal(name: str, d_k: int, d_v: int) -> Model:
    """mimo2: heads whose K is longer than their V, in layers with and without a window."""
    n_head, n_kv = 4, 2
    model = build.start(name, "mimo2", n_embd=128, n_layer=2, heads=n_head, kv_heads=n_kv)
    build.head_dims(model, d_k, d_v)
    model.metadata |= {
        "attention.sliding_window": WINDOW,
        "attention.sliding_window_pattern": [True, False],
        "rope.freq_base_swa": 10000.0,
        "expert_feed_forward_length": build.N_FF,
    }
    build.ends(model)
    for il in range(model.n_layer):
        build.attention(model, il, n_head, n_kv, d_k, d_v)
        build.feed_forward(model, il)
    return model


def sliding(name: str, d: int = 256) -> Model:
    """gemma3: layers with a sliding window between layers without, norms of Q and K, norms behind each part."""
    model = build.start(name, "gemma3", n_embd=128, n_layer=3, heads=2, kv_heads=1)
    build.head_dims(model, d, d)
    model.metadata |= {"attention.sliding_window": WINDOW, "attention.sliding_window_pattern": 3}
    # the graph multiplies the embedding by sqrt(n_embd)
    build.ends(model, embd_size=model.n_embd**-0.5)
    for il in range(model.n_layer):
        build.attention(model, il, 2, 1, d, d)
        build.qk_norm(model, il, d, d**-0.5)
        model.ones(f"blk.{il}.post_attention_norm.weight", model.n_embd)
        build.feed_forward(model, il)
        model.ones(f"blk.{il}.post_ffw_norm.weight", model.n_embd)
    return model


def softcap(name: str, d: int = 128) -> Model:
    """gemma2: scores and logits capped by tanh, and a sliding window in every other layer."""
    model = build.start(name, "gemma2", n_embd=128, n_layer=2, heads=2, kv_heads=1)
    build.head_dims(model, d, d)
    model.metadata |= {
        "attention.sliding_window": WINDOW,
        "attn_logit_softcapping": SOFTCAP,
        "final_logit_softcapping": 30.0,
    }
    build.ends(model, embd_size=model.n_embd**-0.5, output=False)
    for il in range(model.n_layer):
        build.attention(model, il, 2, 1, d, d)
        model.ones(f"blk.{il}.post_attention_norm.weight", model.n_embd)
        build.feed_forward(model, il)
        model.ones(f"blk.{il}.post_ffw_norm.weight", model.n_embd)
    return model


def sinks(name: str, d: int = 64) -> Model:
    """gpt-oss: one more logit in each head's softmax, which no value belongs to; windows; experts."""
    n_head, n_kv, n_expert = 4, 2, 2
    model = build.start(name, "gpt-oss", n_embd=128, n_layer=2, heads=n_head, kv_heads=n_kv)
    build.head_dims(model, d, d)
    model.metadata |= {
        "attention.sliding_window": WINDOW,
        "expert_count": n_expert,
        # both: a router that changes its mind would turn a small error into a jump
        "expert_used_count": n_expert,
        "expert_feed_forward_length": build.N_FF,
    }
    build.ends(model)
    n, ff = model.n_embd, build.N_FF
    for il in range(model.n_layer):
        build.attention(model, il, n_head, n_kv, d, d)
        model.zeros(f"blk.{il}.attn_output.bias", n)
        # about the size of the largest score of a window: the sink takes a good part of the weight, not all of it
        sink = 4.0 + model.gen(f"blk.{il}.attn_sinks.weight").standard_normal(n_head)
        model.tensors[f"blk.{il}.attn_sinks.weight"] = sink.astype(np.float32)
        model.ones(f"blk.{il}.post_attention_norm.weight", n)
        model.linear(f"blk.{il}.ffn_gate_inp.weight", n_expert, n)
        model.zeros(f"blk.{il}.ffn_gate_inp.bias", n_expert)
        for part, n_out, n_in in (("gate", ff, n), ("up", ff, n), ("down", n, ff)):
            tensor = f"blk.{il}.ffn_{part}_exps"
            experts = [draw.linear(model.gen(f"{tensor}.{e}"), n_out, n_in) for e in range(n_expert)]
            model.tensors[f"{tensor}.weight"] = np.stack(experts)
            model.tensors[f"{tensor}.bias"] = np.zeros((n_expert, n_out), dtype=np.float32)
    return model


def alibi(name: str, d: int = 64) -> Model:
    """mpt: no RoPE; a bias that falls with the distance, its slope different in each head."""
    n_head = 4
    model = build.start(name, "mpt", n_embd=n_head * d, n_layer=2, heads=n_head, kv_heads=n_head)
    model.metadata |= {"attention.layer_norm_epsilon": 1e-5, "attention.max_alibi_bias": 8.0}
    build.ends(model)
    for il in range(model.n_layer):
        q, k, v = build.qkv(model, il, n_head, n_head, d, d, d**-0.5)
        model.ones(f"blk.{il}.attn_norm.weight", model.n_embd)
        model.tensors[f"blk.{il}.attn_qkv.weight"] = np.concatenate([q, k, v])
        model.linear(f"blk.{il}.attn_output.weight", model.n_embd, n_head * d, 2.0)
        build.feed_forward(model, il, gated=False)
    return model


def latent(name: str) -> Model:
    """deepseek2: multi-head latent attention. K is 512 latent and 64 rotary values, V a view of the former."""
    n_head, rank, rope, d_k, d_v, q_rank = 4, 512, 64, 192, 128, 64
    nope = d_k - rope
    model = build.start(name, "deepseek2", n_embd=128, n_layer=2, heads=n_head, kv_heads=1)
    build.head_dims(model, rank + rope, rank, rope)
    model.metadata |= {
        "attention.key_length_mla": d_k,
        "attention.value_length_mla": d_v,
        "attention.q_lora_rank": q_rank,
        "attention.kv_lora_rank": rank,
        "leading_dense_block_count": model.n_layer,
        "expert_count": 0,
        "expert_used_count": 0,
        "expert_shared_count": 0,
        "expert_feed_forward_length": build.N_FF,
        "expert_weights_scale": 1.0,
    }
    build.ends(model)
    n = model.n_embd
    for il in range(model.n_layer):
        # keys are what the norm and the rotary rows make them; the queries' size then sets the scores'
        gains = draw.channel_gains(model.gen(f"blk.{il}.latent_gains"), rank)
        size = draw.SCORE_STD / (d_k**-0.5 * np.sqrt(rank + rope))
        model.ones(f"blk.{il}.attn_norm.weight", n)
        model.linear(f"blk.{il}.attn_q_a.weight", q_rank, n)
        model.ones(f"blk.{il}.attn_q_a_norm.weight", q_rank)
        model.linear(f"blk.{il}.attn_q_b.weight", n_head * d_k, q_rank, size)
        model.linear(f"blk.{il}.attn_kv_a_mqa.weight", rank + rope, n)
        model.tensors[f"blk.{il}.attn_kv_a_norm.weight"] = gains
        model.tensors[f"blk.{il}.attn_k_b.weight"] = np.stack(
            [draw.linear(model.gen(f"blk.{il}.k_b.{h}"), rank, nope) for h in range(n_head)]
        )
        model.tensors[f"blk.{il}.attn_v_b.weight"] = np.stack(
            [draw.linear(model.gen(f"blk.{il}.v_b.{h}"), d_v, rank) for h in range(n_head)]
        )
        model.linear(f"blk.{il}.attn_output.weight", n, n_head * d_v, 2.0)
        build.feed_forward(model, il)
    return model


def hybrid(name: str, d: int = 64) -> Model:
    """lfm2: layers of short convolutions, which keep a recurrent state, around layers of grouped-query attention."""
    n_head, n_kv, taps = 4, 2, 3
    kv_heads = [0, n_kv, 0, n_kv]
    model = build.start(name, "lfm2", n_embd=n_head * d, n_layer=4, heads=n_head, kv_heads=kv_heads)
    model.metadata["shortconv.l_cache"] = taps
    build.ends(model, norm="token_embd_norm.weight")
    for il, heads in enumerate(kv_heads):
        if heads:
            build.attention(model, il, n_head, n_kv, d, d)
            build.qk_norm(model, il, d, d**-0.5)
        else:
            model.ones(f"blk.{il}.attn_norm.weight", model.n_embd)
            model.linear(f"blk.{il}.shortconv.conv.weight", model.n_embd, taps)
            model.linear(f"blk.{il}.shortconv.in_proj.weight", 3 * model.n_embd, model.n_embd)
            # the block multiplies three projections: at full size its rare large outputs would drown the rest
            model.linear(f"blk.{il}.shortconv.out_proj.weight", model.n_embd, model.n_embd, 0.3)
        build.feed_forward(model, il)
    return model


def encoder_decoder(name: str, d: int = 64) -> Model:
    """t5: an encoder without a cache, a decoder that caches its own K and V; a learned bias by distance."""
    n_head, buckets = 2, 8
    model = build.start(name, "t5", n_embd=128, n_layer=2, heads=n_head, kv_heads=n_head)
    build.head_dims(model, d, d)
    model.metadata |= {"attention.relative_buckets_count": buckets, "decoder_start_token_id": 0}
    build.ends(model, norm="dec.output_norm.weight")
    model.ones("enc.output_norm.weight", model.n_embd)
    for side in ("enc", "dec"):
        for il in range(model.n_layer):
            build.attention(model, il, n_head, n_head, d, d, scale=1.0, prefix=f"{side}.blk")
            bias = f"{side}.blk.{il}.attn_rel_b.weight"
            model.tensors[bias] = model.gen(bias).standard_normal((buckets, n_head), dtype=np.float32)
            if side == "dec":
                build.attention(model, il, n_head, n_head, d, d, scale=1.0, prefix="dec.blk", part="cross_attn")
            build.feed_forward(model, il, prefix=f"{side}.blk", gated=False)
    return model
