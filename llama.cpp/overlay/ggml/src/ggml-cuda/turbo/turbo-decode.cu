// Read back: GET_ROWS of a turbo type to f32, CPY of a turbo type to f32, f16, bf16 and to itself.
//
// Layout    one thread decodes 8 codes, which are B whole bytes, to 8 values.
// Resources <= 40 registers, 64 bytes of shared memory (the levels).
// Occupancy kernel                     threads  dynamic shared  sm_75  sm_90
//           turbo_get_rows                 256               0      4      8
//           turbo_cpy_same                 256               0      4      8
//           turbo_cpy_decode<*>            256               0      4      6

#include "turbo-kernels.cuh"

static constexpr int DECODE_THREADS = 256;

// 8 decoded values from value v of the row at p on
static __device__ __forceinline__ void decode_8(const char * p, int v, const turbo_side & s, const float * levels, float * x) {
    const float d = turbo_scale(*(const uint16_t *) (p + v/s.format.block*s.format.bytes));
    turbo_raw<TURBO_KIND_TURBO, 8> raw;
    raw.load(p + turbo_value_offset<TURBO_KIND_TURBO>(s, v), s.format.bits);
    raw.decode_8(0, s.format.bits, levels, x);
#pragma unroll
    for (int j = 0; j < 8; ++j) {
        x[j] *= d;
    }
}

static turbo_side side_of(const ggml_tensor * t) {
    turbo_side s;
    s.data   = (const char *) t->data;
    s.nb1    = t->nb[1]; s.nb2 = t->nb[2]; s.nb3 = t->nb[3];
    s.d      = (int) t->ne[0];
    s.kind   = TURBO_KIND_TURBO;
    s.format = turbo_format_of(t->type);
    return s;
}

struct get_rows_args {
    turbo_side   src;
    const char * idx;
    char       * dst;
    int64_t      ne10, ne11;
    int64_t      nb10, nb11, nb12;
    int64_t      nb1, nb2, nb3;
    int64_t      n; // groups of 8 values
};

static __global__ void __launch_bounds__(DECODE_THREADS) turbo_get_rows(const get_rows_args a) {
    __shared__ float levels[TURBO_LEVELS];
    turbo_write_levels(levels, a.src.format, threadIdx.x);
    __syncthreads();

    int64_t i = (int64_t) blockIdx.x*DECODE_THREADS + threadIdx.x;
    if (i >= a.n) {
        return;
    }
    const int per_row = a.src.d/8;
    const int     v   = (int) (i % per_row)*8; i /= per_row;
    const int64_t i10 = i % a.ne10; i /= a.ne10;
    const int64_t i11 = i % a.ne11;
    const int64_t i12 = i / a.ne11;

    const int64_t row = *(const int32_t *) (a.idx + i10*a.nb10 + i11*a.nb11 + i12*a.nb12);

    float x[8];
    decode_8(a.src.data + row*a.src.nb1 + i11*a.src.nb2 + i12*a.src.nb3, v, a.src, levels, x);

    float * y = (float *) (a.dst + i10*a.nb1 + i11*a.nb2 + i12*a.nb3) + v;
#pragma unroll
    for (int j = 0; j < 8; ++j) {
        y[j] = x[j];
    }
}

void ggml_cuda_turbo_get_rows(ggml_backend_cuda_context & ctx, ggml_tensor * dst) {
    const ggml_tensor * idx = dst->src[1];

    get_rows_args a;
    a.src  = side_of(dst->src[0]);
    a.idx  = (const char *) idx->data;
    a.dst  = (char *) dst->data;
    a.ne10 = idx->ne[0]; a.ne11 = idx->ne[1];
    a.nb10 = idx->nb[0]; a.nb11 = idx->nb[1]; a.nb12 = idx->nb[2];
    a.nb1  = dst->nb[1]; a.nb2  = dst->nb[2]; a.nb3  = dst->nb[3];
    a.n    = ggml_nelements(dst)/8;

    if (a.n == 0) {
        return;
    }
    turbo_get_rows<<<(unsigned) ((a.n + DECODE_THREADS - 1)/DECODE_THREADS), DECODE_THREADS, 0, ctx.stream()>>>(a);
}

