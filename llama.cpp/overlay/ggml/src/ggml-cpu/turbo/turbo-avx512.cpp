// AVX-512 level (F, BW, DQ, VL, VBMI, VNNI: Ice Lake, Zen 4 and later). Encoder, rotation: built without contraction, as FORMAT.md
// section 4 asks. Attention works on integers: codes are looked up as int16 levels, queries and weights are rounded to int16, and
// vpdpwssd forms 32 products an instruction, twice what f32 does.

#include "turbo-kernels.h"

#include "ggml-turbo-tables.h"

#include <immintrin.h>

#include <cmath>
#include <cstring>

namespace {

// codes

// The first BITS*N/8 bytes at p, N codes, zeros after them: a block is never read past its end.
template <int BITS, int N>
inline __m128i load_code_bytes(const uint8_t * p) {
    return _mm_maskz_loadu_epi8((__mmask16) ((1u << (BITS*N/8)) - 1), p);
}

// byte indices and shifts that put code j into the low bits of 16-bit lane j, from bytes that start at byte 16*(j % ROWS_) of the source
template <int BITS, int ROWS_>
struct spread16 {
    __m512i index, shift;

    explicit spread16(int first) {
        alignas(64) uint8_t  i[64];
        alignas(64) uint16_t s[32];
        for (int l = 0; l < 32; ++l) {
            const int bit = BITS*(first + l/ROWS_);
            i[2*l]     = (uint8_t) (16*(l % ROWS_) + bit/8);
            i[2*l + 1] = (uint8_t) (i[2*l] + 1);
            s[l] = (uint16_t) (bit % 8);
        }
        index = _mm512_load_si512(i);
        shift = _mm512_load_si512(s);
    }

