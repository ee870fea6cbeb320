// Flash attention on turbo keys and values: the part that no instruction set decides.
//
// The query rows of one KV head (its group of query heads times the tokens) are cut into row blocks, the keys into tiles. A unit of work is one row
// block against all keys, or a run of them when there are too few row blocks for the threads; then the partial results are merged after a
// barrier. A tile of K and V is decoded once for a whole row block. Scratch is a few tiles and one row block a thread, whatever the context.
//
// Few rows (a generated token) are bound by memory at depth, and the heads of one key share cache lines: a unit then takes a tile for all its KV heads in
// turn, so that each line comes from memory once.
//
// Q, K and V come rotated, the output leaves rotated: the graph undoes it (llama-turbo.cpp).

#include "turbo.h"
#include "turbo-kernels.h"

#include "ggml-cpu.h"
#include "ggml-cpu-impl.h"
#include "ggml-impl.h"
#include "simd-mappings.h"
#include "ggml-turbo-codebook.h"

#include <algorithm>
#include <cfloat>
#include <cmath>
#include <cstring>

namespace {

constexpr int TILE  = TURBO_FATTN_TILE;
constexpr int LANES = 16*TURBO_FATTN_MAX_NQ;

constexpr int MAX_FEW = 12;                   // query rows of a KV head up to which the row kernels are the faster ones
constexpr int MAX_SUB = 4;                    // sub-blocks of LANES rows in a row block
constexpr int64_t ROW_BLOCK_BYTES = 256*1024; // Q and output of a row block: they stay in L2
constexpr int64_t MIN_KEYS = 4*TILE;          // keys of a unit
constexpr int64_t UNITS_PER_THREAD = 8;
constexpr int64_t FEW_UNITS_PER_THREAD = 4;     // a unit of few rows begins with loading them, and its results are merged

constexpr float LOG2E = 1.4426950408889634f;

// Codebook as integers, level = step*value: of the scalings to about 12 bits the one that rounds it best.
struct int_levels {
    int16_t value[16];
    int32_t max;
    float   step;
};

int_levels make_int_levels(const float * centroids, int h) {
    const int n_max = h == 2 ? 1023 : 4095;
    int    best = n_max;
    double best_err = INFINITY;
    for (int n = n_max/2 + 1; n <= n_max; ++n) {
        const double f = n/(double) centroids[h - 1];
        double err = 0.0;
        for (int i = 0; i < h; ++i) {
            err = std::max(err, std::fabs(centroids[i]*f - std::round(centroids[i]*f))/f);
        }
        if (err < best_err) {
            best_err = err;
            best = n;
        }
    }
    int_levels res = {};
    const double f = best/(double) centroids[h - 1];
    for (int i = 0; i < h; ++i) {
        res.value[h + i]     = (int16_t)  std::lround(centroids[i]*f);
        res.value[h - 1 - i] = (int16_t) -res.value[h + i];
    }
    res.max  = best;
    res.step = (float) (1.0/f);
    return res;
}

const int_levels & int_levels_of(ggml_type type) {
    struct tables {
        int_levels t[GGML_TURBO_TYPE_END - GGML_TURBO_TYPE_FIRST];
        tables() {
#define X(ID, ENUM, NAME, BITS, BLOCK)                                                                        \
            {                                                                                                 \
                const float c[1 << (BITS - 1)] = GGML_TURBO_CENTROIDS_B##BITS##_N##BLOCK;                     \
                t[ID - GGML_TURBO_TYPE_FIRST] = make_int_levels(c, 1 << (BITS - 1));                          \
            }
            GGML_TURBO_TYPES(X)
#undef X
        }
    };
    static const tables all;
    return all.t[type - GGML_TURBO_TYPE_FIRST];
}

// What the magnitudes of n integers may add up to, so that the sum of their products with levels fits into int32; less n/2 for their rounding.
float int_sum_max(const int_levels & levels, int64_t n) {
    return (float) (INT32_MAX/levels.max - n);
}

// How a node is cut into units; the same in the size estimate and in the computation.
struct fattn_plan {
    int64_t DK, DV, n_tokens, n_head, n_stream, n_kv;
    int64_t n_head_kv, group;         // query heads of a KV head
    int64_t rows, block, n_blocks;    // query rows of a KV head, rows of a row block, row blocks
    int64_t chunk, n_chunks;          // keys of a unit, units a row block
    int64_t n_units;

    const turbo_kernels * level;
    bool    few;                      // the row kernels do it
    int64_t unit_heads, n_head_units; // few: KV heads of a unit, such groups of heads

