#pragma once

// Kernel table of one instruction-set level. Each level is one translation unit with its own compiler flags
// (turbo.cmake), everything in it is local, and it is reached through this table only: no level can leak into another.

#include "ggml-turbo.h"

#include <cstddef>
#include <cstdint>

struct turbo_type_kernels {
    // k floats, a multiple of the block; bytes identical at every level
    void (*encode)(const float * x, void * y, int64_t k);
    void (*decode)(const void * x, float * y, int64_t k);
    // dot product of k decoded values with k floats
    float (*dot)(const void * x, const float * y, int64_t k);
};

struct turbo_kernels {
    const char * name;
    turbo_type_kernels types[GGML_TURBO_TYPE_END - GGML_TURBO_TYPE_FIRST];
    // as ggml_turbo_rotate_row_ref
    void (*rotate)(const float * x, const float * diag, const float * shift, float * y, int64_t d, bool inverse);
};

const turbo_kernels * turbo_kernels_scalar();
#if defined(GGML_TURBO_X86)
const turbo_kernels * turbo_kernels_avx2();
#endif

// The level in use: the best one that this processor has, or the one that GGML_TURBO_ISA names.
const turbo_kernels * turbo_kernels_get();

static inline const turbo_type_kernels & turbo_kernels_of(const turbo_kernels * kernels, ggml_type type) {
    return kernels->types[type - GGML_TURBO_TYPE_FIRST];
}
