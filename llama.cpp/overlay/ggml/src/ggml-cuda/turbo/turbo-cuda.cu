// Entry points of the turbo kernels: which operations there are kernels for, and the dispatch.

#include "turbo-cuda.h"
#include "turbo-kernels.cuh"

static bool is_float(ggml_type type) {
    return type == GGML_TYPE_F32 || type == GGML_TYPE_F16 || type == GGML_TYPE_BF16;
}

static bool supports_cpy(const ggml_tensor * src, const ggml_tensor * dst) {
    if (ggml_nelements(src) != ggml_nelements(dst)) {
        return false;
    }
    if (src->type == dst->type) {
        return true;
    }
    return (ggml_is_turbo(src->type) && is_float(dst->type)) || (ggml_is_turbo(dst->type) && is_float(src->type));
}

bool ggml_cuda_turbo_supports(const ggml_tensor * op) {
    const ggml_tensor * src0 = op->src[0];
    const ggml_tensor * src1 = op->src[1];

    switch (op->op) {
        case GGML_OP_TURBO_ROTATE: {
            const int64_t split = ggml_get_op_params_i32(op, 1);
            return src0->type == GGML_TYPE_F32 && src0->nb[0] == sizeof(float) && ggml_is_contiguous(op) &&
                (split == 0 || ggml_cuda_turbo_rotate_supports(split)) && ggml_cuda_turbo_rotate_supports(op->ne[0] - split);
        }
        case GGML_OP_SET_ROWS:
            return ggml_is_turbo(op->type) && (src0->type == GGML_TYPE_F32 || src0->type == GGML_TYPE_F16) && ggml_is_contiguous_rows(src0) &&
                (src1->type == GGML_TYPE_I64 || src1->type == GGML_TYPE_I32);
        case GGML_OP_GET_ROWS:
            return ggml_is_turbo(src0->type) && op->type == GGML_TYPE_F32 && op->nb[0] == sizeof(float) && src1->type == GGML_TYPE_I32;
        case GGML_OP_CPY:
            return supports_cpy(src0, src1);
        case GGML_OP_DUP:
        case GGML_OP_CONT:
            return supports_cpy(src0, op);
        case GGML_OP_FLASH_ATTN_EXT:
            return ggml_cuda_turbo_fattn_supports(op);
        default:
            return false;
    }
}

static void cpy(ggml_backend_cuda_context & ctx, const ggml_tensor * src, ggml_tensor * dst) {
    if (src->type == dst->type) {
        ggml_cuda_turbo_cpy_same(ctx, src, dst);
    } else if (ggml_is_turbo(dst->type)) {
        ggml_cuda_turbo_cpy_encode(ctx, src, dst);
    } else {
        ggml_cuda_turbo_cpy_decode(ctx, src, dst);
    }
}

bool ggml_cuda_turbo_compute(ggml_backend_cuda_context & ctx, ggml_tensor * dst) {
    if (!ggml_cuda_turbo_owns(dst)) {
        return false;
    }
    switch (dst->op) {
        case GGML_OP_TURBO_ROTATE:   ggml_cuda_turbo_rotate  (ctx, dst); break;
        case GGML_OP_SET_ROWS:       ggml_cuda_turbo_set_rows(ctx, dst); break;
        case GGML_OP_GET_ROWS:       ggml_cuda_turbo_get_rows(ctx, dst); break;
        case GGML_OP_CPY:            cpy(ctx, dst->src[0], dst->src[1]); break;
        case GGML_OP_DUP:
        case GGML_OP_CONT:           cpy(ctx, dst->src[0], dst);         break;
        case GGML_OP_FLASH_ATTN_EXT: ggml_cuda_turbo_fattn   (ctx, dst); break;
        default:                     return false;
    }
    CUDA_CHECK(cudaGetLastError());
    return true;
}
