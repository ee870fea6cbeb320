"""`memory` against the buffers that llama.cpp allocates, on every architecture that it can make a small model of."""

import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from turbokv_eval.errors import BadInput, MachineCannot
from turbokv_eval.machine import assets, build, runner
from turbokv_eval.models import kv_layers, kv_layout, memory
from turbokv_eval.models.gguf_meta import read
from turbokv_eval.models.kv_archs import READS_CACHE_ELSEWHERE
from turbokv_eval.models.kv_layout import Layout
from turbokv_eval.models.types import KVConfig
from turbokv_eval.programs import kv_log, perplexity

pytestmark = pytest.mark.live

MIB = 1 << 20
# The log has three decimals of a MiB for each kind of layer. With more cells than that leaves open, the bytes of a cell
# are determined, and with them every byte of the buffer.
ROUNDING = 0.00051 * MIB
CTX = 2048
ZOO = Path(__file__).parent / "zoo"
_WRITE_ZOO = "import runpy, sys; sys.path.insert(0, sys.argv.pop(1)); runpy.run_module('zoo', run_name='__main__')"
CONFIGS = (KVConfig("f16", "f16"), KVConfig("q8_0", "turbo2"), KVConfig("turbo3", "turbo3"))


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Path]]:
    """A model of a few layers and random weights of each architecture, written by llama.cpp's own test, and our zoo."""
    program = build.default_bin() / "test-llama-archs"
    if not program.is_file():
        pytest.fail(f"{program} is missing: `turbokv-eval build --tests` builds it")
    folder = tmp_path_factory.mktemp("archs")
    done = runner.run([program, "-o", folder], timeout=600)
    assert done.returncode == 0, done.output[-500:]
    found = sorted(folder.glob("*.gguf"))
    assert len(found) > 100
    if (ZOO / "__main__.py").is_file():
        ours = folder / "zoo"
        made = runner.run([sys.executable, "-c", _WRITE_ZOO, str(ZOO.parent), str(ours)], timeout=300)
        assert made.returncode == 0, made.output[-500:]
        found += sorted(ours.glob("*.gguf"))
    yield found
    shutil.rmtree(folder)


def loaded(model: Path, config: KVConfig, ctx: int, *more: str) -> tuple[runner.Result, list[kv_log.KVReport]]:
    argv = [build.default_bin() / "llama-bench", "-m", model, "-p", str(ctx), "-n", "0", "-r", "1", "-fa", "1", "-v"]
    done = runner.run([*argv, "--no-warmup", "-t", "2", "-ngl", "0", *config.args, *more], timeout=300)
    return done, kv_log.parse_contexts(done.output)


def differences(
    layout: Layout, config: KVConfig, report: kv_log.KVReport, output: str, shape: memory.Shape
) -> list[str]:
    """How the buffers of a run differ from what is computed."""
    found = memory.cache_bytes(layout, config, shape)
    wrong: list[str] = []
    if abs(report.buffers_mib * MIB - found.kv) > 0.0051 * MIB * len(report.caches):
        wrong.append(f"buffers {report.buffers_mib} MiB, computed {found.kv / MIB:.3f}")
    for kind in ("full", "sliding window"):
        logged = [entry for entry in report.kinds if entry.kind == kind]
        layers = [layer for layer in found.layers if layer.layer.kind == kind]
        if sum(entry.layers for entry in logged) != len(layers):
            wrong.append(f"{kind}: {sum(entry.layers for entry in logged)} layers, computed {len(layers)}")
        k, v = found.side(kind)
        rounding = ROUNDING * max(1, len(logged))
        assert all(layer.cells > rounding for layer in layers), "too few cells for the log's decimals to tell a byte"
        for side, computed, read_back in (
            ("K", k, sum(entry.k_mib for entry in logged)),
            ("V", v, sum(entry.v_mib or 0 for entry in logged)),
        ):
            if abs(read_back * MIB - computed) > rounding:
                wrong.append(f"{kind} {side}: {read_back} MiB, computed {computed / MIB:.4f}")
        types = {(entry.k_type, entry.v_type) for entry in logged}
        if types != {(layer.k_type, layer.v_type) for layer in layers if layer.layer.heads}:
            wrong.append(f"{kind}: types {types}")
    logged_cells = {cache.cells * cache.streams for cache in report.caches}
    if not {layer.cells for layer in found.layers} <= logged_cells:
        wrong.append(f"cells {logged_cells}")
    states = re.search(r"RS buffer size = +([\d.]+) MiB", output)
    if abs(float(states[1] if states else 0) * MIB - found.recurrent) > 0.0051 * MIB:
        wrong.append(f"states {states and states[1]} MiB, computed {found.recurrent / MIB:.4f}")
    return wrong


