"""`doctor`: one test for each thing that can be missing, with made-up programs; at the end, the built ones (live)."""

import errno
import json
import os
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from compare_world import World, recorded, write_model
from gguf_world import write_metadata

from turbokv_eval import doctor, fork
from turbokv_eval.cli import main
from turbokv_eval.doctor import Check
from turbokv_eval.machine import build, nvidia, runner

AVX512 = frozenset(doctor.LEVELS["avx512"])


class Ward:
    """A folder of programs that all run, and what the machine says of itself."""

    def __init__(self, root: Path) -> None:
        self.world = World(root)
        self.bin = self.world.bin
        script = (
            "#!{python}\nimport sys\nsys.stderr.write('version: 0.5.0-dev\\nAvailable devices:\\n  {devices}\\n')\n"
        )
        self.devices("(none)", script)
        self._script = script

    def devices(self, devices: str, script: str = "") -> None:
        for name in build.PROGRAMS:
            if name != "llama-perplexity":
                path = self.bin / name
                path.write_text((script or self._script).format(python=sys.executable, devices=devices))
                path.chmod(0o755)

    def checks(self, model: Path | None = None) -> dict[str, Check]:
        return {check.name: check for check in doctor.examine(self.bin, model)}


@pytest.fixture
def ward(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ward:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for name in list(os.environ):
        if name not in runner.clean_environment():
            monkeypatch.delenv(name)
    monkeypatch.setattr(doctor, "processor_features", lambda: AVX512)
    monkeypatch.setattr(doctor, "program_level", lambda folder: "avx512")
    monkeypatch.setattr(nvidia, "cards", lambda: [])
    return Ward(tmp_path)


def ran(*args: object) -> Result:
    return CliRunner().invoke(main, ["doctor", *map(str, args)])


def test_nothing_is_wrong(ward: Ward) -> None:
    checks = ward.checks()
    assert {check.verdict for check in checks.values()} == {"ok"}
    assert checks["kernels"].found == "level avx512"
    assert checks["turbo types"].found == "turbo2, turbo3, turbo4"
    assert "0.5.0-dev" in checks["programs"].found
    result = ran("--bin", ward.bin)
    assert result.exit_code == 0
    assert result.stdout.count("\nok ") == len(checks) - 1


def test_nothing_is_built(tmp_path: Path, ward: Ward) -> None:
    result = ran("--bin", tmp_path / "none")
    assert result.exit_code == 3
    assert "fail  programs: nothing is built in" in result.stdout
    assert "-> `turbokv-eval build`" in result.stdout
    assert "compiler" in result.stdout
    assert result.stderr == "Error: 1 of 7 checks failed: programs\n"


def test_one_program_is_missing(ward: Ward) -> None:
    (ward.bin / "llama-quantize").unlink()
    assert ward.checks()["programs"].found.startswith("llama-quantize missing in")


def test_a_program_of_another_processor(ward: Ward) -> None:
    program = ward.bin / "llama-perplexity"
    program.write_text(f"#!{sys.executable}\nimport os, signal\nos.kill(os.getpid(), signal.SIGILL)\n")
    check = ward.checks()["programs"]
    assert (check.verdict, "killed by signal 4" in check.found, "--portable" in check.way_out) == ("fail", True, True)


def test_programs_without_the_turbo_types(ward: Ward, tmp_path: Path) -> None:
    stock = recorded("help.txt").replace("turbo2, turbo3, turbo4", "q8_1")
    program = ward.bin / "llama-perplexity"
    (tmp_path / "help").write_text(stock)
    program.write_text(
        f"#!{sys.executable}\nimport sys\n"
        f"sys.stderr.write('version: 1\\n')\nprint(open('{tmp_path / 'help'}').read())\n"
    )
    check = ward.checks()["turbo types"]
    assert check.verdict == "fail"
    assert "do not know turbo2, turbo3, turbo4: they are not built from the fork" in check.found


@pytest.mark.parametrize(
    ("features", "best"),
    [
        (AVX512, "avx512"),
        (AVX512 - {"avx512vbmi"}, "avx2"),
        (AVX512 - {"avx512vbmi"} | {"avx_vnni"}, "avxvnni"),
        (AVX512 - {"f16c"}, "scalar"),
        (frozenset(("asimd",)), "neon"),
        (frozenset(("asimd", "asimddp")), "neon"),
        (frozenset(), "scalar"),
    ],
)
def test_the_level_that_a_processor_should_run(features: frozenset[str], best: str) -> None:
    assert doctor.best_level(features) == best


def test_instruction_sets_are_read_from_the_system(monkeypatch: pytest.MonkeyPatch) -> None:
    texts = {"x86": "flags\t\t: fpu avx2 fma\n", "arm": "Features\t: fp asimd\n", "none": "model name: x\n"}
    found = {}
    for name, text in texts.items():
        monkeypatch.setattr(Path, "read_text", lambda *_, text=text, **__: text)
        found[name] = doctor.processor_features()
    assert found == {"x86": {"fpu", "avx2", "fma"}, "arm": {"fp", "asimd"}, "none": frozenset()}


def test_a_build_without_the_library_tells_no_level(tmp_path: Path) -> None:
    assert doctor.program_level(tmp_path) == ""
    (tmp_path / "libggml-cpu.so").write_bytes(b"no library")
    assert doctor.program_level(tmp_path) == ""


def test_kernels_below_what_the_processor_could(ward: Ward, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "program_level", lambda folder: "scalar")
    check = ward.checks()["kernels"]
    assert (check.verdict, check.found) == ("warn", "level scalar, and this processor could run avx512")
    monkeypatch.setattr(doctor, "program_level", lambda folder: "")
    assert "is not told" in ward.checks()["kernels"].found


def test_a_processor_that_is_too_old(ward: Ward, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "processor_features", lambda: frozenset(("sse4_2",)))
    assert ward.checks()["processor"].verdict == "warn"


def test_a_cache_folder_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    check = doctor.cache(tmp_path / "file" / "cache")
    assert (check.verdict, "XDG_CACHE_HOME" in check.way_out) == ("fail", True)


def test_a_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(**_: object) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(doctor.tempfile, "NamedTemporaryFile", full)
    assert "No space left on device" in doctor.cache(tmp_path).found


def test_too_little_room_to_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert doctor.disk(tmp_path / "no" / "such").verdict == "ok"
    monkeypatch.setattr(doctor, "_BUILD_BYTES", 1 << 62)
    assert doctor.disk(tmp_path / "no" / "such").verdict == "fail"


def test_no_compiler(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CC", raising=False)
    check = doctor.compilers()
    assert (check.verdict, "no C compiler found" in check.found) == ("fail", True)
    assert "apt install build-essential" in check.way_out


def test_variables_that_change_the_programs(ward: Ward, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GGML_TURBO_ISA", "scalar")
    assert ward.checks()["environment"].found.startswith("GGML_TURBO_ISA=scalar: ")


@pytest.mark.parametrize(
    ("state", "verdict", "words"),
    [
        (("clean", []), "ok", "that of this version"),
        (("stale", []), "warn", "older than its patches"),
        (("absent", []), "warn", "no tree yet"),
        (("edited", ["src/a.cpp", "b"]), "warn", "2 files of the tree are edited: src/a.cpp"),
    ],
)
def test_the_state_of_the_tree(
    state: tuple[str, list[str]], verdict: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fork, "status", lambda: state)
    check = doctor.sources()
    assert check.verdict == verdict
    assert words in check.found


# the model


def test_a_model_that_loads(ward: Ward) -> None:
    model = ward.world.model
    log = recorded("load-turbo2@off.log").replace("turbo2", "turbo3")
    ward.world.reply(load_turbo3={"text": log})
    checks = ward.checks(model)
    assert checks["model"].found.endswith("heads of 64 values; turbo3 is stored as turbo3_64, 3.250 bits/value")
    assert checks["model memory"].verdict == "ok"
    load = checks["model load"]
    assert (load.verdict, load.found[:28]) == ("ok", "loads with turbo3_64 on CPU ")


def test_a_model_whose_cache_is_not_what_was_asked(ward: Ward) -> None:
    ward.world.reply(load_turbo3={"log": "load-f16.log"})
    check = ward.checks(ward.world.model)["model load"]
    assert check.verdict == "fail"
    assert "K was f16, not turbo3" in check.found


def test_a_model_that_the_program_refuses(ward: Ward) -> None:
    line = f"error: {ward.world.model}: K cache type turbo3: no block; types that work here: f16 (-ctk)\n"
    ward.world.reply(load_turbo3={"text": line, "rc": 1})
    check = ward.checks(ward.world.model)["model load"]
    assert (check.found, check.way_out) == ("K cache type turbo3: no block", "types that work here: f16 (-ctk)")


def test_a_model_that_is_cut_short(ward: Ward) -> None:
    said = "0.00.004.264 E cmn  common_init_: failed to load model 'x'\n"
    ward.world.reply(load_turbo3={"text": said, "rc": 1})
    assert "failed to load model" in ward.checks(ward.world.model)["model load"].found


def test_heads_without_a_block(ward: Ward, tmp_path: Path) -> None:
    check = ward.checks(write_model(tmp_path / "m.gguf", dim=32))["model"]
    assert check.verdict == "fail"
    assert "heads of 32 values: layer 0 cannot have K in turbo3" in check.found


def test_an_architecture_that_is_refused_by_name(ward: Ward, tmp_path: Path) -> None:
    checks = ward.checks(write_metadata(tmp_path / "m.gguf", "glm-dsa", block_count=1))
    assert checks["model"].verdict == "fail"
    assert "architecture glm-dsa reads its K cache outside of attention" in checks["model"].found
    assert "model load" not in checks


def test_weights_larger_than_the_memory(ward: Ward, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor.provenance, "host", lambda: {"cpu": "x", "cpus": 1, "memory_bytes": 1000})
    check = ward.checks(ward.world.model)["model memory"]
    assert (check.verdict, "do not fit 1000 B" in check.found) == ("fail", True)


def test_no_model(ward: Ward, tmp_path: Path) -> None:
    result = ran(tmp_path / "none.gguf", "--bin", ward.bin)
    assert result.exit_code == 3
    assert "fail  model: cannot read the model" in result.stdout
    assert "-> give a GGUF model" in result.stdout


def test_every_output(ward: Ward) -> None:
    document = json.loads(ran("--bin", ward.bin, "-o", "json").stdout)
    assert document["verdict"] == "ok"
    assert {check["name"] for check in document["checks"]} >= {"programs", "turbo types", "kernels", "GPU"}
    assert ran("--bin", ward.bin, "-o", "csv").stdout.startswith("verdict,name,found,way_out\nok,package,")
    assert "| ok | kernels | level avx512 |" in ran("--bin", ward.bin, "-o", "md").stdout


@pytest.mark.live
def test_the_built_programs_run_at_the_best_level_of_this_processor() -> None:
    checks = {check.name: check for check in doctor.examine(build.default_bin(), None)}
    assert {name: check.verdict for name, check in checks.items() if check.verdict == "fail"} == {}
    assert checks["kernels"].found == f"level {doctor.best_level(doctor.processor_features())}"