    size_t scratch;                   // bytes a thread
    size_t partials;                  // bytes for all

    int64_t partial_stride() const { return DV + 2; } // M, S, unnormalised output
};

size_t align64(size_t n) {
    return (n + 63)/64*64;
}

// bytes of the arrays of one thread; fattn_scratch takes them in this order
struct scratch_sizes {
    size_t q, q_scale, o, M, S, alpha, beta, k, k_scale, v, v_scale, s, mask, w, row;

    explicit scratch_sizes(const fattn_plan & p) {
        // the row kernels hold the rows of all heads of the unit, q four times over in int16
        const int64_t lanes = p.few ? p.unit_heads*p.rows : (p.block + 15)/16*16;
        q       = align64(p.DK*lanes*(p.few ? 4*sizeof(int16_t) : sizeof(float)));
        q_scale = align64(p.DK/16*lanes*sizeof(float));
        o       = align64(p.DV*lanes*sizeof(float));
        M       = align64(lanes*sizeof(float));
        S       = align64(lanes*sizeof(float));
        alpha   = align64(LANES*sizeof(float));
        beta    = align64(LANES*sizeof(float));
        k       = align64(TILE*p.DK*sizeof(float));
        k_scale = align64(TILE*p.DK/16*sizeof(float));
        v       = align64(TILE*p.DV*sizeof(float));
        v_scale = align64(TILE*p.DV/16*sizeof(float));
        s       = align64(TILE*LANES*sizeof(float));
        mask    = align64(TILE*LANES*sizeof(float));
        w       = align64(TILE*LANES*sizeof(int16_t));
        row     = align64(std::max(std::max(p.DK, p.DV), (int64_t) TILE)*sizeof(float));
    }

    size_t total() const { return q + q_scale + o + M + S + alpha + beta + k + k_scale + v + v_scale + s + mask + w + row; }
};

bool make_plan(const ggml_tensor * dst, int nth, fattn_plan & p) {
    const ggml_tensor * q    = dst->src[0];
    const ggml_tensor * k    = dst->src[1];
    const ggml_tensor * v    = dst->src[2];
    const ggml_tensor * mask = dst->src[3];

    if (!ggml_is_turbo(k->type) && !ggml_is_turbo(v->type)) {
        return false;
    }
    for (const ggml_tensor * t : { k, v }) {
        if (t->nb[0] != ggml_type_size(t->type) || t->ne[0] % 8 != 0 || (t->type != GGML_TYPE_F32 && !ggml_get_type_traits(t->type)->to_float)) {
            return false;
        }
    }
    if (q->type != GGML_TYPE_F32 || q->nb[0] != sizeof(float) || dst->nb[0] != sizeof(float) || k->ne[2] != v->ne[2] || k->ne[3] != v->ne[3] ||
        k->ne[1] != v->ne[1] || q->ne[2] % k->ne[2] != 0 || q->ne[3] % k->ne[3] != 0 || (mask && mask->type != GGML_TYPE_F16)) {
        return false;
    }

    p.DK        = k->ne[0];
    p.DV        = v->ne[0];
    p.n_kv      = k->ne[1];
    p.n_tokens  = q->ne[1];
    p.n_head    = q->ne[2];
    p.n_stream  = q->ne[3];
    p.n_head_kv = k->ne[2];
    p.group     = p.n_head/p.n_head_kv;
    p.rows      = p.group*p.n_tokens;

    const int64_t sub = std::clamp<int64_t>(ROW_BLOCK_BYTES/(LANES*(p.DK + p.DV)*(int64_t) sizeof(float)), 1, MAX_SUB);
    p.block    = std::min(p.rows, sub*LANES);
    p.n_blocks = (p.rows + p.block - 1)/p.block;

    p.level = turbo_kernels_get();
    p.few   = ggml_is_turbo(k->type) && ggml_is_turbo(v->type) && p.rows <= MAX_FEW && p.level->fattn_rows.scores;

    const int64_t n_full = p.few ? p.n_stream : p.n_blocks*p.n_head_kv*p.n_stream;
    const int64_t units  = (p.few ? FEW_UNITS_PER_THREAD : UNITS_PER_THREAD)*nth;
    const int64_t wanted = nth > 1 && n_full < units/2 ? units/n_full : 1;
    p.n_chunks = std::clamp<int64_t>(wanted, 1, std::max<int64_t>(1, p.n_kv/MIN_KEYS));
    const int64_t tiles = (p.n_kv + TILE - 1)/TILE;
    p.chunk    = std::max<int64_t>(1, (tiles + p.n_chunks - 1)/p.n_chunks)*TILE;
    p.n_chunks = std::max<int64_t>(1, (p.n_kv + p.chunk - 1)/p.chunk);

    // a short cache is cut by heads too
    p.n_head_units = std::clamp<int64_t>((wanted + p.n_chunks - 1)/p.n_chunks, 1, p.n_head_kv);
    p.unit_heads   = (p.n_head_kv + p.n_head_units - 1)/p.n_head_units;
    p.n_head_units = (p.n_head_kv + p.unit_heads - 1)/p.unit_heads;
    p.n_units      = n_full*p.n_chunks*(p.few ? p.n_head_units : 1);

    p.scratch  = scratch_sizes(p).total();
    p.partials = p.n_chunks > 1 ? align64(p.n_stream*p.n_head_kv*p.rows*p.n_chunks*p.partial_stride()*sizeof(float)) : 0;
    return true;
}

struct fattn_scratch {
    float   * q, * q_scale, * o, * M, * S, * alpha, * beta, * k, * k_scale, * v, * v_scale, * s, * mask;
    int16_t * w;
    float   * row;