    // the bits above a code are not cleared: the tables repeat
    __m512i operator()(__m512i bytes) const {
        return _mm512_srlv_epi16(_mm512_permutexvar_epi8(index, bytes), shift);
    }
};

template <int BITS>
inline __m512i repeat_table(const int16_t * table) {
    alignas(64) int16_t t[32];
    for (int i = 0; i < 32; ++i) {
        t[i] = table[i % (1 << BITS)];
    }
    return _mm512_load_si512(t);
}

template <int BITS, int BLOCK>
void levels(const void * x, const int16_t * table, int16_t * y, int64_t k) {
    const spread16<BITS, 1> spread(0);
    const __m512i t = repeat_table<BITS>(table);
    const uint8_t * b = (const uint8_t *) x;
    for (int64_t i = 0; i < k/BLOCK; ++i, b += GGML_TURBO_BLOCK_SIZE(BITS, BLOCK), y += BLOCK) {
        for (int j = 0; j + 32 <= BLOCK; j += 32) {
            const __m512i c = spread(_mm512_castsi128_si512(load_code_bytes<BITS, 32>(b + 2 + BITS*j/8)));
            _mm512_storeu_si512(y + j, _mm512_permutexvar_epi16(c, t));
        }
        if constexpr (BLOCK % 32 != 0) {
            constexpr int j = BLOCK - 16;
            const __m512i c = spread(_mm512_castsi128_si512(load_code_bytes<BITS, 16>(b + 2 + BITS*j/8)));
            _mm256_storeu_si256((__m256i *) (y + j), _mm512_castsi512_si256(_mm512_permutexvar_epi16(c, t)));
        }
    }
}

template <int BITS, int BLOCK>
void levels_pair(const void * x0, const void * x1, const int16_t * table, int16_t * y, int64_t k) {
    const spread16<BITS, 2> lo(0), hi(16);
    const __m512i t = repeat_table<BITS>(table);
    const uint8_t * b0 = (const uint8_t *) x0;
    const uint8_t * b1 = (const uint8_t *) x1;
    for (int64_t i = 0; i < k/BLOCK; ++i, y += 2*BLOCK) {
        for (int j = 0; j + 32 <= BLOCK; j += 32) {
            const __m512i v = _mm512_castsi256_si512(_mm256_inserti128_si256(_mm256_castsi128_si256(
                    load_code_bytes<BITS, 32>(b0 + 2 + BITS*j/8)), load_code_bytes<BITS, 32>(b1 + 2 + BITS*j/8), 1));
            _mm512_storeu_si512(y + 2*j,      _mm512_permutexvar_epi16(lo(v), t));
            _mm512_storeu_si512(y + 2*j + 32, _mm512_permutexvar_epi16(hi(v), t));
        }
        if constexpr (BLOCK % 32 != 0) {
            constexpr int j = BLOCK - 16;
            const __m512i v = _mm512_castsi256_si512(_mm256_inserti128_si256(_mm256_castsi128_si256(
                    load_code_bytes<BITS, 16>(b0 + 2 + BITS*j/8)), load_code_bytes<BITS, 16>(b1 + 2 + BITS*j/8), 1));
            _mm512_storeu_si512(y + 2*j, _mm512_permutexvar_epi16(lo(v), t));
        }
        b0 += GGML_TURBO_BLOCK_SIZE(BITS, BLOCK);
        b1 += GGML_TURBO_BLOCK_SIZE(BITS, BLOCK);
    }
}

// attention

typedef __m512 f32x16;

inline f32x16 ld(const float * p)                 { return _mm512_loadu_ps(p); }
inline void   st(float * p, f32x16 x)             { _mm512_storeu_ps(p, x); }
inline f32x16 splat(float x)                      { return _mm512_set1_ps(x); }
inline f32x16 add(f32x16 x, f32x16 y)             { return _mm512_add_ps(x, y); }
inline f32x16 sub(f32x16 x, f32x16 y)             { return _mm512_sub_ps(x, y); }
inline f32x16 mul(f32x16 x, f32x16 y)             { return _mm512_mul_ps(x, y); }
inline f32x16 div(f32x16 x, f32x16 y)             { return _mm512_div_ps(x, y); }
inline f32x16 fmadd(f32x16 x, f32x16 y, f32x16 z) { return _mm512_fmadd_ps(x, y, z); }
inline f32x16 max(f32x16 x, f32x16 y)             { return _mm512_max_ps(x, y); }
inline f32x16 min(f32x16 x, f32x16 y)             { return _mm512_min_ps(x, y); }
inline f32x16 round_even(f32x16 x)                { return _mm512_roundscale_ps(x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC); }
inline f32x16 scale_exp2(f32x16 p, f32x16 n)      { return _mm512_scalef_ps(p, n); }

inline f32x16 masked_add(f32x16 s, f32x16 m) {
    const __m512 inf = _mm512_set1_ps(-INFINITY);
    return _mm512_mask_mov_ps(_mm512_add_ps(s, m), _mm512_cmp_ps_mask(m, inf, _CMP_EQ_OQ), inf);
}

constexpr int ROWS = 8; // 24 accumulators of 32 registers
constexpr int COLS = 3;

#include "turbo-fattn-lanes.inc"
#include "turbo-fattn-rows.inc"

inline __m512i splat_pair(const int16_t * p) {
    int32_t x;
    memcpy(&x, p, sizeof(x));
    return _mm512_set1_epi32(x);
}

// c += a*b, pairs of products. As an instruction of its own: with the intrinsic GCC 12 copies and spills the accumulators.
inline __attribute__((always_inline)) void madd_pairs(__m512i & c, __m512i a, __m512i b) {
    __asm__("vpdpwssd %2, %1, %0" : "+v"(c) : "v"(a), "v"(b));
}

template <int NQ>
void qk_i16_nq(const int16_t * q, const float * q_scale, const int16_t * k, const float * k_scale, int dk, int block, int n_kv, float * s) {
    constexpr int L = 16*NQ;
    const int n_block = dk/block;
    for (int i = 0; i < n_kv; i += ROWS) {
        for (int b = 0; b < n_block; ++b) {
            __m512i c[ROWS][NQ];
            TURBO_UNROLL
            for (int r = 0; r < ROWS; ++r) {
                TURBO_UNROLL
                for (int j = 0; j < NQ; ++j) {
                    c[r][j] = _mm512_setzero_si512();
                }
            }
            const int16_t * pq = q + (int64_t) b*block*L;
            const int16_t * pk = k + (int64_t) i*dk + b*block;
            for (int d = 0; d < block; d += 2, pq += 2*L, pk += 2) {
                __m512i qv[NQ];
                TURBO_UNROLL
                for (int j = 0; j < NQ; ++j) {
                    qv[j] = _mm512_loadu_si512(pq + 32*j);
                }
                TURBO_UNROLL
                for (int r = 0; r < ROWS; ++r) {
                    const __m512i kv = splat_pair(pk + (int64_t) r*dk);
                    TURBO_UNROLL
                    for (int j = 0; j < NQ; ++j) {
                        madd_pairs(c[r][j], qv[j], kv);
                    }
                }
            }
            TURBO_UNROLL
            for (int r = 0; r < ROWS; ++r) {
                const __m512 ks = _mm512_set1_ps(k_scale[(i + r)*n_block + b]);
                TURBO_UNROLL
                for (int j = 0; j < NQ; ++j) {
                    const __m512 x = _mm512_mul_ps(_mm512_cvtepi32_ps(c[r][j]), ks);
                    const __m512 qs = ld(q_scale + b*L + 16*j);
                    float * ps = s + (i + r)*L + 16*j;
                    st(ps, b == 0 ? _mm512_mul_ps(x, qs) : _mm512_fmadd_ps(x, qs, ld(ps)));
                }
            }
        }
    }
}

void qk_i16(int nq, const int16_t * q, const float * q_scale, const int16_t * k, const float * k_scale, int dk, int block, int n_kv, float * s) {
    switch (nq) {
        case 1:  qk_i16_nq<1>(q, q_scale, k, k_scale, dk, block, n_kv, s); break;
        case 2:  qk_i16_nq<2>(q, q_scale, k, k_scale, dk, block, n_kv, s); break;
        default: qk_i16_nq<3>(q, q_scale, k, k_scale, dk, block, n_kv, s); break;
    }
}

void weights_i16(int nq, const float * p, const float * v_scale, int stride, int n_kv, float sum_max, int16_t * w, float * beta) {
    const int L = 16*nq;
    for (int j = 0; j < L; j += 16) {
        // of weights that are all as good as zero nothing is left
        __m512 m   = _mm512_set1_ps(1e-30f);
        __m512 sum = _mm512_set1_ps(1e-30f);
        for (int i = 0; i < n_kv; ++i) {
            const __m512 x = _mm512_abs_ps(_mm512_mul_ps(ld(p + i*L + j), _mm512_set1_ps(v_scale[i*stride])));
            m   = _mm512_max_ps(x, m);
            sum = _mm512_add_ps(sum, x);
        }
        const __m512 inv = _mm512_min_ps(_mm512_div_ps(_mm512_set1_ps(32767.0f), m), _mm512_div_ps(_mm512_set1_ps(sum_max), sum));
        st(beta + j, _mm512_div_ps(_mm512_set1_ps(1.0f), inv));
        for (int i = 0; i < n_kv; i += 2) {
            const __m512 w0 = _mm512_mul_ps(_mm512_mul_ps(ld(p + i*L + j),     _mm512_set1_ps(v_scale[i*stride])),       inv);
            const __m512 w1 = _mm512_mul_ps(_mm512_mul_ps(ld(p + i*L + L + j), _mm512_set1_ps(v_scale[(i + 1)*stride])), inv);
            _mm512_storeu_si512(w + i*L + 2*j, _mm512_mask_blend_epi16(0xAAAAAAAA, _mm512_cvtps_epi32(w0), _mm512_slli_epi32(_mm512_cvtps_epi32(w1), 16)));
        }
    }
}

template <int NQ>
void pv_i16_nq(const int16_t * w, const int16_t * v, int dv, int n, int n_kv, const float * alpha, const float * beta, float step, float * o) {
    constexpr int L = 16*NQ;
    __m512 a[NQ], g[NQ];
    for (int i = 0; i < n; i += ROWS) {
        __m512i c[ROWS][NQ];
        TURBO_UNROLL
        for (int r = 0; r < ROWS; ++r) {
            TURBO_UNROLL
            for (int j = 0; j < NQ; ++j) {
                c[r][j] = _mm512_setzero_si512();
            }
        }
        const int16_t * pw = w;
        const int16_t * pv = v + 2*i;
        for (int t = 0; t < n_kv; t += 2, pw += 2*L, pv += 2*(int64_t) dv) {
            __m512i wv[NQ];
            TURBO_UNROLL
            for (int j = 0; j < NQ; ++j) {
                wv[j] = _mm512_loadu_si512(pw + 32*j);
            }
            TURBO_UNROLL
            for (int r = 0; r < ROWS; ++r) {
                const __m512i vv = splat_pair(pv + 2*r);
                TURBO_UNROLL
                for (int j = 0; j < NQ; ++j) {
                    madd_pairs(c[r][j], wv[j], vv);
                }
            }
        }
        TURBO_UNROLL
        for (int j = 0; j < NQ; ++j) {
            a[j] = ld(alpha + 16*j);
            g[j] = _mm512_mul_ps(ld(beta + 16*j), _mm512_set1_ps(step));
        }
        TURBO_UNROLL
        for (int r = 0; r < ROWS; ++r) {
            TURBO_UNROLL
            for (int j = 0; j < NQ; ++j) {
                float * po = o + (int64_t) (i + r)*L + 16*j;
                st(po, _mm512_fmadd_ps(_mm512_cvtepi32_ps(c[r][j]), g[j], _mm512_mul_ps(ld(po), a[j])));
            }
        }
    }
}

void pv_i16(int nq, const int16_t * w, const int16_t * v, int dv, int n, int n_kv, const float * alpha, const float * beta, float step, float * o) {
    switch (nq) {
        case 1:  pv_i16_nq<1>(w, v, dv, n, n_kv, alpha, beta, step, o); break;
        case 2:  pv_i16_nq<2>(w, v, dv, n, n_kv, alpha, beta, step, o); break;
        default: pv_i16_nq<3>(w, v, dv, n, n_kv, alpha, beta, step, o); break;
    }
}

// attention of a few rows

constexpr int TILE = TURBO_FATTN_TILE;

inline __m512i four_rows(const char * a, const char * b, const char * c, const char * d) {
    __m512i x = _mm512_castsi128_si512(_mm_loadu_si128((const __m128i *) a));
    x = _mm512_inserti32x4(x, _mm_loadu_si128((const __m128i *) b), 1);
    x = _mm512_inserti32x4(x, _mm_loadu_si128((const __m128i *) c), 2);
    return _mm512_inserti32x4(x, _mm_loadu_si128((const __m128i *) d), 3);
}

// Sixteen keys at a time: vector m holds keys m, 4 + m, 8 + m, 12 + m, each in 128 bits, a group of 8 codes after the other.
template <int BITS, int R>
void row_scores(const int16_t * q, const float * q_scale, const char * k, size_t stride, int block, int n_block, int n_kv, const int16_t * table, float * s) {
    alignas(16) uint8_t  near[16];
    alignas(16) uint16_t bit[8];
    for (int j = 0; j < 8; ++j) {
        near[2*j]     = (uint8_t) (BITS*j/8);
        near[2*j + 1] = (uint8_t) (BITS*j/8 + 1); // past the group for its last codes: bits above them, never used
        bit[j]        = (uint16_t) (BITS*j % 8);
    }
    const __m512i pattern = _mm512_broadcast_i32x4(_mm_load_si128((const __m128i *) near));
    const __m512i shift   = _mm512_broadcast_i32x4(_mm_load_si128((const __m128i *) bit));
    const __m512i t       = repeat_table<BITS>(table);

    const int n_group = block/8;
    const int size    = 2 + BITS*n_group;

    for (int i = 0; i < n_kv; i += 16) {
        const char * rows[16];
        for (int l = 0; l < 16; ++l) {
            rows[l] = k + (i + l < n_kv ? i + l : n_kv - 1)*stride;
        }
        __m512 score[R];
        TURBO_UNROLL
        for (int g = 0; g < R; ++g) {
            score[g] = _mm512_setzero_ps();
        }
        for (int b = 0; b < n_block; ++b) {
            __m512i c[4][R];
            TURBO_UNROLL
            for (int m = 0; m < 4; ++m) {
                TURBO_UNROLL
                for (int g = 0; g < R; ++g) {
                    c[m][g] = _mm512_setzero_si512();
                }
            }
            // 16 bytes of each key at a time, within the block
            for (int j = 0; j < n_group;) {
                const int want  = 2 + BITS*j;
                const int start = want < size - 16 ? want : size - 16;
                const int end   = (start + 14)/BITS < n_group ? (start + 14)/BITS : n_group;
                __m512i bytes[4];
                TURBO_UNROLL
                for (int m = 0; m < 4; ++m) {
                    const int64_t o = (int64_t) b*size + start;
                    bytes[m] = four_rows(rows[m] + o, rows[4 + m] + o, rows[8 + m] + o, rows[12 + m] + o);
                }
                for (; j < end; ++j, q += 32*R) {
                    const __m512i index = _mm512_add_epi8(pattern, _mm512_set1_epi8((char) (2 + BITS*j - start)));
                    __m512i level[4];
                    TURBO_UNROLL
                    for (int m = 0; m < 4; ++m) {
                        level[m] = _mm512_permutexvar_epi16(_mm512_srlv_epi16(_mm512_shuffle_epi8(bytes[m], index), shift), t);
                    }
                    TURBO_UNROLL
                    for (int g = 0; g < R; ++g) {
                        const __m512i qv = _mm512_loadu_si512(q + 32*g);
                        TURBO_UNROLL
                        for (int m = 0; m < 4; ++m) {
                            madd_pairs(c[m][g], qv, level[m]);
                        }
                    }
                }
            }
            alignas(32) uint16_t h[16];
            for (int l = 0; l < 16; ++l) {
                memcpy(&h[l], rows[l] + (int64_t) b*size, sizeof(h[l]));
            }
            const __m512 ks = _mm512_cvtph_ps(_mm256_load_si256((const __m256i *) h));
            TURBO_UNROLL
            for (int g = 0; g < R; ++g) {
                const __m512i x = _mm512_add_epi32(_mm512_unpacklo_epi32(c[0][g], c[1][g]), _mm512_unpackhi_epi32(c[0][g], c[1][g]));
                const __m512i y = _mm512_add_epi32(_mm512_unpacklo_epi32(c[2][g], c[3][g]), _mm512_unpackhi_epi32(c[2][g], c[3][g]));
                const __m512i z = _mm512_add_epi32(_mm512_unpacklo_epi64(x, y), _mm512_unpackhi_epi64(x, y));
                score[g] = _mm512_fmadd_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(z), ks), _mm512_set1_ps(q_scale[b*R + g]), score[g]);
            }
        }
        q -= 32*(int64_t) R*n_group*n_block;
        TURBO_UNROLL
        for (int g = 0; g < R; ++g) {
            st(s + g*TILE + i, score[g]);
        }
    }
}

