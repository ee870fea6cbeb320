#!/bin/sh
# Everything CI runs, with the tools of the virtual environment $1. Stops at the first step that fails. The last step is
# the live tests, so that the last line is pytest's own count.
set -eu
venv=$1
bin=$venv/bin

step() {
    name=$1
    shift
    echo "== $name" >&2
    began=$(date +%s)
    "$@" || {
        code=$?
        echo "error: step '$name' failed (exit $code)" >&2
        exit "$code"
    }
    echo "-- $name: $(($(date +%s) - began)) s" >&2
}

# A machine that cannot run the script $1 (exit 3: no cross compiler, no emulator, no CUDA compiler) says so and goes on.
where_possible() {
    sh "$1" "$venv" || {
        code=$?
        [ "$code" = 3 ] || return "$code"
        echo "warning: $1 tested nothing" >&2
    }
}

step check sh ci/check.sh "$venv"
step fork-check "$bin/python" -m turbokv_eval.fork check
step codebook sh ci/codebook.sh "$venv" --check
step build "$bin/turbokv-eval" build --tests
step ctest "$bin/ctest" --test-dir build/cpu -L turbo --no-tests=error --output-on-failure
step matrix sh ci/matrix.sh "$venv"
step neon where_possible ci/neon.sh
step cuda-check where_possible ci/cuda-check.sh
# The bindings of the pinned release, for the live test of turbokv_eval.runtime.
# shellcheck disable=SC2046
step bindings "$bin/python" -m pip install --disable-pip-version-check --quiet \
    $("$bin/python" -c 'from turbokv_eval import runtime; print(*runtime.bindings_requirement())')
echo "== live" >&2
exec "$bin/pytest" -q -m live tests
