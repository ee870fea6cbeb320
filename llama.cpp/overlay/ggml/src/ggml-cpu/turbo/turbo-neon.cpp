// NEON level (every 64-bit Arm processor). Built without contraction: the lane sums of the encoder are the format's (FORMAT.md
// section 4), so each product is rounded before it is added. Where the result is a plain float, FMA is used by intrinsic.
//
// A code is looked up a byte of its level at a time: vqtbl1q reads 16 codes in a table of 16 entries, so a float costs four
// look-ups and eight interleaves for 16 values, an int16 two of each. The row kernels of attention take the int16, where a value is
// used once for each of a few rows; the tile kernels take the floats, where it is used for many: smlal forms as many products as
// fmla does, and on most cores at half the rate.

#include "turbo-kernels.h"

#include "ggml-turbo-tables.h"

#include <arm_neon.h>

#include <cmath>
#include <cstring>

namespace {

#include "turbo-fattn-rows.inc"
#include "turbo-neon-rows.inc"

// 16 lanes in four vectors, folded in the order of the format
TURBO_INLINE float lane_fold(const float32x4_t (&v)[4]) {
    const float32x4_t s4 = vaddq_f32(vaddq_f32(v[0], v[2]), vaddq_f32(v[1], v[3]));
    const float32x2_t s2 = vadd_f32(vget_low_f32(s4), vget_high_f32(s4));
    return vget_lane_f32(s2, 0) + vget_lane_f32(s2, 1);
}

inline float power_of_two(int e) {
    const uint32_t bits = (uint32_t) (127 + e) << 23;
    float f;
    memcpy(&f, &bits, sizeof(f));
    return f;
}

// codes

// 16 codes, one a byte, to 2*BITS bytes
template <int BITS>
TURBO_INLINE void store_codes(uint8_t * p, uint8x16_t code) {
    // neighbours are joined: 2, 4, 8 codes
    uint16x8_t a = vreinterpretq_u16_u8(code);
    a = vandq_u16(vsraq_n_u16(a, a, 8 - BITS), vdupq_n_u16(0xFF));
    uint32x4_t b = vreinterpretq_u32_u16(a);
    b = vandq_u32(vsraq_n_u32(b, b, 16 - 2*BITS), vdupq_n_u32(0xFFFF));
    uint64x2_t c = vreinterpretq_u64_u32(b);
    c = vsraq_n_u64(c, c, 32 - 4*BITS);
    const uint64_t lo = (uint32_t) vgetq_lane_u64(c, 0);
    const uint64_t hi = (uint32_t) vgetq_lane_u64(c, 1);
    constexpr uint64_t mask = ((uint64_t) 1 << 8*BITS) - 1;
    const uint64_t packed = (lo & mask) | hi << 8*BITS;
    memcpy(p, &packed, 2*BITS);
}

// 16 codes from 2*BITS bytes, one a byte
template <int BITS> struct code_reader;

template <> struct code_reader<2> {
    uint8x16_t index;
    int8x16_t  shift;

    code_reader() {
        uint8_t i[16];
        int8_t  s[16];
        for (int j = 0; j < 16; ++j) {
            i[j] = (uint8_t) (j/4);
            s[j] = (int8_t) (-2*(j % 4));
        }
        index = vld1q_u8(i);
        shift = vld1q_s8(s);
    }

    TURBO_INLINE uint8x16_t operator()(const uint8_t * p) const {
        uint32_t w;
        memcpy(&w, p, sizeof(w));
        return vandq_u8(vshlq_u8(vqtbl1q_u8(vreinterpretq_u8_u32(vdupq_n_u32(w)), index), shift), vdupq_n_u8(3));
    }
};

template <> struct code_reader<3> {
    uint8x16_t index_lo, index_hi;
    int8x16_t  shift_lo, shift_hi;

    code_reader() {
        uint8_t i[2][16];
        int8_t  s[2][16];
        for (int j = 0; j < 16; ++j) {
            i[0][j] = (uint8_t) (2 + 3*j/8);
            i[1][j] = (uint8_t) (i[0][j] + 1);
            s[0][j] = (int8_t) -(3*j % 8);
            s[1][j] = (int8_t) (8 - 3*j % 8);
        }
        index_lo = vld1q_u8(i[0]);
        index_hi = vld1q_u8(i[1]);
        shift_lo = vld1q_s8(s[0]);
        shift_hi = vld1q_s8(s[1]);
    }

    // the six bytes are read with the two before them, which the block has
    TURBO_INLINE uint8x16_t operator()(const uint8_t * p) const {
        const uint8x16_t w = vcombine_u8(vld1_u8(p - 2), vdup_n_u8(0));
        const uint8x16_t lo = vshlq_u8(vqtbl1q_u8(w, index_lo), shift_lo);
        const uint8x16_t hi = vshlq_u8(vqtbl1q_u8(w, index_hi), shift_hi);
        return vandq_u8(vorrq_u8(lo, hi), vdupq_n_u8(7));
    }
};

template <> struct code_reader<4> {
    TURBO_INLINE uint8x16_t operator()(const uint8_t * p) const {
        const uint8x16_t w = vcombine_u8(vld1_u8(p), vdup_n_u8(0));
        return vzip1q_u8(vandq_u8(w, vdupq_n_u8(15)), vshrq_n_u8(w, 4));
    }
};

// levels of 16 codes as floats, before the scale
template <int BITS, int BLOCK>
struct float_levels {
    uint8x16_t plane[4];

