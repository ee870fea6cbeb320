"""The list of models: every head dimension, every kind of attention. Nothing else names one."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from . import attention
from .build import Model

# Every head dimension that has a block, and two that have none: 72 is no multiple of a block, 48 too small for one.
HEAD_DIMS = (64, 80, 96, 112, 128, 160, 192, 256, 320, 512, 576)
NO_BLOCK_DIMS = (48, 72)


@dataclass(frozen=True)
class Entry:
    """group: `head dim` or `attention`. what: one line for the table. make: builds it in memory."""

    name: str
    group: str
    what: str
    make: Callable[[], Model]


def _entry(name: str, group: str, what: str, make: Callable[..., Model], *args: int, **kwargs: int) -> Entry:
    return Entry(name, group, what, partial(make, name, *args, **kwargs))


def entries() -> list[Entry]:
    """All models, in the order of the table."""
    dims = [_entry(f"d{d}", "head dim", str(d), attention.plain, d) for d in (*HEAD_DIMS, *NO_BLOCK_DIMS)]
    kinds = [
        _entry("mha", "attention", "multi-head", attention.plain, 128, n_head=3, n_kv=3),
        _entry("gqa-3", "attention", "grouped 3:1", attention.plain, 64, n_head=9, n_kv=3),
        _entry("gqa-8", "attention", "grouped 8:1", attention.plain, 128, n_head=16, n_kv=2),
        _entry("mqa", "attention", "multi-query 5:1", attention.plain, 128, n_head=5, n_kv=1),
        _entry("k192-v128", "attention", "K 192, V 128", attention.plain, 192, 128),
        _entry("swa", "attention", "sliding window (gemma3)", attention.sliding),
        _entry("softcap", "attention", "capped scores (gemma2)", attention.softcap),
        _entry("sinks-64", "attention", "sinks (gpt-oss), d = 64", attention.sinks),
        _entry("sinks-128", "attention", "sinks (gpt-oss), d = 128", attention.sinks, 128),
        _entry("alibi", "attention", "ALiBi (mpt)", attention.alibi),
        _entry("mla", "attention", "MLA 576/512 (deepseek2)", attention.latent),
        _entry("hybrid", "attention", "with recurrent layers (lfm2)", attention.hybrid),
        _entry("enc-dec", "attention", "encoder-decoder (t5)", attention.encoder_decoder),
    ]
    return dims + kinds
