// GGML_OP_TURBO_ROTATE: FORMAT.md section 5, one vector a warp, 4 warps a block.
//
// Powers of two  value j = 32*i + lane: the low 5 bits of the transform are shuffles, the rest are butterflies between registers. No shared
//                memory; d/32 registers of values, <= 40 in all (d = 512; 43 on sm_75).
// m * 2^k        the vector lies in shared memory (d floats a warp, 9 KiB at d = 576). One lane does the 2^k transform of one of the m columns,
//                then each lane sums the m terms of its outputs with the signs of a row of H_m, one bit a sign. <= 48 registers.
// Sources        a vector of another stride costs nothing; diag and shift are rows of a map, shared by a group of heads.
// Occupancy kernel                     threads  dynamic shared  sm_75  sm_90
//           turbo_rotate_pow2<64>          128               0      8     12
//           turbo_rotate_pow2<*>           128               0      8     16
//           turbo_rotate_paley<36,16>      128               0      6     12
//           turbo_rotate_paley<*>          128               0      8     12

#include "turbo-kernels.cuh"

static constexpr int ROTATE_WARPS = 4;
static constexpr int MAX_ORDER    = 36;

struct rotate_args {
    const char  * x;
    char        * y;
    const char  * diag;   // or null
    const char  * shift;  // or null
    int64_t       n_rows, ne1, ne2;
    int64_t       nb1, nb2, nb3;    // of x
    int64_t       y_nb1;            // y is contiguous
    int64_t       diag_nb1, shift_nb1;
    int           diag_group, shift_group;
    bool          inverse;
    float         scale;            // 1/sqrt(d)
    uint64_t      minus[MAX_ORDER]; // bit c of minus[r]: H_m[r][c] is -1
};

// the vector of a warp
struct rotate_row {
    const float * x;
    float       * y;
    const float * diag;
    const float * shift;

    __device__ __forceinline__ rotate_row(const rotate_args & a, int64_t row) {
        const int64_t i1 = row % a.ne1;
        const int64_t i2 = row / a.ne1 % a.ne2;
        const int64_t i3 = row / a.ne1 / a.ne2;
        x     = (const float *) (a.x + i1*a.nb1 + i2*a.nb2 + i3*a.nb3);
        y     = (float *) (a.y + row*a.y_nb1);
        diag  = a.diag  ? (const float *) (a.diag  + i1/a.diag_group *a.diag_nb1)  : nullptr;
        shift = a.shift ? (const float *) (a.shift + i1/a.shift_group*a.shift_nb1) : nullptr;
    }

    __device__ __forceinline__ float load(int j, bool inverse) const {
        return inverse ? x[j] : (x[j] - (shift ? shift[j] : 0.0f))*(diag ? diag[j] : 1.0f);
    }

    __device__ __forceinline__ void store(int j, float v, bool inverse) const {
        y[j] = inverse ? v*(diag ? diag[j] : 1.0f) + (shift ? shift[j] : 0.0f) : v;
    }
};

template <int D>
static __global__ void __launch_bounds__(32*ROTATE_WARPS) turbo_rotate_pow2(const rotate_args a) {
    constexpr int N = D/32;

    const int     lane = threadIdx.x % 32;
    const int64_t r    = (int64_t) blockIdx.x*ROTATE_WARPS + threadIdx.x/32;
    if (r >= a.n_rows) {
        return; // the whole warp
    }
    const rotate_row row(a, r);

    float x[N];
#pragma unroll
    for (int i = 0; i < N; ++i) {
        x[i] = row.load(32*i + lane, a.inverse);
    }
#pragma unroll
    for (int o = 1; o < 32; o *= 2) {
#pragma unroll
        for (int i = 0; i < N; ++i) {
            const float other = __shfl_xor_sync(0xFFFFFFFF, x[i], o);
            x[i] = lane & o ? other - x[i] : x[i] + other;
        }
    }
#pragma unroll
    for (int o = 1; o < N; o *= 2) {
#pragma unroll
        for (int i = 0; i < N; ++i) {
            if ((i & o) == 0) {
                const float s = x[i], t = x[i + o];
                x[i]     = s + t;
                x[i + o] = s - t;
            }
        }
    }
#pragma unroll
    for (int i = 0; i < N; ++i) {
        row.store(32*i + lane, x[i]*a.scale, a.inverse);
    }
}

