"""Captures are read as written, damaged ones are refused in one line, and `lab capture` passes on its options."""

import sys
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner
from compare_world import write_model
from lab_world import rotated, write_capture

from turbokv_eval.cli import main
from turbokv_eval.errors import BadInput
from turbokv_eval.lab.capture import Rope, parse_layers, read_capture, spread_layers
from turbokv_eval.models.gguf_info import read_model

PROGRAM = """#!{python}
import sys
args = sys.argv[1:]
open({calls!r}, "w").write(" ".join(args))
if {fails}:
    sys.stderr.write("512 of 600 tokens\\nerror: there is no layer 99: the model has 30, 0 to 29\\n")
    sys.exit(1)
open(args[args.index("-o") + 1], "wb").write(b"GGUF")
"""


def test_a_layer_has_the_shapes_and_constants_that_were_written(tmp_path: Path) -> None:
    path = write_capture(tmp_path / "c.gguf", window=32, softcap=50.0, sinks=True, pre_rope=True)
    capture = read_capture(path)
    assert (capture.n, capture.n_layer, [layer.index for layer in capture.layers]) == (96, 6, [0, 3])
    layer = capture.layers[1]
    assert (layer.q.shape, layer.k.shape, layer.v.shape) == ((4, 96, 16), (2, 96, 16), (2, 96, 16))
    assert (layer.heads, layer.kv_heads, layer.group) == (4, 2, 2)
    assert (layer.q.dtype, layer.k.dtype, layer.v.dtype) == (np.float16, np.float32, np.float16)
    assert (layer.scale, layer.softcap, layer.window) == (0.25, 50.0, 32)
    assert layer.sinks is not None
    assert layer.sinks.shape == (4,)
    assert layer.k_pre is not None
    np.testing.assert_array_equal(rotated(np.asarray(layer.k_pre), 16), layer.k)


def test_reading_maps_the_file_and_copies_nothing(tmp_path: Path) -> None:
    base = read_capture(write_capture(tmp_path / "c.gguf")).layers[0].k.base
    while base is not None and not isinstance(base, np.memmap):
        base = base.base
    assert isinstance(base, np.memmap)


def test_one_kv_head_keeps_its_dimension(tmp_path: Path) -> None:
    layer = read_capture(write_capture(tmp_path / "c.gguf", heads=3, kv_heads=1)).layers[0]
    assert (layer.k.shape, layer.group) == ((1, 96, 16), 3)


def test_layers_are_picked_from_either_end(tmp_path: Path) -> None:
    capture = read_capture(write_capture(tmp_path / "c.gguf", layers=(0, 3, 5)))
    assert [layer.index for layer in capture.select((-1, 0, 5))] == [5, 0]
    with pytest.raises(BadInput, match=r"no layer -2: it has 0, 3, 5"):
        capture.select((-2,))