    float_levels() {
        constexpr int H = 1 << (BITS - 1);
        uint8_t bytes[4][16];
        for (int i = 0; i < 16; ++i) {
            const int k = i % (2*H);
            const float x = k >= H ? codebook<BITS, BLOCK>::centroids[k - H] : -codebook<BITS, BLOCK>::centroids[H - 1 - k];
            uint8_t b[4];
            memcpy(b, &x, sizeof(b));
            for (int j = 0; j < 4; ++j) {
                bytes[j][i] = b[j];
            }
        }
        for (int j = 0; j < 4; ++j) {
            plane[j] = vld1q_u8(bytes[j]);
        }
    }

    TURBO_INLINE void operator()(uint8x16_t code, float32x4_t (&y)[4]) const {
        const uint8x16_t b0 = vqtbl1q_u8(plane[0], code), b1 = vqtbl1q_u8(plane[1], code);
        const uint8x16_t b2 = vqtbl1q_u8(plane[2], code), b3 = vqtbl1q_u8(plane[3], code);
        const uint16x8_t l0 = vreinterpretq_u16_u8(vzip1q_u8(b0, b1)), l1 = vreinterpretq_u16_u8(vzip2q_u8(b0, b1));
        const uint16x8_t h0 = vreinterpretq_u16_u8(vzip1q_u8(b2, b3)), h1 = vreinterpretq_u16_u8(vzip2q_u8(b2, b3));
        y[0] = vreinterpretq_f32_u16(vzip1q_u16(l0, h0));
        y[1] = vreinterpretq_f32_u16(vzip2q_u16(l0, h0));
        y[2] = vreinterpretq_f32_u16(vzip1q_u16(l1, h1));
        y[3] = vreinterpretq_f32_u16(vzip2q_u16(l1, h1));
    }
};

// levels of 16 codes as the integers of a table
template <int BITS>
struct int_levels {
    uint8x16_t lo, hi;

    explicit int_levels(const int16_t * table) {
        uint8_t l[16], h[16];
        for (int i = 0; i < 16; ++i) {
            const uint16_t x = (uint16_t) table[i % (1 << BITS)];
            l[i] = (uint8_t) x;
            h[i] = (uint8_t) (x >> 8);
        }
        lo = vld1q_u8(l);
        hi = vld1q_u8(h);
    }

    TURBO_INLINE int16x8x2_t operator()(uint8x16_t code) const {
        const uint8x16_t l = vqtbl1q_u8(lo, code), h = vqtbl1q_u8(hi, code);
        return { { vreinterpretq_s16_u8(vzip1q_u8(l, h)), vreinterpretq_s16_u8(vzip2q_u8(l, h)) } };
    }
};

// codec

// the positive half of the levels by minus their index
template <int BITS, int BLOCK>
struct half_levels {
    uint8x16x2_t table;

    half_levels() {
        constexpr int H = 1 << (BITS - 1);
        float t[8];
        for (int i = 0; i < 8; ++i) {
            t[i] = codebook<BITS, BLOCK>::centroids[i % H];
        }
        table.val[0] = vreinterpretq_u8_f32(vld1q_f32(t));
        table.val[1] = vreinterpretq_u8_f32(vld1q_f32(t + 4));
    }

