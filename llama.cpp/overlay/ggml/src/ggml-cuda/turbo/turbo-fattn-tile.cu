// Attention of many query rows on packed keys and values: where there are no tensor cores for it (turbo-fattn-mma.cu).
//
// Grid      x: row blocks, last first (in a causal mask they have the most keys), y: KV heads times streams, z: runs of keys. 128 threads.
// Tile      KT keys are decoded to f32 in shared memory, then KT values into the same place: what exists of the history outside of the packed
//           cache is one tile a block. RT query rows lie beside it.
// Threads   16 x 8. Scores: RPT rows x KPT keys a thread, 4 channels at a time. Output: RPT rows x 4*NG columns a thread, 4 keys at a time. Rows of K are 4
//           floats longer than a multiple of 32, so that 8 lanes that read 8 keys meet all banks.
// Rows      a tile of keys that no row of the block may see is not read.
// NaN       a key whose weight is zero adds nothing; another one whose scale is no number makes its rows NaN.
// Resources <= 168 registers. RT x KT is 32 x 64, from d > 128 on 16 x 32, from d > 256 on 8 x 16. Shared memory of d = 64, 128, 256, 576.
// Occupancy kernel                     threads  dynamic shared  sm_75  sm_90
//           turbo_fattn_tile<4,4,1>        128           34560      1      3
//           turbo_fattn_tile<4,4,2>        128           59648      1      3
//           turbo_fattn_tile<2,2,4>        128           52864      1      4
//           turbo_fattn_tile<1,1,8>        128           56704      1      3

#include "turbo-fattn.cuh"

#include <algorithm>

static constexpr int TILE_THREADS = 128;

// scales of a tile to shared memory; keys from n on are the last one. bad: keys with a scale that is no number, or null
static __device__ __forceinline__ void load_scales(const turbo_side & s, const char * rows, int n_tile, int n, float * scales, int * bad) {
    if (s.kind == TURBO_KIND_F16) {
        return;
    }
    const int block   = s.block();
    const int bytes   = s.kind == TURBO_KIND_TURBO ? s.format.bytes : TURBO_Q8_0_BYTES;
    const int n_block = s.d/block;
    for (int i = threadIdx.x; i < n_tile*n_block; i += TILE_THREADS) {
        const int key = i / n_block;
        float d = turbo_scale(*(const uint16_t *) (rows + min(key, n - 1)*s.nb1 + i % n_block*bytes));
        if (bad && !isfinite(d)) {
            bad[key] = 1;
            d = 0.0f;
        }
        scales[i] = d;
    }
}

template <turbo_kind KIND>
static __device__ __forceinline__ void decode_tile(const turbo_side & s, const char * rows, int n_tile, int n, const float * levels, const float * scales,
        float * y, int stride) {
    const int n_chunk = s.d/16;
    const int block   = s.block();
    const int n_block = s.d/block;
    // 8 neighbours write 2 chunks of 4 keys: all banks
    for (int i = threadIdx.x; i < (n_chunk + 1)/2*2*n_tile; i += TILE_THREADS) {
        const int key = i/2 % n_tile;
        const int c   = i % 2 + i/(2*n_tile)*2;
        if (c >= n_chunk) {
            continue;
        }
        turbo_raw<KIND, 16> raw;
        raw.load(rows + min(key, n - 1)*s.nb1 + turbo_value_offset<KIND>(s, 16*c), s.format.bits);
        const float d = KIND == TURBO_KIND_F16 ? 1.0f : scales[key*n_block + 16*c/block];
        float4 * out = (float4 *) (y + key*stride + 16*c);
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            float x[8];
            raw.decode_8(j, s.format.bits, levels, x);
            out[2*j]     = make_float4(d*x[0], d*x[1], d*x[2], d*x[3]);
            out[2*j + 1] = make_float4(d*x[4], d*x[5], d*x[6], d*x[7]);
        }
    }
}

