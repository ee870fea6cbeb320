// Scalar level: the reference itself. What every other level is compared with.

#include "turbo-kernels.h"

namespace {

template <ggml_type TYPE>
void encode(const float * x, void * y, int64_t k) {
    ggml_turbo_quantize_row_ref(TYPE, x, y, k);
}

template <ggml_type TYPE>
void decode(const void * x, float * y, int64_t k) {
    ggml_turbo_dequantize_row_ref(TYPE, x, y, k);
}

template <ggml_type TYPE, int BITS, int BLOCK>
float dot(const void * x, const float * y, int64_t k) {
    float sum = 0.0f;
    for (int64_t i = 0; i < k/BLOCK; ++i) {
        float v[BLOCK];
        ggml_turbo_dequantize_row_ref(TYPE, (const char *) x + i*GGML_TURBO_BLOCK_SIZE(BITS, BLOCK), v, BLOCK);
        for (int j = 0; j < BLOCK; ++j) {
            sum += v[j]*y[i*BLOCK + j];
        }
    }
    return sum;
}

} // namespace

const turbo_kernels * turbo_kernels_scalar() {
    static const turbo_kernels kernels = {
        /*.name   =*/ "scalar",
        /*.types  =*/ {
#define X(ID, ENUM, NAME, BITS, BLOCK) { encode<GGML_TYPE_##ENUM>, decode<GGML_TYPE_##ENUM>, dot<GGML_TYPE_##ENUM, BITS, BLOCK> },
            GGML_TURBO_TYPES(X)
#undef X
        },
        /*.rotate =*/ ggml_turbo_rotate_row_ref,
    };
    return &kernels;
}
