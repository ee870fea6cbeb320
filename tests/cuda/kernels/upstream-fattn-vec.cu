#include "fattn-vec.cuh"

#define CASE(D, K, V) template void ggml_cuda_flash_attn_ext_vec_case<D, GGML_TYPE_##K, GGML_TYPE_##V>(ggml_backend_cuda_context &, ggml_tensor *);
CASE( 64, F16,  F16)
CASE(128, F16,  F16)
CASE(256, F16,  F16)
#undef CASE
