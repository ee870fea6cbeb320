#pragma once

#include "ggml-backend.h"
#include "ggml-turbo.h"

// The turbo kernels of the CPU backend by instruction-set level, for tests and benchmarks.

#ifdef __cplusplus
extern "C" {
#endif

struct ggml_turbo_cpu_codec {
    const char * level; // "scalar", "avx2", "avx512", "neon", "dotprod"
    void  (*encode)(const float * x, void * y, int64_t k);
    void  (*decode)(const void * x, float * y, int64_t k);
    float (*dot)(const void * x, const float * y, int64_t k);
    void  (*rotate)(const float * x, const float * diag, const float * shift, float * y, int64_t d, bool inverse);
};

// The level in use: the best that this processor has, or the one that the environment variable GGML_TURBO_ISA names.
GGML_BACKEND_API const char * ggml_turbo_cpu_level(void);

// Writes the codecs of a turbo type for every level that this processor can run, best first, and returns their number.
// codecs may be NULL to count.
GGML_BACKEND_API int ggml_turbo_cpu_codecs(enum ggml_type type, struct ggml_turbo_cpu_codec * codecs, int n_max);

#ifdef __cplusplus
}
#endif
