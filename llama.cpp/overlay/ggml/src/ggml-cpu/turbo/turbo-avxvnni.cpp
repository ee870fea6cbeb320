// AVX-VNNI level (Alder Lake and later without AVX-512, Zen 5): AVX2's, with vpdpwssd for pairs of products of integers. That is twice what f32 does,
// so prompts work on integers too; with AVX2 alone they are no faster than in floats, where each product takes a multiplication and an addition.

#include "turbo-kernels.h"

#include <cpuid.h>
#include <immintrin.h>

#include <algorithm>
#include <cmath>
#include <cstring>

namespace {

bool has_avxvnni() {
    unsigned eax, ebx, ecx, edx;
    return __get_cpuid_count(7, 1, &eax, &ebx, &ecx, &edx) && (eax & 1u << 4) != 0;
}

#include "turbo-avx2-lanes.inc"

// As an instruction of its own: with the intrinsic GCC 12 copies and spills the accumulators.
inline __attribute__((always_inline)) void madd_pairs(__m256i & c, __m256i a, __m256i b) {
    __asm__("%{vex%} vpdpwssd %2, %1, %0" : "+x"(c) : "x"(a), "x"(b));
}

#include "turbo-fattn-rows.inc"
#include "turbo-avx2-rows.inc"

// attention on tiles of integer levels

// the level at j of each half: the two vectors put side by side in the order of the codes
inline void store_ordered(int16_t * y, int64_t upper, __m256i lo, __m256i hi, bool both) {
    _mm256_storeu_si256((__m256i *) y, _mm256_permute2x128_si256(lo, hi, 0x20));
    if (both) {
        _mm256_storeu_si256((__m256i *) (y + upper), _mm256_permute2x128_si256(lo, hi, 0x31));
    }
}

// 32 codes of a block from code j on, 16 in each half of the vector; at the end of a block the upper half may be none of them
template <int BITS, int BLOCK>
inline __m256i load_codes_32(const spread_bytes<BITS> & spread, const uint8_t * block, int j) {
    const int     start = load_start<BITS>(BLOCK, j);
    const __m256i index = _mm256_add_epi8(spread.index(2 + BITS*j/8 - start), _mm256_setr_m128i(_mm_setzero_si128(), _mm_set1_epi8(2*BITS)));
    return spread(_mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *) (block + start))), index);
}

template <int BITS, int BLOCK>
void levels(const void * x, const int16_t * table, int16_t * y, int64_t k) {
    const spread_bytes<BITS> spread;
    const byte_levels<BITS>  look_up(table);
    const uint8_t * b = (const uint8_t *) x;
    for (int64_t i = 0; i < k/BLOCK; ++i, b += GGML_TURBO_BLOCK_SIZE(BITS, BLOCK), y += BLOCK) {
        TURBO_UNROLL
        for (int j = 0; j < BLOCK; j += 32) {
            __m256i lo, hi;
            look_up(load_codes_32<BITS, BLOCK>(spread, b, j), lo, hi);
            store_ordered(y + j, 16, lo, hi, j + 32 <= BLOCK);
        }
    }
}

template <int BITS, int BLOCK>
void levels_pair(const void * x0, const void * x1, const int16_t * table, int16_t * y, int64_t k) {
    const spread_bytes<BITS> spread;
    const byte_levels<BITS>  look_up(table);
    const uint8_t * b0 = (const uint8_t *) x0;
    const uint8_t * b1 = (const uint8_t *) x1;
    for (int64_t i = 0; i < k/BLOCK; ++i, y += 2*BLOCK) {
        TURBO_UNROLL
        for (int j = 0; j < BLOCK; j += 32) {
            const __m256i c0 = load_codes_32<BITS, BLOCK>(spread, b0, j);
            const __m256i c1 = load_codes_32<BITS, BLOCK>(spread, b1, j);
            __m256i lo, hi;
            look_up(_mm256_unpacklo_epi8(c0, c1), lo, hi);
            store_ordered(y + 2*j, 32, lo, hi, j + 32 <= BLOCK);
            look_up(_mm256_unpackhi_epi8(c0, c1), lo, hi);
            store_ordered(y + 2*j + 16, 32, lo, hi, j + 32 <= BLOCK);
        }
        b0 += GGML_TURBO_BLOCK_SIZE(BITS, BLOCK);
        b1 += GGML_TURBO_BLOCK_SIZE(BITS, BLOCK);
    }
}

