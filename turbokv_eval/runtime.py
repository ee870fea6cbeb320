"""Turbo caches in Python: friendly names into llama-cpp-python's parameters, and a report of what was really loaded.

    >>> from turbokv_eval import runtime
    >>> runtime.llama_kwargs("q8_0/turbo3")
    {'type_k': 8, 'type_v': 65, 'flash_attn': True}

`load` does the rest: our library, the parameters, and a check of the cache that came out of it.
"""

import ctypes
import importlib
import inspect
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any

from gguf import GGMLQuantizationType

from turbokv_eval import fork
from turbokv_eval.errors import BadInput, CheckFailed, MachineCannot
from turbokv_eval.machine import build
from turbokv_eval.models import memory
from turbokv_eval.models.kv_layout import layer_count
from turbokv_eval.models.types import KVConfig, parse_types
from turbokv_eval.programs import kv_log
from turbokv_eval.reference.types import by_name

Spec = str | Mapping[str, Any] | KVConfig

LIBRARY_VARIABLE = "LLAMA_CPP_LIB_PATH"
CONDITION_VARIABLE = "LLAMA_KV_CONDITION"
LAYERS_VARIABLE = "LLAMA_KV_LAYERS"

_FLOATS = ("f32", "f16", "bf16")
# Names that a cache type goes by in the programs' options and in their users' settings.
_ALIASES = {
    "cache_type_k": "k",
    "ctk": "k",
    "type_k": "k",
    "cache_type_v": "v",
    "ctv": "v",
    "type_v": "v",
    "kv_condition": "condition",
}
# Only the fork's library has it.
_FORK_SYMBOL = "llama_turbo_check_model"


@dataclass(frozen=True)
class Loaded:
    """A model with its cache.

    llama:  the llama_cpp.Llama.
    config: what was asked for.
    report: what the library logged of the cache: types as resolved, sizes in MiB, flash attention, conditioning.
    """

    llama: Any
    config: KVConfig
    report: kv_log.KVReport

    def __str__(self) -> str:
        """One line: types and size of the cache."""
        kinds = "; ".join(
            f"{kind.layers} layers ({kind.kind}): K {kind.k_type}, V {kind.v_type or 'a view of K'}"
            + (", K conditioned" if kind.conditioned else "")
            for kind in self.report.kinds
        )
        return f"{self.report.mib:.2f} MiB for {self.report.cells} tokens, {kinds or self.config.label}"


def type_id(name: str) -> int:
    """The ggml type id of a cache type. That of a turbo family is its 128-value block's; each layer resolves it.

    Raises BadInput for an unknown name.
    """
    if name in memory.FAMILIES:
        return by_name(name).id
    if name not in memory.KNOWN:
        raise BadInput(f"unknown cache type {name!r}: {', '.join(memory.KNOWN)} are known")
    return int(GGMLQuantizationType[name.upper()])


def parse(spec: Spec) -> tuple[KVConfig, dict[str, Any]]:
    """A cache from a friendly string, JSON text or a mapping; and the mapping's other arguments, as they are.

    Strings: `turbo3`, `q8_0/turbo3`, `turbo3+0-1:q8_0`, `turbo3@off`, or a JSON object. Keys of an object:
    cache_type_k and cache_type_v (type_k, ctk and so on; - for _ is allowed), kv_condition. A side that is not said is
    f16. Raises BadInput.
    """
    if isinstance(spec, KVConfig):
        return spec, {}
    if isinstance(spec, str):
        if not spec.lstrip().startswith("{"):
            configs = parse_types(spec, memory.KNOWN)
            if len(configs) != 1:
                raise BadInput(f"{spec!r} names {len(configs)} caches, and a model has one: leave the others out")
            return configs[0], {}
        try:
            spec = json.loads(spec)
        except ValueError as e:
            example = '{"cache_type_k": "turbo3"}'
            raise BadInput(f"the extra arguments are not JSON ({e}): write them like {example}") from e
        if not isinstance(spec, Mapping):
            raise BadInput("the extra arguments are no JSON object")
    assert isinstance(spec, Mapping)
    return _from_mapping(spec)


