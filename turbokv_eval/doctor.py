"""Looks at everything that must be there before a comparison can run, and says what to do about what is not."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Literal

from platformdirs import user_cache_dir

from turbokv_eval import fork
from turbokv_eval.comparison import preflight
from turbokv_eval.errors import ToolError
from turbokv_eval.machine import build, gpu_build, provenance, runner
from turbokv_eval.models import gguf_meta, kv_layout, memory
from turbokv_eval.models.kv_archs import READS_CACHE_ELSEWHERE
from turbokv_eval.models.types import KVConfig
from turbokv_eval.programs import kv_log, perplexity
from turbokv_eval.units import GIB, format_size

SCHEMA_VERSION = 1

Verdict = Literal["ok", "warn", "fail"]

# Instruction sets that the levels of the turbo kernels need (available_levels in the fork's turbo.cpp), best first, by
# the names of /proc/cpuinfo. A processor with them should run at that level.
LEVELS: dict[str, frozenset[str]] = {
    "avx512": frozenset(
        ("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl", "avx512vbmi", "avx512_vnni", "avx2", "fma", "f16c")
    ),
    "avxvnni": frozenset(("avx_vnni", "avx2", "fma", "f16c")),
    "avx2": frozenset(("avx2", "fma", "f16c")),
    "neon": frozenset(("asimd",)),
    "dotprod": frozenset(("asimd", "asimddp")),
}
# Worth showing, whether a level needs them or not.
_SHOWN = ("sse4_2", "avx", "avx2", "fma", "f16c", "avx512f", "avx512vbmi", "avx512_vnni", "avx_vnni", "amx_int8")
_SHOWN_ARM = ("asimd", "asimddp", "i8mm", "bf16", "sve")

# What a build takes, sources and objects together.
_BUILD_BYTES = 2 * GIB
# A load may read a whole model from a slow disk.
_LOAD_SECONDS = 300


@dataclass(frozen=True)
class Check:
    """One line of the result.

    found:   what is there. way_out: what to do about it; empty where the verdict is `ok`.
    """

    name: str
    verdict: Verdict
    found: str
    way_out: str = ""


def examine(bin_dir: Path | None, model: Path | None) -> Iterator[Check]:
    """Every check, as it is made. bin_dir: None for where `turbokv-eval build` leaves the programs."""
    folder = bin_dir or build.default_bin()
    yield Check("package", "ok", f"turbokv-eval {metadata.version('turbokv-eval')}, Python {sys.version.split()[0]}")
    missing = build.missing_programs(folder, build.PROGRAMS)
    if bin_dir is None:
        yield sources()
    if missing:
        yield compilers()
        yield disk(folder)
    yield programs(folder, missing)
    yield processor()
    if not missing:
        yield types(folder)
        yield level(folder)
        yield gpu(folder)
    yield cache()
    yield environment(os.environ)
    if model is not None:
        yield from model_checks(model, None if missing else folder)


def document(checks: Iterable[Check]) -> dict[str, Any]:
    """The checks as JSON, with the worst verdict of all."""
    found = list(checks)
    worst = max(found, key=lambda check: ("ok", "warn", "fail").index(check.verdict)).verdict
    return {
        "schema_version": SCHEMA_VERSION,
        "tool": "turbokv-eval doctor",
        "verdict": worst,
        "checks": [asdict(check) for check in found],
    }


def sources() -> Check:
    """Whether the tree that is built from is that of this package."""
    name, apply = "sources", "`turbokv-eval build` brings it up to date"
    try:
        state, edits = fork.status()
    except (ToolError, OSError) as e:
        return Check(name, "fail", f"the fork cannot be read: {e}", "install the package again")
    if state == "clean":
        return Check(name, "ok", "the tree is that of this version")
    if state == "edited":
        return Check(
            name, "warn", f"{len(edits)} files of the tree are edited: {edits[0]}", "`make fork-export` keeps edits"
        )
    what = "no tree yet" if state == "absent" else "the tree is older than its patches"
    return Check(name, "warn", what, apply)


def compilers() -> Check:
    """Whether the programs could be built."""
    try:
        build.check_compilers()
        build.find_tool("cmake")
        build.find_tool("ninja")
    except ToolError as e:
        problem, _, way_out = e.message.partition(": ")
        return Check("compiler", "fail", problem, way_out)
    return Check("compiler", "ok", "C, C++, CMake and Ninja are there")


def disk(folder: Path) -> Check:
    """Whether a build has room."""
    there = next(path for path in (folder, *folder.parents) if path.exists())
    free = shutil.disk_usage(there).free
    if free < _BUILD_BYTES:
        return Check("disk", "fail", f"{format_size(free)} free at {there}", f"free {format_size(_BUILD_BYTES)}")
    return Check("disk", "ok", f"{format_size(free)} free at {there}")


def programs(folder: Path, missing: list[str]) -> Check:
    """Whether the programs are built and run."""
    name, rebuild = "programs", "`turbokv-eval build` (or `make build`) builds them; --bin names another folder"
    if len(missing) == len(build.PROGRAMS):
        return Check(name, "fail", f"nothing is built in {folder}", rebuild)
    if missing:
        return Check(name, "fail", f"{', '.join(missing)} missing in {folder}", rebuild)
    try:
        done = runner.run([folder / perplexity.PROGRAM, "--version"], timeout=60)
    except ToolError as e:
        return Check(name, "fail", e.message, "delete the build folder and run `turbokv-eval build`")
    said = re.search(r"version: (.+)", done.output)
    if done.returncode != 0 or said is None:
        how = f"killed by signal {-done.returncode}" if done.returncode < 0 else f"exit status {done.returncode}"
        # A build for another processor dies of an illegal instruction.
        return Check(
            name,
            "fail",
            f"{perplexity.PROGRAM} does not run here ({how})",
            "delete the build folder and run `turbokv-eval build` on this machine, or build with --portable",
        )
    return Check(name, "ok", f"{said[1]} in {folder}")


def types(folder: Path) -> Check:
    """Whether the programs know the turbo types: they are asked."""
    try:
        known = preflight.known_types(folder)
    except ToolError as e:
        return Check("turbo types", "fail", e.message, "run `turbokv-eval build`")
    if missing := [family for family in memory.FAMILIES if family not in known]:
        return Check(
            "turbo types",
            "fail",
            f"the programs in {folder} do not know {', '.join(missing)}: they are not built from the fork",
            "run `turbokv-eval build`, or give its folder with --bin",
        )
    return Check("turbo types", "ok", ", ".join(memory.FAMILIES))


def processor_features() -> frozenset[str]:
    """Instruction sets, by the names of /proc/cpuinfo; empty where the system does not tell."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return frozenset()
    found = re.search(r"^(?:flags|Features)\s*:(.*)$", text, re.MULTILINE)
    return frozenset(found[1].split()) if found else frozenset()


