// Attention of many query rows on packed keys and values with tensor cores (Ampere and later): the prompt kernel.
//
// Grid      x: row blocks, last first (in a causal mask they have the most keys), y: KV heads times streams, z: runs of keys. A warp has 16 query rows.
// Tile      KT keys and values are decoded to f16 in shared memory, for all rows of the block: what exists of the history outside of the packed cache
//           is one tile a block. f16 is what an f16 cache holds; sums are f32.
// Layout    m16n8k16 fragments are read with plain 32-bit loads: K as rows [key][channel], V as pairs of keys [key/2][channel][2], so that both halves
//           of a register lie together. Rows are padded by 8 values: every such load of a warp meets all banks.
// Mask      the tile's mask goes through shared memory, a row a token. A tile that no row may see is not decoded, one that all see is not masked.
// NaN       a key whose weight is zero adds nothing; another one whose scale is no number makes its rows NaN.
// Resources registers of a thread: d/4 of Q, d/2 of output, KT/2 of scores. d > 128: 4 warps, 64 rows x 32 keys; else 8 warps, 128 rows x 64 keys. Shared
//           memory where a row is a token of its own.
// Occupancy kernel                     threads  dynamic shared  sm_75  sm_90
//           turbo_fattn_mma<64>            256           36864      -      2
//           turbo_fattn_mma<128>           256           53248      -      1
//           turbo_fattn_mma<256>           128           38912      -      2

#include "turbo-fattn.cuh"

#include <algorithm>

// Where an architecture has no kernel here, the two functions that are no templates are unused.
// d += a b of 16x16 and 16x8 matrices of f16
[[maybe_unused]] static __device__ __forceinline__ void mma_16816(float (& d)[4], const uint32_t (& a)[4], uint32_t b0, uint32_t b1) {
#if __CUDA_ARCH__ >= GGML_CUDA_CC_AMPERE
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#else
    GGML_UNUSED_VARS(d, a, b0, b1);
    NO_DEVICE_CODE;
#endif
}

[[maybe_unused]] static __device__ __forceinline__ uint32_t pack_half2(float lo, float hi) {
    return (uint32_t) __half_as_ushort(__float2half_rn(lo)) | (uint32_t) __half_as_ushort(__float2half_rn(hi)) << 16;
}

// the chunk of 16 values from value v on, without its scale, and the scale
template <turbo_kind KIND>
static __device__ __forceinline__ float load_chunk(const turbo_side & s, const char * row, int v, turbo_raw<KIND, 16> & raw) {
    raw.load(row + turbo_value_offset<KIND>(s, v), s.format.bits);
    if constexpr (KIND == TURBO_KIND_F16) {
        return 1.0f;
    } else {
        const int bytes = KIND == TURBO_KIND_TURBO ? s.format.bytes : TURBO_Q8_0_BYTES;
        return turbo_scale(*(const uint16_t *) (row + v/s.block()*bytes));
    }
}

// K as [key][stride]; keys from n on are the last one
template <turbo_kind KIND>
static __device__ __forceinline__ void decode_k(const turbo_side & s, const char * rows, int n_tile, int n, const float * levels, half * y, int stride) {
    const int n_chunk = s.d/16;
    for (int i = threadIdx.x; i < n_tile*n_chunk; i += blockDim.x) {
        const int key = i / n_chunk;
        const int v   = i % n_chunk*16;
        turbo_raw<KIND, 16> raw;
        const float d = load_chunk<KIND>(s, rows + min(key, n - 1)*s.nb1, v, raw);
        uint4 * out = (uint4 *) (y + key*stride + v);
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            float x[8];
            raw.decode_8(j, s.format.bits, levels, x);
            out[j] = make_uint4(pack_half2(d*x[0], d*x[1]), pack_half2(d*x[2], d*x[3]), pack_half2(d*x[4], d*x[5]), pack_half2(d*x[6], d*x[7]));
        }
    }
}

