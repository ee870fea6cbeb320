"""llama-kv-capture on a made-up model of two layers, against a forward pass in NumPy."""

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from gguf import GGUFReader
from numpy.typing import NDArray
from test_compare_live import HEADS, KV_HEADS, tiny_model

from turbokv_eval.cli import main
from turbokv_eval.lab.capture import Capture, read_capture

pytestmark = pytest.mark.live

F64 = NDArray[np.float64]
DIM, TOKENS = 32, 96


def captured(tmp_path: Path, *args: str) -> tuple[Path, Capture]:
    model, text, output = tiny_model(tmp_path / "tiny.gguf", DIM), tmp_path / "text.txt", tmp_path / "c.gguf"
    text.write_text("".join(chr(97 + i * i % 23) for i in range(2000)), encoding="utf-8")
    command = ["lab", "capture", model, "-f", text, "-o", output, "--ctx", str(TOKENS), *args]
    result = CliRunner().invoke(main, [str(arg) for arg in command])
    assert result.exit_code == 0, result.stderr
    return model, read_capture(output)


def norm(x: F64) -> F64:
    return x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + 1e-5)


def rope(x: F64) -> F64:
    """x: [heads, n, d], adjacent pairs, base 10000."""
    angle = np.arange(x.shape[1])[:, None] * 10000.0 ** (-2 * np.arange(DIM // 2) / DIM)
    z = (x[..., 0::2] + 1j * x[..., 1::2]) * np.exp(1j * angle)
    return np.stack([z.real, z.imag], axis=-1).reshape(x.shape)


def forward(model: Path, tokens: NDArray[np.int32]) -> list[tuple[F64, F64, F64, F64]]:
    """(q, k, v, k before RoPE) of each layer, [heads, n, d]."""
    w = {tensor.name: tensor.data.astype(np.float64) for tensor in GGUFReader(model).tensors}
    x, found = w["token_embd.weight"][tokens], []
    for layer in range(2):
        at = f"blk.{layer}."
        h = norm(x)
        q, k, v = (
            (h @ w[f"{at}attn_{name}.weight"].T).reshape(len(x), heads, DIM).transpose(1, 0, 2)
            for name, heads in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS))
        )
        found.append((rope(q), rope(k), v, k))
        s = rope(q) @ np.repeat(rope(k), HEADS // KV_HEADS, axis=0).transpose(0, 2, 1) / np.sqrt(DIM)
        s[:, np.triu(np.ones(s.shape[1:], dtype=bool), 1)] = -np.inf
        p = np.exp(s - s.max(axis=-1, keepdims=True))
        out = p / p.sum(axis=-1, keepdims=True) @ np.repeat(v, HEADS // KV_HEADS, axis=0)
        x = x + out.transpose(1, 0, 2).reshape(len(x), -1) @ w[f"{at}attn_output.weight"].T
        h = norm(x)
        gate = h @ w[f"{at}ffn_gate.weight"].T
        x = x + (gate / (1 + np.exp(-gate)) * (h @ w[f"{at}ffn_up.weight"].T)) @ w[f"{at}ffn_down.weight"].T
    return found


@pytest.mark.parametrize("flags", [(), ("--flash-attn",)])
def test_queries_keys_and_values_are_those_of_the_model(tmp_path: Path, flags: tuple[str, ...]) -> None:
    model, capture = captured(tmp_path, "--full", "--pre-rope", *flags)
    assert (capture.n, capture.arch, capture.flash_attn) == (TOKENS, "llama", bool(flags))
    # Flash attention rounds an f32 cache to f16, so layer 1 differs by that.
    tolerance = 2e-2 if flags else 2e-3
    for layer, wanted in zip(capture.layers, forward(model, capture.tokens), strict=True):
        assert layer.k_pre is not None
        assert layer.rope is not None
        for name, array in zip(("q", "k", "v", "k_pre"), wanted, strict=True):
            got = getattr(layer, name)
            assert got.dtype == np.float32
            np.testing.assert_allclose(
                got, array, atol=tolerance * np.abs(array).max(), err_msg=f"{layer.index} {name}"
            )
        assert (layer.scale, layer.softcap, layer.window, layer.sinks) == (pytest.approx(DIM**-0.5), 0, 0, None)
        turned = layer.rope.rotate(np.asarray(layer.k_pre), np.arange(TOKENS))
        np.testing.assert_allclose(turned, layer.k, atol=1e-4)


def test_a_layer_is_picked_and_a_wrong_one_is_one_line(tmp_path: Path) -> None:
    _, capture = captured(tmp_path, "--layers", "-1")
    assert [layer.index for layer in capture.layers] == [1]
    assert (capture.layers[0].q.dtype, capture.layers[0].k.dtype) == (np.float16, np.float32)
    before = capture.path.read_bytes()
    for args, said in (
        (("--layers", "7"), "there is no layer 7: the model has 2, 0 to 1"),
        (("--ctx", "4000"), "was trained on 512 positions"),
    ):
        command = ["lab", "capture", tmp_path / "tiny.gguf", "-f", tmp_path / "text.txt", "-o", capture.path, *args]
        result = CliRunner().invoke(main, [str(arg) for arg in command])
        assert (result.exit_code, len(result.stderr.splitlines())) == (2, 1)
        assert said in result.stderr
    assert capture.path.read_bytes() == before
    assert not list(tmp_path.glob("*.part"))
