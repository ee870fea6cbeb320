"""The runtime helper on a made-up llama_cpp, and on the real one where it is installed (live)."""

import os
import sys
import types
from pathlib import Path
from typing import Any

import pytest
from compare_world import recorded

from turbokv_eval import fork, runtime
from turbokv_eval.errors import BadInput, CheckFailed, MachineCannot
from turbokv_eval.machine import assets, build
from turbokv_eval.models.types import KVConfig
from turbokv_eval.programs import kv_log
from turbokv_eval.reference.types import TYPES

LOG = recorded("load-q8_0-turbo3.log")


class FakeLlamaCpp(types.ModuleType):
    """The parts of llama_cpp that are used. log: what the library says while a model is loaded."""

    def __init__(self) -> None:
        super().__init__("llama_cpp")
        self.log = LOG
        self.error: Exception | None = None
        self.callbacks: list[Any] = []
        self.__version__ = fork.load_pin(fork.Layout.default().source).version
        self._lib = types.SimpleNamespace(llama_turbo_check_model=object())
        self.made: list[Any] = []
        module = self

        class Llama:
            def __init__(
                self,
                model_path: str,
                *,
                type_k: int | None = None,
                type_v: int | None = None,
                flash_attn: bool = False,
                n_ctx: int = 512,
                verbose: bool = True,
                **kwargs: Any,
            ) -> None:
                self.arguments = {"type_k": type_k, "type_v": type_v, "flash_attn": flash_attn, "n_ctx": n_ctx}
                self.condition = os.environ.get("LLAMA_KV_CONDITION")
                self.closed = False
                module.made.append(self)
                module.callbacks[-1](2, module.log.encode(), None)
                if module.error:
                    raise module.error

            def close(self) -> None:
                self.closed = True

        self.Llama = Llama

    def llama_log_callback(self, function: Any) -> Any:
        return function

    def llama_log_set(self, callback: Any, user_data: Any) -> None:
        self.callbacks.append(callback)


@pytest.fixture
def fake(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> FakeLlamaCpp:
    module = FakeLlamaCpp()
    logger = types.ModuleType("llama_cpp._logger")
    said: list[bytes] = []
    logger.llama_log_callback = lambda level, text, data: said.append(text)  # type: ignore[attr-defined]
    module.said = said  # type: ignore[attr-defined]
    (tmp_path / "libllama.so").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "llama_cpp", module)
    monkeypatch.setitem(sys.modules, "llama_cpp._logger", logger)
    monkeypatch.setenv("LLAMA_CPP_LIB_PATH", str(tmp_path))
    monkeypatch.delenv("LLAMA_KV_CONDITION", raising=False)
    return module


# names into parameters


@pytest.mark.parametrize(
    ("spec", "kwargs"),
    [
        ("f16", {"type_k": 1, "type_v": 1}),
        ("turbo3", {"type_k": 65, "type_v": 65, "flash_attn": True}),
        ("q8_0/turbo4", {"type_k": 8, "type_v": 66, "flash_attn": True}),
        ("turbo2/f16", {"type_k": 64, "type_v": 1, "flash_attn": True}),
        ("q4_0/f16", {"type_k": 2, "type_v": 1}),
        ('{"cache_type_k": "turbo3"}', {"type_k": 65, "type_v": 1, "flash_attn": True}),
        ({"cache-type-k": "q8_0", "--cache-type-v": "q8_0", "n_ctx": 4096}, {"n_ctx": 4096, "type_k": 8, "type_v": 8}),
        ({"type_k": 66, "type_v": 30}, {"type_k": 66, "type_v": 30, "flash_attn": True}),
        (KVConfig("bf16", "iq4_nl"), {"type_k": 30, "type_v": 20, "flash_attn": True}),
    ],
    ids=str,
)
def test_friendly_names_become_parameters(spec: runtime.Spec, kwargs: dict[str, Any]) -> None:
    found = runtime.llama_kwargs(spec)
    if kwargs["type_v"] not in (0, 1, 30):
        kwargs["flash_attn"] = True
    assert found == kwargs


def test_the_id_of_a_family_is_that_of_its_128_value_block() -> None:
    assert {runtime.type_id(f"turbo{bits}") for bits in (2, 3, 4)} == {kind.id for kind in TYPES if kind.n == 128}


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ("turbo5", "unknown cache type 'turbo5'"),
        ("turbo3,q8_0", "names 2 caches"),
        ("{not json", "are not JSON"),
        ('{"cache_type_q": "turbo3"}', "unknown argument 'cache_type_q': did you mean 'cache_type_"),
        ({"ctk": "turbo3", "cache_type_k": "turbo3"}, "says the same as another argument"),
        ({"cache_type_k": 3.5}, "must be a name such as turbo3"),
        ({"cache_type_k": 12}, "12 is not the id of a cache type"),
        ({"cache_type_v": "turbo3", "flash_attn": False}, "V in turbo3 needs flash attention"),
        ("turbo3@nofile", "no file 'nofile' exists"),
    ],
    ids=str,
)
def test_what_is_wrong_is_said(spec: runtime.Spec, why: str) -> None:
    with pytest.raises(BadInput, match=why.replace("{", r"\{")):
        runtime.llama_kwargs(spec)


def test_an_unknown_type_id() -> None:
    with pytest.raises(BadInput, match="unknown cache type 'q2_k'"):
        runtime.type_id("q2_k")


# loading


