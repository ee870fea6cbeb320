// Quantise on write: SET_ROWS and CPY into a turbo type, from f32, f16 and bf16 (CPY only).
//
// Layout    half a warp encodes one block: lane l of 16 holds the values 16*g + l, so that the lane sums of FORMAT.md section 4 are a loop over
//           g and a butterfly over the lanes (addition commutes, so every lane gets the same bits).
// Packing   codes pass through shared memory as bytes; lane l packs the codes 8*l..8*l+7 to their B bytes.
// Rounding  the bytes are the format's: one rounding an operation (the _rn intrinsics are never contracted), denormals kept. The second needs
//           this unit to be compiled with -ftz=false, whatever the backend's flags are (turbo.cmake).
// Resources <= 40 registers, 2 KiB of shared memory.
// Occupancy kernel                     threads  dynamic shared  sm_75  sm_90
//           turbo_set_rows                 256               0      4      8
//           turbo_cpy_encode               256               0      4      6

#include "turbo-kernels.cuh"

static constexpr int ENCODE_THREADS = 256;
static constexpr int ENCODE_BLOCKS  = ENCODE_THREADS/16; // turbo blocks a thread block
static constexpr int MAX_GROUPS     = 128/16;

static __device__ __forceinline__ float lane_sum(float a) {
#pragma unroll
    for (int o = 8; o > 0; o /= 2) {
        a = __fadd_rn(a, __shfl_xor_sync(0xFFFFFFFF, a, o, 16));
    }
    return a;
}

// x[g] = value 16*g + lane of the block. All 32 lanes of the warp must come here. codes: 128 bytes of shared memory of this half warp.
static __device__ __forceinline__ void encode_block(const float * x, const turbo_format & f, int lane, uint8_t * codes, uint8_t * y, bool store) {
    const int n_groups = f.block/16;
    const int half     = 1 << (f.bits - 1);

    // magnitudes compare as integers; NaN and infinity are the largest
    uint32_t m = 0;
#pragma unroll
    for (int g = 0; g < MAX_GROUPS; ++g) {
        if (g < n_groups) {
            m = max(m, __float_as_uint(x[g]) & 0x7FFFFFFFu);
        }
    }
#pragma unroll
    for (int o = 8; o > 0; o /= 2) {
        m = max(m, __shfl_xor_sync(0xFFFFFFFF, m, o, 16));
    }
    const bool not_finite = m >= 0x7F800000u;
    const bool zero       = m < ((127u - 40u) << 23);

    const int   e    = min((int) (m >> 23) - 127, 126);
    const float down = not_finite || zero ? 0.0f : __uint_as_float((uint32_t) (127 - e) << 23); // 2^-e

    float u[MAX_GROUPS];
    float sum = 0.0f;
#pragma unroll
    for (int g = 0; g < MAX_GROUPS; ++g) {
        if (g < n_groups) {
            u[g] = __fmul_rn(x[g], down);
            const float v = __fmul_rn(u[g], u[g]);
            sum = g == 0 ? v : __fadd_rn(sum, v);
        }
    }
    const float r = __fsqrt_rn(__fdiv_rn(lane_sum(sum), (float) f.block));

    float t[7];
#pragma unroll
    for (int i = 0; i < 7; ++i) {
        t[i] = __fmul_rn(f.boundaries[i], r);
    }

    float sum_p = 0.0f, sum_q = 0.0f;
#pragma unroll
    for (int g = 0; g < MAX_GROUPS; ++g) {
        if (g < n_groups) {
            const float a = fabsf(u[g]);
            float c = f.centroids[0];
            int   i = 0;
#pragma unroll
            for (int k = 0; k < 7; ++k) {
                if (a > t[k]) {
                    c = f.centroids[k + 1];
                    i = k + 1;
                }
            }
            codes[16*g + lane] = (uint8_t) (u[g] >= 0.0f ? half + i : half - 1 - i);

            const float p = __fmul_rn(a, c);
            const float q = __fmul_rn(c, c);
            sum_p = g == 0 ? p : __fadd_rn(sum_p, p);
            sum_q = g == 0 ? q : __fadd_rn(sum_q, q);
        }
    }
    sum_p = lane_sum(sum_p);
    sum_q = lane_sum(sum_q);

    const float s = __fmul_rn(__fdiv_rn(sum_p, sum_q), __uint_as_float((uint32_t) (127 + e) << 23));

    __syncwarp();

    if (store) {
        if (lane == 0) {
            const uint16_t scale = not_finite ? 0x7E00 : zero ? 0 : __half_as_ushort(__float2half_rn(s < 65504.0f ? s : 65504.0f));
            *(uint16_t *) y = scale;
        }
        if (8*lane < f.block) {
            uint32_t w = 0;
            if (!not_finite && !zero) {
#pragma unroll
                for (int j = 0; j < 8; ++j) {
                    w |= (uint32_t) codes[8*lane + j] << (j*f.bits);
                }
            }
            for (int b = 0; b < f.bits; ++b) {
                y[2 + lane*f.bits + b] = (uint8_t) (w >> 8*b);
            }
        }
    }
    __syncwarp();
}

enum float_type { FLOAT_F32, FLOAT_F16, FLOAT_BF16 };

static float_type float_type_of(ggml_type type) {
    return type == GGML_TYPE_F32 ? FLOAT_F32 : type == GGML_TYPE_F16 ? FLOAT_F16 : FLOAT_BF16;
}

static __device__ __forceinline__ float load_float(const char * p, float_type type) {
    switch (type) {
        case FLOAT_F32:  return *(const float *) p;
        case FLOAT_F16:  return turbo_scale(*(const uint16_t *) p);
        default:         return __uint_as_float((uint32_t) *(const uint16_t *) p << 16);
    }
}

