// Dot-product level (Armv8.2 with the dot-product extension: Cortex-A76, Neoverse N1, Apple A13 and later). Everything is NEON's but the
// row kernels of attention. Both sides of a product are cut into two signed bytes, and sdot forms 16 products of bytes an instruction: four of
// them do the work of four smlal, on most cores at twice the rate. But the three sums of a product crowd the registers: by count of
// instructions it is no gain (docs/arm.md), so it runs only where GGML_TURBO_ISA asks for it.
//
// Where the library is built for a named processor, so is this unit, and it is empty if that one has no dot product (turbo.cmake).

#include "turbo-kernels.h"

#if defined(__ARM_FEATURE_DOTPROD)

#include <arm_neon.h>

#include <cstring>

#if defined(__linux__)
#    include <asm/hwcap.h>
#    include <sys/auxv.h>
#elif defined(__APPLE__)
#    include <sys/sysctl.h>
#endif

namespace {

bool has_dotprod() {
#if defined(__linux__)
    return (getauxval(AT_HWCAP) & HWCAP_ASIMDDP) != 0;
#elif defined(__APPLE__)
    int    has  = 0;
    size_t size = sizeof(has);
    return sysctlbyname("hw.optional.arm.FEAT_DotProd", &has, &size, nullptr, 0) == 0 && has != 0;
#else
    return false;
#endif
}

#include "turbo-fattn-rows.inc"
#include "turbo-neon-rows.inc"

// levels of 16 codes as the integers of a table, in two signed bytes
template <int BITS>
struct byte_levels {
    int8x16_t lo, hi;

    explicit byte_levels(const int16_t * table) {
        int8_t l[16], h[16];
        for (int i = 0; i < 16; ++i) {
            const int x = table[i % (1 << BITS)];
            l[i] = (int8_t) x;
            h[i] = (int8_t) ((x - l[i])/256);
        }
        lo = vld1q_s8(l);
        hi = vld1q_s8(h);
    }

    TURBO_INLINE int8x16x2_t operator()(uint8x16_t code) const {
        return { { vqtbl1q_s8(hi, code), vqtbl1q_s8(lo, code) } };
    }
};

// Eight int16 as their upper and then their lower signed bytes. Those from 32640 on would not fit, so all are made smaller by 1/FIT.
constexpr float FIT = 32768.0f/32640.0f;

TURBO_INLINE int8x16_t signed_bytes(int16x8_t x) {
    const int16x8_t y = vqrdmulhq_n_s16(x, 32640);
    return vcombine_s8(vrshrn_n_s16(y, 8), vmovn_s16(y));
}

// Sums of products of upper bytes, of an upper and a lower one, and of lower ones. The whole is that of the int16, and fits into int32 as it does.
struct split_sum {
    int32x4_t hh, hl, ll;

