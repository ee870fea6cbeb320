#!/bin/sh
# Builds the codec tests with the address and undefined-behaviour sanitizers and runs them (test-turbo-codec, every level).
# $1 is the virtual environment.
set -eu
bin=$1/bin
tree=$("$bin/python" -m turbokv_eval.fork apply)
"$bin/cmake" -S "$tree" -B build/sanitize -G Ninja -DCMAKE_MAKE_PROGRAM="$(pwd)/$bin/ninja" \
    -DCMAKE_BUILD_TYPE=RelWithDebInfo -DLLAMA_SANITIZE_ADDRESS=ON -DLLAMA_SANITIZE_UNDEFINED=ON \
    -DGGML_SANITIZE_ADDRESS=ON -DGGML_SANITIZE_UNDEFINED=ON -DGGML_NATIVE=ON -DGGML_OPENMP=OFF \
    -DLLAMA_BUILD_NUMBER=0 -DLLAMA_BUILD_UI=OFF -DLLAMA_OPENSSL=OFF -DLLAMA_BUILD_TESTS=ON >&2
"$bin/cmake" --build build/sanitize --target test-turbo-codec >&2
# Without halt_on_error the undefined-behaviour sanitizer only prints, and the test would pass.
UBSAN_OPTIONS=halt_on_error=1:print_stacktrace=1 ASAN_OPTIONS=detect_leaks=1 \
    exec "$bin/ctest" --test-dir build/sanitize -R '^test-turbo-codec' --no-tests=error --output-on-failure