constexpr int INT_ROWS = 4; // with 3 vectors of 8 lanes 12 accumulators of 16 registers

// c[r][j] = sum over n pairs of a[r*ar + i*an] and b[i*ldb + 16*j]
template <int NV>
inline void gemm_pairs(__m256i (&c)[INT_ROWS][NV], const int16_t * a, int64_t ar, int64_t an, const int16_t * b, int ldb, int n) {
    TURBO_UNROLL
    for (int r = 0; r < INT_ROWS; ++r) {
        TURBO_UNROLL
        for (int j = 0; j < NV; ++j) {
            c[r][j] = _mm256_setzero_si256();
        }
    }
    for (int i = 0; i < n; ++i, a += an, b += ldb) {
        __m256i bv[NV];
        TURBO_UNROLL
        for (int j = 0; j < NV; ++j) {
            bv[j] = _mm256_loadu_si256((const __m256i *) (b + 16*j));
        }
        TURBO_UNROLL
        for (int r = 0; r < INT_ROWS; ++r) {
            int32_t pair;
            memcpy(&pair, a + r*ar, sizeof(pair));
            const __m256i av = _mm256_set1_epi32(pair);
            TURBO_UNROLL
            for (int j = 0; j < NV; ++j) {
                madd_pairs(c[r][j], bv[j], av);
            }
        }
    }
}

// NV vectors of 8 lanes of L
template <int NV>
void qk_i16_lanes(int L, const int16_t * q, const float * q_scale, const int16_t * k, const float * k_scale, int dk, int block, int n_kv, float * s) {
    const int n_block = dk/block;
    for (int i = 0; i < n_kv; i += INT_ROWS) {
        for (int b = 0; b < n_block; ++b) {
            __m256i c[INT_ROWS][NV];
            gemm_pairs<NV>(c, k + (int64_t) i*dk + b*block, dk, 2, q + (int64_t) b*block*L, 2*L, block/2);
            TURBO_UNROLL
            for (int r = 0; r < INT_ROWS; ++r) {
                const __m256 ks = _mm256_set1_ps(k_scale[(i + r)*n_block + b]);
                TURBO_UNROLL
                for (int j = 0; j < NV; ++j) {
                    const __m256 x  = _mm256_mul_ps(_mm256_cvtepi32_ps(c[r][j]), ks);
                    const __m256 qs = _mm256_loadu_ps(q_scale + b*L + 8*j);
                    float * ps = s + (i + r)*L + 8*j;
                    _mm256_storeu_ps(ps, b == 0 ? _mm256_mul_ps(x, qs) : _mm256_fmadd_ps(x, qs, _mm256_loadu_ps(ps)));
                }
            }
        }
    }
}

void qk_i16(int nq, const int16_t * q, const float * q_scale, const int16_t * k, const float * k_scale, int dk, int block, int n_kv, float * s) {
    const int L = 16*nq;
    if (nq == 3) {
        qk_i16_lanes<3>(L, q,      q_scale,      k, k_scale, dk, block, n_kv, s);
        qk_i16_lanes<3>(L, q + 48, q_scale + 24, k, k_scale, dk, block, n_kv, s + 24);
        return;
    }
    for (int l = 0; l < L; l += 16) {
        qk_i16_lanes<2>(L, q + 2*l, q_scale + l, k, k_scale, dk, block, n_kv, s + l);
    }
}

