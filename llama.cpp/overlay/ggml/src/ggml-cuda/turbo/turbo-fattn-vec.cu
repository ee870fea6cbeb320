// Decode kernels for keys and values of turbo types (turbo-fattn-vec.cuh), and the shapes of all decode kernels.

#include "turbo-fattn-vec.cuh"

#include <climits>

turbo_vec_plan ggml_cuda_turbo_fattn_vec_plan(const turbo_fattn_args & a) {
    const auto plan = [](auto shape) {
        return turbo_vec_plan{ shape.R, shape.resident, TURBO_VEC_TILE*shape.warps };
    };
    const bool mixed = a.k.kind != TURBO_KIND_TURBO || a.v.kind != TURBO_KIND_TURBO;
    return mixed ? turbo_vec_choose<true>(a, plan) : turbo_vec_choose<false>(a, plan);
}

int ggml_cuda_turbo_fattn_vec_rows(const turbo_fattn_args & a) {
    turbo_fattn_args many = a;
    many.rows = INT_MAX;
    return ggml_cuda_turbo_fattn_vec_plan(many).rows;
}

void ggml_cuda_turbo_fattn_vec(const turbo_fattn_args & a, cudaStream_t stream) {
    turbo_vec_choose<false>(a, [&](auto shape) { turbo_fattn_vec_launch<TURBO_KIND_TURBO, TURBO_KIND_TURBO>(a, shape, stream); });
}
