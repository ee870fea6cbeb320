#pragma once

// Internal: what the attention kernels on packed keys and values share.
//
// A query row is a (token, head) pair. The rows of one KV head, its group of query heads times the tokens, are numbered token*group + head of the
// group, and cut into row blocks: what a row block decodes serves all its rows. Keys are cut into n_split runs, merged by a second kernel.
// Q, K and V come rotated, the output leaves rotated: the graph undoes it. Scores are base-2 logits.

#include "turbo-kernels.cuh"

struct turbo_fattn_args {
    const char  * q;
    turbo_side    k, v;
    const char  * mask;          // f16, or null
    const float * sinks;         // a logit a head, or null
    float       * dst;           // [d_v, n_head, n_tokens, n_stream]
    float       * part;          // n_split > 1: [row of dst][n_split][d_v], the weighted sums
    float2      * meta;          // and [row of dst][n_split]: the maximum they refer to, the sum of the weights

    int64_t       q_nb1, q_nb2, q_nb3;
    int64_t       mask_nb1, mask_nb2, mask_nb3;
    int           mask_ne2, mask_ne3;

    int           n_kv, n_tokens, n_head, n_head_kv, n_stream;
    int           group;         // query heads of a KV head
    int           rows;          // group*n_tokens
    int           n_split, chunk;

    float         q_scale;       // a query's factor: the score is then a base-2 logit, or what cap*tanh makes one of
    float         cap;           // 0: none
    float         m0, m1;        // bases of the ALiBi slopes
    int           n_head_log2;   // 0: no ALiBi
};

constexpr float TURBO_LOG2E = 1.4426950408889634f;

// base^e; the fast powf that the backend is compiled with is off by more than a far key's bias can take
static __device__ __forceinline__ float turbo_pow(float base, int e) {
    double b = base, r = 1.0;
    for (; e > 0; e /= 2, b *= b) {
        r = e % 2 ? r*b : r;
    }
    return (float) r;
}

static __device__ __forceinline__ float turbo_fattn_slope(const turbo_fattn_args & a, int head) {
    const int n = a.n_head_log2;
    return TURBO_LOG2E*(n == 0 ? 1.0f : head < n ? turbo_pow(a.m0, head + 1) : turbo_pow(a.m1, 2*(head - n) + 1));
}

// cap*tanh(x), not by the fast tanh.approx, which has 11 bits
static __device__ __forceinline__ float turbo_fattn_softcap(float cap, float x) {
    const float e = expm1f(2.0f*fminf(fabsf(x), 16.0f)); // tanh(16) rounds to 1
    return copysignf(cap*(e/(e + 2.0f)), x);
}

// What the weighted sum of the values is multiplied by, the sink counted.
static __device__ __forceinline__ float turbo_fattn_factor(const turbo_fattn_args & a, int head, float M, float S) {
    float f = 1.0f;
    if (a.sinks) {
        const float s = a.sinks[head]*TURBO_LOG2E;
        if (s > M) {
            f = exp2f(M - s);
            S = S*f + 1.0f;
        } else {
            S += exp2f(s - M);
        }
    }
    return S == 0.0f ? 0.0f : f/S;
}

static __device__ __forceinline__ int64_t turbo_fattn_dst_row(const turbo_fattn_args & a, int stream, int token, int head) {
    return ((int64_t) stream*a.n_tokens + token)*a.n_head + head;
}

// elements from the mask's start to the row of a query
static __device__ __forceinline__ uint32_t turbo_fattn_mask_row(const turbo_fattn_args & a, int stream, int token, int head) {
    return (uint32_t) ((token*a.mask_nb1 + head % a.mask_ne2*a.mask_nb2 + stream % a.mask_ne3*a.mask_nb3)/sizeof(half));
}

// Rows of a KV head that a vec kernel for these sides takes at most; more rows are a tile's.
int  ggml_cuda_turbo_fattn_vec_rows(const turbo_fattn_args & a);

// The vec kernel for these rows. keys: a tile for each of its warps, for which a block takes as long as for one tile.
struct turbo_vec_plan { int rows, resident, keys; };
turbo_vec_plan ggml_cuda_turbo_fattn_vec_plan(const turbo_fattn_args & a);

// Launches; a.part and a.meta are allocated where a.n_split asks for them.
void ggml_cuda_turbo_fattn_vec      (const turbo_fattn_args & a, cudaStream_t stream);
void ggml_cuda_turbo_fattn_vec_mixed(const turbo_fattn_args & a, cudaStream_t stream);
void ggml_cuda_turbo_fattn_tile     (const turbo_fattn_args & a, cudaStream_t stream);
void ggml_cuda_turbo_fattn_mma      (const turbo_fattn_args & a, cudaStream_t stream);

// thread blocks before the keys are split
int64_t ggml_cuda_turbo_fattn_tile_blocks(const turbo_fattn_args & a);
int64_t ggml_cuda_turbo_fattn_mma_blocks (const turbo_fattn_args & a);

// blocks that fit on a multiprocessor
int ggml_cuda_turbo_fattn_mma_resident(const turbo_fattn_args & a);

// whether the tensor cores of a device can do it
bool ggml_cuda_turbo_fattn_mma_has(const turbo_fattn_args & a, int cc);

bool ggml_cuda_turbo_fattn_tile_supports(int64_t d_k, int64_t d_v);