static __device__ __forceinline__ void load_tile(const turbo_side & s, const char * rows, int n_tile, int n, const float * levels, const float * scales,
        float * y, int stride) {
    switch (s.kind) {
        case TURBO_KIND_TURBO: decode_tile<TURBO_KIND_TURBO>(s, rows, n_tile, n, levels, scales, y, stride); break;
        case TURBO_KIND_F16:   decode_tile<TURBO_KIND_F16>  (s, rows, n_tile, n, levels, scales, y, stride); break;
        case TURBO_KIND_Q8_0:  decode_tile<TURBO_KIND_Q8_0> (s, rows, n_tile, n, levels, scales, y, stride); break;
    }
}

// floats of a decoded row in shared memory
static int tile_stride(const turbo_fattn_args & a) {
    return (std::max(a.k.d, a.v.d) + 31)/32*32 + 4;
}

static int max_blocks_of_row(const turbo_fattn_args & a) {
    return std::max(a.k.d/a.k.block(), a.v.d/a.v.block()) + 1;
}

template <int RPT, int KPT, int NG>
static __global__ void __launch_bounds__(TILE_THREADS, 3) turbo_fattn_tile(const turbo_fattn_args a, const int stride) {
    constexpr int RT = 8*RPT;
    constexpr int KT = 16*KPT;

    extern __shared__ __align__(16) float smem[];
    float * tile_q = smem;                 // [RT][d_k]
    float * tile   = tile_q + RT*a.k.d;    // [KT][stride], of K, then of V
    float * tile_p = tile   + KT*stride;   // [RT][KT]
    float * scales = tile_p + RT*KT;       // [KT][blocks of a row]

    __shared__ float levels_k[TURBO_LEVELS], levels_v[TURBO_LEVELS];
    __shared__ int   bad[KT];

    const int tx = threadIdx.x % 16;
    const int ty = threadIdx.x / 16;

    const int row0    = (gridDim.x - 1 - blockIdx.x)*RT;
    const int head_kv = blockIdx.y % a.n_head_kv;
    const int stream  = blockIdx.y / a.n_head_kv;
    const int split   = blockIdx.z;

    turbo_write_levels(levels_k, a.k.format, threadIdx.x);
    turbo_write_levels(levels_v, a.v.format, threadIdx.x);

    for (int i = threadIdx.x; i < RT*a.k.d; i += TILE_THREADS) {
        const int row = row0 + i/a.k.d;
        tile_q[i] = row < a.rows ? a.q_scale*((const float *)
            (a.q + row/a.group*a.q_nb1 + (head_kv*a.group + row % a.group)*a.q_nb2 + stream*a.q_nb3))[i % a.k.d] : 0.0f;
    }

    const char * k = a.k.data + head_kv*a.k.nb2 + stream*a.k.nb3;
    const char * v = a.v.data + head_kv*a.v.nb2 + stream*a.v.nb3;

    float    slope[RPT];
    uint32_t mask_row[RPT];
    float    M[RPT], S[RPT], o[RPT][4*NG];
#pragma unroll
    for (int r = 0; r < RPT; ++r) {
        const int row  = min(row0 + ty*RPT + r, a.rows - 1);
        const int head = head_kv*a.group + row % a.group;
        slope[r]    = turbo_fattn_slope(a, head);
        mask_row[r] = turbo_fattn_mask_row(a, stream, row/a.group, head);
        M[r] = -INFINITY;
        S[r] = 0.0f;
#pragma unroll
        for (int j = 0; j < 4*NG; ++j) {
            o[r][j] = 0.0f;
        }
    }

    const int first = split*a.chunk;
    const int last  = min(first + a.chunk, a.n_kv);

    for (int k0 = first; k0 < last; k0 += KT) {
        const int n = min(KT, last - k0);

        float s[RPT][KPT];
        int   any = 0;
#pragma unroll
        for (int r = 0; r < RPT; ++r) {
#pragma unroll
            for (int j = 0; j < KPT; ++j) {
                const int key = tx + 16*j;
                float b = -INFINITY;
                if (key < n && row0 + ty*RPT + r < a.rows) {
                    b = a.mask ? slope[r]*__half2float(((const half *) a.mask)[(size_t) mask_row[r] + k0 + key]) : 0.0f;
                }
                s[r][j] = b; // the bias first: a masked key stays masked, whatever its score
                any |= b != -INFINITY;
            }
        }
        // also: everybody is done with the last tile
        if (!__syncthreads_or(any)) {
            continue;
        }

        if (threadIdx.x < KT) {
            bad[threadIdx.x] = 0;
        }
        load_scales(a.k, k + k0*a.k.nb1, KT, n, scales, nullptr);
        __syncthreads();
        load_tile(a.k, k + k0*a.k.nb1, KT, n, levels_k, scales, tile, stride);
        __syncthreads();

        float sum[RPT][KPT];
#pragma unroll
        for (int r = 0; r < RPT; ++r) {
#pragma unroll
            for (int j = 0; j < KPT; ++j) {
                sum[r][j] = 0.0f;
            }
        }
#pragma unroll 2
        for (int d = 0; d < a.k.d; d += 4) {
            float4 x[KPT];
#pragma unroll
            for (int j = 0; j < KPT; ++j) {
                x[j] = *(const float4 *) (tile + (tx + 16*j)*stride + d);
            }
#pragma unroll
            for (int r = 0; r < RPT; ++r) {
                const float4 q = *(const float4 *) (tile_q + (ty*RPT + r)*a.k.d + d);
#pragma unroll
                for (int j = 0; j < KPT; ++j) {
                    sum[r][j] += q.x*x[j].x;
                    sum[r][j] += q.y*x[j].y;
                    sum[r][j] += q.z*x[j].z;
                    sum[r][j] += q.w*x[j].w;
                }
            }
        }

#pragma unroll
        for (int r = 0; r < RPT; ++r) {
            float m = M[r];
#pragma unroll
            for (int j = 0; j < KPT; ++j) {
                if (s[r][j] != -INFINITY) {
                    s[r][j] += a.cap != 0.0f ? turbo_fattn_softcap(a.cap, sum[r][j]) : sum[r][j];
                }
                m = fmaxf(m, s[r][j]);
            }
#pragma unroll
            for (int i = 8; i > 0; i /= 2) {
                m = fmaxf(m, __shfl_xor_sync(0xFFFFFFFF, m, i, 16));
            }
            const float alpha = M[r] == m ? 1.0f : exp2f(M[r] - m);
            M[r] = m;
            S[r] *= alpha;
#pragma unroll
            for (int j = 0; j < 4*NG; ++j) {
                o[r][j] *= alpha;
            }
#pragma unroll
            for (int j = 0; j < KPT; ++j) {
                s[r][j] = s[r][j] == -INFINITY ? 0.0f : exp2f(s[r][j] - m);
                S[r] += s[r][j];
                tile_p[(ty*RPT + r)*KT + tx + 16*j] = s[r][j];
            }
        }
        __syncthreads();

        load_scales(a.v, v + k0*a.v.nb1, KT, n, scales, bad);
        __syncthreads();
        load_tile(a.v, v + k0*a.v.nb1, KT, n, levels_v, scales, tile, stride);
        __syncthreads();

#pragma unroll
        for (int j = 0; j < KPT; ++j) {
            if (bad[tx + 16*j]) {
#pragma unroll
                for (int r = 0; r < RPT; ++r) {
                    S[r] = s[r][j] == 0.0f ? S[r] : NAN;
                }
            }
        }
#pragma unroll 1
        for (int i = 0; i < KT; i += 4) {
            float p[RPT][4];
#pragma unroll
            for (int r = 0; r < RPT; ++r) {
                *(float4 *) p[r] = *(const float4 *) (tile_p + (ty*RPT + r)*KT + i);
            }
#pragma unroll
            for (int u = 0; u < 4; ++u) {
#pragma unroll
                for (int g = 0; g < NG; ++g) {
                    const int col = 64*g + 4*tx;
                    if (col < a.v.d) {
                        const float4 x = *(const float4 *) (tile + (i + u)*stride + col);
#pragma unroll
                        for (int r = 0; r < RPT; ++r) {
                            o[r][4*g]     += p[r][u]*x.x;
                            o[r][4*g + 1] += p[r][u]*x.y;
                            o[r][4*g + 2] += p[r][u]*x.z;
                            o[r][4*g + 3] += p[r][u]*x.w;
                        }
                    }
                }
            }
        }
    }

#pragma unroll
    for (int r = 0; r < RPT; ++r) {
#pragma unroll
        for (int i = 8; i > 0; i /= 2) {
            S[r] += __shfl_xor_sync(0xFFFFFFFF, S[r], i, 16);
        }
        const int row = row0 + ty*RPT + r;
        if (row >= a.rows) {
            continue;
        }
        const int     head    = head_kv*a.group + row % a.group;
        const int64_t dst_row = turbo_fattn_dst_row(a, stream, row/a.group, head);
        const float   f       = a.n_split == 1 ? turbo_fattn_factor(a, head, M[r], S[r]) : 1.0f;
        float *       y       = a.n_split == 1 ? a.dst + dst_row*a.v.d : a.part + (dst_row*a.n_split + split)*a.v.d;
#pragma unroll
        for (int g = 0; g < NG; ++g) {
            const int col = 64*g + 4*tx;
            if (col < a.v.d) {
                *(float4 *) (y + col) = make_float4(f*o[r][4*g], f*o[r][4*g + 1], f*o[r][4*g + 2], f*o[r][4*g + 3]);
            }
        }
        if (a.n_split > 1 && tx == 0) {
            a.meta[dst_row*a.n_split + split] = make_float2(M[r], S[r]);
        }
    }
}