    fattn_scratch(const fattn_plan & p, char * base) {
        const scratch_sizes n(p);
        auto take = [&](size_t size) { char * res = base; base += size; return (float *) res; };
        q = take(n.q); q_scale = take(n.q_scale); o = take(n.o); M = take(n.M); S = take(n.S); alpha = take(n.alpha); beta = take(n.beta);
        k = take(n.k); k_scale = take(n.k_scale); v = take(n.v); v_scale = take(n.v_scale); s = take(n.s); mask = take(n.mask);
        w = (int16_t *) take(n.w); row = take(n.row);
    }
};

// One side of the cache for one head and stream: rows of the tensor, and the form that a tile of it takes.
struct kv_side {
    const char * data;
    size_t       nb1;
    ggml_type    type;
    int64_t      d, block, n_block;
    bool         ints;               // tiles of integer levels and block scales, else floats
    const turbo_type_kernels * kernels = nullptr;
    const int_levels * levels = nullptr;

    kv_side(const ggml_tensor * t, int64_t head, int64_t stream, const turbo_kernels * level) {
        data = (const char *) t->data + head*t->nb[2] + stream*t->nb[3];
        nb1  = t->nb[1];
        type = t->type;
        d    = t->ne[0];
        block = d;
        ints = false;
        if (ggml_is_turbo(type)) {
            kernels = &turbo_kernels_of(level, type);
            levels  = &int_levels_of(type);
            block   = ggml_blck_size(type);
            ints    = level->fattn.qk_i16 != nullptr;
        }
        n_block = d/block;
    }

    const char * row(int64_t i) const { return data + i*nb1; }

    float scale(int64_t i, int64_t b) const {
        ggml_fp16_t x;
        memcpy(&x, row(i) + b*ggml_type_size(type), sizeof(x));
        return GGML_CPU_FP16_TO_FP32(x);
    }

    void floats(int64_t i, float * y) const {
        if (kernels) {
            kernels->decode(row(i), y, d);
        } else if (type == GGML_TYPE_F32) {
            memcpy(y, row(i), d*sizeof(float));
        } else if (type == GGML_TYPE_F16) {
            ggml_cpu_fp16_to_fp32((const ggml_fp16_t *) row(i), y, d);
        } else {
            ggml_get_type_traits(type)->to_float(row(i), y, d);
        }
    }
};

enum mask_kind { MASK_NONE, MASK_SOME, MASK_ALL };

mask_kind classify(const ggml_fp16_t * m, int n) {
    uint16_t any = 0, differs = 0;
    for (int i = 0; i < n; ++i) {
        any     |= (uint16_t) (m[i] & 0x7FFF);
        differs |= (uint16_t) (m[i] ^ 0xFC00); // -inf
    }
    return any == 0 ? MASK_NONE : differs == 0 ? MASK_ALL : MASK_SOME;
}

class fattn {
public:
    fattn(const ggml_compute_params * params, ggml_tensor * dst, const fattn_plan & plan) :
            params(params), dst(dst), q(dst->src[0]), k(dst->src[1]), v(dst->src[2]), mask(dst->src[3]), sinks(dst->src[4]),
            p(plan), level(plan.level), kern(level->fattn),
            scratch(plan, (char *) align64((size_t) params->wdata) + params->ith*plan.scratch),
            partials((float *) ((char *) align64((size_t) params->wdata) + params->nth*plan.scratch)) {
        float scale, max_bias, softcap;
        memcpy(&scale,    (const float *) dst->op_params + 0, sizeof(float));
        memcpy(&max_bias, (const float *) dst->op_params + 1, sizeof(float));
        memcpy(&softcap,  (const float *) dst->op_params + 2, sizeof(float));

        // scores are base-2 logits; a softcap takes the plain ones and makes them so
        cap     = softcap*LOG2E;
        q_scale = softcap != 0.0f ? scale/softcap : scale*LOG2E;

        alibi = max_bias > 0.0f;
        n_head_log2 = 1u << (uint32_t) floor(log2(p.n_head));
        m0 = powf(2.0f, -(max_bias       ) / n_head_log2);
        m1 = powf(2.0f, -(max_bias / 2.0f) / n_head_log2);
    }