    TURBO_INLINE int32x4_t whole() const { return vaddq_s32(vaddq_s32(vshlq_n_s32(hh, 16), vshlq_n_s32(hl, 8)), ll); }
};

// with the levels x, and the bytes of the other side in lanes HI and LO of b
template <int HI, int LO>
TURBO_INLINE void add_products(split_sum & c, int8x16x2_t x, int8x16_t b) {
    c.hh = vdotq_laneq_s32(c.hh, x.val[0], b, HI);
    c.hl = vdotq_laneq_s32(c.hl, x.val[0], b, LO);
    c.hl = vdotq_laneq_s32(c.hl, x.val[1], b, HI);
    c.ll = vdotq_laneq_s32(c.ll, x.val[1], b, LO);
}

// Four keys at a time, one a lane.
template <int BITS, int R>
void row_scores(const int16_t * q, const float * q_scale, const char * k, size_t stride, int block, int n_block, int n_kv, const int16_t * table, float * s) {
    const byte_levels<BITS> levels(table);
    const int size = GGML_TURBO_BLOCK_SIZE(BITS, block);

    for (int b = 0; b < n_block; ++b) {
        int8_t ordered[MAX_WINDOWS*WINDOW*R*2]; // [window][plane][R][16]: upper bytes, lower bytes
        order_queries<BITS, R>(q + (int64_t) b*block/8*R*32, block, [&](int i, int n, int g, int16x8_t x) {
            vst1q_s8(ordered + ((i*PLANES + n)*R + g)*16, signed_bytes(x));
        });

        for (int i = 0; i < n_kv; i += 4) {
            const uint8_t * rows[4];
            float scale[4];
            for (int l = 0; l < 4; ++l) {
                rows[l]  = (const uint8_t *) k + (i + l < n_kv ? i + l : n_kv - 1)*stride + b*size;
                scale[l] = load_f16(rows[l]);
            }
            split_sum c[R];
            TURBO_UNROLL
            for (int g = 0; g < R; ++g) {
                c[g].hh = c[g].hl = c[g].ll = vdupq_n_s32(0);
            }
            const int8_t * pq = ordered;
            for (int j = 0; j < n_windows(block); ++j) {
                const int offset = 2 + BITS*window_first(block, j)/8;
                const planes<BITS> p02(rows[0] + offset, rows[2] + offset);
                const planes<BITS> p13(rows[1] + offset, rows[3] + offset);
                TURBO_UNROLL
                for (int n = 0; n < PLANES; ++n, pq += 16*R) {
                    // four codes of each key to a lane: the first of them, the last
                    const uint32x4_t x = vreinterpretq_u32_u8(p02.code(n)), y = vreinterpretq_u32_u8(p13.code(n));
                    const int8x16x2_t first = levels(vreinterpretq_u8_u32(vtrn1q_u32(x, y)));
                    const int8x16x2_t last  = levels(vreinterpretq_u8_u32(vtrn2q_u32(x, y)));
                    TURBO_UNROLL
                    for (int g = 0; g < R; ++g) {
                        const int8x16_t v = vld1q_s8(pq + 16*g);
                        add_products<0, 2>(c[g], first, v);
                        add_products<1, 3>(c[g], last,  v);
                    }
                }
            }
            TURBO_UNROLL
            for (int g = 0; g < R; ++g) {
                const float32x4_t x = vmulq_f32(vcvtq_f32_s32(c[g].whole()), vld1q_f32(scale));
                float * ps = s + g*TILE + i;
                vst1q_f32(ps, vfmaq_n_f32(b == 0 ? vdupq_n_f32(0.0f) : vld1q_f32(ps), x, FIT*q_scale[b*R + g]));
            }
        }
    }
}

// c[g] += products with the weights of row g, in w two rows a vector
template <int R, int G = 0>
TURBO_INLINE void add_weighted(split_sum (&c)[R], int8x16x2_t x, const int8x16_t * w) {
    if constexpr (G < R) {
        add_products<2*(G % 2), 2*(G % 2) + 1>(c[G], x, w[G/2]);
        add_weighted<R, G + 1>(c, x, w);
    }
}

// P planes, from plane N on, of the window at v, for R rows; w [TILE/4][ld_w][2][4]: sums [R][PLANES][8] of weights times levels
template <int BITS, int R, int N, int P>
inline void row_values(const int8_t * w, int ld_w, const char * v, size_t stride, int n_kv, const byte_levels<BITS> & levels, int32_t * sums) {
    split_sum c[P][2][R]; // two halves of a plane
    TURBO_UNROLL
    for (int n = 0; n < P; ++n) {
        TURBO_UNROLL
        for (int g = 0; g < R; ++g) {
            c[n][0][g].hh = c[n][0][g].hl = c[n][0][g].ll = vdupq_n_s32(0);
            c[n][1][g] = c[n][0][g];
        }
    }
    for (int i = 0; i < n_kv; i += 4, v += 4*stride, w += 8*ld_w) {
        const uint8_t * rows[4]; // those past the last have weight 0
        for (int l = 0; l < 4; ++l) {
            rows[l] = (const uint8_t *) v + (i + l < n_kv ? l : 0)*stride;
        }
        const planes<BITS> p02(rows[0], rows[2]), p13(rows[1], rows[3]);
        int8x16_t wv[(R + 1)/2];
        TURBO_UNROLL
        for (int j = 0; j < (R + 1)/2; ++j) {
            wv[j] = vld1q_s8(w + 16*j);
        }
        TURBO_UNROLL
        for (int n = 0; n < P; ++n) {
            // the codes of the four keys side by side
            const uint8x16_t x = p02.code(N + n), y = p13.code(N + n);
            const uint16x8_t k01 = vreinterpretq_u16_u8(vzip1q_u8(x, y)), k23 = vreinterpretq_u16_u8(vzip2q_u8(x, y));
            add_weighted<R>(c[n][0], levels(vreinterpretq_u8_u16(vzip1q_u16(k01, k23))), wv);
            add_weighted<R>(c[n][1], levels(vreinterpretq_u8_u16(vzip2q_u16(k01, k23))), wv);
        }
    }
    TURBO_UNROLL
    for (int n = 0; n < P; ++n) {
        TURBO_UNROLL
        for (int g = 0; g < R; ++g) {
            vst1q_s32(sums + g*WINDOW + 8*(N + n),     c[n][0][g].whole());
            vst1q_s32(sums + g*WINDOW + 8*(N + n) + 4, c[n][1][g].whole());
        }
    }
}

template <int BITS, int R, int N = 0>
inline void row_values_window(const int8_t * w, int ld_w, const char * v, size_t stride, int n_kv, const byte_levels<BITS> & levels, int32_t * sums) {
    constexpr int P = R == 1 ? 4 : R == 2 ? 2 : 1; // 24 accumulators at most
    row_values<BITS, R, N, P>(w, ld_w, v, stride, n_kv, levels, sums);
    if constexpr (N + P < PLANES) {
        row_values_window<BITS, R, N + P>(w, ld_w, v, stride, n_kv, levels, sums);
    }
}

template <int BITS, int R>
struct row_kernels {
    static void scores(const int16_t * q, const float * q_scale, const char * k, size_t stride, int block, int n_block, int n_kv, const int16_t * table, float * s) {
        row_scores<BITS, R>(q, q_scale, k, stride, block, n_block, n_kv, table, s);
    }

