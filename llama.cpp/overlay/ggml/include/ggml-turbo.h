#pragma once

#include "ggml.h"

// Public API of the turbo cache types: what a type is, which one a head dimension gets, the reference codec and rotation,
// and the graph operation that rotates. Format and formulas: docs/FORMAT.md.

#ifdef __cplusplus
extern "C" {
#endif

// bits a value, 0 when the type is no turbo type
GGML_API int  ggml_turbo_bits(enum ggml_type type);

// Normalised mean squared error of the codec on rotated vectors, 0 when the type is no turbo type. The stored scale is the least-squares
// one, so a decoded vector is shorter than its source by the factor sqrt(1 - nmse) on average.
GGML_API float ggml_turbo_nmse(enum ggml_type type);

static inline bool ggml_is_turbo(enum ggml_type type) {
    return type >= GGML_TURBO_TYPE_FIRST && type < GGML_TURBO_TYPE_END;
}

// the family (GGML_TYPE_TURBO2/3/4) that a user names with `name`, GGML_TYPE_COUNT when none
GGML_API enum ggml_type ggml_turbo_family_from_name(const char * name);

// The type that stores heads of n_embd_head values: the family's member with the largest block that divides n_embd_head.
// Returns `type` itself when it is no turbo type, GGML_TYPE_COUNT when no block or no rotation fits.
GGML_API enum ggml_type ggml_turbo_resolve(enum ggml_type type, int64_t n_embd_head);

// Reference codec, scalar. x: k floats, y: k/BLOCK blocks; k must be a multiple of the block.
GGML_API void   ggml_turbo_quantize_row_ref  (enum ggml_type type, const float * x, void * y, int64_t k);
GGML_API void   ggml_turbo_dequantize_row_ref(enum ggml_type type, const void * x, float * y, int64_t k);
GGML_API size_t ggml_turbo_quantize_chunk    (enum ggml_type type, const float * x, void * y, int64_t nrows, int64_t n_per_row);

// false when a block's scale is NaN or infinite; prints which
GGML_API bool   ggml_turbo_validate_row_data (enum ggml_type type, const void * data, size_t nbytes);

// Random signs of a layer, d values of +1 or -1 (FORMAT.md section 5).
GGML_API void   ggml_turbo_signs(uint32_t layer, int64_t d, float * signs);

// The order m of the Hadamard factor in d = m * 2^k, 0 when d has no rotation.
GGML_API int    ggml_turbo_hadamard_order(int64_t d);

// The symmetric +-1 matrix H_m, m*m floats, row-major; NULL when m is none of 1, 12, 20, 28, 36.
GGML_API const float * ggml_turbo_hadamard_matrix(int m);

// One vector, out of place (y may be x). diag and shift have d values, or are NULL for ones and zeros.
//   forward: y = H_d (diag * (x - shift)) / sqrt(d)
//   inverse: y = diag * (H_d x / sqrt(d)) + shift
// forward(diag, shift) is undone by inverse(1/diag, shift).
GGML_API void   ggml_turbo_rotate_row_ref(const float * x, const float * diag, const float * shift, float * y, int64_t d, bool inverse);

// Graph operation: rotates every head vector of x.
//   x     F32 [d, n_head, n_tokens, n_stream], rows contiguous
//   diag  F32 [d, n_map] or NULL, shift F32 [d, n_map] or NULL: head h uses row h / (n_head/n_map)
//   split 0: the whole row is one vector; else [0, split) and [split, d) are rotated apart (MLA: latent and rotary part)
// The result is F32, contiguous, of x's shape.
GGML_API struct ggml_tensor * ggml_turbo_rotate(
        struct ggml_context * ctx,
        struct ggml_tensor  * x,
        struct ggml_tensor  * diag,
        struct ggml_tensor  * shift,
        int64_t               split,
        bool                  inverse);

#ifdef __cplusplus
}
#endif
