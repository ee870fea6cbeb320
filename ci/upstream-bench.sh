#!/bin/sh
# The cache types that upstream has: are they as fast as in a build of upstream without this fork? Builds that one in build/upstream, with the same options,
# then runs llama-bench of both in turn. Prints the ratios of the medians, fork to upstream, with their 95 % bootstrap interval.
# Usage: upstream-bench.sh VENV [ROUNDS]; MODEL=GGUF changes the model, DEPTH the depth (default 1024)
set -eu
python=$1/bin/python
"$1/bin/turbokv-eval" build >/dev/null
exec "$python" ci/upstream_bench.py "${2:-15}"