def _from_mapping(spec: Mapping[str, Any]) -> tuple[KVConfig, dict[str, Any]]:
    said: dict[str, str] = {}
    rest: dict[str, Any] = {}
    for key, value in spec.items():
        name = key.lstrip("-").replace("-", "_")
        side = _ALIASES.get(name)
        if side is None:
            # llama_cpp.Llama ignores what it does not know: a misspelt cache type would silently be f16.
            if near := get_close_matches(name, _ALIASES, n=1, cutoff=0.75):
                raise BadInput(f"unknown argument {key!r}: did you mean {near[0]!r}?")
            rest[name] = value
            continue
        if side in said:
            raise BadInput(f"{key!r} says the same as another argument: leave one out")
        if side != "condition" and isinstance(value, int):
            value = _name_of(value)
        if not isinstance(value, str):
            raise BadInput(f"{key!r} is {value!r}, and must be a name such as turbo3")
        said[side] = value
    pair = f"{said.get('k', 'f16')}/{said.get('v', 'f16')}"
    at = f"@{said['condition']}" if "condition" in said else ""
    return parse_types(pair + at, memory.KNOWN)[0], rest


def _name_of(number: int) -> str:
    found = next((name for name in memory.KNOWN if type_id(name) == number), None)
    if found is None:
        raise BadInput(f"{number} is not the id of a cache type that can be asked for: give its name")
    return found


def llama_kwargs(spec: Spec) -> dict[str, Any]:
    """Arguments for llama_cpp.Llama: type_k, type_v, flash_attn, and what else a mapping holds.

    Flash attention is on for every quantised V, which needs it, and every turbo type, whose fast kernels are there.
    Conditioning and types of single layers are no arguments of Llama: `load` sets them, else set LLAMA_KV_CONDITION and
    LLAMA_KV_LAYERS before the library is used.
    Raises BadInput, also for a flash_attn=False that contradicts V.
    """
    config, rest = parse(spec)
    needed = config.v not in _FLOATS
    if needed and rest.get("flash_attn") is False:
        raise BadInput(f"V in {config.v} needs flash attention: drop flash_attn=False, or use f16 for V")
    kwargs = {"type_k": type_id(config.k), "type_v": type_id(config.v)}
    if needed or config.k in memory.FAMILIES:
        rest.setdefault("flash_attn", True)
    return {**kwargs, **rest}


def bindings_requirement() -> list[str]:
    """What `pip install` is given for the llama-cpp-python that fits our library, without a library of its own."""
    off = [f"--config-settings=cmake.define.{name}=OFF" for name in ("LLAMA_BUILD", "LLAVA_BUILD")]
    return [f"llama-cpp-python=={_pinned_version()}", *off]


def _pinned_version() -> str:
    return fork.load_pin(fork.Layout.default().source).version


def use_library(bin_dir: Path | None = None) -> Path:
    """Makes llama-cpp-python load the library of our build (`turbokv-eval build`); returns its folder.

    Must come before the first import of llama_cpp. Raises MachineCannot where nothing is built, or where llama_cpp was
    imported with another library.
    """
    folder = (bin_dir or build.default_bin()).resolve()
    if not any(folder.glob("libllama.*")) and not any(folder.glob("llama.dll")):
        raise MachineCannot(f"no libllama in {folder}: `turbokv-eval build` builds it")
    imported = "llama_cpp" in sys.modules
    if imported and Path(os.environ.get(LIBRARY_VARIABLE, "")).resolve() != folder:
        raise MachineCannot(
            f"llama_cpp is already imported with another library: call use_library() before, or set"
            f" {LIBRARY_VARIABLE}={folder}"
        )
    os.environ[LIBRARY_VARIABLE] = str(folder)
    return folder


