#!/bin/sh
# Instructions a value of the kernels of 64-bit Arm, counted in qemu-user: the only figure of merit that an emulator gives. Uses the build of
# ci/neon.sh. An instruction is not a cycle: smlal is slower than fmla or sdot on most cores. $1 is the virtual environment.
set -eu
program=build/neon/bin/count-turbo-kernels
die() {
    echo "error: $2" >&2
    exit "$1"
}

qemu=$(command -v qemu-aarch64 || command -v qemu-aarch64-static) ||
    die 3 "no emulator for 64-bit Arm programs: install the Debian package qemu-user"
[ -f build/neon/build.ninja ] || die 3 "build/neon is missing: make neon makes it"
"$1/bin/cmake" --build build/neon --target count-turbo-kernels >&2
one=-singlestep
if "$qemu" --help | grep -q one-insn-per-tb; then one=-one-insn-per-tb; fi

# the log has one line an instruction
executed() { GGML_TURBO_ISA=$level "$qemu" -cpu cortex-a76 $one -d exec,nochain -D /dev/stdout "$program" "$@" | grep -c '^Trace'; }

# level, then the arguments of the program but for the repetitions
count() {
    level=$1
    shift
    n=$(GGML_TURBO_ISA=$level "$qemu" -cpu cortex-a76 "$program" "$@" 1 | cut -d ' ' -f 1)
    awk -v level="$level" -v what="$*" -v a="$(executed "$@" 1)" -v b="$(executed "$@" 2)" -v n="$n" \
        'BEGIN { printf "%-8s %-28s %7.2f\n", level, what, (b - a)/n }'
}

echo "level    kernel                       instructions a value"
for kernel in encode decode dot rotate; do
    for level in neon scalar; do
        count "$level" "$kernel" turbo3_64
    done
done
count scalar attention turbo3_64 1 1
for group in 1 4; do
    for level in dotprod neon; do
        count "$level" attention turbo3_64 1 "$group"
    done
    count neon attention f16 1 "$group"
done
# a prompt takes the tile kernels, which are the same at dotprod and neon
count neon attention turbo3_64 16 1
count neon attention f16 16 1