def test_a_load_reports_what_was_made(fake: FakeLlamaCpp, tmp_path: Path) -> None:
    loaded = runtime.load("m.gguf", "q8_0/turbo3", bin_dir=tmp_path, n_ctx=2048)
    assert loaded.llama.arguments == {"type_k": 8, "type_v": 65, "flash_attn": True, "n_ctx": 2048}
    assert {kind.v_type for kind in loaded.report.kinds} == {"turbo3_64"}
    assert str(loaded).endswith("30 layers (full): K q8_0, V turbo3_64")
    # The usual log goes on while ours listens, and is put back.
    assert fake.said == [LOG.encode()]  # type: ignore[attr-defined]
    assert fake.callbacks[-1] is sys.modules["llama_cpp._logger"].llama_log_callback


def test_conditioning_is_set_for_the_load_alone(
    fake: FakeLlamaCpp, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert runtime.load("m", "q8_0/turbo3@off", bin_dir=tmp_path).llama.condition == "off"
    assert "LLAMA_KV_CONDITION" not in os.environ
    monkeypatch.setenv("LLAMA_KV_CONDITION", "on")
    runtime.load("m", "q8_0/turbo3@off", bin_dir=tmp_path)
    assert os.environ["LLAMA_KV_CONDITION"] == "on"


def test_the_first_load_of_a_model_measures_its_keys(fake: FakeLlamaCpp, tmp_path: Path) -> None:
    fake.log = recorded("speed-0-turbo2-first.log")
    assert runtime.load("m", "turbo2", bin_dir=tmp_path).report.kinds[0].k_type == "turbo2_64"


def test_another_cache_than_asked_is_a_failure(fake: FakeLlamaCpp, tmp_path: Path) -> None:
    fake.log = recorded("load-f16.log")
    with pytest.raises(CheckFailed, match=r"K was f16, not q8_0; V was f16, not turbo3"):
        runtime.load("m", "q8_0/turbo3", bin_dir=tmp_path)
    assert fake.made[-1].closed


def test_a_silent_library_is_a_failure(fake: FakeLlamaCpp, tmp_path: Path) -> None:
    fake.log = ""
    with pytest.raises(CheckFailed, match="did not report its KV cache"):
        runtime.load("m", "f16", bin_dir=tmp_path)


def test_a_refused_model_says_why(fake: FakeLlamaCpp, tmp_path: Path) -> None:
    fake.error = ValueError("Failed to create llama_context")
    fake.log = "llama_init_from_model: cache type turbo3: heads of 32 values\n"
    with pytest.raises(BadInput, match="m does not load: cache type turbo3: heads of 32 values"):
        runtime.load("m", "turbo3", bin_dir=tmp_path)
    fake.log = "nothing to see\n"
    with pytest.raises(BadInput, match="m does not load: Failed to create llama_context"):
        runtime.load("m", "turbo3", bin_dir=tmp_path)


def test_an_argument_that_llama_would_ignore(fake: FakeLlamaCpp, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"no argument 'n_cxt': did you mean 'n_ctx'\?"):
        runtime.load("m", "f16", bin_dir=tmp_path, n_cxt=5)
    with pytest.raises(BadInput, match="no argument 'whatever'"):
        runtime.load("m", {"whatever": 1}, bin_dir=tmp_path)


def test_a_library_without_the_types(fake: FakeLlamaCpp, tmp_path: Path) -> None:
    fake._lib = types.SimpleNamespace()
    with pytest.raises(MachineCannot, match="is not the fork's"):
        runtime.load("m", "turbo3", bin_dir=tmp_path)


def test_bindings_of_another_llama_cpp(fake: FakeLlamaCpp, tmp_path: Path) -> None:
    fake.__version__ = "0.1.0"
    with pytest.raises(MachineCannot, match=r"llama-cpp-python 0\.1\.0 is for another llama\.cpp .*pip install"):
        runtime.load("m", "turbo3", bin_dir=tmp_path)
    assert not fake.made


def test_no_bindings_and_no_library(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "llama_cpp", None)
    monkeypatch.setenv("LLAMA_CPP_LIB_PATH", "")
    (tmp_path / "bin").mkdir()
    with pytest.raises(MachineCannot, match="no libllama in"):
        runtime.load("m", "turbo3", bin_dir=tmp_path / "bin")
    (tmp_path / "bin" / "libllama.so").write_bytes(b"")
    monkeypatch.delitem(sys.modules, "llama_cpp")
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(MachineCannot, match=r"pip install llama-cpp-python==[\d.]+ --config-settings"):
        runtime.load("m", "turbo3", bin_dir=tmp_path / "bin")
    assert os.environ["LLAMA_CPP_LIB_PATH"] == str(tmp_path / "bin")


def test_bindings_that_were_imported_before(fake: FakeLlamaCpp, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "libllama.so").write_bytes(b"")
    with pytest.raises(MachineCannot, match="already imported with another library"):
        runtime.load("m", "turbo3", bin_dir=other)


@pytest.mark.live
def test_the_real_bindings_with_our_library() -> None:
    """Needs llama-cpp-python, which ci/test.sh installs."""
    runtime.use_library(build.default_bin())
    try:
        model = assets.fetch(assets.MODEL)
    except MachineCannot as e:
        pytest.skip(e.message)
    loaded = runtime.load(model, {"cache_type_k": "turbo3", "cache_type_v": "q8_0", "kv_condition": "off"}, n_ctx=512)
    [kind] = loaded.report.kinds
    assert (kind.k_type, kind.v_type, kind.conditioned) == ("turbo3_64", "q8_0", False)
    assert isinstance(loaded.report, kv_log.KVReport)
    text = loaded.llama("The capital of France is", max_tokens=4, temperature=0)["choices"][0]["text"]
    assert "Paris" in text
    loaded.llama.close()