void row_softmax(int n_rows, float * s, int n_kv, const uint16_t * const * mask, const float * slope, float cap, float * M, float * S, float * alpha) {
    const __m512 inf = _mm512_set1_ps(-INFINITY);
    for (int g = 0; g < n_rows; ++g, s += TILE) {
        __m512 x[TILE/16];
        __m512 m = inf;
        TURBO_UNROLL
        for (int j = 0; j < TILE/16; ++j) {
            const int n = n_kv - 16*j;
            const __mmask16 valid = n >= 16 ? 0xFFFF : n > 0 ? (__mmask16) ((1u << n) - 1) : 0;
            x[j] = ld(s + 16*j);
            if (cap != 0.0f) {
                x[j] = softcap_16(x[j], cap);
            }
            if (mask) {
                const __m512 b = _mm512_cvtph_ps(_mm256_maskz_loadu_epi16(valid, mask[g] + 16*j));
                x[j] = masked_add(x[j], _mm512_mul_ps(b, _mm512_set1_ps(slope[g])));
            }
            x[j] = _mm512_mask_mov_ps(inf, valid, x[j]);
            m = max(x[j], m);
        }
        float m_new = _mm512_reduce_max_ps(m);
        m_new = m_new > M[g] ? m_new : M[g];
        const __m512 ref = _mm512_set1_ps(m_new > -1e30f ? m_new : -1e30f);
        const float a = _mm512_cvtss_f32(exp2_16(sub(_mm512_set1_ps(M[g]), ref)));
        __m512 sum = _mm512_setzero_ps();
        TURBO_UNROLL
        for (int j = 0; j < TILE/16; ++j) {
            x[j] = exp2_16(sub(x[j], ref));
            st(s + 16*j, x[j]);
            sum = add(sum, x[j]);
        }
        M[g] = m_new;
        S[g] = S[g]*a + _mm512_reduce_add_ps(sum);
        alpha[g] = a;
    }
}

