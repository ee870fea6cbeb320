"""What a comparison needs to know of a model file, and whether the file is whole."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gguf import GGML_QUANT_SIZES, GGMLQuantizationType

from turbokv_eval.errors import BadInput
from turbokv_eval.models import gguf_meta


@dataclass(frozen=True)
class ModelInfo:
    """Metadata of a GGUF model.

    head_count_kv:    KV heads of each layer, 0 for a layer without attention.
    key_length:       values in one key head; value_length: in one value head.
    uniform:          the two lengths hold for every layer and K and V are stored apart (no MLA, no other size in
                      sliding-window layers), so that stored values can be counted from metadata.
    n_vocab:          0 when the file does not say.
    """

    path: Path
    size: int
    arch: str
    name: str
    n_ctx_train: int
    n_vocab: int
    head_count: int
    head_count_kv: tuple[int, ...]
    key_length: int
    value_length: int
    uniform: bool

    @property
    def attention_layers(self) -> int:
        """Layers that cache K and V."""
        return sum(1 for heads in self.head_count_kv if heads > 0)

    def values_per_cell(self, layers: int) -> tuple[int, int] | None:
        """K and V values that one cell (token) takes in a cache of `layers` layers; None when metadata cannot tell.

        A cache of all layers with attention can be counted; one of some of them (a sliding-window cache has its own)
        only when all layers have the same number of heads.
        """
        heads = [n for n in self.head_count_kv if n > 0]
        if not self.uniform or layers > len(heads) or (layers < len(heads) and len(set(heads)) > 1):
            return None
        total = sum(heads[:layers])
        return total * self.key_length, total * self.value_length


def read_model(path: Path) -> ModelInfo:
    """Reads and checks a GGUF model. Raises BadInput for anything that a KV cache cannot be compared on."""
    meta = gguf_meta.read(path)
    try:
        need = max((_end(tensor) for tensor in meta.tensors), default=0)
    except ValueError as e:
        raise BadInput(f"{path} is truncated or damaged ({_brief(e)}); download it again") from e
    size = path.stat().st_size
    if need > size:
        raise BadInput(f"{path} is truncated: it has {size} bytes and its tensors need {need}; download it again")
    try:
        return _describe(path, meta)
    except BadInput:
        raise
    except Exception as e:  # metadata of the wrong type or shape
        raise BadInput(f"{path} has metadata that makes no sense ({_brief(e)}); give a GGUF model with -m") from e


def _end(tensor: gguf_meta.Tensor) -> int:
    """The byte of the file behind the tensor. Raises ValueError for an unknown type."""
    block, size = GGML_QUANT_SIZES[GGMLQuantizationType(tensor.type)]
    return tensor.start + math.prod(tensor.shape) // block * size


def _brief(e: Exception) -> str:
    return f"{type(e).__name__}: {e}".splitlines()[0][:80]


def _describe(path: Path, meta: gguf_meta.Metadata) -> ModelInfo:
    def get(key: str, default: Any = None) -> Any:
        return meta.get(key, default)

    arch = meta.arch
    layers = int(get(f"{arch}.block_count", 0))
    heads = _per_layer(get(f"{arch}.attention.head_count", 0), layers)
    heads_kv = _per_layer(get(f"{arch}.attention.head_count_kv", heads), layers)
    if max(heads, default=0) == 0 or max(heads_kv, default=0) == 0:
        raise BadInput(
            f"{path} has no attention (architecture {arch}), so it has no KV cache; give another model with -m"
        )
    if not meta.tensors:
        raise BadInput(f"{path} holds no tensors (a vocabulary only?): give a whole GGUF model with -m")
    head_dim = int(get(f"{arch}.embedding_length")) // max(heads)
    key_length = int(get(f"{arch}.attention.key_length", head_dim))
    own_sizes = (f"{arch}.attention.{key}" for key in ("kv_lora_rank", "key_length_swa", "value_length_swa"))
    embedding = next((tensor for tensor in meta.tensors if tensor.name == "token_embd.weight"), None)
    return ModelInfo(
        path=path,
        size=meta.size,
        arch=arch,
        name=str(get("general.name", path.stem)),
        n_ctx_train=int(get(f"{arch}.context_length", 0)),
        n_vocab=0 if embedding is None else int(embedding.shape[1]),
        head_count=max(heads),
        head_count_kv=heads_kv,
        key_length=key_length,
        value_length=int(get(f"{arch}.attention.value_length", head_dim)),
        uniform=not any(key in meta for key in own_sizes),
    )


def _per_layer(value: int | Sequence[int], layers: int) -> tuple[int, ...]:
    return tuple(int(n) for n in value) if isinstance(value, Sequence) else (int(value),) * layers
