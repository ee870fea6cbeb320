#pragma once

// Attention of up to R query rows of a KV head, straight from the packed blocks: the decode kernel.
//
// Grid      x: runs of keys, y: row blocks, z: KV heads times streams. 4 warps a block, each with its own online softmax over every fourth
//           tile of 32 keys; no barrier before the end, where the 4 results are merged.
// Lanes     LPK lanes share a key, each with C of its values (CK times: 576 is 36 chunks of 16), so a warp scores 32/LPK keys at a time. A lane keeps
//           its part of R queries and of R output rows in registers: C*R*(CK + 1). It reads its own codes, 16 bits at a time as the blocks are aligned
//           no better; the scale of a block is read by one lane and shuffled. So every packed byte is read once a row block.
// Decode    a code is 2 integer instructions and a look-up in shared memory that cannot conflict; it serves R multiply-adds. Scales multiply sums of
//           keys and weights of values, not values. The next key's bytes are fetched before this one's are used.
// Softmax   scores go through shared memory (32 x R a warp): for it a lane is a key.
// NaN       a key whose weight is zero adds nothing, whatever its scale.
// Resources 4 warps. C*R*(CK + 1) = 128: 3 blocks an SM, <= 168 registers; 64 to 96: 4 blocks, <= 128; 32: 6 blocks, <= 80.
//           Shared memory: 4*R*LPK*C + 128*R floats, 10.1 KiB for d = 128 and R = 4, 34.1 KiB at most.

#include "turbo-fattn.cuh"

constexpr int TURBO_VEC_WARPS = 4;
constexpr int TURBO_VEC_TILE  = 32; // keys of a warp's tile

constexpr int turbo_vec_min_blocks(int values) {
    return values >= 128 ? 3 : values >= 64 ? 4 : 6;
}

// a chunk of a row as one lane sees it
template <turbo_kind KIND, int C>
struct turbo_lane {
    int  offset;       // of its values from the start of the row
    int  scale_offset;
    int  scale_lane;   // the lane that reads the scale of the block
    bool active;       // false: beyond the end of the row; the values decode to something times zero
    bool loads_scale;

    struct raw_t {
        turbo_raw<KIND, C> values;
        uint32_t           scale;
    };

    __device__ __forceinline__ void init(const turbo_side & s, int index, int lane, int lanes_per_key) {
        const int v     = C*index;
        const int block = s.block();
        const int b     = v/block;
        const int in    = (v - b*block)/C; // chunks before this one in its block
        active       = v < s.d;
        offset       = turbo_value_offset<KIND>(s, v);
        scale_offset = b*(KIND == TURBO_KIND_TURBO ? s.format.bytes : TURBO_Q8_0_BYTES);
        loads_scale  = KIND != TURBO_KIND_F16 && active && in == 0;
        scale_lane   = active ? (lane & ~(lanes_per_key - 1)) + ((index - in) & (lanes_per_key - 1)) : lane;
    }

    __device__ __forceinline__ raw_t load(const char * row, int bits) const {
        raw_t r;
        r.scale = 0;
        if (active) {
            r.values.load(row + offset, bits);
            if (loads_scale) {
                r.scale = *(const uint16_t *) (row + scale_offset);
            }
        } else {
            r.values.clear();
        }
        return r;
    }

    // all lanes of the warp must come here
    __device__ __forceinline__ float scale(const raw_t & r) const {
        if constexpr (KIND == TURBO_KIND_F16) {
            return 1.0f;
        } else {
            return turbo_scale(__shfl_sync(0xFFFFFFFF, r.scale, scale_lane));
        }
    }
};

// The sums of s[0..R) over the LPK lanes of a key, one row to LPK/R lanes each: lane l of the key returns that of row l/(LPK/R).
template <int R, int LPK>
static __device__ __forceinline__ float turbo_sum_rows(float * s, int lane) {
    static_assert(R <= LPK, "a lane returns one sum");
#pragma unroll
    for (int o = LPK/2; o > 0; o /= 2) {
        const int n = R*o*2/LPK; // sums that this lane still has
        if (n > 1) {
            const bool upper = lane & o;
#pragma unroll
            for (int i = 0; i < n/2; ++i) {
                const float give = upper ? s[i] : s[i + n/2];
                const float keep = upper ? s[i + n/2] : s[i];
                s[i] = keep + __shfl_xor_sync(0xFFFFFFFF, give, o);
            }
        } else {
            s[0] += __shfl_xor_sync(0xFFFFFFFF, s[0], o);
        }
    }
    return s[0];
}