    TURBO_INLINE float32x4_t operator()(uint32x4_t minus_i) const {
        const uint8x16_t bytes = vreinterpretq_u8_u32(vmlsq_n_u32(vdupq_n_u32(0x03020100), minus_i, 0x04040404));
        return vreinterpretq_f32_u8(BITS < 4 ? vqtbl1q_u8(table.val[0], bytes) : vqtbl2q_u8(table, bytes));
    }
};

TURBO_INLINE uint8x16_t low_bytes(const uint32x4_t (&v)[4]) {
    const uint8x16_t lo = vuzp1q_u8(vreinterpretq_u8_u32(v[0]), vreinterpretq_u8_u32(v[1]));
    const uint8x16_t hi = vuzp1q_u8(vreinterpretq_u8_u32(v[2]), vreinterpretq_u8_u32(v[3]));
    return vuzp1q_u8(lo, hi);
}

template <int BITS, int BLOCK>
void encode_block(const float * x, uint8_t * y, const half_levels<BITS, BLOCK> & levels) {
    constexpr int H = 1 << (BITS - 1);

    // the bits of |x| order as integers, and NaN and infinity are the largest of them
    uint32x4_t mi = vdupq_n_u32(0);
    for (int j = 0; j < BLOCK; j += 4) {
        mi = vmaxq_u32(mi, vreinterpretq_u32_f32(vabsq_f32(vld1q_f32(x + j))));
    }
    const uint32_t m = vmaxvq_u32(mi);

    if (m >= 0x7F800000u || m < 0x2B800000u) { // not finite; below 2^-40
        memset(y, 0, GGML_TURBO_BLOCK_SIZE(BITS, BLOCK));
        y[1] = m >= 0x7F800000u ? 0x7E : 0x00;
        return;
    }

    int e = (int) (m >> 23) - 127;
    e = e < 126 ? e : 126;
    const float p = power_of_two(-e);

    float32x4_t u[BLOCK/4];
    float32x4_t sum[4] = { vdupq_n_f32(0.0f), vdupq_n_f32(0.0f), vdupq_n_f32(0.0f), vdupq_n_f32(0.0f) };
    for (int j = 0; j < BLOCK/4; j += 4) {
        TURBO_UNROLL
        for (int l = 0; l < 4; ++l) {
            u[j + l] = vmulq_n_f32(vld1q_f32(x + 4*(j + l)), p);
            sum[l]   = vaddq_f32(sum[l], vmulq_f32(u[j + l], u[j + l]));
        }
    }
    const float r = vget_lane_f32(vsqrt_f32(vdup_n_f32(lane_fold(sum) / (float) BLOCK)), 0);

    float32x4_t t[H - 1];
    for (int i = 0; i < H - 1; ++i) {
        t[i] = vdupq_n_f32(codebook<BITS, BLOCK>::boundaries[i] * r);
    }

    float32x4_t num[4] = { vdupq_n_f32(0.0f), vdupq_n_f32(0.0f), vdupq_n_f32(0.0f), vdupq_n_f32(0.0f) };
    float32x4_t den[4] = { vdupq_n_f32(0.0f), vdupq_n_f32(0.0f), vdupq_n_f32(0.0f), vdupq_n_f32(0.0f) };
    for (int j = 0; j < BLOCK/4; j += 4) {
        uint32x4_t index[4], sign[4]; // minus the thresholds passed; all ones where negative
        TURBO_UNROLL
        for (int l = 0; l < 4; ++l) {
            const float32x4_t a = vabsq_f32(u[j + l]);
            index[l] = vdupq_n_u32(0);
            TURBO_UNROLL
            for (int k = 0; k < H - 1; ++k) {
                index[l] = vaddq_u32(index[l], vcgtq_f32(a, t[k]));
            }
            sign[l] = vcltzq_f32(u[j + l]);

            const float32x4_t c = levels(index[l]);
            num[l] = vaddq_f32(num[l], vmulq_f32(a, c));
            den[l] = vaddq_f32(den[l], vmulq_f32(c, c));
        }
        // H + index, or H - 1 - index for a negative value: all bits the other way
        const uint8x16_t i = vreinterpretq_u8_s8(vnegq_s8(vreinterpretq_s8_u8(low_bytes(index))));
        store_codes<BITS>(y + 2 + BITS*j/2, veorq_u8(vorrq_u8(i, vdupq_n_u8(H)), vandq_u8(low_bytes(sign), vdupq_n_u8(2*H - 1))));
    }

    const float g = lane_fold(num) / lane_fold(den);
    float s = g * power_of_two(e);
    s = s < 65504.0f ? s : 65504.0f;

    const __fp16 d = (__fp16) s;
    memcpy(y, &d, sizeof(d));
}

template <int BITS, int BLOCK>
void encode(const float * x, void * y, int64_t k) {
    const half_levels<BITS, BLOCK> levels;
    for (int64_t i = 0; i < k/BLOCK; ++i) {
        encode_block<BITS, BLOCK>(x + i*BLOCK, (uint8_t *) y + i*GGML_TURBO_BLOCK_SIZE(BITS, BLOCK), levels);
    }
}

template <int BITS, int BLOCK>
void decode(const void * x, float * y, int64_t k) {
    const code_reader<BITS> codes;
    const float_levels<BITS, BLOCK> levels;
    const uint8_t * b = (const uint8_t *) x;
    for (int64_t i = 0; i < k/BLOCK; ++i, b += GGML_TURBO_BLOCK_SIZE(BITS, BLOCK), y += BLOCK) {
        const float d = load_f16(b);
        for (int j = 0; j < BLOCK/16; ++j) {
            float32x4_t v[4];
            levels(codes(b + 2 + 2*BITS*j), v);
            TURBO_UNROLL
            for (int l = 0; l < 4; ++l) {
                vst1q_f32(y + 16*j + 4*l, vmulq_n_f32(v[l], d));
            }
        }
    }
}

template <int BITS, int BLOCK>
float dot(const void * x, const float * y, int64_t k) {
    const code_reader<BITS> codes;
    const float_levels<BITS, BLOCK> levels;
    const uint8_t * b = (const uint8_t *) x;
    float32x4_t sum = vdupq_n_f32(0.0f);
    for (int64_t i = 0; i < k/BLOCK; ++i, b += GGML_TURBO_BLOCK_SIZE(BITS, BLOCK), y += BLOCK) {
        float32x4_t a[4] = { vdupq_n_f32(0.0f), vdupq_n_f32(0.0f), vdupq_n_f32(0.0f), vdupq_n_f32(0.0f) };
        for (int j = 0; j < BLOCK/16; ++j) {
            float32x4_t v[4];
            levels(codes(b + 2 + 2*BITS*j), v);
            TURBO_UNROLL
            for (int l = 0; l < 4; ++l) {
                a[l] = vfmaq_f32(a[l], v[l], vld1q_f32(y + 16*j + 4*l));
            }
        }
        sum = vfmaq_n_f32(sum, vaddq_f32(vaddq_f32(a[0], a[1]), vaddq_f32(a[2], a[3])), load_f16(b));
    }
    return vaddvq_f32(sum);
}

// rotation

// the two stages within each 4 of 8 values
TURBO_INLINE void hadamard_4x2(float32x4_t & a, float32x4_t & b) {
    const float32x4_t e1 = vuzp1q_f32(a, b), o1 = vuzp2q_f32(a, b);
    const float32x4_t s1 = vaddq_f32(e1, o1), d1 = vsubq_f32(e1, o1);
    const float32x4_t e2 = vtrn1q_f32(s1, d1), o2 = vtrn2q_f32(s1, d1);
    const float64x2_t s2 = vreinterpretq_f64_f32(vaddq_f32(e2, o2)), d2 = vreinterpretq_f64_f32(vsubq_f32(e2, o2));
    a = vreinterpretq_f32_f64(vtrn1q_f64(s2, d2));
    b = vreinterpretq_f32_f64(vtrn2q_f64(s2, d2));
}

// Across N vectors, the stages in the order of the reference. By recursion: a nest of loops over them would keep v in memory.
template <int N>
TURBO_INLINE void hadamard_vectors(float32x4_t * v) {
    if constexpr (N > 1) {
        hadamard_vectors<N/2>(v);
        hadamard_vectors<N/2>(v + N/2);
        TURBO_UNROLL
        for (int i = 0; i < N/2; ++i) {
            const float32x4_t a = v[i], b = v[i + N/2];
            v[i]       = vaddq_f32(a, b);
            v[i + N/2] = vsubq_f32(a, b);
        }
    }
}

// P values in place, unnormalised; P a power of two >= 8, known at compile time so that it stays in registers
template <int P>
inline void hadamard(float * y) {
    float32x4_t v[P/4];
    TURBO_UNROLL
    for (int i = 0; i < P/8; ++i) {
        v[2*i]     = vld1q_f32(y + 8*i);
        v[2*i + 1] = vld1q_f32(y + 8*i + 4);
        hadamard_4x2(v[2*i], v[2*i + 1]);
    }
    hadamard_vectors<P/4>(v);
    TURBO_UNROLL
    for (int i = 0; i < P/8; ++i) {
        vst1q_f32(y + 8*i,     v[2*i]);
        vst1q_f32(y + 8*i + 4, v[2*i + 1]);
    }
}

// n >= 8: one factor of two at stride n/2, then both halves
inline void hadamard_pow2(float * y, int64_t n) {
    switch (n) {
        case  8: hadamard< 8>(y); return;
        case 16: hadamard<16>(y); return;
        case 32: hadamard<32>(y); return;
        case 64: hadamard<64>(y); return;
        default: break;
    }
    const int64_t h = n/2;
    for (int64_t j = 0; j < h; j += 4) {
        const float32x4_t a = vld1q_f32(y + j), b = vld1q_f32(y + j + h);
        vst1q_f32(y + j,     vaddq_f32(a, b));
        vst1q_f32(y + j + h, vsubq_f32(a, b));
    }
    hadamard_pow2(y,     h);
    hadamard_pow2(y + h, h);
}

// y = h a, with h [m][m], a and y [m][p]; m and p are multiples of 4
inline void hadamard_blocks(const float * h, int m, int64_t p, const float * a, float * y) {
    for (int r = 0; r < m; r += 4) {
        for (int64_t j = 0; j < p; j += 4) {
            float32x4_t s[4] = { vdupq_n_f32(0.0f), vdupq_n_f32(0.0f), vdupq_n_f32(0.0f), vdupq_n_f32(0.0f) };
            for (int c = 0; c < m; c += 4) {
                const float32x4_t a0 = vld1q_f32(a + (c    )*p + j), a1 = vld1q_f32(a + (c + 1)*p + j);
                const float32x4_t a2 = vld1q_f32(a + (c + 2)*p + j), a3 = vld1q_f32(a + (c + 3)*p + j);
                TURBO_UNROLL
                for (int i = 0; i < 4; ++i) {
                    const float32x4_t f = vld1q_f32(h + (r + i)*m + c);
                    s[i] = vfmaq_laneq_f32(s[i], a0, f, 0);
                    s[i] = vfmaq_laneq_f32(s[i], a1, f, 1);
                    s[i] = vfmaq_laneq_f32(s[i], a2, f, 2);
                    s[i] = vfmaq_laneq_f32(s[i], a3, f, 3);
                }
            }
            TURBO_UNROLL
            for (int i = 0; i < 4; ++i) {
                vst1q_f32(y + (r + i)*p + j, s[i]);
            }
        }
    }
}

constexpr int64_t ROTATE_MAX = 1024;

void rotate(const float * x, const float * diag, const float * shift, float * y, int64_t d, bool inverse) {
    const int m = ggml_turbo_hadamard_order(d);
    if (d % 8 != 0 || d > ROTATE_MAX || d/m < 4) {
        ggml_turbo_rotate_row_ref(x, diag, shift, y, d, inverse);
        return;
    }

    float tmp[ROTATE_MAX];
    float * a = m == 1 ? y : tmp;

    if (inverse || (!diag && !shift)) {
        memmove(a, x, d*sizeof(float));
    } else {
        for (int64_t j = 0; j < d; j += 4) {
            float32x4_t v = vld1q_f32(x + j);
            if (shift) {
                v = vsubq_f32(v, vld1q_f32(shift + j));
            }
            if (diag) {
                v = vmulq_f32(v, vld1q_f32(diag + j));
            }
            vst1q_f32(a + j, v);
        }
    }

    const int64_t p = d/m;
    if (p == 4) {
        for (int64_t i = 0; i < d; i += 8) {
            float32x4_t v = vld1q_f32(a + i), w = vld1q_f32(a + i + 4);
            hadamard_4x2(v, w);
            vst1q_f32(a + i,     v);
            vst1q_f32(a + i + 4, w);
        }
    } else {
        for (int64_t i = 0; i < d; i += p) {
            hadamard_pow2(a + i, p);
        }
    }

    if (m > 1) {
        hadamard_blocks(ggml_turbo_hadamard_matrix(m), m, p, a, y);
    }

    const float scale = 1.0f/sqrtf((float) d);
    for (int64_t j = 0; j < d; j += 4) {
        vst1q_f32(y + j, vmulq_n_f32(vld1q_f32(y + j), scale));
    }
    if (inverse && diag) {
        for (int64_t j = 0; j < d; j += 4) {
            vst1q_f32(y + j, vmulq_f32(vld1q_f32(y + j), vld1q_f32(diag + j)));
        }
    }
    if (inverse && shift) {
        for (int64_t j = 0; j < d; j += 4) {
            vst1q_f32(y + j, vaddq_f32(vld1q_f32(y + j), vld1q_f32(shift + j)));
        }
    }
}

// attention

struct f32x16 { float32x4_t a, b, c, d; };

inline float32x4_t max_4(float32x4_t x, float32x4_t y) { return vbslq_f32(vcgtq_f32(x, y), x, y); }
inline float32x4_t min_4(float32x4_t x, float32x4_t y) { return vbslq_f32(vcltq_f32(x, y), x, y); }

inline float32x4_t scale_exp2_4(float32x4_t p, float32x4_t n) {
    const int32x4_t r = vaddq_s32(vreinterpretq_s32_f32(p), vshlq_n_s32(vcvtq_s32_f32(n), 23));
    return vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_s32(r), vcltq_f32(n, vdupq_n_f32(-126.0f))));
}