    void run() {
        if (params->nth > 1) {
            if (params->ith == 0) {
                ggml_threadpool_chunk_set(params->threadpool, params->nth);
            }
            ggml_barrier(params->threadpool);
        }
        for (int64_t u = params->ith; u < p.n_units; u = params->nth > 1 ? ggml_threadpool_chunk_add(params->threadpool, 1) : u + 1) {
            run_unit(u);
        }
        if (p.n_chunks > 1) {
            ggml_barrier(params->threadpool);
            const int64_t n = p.n_stream*p.n_head_kv*p.rows;
            for (int64_t i = params->ith; i < n; i += params->nth) {
                merge_row(i/p.rows/p.n_head_kv, i/p.rows % p.n_head_kv, i % p.rows);
            }
        }
    }

private:
    const ggml_compute_params * params;
    ggml_tensor * dst;
    const ggml_tensor * q, * k, * v, * mask, * sinks;

    const fattn_plan & p;
    const turbo_kernels * level;
    const turbo_fattn_kernels & kern;

    fattn_scratch scratch;
    float * partials;

    float    cap, q_scale, m0, m1;
    bool     alibi;
    uint32_t n_head_log2;

    // of the current unit
    int64_t stream, head_kv, row0, n_rows;
    int     n_bad;
    int     bad[TILE]; // keys of the tile whose value has a scale that is no number

    int64_t kv_stream() const { return stream/(p.n_stream/k->ne[3]); }
    int64_t token(int64_t row) const { return row/p.group; }
    int64_t head (int64_t row) const { return head_kv*p.group + row % p.group; }

    float slope(int64_t h) const {
        return !alibi ? 1.0f : h < n_head_log2 ? powf(m0, h + 1) : powf(m1, 2*(h - n_head_log2) + 1);
    }

    float * partial(int64_t s, int64_t hkv, int64_t row, int64_t chunk) const {
        return partials + (((s*p.n_head_kv + hkv)*p.rows + row)*p.n_chunks + chunk)*p.partial_stride();
    }

    const ggml_fp16_t * mask_row(int64_t row) const {
        return (const ggml_fp16_t *) ((const char *) mask->data + token(row)*mask->nb[1] + (head(row) % mask->ne[2])*mask->nb[2] + (stream % mask->ne[3])*mask->nb[3]);
    }

    float * dst_row(int64_t s, int64_t row) const {
        return (float *) ((char *) dst->data + (s*dst->ne[2]*dst->ne[1] + head(row) + token(row)*dst->ne[1])*dst->nb[1]);
    }

    // sub-blocks: first row (in the block) and vectors of lanes
    static int64_t sub_lanes(int64_t rows_left) { return std::min<int64_t>(LANES, (rows_left + 15)/16*16); }

    void run_unit(int64_t u) {
        if (p.few) {
            run_few(u);
            return;
        }
        const int64_t c   = u % p.n_chunks;
        const int64_t hb  = u / p.n_chunks;
        // the last rows first: under a causal mask they are the longest
        const int64_t blk = p.n_blocks - 1 - hb / (p.n_head_kv*p.n_stream);
        head_kv = hb % p.n_head_kv;
        stream  = hb / p.n_head_kv % p.n_stream;
        row0    = blk*p.block;
        n_rows  = std::min(p.block, p.rows - row0);

        const int64_t first = c*p.chunk;
        const int64_t last  = std::min(p.n_kv, first + p.chunk);

        const kv_side K(k, head_kv, kv_stream(), level);
        const kv_side V(v, head_kv, kv_stream(), level);

        load_q(K);
        const int64_t lanes = (n_rows + 15)/16*16;
        std::fill(scratch.M, scratch.M + lanes, -INFINITY);
        std::fill(scratch.S, scratch.S + lanes, 0.0f);
        memset(scratch.o, 0, lanes*p.DV*sizeof(float));

        for (int64_t i = first; i < last; i += TILE) {
            run_tile(K, V, i, (int) std::min<int64_t>(TILE, last - i));
        }

        for (int64_t r = 0, L; r < n_rows; r += L) {
            L = sub_lanes(n_rows - r);
            for (int64_t l = 0; l < L && r + l < n_rows; ++l) {
                const float * o = scratch.o + r*p.DV + l;
                const float M = scratch.M[r + l];
                const float S = scratch.S[r + l];
                const int64_t row = row0 + r + l;
                store_row(row, c, M, S, o, L);
            }
        }
    }