template <int M, int P>
static __global__ void __launch_bounds__(32*ROTATE_WARPS) turbo_rotate_paley(const rotate_args a) {
    constexpr int D = M*P;

    __shared__ float    buf[ROTATE_WARPS][D];
    __shared__ uint64_t minus[M];

#pragma unroll
    for (int i = 0; i < M; ++i) {
        if (i == (int) threadIdx.x) {
            minus[i] = a.minus[i];
        }
    }
    __syncthreads();

    const int     lane = threadIdx.x % 32;
    const int     warp = threadIdx.x / 32;
    const int64_t r    = (int64_t) blockIdx.x*ROTATE_WARPS + warp;
    if (r >= a.n_rows) {
        return;
    }
    const rotate_row row(a, r);
    float * b = buf[warp];

    for (int j = lane; j < D; j += 32) {
        b[j] = row.load(j, a.inverse);
    }
    __syncwarp();

    for (int c = lane; c < M; c += 32) {
        float x[P];
#pragma unroll
        for (int i = 0; i < P; ++i) {
            x[i] = b[c*P + i];
        }
#pragma unroll
        for (int o = 1; o < P; o *= 2) {
#pragma unroll
            for (int i = 0; i < P; ++i) {
                if ((i & o) == 0) {
                    const float s = x[i], t = x[i + o];
                    x[i]     = s + t;
                    x[i + o] = s - t;
                }
            }
        }
#pragma unroll
        for (int i = 0; i < P; ++i) {
            b[c*P + i] = x[i];
        }
    }
    __syncwarp();

    for (int j = lane; j < D; j += 32) {
        const uint64_t m = minus[j/P];
        float s = 0.0f;
#pragma unroll
        for (int c = 0; c < M; ++c) {
            const uint32_t sign = (uint32_t) (m >> c) << 31;
            s += __uint_as_float(__float_as_uint(b[c*P + j % P]) ^ sign);
        }
        row.store(j, s*a.scale, a.inverse);
    }
}

typedef void (*rotate_kernel_t)(const rotate_args a);

static rotate_kernel_t rotate_kernel(int64_t d) {
    switch (d) {
        case  64: return turbo_rotate_pow2< 64>;
        case 128: return turbo_rotate_pow2<128>;
        case 256: return turbo_rotate_pow2<256>;
        case 512: return turbo_rotate_pow2<512>;
        case  80: return turbo_rotate_paley<20,  4>;
        case  96: return turbo_rotate_paley<12,  8>;
        case 112: return turbo_rotate_paley<28,  4>;
        case 160: return turbo_rotate_paley<20,  8>;
        case 192: return turbo_rotate_paley<12, 16>;
        case 320: return turbo_rotate_paley<20, 16>;
        case 576: return turbo_rotate_paley<36, 16>;
        default:  return nullptr;
    }
}

bool ggml_cuda_turbo_rotate_supports(int64_t d) {
    return rotate_kernel(d) != nullptr;
}

// values [first, first + d) of every row
static void rotate_part(ggml_backend_cuda_context & ctx, ggml_tensor * dst, int64_t first, int64_t d) {
    const ggml_tensor * x     = dst->src[0];
    const ggml_tensor * diag  = dst->src[1];
    const ggml_tensor * shift = dst->src[2];

    rotate_args a = {};
    a.x       = (const char *) x->data + first*sizeof(float);
    a.y       = (char *) dst->data + first*sizeof(float);
    a.diag    = diag  ? (const char *) diag->data  + first*sizeof(float) : nullptr;
    a.shift   = shift ? (const char *) shift->data + first*sizeof(float) : nullptr;
    a.n_rows  = ggml_nrows(x);
    a.ne1     = x->ne[1]; a.ne2 = x->ne[2];
    a.nb1     = x->nb[1]; a.nb2 = x->nb[2]; a.nb3 = x->nb[3];
    a.y_nb1   = dst->nb[1];
    a.diag_nb1    = diag  ? diag->nb[1]  : 0;
    a.shift_nb1   = shift ? shift->nb[1] : 0;
    a.diag_group  = diag  ? (int) (x->ne[1]/diag->ne[1])  : 1;
    a.shift_group = shift ? (int) (x->ne[1]/shift->ne[1]) : 1;
    a.inverse = ggml_get_op_params_i32(dst, 0) != 0;
    a.scale   = 1.0f/sqrtf((float) d);

    const int m = ggml_turbo_hadamard_order(d);
    const float * h = ggml_turbo_hadamard_matrix(m);
    for (int r = 0; r < m; ++r) {
        for (int c = 0; c < m; ++c) {
            a.minus[r] |= (uint64_t) (h[r*m + c] < 0.0f) << c;
        }
    }

    if (a.n_rows == 0) {
        return;
    }
    const rotate_kernel_t turbo_rotate = rotate_kernel(d);
    const unsigned n = (unsigned) ((a.n_rows + ROTATE_WARPS - 1)/ROTATE_WARPS);
    turbo_rotate<<<n, 32*ROTATE_WARPS, 0, ctx.stream()>>>(a);
}

void ggml_cuda_turbo_rotate(ggml_backend_cuda_context & ctx, ggml_tensor * dst) {
    const int64_t d     = dst->ne[0];
    const int64_t split = ggml_get_op_params_i32(dst, 1);

    if (split > 0) {
        rotate_part(ctx, dst, 0, split);
    }
    rotate_part(ctx, dst, split, d - split);
}
