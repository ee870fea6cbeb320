// Queries, keys and values of attention, taken from the graph while it is evaluated.

#pragma once

#include "ggml.h"

#include <map>
#include <set>
#include <string>
#include <vector>

struct layer_data {
    int64_t d = 0, d_v = 0, n_head = 0, n_head_kv = 0;

    std::vector<float> q;     // [n][n_head][d], as the batches come
    std::vector<float> k;     // [n_head_kv][n][d], whole history, replaced by every batch
    std::vector<float> v;     // [n_head_kv][n][d_v]
    std::vector<float> k_pre; // [n][n_head_kv][d], before RoPE
    std::vector<float> sinks; // [n_head] or empty

    float   scale   = 0.0f;
    float   softcap = 0.0f; // 0: none
    int32_t window  = 0;    // tokens that a query sees, itself included; 0: all before it

    bool               has_rope  = false;
    int32_t            rope_dims = 0, rope_mode = 0;
    std::vector<float> rope_params;  // freq_base, freq_scale, ext_factor, attn_factor, beta_fast, beta_slow
    std::vector<float> rope_factors; // [rope_dims/2] or empty
    int32_t            rope_ctx_orig = 0;
};

class collector {
public:
    std::set<int> wanted;   // layers; empty: every one
    bool pre_rope = false;  // the keys before RoPE too

    std::map<int, layer_data> layers;
    std::set<int>             seen; // layers that cache keys of their own

    // for llama_context_params::cb_eval; user_data is the collector
    static bool callback(ggml_tensor * t, bool ask, void * user_data);

    // around llama_decode of the tokens n_past to n_past + n_batch - 1, which returned rc; the end throws std::runtime_error when
    // they were not understood
    void begin_batch(int n_past, int n_batch);
    void end_batch(int32_t rc) const;

private:
    struct candidate {
        const ggml_tensor * root;
        size_t              offs;
        std::vector<float>  data;
    };

    // of the batch that is being evaluated
    int n_past = 0, n_batch = 0;
    std::set<int>            done;       // layers that share a cache are taken at its owner
    std::map<int, candidate> candidates; // by layer, for the input of RoPE
    std::string              error;      // what the callback could not take

    bool node(const ggml_tensor * t, bool ask);

    void take_q_k(int il, const ggml_tensor * q, const ggml_tensor * k);
    void take_v  (int il, const ggml_tensor * v, bool transposed);
    void take_mask(int il, const ggml_tensor * mask);
    void take_sinks(int il, const ggml_tensor * sinks);
    void set_scores(int il, float scale, float softcap, float max_bias);
    void take_rope(int il, const ggml_tensor * rope);

    bool is_wanted(int il) {
        seen.insert(il);
        return wanted.empty() || wanted.count(il) != 0;
    }
};
