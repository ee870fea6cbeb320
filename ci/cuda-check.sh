#!/bin/sh
# The CUDA kernels without a GPU. Usage: cuda-check.sh VENV [--update]
#   1. nvcc compiles every turbo unit, and every upstream unit that a patch touches, for sm_90 and sm_75; registers, spills and
#      shared memory against tests/cuda/resources.csv (--update writes it).
#      The occupancy that follows from these is the one that the kernels' head comments plan (ci/cuda_occupancy.py).
#   2. The same sources run on the CPU in the emulator of tests/cuda and are compared with the C reference.
# The toolkit is the machine's, or its parts from the package index (turbokv_eval/machine/cuda_toolkit.py).
set -eu
bin=$1/bin
update=${2:-}
out=$(pwd)/build/cuda-check
jobs=$(nproc 2>/dev/null || echo 2)
mkdir -p "$out"
die() { echo "error: $1" >&2; exit 3; }
began=$(date +%s)

command -v g++ >/dev/null || die "no g++: install a C++ compiler (Debian, Ubuntu: build-essential)"
command -v c++filt >/dev/null || die "no c++filt: install binutils"
[ "$(uname -m)" = x86_64 ] || die "the emulator runs on x86-64 only"
tree=$("$bin/python" -m turbokv_eval.fork apply)

# one line nvcc, then one folder of headers a line
found=$("$bin/python" -m turbokv_eval.machine.cuda_toolkit)
nvcc=$(printf '%s\n' "$found" | head -n 1)
includes=$(printf '%s\n' "$found" | tail -n +2)
echo "== nvcc: $("$nvcc" --version | tail -n 1)" >&2
# shellcheck disable=SC2046,SC2086
"$bin/python" ci/cuda_report.py --tree "$tree" --nvcc "$nvcc" $(printf -- '--include %s ' $includes) \
    --table tests/cuda/resources.csv --out "$out/nvcc" --jobs "$jobs" $update

echo "== emulator" >&2
launcher=
if command -v ccache >/dev/null; then
    launcher="-DCMAKE_C_COMPILER_LAUNCHER=ccache -DCMAKE_CXX_COMPILER_LAUNCHER=ccache"
fi
# shellcheck disable=SC2086
"$bin/cmake" -S tests/cuda -B "$out/emu" -G Ninja -DCMAKE_MAKE_PROGRAM="$(pwd)/$bin/ninja" -DCMAKE_BUILD_TYPE=Release $launcher \
    -DLLAMA_SOURCE="$tree" -DCUDA_INCLUDE="$(printf '%s\n' "$includes" | paste -sd ';')" >"$out/cmake.log" 2>&1 || { tail -n 20 "$out/cmake.log" >&2; die "CMake failed (build/cuda-check/cmake.log)"; }
"$bin/cmake" --build "$out/emu" >&2
rm -f "$out/emu/launches.txt"
"$bin/ctest" --test-dir "$out/emu" --no-tests=error --output-on-failure -j "$jobs"
"$bin/python" ci/cuda_occupancy.py --launches "$out/emu/launches.txt"
echo "cuda-check: ok, $(($(date +%s) - began)) s"
