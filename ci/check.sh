#!/bin/sh
# Style, types and the tests that need no compiler, with the tools of the virtual environment $1.
set -eu
bin=$1/bin
"$bin/ruff" check .
"$bin/ruff" format --check .
"$bin/mypy"
"$bin/pytest" -q -m "not live" tests