struct decode_args {
    turbo_side   side;
    turbo_shape  src, dst;
    char       * y;
    int64_t      n; // groups of 8 values
};

template <typename T> static __device__ __forceinline__ T from_float(float x);
template <> __device__ __forceinline__ float         from_float<float>        (float x) { return x; }
template <> __device__ __forceinline__ half          from_float<half>         (float x) { return __float2half_rn(x); }
template <> __device__ __forceinline__ nv_bfloat16   from_float<nv_bfloat16>  (float x) { return __float2bfloat16(x); }

template <typename T>
static __global__ void __launch_bounds__(DECODE_THREADS) turbo_cpy_decode(const decode_args a) {
    __shared__ float levels[TURBO_LEVELS];
    turbo_write_levels(levels, a.side.format, threadIdx.x);
    __syncthreads();

    const int64_t g = (int64_t) blockIdx.x*DECODE_THREADS + threadIdx.x;
    if (g >= a.n) {
        return;
    }
    const int64_t i     = 8*g;
    const int     block = a.side.format.block;
    const int64_t first = i/block*block;

    float x[8];
    decode_8(a.side.data + a.src.offset(first, block), (int) (i - first), a.side, levels, x);

#pragma unroll
    for (int j = 0; j < 8; ++j) {
        *(T *) (a.y + a.dst.offset(i + j, 1)) = from_float<T>(x[j]);
    }
}

void ggml_cuda_turbo_cpy_decode(ggml_backend_cuda_context & ctx, const ggml_tensor * src, ggml_tensor * dst) {
    decode_args a;
    a.side = side_of(src);
    a.src  = turbo_shape(src);
    a.dst  = turbo_shape(dst);
    a.y    = (char *) dst->data;
    a.n    = ggml_nelements(src)/8;

    if (a.n == 0) {
        return;
    }
    const unsigned n = (unsigned) ((a.n + DECODE_THREADS - 1)/DECODE_THREADS);
    switch (dst->type) {
        case GGML_TYPE_F32:  turbo_cpy_decode<float>      <<<n, DECODE_THREADS, 0, ctx.stream()>>>(a); break;
        case GGML_TYPE_F16:  turbo_cpy_decode<half>       <<<n, DECODE_THREADS, 0, ctx.stream()>>>(a); break;
        case GGML_TYPE_BF16: turbo_cpy_decode<nv_bfloat16><<<n, DECODE_THREADS, 0, ctx.stream()>>>(a); break;
        default: GGML_ABORT("copy from %s to %s is not supported", ggml_type_name(src->type), ggml_type_name(dst->type));
    }
}

struct same_args {
    turbo_shape  src, dst;
    const char * x;
    char       * y;
    int          block, bytes;
    int64_t      n; // pairs of bytes
};

static __global__ void __launch_bounds__(DECODE_THREADS) turbo_cpy_same(const same_args a) {
    const int64_t t = (int64_t) blockIdx.x*DECODE_THREADS + threadIdx.x;
    if (t >= a.n) {
        return;
    }
    const int     per_block = a.bytes/2;
    const int64_t i = t/per_block*a.block;
    const int     o = (int) (t % per_block)*2;
    *(uint16_t *) (a.y + a.dst.offset(i, a.block) + o) = *(const uint16_t *) (a.x + a.src.offset(i, a.block) + o);
}

void ggml_cuda_turbo_cpy_same(ggml_backend_cuda_context & ctx, const ggml_tensor * src, ggml_tensor * dst) {
    const turbo_format f = turbo_format_of(src->type);

    same_args a;
    a.src   = turbo_shape(src);
    a.dst   = turbo_shape(dst);
    a.x     = (const char *) src->data;
    a.y     = (char *) dst->data;
    a.block = f.block;
    a.bytes = f.bytes;
    a.n     = ggml_nelements(src)/f.block*(f.bytes/2);

    if (a.n == 0) {
        return;
    }
    turbo_cpy_same<<<(unsigned) ((a.n + DECODE_THREADS - 1)/DECODE_THREADS), DECODE_THREADS, 0, ctx.stream()>>>(a);
}