template <turbo_kind KK, turbo_kind KV, int LPK, int CK, int C, int R>
static __global__ void __launch_bounds__(32*TURBO_VEC_WARPS, turbo_vec_min_blocks(C*R*(CK + 1)))
turbo_fattn_vec(const turbo_fattn_args a) {
    constexpr int KEYS = 32/LPK; // of a warp at a time
    constexpr int TILE = TURBO_VEC_TILE;

    __shared__ float    levels_k[TURBO_LEVELS], levels_v[TURBO_LEVELS];
    __shared__ float    slope[R];
    __shared__ uint32_t mask_row[R];
    __shared__ float    weights[TURBO_VEC_WARPS][TILE][R]; // scores, then weights
    __shared__ float    out[TURBO_VEC_WARPS][R][C][LPK];
    __shared__ float    out_M[TURBO_VEC_WARPS][R], out_S[TURBO_VEC_WARPS][R];

    const int lane  = threadIdx.x % 32;
    const int warp  = threadIdx.x / 32;
    const int part  = lane % LPK; // of a key
    const int which = lane / LPK; // key

    const int split   = blockIdx.x;
    const int row0    = blockIdx.y*R;
    const int head_kv = blockIdx.z % a.n_head_kv;
    const int stream  = blockIdx.z / a.n_head_kv;

    const int n_rows = min(R, a.rows - row0);

    turbo_write_levels(levels_k, a.k.format, threadIdx.x);
    turbo_write_levels(levels_v, a.v.format, threadIdx.x);
    if (threadIdx.x < R) {
        const int row  = min(row0 + (int) threadIdx.x, a.rows - 1);
        const int head = head_kv*a.group + row % a.group;
        slope   [threadIdx.x] = turbo_fattn_slope(a, head);
        mask_row[threadIdx.x] = turbo_fattn_mask_row(a, stream, row/a.group, head);
    }

    turbo_lane<KK, C> lane_k[CK];
    turbo_lane<KV, C> lane_v;
#pragma unroll
    for (int c = 0; c < CK; ++c) {
        lane_k[c].init(a.k, part + LPK*c, lane, LPK);
    }
    lane_v.init(a.v, part, lane, LPK);

    const char * k = a.k.data + head_kv*a.k.nb2 + stream*a.k.nb3;
    const char * v = a.v.data + head_kv*a.v.nb2 + stream*a.v.nb3;

    float q[R][CK][C];
#pragma unroll
    for (int r = 0; r < R; ++r) {
        const int row = row0 + r;
        const float * x = (const float *) (a.q + row/a.group*a.q_nb1 + (head_kv*a.group + row % a.group)*a.q_nb2 + stream*a.q_nb3);
#pragma unroll
        for (int c = 0; c < CK; ++c) {
#pragma unroll
            for (int j = 0; j < C; ++j) {
                q[r][c][j] = r < n_rows && lane_k[c].active ? x[(part + LPK*c)*C + j]*a.q_scale : 0.0f;
            }
        }
    }

    float o[R][C], M[R], S[R];
#pragma unroll
    for (int r = 0; r < R; ++r) {
        M[r] = -INFINITY;
        S[r] = 0.0f;
#pragma unroll
        for (int j = 0; j < C; ++j) {
            o[r][j] = 0.0f;
        }
    }
    __syncthreads();

    const int first = split*a.chunk;
    const int last  = min(first + a.chunk, a.n_kv);

    float (* w)[R] = weights[warp];

    for (int k0 = first + warp*TILE; k0 < last; k0 += TURBO_VEC_WARPS*TILE) {
        const int n = min(TILE, last - k0);

        float bias[R];
        bool  any = false;
#pragma unroll
        for (int r = 0; r < R; ++r) {
            bias[r] = -INFINITY;
            if (lane < n && r < n_rows) {
                if (!a.mask) {
                    bias[r] = 0.0f;
                } else if (r > 0 && mask_row[r] == mask_row[r - 1] && a.n_head_log2 == 0) {
                    bias[r] = bias[r - 1];
                } else {
                    bias[r] = slope[r]*__half2float(((const half *) a.mask)[(size_t) mask_row[r] + k0 + lane]);
                }
                any = any || bias[r] != -INFINITY;
            }
        }
        if (!__any_sync(0xFFFFFFFF, any)) {
            continue;
        }

        // keys beyond the end are the last one: read, scored, masked
        const int steps = (n + KEYS - 1)/KEYS;
        const auto row_of = [&](int step) { return (int64_t) (k0 + min(step*KEYS + which, n - 1)); };

        typename turbo_lane<KK, C>::raw_t raw[CK];
#pragma unroll
        for (int c = 0; c < CK; ++c) {
            raw[c] = lane_k[c].load(k + row_of(0)*a.k.nb1, a.k.format.bits);
        }
        for (int step = 0; step < steps; ++step) {
            typename turbo_lane<KK, C>::raw_t next[CK];
            if (step + 1 < steps) {
                const char * row = k + row_of(step + 1)*a.k.nb1;
#pragma unroll
                for (int c = 0; c < CK; ++c) {
                    next[c] = lane_k[c].load(row, a.k.format.bits);
                }
            }
            float s[R];
#pragma unroll
            for (int c = 0; c < CK; ++c) {
                float x[C];
                raw[c].values.decode(a.k.format.bits, levels_k, x);
                const float d = lane_k[c].scale(raw[c]);
#pragma unroll
                for (int r = 0; r < R; ++r) {
                    float sum = 0.0f;
#pragma unroll
                    for (int j = 0; j < C; ++j) {
                        sum += q[r][c][j]*x[j];
                    }
                    s[r] = c == 0 ? d*sum : s[r] + d*sum;
                }
            }
            const float sum = turbo_sum_rows<R, LPK>(s, lane);
            if (part % (LPK/R) == 0) {
                w[step*KEYS + which][part/(LPK/R)] = sum;
            }
#pragma unroll
            for (int c = 0; c < CK; ++c) {
                raw[c] = next[c];
            }
        }
        __syncwarp();

#pragma unroll
        for (int r = 0; r < R; ++r) {
            float s = -INFINITY;
            if (bias[r] != -INFINITY) {
                s = w[lane][r];
                s = bias[r] + (a.cap != 0.0f ? turbo_fattn_softcap(a.cap, s) : s);
            }
            float m = s;
#pragma unroll
            for (int i = 16; i > 0; i /= 2) {
                m = fmaxf(m, __shfl_xor_sync(0xFFFFFFFF, m, i));
            }
            m = fmaxf(m, M[r]);
            const float p = s == -INFINITY ? 0.0f : exp2f(s - m);
            w[lane][r] = p;
            if (m != M[r]) { // the same in all lanes
                const float alpha = exp2f(M[r] - m);
                S[r] *= alpha;
#pragma unroll
                for (int j = 0; j < C; ++j) {
                    o[r][j] *= alpha;
                }
                M[r] = m;
            }
            S[r] += p;
        }
        __syncwarp();

        typename turbo_lane<KV, C>::raw_t raw_v = lane_v.load(v + row_of(0)*a.v.nb1, a.v.format.bits);
        for (int step = 0; step < steps; ++step) {
            typename turbo_lane<KV, C>::raw_t next;
            if (step + 1 < steps) {
                next = lane_v.load(v + row_of(step + 1)*a.v.nb1, a.v.format.bits);
            }
            const float d = lane_v.scale(raw_v);
            float x[C];
            raw_v.values.decode(a.v.format.bits, levels_v, x);

            const int i = step*KEYS + which; // rows beyond the end have the weight 0
#pragma unroll
            for (int r = 0; r < R; ++r) {
                const float p  = w[i][r];
                const float pd = p == 0.0f ? 0.0f : p*d;
#pragma unroll
                for (int j = 0; j < C; ++j) {
                    o[r][j] += pd*x[j];
                }
            }
            raw_v = next;
        }
        __syncwarp();
    }

    // lanes of other keys, then other warps
#pragma unroll
    for (int r = 0; r < R; ++r) {
#pragma unroll
        for (int i = 16; i > 0; i /= 2) {
            S[r] += __shfl_xor_sync(0xFFFFFFFF, S[r], i);
        }
#pragma unroll
        for (int j = 0; j < C; ++j) {
#pragma unroll
            for (int i = LPK; i < 32; i *= 2) {
                o[r][j] += __shfl_xor_sync(0xFFFFFFFF, o[r][j], i);
            }
            if (which == 0) {
                out[warp][r][j][part] = o[r][j];
            }
        }
        if (lane == 0) {
            out_M[warp][r] = M[r];
            out_S[warp][r] = S[r];
        }
    }
    __syncthreads();

    for (int i = threadIdx.x; i < n_rows*a.v.d; i += 32*TURBO_VEC_WARPS) {
        const int r = i / a.v.d;
        const int j = i % a.v.d;

        float m = -INFINITY;
#pragma unroll
        for (int u = 0; u < TURBO_VEC_WARPS; ++u) {
            m = fmaxf(m, out_M[u][r]);
        }
        float sum = 0.0f, y = 0.0f;
#pragma unroll
        for (int u = 0; u < TURBO_VEC_WARPS; ++u) {
            if (out_S[u][r] != 0.0f) {
                const float f = exp2f(out_M[u][r] - m);
                sum += out_S[u][r]*f;
                y   += out[u][r][j % C][j / C]*f;
            }
        }
        const int     row     = row0 + r;
        const int     head    = head_kv*a.group + row % a.group;
        const int64_t dst_row = turbo_fattn_dst_row(a, stream, row/a.group, head);
        if (a.n_split == 1) {
            a.dst[dst_row*a.v.d + j] = y*turbo_fattn_factor(a, head, m, sum);
        } else {
            a.part[(dst_row*a.n_split + split)*a.v.d + j] = y;
            if (j == 0) {
                a.meta[dst_row*a.n_split + split] = make_float2(m, sum);
            }
        }
    }
}

template <turbo_kind KK, turbo_kind KV, int LPK, int CK, int C, int R>
static void turbo_fattn_vec_launch(const turbo_fattn_args & a, cudaStream_t stream) {
    const dim3 grid(a.n_split, (a.rows + R - 1)/R, a.n_head_kv*a.n_stream);
    turbo_fattn_vec<KK, KV, LPK, CK, C, R><<<grid, 32*TURBO_VEC_WARPS, 0, stream>>>(a);
}
