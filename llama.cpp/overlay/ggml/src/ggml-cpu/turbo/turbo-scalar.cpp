// Scalar level: the reference itself. What every other level is compared with.

#include "turbo-kernels.h"

#include <cmath>

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

// attention: plain loops over 16 lanes

struct f32x16 { float v[16]; };

#define TURBO_LANES(EXPR) f32x16 r; for (int l = 0; l < 16; ++l) { r.v[l] = (EXPR); } return r;
inline f32x16 ld(const float * p)                   { TURBO_LANES(p[l]) }
inline void   st(float * p, f32x16 a)               { for (int l = 0; l < 16; ++l) { p[l] = a.v[l]; } }
inline f32x16 splat(float x)                        { TURBO_LANES(x) }
inline f32x16 add(f32x16 a, f32x16 b)               { TURBO_LANES(a.v[l] + b.v[l]) }
inline f32x16 sub(f32x16 a, f32x16 b)               { TURBO_LANES(a.v[l] - b.v[l]) }
inline f32x16 mul(f32x16 a, f32x16 b)               { TURBO_LANES(a.v[l] * b.v[l]) }
inline f32x16 div(f32x16 a, f32x16 b)               { TURBO_LANES(a.v[l] / b.v[l]) }
inline f32x16 fmadd(f32x16 a, f32x16 b, f32x16 c)   { TURBO_LANES(a.v[l]*b.v[l] + c.v[l]) }
inline f32x16 max(f32x16 a, f32x16 b)               { TURBO_LANES(a.v[l] > b.v[l] ? a.v[l] : b.v[l]) }
inline f32x16 min(f32x16 a, f32x16 b)               { TURBO_LANES(a.v[l] < b.v[l] ? a.v[l] : b.v[l]) }
inline f32x16 round_even(f32x16 a)                  { TURBO_LANES(nearbyintf(a.v[l])) }
inline f32x16 scale_exp2(f32x16 p, f32x16 n)        { TURBO_LANES(n.v[l] < -126.0f ? 0.0f : ldexpf(p.v[l], n.v[l] == n.v[l] ? (int) n.v[l] : 0)) }
inline f32x16 masked_add(f32x16 s, f32x16 m)        { TURBO_LANES(m.v[l] == -INFINITY ? -INFINITY : s.v[l] + m.v[l]) }
#undef TURBO_LANES

constexpr int ROWS = 1;
constexpr int COLS = 1;

#include "turbo-fattn-lanes.inc"

} // namespace

const turbo_kernels * turbo_kernels_scalar() {
    static const turbo_kernels kernels = {
        /*.name   =*/ "scalar",
        /*.types  =*/ {
#define X(ID, ENUM, NAME, BITS, BLOCK) { encode<GGML_TYPE_##ENUM>, decode<GGML_TYPE_##ENUM>, dot<GGML_TYPE_##ENUM, BITS, BLOCK>, nullptr, nullptr },
            GGML_TURBO_TYPES(X)
#undef X
        },
        /*.rotate =*/ ggml_turbo_rotate_row_ref,
        /*.fattn  =*/ { qk, softmax, pv, nullptr, nullptr, nullptr },
        /*.fattn_rows =*/ {},
    };
    return &kernels;
}
