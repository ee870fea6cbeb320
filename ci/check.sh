#!/bin/sh
# Style, types, the tests that need no compiler, and how much of the code they run, with the tools of the virtual
# environment $1. Two processes, each on one core: NumPy's own threads would only get in each other's way.
set -eu
bin=$1/bin
"$bin/ruff" check .
"$bin/ruff" format --check .
"$bin/mypy"
OPENBLAS_NUM_THREADS=1 "$bin/pytest" -q -m "not live" -n 2 --dist worksteal --cov --cov-report=term tests
