#!/bin/sh
# The matrix of tests/matrix on the programs in build/cpu/bin. Usage: matrix.sh VENV [OPTION...]
set -eu
bin=$1/bin
shift
PYTHONPATH=tests${PYTHONPATH:+:$PYTHONPATH} exec "$bin/python" -m matrix "$@"