// V as [key/2][stride][2]
template <turbo_kind KIND>
static __device__ __forceinline__ void decode_v(const turbo_side & s, const char * rows, int n_tile, int n, const float * levels, half * y, int stride, int * bad) {
    const int n_chunk = s.d/16;
    for (int i = threadIdx.x; i < n_tile/2*n_chunk; i += blockDim.x) {
        const int pair = i / n_chunk;
        const int v    = i % n_chunk*16;
        turbo_raw<KIND, 16> raw[2];
        float d[2];
#pragma unroll
        for (int k = 0; k < 2; ++k) {
            d[k] = load_chunk<KIND>(s, rows + min(2*pair + k, n - 1)*s.nb1, v, raw[k]);
            if (KIND != TURBO_KIND_F16 && !isfinite(d[k])) {
                bad[2*pair + k] = 1;
                d[k] = 0.0f;
            }
        }
        uint4 * out = (uint4 *) (y + 2*(pair*stride + v));
#pragma unroll
        for (int j = 0; j < 2; ++j) {
            float x[2][8];
#pragma unroll
            for (int k = 0; k < 2; ++k) {
                raw[k].decode_8(j, s.format.bits, levels, x[k]);
            }
#pragma unroll
            for (int u = 0; u < 2; ++u) {
                out[2*j + u] = make_uint4(
                    pack_half2(d[0]*x[0][4*u],     d[1]*x[1][4*u]),     pack_half2(d[0]*x[0][4*u + 1], d[1]*x[1][4*u + 1]),
                    pack_half2(d[0]*x[0][4*u + 2], d[1]*x[1][4*u + 2]), pack_half2(d[0]*x[0][4*u + 3], d[1]*x[1][4*u + 3]));
            }
        }
    }
}

template <int D>
struct mma_shape {
    static constexpr int warps = D <= 128 ?  8 :  4;
    static constexpr int keys  = D <= 128 ? 64 : 32;
    static constexpr int rows  = 16*warps;
};

// Rows of the mask that a block may need: its tokens.
static int mma_tokens(int rows, int group) {
    return std::min(rows, (rows + group - 2)/group + 1);
}

