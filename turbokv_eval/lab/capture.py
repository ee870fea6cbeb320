"""Queries, keys and values of a real model: made by llama-kv-capture, read from its file, memory-mapped."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFReader
from numpy.typing import NDArray

from turbokv_eval.errors import BadInput
from turbokv_eval.models.gguf_info import ModelInfo
from turbokv_eval.programs import file_program

PROGRAM = "llama-kv-capture"
FILE_TYPE = "kv-capture"
VERSION = 1

F32 = NDArray[np.float32]
# As stored: the program keeps queries and values as f16 unless it is told otherwise, keys as f32.
Stored = NDArray[np.float16] | NDArray[np.float32]


@dataclass(frozen=True)
class Rope:
    """Rotary position embedding of a layer, as ggml parametrises it.

    dims:    channels that are rotated, from the first one.
    neox:    pairs are (j, j + dims/2); else (2j, 2j + 1).
    base, freq_scale: angle of pair j at position p is p * freq_scale * base^(-2j/dims) / factors[j].
    factors: f32 [dims/2], or None for ones.
    plain:   False when YaRN changes the frequencies; `rotate` then refuses.
    """

    dims: int
    neox: bool
    base: float
    freq_scale: float
    factors: F32 | None
    plain: bool

    def rotate(self, x: F32, positions: NDArray[np.integer[Any]]) -> F32:
        """x: f32 [..., n, d] before RoPE; positions: [n]. Returns f32 [..., n, d] after it.

        Raises BadInput where the model scales its frequencies with YaRN. Source: Su et al., RoFormer, eq. 34.
        """
        if not self.plain:
            raise BadInput(
                "this model scales RoPE with YaRN, which the laboratory does not compute: capture other layers"
            )
        half = self.dims // 2
        frequency = self.freq_scale * self.base ** (-2.0 * np.arange(half) / self.dims)
        if self.factors is not None:
            frequency = frequency / self.factors
        angle = np.asarray(positions, dtype=np.float64)[:, None] * frequency
        cos, sin = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
        first, second = (
            (slice(0, half), slice(half, self.dims)) if self.neox else (slice(0, self.dims, 2), slice(1, self.dims, 2))
        )
        out = np.array(x, dtype=np.float32)
        a, b = x[..., first], x[..., second]
        out[..., first] = a * cos - b * sin
        out[..., second] = a * sin + b * cos
        return out


@dataclass(frozen=True)
class Layer:
    """What the attention of one layer works on, for n tokens at positions 0 to n - 1 of one sequence.

    index:   of the layer in the model, from 0.
    q:       f16 or f32 [heads, n, d], after RoPE and whatever norm and scaling the model applies.
    k:       f32 [kv_heads, n, d], after RoPE: what a cache stores.
    v:       f16 or f32 [kv_heads, n, dv].
    scale, softcap: a score is s = scale * q.k, and then softcap * tanh(s / softcap) where softcap is not 0.
    window:  tokens that a query sees, itself included; 0: all before it.
    sinks:   f32 [heads] logits that take part in the softmax and carry no value, or None.
    k_pre:   f32 [kv_heads, n, d], before RoPE, or None; rope then says which RoPE.

    Query head h reads the keys of KV head h // group.
    """

    index: int
    q: Stored
    k: F32
    v: Stored
    scale: float
    softcap: float
    window: int
    sinks: F32 | None
    k_pre: F32 | None
    rope: Rope | None

    @property
    def heads(self) -> int:
        """Query heads."""
        return int(self.q.shape[0])

    @property
    def kv_heads(self) -> int:
        """KV heads."""
        return int(self.k.shape[0])

    @property
    def group(self) -> int:
        """Query heads for each KV head."""
        return self.heads // self.kv_heads


@dataclass(frozen=True)
class Capture:
    """A file of llama-kv-capture. Arrays are views of the mapped file: reading a layer reads its pages only."""

    path: Path
    model_name: str
    model_file: str
    model_hash: str
    text_file: str
    text_hash: str
    arch: str
    n_layer: int
    flash_attn: bool
    tokens: NDArray[np.int32]
    layers: tuple[Layer, ...]

    @property
    def n(self) -> int:
        """Tokens."""
        return len(self.tokens)

    def select(self, indices: Sequence[int] | None) -> tuple[Layer, ...]:
        """The layers with these model indices, negative ones counted from the end; None: all. Raises BadInput."""
        if indices is None:
            return self.layers
        found = {layer.index: layer for layer in self.layers}
        wanted = [index + self.n_layer if index < 0 else index for index in indices]
        for asked, index in zip(indices, wanted, strict=True):
            if index not in found:
                raise BadInput(f"{self.path} holds no layer {asked}: it has {', '.join(map(str, found))}")
        return tuple(found[index] for index in dict.fromkeys(wanted))


def read_capture(path: Path) -> Capture:
    """Maps a capture into memory and checks it. Raises BadInput with the cause."""
    way_out = "make one with `turbokv-eval lab capture`"
    try:
        with path.open("rb") as file:
            magic = file.read(4)
    except OSError as e:
        raise BadInput(f"cannot read the capture {path}: {e.strerror}; {way_out}") from e
    if magic != b"GGUF":
        raise BadInput(f"{path} is not a GGUF file: {way_out}")
    try:
        reader = GGUFReader(path)
        fields = {name: field.contents() for name, field in reader.fields.items()}
        if fields.get("general.type") != FILE_TYPE:
            raise BadInput(f"{path} is no capture (it is a {fields.get('general.type', 'model')}): {way_out}")
        if fields["kv_capture.version"] != VERSION:
            raise BadInput(f"{path} is of version {fields['kv_capture.version']}, this reads {VERSION}: {way_out} anew")
        tensors = {tensor.name: tensor.data for tensor in reader.tensors}
        return _describe(path, fields, tensors)
    except BadInput:
        raise
    except Exception as e:  # on garbage the reader raises whatever numpy or enum do
        cause = f"{type(e).__name__}: {e}".splitlines()[0][:80]
        raise BadInput(f"{path} is truncated or damaged ({cause}): {way_out} anew") from e


def _describe(path: Path, fields: dict[str, Any], tensors: dict[str, Any]) -> Capture:
    def rope_of(index: int) -> Rope | None:
        key = f"kv_capture.blk.{index}.rope."
        if f"{key}dims" not in fields:
            return None
        base, freq_scale, ext_factor, *_ = fields[f"{key}params"]
        mode = fields[f"{key}mode"]
        factors = tensors.get(f"blk.{index}.rope_factors")
        return Rope(
            dims=int(fields[f"{key}dims"]),
            neox=mode == 2,
            base=float(base),
            freq_scale=float(freq_scale),
            factors=None if factors is None else factors.reshape(-1),
            # Modes above 2 are those of multi-part positions.
            plain=ext_factor == 0.0 and mode in (0, 2),
        )

    tokens = np.array(fields["kv_capture.tokens"], dtype=np.int32)
    layers = []
    for position, index in enumerate(fields["kv_capture.layers"]):
        q, k, v = (_heads(tensors[f"blk.{index}.{name}"]) for name in "qkv")
        sinks = tensors.get(f"blk.{index}.sinks")
        if not (q.shape[1] == k.shape[1] == v.shape[1] == len(tokens) and q.shape[2] == k.shape[2]):
            raise ValueError(f"layer {index}: shapes {q.shape}, {k.shape}, {v.shape} for {len(tokens)} tokens")
        if k.shape[0] != v.shape[0] or q.shape[0] % k.shape[0] != 0:
            raise ValueError(f"layer {index}: {q.shape[0]} query heads for {k.shape[0]} KV heads")
        layers.append(
            Layer(
                index=int(index),
                q=q,
                k=k,
                v=v,
                scale=float(fields["kv_capture.scale"][position]),
                softcap=float(fields["kv_capture.softcap"][position]),
                window=int(fields["kv_capture.window"][position]),
                sinks=None if sinks is None else sinks.reshape(-1),
                k_pre=_heads(tensors[f"blk.{index}.k_pre"]) if f"blk.{index}.k_pre" in tensors else None,
                rope=rope_of(index),
            )
        )
    if not layers:
        raise ValueError("no layers")
    return Capture(
        path=path,
        model_name=str(fields["kv_capture.model.name"]),
        model_file=str(fields["kv_capture.model.file"]),
        model_hash=str(fields["kv_capture.model.fnv1a64"]),
        text_file=str(fields["kv_capture.text.file"]),
        text_hash=str(fields["kv_capture.text.fnv1a64"]),
        arch=str(fields["general.architecture"]),
        n_layer=int(fields["kv_capture.n_layer"]),
        flash_attn=bool(fields["kv_capture.flash_attn"]),
        tokens=tokens,
        layers=tuple(layers),
    )


def _heads(data: Any) -> Any:
    """[heads, n, d]; GGUF drops an outermost dimension of 1."""
    return data if data.ndim == 3 else data.reshape(1, *data.shape)


def parse_layers(spec: str) -> tuple[int, ...]:
    """`0,5,-1` as numbers. Raises BadInput."""
    try:
        return tuple(int(part) for part in spec.split(","))
    except ValueError:
        raise BadInput(f"--layers: {spec!r} is no list of layers such as 0,5,-1") from None


def spread_layers(model: ModelInfo, count: int = 8) -> tuple[int, ...]:
    """`count` layers with a cache, spread evenly from the first to the last one."""
    having = [index for index, heads in enumerate(model.head_count_kv) if heads > 0]
    picks = np.linspace(0, len(having) - 1, min(count, len(having)))
    return tuple(having[round(pick)] for pick in picks)


@dataclass(frozen=True)
class Request:
    """What to capture.

    layers: model indices, negative ones from the end.
    ctx:    tokens from the start of the text; None: 2048, or all of a shorter text.
    flash_attn, full (queries and values as f32), pre_rope (keys before RoPE too): as the program's options.
    """

    layers: tuple[int, ...]
    ctx: int | None = None
    flash_attn: bool = False
    full: bool = False
    pre_rope: bool = False

    @property
    def args(self) -> list[str]:
        """The arguments of llama-kv-capture."""
        args = ["-l", ",".join(map(str, self.layers)), "-fa", "on" if self.flash_attn else "off"]
        args += ["--type", "f32" if self.full else "f16"]
        args += [] if self.ctx is None else ["-c", str(self.ctx)]
        return args + (["--pre-rope"] if self.pre_rope else [])


def make(bin_dir: Path, model: Path, text: Path, output: Path, request: Request, threads: int) -> Path:
    """Runs `text` through `model`, writes `output`, a GGUF. Returns its path. Raises as `file_program.write`."""
    args: list[str | Path] = ["-m", model, "-f", text, "-t", str(threads), *request.args]
    return file_program.write(bin_dir, PROGRAM, args, output)