uint64_t row_weights(int n_rows, const float * p, const char * v, size_t stride, int n_kv, float sum_max, int16_t * w, float * beta) {
    alignas(64) uint16_t h[TILE];
    for (int i = 0; i < n_kv; ++i) {
        memcpy(&h[i], v + i*stride, sizeof(h[i]));
    }
    for (int i = n_kv; i < TILE; ++i) {
        h[i] = 0;
    }
    uint64_t bad = 0;
    __m512 scale[TILE/16];
    TURBO_UNROLL
    for (int j = 0; j < TILE/16; ++j) {
        scale[j] = _mm512_cvtph_ps(_mm256_load_si256((const __m256i *) (h + 16*j)));
        const __mmask16 b = _mm512_fpclass_ps_mask(scale[j], 0x99); // NaN or infinite
        scale[j] = _mm512_mask_mov_ps(scale[j], b, _mm512_setzero_ps());
        bad |= (uint64_t) b << 16*j;
    }
    for (int g = 0; g < n_rows; ++g, p += TILE, w += TILE) {
        __m512 x[TILE/16];
        __m512 m   = _mm512_setzero_ps();
        __m512 sum = _mm512_setzero_ps();
        TURBO_UNROLL
        for (int j = 0; j < TILE/16; ++j) {
            x[j] = _mm512_mul_ps(ld(p + 16*j), scale[j]);
            m    = max(_mm512_abs_ps(x[j]), m);
            sum  = add(sum, _mm512_abs_ps(x[j]));
        }
        const float a = 32767.0f/(_mm512_reduce_max_ps(m) + 1e-30f);
        const float b = sum_max/(_mm512_reduce_add_ps(sum) + 1e-30f);
        const float inv = a < b ? a : b;
        beta[g] = 1.0f/inv;
        TURBO_UNROLL
        for (int j = 0; j < TILE/16; ++j) {
            _mm256_storeu_si256((__m256i *) (w + 16*j), _mm512_cvtsepi32_epi16(_mm512_cvtps_epi32(_mm512_mul_ps(x[j], _mm512_set1_ps(inv)))));
        }
    }
    return bad;
}

