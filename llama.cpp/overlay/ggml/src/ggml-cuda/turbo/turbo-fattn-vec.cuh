#pragma once

// Attention of up to R query rows of a KV head, straight from the packed blocks: the decode kernel.
//
// Grid      x: KV heads times streams, y: row blocks, z: runs of keys. Heads come first, because the rows of all heads of a key lie together, and share
//           sectors and cache lines: what one block fetches another finds in L2. 8 or 12 warps a block, each with its own online softmax over its share
//           of the tiles of 32 keys; no barrier before the end, where the results are merged. A run is long, a tile for every warp, because queries are
//           read, and partial results written and read again, once a run: with 4 warps a block that was a third of the bytes at 4096 keys.
// Lanes     LPK lanes share a key, each with C of its values (CK times: 576 is 36 chunks of 16), so a warp scores 32/LPK keys at a time. A lane keeps
//           its part of R queries and of R output rows in registers: C*R*(CK + 1). It reads its own codes, 16 bits at a time as the blocks are aligned
//           no better; the scale of a block is read by one lane and shuffled. So every packed byte is read once a row block.
// Decode    a code is 2 integer instructions and a look-up in shared memory that cannot conflict; it serves R multiply-adds. Scales multiply sums of
//           keys and weights of values, not values. The next key's bytes are fetched before this one's are used.
// Softmax   scores go through shared memory (32 x R a warp): for it a lane is a key.
// Merge     4 warps at a time add what they have to 4 slots, which lie where the scores were.
// NaN       a key whose weight is zero adds nothing, whatever its scale.
// Resources by C*R*(CK + 1), the values that a lane keeps: from 96 on <= 168 registers, 12 warps an SM; from 48 on <= 128, 16 warps; else <= 80, 24 warps.
//           Shared memory: 12*R*32 bytes a warp or 16*R*LPK*C in all, the larger, and 24*(CK + 1)/2 bytes a thread: 47 KiB at most.
// Occupancy kernel                     threads  dynamic shared  sm_75  sm_90
//           turbo_fattn_vec<*,1,16,1>      384               0      2      2
//           turbo_fattn_vec<*,1,16,2>      256               0      2      2
//           turbo_fattn_vec<*,2,16,1>      256               0      2      2
//           turbo_fattn_vec<*>             384               0      1      1

#include "turbo-fattn.cuh"

constexpr int TURBO_VEC_TILE  = 32; // keys of a warp's tile
constexpr int TURBO_VEC_SLOTS = 4;  // warps that are merged at a time

template <int LPK_, int CK_, int C_, int R_>
struct turbo_vec_shape {
    static constexpr int LPK = LPK_, CK = CK_, C = C_, R = R_;
    static constexpr int values   = C*R*(CK + 1); // that a lane keeps
    static constexpr int warps    = values >= 96 || values < 48 ? 12 : 8;
    static constexpr int resident = values >= 96 ? 1 : 2; // blocks of a multiprocessor
    static_assert(warps % TURBO_VEC_SLOTS == 0, "the merge takes whole rounds");
};

// a chunk of a row as one lane sees it
template <turbo_kind KIND, int C>
struct turbo_lane {
    int offset;       // of its values from the start of the row; negative: beyond the end of it, the values decode to something times zero
    int scale_offset; // of the scale that this lane reads; negative: another one does
    int scale_lane;   // the lane that reads the scale of the block

    struct raw_t {
        turbo_raw<KIND, C> values;
        uint32_t           scale;
    };

    __device__ __forceinline__ void init(const turbo_side & s, int index, int lane, int lanes_per_key) {
        const int  v      = C*index;
        const int  block  = s.block();
        const int  b      = v/block;
        const int  in     = (v - b*block)/C; // chunks before this one in its block
        const bool active = v < s.d;
        offset       = active ? turbo_value_offset<KIND>(s, v) : -1;
        scale_offset = active && in == 0 && KIND != TURBO_KIND_F16 ? b*(KIND == TURBO_KIND_TURBO ? s.format.bytes : TURBO_Q8_0_BYTES) : -1;
        scale_lane   = active ? (lane & ~(lanes_per_key - 1)) + ((index - in) & (lanes_per_key - 1)) : lane;
    }