inline float32x4_t masked_add_4(float32x4_t s, float32x4_t m) {
    const float32x4_t inf = vdupq_n_f32(-INFINITY);
    return vbslq_f32(vceqq_f32(m, inf), inf, vaddq_f32(s, m));
}

inline f32x16 ld(const float * p)                 { return { vld1q_f32(p), vld1q_f32(p + 4), vld1q_f32(p + 8), vld1q_f32(p + 12) }; }
inline void   st(float * p, f32x16 x)             { vst1q_f32(p, x.a); vst1q_f32(p + 4, x.b); vst1q_f32(p + 8, x.c); vst1q_f32(p + 12, x.d); }
inline f32x16 splat(float x)                      { const float32x4_t v = vdupq_n_f32(x); return { v, v, v, v }; }
inline f32x16 add(f32x16 x, f32x16 y)             { return { vaddq_f32(x.a, y.a), vaddq_f32(x.b, y.b), vaddq_f32(x.c, y.c), vaddq_f32(x.d, y.d) }; }
inline f32x16 sub(f32x16 x, f32x16 y)             { return { vsubq_f32(x.a, y.a), vsubq_f32(x.b, y.b), vsubq_f32(x.c, y.c), vsubq_f32(x.d, y.d) }; }
inline f32x16 mul(f32x16 x, f32x16 y)             { return { vmulq_f32(x.a, y.a), vmulq_f32(x.b, y.b), vmulq_f32(x.c, y.c), vmulq_f32(x.d, y.d) }; }
inline f32x16 div(f32x16 x, f32x16 y)             { return { vdivq_f32(x.a, y.a), vdivq_f32(x.b, y.b), vdivq_f32(x.c, y.c), vdivq_f32(x.d, y.d) }; }
inline f32x16 max(f32x16 x, f32x16 y)             { return { max_4(x.a, y.a), max_4(x.b, y.b), max_4(x.c, y.c), max_4(x.d, y.d) }; }
inline f32x16 min(f32x16 x, f32x16 y)             { return { min_4(x.a, y.a), min_4(x.b, y.b), min_4(x.c, y.c), min_4(x.d, y.d) }; }
inline f32x16 round_even(f32x16 x)                { return { vrndnq_f32(x.a), vrndnq_f32(x.b), vrndnq_f32(x.c), vrndnq_f32(x.d) }; }
inline f32x16 fmadd(f32x16 x, f32x16 y, f32x16 z) { return { vfmaq_f32(z.a, x.a, y.a), vfmaq_f32(z.b, x.b, y.b), vfmaq_f32(z.c, x.c, y.c), vfmaq_f32(z.d, x.d, y.d) }; }

