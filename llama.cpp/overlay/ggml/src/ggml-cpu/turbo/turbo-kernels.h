#pragma once

// Kernel table of one instruction-set level. Each level is one translation unit with its own compiler flags
// (turbo.cmake), everything in it is local, and it is reached through this table only: no level can leak into another.

#include "ggml-turbo.h"

#include <cstddef>
#include <cstdint>

// of a loop over a register block: its arrays become registers only when it is gone
#if defined(__GNUC__)
#    define TURBO_UNROLL _Pragma("GCC unroll 8")
#else
#    define TURBO_UNROLL
#endif

#if defined(__GNUC__)
#    define TURBO_PREFETCH(ADDRESS) __builtin_prefetch(ADDRESS)
#else
#    define TURBO_PREFETCH(ADDRESS) ((void) (ADDRESS))
#endif

struct turbo_type_kernels {
    // k floats, a multiple of the block; bytes identical at every level
    void (*encode)(const float * x, void * y, int64_t k);
    void (*decode)(const void * x, float * y, int64_t k);
    // dot product of k decoded values with k floats
    float (*dot)(const void * x, const float * y, int64_t k);

    // Integer levels for attention; null at a level without turbo_fattn_kernels::qk_i16.
    //   table[code]  the level as an integer, 2^bits entries
    //   levels       y[j] = table[code j] of one row, k values
    //   levels_pair  the same of two rows, y[2*j] from x0, y[2*j + 1] from x1
    void (*levels)     (const void * x, const int16_t * table, int16_t * y, int64_t k);
    void (*levels_pair)(const void * x0, const void * x1, const int16_t * table, int16_t * y, int64_t k);
};

// Attention on one tile of keys and values. A query row is a lane: nq vectors of 16 lanes, L = 16*nq, nq in 1..TURBO_FATTN_MAX_NQ.
// Tiles are row-major, s and p are [n_kv][L]; scores are base-2 logits. n_kv and the value columns are multiples of 8; no alignment is assumed.
constexpr int TURBO_FATTN_MAX_NQ = 3;
constexpr int TURBO_FATTN_TILE   = 64; // keys of a tile

struct turbo_fattn_kernels {
    // s = k q, with k [n_kv][dk], q [dk][L]
    void (*qk)(int nq, const float * q, const float * k, int dk, int n_kv, float * s);

    // One step of the online softmax: s becomes p = 2^(s' - M) with s' = cap*tanh(s) (cap != 0) + mask (mask: [n_kv][L] or null), rows from
    // n_valid on become 0; M and S are the running maximum and sum, alpha = 2^(old M - new M). A masked (-inf) key counts for nothing, whatever its score.
    void (*softmax)(int nq, float * s, int n_valid, int n_kv, const float * mask, float cap, float * M, float * S, float * alpha);

    // o = alpha*o + v^T p, with v [n_kv][dv], o [dv][L]
    void (*pv)(int nq, const float * p, const float * v, int dv, int n_kv, const float * alpha, float * o);

    // Integer forms for turbo blocks; null where the level has none.
    // q [dk/block][block/2][L][2] with q_scale [dk/block][L], k [n_kv][dk] with k_scale [n_kv][dk/block]; int32 sums must not overflow
    void (*qk_i16)(int nq, const int16_t * q, const float * q_scale, const int16_t * k, const float * k_scale, int dk, int block, int n_kv, float * s);
    // w [n_kv/2][L][2] = round(p*v_scale/beta), beta [L] the least for which |w| fits into int16 and its sum over the keys is sum_max at most (but
    // for rounding); v_scale[i*stride] belongs to key i
    void (*weights_i16)(int nq, const float * p, const float * v_scale, int stride, int n_kv, float sum_max, int16_t * w, float * beta);
    // o [n][L] = alpha*o + beta*step*(v^T w), with n columns of v [n_kv/2][dv][2]
    void (*pv_i16)(int nq, const int16_t * w, const int16_t * v, int dv, int n, int n_kv, const float * alpha, const float * beta, float step, float * o);
};

// Attention of a few query rows, the values of a head across the lanes, straight from the packed codes; for pairs of turbo types. n_rows is in
// 1..TURBO_FATTN_MAX_ROWS, a tile has n_kv <= TURBO_FATTN_TILE keys at k (or v), k + stride, ...; arrays over a tile are [n_rows][TURBO_FATTN_TILE],
// defined for all of it. A null table of functions: the level has none.
constexpr int TURBO_FATTN_MAX_ROWS = 6;

struct turbo_fattn_row_kernels {
    // s: base-2 logits. q [dk/8][n_rows][32]: groups of 8 values, four times over; q_scale [n_block][n_rows]; table as for levels
    void (*scores)(int bits, int n_rows, const int16_t * q, const float * q_scale, const char * k, size_t stride, int block, int n_block, int n_kv,
            const int16_t * table, float * s);
    // as turbo_fattn_kernels::softmax; mask: f16 rows times slope, or null
    void (*softmax)(int n_rows, float * s, int n_kv, const uint16_t * const * mask, const float * slope, float cap, float * M, float * S, float * alpha);
    // w = round(p*scale/beta) for the scales at v; returns the keys whose scale is no number, one a bit: they count as 0
    uint64_t (*weights)(int n_rows, const float * p, const char * v, size_t stride, int n_kv, float sum_max, int16_t * w, float * beta);
    // o = alpha*o + beta*step*(v^T w), rows of o ld_o apart, for the block at v
    void (*values)(int bits, int n_rows, const int16_t * w, const char * v, size_t stride, int block, int n_kv, const int16_t * table,
            const float * alpha, const float * beta, float step, float * o, int64_t ld_o);
};

struct turbo_kernels {
    const char * name;
    turbo_type_kernels types[GGML_TURBO_TYPE_END - GGML_TURBO_TYPE_FIRST];
    // as ggml_turbo_rotate_row_ref
    void (*rotate)(const float * x, const float * diag, const float * shift, float * y, int64_t d, bool inverse);
    turbo_fattn_kernels     fattn;
    turbo_fattn_row_kernels fattn_rows;
};

const turbo_kernels * turbo_kernels_scalar();
#if defined(GGML_TURBO_X86)
const turbo_kernels * turbo_kernels_avx2();
const turbo_kernels * turbo_kernels_avx512();
#if defined(GGML_TURBO_AVXVNNI)
const turbo_kernels * turbo_kernels_avxvnni(); // null where the processor has no AVX-VNNI
#endif
#endif
#if defined(GGML_TURBO_NEON)
const turbo_kernels * turbo_kernels_neon();
const turbo_kernels * turbo_kernels_dotprod(); // null where the processor has no dot product
#endif

// The level in use: the best one that this processor has, or the one that GGML_TURBO_ISA names.
const turbo_kernels * turbo_kernels_get();

static inline const turbo_type_kernels & turbo_kernels_of(const turbo_kernels * kernels, ggml_type type) {
    return kernels->types[type - GGML_TURBO_TYPE_FIRST];
}
