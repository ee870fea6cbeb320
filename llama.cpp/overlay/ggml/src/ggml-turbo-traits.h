#pragma once

// Internal: the reference codec by type, for the trait table of ggml.c.

#include "ggml-turbo.h"

#ifdef __cplusplus
extern "C" {
#endif

#define X(ID, ENUM, NAME, BITS, BLOCK) \
    GGML_API void quantize_row_##NAME##_ref(const float * GGML_RESTRICT x, void * GGML_RESTRICT y, int64_t k); \
    GGML_API void dequantize_row_##NAME(const void * GGML_RESTRICT x, float * GGML_RESTRICT y, int64_t k);
GGML_TURBO_TYPES(X)
#undef X

#ifdef __cplusplus
}
#endif

// one row of ggml.c's type_traits
#define GGML_TURBO_X_TRAITS(ID, ENUM, NAME, BITS, BLOCK) \
    [GGML_TYPE_##ENUM] = {                                                  \
        .type_name      = #NAME,                                            \
        .blck_size      = BLOCK,                                            \
        .type_size      = GGML_TURBO_BLOCK_SIZE(BITS, BLOCK),               \
        .is_quantized   = true,                                             \
        .to_float       = (ggml_to_float_t) dequantize_row_##NAME,          \
        .from_float_ref = (ggml_from_float_t) quantize_row_##NAME##_ref,    \
    },
