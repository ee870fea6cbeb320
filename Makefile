# Every target only calls a script in ci/ or a Python module; what they do can be read, and typed, there.
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
MAKEFLAGS += --no-print-directory
VENV   := .venv
PY     := $(VENV)/bin/python
STAMP  := $(VENV)/.stamp
EVAL   := $(VENV)/bin/turbokv-eval
# Options for compare, bench and build: make compare ARGS="-m MODEL.gguf -f TEXT"
ARGS   ?=
# cpu or cuda: make build BACKEND=cuda ARGS="--cuda-arch 90"; make compare BACKEND=cuda
BACKEND ?= cpu

.PHONY: help venv build compare test matrix check neon sanitize bench bench-upstream cuda-check report-check fork-apply fork-export fork-check codebook clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

$(STAMP): pyproject.toml ci/venv.sh
	@sh ci/venv.sh $(VENV)

venv: $(STAMP) ## Create .venv with this package and the development tools

build: $(STAMP) ## Materialise the fork and build its programs into build/cpu/bin (BACKEND=cuda: build/cuda/bin)
	@$(EVAL) build --backend $(BACKEND) $(ARGS)

compare: $(STAMP) ## Build, then compare every cache type on a real model (ARGS="-m MODEL.gguf -f TEXT")
	@bin=$$($(EVAL) build --backend $(BACKEND)) && $(EVAL) compare --bin "$$bin" $(ARGS)

test: $(STAMP) ## Everything CI runs: check, fork, codebooks, build, ctest, live tests
	@sh ci/test.sh $(VENV)

matrix: $(STAMP) ## Every head dim and kind of attention x cache type, on tiny models, and planted faults
	@$(EVAL) build --tests
	@sh ci/matrix.sh $(VENV) $(ARGS)

check: $(STAMP) ## Style, types, unit tests and their coverage; no compiler, under two minutes
	@sh ci/check.sh $(VENV)

neon: $(STAMP) ## The kernels of 64-bit Arm, cross-built and run under qemu-user
	@sh ci/neon.sh $(VENV)

sanitize: $(STAMP) ## The codec tests under the address and undefined-behaviour sanitizers
	@sh ci/sanitize.sh $(VENV)

cuda-check: $(STAMP) ## The CUDA kernels without a GPU: nvcc figures, and the emulator (ARGS=--update writes the table)
	@sh ci/cuda-check.sh $(VENV) $(ARGS)

report-check: $(STAMP) ## The report page in a headless browser: accessibility, phone and desktop, light and dark
	@sh ci/report-check.sh $(ARGS)

bench: $(STAMP) ## Speed: kernels, cache types at depth in one process, llama-bench rows (ARGS go to turbokv-eval bench)
	@sh ci/bench.sh $(VENV) $(ARGS)

bench-upstream: $(STAMP) ## The types upstream has, against a build of upstream alone: ratios (ROUNDS=15 MODEL= DEPTH= ARGS=--instructions)
	@$(EVAL) build >/dev/null
	@$(PY) ci/upstream_bench.py $(ROUNDS) $(ARGS)

fork-apply: $(STAMP) ## Materialise upstream + patches + overlay in build/llama.cpp
	@$(PY) -m turbokv_eval.fork apply $(ARGS)

fork-export: $(STAMP) ## Turn edits in build/llama.cpp into patches and overlay files
	@$(PY) -m turbokv_eval.fork export $(ARGS)

fork-check: $(STAMP) ## Check the series, and that apply then export gives no difference
	@$(PY) -m turbokv_eval.fork check

codebook: $(STAMP) ## Regenerate the codebook header and JSON
	@sh ci/codebook.sh $(VENV)

clean: ## Delete what was built; keep the fork's tree (it may hold edits), .venv and the download
	@sh ci/clean.sh