    // nothing, as beyond the end of the row, when the key is not valid
    __device__ __forceinline__ raw_t load(const char * row, int bits, bool valid) const {
        raw_t r;
        r.scale = 0;
        if (offset >= 0 && valid) {
            r.values.load(row + offset, bits);
            if (scale_offset >= 0) {
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

// The sums of s[0..N) over 2*O lanes, one to 2*O/N lanes each: the first of them return that of s[0], and so on.
template <int N, int O>
static __device__ __forceinline__ float turbo_sum_rows(const float (& s)[N], int lane) {
    static_assert(N <= 2*O, "a lane returns one sum");
    if constexpr (N == 1) {
        float sum = s[0];
#pragma unroll
        for (int o = O; o > 0; o /= 2) {
            sum += __shfl_xor_sync(0xFFFFFFFF, sum, o);
        }
        return sum;
    } else {
        // half of the lanes go on with one half of the sums
        const bool upper = lane & O;
        float half_s[N/2];
#pragma unroll
        for (int i = 0; i < N/2; ++i) {
            const float give = upper ? s[i] : s[i + N/2];
            const float keep = upper ? s[i + N/2] : s[i];
            half_s[i] = keep + __shfl_xor_sync(0xFFFFFFFF, give, O);
        }
        if constexpr (O == 1) {
            return half_s[0];
        } else {
            return turbo_sum_rows<N/2, O/2>(half_s, lane);
        }
    }
}

template <turbo_kind KK, turbo_kind KV, int LPK, int CK, int C, int R>
static __global__ void __launch_bounds__(32*turbo_vec_shape<LPK, CK, C, R>::warps, turbo_vec_shape<LPK, CK, C, R>::resident)
turbo_fattn_vec(const turbo_fattn_args a) {
    constexpr int KEYS  = 32/LPK; // of a warp at a time
    constexpr int TILE  = TURBO_VEC_TILE;
    constexpr int SLOTS = TURBO_VEC_SLOTS;
    constexpr int WARPS = turbo_vec_shape<LPK, CK, C, R>::warps;

    struct scores_t {
        float  weights[WARPS][TILE][R]; // biases, then scores, then weights
        float2 states [WARPS][TILE][R]; // of a lane: the maximum, the sum of the weights that it has seen
    };
    typedef float out_t[SLOTS][R][C][LPK];

    __shared__ float    levels_k[TURBO_LEVELS], levels_v[TURBO_LEVELS];
    __shared__ float    slope[R];
    __shared__ uint32_t mask_row[R];
    __shared__ turbo_lane<KK, C> lanes_k[CK][32*WARPS]; // kept here for registers' sake, as are the rows' starts
    __shared__ turbo_lane<KV, C> lanes_v[32*WARPS];
    __shared__ int64_t first_k, first_v;
    __shared__ float    out_M[SLOTS][R], out_S[SLOTS][R];
    __shared__ __align__(16) char scores_or_out[sizeof(scores_t) > sizeof(out_t) ? sizeof(scores_t) : sizeof(out_t)];
    scores_t & scores = *(scores_t *) scores_or_out;
    out_t    & out    = *(out_t    *) scores_or_out;

    const int lane  = threadIdx.x % 32;
    const int warp  = threadIdx.x / 32;
    const int part  = lane % LPK; // of a key
    const int which = lane / LPK; // key

    const int head_kv = blockIdx.x % a.n_head_kv;
    const int stream  = blockIdx.x / a.n_head_kv;
    const int row0    = blockIdx.y*R;
    const int split   = blockIdx.z;

    const int n_rows = min(R, a.rows - row0);

    turbo_write_levels(levels_k, a.k.format, threadIdx.x);
    turbo_write_levels(levels_v, a.v.format, threadIdx.x);
    if (threadIdx.x < R) {
        const int row  = min(row0 + (int) threadIdx.x, a.rows - 1);
        const int head = head_kv*a.group + row % a.group;
        slope   [threadIdx.x] = turbo_fattn_slope(a, head);
        mask_row[threadIdx.x] = turbo_fattn_mask_row(a, stream, row/a.group, head);
    }

    if (threadIdx.x == 0) {
        first_k = head_kv*a.k.nb2 + stream*a.k.nb3;
        first_v = head_kv*a.v.nb2 + stream*a.v.nb3;
    }
#pragma unroll
    for (int c = 0; c < CK; ++c) {
        lanes_k[c][threadIdx.x].init(a.k, part + LPK*c, lane, LPK);
    }
    lanes_v[threadIdx.x].init(a.v, part, lane, LPK);

    float q[R][CK][C];
#pragma unroll
    for (int r = 0; r < R; ++r) {
        const int row = row0 + r;
        const float * x = (const float *) (a.q + row/a.group*a.q_nb1 + (head_kv*a.group + row % a.group)*a.q_nb2 + stream*a.q_nb3);
#pragma unroll
        for (int c = 0; c < CK; ++c) {
#pragma unroll
            for (int j = 0; j < C; ++j) {
                q[r][c][j] = r < n_rows && (part + LPK*c)*C < a.k.d ? x[(part + LPK*c)*C + j]*a.q_scale : 0.0f;
            }
        }
    }

    float (* w)[R] = scores.weights[warp];
    float2 * state = scores.states [warp][lane];

    float o[R][C];
#pragma unroll
    for (int r = 0; r < R; ++r) {
        state[r] = make_float2(-INFINITY, 0.0f);
#pragma unroll
        for (int j = 0; j < C; ++j) {
            o[r][j] = 0.0f;
        }
    }
    __syncthreads();

    const int first = split*a.chunk;
    const int last  = min(first + a.chunk, a.n_kv);

    for (int k0 = first + warp*TILE; k0 < last; k0 += WARPS*TILE) {
        const int n = min(TILE, last - k0);

        bool any = false;
#pragma unroll
        for (int r = 0; r < R; ++r) {
            float b = -INFINITY;
            if (lane < n && r < n_rows) {
                if (!a.mask) {
                    b = 0.0f;
                } else if (r > 0 && mask_row[r] == mask_row[r - 1] && a.n_head_log2 == 0) {
                    b = w[lane][r - 1];
                } else {
                    b = slope[r]*__half2float(((const half *) a.mask)[(size_t) mask_row[r] + k0 + lane]);
                }
            }
            w[lane][r] = b;
            any = any || b != -INFINITY;
        }
        if (!__any_sync(0xFFFFFFFF, any)) {
            continue;
        }
        __syncwarp();

        const int steps = (n + KEYS - 1)/KEYS;

        const char * row = a.k.data + first_k + (k0 + which)*a.k.nb1;
        turbo_lane<KK, C> lane_k[CK];
        typename turbo_lane<KK, C>::raw_t raw[CK];
#pragma unroll
        for (int c = 0; c < CK; ++c) {
            lane_k[c] = lanes_k[c][threadIdx.x];
            raw[c]    = lane_k[c].load(row, a.k.format.bits, which < n);
        }
#pragma unroll 1
        for (int step = 0; step < steps; ++step) {
            const int i = step*KEYS + (threadIdx.x % 32)/LPK;
            row += KEYS*a.k.nb1;
            typename turbo_lane<KK, C>::raw_t next[CK];
#pragma unroll
            for (int c = 0; c < CK; ++c) {
                next[c] = lane_k[c].load(row, a.k.format.bits, i + KEYS < n);
            }
            float s[R];
#pragma unroll
            for (int c = 0; c < CK; ++c) {
                const float d = lane_k[c].scale(raw[c]);
                float sum[R];
#pragma unroll
                for (int g = 0; g < C/8; ++g) {
                    float x[8];
                    raw[c].values.decode_8(g, a.k.format.bits, levels_k, x);
#pragma unroll
                    for (int r = 0; r < R; ++r) {
                        sum[r] = g == 0 ? 0.0f : sum[r];
#pragma unroll
                        for (int j = 0; j < 8; ++j) {
                            sum[r] += q[r][c][8*g + j]*x[j];
                        }
                    }
                }
#pragma unroll
                for (int r = 0; r < R; ++r) {
                    s[r] = c == 0 ? d*sum[r] : s[r] + d*sum[r];
                }
            }
            const float sum = turbo_sum_rows<R, LPK/2>(s, lane);
            if (part % (LPK/R) == 0) {
                float & score = w[i][part/(LPK/R)];
                if (score != -INFINITY) { // a masked key stays masked, whatever its score
                    score += a.cap != 0.0f ? turbo_fattn_softcap(a.cap, sum) : sum;
                }
            }
#pragma unroll
            for (int c = 0; c < CK; ++c) {
                raw[c] = next[c];
            }
        }
        __syncwarp();

#pragma unroll
        for (int r = 0; r < R; ++r) {
            const float  s   = w[lane][r];
            const float2 old = state[r];
            float m = s;
#pragma unroll
            for (int i = 16; i > 0; i /= 2) {
                m = fmaxf(m, __shfl_xor_sync(0xFFFFFFFF, m, i));
            }
            m = fmaxf(m, old.x);
            const float p = s == -INFINITY ? 0.0f : exp2f(s - m);
            w[lane][r] = p;

            float alpha = 1.0f;
            if (m != old.x) { // the same in all lanes
                alpha = exp2f(old.x - m);
#pragma unroll
                for (int j = 0; j < C; ++j) {
                    o[r][j] *= alpha;
                }
            }
            state[r] = make_float2(m, old.y*alpha + p);
        }
        __syncwarp();

        row = a.v.data + first_v + (k0 + (threadIdx.x % 32)/LPK)*a.v.nb1; // found again: no register is left for what was found before
        const turbo_lane<KV, C> lane_v = lanes_v[threadIdx.x];
        typename turbo_lane<KV, C>::raw_t raw_v = lane_v.load(row, a.v.format.bits, which < n);
#pragma unroll 1
        for (int step = 0; step < steps; ++step) {
            const int i = step*KEYS + which; // the weights of keys beyond the end are 0
            row += KEYS*a.v.nb1;
            const typename turbo_lane<KV, C>::raw_t next = lane_v.load(row, a.v.format.bits, i + KEYS < n);

            const float d = lane_v.scale(raw_v);
            float p[R];
#pragma unroll
            for (int r = 0; r < R; ++r) {
                p[r] = w[i][r];
                p[r] = p[r] == 0.0f ? 0.0f : p[r]*d;
            }
#pragma unroll
            for (int g = 0; g < C/8; ++g) {
                float x[8];
                raw_v.values.decode_8(g, a.v.format.bits, levels_v, x);
#pragma unroll
                for (int r = 0; r < R; ++r) {
#pragma unroll
                    for (int j = 0; j < 8; ++j) {
                        o[r][8*g + j] += p[r]*x[j];
                    }
                }
            }
            raw_v = next;
        }
        __syncwarp();
    }

    // lanes of other keys
    float M[R], S[R];
#pragma unroll
    for (int r = 0; r < R; ++r) {
        M[r] = state[r].x;
        S[r] = state[r].y;
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
        }
    }

    // other warps: a slot gets one of each SLOTS
#pragma unroll 1
    for (int round = 0; round < WARPS/SLOTS; ++round) {
        __syncthreads();
        if (warp/SLOTS != round) {
            continue;
        }
        const int slot = warp % SLOTS;
#pragma unroll
        for (int r = 0; r < R; ++r) {
            const bool first = round == 0 || out_S[slot][r] == 0.0f;
            float m = M[r], sum = S[r], old = 0.0f, own = 1.0f;
            if (!first) {
                m   = fmaxf(m, out_M[slot][r]);
                old = exp2f(out_M[slot][r] - m);
                own = S[r] == 0.0f ? 0.0f : exp2f(M[r] - m);
                sum = out_S[slot][r]*old + S[r]*own;
            }
            __syncwarp();
            if (which == 0) {
#pragma unroll
                for (int j = 0; j < C; ++j) {
                    float & y = out[slot][r][j][part];
                    y = first ? o[r][j] : old*y + own*o[r][j];
                }
            }
            if (lane == 0) {
                out_M[slot][r] = m;
                out_S[slot][r] = sum;
            }
        }
    }
    __syncthreads();

    for (int i = threadIdx.x; i < n_rows*a.v.d; i += 32*WARPS) {
        const int r = i / a.v.d;
        const int j = i % a.v.d;

        float m = -INFINITY;
#pragma unroll 1
        for (int u = 0; u < SLOTS; ++u) {
            m = fmaxf(m, out_M[u][r]);
        }
        float sum = 0.0f, y = 0.0f;
#pragma unroll 1
        for (int u = 0; u < SLOTS; ++u) {
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

template <turbo_kind KK, turbo_kind KV, typename SHAPE>
static void turbo_fattn_vec_launch(const turbo_fattn_args & a, SHAPE, cudaStream_t stream) {
    const dim3 grid(a.n_head_kv*a.n_stream, (a.rows + SHAPE::R - 1)/SHAPE::R, a.n_split);
    turbo_fattn_vec<KK, KV, SHAPE::LPK, SHAPE::CK, SHAPE::C, SHAPE::R><<<grid, 32*SHAPE::warps, 0, stream>>>(a);
}

// f(turbo_vec_shape) for the shape that these rows have. MIXED: one side is no turbo type; one row count a width then, as these pairs are made for
// quality, not speed.
template <bool MIXED, int LPK, typename F>
static auto turbo_vec_choose_rows(int rows, F && f) {
    if constexpr (MIXED) {
        return f(turbo_vec_shape<LPK, 1, 16, 4>());
    } else {
        if (rows == 1) {
            return f(turbo_vec_shape<LPK, 1, 16, 1>());
        }
        if (rows == 2) {
            return f(turbo_vec_shape<LPK, 1, 16, 2>());
        }
        if constexpr (LPK <= 16) {
            if (rows > 4) {
                return f(turbo_vec_shape<2*LPK, 1, 8, 8>());
            }
        }
        return f(turbo_vec_shape<LPK, 1, 16, 4>());
    }
}

template <bool MIXED, typename F>
static auto turbo_vec_choose(const turbo_fattn_args & a, F && f) {
    const int d = a.k.d > a.v.d ? a.k.d : a.v.d;
    if (d <= 64) {
        return turbo_vec_choose_rows<MIXED, 4>(a.rows, f);
    }
    if (d <= 128) {
        return turbo_vec_choose_rows<MIXED, 8>(a.rows, f);
    }
    if (d <= 256) {
        return turbo_vec_choose_rows<MIXED, 16>(a.rows, f);
    }
    if (d <= 512) {
        return turbo_vec_choose_rows<MIXED, 32>(a.rows, f);
    }
    if constexpr (!MIXED) {
        if (a.rows == 1) {
            return f(turbo_vec_shape<32, 2, 16, 1>());
        }
    }
    return f(turbo_vec_shape<32, 2, 16, 2>());
}
