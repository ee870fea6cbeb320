#pragma once

// What the CUDA backend calls. Hooks in ggml-cuda.cu; nothing else of upstream's backend knows turbo types.

#include "ggml-turbo.h"

struct ggml_backend_cuda_context;

// True for the rotation and for every operation that reads or writes a turbo type: upstream's code must not see it.
static inline bool ggml_cuda_turbo_owns(const ggml_tensor * op) {
    if (op->op == GGML_OP_TURBO_ROTATE) {
        return true;
    }
    if (op->op == GGML_OP_NONE || op->op == GGML_OP_VIEW || op->op == GGML_OP_RESHAPE || op->op == GGML_OP_PERMUTE || op->op == GGML_OP_TRANSPOSE) {
        return false; // no data is touched
    }
    bool res = ggml_is_turbo(op->type);
    for (int i = 0; i < GGML_MAX_SRC; ++i) {
        res = res || (op->src[i] && ggml_is_turbo(op->src[i]->type));
    }
    return res;
}

#if defined(GGML_USE_HIP) || defined(GGML_USE_MUSA)
// The kernels assume warps of 32 lanes and have been compiled for NVIDIA only: the scheduler gives these operations to the CPU.
static inline bool ggml_cuda_turbo_supports(const ggml_tensor *) { return false; }
static inline bool ggml_cuda_turbo_compute(ggml_backend_cuda_context &, ggml_tensor *) { return false; }
#else
// Of an operation that ggml_cuda_turbo_owns(): whether there is a kernel for exactly this one.
bool ggml_cuda_turbo_supports(const ggml_tensor * op);

// Launches it on the context's stream. False: not ours, upstream goes on.
bool ggml_cuda_turbo_compute(ggml_backend_cuda_context & ctx, ggml_tensor * dst);
#endif