struct set_rows_args {
    const char * src;
    const char * idx;
    char       * dst;
    int64_t      ne00, ne01, ne02, ne11, ne12;
    int64_t      nb01, nb02, nb03;
    int64_t      nb10, nb11, nb12;
    int64_t      nb1, nb2, nb3;
    int64_t      n_blocks;
    float_type   type;
    bool         idx64;
    turbo_format format;
};

static __global__ void __launch_bounds__(ENCODE_THREADS) turbo_set_rows(const set_rows_args a) {
    __shared__ uint8_t codes[ENCODE_BLOCKS][128];

    const int lane = threadIdx.x % 16;
    const int sub  = threadIdx.x / 16;

    const int64_t ib_real = (int64_t) blockIdx.x*ENCODE_BLOCKS + sub;
    const bool    store   = ib_real < a.n_blocks;
    int64_t ib = store ? ib_real : a.n_blocks - 1; // an idle half warp must not diverge

    const int64_t per_row = a.ne00/a.format.block;
    const int64_t i0 = ib % per_row; ib /= per_row;
    const int64_t i1 = ib % a.ne01;  ib /= a.ne01;
    const int64_t i2 = ib % a.ne02;
    const int64_t i3 = ib / a.ne02;

    const char * pi  = a.idx + i1*a.nb10 + i2 % a.ne11*a.nb11 + i3 % a.ne12*a.nb12;
    const int64_t row = a.idx64 ? *(const int64_t *) pi : *(const int32_t *) pi;

    const int    size = a.type == FLOAT_F32 ? 4 : 2;
    const char * px   = a.src + i1*a.nb01 + i2*a.nb02 + i3*a.nb03 + i0*a.format.block*size;
    char       * py   = a.dst + row*a.nb1 + i2*a.nb2 + i3*a.nb3 + i0*a.format.bytes;

    float x[MAX_GROUPS];
#pragma unroll
    for (int g = 0; g < MAX_GROUPS; ++g) {
        if (16*g < a.format.block) {
            x[g] = load_float(px + (16*g + lane)*size, a.type);
        }
    }
    encode_block(x, a.format, lane, codes[sub], (uint8_t *) py, store);
}

void ggml_cuda_turbo_set_rows(ggml_backend_cuda_context & ctx, ggml_tensor * dst) {
    const ggml_tensor * src = dst->src[0];
    const ggml_tensor * idx = dst->src[1];

    set_rows_args a;
    a.src    = (const char *) src->data;
    a.idx    = (const char *) idx->data;
    a.dst    = (char *) dst->data;
    a.ne00   = src->ne[0]; a.ne01 = src->ne[1]; a.ne02 = src->ne[2];
    a.ne11   = idx->ne[1]; a.ne12 = idx->ne[2];
    a.nb01   = src->nb[1]; a.nb02 = src->nb[2]; a.nb03 = src->nb[3];
    a.nb10   = idx->nb[0]; a.nb11 = idx->nb[1]; a.nb12 = idx->nb[2];
    a.nb1    = dst->nb[1]; a.nb2  = dst->nb[2]; a.nb3  = dst->nb[3];
    a.type   = float_type_of(src->type);
    a.idx64  = idx->type == GGML_TYPE_I64;
    a.format = turbo_format_of(dst->type);
    a.n_blocks = ggml_nelements(src)/a.format.block;

    if (a.n_blocks == 0) {
        return;
    }
    const int64_t n = (a.n_blocks + ENCODE_BLOCKS - 1)/ENCODE_BLOCKS;
    turbo_set_rows<<<(unsigned) n, ENCODE_THREADS, 0, ctx.stream()>>>(a);
}

struct encode_args {
    turbo_shape  src, dst;
    const char * x;
    char       * y;
    int64_t      n_blocks;
    float_type   type;
    turbo_format format;
};

static __global__ void __launch_bounds__(ENCODE_THREADS) turbo_cpy_encode(const encode_args a) {
    __shared__ uint8_t codes[ENCODE_BLOCKS][128];

    const int lane = threadIdx.x % 16;
    const int sub  = threadIdx.x / 16;

    const int64_t ib_real = (int64_t) blockIdx.x*ENCODE_BLOCKS + sub;
    const bool    store   = ib_real < a.n_blocks;
    const int64_t i       = (store ? ib_real : a.n_blocks - 1)*a.format.block;

    float x[MAX_GROUPS];
#pragma unroll
    for (int g = 0; g < MAX_GROUPS; ++g) {
        if (16*g < a.format.block) {
            x[g] = load_float(a.x + a.src.offset(i + 16*g + lane, 1), a.type);
        }
    }
    encode_block(x, a.format, lane, codes[sub], (uint8_t *) a.y + a.dst.offset(i, a.format.block), store);
}

void ggml_cuda_turbo_cpy_encode(ggml_backend_cuda_context & ctx, const ggml_tensor * src, ggml_tensor * dst) {
    encode_args a;
    a.src    = turbo_shape(src);
    a.dst    = turbo_shape(dst);
    a.x      = (const char *) src->data;
    a.y      = (char *) dst->data;
    a.type   = float_type_of(src->type);
    a.format = turbo_format_of(dst->type);
    a.n_blocks = ggml_nelements(src)/a.format.block;

    if (a.n_blocks == 0) {
        return;
    }
    const int64_t n = (a.n_blocks + ENCODE_BLOCKS - 1)/ENCODE_BLOCKS;
    turbo_cpy_encode<<<(unsigned) n, ENCODE_THREADS, 0, ctx.stream()>>>(a);
}