def best_level(features: frozenset[str]) -> str:
    """The level that the kernels should choose on a processor with these instruction sets."""
    return next((name for name, needs in LEVELS.items() if needs <= features), "scalar")


def processor() -> Check:
    """What the processor has."""
    host, features = provenance.host(), processor_features()
    shown = [name for name in (*_SHOWN, *_SHOWN_ARM) if name in features]
    memory_size = "" if host["memory_bytes"] is None else f", {format_size(host['memory_bytes'])} of memory"
    found = f"{host['cpu']}, {host['cpus']} processors{memory_size}: {' '.join(shown) or 'instruction sets not told'}"
    if not features:
        return Check("processor", "ok", found)
    if best_level(features) == "scalar":
        return Check(
            "processor", "warn", f"{found}; too old for fast kernels", "expect slow runs, or use another machine"
        )
    return Check("processor", "ok", found)


def program_level(folder: Path) -> str:
    """The level at which the built kernels run here, as their library says; empty when it does not say.

    Asked in a process of its own, which an illegal instruction may end.
    """
    libraries = sorted(folder.glob("libggml-cpu*.so")) + sorted(folder.glob("libggml-cpu*.dylib"))
    code = (
        "import ctypes, sys; f = ctypes.CDLL(sys.argv[1]).ggml_turbo_cpu_level;"
        " f.restype = ctypes.c_char_p; print(f().decode())"
    )
    for library in libraries:
        done = subprocess.run(
            [sys.executable, "-c", code, str(library)],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
            env=runner.clean_environment(),
        )
        if done.returncode == 0:
            return done.stdout.strip()
    return ""


def level(folder: Path) -> Check:
    """Which kernels run, and whether they are the best that this processor could run."""
    name = "kernels"
    used, best = program_level(folder), best_level(processor_features())
    if not used:
        return Check(
            name, "warn", "the level of the turbo kernels is not told by this build", "run `turbokv-eval build`"
        )
    if used == best:
        return Check(name, "ok", f"level {used}")
    return Check(
        name,
        "warn",
        f"level {used}, and this processor could run {best}",
        "run `turbokv-eval build` again with a newer compiler",
    )


def gpu(folder: Path) -> Check:
    """Which devices the programs use, whether their kernels fit them, and what the machine has besides."""
    return Check("GPU", *gpu_build.examine(folder))


