#!/bin/sh
# Speed: the kernels against memcpy and f16, cache types at depth side by side in one process, then llama-bench's own rows.
# Usage: bench.sh VENV [OPTION OF turbokv-eval bench...]
# MODEL=GGUF, DEPTHS=0,1024,... and TYPES=f16,turbo3,... change the middle part.
set -eu
bin=$1/bin
shift
"$bin/turbokv-eval" build --tests >/dev/null
programs=$("$bin/python" -c 'from turbokv_eval.machine.build import default_bin; print(default_bin())')
model=${MODEL:-$("$bin/python" -c 'from turbokv_eval import assets; print(assets.fetch(assets.MODEL))')}
"$programs/bench-turbo-kernels" -t 2
echo
"$programs/bench-turbo-depth" -m "$model" -k "${TYPES:-f16,q8_0,turbo4,turbo3,turbo2}" -d "${DEPTHS:-0,4096}" -n 16 -r 7
echo
exec "$bin/turbokv-eval" bench "$@"