void weights_i16(int nq, const float * p, const float * v_scale, int stride, int n_kv, float sum_max, int16_t * w, float * beta) {
    const int L = 16*nq;
    for (int l = 0; l < L; l += 8) {
        // of weights that are all as good as zero nothing is left
        __m256 m   = _mm256_set1_ps(1e-30f);
        __m256 sum = _mm256_set1_ps(1e-30f);
        for (int i = 0; i < n_kv; ++i) {
            const __m256 x = _mm256_andnot_ps(_mm256_set1_ps(-0.0f), _mm256_mul_ps(_mm256_loadu_ps(p + i*L + l), _mm256_set1_ps(v_scale[i*stride])));
            m   = _mm256_max_ps(x, m);
            sum = _mm256_add_ps(sum, x);
        }
        const __m256 inv = _mm256_min_ps(_mm256_div_ps(_mm256_set1_ps(32767.0f), m), _mm256_div_ps(_mm256_set1_ps(sum_max), sum));
        _mm256_storeu_ps(beta + l, _mm256_div_ps(_mm256_set1_ps(1.0f), inv));
        for (int i = 0; i < n_kv; i += 2) {
            const __m256 x0 = _mm256_mul_ps(_mm256_loadu_ps(p + i*L + l),       _mm256_set1_ps(v_scale[i*stride]));
            const __m256 x1 = _mm256_mul_ps(_mm256_loadu_ps(p + (i + 1)*L + l), _mm256_set1_ps(v_scale[(i + 1)*stride]));
            const __m256i w0 = _mm256_cvtps_epi32(_mm256_mul_ps(x0, inv));
            const __m256i w1 = _mm256_slli_epi32(_mm256_cvtps_epi32(_mm256_mul_ps(x1, inv)), 16);
            _mm256_storeu_si256((__m256i *) (w + (int64_t) i*L + 2*l), _mm256_blend_epi16(w0, w1, 0xAA));
        }
    }
}

template <int NV>
void pv_i16_lanes(int L, const int16_t * w, const int16_t * v, int dv, int n, int n_kv, const float * alpha, const float * beta, float step, float * o) {
    __m256 f[NV], a[NV];
    TURBO_UNROLL
    for (int j = 0; j < NV; ++j) {
        f[j] = _mm256_mul_ps(_mm256_loadu_ps(beta + 8*j), _mm256_set1_ps(step));
        a[j] = _mm256_loadu_ps(alpha + 8*j);
    }
    for (int i = 0; i < n; i += INT_ROWS) {
        __m256i c[INT_ROWS][NV];
        gemm_pairs<NV>(c, v + 2*i, 2, 2*dv, w, 2*L, n_kv/2);
        TURBO_UNROLL
        for (int r = 0; r < INT_ROWS; ++r) {
            TURBO_UNROLL
            for (int j = 0; j < NV; ++j) {
                float * po = o + (int64_t) (i + r)*L + 8*j;
                _mm256_storeu_ps(po, _mm256_fmadd_ps(_mm256_cvtepi32_ps(c[r][j]), f[j], _mm256_mul_ps(_mm256_loadu_ps(po), a[j])));
            }
        }
    }
}

void pv_i16(int nq, const int16_t * w, const int16_t * v, int dv, int n, int n_kv, const float * alpha, const float * beta, float step, float * o) {
    const int L = 16*nq;
    if (nq == 3) {
        pv_i16_lanes<3>(L, w,      v, dv, n, n_kv, alpha,      beta,      step, o);
        pv_i16_lanes<3>(L, w + 48, v, dv, n, n_kv, alpha + 24, beta + 24, step, o + 24);
        return;
    }
    for (int l = 0; l < L; l += 16) {
        pv_i16_lanes<2>(L, w + 2*l, v, dv, n, n_kv, alpha + l, beta + l, step, o + l);
    }
}

} // namespace

const turbo_kernels * turbo_kernels_avxvnni() {
    if (!has_avxvnni()) {
        return nullptr;
    }
    static const turbo_kernels kernels = [] {
        turbo_kernels res = *turbo_kernels_avx2();
        res.name = "avxvnni";
#define X(ID, ENUM, NAME, BITS, BLOCK) { auto & t = res.types[ID - GGML_TURBO_TYPE_FIRST]; t.levels = levels<BITS, BLOCK>; t.levels_pair = levels_pair<BITS, BLOCK>; }
        GGML_TURBO_TYPES(X)
#undef X
        res.fattn = { qk, softmax, pv, qk_i16, weights_i16, pv_i16 };
        res.fattn_rows = { row_scores_any<row_kernels>, row_softmax, row_weights, row_values_any<row_kernels> };
        return res;
    }();
    return &kernels;
}
