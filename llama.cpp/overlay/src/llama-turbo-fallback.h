#pragma once

// Devices that lack kernels for a turbo cache: refused where they cannot store into one, named in the log where another device works for them.

#include "ggml-backend.h"

#include <functional>
#include <string>

struct llama_cparams;
struct llama_hparams;
struct llama_memory_context_i;

// Throws std::runtime_error, with the way out, when the device of a buffer type cannot store rows of a cache type: ggml would abort.
void llama_turbo_check_device(ggml_backend_buffer_type_t buft, ggml_type type, int64_t n_embd);

// Of a graph that the scheduler has split: how many operations on turbo caches run on the CPU while their cache is on another device, in one
// line with the way out. Empty when there are none.
std::string llama_turbo_fallback(ggml_backend_sched_t sched, ggml_cgraph * gf);

// Logs that line as a warning, for a context whose graph `reserve` makes the scheduler split. Does nothing, and calls nothing, where there is
// nothing to fall back from: without a cache, in training, when nothing is allocated, on the CPU alone.
void llama_turbo_log_fallback(ggml_backend_sched_t sched, const llama_memory_context_i * mctx, const llama_cparams & cparams, const llama_hparams & hparams,
        const std::function<ggml_cgraph * ()> & reserve);