inline f32x16 scale_exp2(f32x16 p, f32x16 n) {
    return { scale_exp2_4(p.a, n.a), scale_exp2_4(p.b, n.b), scale_exp2_4(p.c, n.c), scale_exp2_4(p.d, n.d) };
}

inline f32x16 masked_add(f32x16 s, f32x16 m) {
    return { masked_add_4(s.a, m.a), masked_add_4(s.b, m.b), masked_add_4(s.c, m.c), masked_add_4(s.d, m.d) };
}

constexpr int ROWS = 4; // 16 accumulators of 32 registers
constexpr int COLS = 1;

#include "turbo-fattn-lanes.inc"

// attention of a few rows

template <int BITS, int R>
void row_scores(const int16_t * q, const float * q_scale, const char * k, size_t stride, int block, int n_block, int n_kv, const int16_t * table, float * s) {
    const int_levels<BITS> levels(table);
    const int size = GGML_TURBO_BLOCK_SIZE(BITS, block);

    for (int b = 0; b < n_block; ++b) {
        int16_t ordered[MAX_WINDOWS*WINDOW*R]; // [window][plane][R][8]
        order_queries<BITS, R>(q + (int64_t) b*block/8*R*32, block, [&](int i, int n, int g, int16x8_t x) { vst1q_s16(ordered + ((i*PLANES + n)*R + g)*8, x); });

        float   scale[TILE] = {};
        int32_t sums[R*TILE];
        for (int i = 0; i < n_kv; i += 2) {
            const uint8_t * k0 = (const uint8_t *) k + i*stride + b*size;
            const uint8_t * k1 = i + 1 < n_kv ? k0 + stride : k0;
            scale[i]     = load_f16(k0);
            scale[i + 1] = load_f16(k1);
            int32x4_t c[2][R];
            TURBO_UNROLL
            for (int g = 0; g < R; ++g) {
                c[0][g] = c[1][g] = vdupq_n_s32(0);
            }
            const int16_t * pq = ordered;
            for (int j = 0; j < n_windows(block); ++j) {
                const int offset = 2 + BITS*window_first(block, j)/8;
                const planes<BITS> p(k0 + offset, k1 + offset);
                TURBO_UNROLL
                for (int n = 0; n < PLANES; ++n, pq += 8*R) {
                    const int16x8x2_t v = levels(p.code(n));
                    TURBO_UNROLL
                    for (int g = 0; g < R; ++g) {
                        const int16x8_t x = vld1q_s16(pq + 8*g);
                        TURBO_UNROLL
                        for (int l = 0; l < 2; ++l) {
                            c[l][g] = vmlal_s16     (c[l][g], vget_low_s16(x), vget_low_s16(v.val[l]));
                            c[l][g] = vmlal_high_s16(c[l][g], x, v.val[l]);
                        }
                    }
                }
            }
            TURBO_UNROLL
            for (int g = 0; g < R; ++g) {
                const int32x4_t pair = vpaddq_s32(c[0][g], c[1][g]);
                vst1_s32(sums + g*TILE + i, vget_low_s32(vpaddq_s32(pair, pair)));
            }
        }
        for (int g = 0; g < R; ++g) {
            for (int i = 0; i < n_kv; i += 4) {
                const float32x4_t x = vmulq_f32(vcvtq_f32_s32(vld1q_s32(sums + g*TILE + i)), vld1q_f32(scale + i));
                const float32x4_t y = b == 0 ? vdupq_n_f32(0.0f) : vld1q_f32(s + g*TILE + i);
                vst1q_f32(s + g*TILE + i, vfmaq_n_f32(y, x, q_scale[b*R + g]));
            }
        }
    }
}