def load(model: Path | str, spec: Spec, *, bin_dir: Path | None = None, **llama_args: Any) -> Loaded:
    """Loads a GGUF model with a cache and checks that the cache is the one that was asked for.

    spec:       as for `parse`.
    llama_args: further arguments of llama_cpp.Llama (n_ctx, n_threads, n_gpu_layers, ...).

    Raises MachineCannot (llama-cpp-python or our library is missing), BadInput (a wrong argument, a model that cannot
    have the types), CheckFailed (the cache is another one).
    """
    config, rest = parse(spec)
    kwargs = {**llama_kwargs(spec), **llama_args}
    use_library(bin_dir)
    way_out = f"install it without a library of its own, `pip install {' '.join(bindings_requirement())}`"
    try:
        llama_cpp = importlib.import_module("llama_cpp")
    except ImportError as e:
        raise MachineCannot(f"llama-cpp-python cannot be imported ({e}): {way_out}") from e
    if llama_cpp.__version__ != _pinned_version():
        # Its structures are those of one llama.cpp: with another one, fields are read from wrong places.
        raise MachineCannot(
            f"llama-cpp-python {llama_cpp.__version__} is for another llama.cpp than that of our library: {way_out}"
        )
    if memory.FAMILIES.keys() & {config.k, config.v} and not hasattr(_library(llama_cpp), _FORK_SYMBOL):
        raise MachineCannot(
            f"the library in {os.environ[LIBRARY_VARIABLE]} is not the fork's: run `turbokv-eval build`"
        )
    _check_arguments(llama_cpp.Llama, {*rest, *llama_args})
    lines: list[str] = []
    with _environment(**{CONDITION_VARIABLE: config.condition, LAYERS_VARIABLE: config.layers}):
        llama = _logged(llama_cpp, lines, str(model), kwargs)
    reports = kv_log.parse_contexts("".join(lines))
    n_layer = layer_count(Path(model)) if config.layers else 0
    if wrong := kv_log.problems(config, bool(kwargs.get("flash_attn")), reports, n_layer):
        llama.close()
        raise CheckFailed(f"the cache is not what was asked for: {'; '.join(wrong)}")
    return Loaded(llama, config, reports[-1])


def _library(llama_cpp: Any) -> Any:
    """The ctypes library behind the bindings."""
    return getattr(llama_cpp, "_lib", None) or llama_cpp.llama_cpp._lib


def _check_arguments(llama: Any, names: set[str]) -> None:
    """Raises BadInput for an argument that Llama does not have: it would be ignored."""
    known = [name for name in inspect.signature(llama).parameters if name not in ("self", "kwargs")]
    for name in sorted(names):
        if name not in known:
            near = get_close_matches(name, known, n=1)
            raise BadInput(
                f"llama_cpp.Llama has no argument {name!r}" + (f": did you mean {near[0]!r}?" if near else "")
            )


class _environment:
    """Sets variables while a model is loaded; one with an empty value stays as it is."""

    def __init__(self, **settings: str) -> None:
        self._settings = {name: value for name, value in settings.items() if value}
        self._before: dict[str, str | None] = {}

    def __enter__(self) -> None:
        for name, value in self._settings.items():
            self._before[name] = os.environ.get(name)
            os.environ[name] = value

    def __exit__(self, *_: object) -> None:
        for name, before in self._before.items():
            if before is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = before


def _logged(llama_cpp: Any, lines: list[str], model: str, kwargs: dict[str, Any]) -> Any:
    """llama_cpp.Llama(...), the library's log in `lines`. Raises BadInput, with what the log says, when it fails."""
    logger = importlib.import_module("llama_cpp._logger")
    usual = logger.llama_log_callback

    @llama_cpp.llama_log_callback  # type: ignore[untyped-decorator]
    def keep(level: int, text: bytes, user_data: object) -> None:
        lines.append(text.decode("utf-8", errors="replace"))
        usual(level, text, user_data)

    llama_cpp.llama_log_set(keep, ctypes.c_void_p(0))
    try:
        return llama_cpp.Llama(model_path=model, **kwargs)
    except (ValueError, AssertionError, RuntimeError) as e:
        errors = [line.strip() for line in "".join(lines).splitlines() if "error" in line or "turbo" in line]
        said = errors[-1].partition(": ")[2] or errors[-1] if errors else str(e)
        raise BadInput(f"{model} does not load: {said}") from e
    finally:
        # `keep` ends with this function, and the library must not call what is gone.
        llama_cpp.llama_log_set(usual, ctypes.c_void_p(0))
