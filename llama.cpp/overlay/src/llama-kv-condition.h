#pragma once

// Conditioning of the keys: a fixed shift and scale of every channel, exact by softmax's invariance, that makes low-bit keys work.
//
//   stored   k' = s * (k - mu)        asked   q' = q / s
//
// q'.k' = q.k - q.mu: the same for every key of one query, so the softmax does not change. mu is the mean of the post-RoPE keys of a
// KV head; s minimises the noise that an isotropic quantiser of k' leaves in q.k, sum(E[q^2]/s^2) * sum(s^2 Var[k]): s^4 = E[q^2]/Var[k],
// scaled to geometric mean 1. Both come from statistics of pseudo-random tokens run once through the model; no data set is needed.

#include "llama.h"

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

struct llama_model;

// Statistics of one cache layer over a sample, row-major [n_head_kv][d].
struct llama_kv_stats {
    uint32_t d         = 0;
    uint32_t n_head_kv = 0;

    std::vector<float> k_mean; // E[k]
    std::vector<float> k_var;  // E[(k - mean)^2]
    std::vector<float> q_sqr;  // E[q^2] over the query heads of the group, up to a common factor
};

// What is measured: n_segments runs of n_tokens tokens, each from an empty cache, the first at position 0, the starts spread so that all lie
// within span. The default is the cheapest that was good on three models (half of it was not); starts beyond 0 made short contexts worse (docs/ablation.md).
struct llama_kv_sample {
    uint32_t n_segments = 8;
    uint32_t n_tokens   = 512;
    uint32_t span       = 512;
    uint64_t seed       = 1;

    std::string describe(const char * what) const;
};

struct llama_kv_condition {
    std::map<uint32_t, llama_kv_stats> layers; // by layer index in the model

    // Where a change of all scores of a query by one constant is visible (sink logits, softcapping of scores), keys are scaled only.
    bool        centre = true;
    std::string why_not_centre;

    // [n_head_kv][d]; false when the layer has no statistics
    bool maps(uint32_t il, std::vector<float> & scale, std::vector<float> & shift) const;
};

// What the caches of the context under construction shall do. Set by llama_kv_condition_scope for the time of the construction, because
// upstream's cache constructors have no argument to carry it.
enum llama_kv_condition_mode {
    LLAMA_KV_CONDITION_NONE,
    LLAMA_KV_CONDITION_OBSERVE, // put observable copies of K and Q into the graph
    LLAMA_KV_CONDITION_APPLY,
};

struct llama_kv_condition_scope {
    // for a context of this model: what the setting in force says, or the surrounding scope's OBSERVE. Throws as llama_kv_condition_get.
    llama_kv_condition_scope(const llama_model & model, const llama_context_params & params);
    llama_kv_condition_scope(llama_kv_condition_mode mode, std::shared_ptr<const llama_kv_condition> condition);
    ~llama_kv_condition_scope();

    llama_kv_condition_scope(const llama_kv_condition_scope &) = delete;

    static llama_kv_condition_mode mode();
    static const llama_kv_condition * condition();

private:
    llama_kv_condition_mode                   prev_mode;
    std::shared_ptr<const llama_kv_condition> prev_condition;
};

// name prefixes of the graph nodes that OBSERVE adds, followed by the layer index
#define LLAMA_KV_OBSERVE   "kv_observe_"
#define LLAMA_KV_OBSERVE_K "kv_observe_k_"
#define LLAMA_KV_OBSERVE_Q "kv_observe_q_"

// The conditioning for a context of this model, as the setting in force says (auto, on, off, a file): read from the user's cache folder,
// or computed and put there. Null: none. Throws std::runtime_error, one line, when a file that the user named cannot be used.
std::shared_ptr<const llama_kv_condition> llama_kv_condition_get(const llama_model & model, const llama_context_params & params);