void row_softmax(int n_rows, float * s, int n_kv, const uint16_t * const * mask, const float * slope, float cap, float * M, float * S, float * alpha) {
    for (int g = 0; g < n_rows; ++g, s += TILE) {
        float bias[TILE];
        for (int i = 0; i < n_kv; ++i) {
            bias[i] = mask ? slope[g]*load_f16(mask[g] + i) : 0.0f;
        }
        for (int i = n_kv; i < TILE; ++i) {
            bias[i] = -INFINITY;
        }
        f32x16 x[TILE/16];
        f32x16 m = splat(-INFINITY);
        for (int j = 0; j < TILE/16; ++j) {
            x[j] = ld(s + 16*j);
            if (cap != 0.0f) {
                x[j] = softcap_16(x[j], cap);
            }
            x[j] = masked_add(x[j], ld(bias + 16*j));
            m = max(x[j], m);
        }
        float m_new = vmaxvq_f32(max_4(max_4(m.a, m.b), max_4(m.c, m.d)));
        m_new = m_new > M[g] ? m_new : M[g];
        // nothing seen yet: any finite reference makes every 2^(-inf - ref) zero
        const f32x16 ref = splat(m_new > -1e30f ? m_new : -1e30f);
        const float a = vgetq_lane_f32(exp2_16(sub(splat(M[g]), ref)).a, 0);
        f32x16 sum = splat(0.0f);
        for (int j = 0; j < TILE/16; ++j) {
            x[j] = exp2_16(sub(x[j], ref));
            st(s + 16*j, x[j]);
            sum = add(sum, x[j]);
        }
        M[g] = m_new;
        S[g] = S[g]*a + vaddvq_f32(vaddq_f32(vaddq_f32(sum.a, sum.b), vaddq_f32(sum.c, sum.d)));
        alpha[g] = a;
    }
}