template <int D>
static __global__ void __launch_bounds__(32*mma_shape<D>::warps, D == 128 ? 1 : 2) turbo_fattn_mma(const turbo_fattn_args a) {
#if __CUDA_ARCH__ >= GGML_CUDA_CC_AMPERE
    constexpr int KT     = mma_shape<D>::keys;
    constexpr int RT     = mma_shape<D>::rows;
    constexpr int STRIDE = D + 8;       // of K and V rows, in values of one key
    constexpr int MASK_STRIDE = KT + 8;

    extern __shared__ __align__(16) char smem[];
    half * tile_k = (half *) smem;             // [KT][STRIDE]
    half * tile_v = tile_k + KT*STRIDE;        // [KT/2][STRIDE][2]
    half * masks  = tile_v + KT*STRIDE;        // [tokens][MASK_STRIDE]

    __shared__ float levels_k[TURBO_LEVELS], levels_v[TURBO_LEVELS];
    __shared__ int   bad[KT];

    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32;
    const int gr   = lane / 4; // row of a fragment, and gr + 8; also its column of B
    const int gc   = lane % 4; // pair of columns

    const int row0    = (gridDim.x - 1 - blockIdx.x)*RT;
    const int head_kv = blockIdx.y % a.n_head_kv;
    const int stream  = blockIdx.y / a.n_head_kv;
    const int split   = blockIdx.z;

    const int last_row = min(row0 + RT, a.rows) - 1;
    const int token0   = row0/a.group;
    const int n_tokens = last_row/a.group - token0 + 1;

    turbo_write_levels(levels_k, a.k.format, threadIdx.x);
    turbo_write_levels(levels_v, a.v.format, threadIdx.x);

    const char * k = a.k.data + head_kv*a.k.nb2 + stream*a.k.nb3;
    const char * v = a.v.data + head_kv*a.v.nb2 + stream*a.v.nb3;
    const half * mask = (const half *) a.mask + turbo_fattn_mask_row(a, stream, 0, 0);

    const bool idle = row0 + 16*warp > last_row; // no row of the warp exists: it decodes and no more

    // the two rows of this thread
    uint32_t q[D/16][4];
    float    slope[2], M[2], S[2];
    int      mask_row[2];
#pragma unroll
    for (int h = 0; h < 2; ++h) {
        const int row  = row0 + 16*warp + gr + 8*h;
        const int head = head_kv*a.group + row % a.group;
        slope[h]    = turbo_fattn_slope(a, head);
        mask_row[h] = (min(row, last_row)/a.group - token0)*MASK_STRIDE;
        M[h] = -INFINITY;
        S[h] = 0.0f;
        const float * x = (const float *) (a.q + row/a.group*a.q_nb1 + head*a.q_nb2 + stream*a.q_nb3);
#pragma unroll
        for (int i = 0; i < D/16; ++i) {
#pragma unroll
            for (int u = 0; u < 2; ++u) {
                const int c = 16*i + 8*u + 2*gc;
                q[i][2*u + h] = row <= last_row && c < a.k.d ? pack_half2(x[c]*a.q_scale, x[c + 1]*a.q_scale) : 0;
            }
        }
    }

    float o[D/8][4];
#pragma unroll
    for (int i = 0; i < D/8; ++i) {
#pragma unroll
        for (int j = 0; j < 4; ++j) {
            o[i][j] = 0.0f;
        }
    }

    const int first = split*a.chunk;
    const int last  = min(first + a.chunk, a.n_kv);

    for (int k0 = first; k0 < last; k0 += KT) {
        const int n = min(KT, last - k0);

        // also: everybody is done with the last tile
        __syncthreads();
        bool masked = n < KT;
        if (a.mask || n < KT) {
            int visible = 0, partial = 0;
            for (int i = threadIdx.x; i < n_tokens*KT; i += blockDim.x) {
                const int t   = i / KT;
                const int key = i % KT;
                const float m = key >= n ? -INFINITY : a.mask ? __half2float(mask[(token0 + t)*(a.mask_nb1/(int64_t) sizeof(half)) + k0 + key]) : 0.0f;
                masks[t*MASK_STRIDE + key] = __float2half_rn(m);
                visible |= m != -INFINITY;
                partial |= m != 0.0f;
            }
            if (!__syncthreads_or(visible)) {
                continue;
            }
            masked = __syncthreads_or(partial);
        }

        if (threadIdx.x < KT) {
            bad[threadIdx.x] = 0;
        }
        switch (a.k.kind) {
            case TURBO_KIND_TURBO: decode_k<TURBO_KIND_TURBO>(a.k, k + k0*a.k.nb1, KT, n, levels_k, tile_k, STRIDE); break;
            case TURBO_KIND_F16:   decode_k<TURBO_KIND_F16>  (a.k, k + k0*a.k.nb1, KT, n, levels_k, tile_k, STRIDE); break;
            case TURBO_KIND_Q8_0:  decode_k<TURBO_KIND_Q8_0> (a.k, k + k0*a.k.nb1, KT, n, levels_k, tile_k, STRIDE); break;
        }
        __syncthreads(); // bad is clear
        switch (a.v.kind) {
            case TURBO_KIND_TURBO: decode_v<TURBO_KIND_TURBO>(a.v, v + k0*a.v.nb1, KT, n, levels_v, tile_v, STRIDE, bad); break;
            case TURBO_KIND_F16:   decode_v<TURBO_KIND_F16>  (a.v, v + k0*a.v.nb1, KT, n, levels_v, tile_v, STRIDE, bad); break;
            case TURBO_KIND_Q8_0:  decode_v<TURBO_KIND_Q8_0> (a.v, v + k0*a.v.nb1, KT, n, levels_v, tile_v, STRIDE, bad); break;
        }

        float s[KT/8][4]; // keys 8*j + 2*gc + {0, 1} of rows gr (0, 1) and gr + 8 (2, 3)
        if (!idle) {
#pragma unroll
            for (int j = 0; j < KT/8; ++j) {
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    s[j][i] = 0.0f;
                }
                const uint32_t * b = (const uint32_t *) (tile_k + (8*j + gr)*STRIDE) + gc;
#pragma unroll
                for (int i = 0; i < D/16; ++i) {
                    if (16*i < a.k.d) {
                        mma_16816(s[j], q[i], b[8*i], b[8*i + 4]);
                    }
                }
            }

#pragma unroll
            for (int h = 0; h < 2; ++h) {
                float m = M[h];
#pragma unroll
                for (int j = 0; j < KT/8; ++j) {
#pragma unroll
                    for (int u = 0; u < 2; ++u) {
                        float & x = s[j][2*h + u];
                        if (a.cap != 0.0f) {
                            x = turbo_fattn_softcap(a.cap, x);
                        }
                        if (masked) {
                            const float b = slope[h]*__half2float(masks[mask_row[h] + 8*j + 2*gc + u]);
                            x = b == -INFINITY ? b : x + b;
                        }
                        m = fmaxf(m, x);
                    }
                }
                m = fmaxf(m, __shfl_xor_sync(0xFFFFFFFF, m, 1));
                m = fmaxf(m, __shfl_xor_sync(0xFFFFFFFF, m, 2));
                const float alpha = M[h] == m ? 1.0f : exp2f(M[h] - m);
                M[h] = m;
                S[h] *= alpha;
#pragma unroll
                for (int i = 0; i < D/8; ++i) {
                    o[i][2*h]     *= alpha;
                    o[i][2*h + 1] *= alpha;
                }
#pragma unroll
                for (int j = 0; j < KT/8; ++j) {
#pragma unroll
                    for (int u = 0; u < 2; ++u) {
                        float & x = s[j][2*h + u];
                        x = x == -INFINITY ? 0.0f : exp2f(x - m);
                        S[h] += x;
                    }
                }
            }
        }
        __syncthreads(); // V is there

        if (!idle) {
#pragma unroll
            for (int j = 0; j < KT/16; ++j) {
                const uint32_t p[4] = {
                    pack_half2(s[2*j][0],     s[2*j][1]),     pack_half2(s[2*j][2],     s[2*j][3]),
                    pack_half2(s[2*j + 1][0], s[2*j + 1][1]), pack_half2(s[2*j + 1][2], s[2*j + 1][3]),
                };
                const uint32_t * b = (const uint32_t *) tile_v + (8*j + gc)*STRIDE + gr;
#pragma unroll
                for (int i = 0; i < D/8; ++i) {
                    if (8*i < a.v.d) {
                        mma_16816(o[i], p, b[8*i], b[8*i + 4*STRIDE]);
                    }
                }
            }
#pragma unroll
            for (int j = 0; j < KT/8; ++j) {
#pragma unroll
                for (int u = 0; u < 2; ++u) {
                    if (bad[8*j + 2*gc + u]) {
                        S[0] = s[j][u]     == 0.0f ? S[0] : NAN;
                        S[1] = s[j][u + 2] == 0.0f ? S[1] : NAN;
                    }
                }
            }
        }
    }

