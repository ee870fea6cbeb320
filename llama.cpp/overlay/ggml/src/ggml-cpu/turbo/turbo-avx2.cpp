// AVX2 + FMA level. Built without contraction: the lane sums of the encoder are the format's (FORMAT.md section 4), so each
// product is rounded before it is added. FMA is used where the result is a plain float (dot products), by intrinsic.

#include "turbo-kernels.h"

#include "ggml-turbo-tables.h"

#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstring>

namespace {

// lanes 0-7 in a, 8-15 in b, folded in the order of the format
inline float lane_fold(__m256 a, __m256 b) {
    const __m256 s8 = _mm256_add_ps(a, b);
    const __m128 s4 = _mm_add_ps(_mm256_castps256_ps128(s8), _mm256_extractf128_ps(s8, 1));
    const __m128 s2 = _mm_add_ps(s4, _mm_movehl_ps(s4, s4));
    const __m128 s1 = _mm_add_ss(s2, _mm_shuffle_ps(s2, s2, 1));
    return _mm_cvtss_f32(s1);
}

inline float fold(__m256 v) {
    return lane_fold(v, _mm256_setzero_ps());
}

inline uint32_t hmax_epi32(__m256i v) {
    __m128i m = _mm_max_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4E));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0xB1));
    return (uint32_t) _mm_cvtsi128_si32(m);
}

// the positive half of the levels: 8 entries, the tail repeated
template <int BITS, int BLOCK>
inline __m256 half_levels() {
    constexpr int H = 1 << (BITS - 1);
    alignas(32) float t[8];
    for (int i = 0; i < 8; ++i) {
        t[i] = codebook<BITS, BLOCK>::centroids[i % H];
    }
    return _mm256_load_ps(t);
}

template <int BITS, int BLOCK>
void encode_block(const float * x, uint8_t * y, __m256 levels) {
    constexpr int H = 1 << (BITS - 1);

    const __m256  abs_mask = _mm256_castsi256_ps(_mm256_set1_epi32(0x7FFFFFFF));
    const __m256i code_shift = _mm256_setr_epi32(0, BITS, 2*BITS, 3*BITS, 4*BITS, 5*BITS, 6*BITS, 7*BITS);

    // the bits of |x| order as integers, and NaN and infinity are the largest of them
    __m256i mi = _mm256_setzero_si256();
    for (int j = 0; j < BLOCK; j += 8) {
        mi = _mm256_max_epi32(mi, _mm256_castps_si256(_mm256_and_ps(_mm256_loadu_ps(x + j), abs_mask)));
    }
    const uint32_t m = hmax_epi32(mi);

    if (m >= 0x7F800000u || m < 0x2B800000u) { // not finite; below 2^-40
        memset(y, 0, GGML_TURBO_BLOCK_SIZE(BITS, BLOCK));
        y[1] = m >= 0x7F800000u ? 0x7E : 0x00;
        return;
    }

    int e = (int) (m >> 23) - 127;
    e = e < 126 ? e : 126;

    const uint32_t p_bits = (uint32_t) (127 - e) << 23;
    float ps;
    memcpy(&ps, &p_bits, sizeof(ps));
    const __m256 p = _mm256_set1_ps(ps);

    __m256 u[BLOCK/8];
    __m256 s0 = _mm256_setzero_ps();
    __m256 s1 = _mm256_setzero_ps();
    for (int j = 0; j < BLOCK/8; j += 2) {
        u[j]     = _mm256_mul_ps(_mm256_loadu_ps(x + 8*j),     p);
        u[j + 1] = _mm256_mul_ps(_mm256_loadu_ps(x + 8*j + 8), p);
        s0 = _mm256_add_ps(s0, _mm256_mul_ps(u[j],     u[j]));
        s1 = _mm256_add_ps(s1, _mm256_mul_ps(u[j + 1], u[j + 1]));
    }
    const float r = _mm_cvtss_f32(_mm_sqrt_ss(_mm_set_ss(lane_fold(s0, s1) / (float) BLOCK)));

    __m256 t[H - 1];
    for (int i = 0; i < H - 1; ++i) {
        t[i] = _mm256_set1_ps(codebook<BITS, BLOCK>::boundaries[i] * r);
    }

    __m256 num[2] = { _mm256_setzero_ps(), _mm256_setzero_ps() };
    __m256 den[2] = { _mm256_setzero_ps(), _mm256_setzero_ps() };
    for (int j = 0; j < BLOCK/8; ++j) {
        const __m256 a = _mm256_and_ps(u[j], abs_mask);
        __m256i i = _mm256_setzero_si256();
        for (int k = 0; k < H - 1; ++k) {
            i = _mm256_sub_epi32(i, _mm256_castps_si256(_mm256_cmp_ps(a, t[k], _CMP_GT_OQ)));
        }
        const __m256 c = _mm256_permutevar8x32_ps(levels, i);
        num[j & 1] = _mm256_add_ps(num[j & 1], _mm256_mul_ps(a, c));
        den[j & 1] = _mm256_add_ps(den[j & 1], _mm256_mul_ps(c, c));

        // H + i for u >= 0, else H - 1 - i: flip all bits below the sign bit
        const __m256i pos = _mm256_castps_si256(_mm256_cmp_ps(u[j], _mm256_setzero_ps(), _CMP_GE_OQ));
        const __m256i code = _mm256_blendv_epi8(
                _mm256_sub_epi32(_mm256_set1_epi32(H - 1), i), _mm256_add_epi32(_mm256_set1_epi32(H), i), pos);

        __m256i w = _mm256_sllv_epi32(code, code_shift);
        __m128i o = _mm_or_si128(_mm256_castsi256_si128(w), _mm256_extracti128_si256(w, 1));
        o = _mm_or_si128(o, _mm_shuffle_epi32(o, 0x4E));
        o = _mm_or_si128(o, _mm_shuffle_epi32(o, 0xB1));
        const uint32_t packed = (uint32_t) _mm_cvtsi128_si32(o);
        memcpy(y + 2 + BITS*j, &packed, BITS);
    }

    const float g = lane_fold(num[0], num[1]) / lane_fold(den[0], den[1]);
    const uint32_t q_bits = (uint32_t) (127 + e) << 23;
    float q;
    memcpy(&q, &q_bits, sizeof(q));
    float s = g * q;
    s = s < 65504.0f ? s : 65504.0f;

    const uint16_t d = (uint16_t) _cvtss_sh(s, _MM_FROUND_TO_NEAREST_INT);
    memcpy(y, &d, sizeof(d));
}