uint64_t row_weights(int n_rows, const float * p, const char * v, size_t stride, int n_kv, float sum_max, int16_t * w, float * beta) {
    uint64_t bad = 0;
    float scale[TILE];
    for (int i = 0; i < TILE; ++i) {
        scale[i] = i < n_kv ? load_f16(v + i*stride) : 0.0f;
        if (!std::isfinite(scale[i])) {
            scale[i] = 0.0f;
            bad |= (uint64_t) 1 << i;
        }
    }
    for (int g = 0; g < n_rows; ++g, p += TILE, w += TILE) {
        float32x4_t m   = vdupq_n_f32(0.0f);
        float32x4_t sum = vdupq_n_f32(0.0f);
        for (int i = 0; i < TILE; i += 4) {
            const float32x4_t x = vabsq_f32(vmulq_f32(vld1q_f32(p + i), vld1q_f32(scale + i)));
            m   = max_4(x, m);
            sum = vaddq_f32(sum, x);
        }
        const float a = 32767.0f/(vmaxvq_f32(m) + 1e-30f);
        const float b = sum_max/(vaddvq_f32(sum) + 1e-30f);
        const float inv = a < b ? a : b;
        beta[g] = 1.0f/inv;
        for (int i = 0; i < TILE; i += 8) {
            const float32x4_t x0 = vmulq_n_f32(vmulq_f32(vld1q_f32(p + i),     vld1q_f32(scale + i)),     inv);
            const float32x4_t x1 = vmulq_n_f32(vmulq_f32(vld1q_f32(p + i + 4), vld1q_f32(scale + i + 4)), inv);
            vst1q_s16(w + i, vcombine_s16(vqmovn_s32(vcvtnq_s32_f32(x0)), vqmovn_s32(vcvtnq_s32_f32(x1))));
        }
    }
    return bad;
}