def cache(folder: Path | None = None) -> Check:
    """Whether measured keys, the default model and the fork's sources can be kept."""
    where = folder or Path(user_cache_dir("turbokv", appauthor=False))
    try:
        where.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=where) as probe:
            probe.write(b"x" * 4096)
            probe.flush()
    except OSError as e:
        return Check(
            "cache folder",
            "fail",
            f"{where} cannot be written: {e.strerror}",
            "free some space, or point XDG_CACHE_HOME to a writable folder",
        )
    return Check("cache folder", "ok", f"{where} is writable, {format_size(shutil.disk_usage(where).free)} free")


def environment(variables: Any) -> Check:
    """Variables that change what the programs do outside of this tool, which runs them without."""
    hidden = [name for name in variables if name not in runner.clean_environment({name: ""})]
    if hidden:
        shown = ", ".join(f"{name}={variables[name]}" for name in sorted(hidden))
        return Check(
            "environment",
            "warn",
            f"{shown}: changes the programs, but not runs of this tool",
            "unset what is not meant",
        )
    return Check("environment", "ok", "no variable changes what the programs do")


def model_checks(path: Path, folder: Path | None) -> Iterator[Check]:
    """Whether a model can be cached in turbo types, from its metadata and then from a load. folder: of the programs."""
    try:
        meta = gguf_meta.read(path)
        if meta.arch in READS_CACHE_ELSEWHERE:
            why = f"{path.name}: architecture {meta.arch} reads its K cache outside of attention: no turbo types for it"
            yield Check("model", "fail", why, "use -ctk q8_0 -ctv q8_0 or f16")
            return
        layout = kv_layout.read_layout(meta)
    except ToolError as e:
        problem, _, way_out = e.message.rpartition("; ")
        yield Check("model", "fail", problem or e.message, way_out if problem else "give another model")
        return
    yield model_shape(path, layout)
    yield model_memory(layout)
    if folder is not None:
        yield model_load(path, folder)


def model_shape(path: Path, layout: kv_layout.Layout) -> Check:
    """The turbo types that suit the heads of every layer."""
    lengths = sorted({length for layer in layout.layers for length in (layer.k_length, layer.v_length) if length})
    heads = f"{path.name}: {layout.arch}, heads of {' and '.join(map(str, lengths))} values"
    try:
        found = memory.cache_bytes(layout, KVConfig("turbo3", "turbo3"), memory.Shape(256))
    except ToolError as e:
        return Check("model", "fail", f"{heads}: {e.message}", "use -ctk q8_0 -ctv q8_0 or f16")
    types = sorted({name for layer in found.layers for name in (layer.k_type, layer.v_type) if name})
    return Check(
        "model", "ok", f"{heads}; turbo3 is stored as {', '.join(types)}, {found.bits_per_value:.3f} bits/value"
    )


def model_memory(layout: kv_layout.Layout) -> Check:
    """Whether the weights fit the memory of this machine."""
    total = provenance.host()["memory_bytes"]
    weights = f"weights of {format_size(layout.weights)}"
    if total is not None and layout.weights > total:
        return Check(
            "model memory",
            "fail",
            f"{weights} do not fit {format_size(total)} of memory",
            "use a smaller quantisation of the model",
        )
    return Check("model memory", "ok", weights if total is None else f"{weights}, {format_size(total)} of memory")


def model_load(path: Path, folder: Path) -> Check:
    """Loads the model with a small turbo3 cache and reads back what was made. Keys are not measured for it."""
    name, config = "model load", KVConfig("turbo3", "turbo3", "off")
    argv = perplexity.probe_command(folder, path, config, ctx=256, threads=provenance.cpu_count(), flash_attn=True)
    try:
        done = runner.run(argv, timeout=_LOAD_SECONDS)
    except ToolError as e:
        return Check(name, "warn", e.message, "a load takes long here: try again when the machine is idle")
    reports = kv_log.parse_contexts(done.output)
    if done.returncode != 0 or not reports:
        errors = [line for line in done.output.splitlines() if line.startswith("error:")] or [
            line for line in done.output.splitlines() if re.match(r"[\d.]+ E ", line)
        ]
        said = errors[0].removeprefix(f"error: {path}: ").strip() if errors else f"exit status {done.returncode}"
        problem, _, way_out = said.rpartition("; ")
        return Check(name, "fail", problem or said, way_out if problem else "read the log of llama-cli with -v")
    if wrong := kv_log.problems(config, True, reports):
        return Check(name, "fail", "; ".join(wrong), "run `turbokv-eval build` and try again")
    where = sorted(set(re.findall(r"(\S+) KV buffer size", done.output)))
    made = {kind.k_type for kind in reports[-1].kinds}
    return Check(name, "ok", f"loads with {', '.join(sorted(made))} on {', '.join(where)} in {done.seconds:.1f} s")
