#include "fattn-mma-f16.cuh"

template void ggml_cuda_flash_attn_ext_mma_f16_case<128, 128, 8, 1>(ggml_backend_cuda_context &, ggml_tensor *);
