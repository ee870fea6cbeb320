#!/bin/sh
# Writes the generated codebooks, or with --check compares them. Usage: codebook.sh VENV [--check]
set -eu
exec "$1/bin/python" -m codebook_gen emit \
    --header llama.cpp/overlay/ggml/include/ggml-turbo-codebook.h --json turbokv_eval/reference/codebook.json ${2:+"$2"}
