#!/bin/sh
# Deletes build results, and not build/llama.cpp: it may hold edits that are not exported.
set -eu
[ ! -d build ] || find build -mindepth 1 -maxdepth 1 ! -name 'llama.cpp*' -exec rm -rf {} +
rm -rf dist .ruff_cache .mypy_cache .pytest_cache
find . -name __pycache__ -type d -not -path './.venv/*' -not -path './build/*' -prune -exec rm -rf {} +