// c[g] += weights of row g times x, with w [R][2] the weights of the two rows of the cache
template <int R, int G = 0>
TURBO_INLINE void add_weighted(int32x4_t (&c)[R][2], int16x8x2_t x, const int16x8_t * w) {
    if constexpr (G < R) {
        constexpr int lane = 2*(G % 4);
        c[G][0] = vmlal_laneq_s16     (c[G][0], vget_low_s16(x.val[0]), w[G/4], lane);
        c[G][1] = vmlal_high_laneq_s16(c[G][1], x.val[0], w[G/4], lane);
        c[G][0] = vmlal_laneq_s16     (c[G][0], vget_low_s16(x.val[1]), w[G/4], lane + 1);
        c[G][1] = vmlal_high_laneq_s16(c[G][1], x.val[1], w[G/4], lane + 1);
        add_weighted<R, G + 1>(c, x, w);
    }
}

// P planes, from plane N on, of the window at v; w [n_kv/2][W][8]: sums [R][PLANES][8] of weights times levels
template <int BITS, int R, int N, int P>
inline void row_values(const int16_t * w, const char * v, size_t stride, int n_kv, const int_levels<BITS> & levels, int32_t * sums) {
    constexpr int W = (R + 3)/4;
    int32x4_t c[P][R][2];
    TURBO_UNROLL
    for (int n = 0; n < P; ++n) {
        TURBO_UNROLL
        for (int g = 0; g < R; ++g) {
            c[n][g][0] = c[n][g][1] = vdupq_n_s32(0);
        }
    }
    for (int i = 0; i < n_kv; i += 2, v += 2*stride, w += 8*W) {
        const char * v1 = i + 1 < n_kv ? v + stride : v; // without a partner: its weight is 0
        const planes<BITS> p((const uint8_t *) v, (const uint8_t *) v1);
        int16x8_t wv[W];
        TURBO_UNROLL
        for (int j = 0; j < W; ++j) {
            wv[j] = vld1q_s16(w + 8*j);
        }
        TURBO_UNROLL
        for (int n = 0; n < P; ++n) {
            add_weighted<R>(c[n], levels(p.code(N + n)), wv);
        }
    }
    TURBO_UNROLL
    for (int n = 0; n < P; ++n) {
        TURBO_UNROLL
        for (int g = 0; g < R; ++g) {
            vst1q_s32(sums + g*WINDOW + 8*(N + n),     c[n][g][0]);
            vst1q_s32(sums + g*WINDOW + 8*(N + n) + 4, c[n][g][1]);
        }
    }
}

template <int BITS, int R, int N = 0>
inline void row_values_window(const int16_t * w, const char * v, size_t stride, int n_kv, const int_levels<BITS> & levels, int32_t * sums) {
    constexpr int P = R == 1 ? 8 : R == 2 ? 4 : R <= 4 ? 2 : 1; // 16 accumulators at most
    row_values<BITS, R, N, P>(w, v, stride, n_kv, levels, sums);
    if constexpr (N + P < PLANES) {
        row_values_window<BITS, R, N + P>(w, v, stride, n_kv, levels, sums);
    }
}

template <int BITS, int R>
struct row_kernels {
    static void scores(const int16_t * q, const float * q_scale, const char * k, size_t stride, int block, int n_block, int n_kv, const int16_t * table, float * s) {
        row_scores<BITS, R>(q, q_scale, k, stride, block, n_block, n_kv, table, s);
    }

    static void values(const int16_t * w, const char * v, size_t stride, int block, int n_kv, const int16_t * table, const float * alpha, const float * beta, float step,
            float * o, int64_t ld_o) {
        constexpr int W = (R + 3)/4;
        const int_levels<BITS> levels(table);
        int16_t pairs[TILE/2*W*8]; // [TILE/2][4*W][2]
        for (int i = 0; i < TILE; i += 2) {
            for (int g = 0; g < R; ++g) {
                memcpy(pairs + i*4*W + 2*g, w + g*TILE + i, 2*sizeof(int16_t));
            }
        }
        for (int i = 0; i < n_windows(block); ++i) {
            const int first = window_first(block, i);
            int32_t sums[R*WINDOW];
            row_values_window<BITS, R>(pairs, v + 2 + BITS*first/8, stride, n_kv, levels, sums);
            for (int g = 0; g < R; ++g) {
                add_window<BITS>(sums + g*WINDOW, block, i, alpha[g], beta[g]*step, o + g*ld_o);
            }
        }
    }
};

} // namespace

const turbo_kernels * turbo_kernels_neon() {
    static const turbo_kernels kernels = {
        /*.name   =*/ "neon",
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