#pragma unroll
    for (int h = 0; h < 2; ++h) {
        S[h] += __shfl_xor_sync(0xFFFFFFFF, S[h], 1);
        S[h] += __shfl_xor_sync(0xFFFFFFFF, S[h], 2);

        const int row = row0 + 16*warp + gr + 8*h;
        if (row > last_row) {
            continue;
        }
        const int     head    = head_kv*a.group + row % a.group;
        const int64_t dst_row = turbo_fattn_dst_row(a, stream, row/a.group, head);
        const float   f       = a.n_split == 1 ? turbo_fattn_factor(a, head, M[h], S[h]) : 1.0f;
        float *       y       = a.n_split == 1 ? a.dst + dst_row*a.v.d : a.part + (dst_row*a.n_split + split)*a.v.d;
#pragma unroll
        for (int i = 0; i < D/8; ++i) {
            if (8*i < a.v.d) {
                *(float2 *) (y + 8*i + 2*gc) = make_float2(f*o[i][2*h], f*o[i][2*h + 1]);
            }
        }
        if (a.n_split > 1 && gc == 0) {
            a.meta[dst_row*a.n_split + split] = make_float2(M[h], S[h]);
        }
    }
#else
    GGML_UNUSED(a);
    NO_DEVICE_CODE;
#endif // __CUDA_ARCH__ >= GGML_CUDA_CC_AMPERE
}

// the width of the kernel, 0: none
static int mma_width(const turbo_fattn_args & a) {
    const int d = std::max(a.k.d, a.v.d);
    return a.mask_ne2 != 1 ? 0 : d <= 64 ? 64 : d <= 128 ? 128 : d <= 256 ? 256 : 0;
}

bool ggml_cuda_turbo_fattn_mma_has(const turbo_fattn_args & a, int cc) {
    return ampere_mma_available(cc) && mma_width(a) != 0;
}

int ggml_cuda_turbo_fattn_mma_resident(const turbo_fattn_args & a) {
    return mma_width(a) == 128 ? 1 : 2;
}

int64_t ggml_cuda_turbo_fattn_mma_blocks(const turbo_fattn_args & a) {
    const int rt = mma_width(a) == 256 ? mma_shape<256>::rows : mma_shape<128>::rows;
    return (int64_t) (a.rows + rt - 1)/rt*a.n_head_kv*a.n_stream;
}

template <int D>
static void launch(const turbo_fattn_args & a, cudaStream_t stream) {
    constexpr int KT = mma_shape<D>::keys;
    constexpr int RT = mma_shape<D>::rows;
    const size_t shared = sizeof(half)*(2*KT*(D + 8) + mma_tokens(RT, a.group)*(KT + 8));
    CUDA_CHECK(cudaFuncSetAttribute(turbo_fattn_mma<D>, cudaFuncAttributeMaxDynamicSharedMemorySize, (int) shared));

    const dim3 grid((a.rows + RT - 1)/RT, a.n_head_kv*a.n_stream, a.n_split);
    turbo_fattn_mma<D><<<grid, 32*mma_shape<D>::warps, shared, stream>>>(a);
}

void ggml_cuda_turbo_fattn_mma(const turbo_fattn_args & a, cudaStream_t stream) {
    switch (mma_width(a)) {
        case  64: launch< 64>(a, stream); break;
        case 128: launch<128>(a, stream); break;
        case 256: launch<256>(a, stream); break;
        default:  GGML_ABORT("fatal error");
    }
}