template <int BITS, int BLOCK>
void encode(const float * x, void * y, int64_t k) {
    const __m256 levels = half_levels<BITS, BLOCK>();
    for (int64_t i = 0; i < k/BLOCK; ++i) {
        encode_block<BITS, BLOCK>(x + i*BLOCK, (uint8_t *) y + i*GGML_TURBO_BLOCK_SIZE(BITS, BLOCK), levels);
    }
}

// the 8 codes that start at byte p, one a lane. Three-byte groups are read with the byte before them, which the block has.
template <int BITS>
inline __m256i load_codes(const uint8_t * p) {
    const __m256i mask = _mm256_set1_epi32((1 << BITS) - 1);
    uint32_t w = 0;
    if constexpr (BITS == 3) {
        memcpy(&w, p - 1, 4);
        return _mm256_and_si256(_mm256_srlv_epi32(_mm256_set1_epi32((int) w), _mm256_setr_epi32(8, 11, 14, 17, 20, 23, 26, 29)), mask);
    } else {
        memcpy(&w, p, BITS);
        return _mm256_and_si256(_mm256_srlv_epi32(_mm256_set1_epi32((int) w),
                _mm256_setr_epi32(0, BITS, 2*BITS, 3*BITS, 4*BITS, 5*BITS, 6*BITS, 7*BITS)), mask);
    }
}

// levels of the codes of one block, before the scale
template <int BITS, int BLOCK>
struct level_table {
    __m256 lo, hi;

    level_table() {
        constexpr int H = 1 << (BITS - 1);
        alignas(32) float t[16];
        for (int i = 0; i < 16; ++i) {
            const int k = i % (2*H);
            t[i] = k >= H ? codebook<BITS, BLOCK>::centroids[k - H] : -codebook<BITS, BLOCK>::centroids[H - 1 - k];
        }
        lo = _mm256_load_ps(t);
        hi = _mm256_load_ps(t + 8);
    }

    __m256 operator()(__m256i code) const {
        const __m256 a = _mm256_permutevar8x32_ps(lo, code);
        if constexpr (BITS < 4) {
            return a;
        } else {
            const __m256 b = _mm256_permutevar8x32_ps(hi, code);
            return _mm256_blendv_ps(a, b, _mm256_castsi256_ps(_mm256_slli_epi32(code, 28)));
        }
    }
};

