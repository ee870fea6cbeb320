#!/bin/sh
# The CUDA kernels without a GPU. Usage: cuda-check.sh VENV [--update]
#   1. nvcc compiles every turbo unit, and every upstream unit that a patch touches, for sm_90 and sm_75; registers, spills and
#      shared memory against tests/cuda/resources.csv (--update writes it).
#   2. The same sources run on the CPU in the emulator of tests/cuda and are compared with the C reference.
# Where there is no nvcc, its parts come from the package index (ci/cuda-toolkit.txt) into build/cuda-toolkit.
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

tk=$(pwd)/build/cuda-toolkit
if nvcc=$(command -v nvcc); then
    root=$(dirname "$(dirname "$(readlink -f "$nvcc")")")
    include=$root/include
else
    include=
fi
# cuBLAS's headers are a part of their own, which a toolkit may lack
if [ -z "$include" ] || [ ! -f "$include/cublas_v2.h" ]; then
    if ! cmp -s ci/cuda-toolkit.txt "$tk/parts.txt"; then
        echo "== installing parts of the CUDA toolkit into build/cuda-toolkit" >&2
        rm -rf "$tk"
        "$bin/python" -m pip install --disable-pip-version-check --quiet --no-deps --target "$tk" -r ci/cuda-toolkit.txt >"$out/pip.log" 2>&1 ||
            die "pip could not install the parts of the CUDA toolkit (all of it in build/cuda-check/pip.log): is there a network?"
        cp ci/cuda-toolkit.txt "$tk/parts.txt"
    fi
    part=$tk/nvidia/cu13
    [ -f "$part/include/cublas_v2.h" ] || die "build/cuda-toolkit is incomplete: delete it and run again"
    if [ -z "$include" ]; then
        nvcc=$part/bin/nvcc
        chmod +x "$part"/bin/* "$part"/nvvm/bin/* 2>/dev/null || true
        include=$part/include
    else
        extra=$part/include
    fi
fi
cccl=$include/cccl
echo "== nvcc: $("$nvcc" --version | tail -n 1)" >&2
"$bin/python" ci/cuda_report.py --tree "$tree" --nvcc "$nvcc" --include "$include" --include "$cccl" ${extra:+--include "$extra"} \
    --table tests/cuda/resources.csv --out "$out/nvcc" --jobs "$jobs" $update

echo "== emulator" >&2
launcher=
if command -v ccache >/dev/null; then
    launcher="-DCMAKE_C_COMPILER_LAUNCHER=ccache -DCMAKE_CXX_COMPILER_LAUNCHER=ccache"
fi
# shellcheck disable=SC2086
"$bin/cmake" -S tests/cuda -B "$out/emu" -G Ninja -DCMAKE_MAKE_PROGRAM="$(pwd)/$bin/ninja" -DCMAKE_BUILD_TYPE=Release $launcher \
    -DLLAMA_SOURCE="$tree" -DCUDA_INCLUDE="$include;$cccl${extra:+;$extra}" >"$out/cmake.log" 2>&1 || { tail -n 20 "$out/cmake.log" >&2; die "CMake failed (build/cuda-check/cmake.log)"; }
"$bin/cmake" --build "$out/emu" >&2
"$bin/ctest" --test-dir "$out/emu" --no-tests=error --output-on-failure -j "$jobs"
echo "cuda-check: ok, $(($(date +%s) - began)) s"