// 16*NZ values of a block, codes from v on
template <int BITS, int R, int NZ>
void row_values(const int16_t * w, const char * v, size_t stride, int n_kv, const int16_t * table, const float * alpha, const float * beta, float step, float * o, int64_t ld_o) {
    const spread16<BITS, 2> lo(0), hi(16);
    const __m512i t = repeat_table<BITS>(table);
    __m512i c[R][NZ];
    TURBO_UNROLL
    for (int g = 0; g < R; ++g) {
        TURBO_UNROLL
        for (int z = 0; z < NZ; ++z) {
            c[g][z] = _mm512_setzero_si512();
        }
    }
    for (int i = 0; i < n_kv; i += 2, v += 2*stride) {
        const uint8_t * a = (const uint8_t *) v;
        const uint8_t * b = (const uint8_t *) (i + 1 < n_kv ? v + stride : v); // without a partner: its weight is 0
        __m512i level[NZ];
        TURBO_UNROLL
        for (int z = 0; z < NZ; z += 2) {
            constexpr int N = 32;
            if (z + 1 < NZ) {
                const __m512i x = _mm512_castsi256_si512(_mm256_inserti128_si256(_mm256_castsi128_si256(
                        load_code_bytes<BITS, N>(a + 2*BITS*z)), load_code_bytes<BITS, N>(b + 2*BITS*z), 1));
                level[z]                      = _mm512_permutexvar_epi16(lo(x), t);
                level[z + 1 < NZ ? z + 1 : z] = _mm512_permutexvar_epi16(hi(x), t);
            } else {
                const __m512i x = _mm512_castsi256_si512(_mm256_inserti128_si256(_mm256_castsi128_si256(
                        load_code_bytes<BITS, N/2>(a + 2*BITS*z)), load_code_bytes<BITS, N/2>(b + 2*BITS*z), 1));
                level[z] = _mm512_permutexvar_epi16(lo(x), t);
            }
        }
        TURBO_UNROLL
        for (int g = 0; g < R; ++g) {
            const __m512i wv = splat_pair(w + g*TILE + i);
            TURBO_UNROLL
            for (int z = 0; z < NZ; ++z) {
                madd_pairs(c[g][z], wv, level[z]);
            }
        }
    }
    TURBO_UNROLL
    for (int g = 0; g < R; ++g) {
        const __m512 f = _mm512_set1_ps(beta[g]*step);
        const __m512 a = _mm512_set1_ps(alpha[g]);
        TURBO_UNROLL
        for (int z = 0; z < NZ; ++z) {
            float * po = o + g*ld_o + 16*z;
            st(po, _mm512_fmadd_ps(_mm512_cvtepi32_ps(c[g][z]), f, _mm512_mul_ps(ld(po), a)));
        }
    }
}