inline float load_scale(const uint8_t * x) {
    uint16_t d;
    memcpy(&d, x, sizeof(d));
    return _cvtsh_ss(d);
}

template <int BITS, int BLOCK>
void decode(const void * x, float * y, int64_t k) {
    const level_table<BITS, BLOCK> levels;
    const uint8_t * b = (const uint8_t *) x;
    for (int64_t i = 0; i < k/BLOCK; ++i, b += GGML_TURBO_BLOCK_SIZE(BITS, BLOCK), y += BLOCK) {
        const __m256 d = _mm256_set1_ps(load_scale(b));
        for (int j = 0; j < BLOCK/8; ++j) {
            _mm256_storeu_ps(y + 8*j, _mm256_mul_ps(d, levels(load_codes<BITS>(b + 2 + BITS*j))));
        }
    }
}

template <int BITS, int BLOCK>
float dot(const void * x, const float * y, int64_t k) {
    const level_table<BITS, BLOCK> levels;
    const uint8_t * b = (const uint8_t *) x;
    __m256 sum = _mm256_setzero_ps();
    for (int64_t i = 0; i < k/BLOCK; ++i, b += GGML_TURBO_BLOCK_SIZE(BITS, BLOCK), y += BLOCK) {
        __m256 a0 = _mm256_setzero_ps();
        __m256 a1 = _mm256_setzero_ps();
        for (int j = 0; j < BLOCK/8; j += 2) {
            a0 = _mm256_fmadd_ps(levels(load_codes<BITS>(b + 2 + BITS*j)),        _mm256_loadu_ps(y + 8*j),     a0);
            a1 = _mm256_fmadd_ps(levels(load_codes<BITS>(b + 2 + BITS*(j + 1))),  _mm256_loadu_ps(y + 8*j + 8), a1);
        }
        sum = _mm256_fmadd_ps(_mm256_set1_ps(load_scale(b)), _mm256_add_ps(a0, a1), sum);
    }
    return fold(sum);
}

// rotation

// the three stages within 8 values
inline __m256 hadamard_8(__m256 v) {
    const __m256 odd1 = _mm256_castsi256_ps(_mm256_setr_epi32(0, INT32_MIN, 0, INT32_MIN, 0, INT32_MIN, 0, INT32_MIN));
    const __m256 odd2 = _mm256_castsi256_ps(_mm256_setr_epi32(0, 0, INT32_MIN, INT32_MIN, 0, 0, INT32_MIN, INT32_MIN));
    const __m256 odd4 = _mm256_castsi256_ps(_mm256_setr_epi32(0, 0, 0, 0, INT32_MIN, INT32_MIN, INT32_MIN, INT32_MIN));
    v = _mm256_add_ps(_mm256_permute_ps(v, 0xB1), _mm256_xor_ps(v, odd1));
    v = _mm256_add_ps(_mm256_permute_ps(v, 0x4E), _mm256_xor_ps(v, odd2));
    return _mm256_add_ps(_mm256_permute2f128_ps(v, v, 0x01), _mm256_xor_ps(v, odd4));
}

// P values in place, unnormalised; P a power of two >= 8, known at compile time so that it stays in registers
template <int P>
inline void hadamard(float * y) {
    __m256 v[P/8];
    for (int i = 0; i < P/8; ++i) {
        v[i] = hadamard_8(_mm256_loadu_ps(y + 8*i));
    }
    for (int len = 1; len < P/8; len *= 2) {
        for (int i = 0; i < P/8; i += 2*len) {
            for (int j = i; j < i + len; ++j) {
                const __m256 a = v[j], b = v[j + len];
                v[j]       = _mm256_add_ps(a, b);
                v[j + len] = _mm256_sub_ps(a, b);
            }
        }
    }
    for (int i = 0; i < P/8; ++i) {
        _mm256_storeu_ps(y + 8*i, v[i]);
    }
}

inline void hadamard_4(float * y) {
    const float a = y[0] + y[1], b = y[0] - y[1], c = y[2] + y[3], d = y[2] - y[3];
    y[0] = a + c;
    y[1] = b + d;
    y[2] = a - c;
    y[3] = b - d;
}

