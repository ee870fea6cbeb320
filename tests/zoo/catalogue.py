"""The list of models: every head dimension, every kind of attention. Nothing else names one."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from . import attention
from .build import Model

# Every head dimension that has a block, and two that have none: 72 is no multiple of a block, 48 too small for one.
HEAD_DIMS = (64, 80, 96, 112, 128, 160, 192, 256, 320, 512, 576)
NO_BLOCK_DIMS = (48, 72)


# (sides, flash attention) of the cells that must run; the others must be refused. Turbo V needs flash attention.
USUAL = frozenset({("K+V", True), ("K", True), ("K", False), ("V", True)})
# V is a view of K: both have one type
ONE_TYPE = frozenset({("K+V", True)})
# the attention runs without flash attention, whatever is asked for
K_ONLY = frozenset({("K", True), ("K", False)})
NOTHING: frozenset[tuple[str, bool]] = frozenset()


@dataclass(frozen=True)
class Entry:
    """group: `head dim` or `attention`. what: for the table. make: builds it in memory. runs: the cells that work."""

    name: str
    group: str
    what: str
    make: Callable[[], Model]
    runs: frozenset[tuple[str, bool]] = USUAL


def _dim(d: int, runs: frozenset[tuple[str, bool]] = USUAL) -> Entry:
    return Entry(f"d{d}", "head dim", str(d), partial(attention.plain, f"d{d}", d), runs)


def _kind(
    name: str,
    what: str,
    make: Callable[..., Model],
    *args: int,
    runs: frozenset[tuple[str, bool]] = USUAL,
    **kwargs: int,
) -> Entry:
    return Entry(name, "attention", what, partial(make, name, *args, **kwargs), runs)


def entries() -> list[Entry]:
    """All models, in the order of the table."""
    dims = [_dim(d) for d in HEAD_DIMS] + [_dim(d, NOTHING) for d in NO_BLOCK_DIMS]
    kinds = [
        _kind("mha", "multi-head", attention.plain, 128, n_head=3, n_kv=3),
        _kind("gqa-3", "grouped 3:1", attention.plain, 64, n_head=9, n_kv=3),
        _kind("gqa-8", "grouped 8:1", attention.plain, 128, n_head=16, n_kv=2),
        _kind("mqa", "multi-query 5:1", attention.plain, 128, n_head=5, n_kv=1),
        _kind("k192-v128", "K 192, V 128 (mimo2)", attention.unequal, 192, 128),
        _kind("swa", "sliding window (gemma3)", attention.sliding),
        _kind("softcap", "capped scores (gemma2)", attention.softcap),
        _kind("sinks-64", "sinks (gpt-oss), d = 64", attention.sinks),
        _kind("sinks-128", "sinks (gpt-oss), d = 128", attention.sinks, 128),
        _kind("alibi", "ALiBi (mpt)", attention.alibi),
        _kind("mla", "MLA 576/512 (deepseek2)", attention.latent, runs=ONE_TYPE),
        _kind("hybrid", "recurrent layers (lfm2)", attention.hybrid),
        _kind("enc-dec", "encoder-decoder (t5)", attention.encoder_decoder, runs=K_ONLY),
    ]
    return dims + kinds