    // the result of a row of the current unit, values o[0], o[ld], ...
    void store_row(int64_t row, int64_t chunk, float M, float S, const float * o, int64_t ld) {
        float f = 1.0f;
        float * y;
        if (p.n_chunks > 1) {
            y = partial(stream, head_kv, row, chunk);
            *y++ = M;
            *y++ = S;
        } else {
            f = final_factor(head(row), M, S);
            y = dst_row(stream, row);
        }
        for (int64_t d = 0; d < p.DV; ++d) {
            y[d] = o[d*ld]*f;
        }
    }

    // A unit of few rows, all of its KV heads tile by tile. The rows of a head are cut into batches for the row kernels.
    // scratch: q [head][batch][DK/8][row][32], q_scale [head][batch][block][row]; o, M and S by head and row, s and w by row
    void run_few(int64_t u) {
        const int64_t c  = u % p.n_chunks;
        const int64_t hs = u / p.n_chunks;
        const int64_t h0 = hs % p.n_head_units*p.unit_heads;
        const int64_t nh = std::min(p.unit_heads, p.n_head_kv - h0);
        stream = hs / p.n_head_units;
        row0   = 0;
        n_rows = p.rows;

        const int64_t first = c*p.chunk;
        const int64_t last  = std::min(p.n_kv, first + p.chunk);

        std::fill(scratch.M, scratch.M + nh*n_rows, -INFINITY);
        std::fill(scratch.S, scratch.S + nh*n_rows, 0.0f);
        memset(scratch.o, 0, nh*n_rows*p.DV*sizeof(float));
        for (int64_t h = 0; h < nh; ++h) {
            load_q_few(h0 + h, h*n_rows);
        }

        for (int64_t i = first; i < last; i += TILE) {
            const int n = (int) std::min<int64_t>(TILE, last - i);
            for (int64_t h = 0; h < nh; ++h) {
                prefetch(k, h0, nh, h, i + n, last);
                prefetch(v, h0, nh, h, i + n, last);
                run_tile_few(h0 + h, h*n_rows, i, n);
            }
        }

        for (int64_t h = 0; h < nh; ++h) {
            head_kv = h0 + h;
            for (int64_t r = 0; r < n_rows; ++r) {
                const int64_t at = h*n_rows + r;
                store_row(r, c, scratch.M[at], scratch.S[at], scratch.o + at*p.DV, 1);
            }
        }
    }

    // Brings the next tile near, for the processor's own prefetcher does not see it in strides of a key: the share of head h of the nh from h0 on
    // where the heads of a key lie side by side, else its own rows.
    void prefetch(const ggml_tensor * t, int64_t h0, int64_t nh, int64_t h, int64_t i, int64_t last) const {
        const int64_t n = std::clamp<int64_t>(last - i, 0, TILE);
        const size_t row = ggml_row_size(t->type, t->ne[0]);
        const bool side_by_side = t->nb[2] < t->nb[1];
        const int64_t first = side_by_side ? n*h/nh : 0;
        const int64_t end   = side_by_side ? n*(h + 1)/nh : n;
        const size_t  size  = side_by_side ? (nh - 1)*t->nb[2] + row : row;
        const char * base = (const char *) t->data + (side_by_side ? h0 : h0 + h)*t->nb[2] + kv_stream()*t->nb[3];
        for (int64_t a = first; a < end; ++a) {
            for (size_t b = 0; b < size; b += 64) {
                TURBO_PREFETCH(base + (i + a)*t->nb[1] + b);
            }
        }
    }

    // rows of a batch: as even as they can be
    int few_batch() const {
        const int n_batch = ((int) n_rows + TURBO_FATTN_MAX_ROWS - 1)/TURBO_FATTN_MAX_ROWS;
        return ((int) n_rows + n_batch - 1)/n_batch;
    }

