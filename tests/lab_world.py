"""Made-up captures, and methods whose effect is known."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from compare_world import finish
from numpy.typing import NDArray

from turbokv_eval.errors import BadInput

F32 = NDArray[np.float32]


def write_capture(
    path: Path,
    *,
    layers: tuple[int, ...] = (0, 3),
    n: int = 96,
    heads: int = 4,
    kv_heads: int = 2,
    d: int = 16,
    scale: float = 0.25,
    softcap: float = 0.0,
    window: int = 0,
    sinks: bool = False,
    pre_rope: bool = False,
    model_hash: str = "00000000000000ab",
    version: int = 1,
    kind: str = "kv-capture",
    seed: int = 0,
) -> Path:
    """A file as llama-kv-capture writes it. Queries are f16, as the program keeps them."""
    rng = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_string("general.type", kind)
    writer.add_uint32("kv_capture.version", version)
    for name, value in (
        ("model.name", "made up"),
        ("model.file", "model.gguf"),
        ("model.fnv1a64", model_hash),
        ("text.file", "text.txt"),
        ("text.fnv1a64", "00000000000000cd"),
    ):
        writer.add_string(f"kv_capture.{name}", value)
    writer.add_bool("kv_capture.flash_attn", False)
    writer.add_uint32("kv_capture.n_layer", 6)
    writer.add_array("kv_capture.tokens", [int(t) for t in rng.integers(0, 1000, n)])
    writer.add_array("kv_capture.layers", list(layers))
    writer.add_array("kv_capture.window", [window] * len(layers))
    writer.add_array("kv_capture.scale", [float(scale)] * len(layers))
    writer.add_array("kv_capture.softcap", [float(softcap)] * len(layers))
    for layer in layers:
        k_pre = rng.normal(1, 1, (kv_heads, n, d)).astype(np.float32)
        k = rotated(k_pre, d) if pre_rope else k_pre
        writer.add_tensor(f"blk.{layer}.q", rng.normal(0, 1, (heads, n, d)).astype(np.float16))
        writer.add_tensor(f"blk.{layer}.k", k)
        writer.add_tensor(f"blk.{layer}.v", rng.normal(0, 1, (kv_heads, n, d)).astype(np.float16))
        if sinks:
            writer.add_tensor(f"blk.{layer}.sinks", rng.normal(0, 1, heads).astype(np.float32))
        if pre_rope:
            writer.add_tensor(f"blk.{layer}.k_pre", k_pre)
            key = f"kv_capture.blk.{layer}.rope."
            writer.add_int32(key + "dims", d)
            writer.add_int32(key + "mode", 2)
            writer.add_array(key + "params", [10000.0, 1.0, 0.0, 1.0, 32.0, 1.0])
    finish(writer)
    return path


def rotated(x: F32, d: int) -> F32:
    """RoPE with pairs (j, j + d/2) and base 10000, in float64 by complex numbers."""
    half = d // 2
    angle = np.arange(x.shape[-2])[:, None] * 10000.0 ** (-2 * np.arange(half) / d)
    z = (x[..., :half].astype(np.float64) + 1j * x[..., half:]) * np.exp(1j * angle)
    return np.concatenate([z.real, z.imag], axis=-1).astype(np.float32)


@dataclass
class Fake:
    """A method that adds noise of a known size, or does what a test says.

    error: relative size of what is added; constant: added to all scores of a query; refuses: what fit raises;
    seen: what fit was given; broken: gives NaN.
    """

    name: str
    bits: float = 3.0
    error: float = 0.0
    constant: float = 0.0
    refuses: str = ""
    broken: bool = False
    seen: list[tuple[F32, F32 | None]] = field(default_factory=list)

    def fit(self, keys: F32, queries: F32 | None) -> "Fake":
        if self.refuses:
            raise BadInput(self.refuses)
        self.seen.append((keys, queries))
        return self

    def encode_decode(self, x: F32) -> F32:
        if self.broken:
            return np.full_like(x, np.nan)
        noise = np.random.default_rng(0).normal(0, self.error, x.shape)
        return (x + noise).astype(np.float32)

    def scores(self, queries: F32, x: F32) -> F32:
        shift = self.constant * np.arange(len(queries), dtype=np.float32)[:, None]
        return np.asarray(queries @ self.encode_decode(x).T + shift, dtype=np.float32)

    def bits_per_value(self, n: int, d: int) -> float:
        return self.bits


def registry(*fakes: Fake) -> dict[str, Any]:
    return {fake.name: fake for fake in fakes}