@pytest.mark.parametrize("config", CONFIGS, ids=lambda config: config.label)
def test_every_architecture_takes_what_was_computed(models: list[Path], config: KVConfig) -> None:
    wrong: dict[str, list[str]] = {}
    compared = set()
    for model in models:
        meta = read(model)
        try:
            layout = kv_layout.read_layout(meta)
        except BadInput:
            assert kv_layout.kv_archs.uncountable(meta.arch)
            continue
        done, reports = loaded(model, config, CTX)
        try:
            memory.cache_bytes(layout, config, memory.Shape(CTX))
        except BadInput:
            # What is refused here must be refused there.
            if reports:
                wrong[model.name] = ["computed: cannot have these types"]
            continue
        if not reports:
            wrong[model.name] = [done.output[-300:]]
            continue
        if found := differences(layout, config, reports[-1], done.output, memory.Shape(CTX)):
            wrong[model.name] = found
        compared.add(meta.arch)
    assert wrong == {}
    assert len(compared) > 80
    assert not compared & READS_CACHE_ELSEWHERE


def test_types_of_single_layers(models: list[Path]) -> None:
    [model] = [path for path in models if path.name == "llama4-moe.gguf"]
    text, config = "0,-1:q8_0;1:f16/turbo2", KVConfig("turbo3", "turbo3")
    done, reports = loaded(model, config, CTX, "--kv-layers", text)
    assert reports, done.output[-300:]
    layout = kv_layout.read_layout(read(model))
    found = memory.cache_bytes(layout, config, memory.Shape(CTX), kv_layers.parse(text, memory.KNOWN))
    for kind in ("full", "sliding window"):
        logged = [entry for entry in reports[-1].kinds if entry.kind == kind]
        assert {(entry.k_type, entry.v_type) for entry in logged} == {
            (layer.k_type, layer.v_type) for layer in found.layers if layer.layer.kind == kind
        }
        for side, computed in zip(("k_mib", "v_mib"), found.side(kind), strict=True):
            read_back = sum(getattr(entry, side) for entry in logged)
            assert abs(read_back * MIB - computed) <= ROUNDING * len(logged)


# llama-perplexity makes room for as many contexts as one batch of 2048 tokens holds.
@pytest.mark.parametrize("parallel", [1, 4])
@pytest.mark.parametrize("config", [KVConfig("turbo3", "turbo3"), KVConfig("q8_0", "turbo4")], ids=lambda c: c.label)
def test_the_default_model(config: KVConfig, parallel: int) -> None:
    try:
        model = assets.fetch(assets.MODEL)
    except MachineCannot as e:
        pytest.skip(e.message)
    layout = kv_layout.read_layout(read(model))
    ctx = CTX // parallel
    argv = perplexity.probe_command(build.default_bin(), model, config, ctx=ctx, threads=2, flash_attn=True)
    done = runner.run(argv, timeout=120)
    report = kv_log.parse_contexts(done.output)[-1]
    assert {cache.streams for cache in report.caches} == {parallel}
    assert differences(layout, config, report, done.output, memory.Shape(CTX, parallel)) == []
