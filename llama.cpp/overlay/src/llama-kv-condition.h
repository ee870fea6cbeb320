#pragma once

// Conditioning of the keys: a fixed shift and scale of every channel, exact by softmax's invariance, that makes low-bit keys work.
//
//   stored   k' = s * (k - mu)        asked   q' = q / s
//
// q'.k' = q.k - q.mu: the same for every key of one query, so the softmax does not change. mu and s, for each channel of each KV head, are
// those that least disturb the attention when k' is quantised (llama-kv-stats.h), s scaled to geometric mean 1. They come from pseudo-random
// tokens run once through the model; no data set is needed.

#include "llama-kv-stats.h"
#include "llama.h"

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

struct llama_model;

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

// The conditioning for a context of this model, as the setting in force says (auto, on, off, a file): read from the user's cache folder,
// or computed and put there. Null: none. Throws std::runtime_error, one line, when a file that the user named cannot be used.
std::shared_ptr<const llama_kv_condition> llama_kv_condition_get(const llama_model & model, const llama_context_params & params);