def test_files_that_are_no_captures_say_so(tmp_path: Path) -> None:
    path = tmp_path / "c.gguf"
    with pytest.raises(BadInput, match="cannot read the capture"):
        read_capture(path)
    path.write_bytes(b"text")
    with pytest.raises(BadInput, match="not a GGUF file"):
        read_capture(path)
    with pytest.raises(BadInput, match="is no capture"):
        read_capture(write_model(path))
    with pytest.raises(BadInput, match="is no capture"):
        read_capture(write_capture(path, kind="kv-condition"))
    with pytest.raises(BadInput, match="of version 7, this reads 1"):
        read_capture(write_capture(path, version=7))
    whole = write_capture(path).read_bytes()
    for size in (16, len(whole) // 10, len(whole) - 64):
        path.write_bytes(whole[:size])
        with pytest.raises(BadInput, match="truncated or damaged"):
            read_capture(path)


def test_rope_is_that_of_the_captured_keys_and_depends_on_distance_only() -> None:
    rng = np.random.default_rng(1)
    x = rng.normal(size=(50, 16)).astype(np.float32)
    rope = Rope(dims=16, neox=True, base=10000.0, freq_scale=1.0, factors=None, plain=True)
    np.testing.assert_allclose(rope.rotate(x, np.arange(50)), rotated(x, 16), atol=1e-5)
    for other in (
        Rope(dims=16, neox=False, base=500.0, freq_scale=0.5, factors=None, plain=True),
        Rope(dims=8, neox=False, base=500.0, freq_scale=1.0, factors=np.full(4, 3, dtype=np.float32), plain=True),
    ):
        q, k = x[:1], x[1:2]
        near = other.rotate(q, np.array([7])) @ other.rotate(k, np.array([3])).T
        far = other.rotate(q, np.array([107])) @ other.rotate(k, np.array([103])).T
        assert near == pytest.approx(far, rel=1e-3)
        assert near != pytest.approx(q @ k.T, rel=1e-3)


def test_adjacent_pairs_and_factors_turn_as_ggml_says() -> None:
    x = np.zeros((1, 8), dtype=np.float32)
    x[0, 2] = 1.0
    rope = Rope(dims=8, neox=False, base=16.0, freq_scale=0.5, factors=np.full(4, 2, dtype=np.float32), plain=True)
    # Pair 1 is channels 2 and 3; its angle at position 3 is 3 * 0.5 * 16^(-2/8) / 2.
    angle = 3 * 0.5 * 0.5 / 2
    np.testing.assert_allclose(rope.rotate(x, np.array([3]))[0, 2:4], [np.cos(angle), np.sin(angle)], atol=1e-6)


def test_yarn_is_refused() -> None:
    rope = Rope(dims=8, neox=True, base=16.0, freq_scale=0.5, factors=None, plain=False)
    with pytest.raises(BadInput, match="YaRN"):
        rope.rotate(np.zeros((1, 8), dtype=np.float32), np.array([3]))


def test_default_layers_are_spread_from_first_to_last(tmp_path: Path) -> None:
    assert spread_layers(read_model(write_model(tmp_path / "m.gguf", layers=30))) == (0, 4, 8, 12, 17, 21, 25, 29)
    assert spread_layers(read_model(write_model(tmp_path / "m.gguf", layers=3))) == (0, 1, 2)


def test_a_list_of_layers_that_is_none() -> None:
    assert parse_layers("0,-1") == (0, -1)
    with pytest.raises(BadInput, match="no list of layers"):
        parse_layers("0,first")


def fake(folder: Path, *, fails: bool = False) -> None:
    program = folder / "llama-kv-capture"
    program.write_text(PROGRAM.format(python=sys.executable, calls=str(folder / "calls.txt"), fails=fails))
    program.chmod(0o755)


def run(tmp_path: Path, *args: str | Path) -> tuple[int, str, str]:
    model, text = write_model(tmp_path / "model.gguf"), tmp_path / "text.txt"
    text.write_text("A sentence that says little. " * 50, encoding="utf-8")
    fixed = ["lab", "capture", model, "-f", text, "--bin", tmp_path, "-t", "1"]
    result = CliRunner().invoke(main, [*map(str, fixed), *map(str, args)])
    return result.exit_code, result.stdout, result.stderr


def test_options_reach_the_program(tmp_path: Path) -> None:
    fake(tmp_path)
    code, out, _ = run(tmp_path, "-o", tmp_path / "c.gguf", "--ctx", "600", "--layers", "0,-1", "--pre-rope", "--full")
    assert (code, out) == (0, f"{tmp_path / 'c.gguf'}\n")
    assert (tmp_path / "calls.txt").read_text().endswith("-t 1 -l 0,-1 -fa off --type f32 -c 600 --pre-rope")


def test_what_the_program_says_is_the_one_line(tmp_path: Path) -> None:
    fake(tmp_path, fails=True)
    code, out, err = run(tmp_path, "-o", tmp_path / "c.gguf", "--layers", "99")
    assert (code, out, err) == (2, "", "Error: there is no layer 99: the model has 30, 0 to 29\n")


def test_a_folder_that_is_not_there_and_programs_that_are_not_built(tmp_path: Path) -> None:
    code, _, err = run(tmp_path, "-o", tmp_path / "c.gguf")
    assert (code, "turbokv-eval build" in err) == (3, True)
    fake(tmp_path)
    code, _, err = run(tmp_path, "-o", tmp_path / "nowhere" / "c.gguf")
    assert (code, "there is no folder" in err) == (2, True)
