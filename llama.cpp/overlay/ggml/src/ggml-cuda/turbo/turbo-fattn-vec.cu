// Decode kernels for keys and values of turbo types (turbo-fattn-vec.cuh).

#include "turbo-fattn-vec.cuh"

#include <algorithm>

// one row block: its rows, and what a lane holds of them
static int vec_rows(const turbo_fattn_args & a) {
    const bool turbo = a.k.kind == TURBO_KIND_TURBO && a.v.kind == TURBO_KIND_TURBO;
    const int  d     = std::max(a.k.d, a.v.d);
    if (d > 512) {
        return 2;
    }
    return turbo && d <= 256 ? 8 : 4;
}

int ggml_cuda_turbo_fattn_vec_rows(const turbo_fattn_args & a) {
    return vec_rows(a);
}

int64_t ggml_cuda_turbo_fattn_vec_blocks(const turbo_fattn_args & a) {
    return (int64_t) (a.rows + vec_rows(a) - 1)/vec_rows(a)*a.n_head_kv*a.n_stream;
}

template <int LPK>
static void launch(const turbo_fattn_args & a, cudaStream_t stream) {
    constexpr turbo_kind T = TURBO_KIND_TURBO;
    if (a.rows == 1) {
        turbo_fattn_vec_launch<T, T, LPK, 1, 16, 1>(a, stream);
    } else if (a.rows == 2) {
        turbo_fattn_vec_launch<T, T, LPK, 1, 16, 2>(a, stream);
    } else if (a.rows <= 4 || LPK == 32) {
        turbo_fattn_vec_launch<T, T, LPK, 1, 16, 4>(a, stream);
    } else if constexpr (LPK <= 16) {
        turbo_fattn_vec_launch<T, T, 2*LPK, 1, 8, 8>(a, stream);
    }
}

void ggml_cuda_turbo_fattn_vec(const turbo_fattn_args & a, cudaStream_t stream) {
    constexpr turbo_kind T = TURBO_KIND_TURBO;
    const int d = std::max(a.k.d, a.v.d);
    if (d <= 64) {
        launch<4>(a, stream);
    } else if (d <= 128) {
        launch<8>(a, stream);
    } else if (d <= 256) {
        launch<16>(a, stream);
    } else if (d <= 512) {
        launch<32>(a, stream);
    } else if (a.rows == 1) {
        turbo_fattn_vec_launch<T, T, 32, 2, 16, 1>(a, stream);
    } else {
        turbo_fattn_vec_launch<T, T, 32, 2, 16, 2>(a, stream);
    }
}
