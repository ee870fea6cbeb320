"""Builds the turbokv fork of llama.cpp, compares KV-cache types on it, and says which to use.

`compare` and `KVConfig` are the Python interface; `turbokv_eval.runtime` loads a model with a chosen cache,
`turbokv_eval.errors` has what they raise.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from turbokv_eval.api import compare
    from turbokv_eval.models.types import KVConfig

__all__ = ["KVConfig", "compare"]


def __getattr__(name: str) -> Any:
    # Loaded when they are asked for: the command line must not wait for what it does not use.
    if name == "compare":
        from turbokv_eval.api import compare

        return compare
    if name == "KVConfig":
        from turbokv_eval.models.types import KVConfig

        return KVConfig
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