    // the queries of a KV head, from row `at` of the scratch on
    void load_q_few(int64_t hkv, int64_t at) {
        head_kv = hkv;
        const kv_side K(k, hkv, kv_stream(), level);
        const int batch = few_batch();
        int16_t * q16     = (int16_t *) scratch.q + at*p.DK*4;
        float   * q_scale = scratch.q_scale + at*K.n_block;
        for (int r = 0; r < n_rows; ++r) {
            const int r0 = r/batch*batch;
            const int R  = std::min(batch, (int) n_rows - r0);
            load_q_row(K, q_row(r), q_scale + r0*K.n_block + r - r0, R, [&](int64_t d, int16_t x) {
                int16_t * y = q16 + r0*p.DK*4 + (d/8*R + r - r0)*32 + d % 8;
                y[0] = y[8] = y[16] = y[24] = x;
            });
        }
    }

    void run_tile_few(int64_t hkv, int64_t at, int64_t i, int n) {
        head_kv = hkv;
        const mask_kind kind = sub_mask(0, n_rows, i, n);
        if (kind == MASK_ALL) {
            return;
        }
        const auto & kr = level->fattn_rows;
        const kv_side K(k, hkv, kv_stream(), level);
        const kv_side V(v, hkv, kv_stream(), level);
        const float sum_max = int_sum_max(*V.levels, TILE);
        const int batch = few_batch();
        float * s = scratch.s;

        for (int r0 = 0; r0 < n_rows; r0 += batch) {
            const int R = std::min(batch, (int) n_rows - r0);
            const int64_t a = at + r0;
            kr.scores(ggml_turbo_bits(K.type), R, (const int16_t *) scratch.q + a*p.DK*4, scratch.q_scale + a*K.n_block, K.row(i), K.nb1, (int) K.block, (int) K.n_block, n,
                    K.levels->value, s);

            const ggml_fp16_t * masks[TURBO_FATTN_MAX_ROWS];
            float slopes[TURBO_FATTN_MAX_ROWS];
            for (int r = 0; r < R && kind == MASK_SOME; ++r) {
                masks[r]  = mask_row(r0 + r) + i;
                slopes[r] = slope(head(r0 + r))*LOG2E;
            }
            kr.softmax(R, s, n, kind == MASK_SOME ? masks : nullptr, slopes, cap, scratch.M + a, scratch.S + a, scratch.alpha);

            for (int64_t b = 0; b < V.n_block; ++b) {
                const char * vb = V.row(i) + b*ggml_type_size(V.type);
                uint64_t not_finite = kr.weights(R, s, vb, V.nb1, n, sum_max, scratch.w, scratch.beta);
                for (int l = 0; not_finite != 0; ++l, not_finite >>= 1) {
                    for (int r = 0; (not_finite & 1) && r < R; ++r) {
                        if (s[r*TILE + l] != 0.0f) {
                            scratch.S[a + r] = NAN;
                        }
                    }
                }
                kr.values(ggml_turbo_bits(V.type), R, scratch.w, vb, V.nb1, (int) V.block, n, V.levels->value, scratch.alpha, scratch.beta, V.levels->step,
                        scratch.o + a*p.DV + b*V.block, p.DV);
            }
        }
    }

    // what the sum of values times weights is multiplied by, the sink counted
    float final_factor(int64_t h, float M, float S) const {
        float ms = 1.0f;
        if (sinks) {
            const float s = ((const float *) sinks->data)[h]*LOG2E;
            if (s > M) {
                ms = exp2f(M - s);
                S  = S*ms + 1.0f;
            } else {
                S += exp2f(s - M);
            }
        }
        return S == 0.0f ? 0.0f : ms/S;
    }

    void merge_row(int64_t s, int64_t hkv, int64_t row) {
        head_kv = hkv;
        float M = -INFINITY;
        for (int64_t c = 0; c < p.n_chunks; ++c) {
            M = std::max(M, partial(s, hkv, row, c)[0]);
        }
        float S = 0.0f;
        float * y = dst_row(s, row);
        std::fill(y, y + p.DV, 0.0f);
        for (int64_t c = 0; c < p.n_chunks; ++c) {
            const float * x = partial(s, hkv, row, c);
            if (x[1] == 0.0f) {
                continue;
            }
            const float f = exp2f(x[0] - M);
            S += x[1]*f;
            for (int64_t d = 0; d < p.DV; ++d) {
                y[d] += x[2 + d]*f;
            }
        }
        const float f = final_factor(head(row), M, S);
        for (int64_t d = 0; d < p.DV; ++d) {
            y[d] *= f;
        }
    }

    const float * q_row(int64_t row) const {
        return (const float *) ((const char *) q->data + token(row)*q->nb[1] + head(row)*q->nb[2] + stream*q->nb[3]);
    }