// one factor of two at stride n/2, then both halves
inline void hadamard_pow2(float * y, int64_t n) {
    switch (n) {
        case   4: hadamard_4  (y); return;
        case   8: hadamard< 8>(y); return;
        case  16: hadamard<16>(y); return;
        case  32: hadamard<32>(y); return;
        case  64: hadamard<64>(y); return;
        default: break;
    }
    const int64_t h = n/2;
    for (int64_t j = 0; j < h; j += 8) {
        const __m256 a = _mm256_loadu_ps(y + j), b = _mm256_loadu_ps(y + j + h);
        _mm256_storeu_ps(y + j,     _mm256_add_ps(a, b));
        _mm256_storeu_ps(y + j + h, _mm256_sub_ps(a, b));
    }
    hadamard_pow2(y,     h);
    hadamard_pow2(y + h, h);
}

constexpr int64_t ROTATE_MAX = 1024;

void rotate(const float * x, const float * diag, const float * shift, float * y, int64_t d, bool inverse) {
    const int m = ggml_turbo_hadamard_order(d);
    if (d % 8 != 0 || d > ROTATE_MAX || (m > 1 && d/m < 4)) {
        ggml_turbo_rotate_row_ref(x, diag, shift, y, d, inverse);
        return;
    }

    float tmp[ROTATE_MAX];
    float * a = m == 1 ? y : tmp;

    if (inverse || !diag) {
        memmove(a, x, d*sizeof(float));
    } else if (!shift) {
        for (int64_t j = 0; j < d; j += 8) {
            _mm256_storeu_ps(a + j, _mm256_mul_ps(_mm256_loadu_ps(x + j), _mm256_loadu_ps(diag + j)));
        }
    } else {
        for (int64_t j = 0; j < d; j += 8) {
            _mm256_storeu_ps(a + j, _mm256_mul_ps(_mm256_sub_ps(_mm256_loadu_ps(x + j), _mm256_loadu_ps(shift + j)), _mm256_loadu_ps(diag + j)));
        }
    }
    if (!inverse && !diag && shift) {
        for (int64_t j = 0; j < d; ++j) {
            a[j] -= shift[j];
        }
    }

    const int64_t p = d/m;
    for (int64_t i = 0; i < d; i += p) {
        hadamard_pow2(a + i, p);
    }

    if (m > 1) {
        const float * h = ggml_turbo_hadamard_matrix(m);
        for (int r = 0; r < m; ++r) {
            for (int64_t j = 0; j < p; j += 4) {
                __m128 s = _mm_setzero_ps();
                for (int c = 0; c < m; ++c) {
                    s = _mm_fmadd_ps(_mm_set1_ps(h[r*m + c]), _mm_loadu_ps(a + c*p + j), s);
                }
                _mm_storeu_ps(y + r*p + j, s);
            }
        }
    }

    const __m256 scale = _mm256_set1_ps(1.0f/sqrtf((float) d));
    for (int64_t j = 0; j < d; j += 8) {
        __m256 v = _mm256_mul_ps(_mm256_loadu_ps(y + j), scale);
        if (inverse && diag) {
            v = _mm256_mul_ps(v, _mm256_loadu_ps(diag + j));
        }
        if (inverse && shift) {
            v = _mm256_add_ps(v, _mm256_loadu_ps(shift + j));
        }
        _mm256_storeu_ps(y + j, v);
    }
}

// attention

#include "turbo-avx2-lanes.inc"

// c += a*b, pairs of products
inline void madd_pairs(__m256i & c, __m256i a, __m256i b) {
    c = _mm256_add_epi32(c, _mm256_madd_epi16(a, b));
}

#include "turbo-fattn-rows.inc"
#include "turbo-avx2-rows.inc"

} // namespace

const turbo_kernels * turbo_kernels_avx2() {
    static const turbo_kernels kernels = {
        /*.name   =*/ "avx2",
        /*.types  =*/ {
#define X(ID, ENUM, NAME, BITS, BLOCK) { encode<BITS, BLOCK>, decode<BITS, BLOCK>, dot<BITS, BLOCK>, nullptr, nullptr },
            GGML_TURBO_TYPES(X)
#undef X
        },
        /*.rotate =*/ rotate,
        /*.fattn  =*/ { qk, softmax, pv, nullptr, nullptr, nullptr },
        /*.fattn_rows =*/ { row_scores_any<row_kernels>, row_softmax, row_weights, row_values_any<row_kernels> },
    };
    return &kernels;
}
