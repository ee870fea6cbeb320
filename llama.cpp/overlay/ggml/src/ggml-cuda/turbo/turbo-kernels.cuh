#pragma once

// Internal: the kernels' host functions, called by turbo-cuda.cu after ggml_cuda_turbo_supports() said yes, and what they share.

#include "turbo-codec.cuh"

// where the elements of a tensor lie
struct turbo_shape {
    int64_t ne0, ne1, ne2;
    int64_t nb0, nb1, nb2, nb3;
    bool    contiguous;

    turbo_shape() = default;
    explicit turbo_shape(const ggml_tensor * t) :
        ne0(t->ne[0]), ne1(t->ne[1]), ne2(t->ne[2]), nb0(t->nb[0]), nb1(t->nb[1]), nb2(t->nb[2]), nb3(t->nb[3]), contiguous(ggml_is_contiguous(t)) {}

    // bytes from the start to element i in logical order, the first of its block
    __device__ __forceinline__ int64_t offset(int64_t i, int block) const {
        if (contiguous) {
            return i/block*nb0;
        }
        const int64_t i0 = i % ne0; i /= ne0;
        const int64_t i1 = i % ne1; i /= ne1;
        const int64_t i2 = i % ne2;
        const int64_t i3 = i / ne2;
        return i0/block*nb0 + i1*nb1 + i2*nb2 + i3*nb3;
    }
};

void ggml_cuda_turbo_set_rows  (ggml_backend_cuda_context & ctx, ggml_tensor * dst);
void ggml_cuda_turbo_cpy_encode(ggml_backend_cuda_context & ctx, const ggml_tensor * src, ggml_tensor * dst);

void ggml_cuda_turbo_get_rows  (ggml_backend_cuda_context & ctx, ggml_tensor * dst);
void ggml_cuda_turbo_cpy_decode(ggml_backend_cuda_context & ctx, const ggml_tensor * src, ggml_tensor * dst);
void ggml_cuda_turbo_cpy_same  (ggml_backend_cuda_context & ctx, const ggml_tensor * src, ggml_tensor * dst);

// the dimensions that the rotation has kernels for
bool ggml_cuda_turbo_rotate_supports(int64_t d);
void ggml_cuda_turbo_rotate    (ggml_backend_cuda_context & ctx, ggml_tensor * dst);

bool ggml_cuda_turbo_fattn_supports(const ggml_tensor * op);
void ggml_cuda_turbo_fattn     (ggml_backend_cuda_context & ctx, ggml_tensor * dst);
