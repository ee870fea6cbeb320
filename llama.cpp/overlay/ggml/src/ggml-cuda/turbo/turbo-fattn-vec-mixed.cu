// Decode kernels where one side is f16 or q8_0 (turbo-fattn-vec.cuh).

#include "turbo-fattn-vec.cuh"

template <turbo_kind KK, turbo_kind KV>
static void launch(const turbo_fattn_args & a, cudaStream_t stream) {
    turbo_vec_choose<true>(a, [&](auto shape) { turbo_fattn_vec_launch<KK, KV>(a, shape, stream); });
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
