#pragma once

// What the CPU backend calls. Hooks in ggml-cpu.c and ops.cpp; nothing else of upstream knows turbo types.

#include "ggml-turbo.h"

struct ggml_compute_params;

#ifdef __cplusplus
extern "C" {
#endif

#define X(ID, ENUM, NAME, BITS, BLOCK) \
    void quantize_row_##NAME(const float * GGML_RESTRICT x, void * GGML_RESTRICT y, int64_t k); \
    void ggml_vec_dot_##NAME##_f32(int n, float * GGML_RESTRICT s, size_t bs, const void * GGML_RESTRICT vx, size_t bx, const void * GGML_RESTRICT vy, size_t by, int nrc);
GGML_TURBO_TYPES(X)
#undef X

void ggml_compute_forward_turbo_rotate(const struct ggml_compute_params * params, struct ggml_tensor * dst);

// Flash attention where K or V is of a turbo type. False: not ours, upstream goes on.
bool   ggml_turbo_compute_forward_flash_attn(const struct ggml_compute_params * params, struct ggml_tensor * dst);
// bytes of work buffer that it needs for all threads together, 0 when the node is not ours
size_t ggml_turbo_flash_attn_work_size(const struct ggml_tensor * node, int n_tasks);

// Copies and casts with a turbo type on one side. False: not ours, upstream goes on.
bool ggml_turbo_compute_forward_dup(const struct ggml_compute_params * params, struct ggml_tensor * dst);

#ifdef __cplusplus
}
#endif

// one row of ggml-cpu.c's type_traits_cpu
#define GGML_TURBO_X_TRAITS_CPU(ID, ENUM, NAME, BITS, BLOCK) \
    [GGML_TYPE_##ENUM] = {                              \
        .from_float   = (ggml_from_float_t) quantize_row_##NAME, \
        .vec_dot      = ggml_vec_dot_##NAME##_f32,      \
        .vec_dot_type = GGML_TYPE_F32,                  \
        .nrows        = 1,                              \
    },
