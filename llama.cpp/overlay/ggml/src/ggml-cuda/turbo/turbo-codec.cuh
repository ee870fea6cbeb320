#pragma once

// Device side of docs/FORMAT.md sections 2 to 4: what a block looks like, and how a lane reads its part of a row.
//
// A format goes into a kernel by value, as a parameter: there is no table to upload, so none that a second device could lack.

#include "../common.cuh"

#include "ggml-turbo.h"
#include "ggml-turbo-codebook.h"

#include <cmath>

struct turbo_format {
    int   bits;
    int   block;         // values of a block
    int   bytes;         // of a block
    float centroids [8]; // positive half of the codebook, ascending; the 1 << (bits - 1) first are valid
    float boundaries[7]; // between them; infinite where there are none
};

// bits 0 when the type is no turbo type
static inline turbo_format turbo_format_of(ggml_type type) {
    turbo_format f = {};
    for (float & b : f.boundaries) {
        b = INFINITY;
    }
    switch (type) {
#define X(ID, ENUM, NAME, BITS, BLOCK)                                                                          \
        case GGML_TYPE_##ENUM: {                                                                                \
            const float c[1 << (BITS - 1)]       = GGML_TURBO_CENTROIDS_B##BITS##_N##BLOCK;                     \
            const float b[(1 << (BITS - 1)) - 1] = GGML_TURBO_BOUNDARIES_B##BITS##_N##BLOCK;                    \
            f.bits  = BITS;                                                                                     \
            f.block = BLOCK;                                                                                    \
            f.bytes = GGML_TURBO_BLOCK_SIZE(BITS, BLOCK);                                                       \
            for (int i = 0; i < (1 << (BITS - 1)); ++i)     { f.centroids[i]  = c[i]; }                         \
            for (int i = 0; i < (1 << (BITS - 1)) - 1; ++i) { f.boundaries[i] = b[i]; }                         \
        } break;
        GGML_TURBO_TYPES(X)
#undef X
        default: break;
    }
    return f;
}

// levels[code] in shared memory, written by the first 8 threads. Lanes that look up different levels hit different banks,
// so a look-up never conflicts.
constexpr int TURBO_LEVELS = 16;

static __device__ __forceinline__ void turbo_write_levels(float * levels, const turbo_format & f, int tid) {
    const int half = 1 << (f.bits - 1);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
        if (i == tid && i < half) {
            levels[half + i]     =  f.centroids[i];
            levels[half - 1 - i] = -f.centroids[i];
        }
    }
}

// x[j] = level of code j of 8, which are the low bits of w
static __device__ __forceinline__ void turbo_decode_8(uint32_t w, int bits, const float * levels, float * x) {
    const uint32_t mask = (4u << bits) - 4u; // of a code times sizeof(float)
#pragma unroll
    for (int j = 0; j < 8; ++j) {
        // shifted step by step: shift counts of their own would be 7 registers
        const uint32_t offset = (j == 0 ? w << 2 : w) & mask;
        w >>= j == 0 ? bits - 2 : bits;
        x[j] = *(const float *) ((const char *) levels + offset);
    }
}

static __device__ __forceinline__ float turbo_scale(uint32_t bits16) {
    return __half2float(__ushort_as_half((unsigned short) bits16));
}

//
// the rows of a cache tensor, read in chunks of C values
//

enum turbo_kind {
    TURBO_KIND_TURBO,
    TURBO_KIND_F16,
    TURBO_KIND_Q8_0,
};

constexpr int TURBO_Q8_0_BLOCK = 32;
constexpr int TURBO_Q8_0_BYTES = 34;

struct turbo_side {
    const char * data;
    int64_t      nb1, nb2, nb3;
    int          d;              // values of a row
    turbo_kind   kind;
    turbo_format format;         // of TURBO_KIND_TURBO

    __host__ __device__ int block() const { return kind == TURBO_KIND_TURBO ? format.block : TURBO_Q8_0_BLOCK; }
};

// offset of values [v, v + 8) from the start of their row; v is a multiple of 8
template <turbo_kind KIND>
static __device__ __forceinline__ int turbo_value_offset(const turbo_side & s, int v) {
    if constexpr (KIND == TURBO_KIND_F16) {
        return 2*v;
    } else if constexpr (KIND == TURBO_KIND_Q8_0) {
        return v/TURBO_Q8_0_BLOCK*TURBO_Q8_0_BYTES + 2 + v % TURBO_Q8_0_BLOCK;
    } else {
        const int b = v/s.format.block;
        return b*s.format.bytes + 2 + (v - b*s.format.block)*s.format.bits/8;
    }
}

// C packed values as they lie in memory
template <turbo_kind KIND, int C>
struct turbo_raw {
    static_assert(C == 8 || C == 16, "blocks are multiples of 16 values, code groups are 8");
    static constexpr int WORDS = KIND == TURBO_KIND_TURBO ? C/8 : KIND == TURBO_KIND_F16 ? C/2 : C/4;

    uint32_t w[WORDS];

    __device__ __forceinline__ void clear() {
#pragma unroll
        for (int i = 0; i < WORDS; ++i) {
            w[i] = 0;
        }
    }

    // Every byte is read once. Blocks have even sizes and no more than that: 16 bits is the widest access that is always aligned.
    __device__ __forceinline__ void load(const char * p, int bits) {
        if constexpr (KIND == TURBO_KIND_F16) {
#pragma unroll
            for (int i = 0; i < WORDS; ++i) {
                w[i] = ((const uint32_t *) p)[i];
            }
        } else if constexpr (KIND == TURBO_KIND_Q8_0) {
            const uint16_t * h = (const uint16_t *) p;
#pragma unroll
            for (int i = 0; i < WORDS; ++i) {
                w[i] = h[2*i] | (uint32_t) h[2*i + 1] << 16;
            }
        } else if constexpr (C == 16) {
            const uint16_t * h = (const uint16_t *) p;
            const uint32_t lo = h[0] | (uint32_t) h[1] << 16;
            uint32_t hi = 0;
            if (bits > 2) {
                hi = h[2];
            }
            if (bits > 3) {
                hi |= (uint32_t) h[3] << 16;
            }
            w[0] = lo;
            w[1] = __funnelshift_rc(lo, hi, 8*bits);
        } else {
            const uint8_t * b = (const uint8_t *) p; // 3 bytes a group: odd addresses
            w[0] = b[0] | (uint32_t) b[1] << 8;
            if (bits > 2) {
                w[0] |= (uint32_t) b[2] << 16;
            }
            if (bits > 3) {
                w[0] |= (uint32_t) b[3] << 24;
            }
        }
    }

    // values 8*i..8*i+7, without the scale of their block
    __device__ __forceinline__ void decode_8(int i, int bits, const float * levels, float * x) const {
        if constexpr (KIND == TURBO_KIND_F16) {
#pragma unroll
            for (int j = 0; j < 4; ++j) {
                x[2*j]     = turbo_scale(w[4*i + j] & 0xFFFF);
                x[2*j + 1] = turbo_scale(w[4*i + j] >> 16);
            }
        } else if constexpr (KIND == TURBO_KIND_Q8_0) {
#pragma unroll
            for (int j = 0; j < 8; ++j) {
                x[j] = (float) (int8_t) (w[2*i + j/4] >> 8*(j % 4));
            }
        } else {
            turbo_decode_8(w[i], bits, levels, x);
        }
    }
};
