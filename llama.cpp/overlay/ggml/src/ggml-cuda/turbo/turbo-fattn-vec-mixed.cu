// Decode kernels where one side is f16 or q8_0 (turbo-fattn-vec.cuh): one row count a shape, as these pairs are made for quality, not speed.

#include "turbo-fattn-vec.cuh"

#include <algorithm>

template <turbo_kind KK, turbo_kind KV>
static void launch(const turbo_fattn_args & a, cudaStream_t stream) {
    const int d = std::max(a.k.d, a.v.d);
    if (d <= 64) {
        turbo_fattn_vec_launch<KK, KV, 4, 1, 16, 4>(a, stream);
    } else if (d <= 128) {
        turbo_fattn_vec_launch<KK, KV, 8, 1, 16, 4>(a, stream);
    } else if (d <= 256) {
        turbo_fattn_vec_launch<KK, KV, 16, 1, 16, 4>(a, stream);
    } else if (d <= 512) {
        turbo_fattn_vec_launch<KK, KV, 32, 1, 16, 4>(a, stream);
    } else {
        turbo_fattn_vec_launch<KK, KV, 32, 2, 16, 2>(a, stream);
    }
}

void ggml_cuda_turbo_fattn_vec_mixed(const turbo_fattn_args & a, cudaStream_t stream) {
    if (a.k.kind == TURBO_KIND_F16) {
        launch<TURBO_KIND_F16, TURBO_KIND_TURBO>(a, stream);
    } else if (a.k.kind == TURBO_KIND_Q8_0) {
        launch<TURBO_KIND_Q8_0, TURBO_KIND_TURBO>(a, stream);
    } else if (a.v.kind == TURBO_KIND_F16) {
        launch<TURBO_KIND_TURBO, TURBO_KIND_F16>(a, stream);
    } else {
        launch<TURBO_KIND_TURBO, TURBO_KIND_Q8_0>(a, stream);
    }
}
