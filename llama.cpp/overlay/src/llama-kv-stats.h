#pragma once

// Statistics of the post-RoPE keys and queries of a model, weighted by how much an error of each logit moves the attention.
//
// A quantiser that errs in proportion to the length of what it stores gives the logit of query i and key j a noise of variance
// |s(k_j - mu)|^2 |q_i/s|^2 up to a constant, and independent noise of the logits moves the softmax by KL = 1/2 sum_ij w_ij noise_ij,
// w = p(1 - p), to second order. The sum is least, over mu and the diagonal s, at
//
//   mu = E_k[k]     s^4 = E_q[q^2]/E_k[(k - mu)^2]
//
// where E_k weighs the key of token j by sum_i w_ij |q_i/s|^2, and E_q the query of token i by sum_j w_ij |s(k_j - mu)|^2: a fixed point.
// Without weights these are the plain moments (docs/ablation.md has what the weights gain).

#include "llama.h"

#include <cstdint>
#include <map>
#include <string>
#include <vector>

struct llama_model;
struct ggml_tensor;
struct ggml_context;

// Statistics of one cache layer over a sample, row-major [n_head_kv][d].
struct llama_kv_stats {
    uint32_t d         = 0;
    uint32_t n_head_kv = 0;

    std::vector<float> k_mean; // E_k[k]
    std::vector<float> k_var;  // E_k[(k - mean)^2]
    std::vector<float> q_sqr;  // E_q[q^2] over the query heads of the group, up to a common factor
};

// What is measured: n_segments runs of n_tokens tokens, each from an empty cache, the first at position 0, the starts spread so that all lie
// within span.
struct llama_kv_sample {
    uint32_t n_segments = 2;
    uint32_t n_tokens   = 2048;
    uint32_t span       = 2048;
    uint64_t seed       = 1;

    std::string describe(const char * what) const;
};

// Contexts up to this many tokens a sequence are measured with runs of 512. Two classes only: each has a file of its own, and a state that was
// saved in one is refused in the other.
constexpr uint32_t LLAMA_KV_SHORT_CONTEXT = 1024;

// The sample for a context of n_ctx_seq tokens a sequence, within the positions that the model knows. The mean of a rotated key depends on the
// positions that were seen: runs of 512 are best for contexts of that size and far worse than no conditioning at 4096 (docs/ablation.md).
llama_kv_sample llama_kv_sample_for(const llama_model & model, uint32_t n_ctx_seq);

// Ordinary tokens of the vocabulary, each run after the token that the model expects at the start of a text. Throws std::runtime_error.
std::vector<llama_token> llama_kv_random_tokens(const llama_model & model, const llama_kv_sample & sample);

// Runs the tokens through the model with an exact cache. params gives RoPE, threads and offloading. centre: whether the keys will be
// centred; if not, mu above is 0. The result is by layer index in the model; layers without a K cache are absent. Throws std::runtime_error.
std::map<uint32_t, llama_kv_stats> llama_kv_measure(
        const llama_model & model,
        llama_context_params params,
        const std::vector<llama_token> & tokens,
        const llama_kv_sample & sample,
        bool centre);

// What a cache made under LLAMA_KV_CONDITION_OBSERVE puts into the graph: a copy that llama_kv_measure reads.
ggml_tensor * llama_kv_observe_k(ggml_context * ctx, ggml_tensor * k, uint32_t il);
ggml_tensor * llama_kv_observe_q(ggml_context * ctx, ggml_tensor * q, uint32_t il, float kq_scale);
