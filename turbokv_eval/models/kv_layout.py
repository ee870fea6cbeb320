"""From a model's metadata to the layers of its cache: heads, lengths, windows, recurrent states.

Mirrors what llama.cpp does in `load_hparams`, `load_arch_hparams` and `create_memory`, at the commit that
llama.cpp/UPSTREAM names. What an architecture does of its own is in `kv_archs`.
"""

from dataclasses import dataclass
from pathlib import Path

from turbokv_eval.errors import BadInput
from turbokv_eval.models import gguf_meta, kv_archs
from turbokv_eval.models.gguf_meta import Metadata


@dataclass(frozen=True)
class CacheLayer:
    """K and V of one layer.

    index:    of the layer in the model.
    heads:    KV heads.
    k_length: values in a key head.
    v_length: values in a value head; None where V is a view of K (MLA).
    windowed: it keeps a sliding window, not the whole context.
    """

    index: int
    heads: int
    k_length: int
    v_length: int | None
    windowed: bool

    @property
    def kind(self) -> str:
        """`full` or `sliding window`, as the fork's log calls them."""
        return "sliding window" if self.windowed else "full"


@dataclass(frozen=True)
class RecurrentLayer:
    """The state of one recurrent layer, for one sequence: r and s are numbers of float32 values."""

    index: int
    r: int
    s: int


@dataclass(frozen=True)
class Layout:
    """All that the size of a cache depends on, apart from its types and the context.

    window:      tokens that an attention of a windowed layer reaches back; 0 without such layers.
    layers:      those with K and V, in order; without the ones that read another layer's.
    recurrent:   those with a state of fixed size.
    shared:      layers that use the cache of an earlier one.
    n_layer:     layers of the model, without those that only predict.
    weights:     bytes of the model's files.
    notes:       what the reader of the numbers must know.
    """

    arch: str
    name: str
    n_ctx_train: int
    window: int
    layers: tuple[CacheLayer, ...]
    recurrent: tuple[RecurrentLayer, ...]
    shared: int
    n_layer: int
    weights: int
    notes: tuple[str, ...] = ()

    @property
    def mla(self) -> bool:
        """Whether V is a view of K."""
        return any(layer.v_length is None for layer in self.layers)

    @property
    def turbo_refused(self) -> bool:
        """Whether the fork refuses turbo types for this architecture, by its name."""
        return self.arch in kv_archs.READS_CACHE_ELSEWHERE


def layer_count(model: Path) -> int:
    """Layers that --kv-layers counts. Raises BadInput as `read_layout`."""
    return read_layout(gguf_meta.read(model)).n_layer


def read_layout(meta: Metadata) -> Layout:
    """The cache layout of a model.

    Raises BadInput for an architecture without a KV cache, with one that cannot be counted from metadata, or with
    metadata that are not complete.
    """
    arch = meta.arch
    if reason := kv_archs.uncountable(arch):
        raise BadInput(f"{meta.path}: {reason}")
    layers_all, nextn = kv_archs.layer_counts(meta)
    n_layer = layers_all - nextn
    heads = _extended(meta.per_layer("attention.head_count", meta.number("block_count")), layers_all)
    heads_kv = _extended(
        meta.per_layer("attention.head_count_kv", meta.number("block_count"), heads[: meta.number("block_count")]),
        layers_all,
    )
    if arch == "graniteswitch":  # the router is one more layer, of one head
        heads, heads_kv = (*heads[:-1], 1), (*heads_kv[:-1], 1)
    if max(heads, default=0) == 0:
        raise BadInput(f"{meta.path} has no attention (architecture {arch}), so it has no KV cache; give another model")
    head_dim = meta.number("embedding_length") // heads[0] if heads[0] else 0
    k_full = meta.number("attention.key_length", head_dim) if heads[0] else 0
    v_full = meta.number("attention.value_length", head_dim) if heads[0] else 0
    k_window = meta.number("attention.key_length_swa", k_full)
    v_window = meta.number("attention.value_length_swa", v_full)
    mla = all(meta.number(f"attention.{side}_length_mla", 0) for side in ("key", "value"))

    recurrent = kv_archs.recurrent_layers(meta, layers_all, n_layer, heads_kv)
    window, windowed = kv_archs.windows(meta, layers_all, n_layer, recurrent)
    from_start = kv_archs.layers_with_cache(meta, layers_all)
    cached = kv_archs.attention_layers(meta, layers_all, n_layer, recurrent)
    r, s = kv_archs.state_values(meta, heads[0])
    layers = tuple(
        CacheLayer(
            index=i,
            heads=heads_kv[i],
            k_length=k_window if windowed[i] else k_full,
            v_length=None if mla else v_window if windowed[i] else v_full,
            windowed=windowed[i],
        )
        for i in range(layers_all)
        if i < from_start and cached[i]
    )
    if not any(layer.heads * layer.k_length for layer in layers):
        raise BadInput(f"{meta.path} has no attention (architecture {arch}), so it has no KV cache; give another model")
    return Layout(
        arch=arch,
        name=str(meta.get("general.name", meta.path.stem)),
        n_ctx_train=meta.number("context_length", 0),
        window=window if any(layer.windowed for layer in layers) else 0,
        layers=layers,
        recurrent=tuple(
            RecurrentLayer(i, r, s)
            for i, is_recurrent in enumerate(recurrent)
            if i < n_layer and is_recurrent and arch in kv_archs.HYBRID
        ),
        shared=sum(1 for i in range(layers_all) if i >= from_start and cached[i]),
        # The router of graniteswitch is behind the last layer that can be named.
        n_layer=n_layer - (1 if arch == "graniteswitch" else 0),
        weights=meta.size,
        notes=kv_archs.notes(arch),
    )


def _extended(values: tuple[int, ...], layers: int) -> tuple[int, ...]:
    """`values` again and again: an architecture that loops over its layers caches every pass."""
    return tuple(values[i % len(values)] for i in range(layers)) if values else ()