bool ggml_cuda_turbo_fattn_tile_supports(int64_t d_k, int64_t d_v) {
    return d_k <= 576 && d_v <= 512;
}

static int tile_rows(const turbo_fattn_args & a) {
    const int d = std::max(a.k.d, a.v.d);
    return d <= 128 ? 32 : d <= 256 ? 16 : 8;
}

int64_t ggml_cuda_turbo_fattn_tile_blocks(const turbo_fattn_args & a) {
    return (int64_t) (a.rows + tile_rows(a) - 1)/tile_rows(a)*a.n_head_kv*a.n_stream;
}

template <int RPT, int KPT, int NG>
static void launch(const turbo_fattn_args & a, cudaStream_t stream) {
    constexpr int RT = 8*RPT;
    constexpr int KT = 16*KPT;
    const int    stride = tile_stride(a);
    const size_t shared = sizeof(float)*(RT*a.k.d + KT*stride + RT*KT + KT*max_blocks_of_row(a));
    CUDA_CHECK(cudaFuncSetAttribute(turbo_fattn_tile<RPT, KPT, NG>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int) shared));

    const dim3 grid((a.rows + RT - 1)/RT, a.n_head_kv*a.n_stream, a.n_split);
    turbo_fattn_tile<RPT, KPT, NG><<<grid, TILE_THREADS, shared, stream>>>(a, stride);
}

void ggml_cuda_turbo_fattn_tile(const turbo_fattn_args & a, cudaStream_t stream) {
    const int d = std::max(a.k.d, a.v.d);
    if (d <= 64) {
        launch<4, 4, 1>(a, stream);
    } else if (d <= 128) {
        launch<4, 4, 2>(a, stream);
    } else if (d <= 256) {
        launch<2, 2, 4>(a, stream);
    } else {
        launch<1, 1, 8>(a, stream);
    }
}