    // One query as integers, put(d, integer); the scales of its blocks go to scale[0], scale[ld], ...
    template <typename F>
    void load_q_row(const kv_side & K, const float * x, float * scale, int64_t ld, const F & put) {
        const float sum_max = int_sum_max(*K.levels, K.block);
        for (int64_t b = 0; b < K.n_block; ++b, x += K.block, scale += ld) {
            float m = 1e-30f, sum = 1e-30f;
            for (int64_t d = 0; d < K.block; ++d) {
                m    = std::max(m, std::fabs(x[d]));
                sum += std::fabs(x[d]);
            }
            const float inv = std::min(INT16_MAX/m, sum_max/sum);
            *scale = std::isfinite(sum) ? q_scale*K.levels->step/inv : NAN;
            for (int64_t d = 0; d < K.block; ++d) {
                put(b*K.block + d, std::isfinite(sum) ? (int16_t) lrintf(x[d]*inv) : 0);
            }
        }
    }

    // Q of the row block, transposed and scaled: lanes side by side; sub-block r at q + r*DK
    void load_q(const kv_side & K) {
        for (int64_t r = 0, L; r < n_rows; r += L) {
            L = sub_lanes(n_rows - r);
            if (K.ints) {
                memset((int16_t *) scratch.q + r*p.DK, 0, L*p.DK*sizeof(int16_t)); // lanes without a row
                std::fill(scratch.q_scale + r*K.n_block, scratch.q_scale + (r + L)*K.n_block, 0.0f);
            } else {
                memset(scratch.q + r*p.DK, 0, L*p.DK*sizeof(float));
            }
            for (int64_t l = 0; l < L && r + l < n_rows; ++l) {
                const float * x = q_row(row0 + r + l);
                if (K.ints) {
                    int16_t * y = (int16_t *) scratch.q + r*p.DK + 2*l;
                    load_q_row(K, x, scratch.q_scale + r*K.n_block + l, L, [&](int64_t d, int16_t q16) { y[d/2*2*L + d % 2] = q16; });
                } else {
                    float * y = scratch.q + r*p.DK + l;
                    for (int64_t d = 0; d < p.DK; ++d) {
                        y[d*L] = x[d]*q_scale;
                    }
                }
            }
        }
    }

    void load_k(const kv_side & K, int64_t i0, int n, int n_pad) {
        for (int i = 0; i < n; ++i) {
            if (K.ints) {
                K.kernels->levels(K.row(i0 + i), K.levels->value, (int16_t *) scratch.k + i*p.DK, p.DK);
                for (int64_t b = 0; b < K.n_block; ++b) {
                    scratch.k_scale[i*K.n_block + b] = K.scale(i0 + i, b);
                }
            } else {
                K.floats(i0 + i, scratch.k + i*p.DK);
            }
        }
        if (n < n_pad && K.ints) {
            memset((int16_t *) scratch.k + n*p.DK, 0, (n_pad - n)*p.DK*sizeof(int16_t));
            memset(scratch.k_scale + n*K.n_block,  0, (n_pad - n)*K.n_block*sizeof(float));
        } else if (n < n_pad) {
            memset(scratch.k + n*p.DK, 0, (n_pad - n)*p.DK*sizeof(float));
        }
    }

    // A weight of zero times a value that is no number must not reach the sum, so such values are taken out here and their keys noted.
    void load_v(const kv_side & V, int64_t i0, int n, int n_pad) {
        n_bad = 0;
        for (int i = 0; i < n_pad; ++i) {
            bool is_bad = false;
            for (int64_t b = 0; V.kernels && b < V.n_block; ++b) {
                float s = i < n ? V.scale(i0 + i, b) : 0.0f;
                if (!std::isfinite(s)) {
                    is_bad = true;
                    s = 0.0f;
                }
                scratch.v_scale[i*V.n_block + b] = s;
            }
            if (is_bad) {
                bad[n_bad++] = i;
            }
            if (V.ints) {
                if (i % 2 == 0) {
                    // an odd last row is paired with itself, its weight is 0
                    V.kernels->levels_pair(V.row(i0 + std::min(i, n - 1)), V.row(i0 + std::min(i + 1, n - 1)), V.levels->value, (int16_t *) scratch.v + i*p.DV, p.DV);
                }
            } else if (is_bad || i >= n) {
                memset(scratch.v + i*p.DV, 0, p.DV*sizeof(float));
            } else {
                V.floats(i0 + i, scratch.v + i*p.DV);
            }
        }
    }

