#!/bin/sh
# The kernels of 64-bit Arm, tested on any Linux machine: builds the ggml library and the tests that need nothing else with Debian's cross
# compiler, and runs them in qemu-user, once for each instruction-set level. $1 is the virtual environment.
set -eu
bin=$1/bin
die() {
    echo "error: $2" >&2
    exit "$1"
}

want=
command -v aarch64-linux-gnu-g++ >/dev/null || want="g++-aarch64-linux-gnu"
command -v qemu-aarch64 >/dev/null || command -v qemu-aarch64-static >/dev/null || want="$want qemu-user"
if [ -n "$want" ] && command -v apt-get >/dev/null && [ "$(id -u)" = 0 ]; then
    echo "== installing $want" >&2
    # Not fatal here: what is really missing is named below.
    # shellcheck disable=SC2086
    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $want; } >/dev/null 2>&1 || true
fi
command -v aarch64-linux-gnu-g++ >/dev/null ||
    die 3 "no cross compiler for 64-bit Arm: install the Debian package g++-aarch64-linux-gnu"
qemu=$(command -v qemu-aarch64 || command -v qemu-aarch64-static) ||
    die 3 "no emulator for 64-bit Arm programs: install the Debian package qemu-user"

build=build/neon
tree=$("$bin/python" -m turbokv_eval.fork apply)
launcher=
if command -v ccache >/dev/null; then
    launcher="-DCMAKE_C_COMPILER_LAUNCHER=ccache -DCMAKE_CXX_COMPILER_LAUNCHER=ccache"
fi
# Static: qemu-user then needs no Arm system. Without GGML_CPU_ARM_ARCH the code is for every 64-bit Arm processor.
# shellcheck disable=SC2086
"$bin/cmake" -S "$tree" -B "$build" -G Ninja -DCMAKE_MAKE_PROGRAM="$(pwd)/$bin/ninja" \
    -DCMAKE_TOOLCHAIN_FILE="$(pwd)/ci/aarch64-linux-gnu.cmake" -DCMAKE_BUILD_TYPE=Release $launcher \
    -DBUILD_SHARED_LIBS=OFF -DCMAKE_EXE_LINKER_FLAGS=-static -DGGML_NATIVE=OFF -DGGML_OPENMP=OFF \
    -DLLAMA_BUILD_NUMBER=0 -DLLAMA_BUILD_UI=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_TESTS=ON >&2
"$bin/cmake" --build "$build" --target test-turbo-codec --target test-turbo-fattn >&2

# A program fails when another level than the one named runs, and at a name that the processor or the build does not have, so nothing passes
# undispatched. Each level runs on a processor that has no instruction beyond it: the Cortex-A53 is Armv8.0, the Cortex-A76 has the
# dot product. Attention: one case in 13, which is prime to the cycles that the cases are made of.
run() {
    cpu=$1
    level=$2
    shift 2
    echo "== $* at the level $level on $cpu" >&2
    program=$1
    shift
    GGML_TURBO_ISA=$level "$qemu" -cpu "$cpu" "$build/bin/$program" "$@" || die 1 "$program failed at the level $level (exit $?)"
}
for pair in "cortex-a76 dotprod" "cortex-a53 neon" "cortex-a53 scalar"; do
    level=${pair#* }
    run "${pair% *}" "$level" test-turbo-codec tests/vectors "$level"
    run "${pair% *}" "$level" test-turbo-fattn "$level" -s 13
done