    static void values(const int16_t * w, const char * v, size_t stride, int block, int n_kv, const int16_t * table, const float * alpha, const float * beta, float step,
            float * o, int64_t ld_o) {
        constexpr int R0 = R <= 3 ? R : (R + 1)/2; // more than three rows: in two turns, or the sums leave the registers
        const byte_levels<BITS> levels(table);
        int8_t bytes[TILE/4*R*8 + 8] = {}; // [TILE/4][R][2][4], and the rest of a vector of two rows
        for (int g = 0; g < R; ++g) {
            for (int i = 0; i < TILE; i += 8) {
                // upper bytes of keys 0 to 3, of 4 to 7, lower bytes of the same
                const int32x4_t x = vreinterpretq_s32_s8(signed_bytes(vld1q_s16(w + g*TILE + i)));
                vst1_s8(bytes + ((i/4    )*R + g)*8, vreinterpret_s8_s32(vzip1_s32(vget_low_s32(x), vget_high_s32(x))));
                vst1_s8(bytes + ((i/4 + 1)*R + g)*8, vreinterpret_s8_s32(vzip2_s32(vget_low_s32(x), vget_high_s32(x))));
            }
        }
        for (int i = 0; i < n_windows(block); ++i) {
            const char * p = v + 2 + BITS*window_first(block, i)/8;
            int32_t sums[R*WINDOW];
            row_values_window<BITS, R0>(bytes, R, p, stride, n_kv, levels, sums);
            if constexpr (R > R0) {
                row_values_window<BITS, R - R0>(bytes + 8*R0, R, p, stride, n_kv, levels, sums + R0*WINDOW);
            }
            for (int g = 0; g < R; ++g) {
                add_window<BITS>(sums + g*WINDOW, block, i, alpha[g], FIT*beta[g]*step, o + g*ld_o);
            }
        }
    }
};

} // namespace

const turbo_kernels * turbo_kernels_dotprod() {
    if (!has_dotprod()) {
        return nullptr;
    }
    static const turbo_kernels kernels = [] {
        turbo_kernels res = *turbo_kernels_neon();
        res.name = "dotprod";
        res.fattn_rows.scores = row_scores_any<row_kernels>;
        res.fattn_rows.values = row_values_any<row_kernels>;
        return res;
    }();
    return &kernels;
}

#else

const turbo_kernels * turbo_kernels_dotprod() {
    return nullptr;
}

#endif