    // the mask of the sub-block at row r for n keys from i0 on
    mask_kind sub_mask(int64_t r, int64_t L, int64_t i0, int n) const {
        if (!mask) {
            return MASK_NONE;
        }
        const ggml_fp16_t * last = nullptr;
        bool none = true, all = true;
        for (int64_t l = 0; l < L && r + l < n_rows && (none || all); ++l) {
            const ggml_fp16_t * m = mask_row(row0 + r + l);
            if (m != last) {
                const mask_kind kind = classify(m + i0, n);
                none &= kind == MASK_NONE;
                all  &= kind == MASK_ALL;
                last = m;
            }
        }
        return none ? MASK_NONE : all ? MASK_ALL : MASK_SOME;
    }

    void load_mask(int64_t r, int64_t L, int64_t i0, int n) {
        const ggml_fp16_t * last = nullptr;
        for (int64_t l = 0; l < L; ++l) {
            float * y = scratch.mask + l;
            if (r + l >= n_rows) {
                for (int i = 0; i < n; ++i) {
                    y[i*L] = 0.0f;
                }
                continue;
            }
            const ggml_fp16_t * m = mask_row(row0 + r + l);
            if (m != last) {
                ggml_cpu_fp16_to_fp32(m + i0, scratch.row, n);
                last = m;
            }
            const float f = slope(head(row0 + r + l))*LOG2E;
            for (int i = 0; i < n; ++i) {
                y[i*L] = f*scratch.row[i];
            }
        }
    }

    void run_tile(const kv_side & K, const kv_side & V, int64_t i0, int n) {
        mask_kind kinds[MAX_SUB];
        bool skip = true;
        int  i_sub = 0;
        for (int64_t r = 0, L; r < n_rows; r += L, ++i_sub) {
            L = sub_lanes(n_rows - r);
            kinds[i_sub] = sub_mask(r, L, i0, n);
            skip &= kinds[i_sub] == MASK_ALL;
        }
        if (skip) {
            return;
        }

        const int n_pad = (n + 7)/8*8;
        load_k(K, i0, n, n_pad);
        load_v(V, i0, n, n_pad);

        i_sub = 0;
        for (int64_t r = 0, L; r < n_rows; r += L, ++i_sub) {
            L = sub_lanes(n_rows - r);
            if (kinds[i_sub] == MASK_ALL) {
                continue;
            }
            const int nq = (int) (L/16);
            float * s = scratch.s;
            float * o = scratch.o + r*p.DV;

            if (K.ints) {
                kern.qk_i16(nq, (const int16_t *) scratch.q + r*p.DK, scratch.q_scale + r*K.n_block, (const int16_t *) scratch.k, scratch.k_scale,
                        (int) p.DK, (int) K.block, n_pad, s);
            } else {
                kern.qk(nq, scratch.q + r*p.DK, scratch.k, (int) p.DK, n_pad, s);
            }

            const bool masked = kinds[i_sub] == MASK_SOME;
            if (masked) {
                load_mask(r, L, i0, n);
            }
            kern.softmax(nq, s, n, n_pad, masked ? scratch.mask : nullptr, cap, scratch.M + r, scratch.S + r, scratch.alpha);

            for (int b = 0; b < n_bad; ++b) {
                for (int64_t l = 0; l < L; ++l) {
                    if (s[bad[b]*L + l] != 0.0f) {
                        scratch.S[r + l] = NAN;
                    }
                }
            }

            if (V.ints) {
                const float sum_max = int_sum_max(*V.levels, TILE);
                for (int64_t b = 0; b < V.n_block; ++b) {
                    kern.weights_i16(nq, s, scratch.v_scale + b, (int) V.n_block, n_pad, sum_max, scratch.w, scratch.beta);
                    kern.pv_i16(nq, scratch.w, (const int16_t *) scratch.v + 2*b*V.block, (int) p.DV, (int) V.block, n_pad, scratch.alpha, scratch.beta,
                            V.levels->step, o + b*V.block*L);
                }
            } else {
                kern.pv(nq, s, scratch.v, (int) p.DV, n_pad, scratch.alpha, o);
            }
        }
    }
};

} // namespace

size_t ggml_turbo_flash_attn_work_size(const ggml_tensor * node, int n_tasks) {
    fattn_plan plan;
    return make_plan(node, n_tasks, plan) ? plan.scratch*n_tasks + plan.partials + 64 : 0;
}

bool ggml_turbo_compute_forward_flash_attn(const ggml_compute_params * params, ggml_tensor * dst) {
    fattn_plan plan;
    if (params->use_ref || !make_plan(dst, params->nth, plan)) {
        return false;
    }
    GGML_ASSERT(params->wsize >= plan.scratch*params->nth + plan.partials + 64);
    fattn(params, dst, plan).run();
    return true;
}