template <int BITS, int R>
void row_values_block(const int16_t * w, const char * v, size_t stride, int block, int n_kv, const int16_t * table, const float * alpha, const float * beta, float step, float * o, int64_t ld_o) {
    v += 2;
    for (; block >= 64; block -= 64, v += 8*BITS, o += 64) {
        row_values<BITS, R, 4>(w, v, stride, n_kv, table, alpha, beta, step, o, ld_o);
    }
    switch (block) {
        case 16: row_values<BITS, R, 1>(w, v, stride, n_kv, table, alpha, beta, step, o, ld_o); break;
        case 32: row_values<BITS, R, 2>(w, v, stride, n_kv, table, alpha, beta, step, o, ld_o); break;
        case 48: row_values<BITS, R, 3>(w, v, stride, n_kv, table, alpha, beta, step, o, ld_o); break;
        default: break;
    }
}

template <int BITS, int R>
struct row_kernels {
    static void scores(const int16_t * q, const float * q_scale, const char * k, size_t stride, int block, int n_block, int n_kv, const int16_t * table, float * s) {
        row_scores<BITS, R>(q, q_scale, k, stride, block, n_block, n_kv, table, s);
    }

    static void values(const int16_t * w, const char * v, size_t stride, int block, int n_kv, const int16_t * table, const float * alpha, const float * beta, float step, float * o, int64_t ld_o) {
        row_values_block<BITS, R>(w, v, stride, block, n_kv, table, alpha, beta, step, o, ld_o);
    }
};

} // namespace

const turbo_kernels * turbo_kernels_avx512() {
    static const turbo_kernels kernels = [] {
        turbo_kernels res = *turbo_kernels_avx2();
        res.name = "avx512";
#define X(ID, ENUM, NAME, BITS, BLOCK) { auto & t = res.types[ID - GGML_TURBO_TYPE_FIRST]; t.levels = levels<BITS, BLOCK>; t.levels_pair = levels_pair<BITS, BLOCK>; }
        GGML_TURBO_TYPES(X)
#undef X
        res.fattn = { qk, softmax, pv, qk_i16, weights_i16, pv_i16 };
        res.fattn_rows = { row_scores_any<row_kernels>, row_softmax, row_weights, row_values_any<row_kernels> };
        return res;
    }();
    return &kernels;
}
