"""The soft fork of llama.cpp: one pin, a patch series and an overlay, materialised into a build tree.

`apply` turns `llama.cpp/` (UPSTREAM, patches/, overlay/) into a source tree, `export` turns edits in that tree back
into patches and overlay files, `check` says what is wrong with them. Command line: `python -m turbokv_eval.fork`.
"""

from turbokv_eval.fork.check import check
from turbokv_eval.fork.export import export
from turbokv_eval.fork.paths import Layout, repo_root
from turbokv_eval.fork.pin import Pin, load_pin
from turbokv_eval.fork.tree import apply, status

__all__ = ["Layout", "Pin", "apply", "check", "export", "load_pin", "repo_root", "status"]
