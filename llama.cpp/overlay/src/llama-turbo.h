#pragma once

// Turbo types in the KV cache: which type a layer gets, the rotation maps of a cache, and where they enter the graph.
// Rotation happens in four places, whatever the attention variant: when K and V are stored, on Q, and on the attention output.

#include "ggml-cpp.h"
#include "ggml-turbo.h"
#include "llama-arch.h"

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <vector>

struct llama_hparams;

// The maps of one cache layer. The cache's K and V tensors point to it (llama_turbo_map_of), so that the graph finds the maps from any
// view of the cache, through layer reuse and shared caches too.
struct llama_turbo_map {
    uint32_t il = 0;

    const ggml_tensor * k = nullptr; // the cache tensors; null: stored as upstream would
    const ggml_tensor * v = nullptr;

    ggml_tensor * signs = nullptr;   // F32 [max(d_k, d_v)], diagonal of the rotation; of V, and of K where it is not conditioned

    ggml_tensor * v_undo = nullptr;  // F32 [d_v], diagonal that the attention output is rotated back with: the signs times a gain

    // conditioned keys: the signs times s and 1/s, and mu (llama-kv-condition.h). F32 [d_k, n_head_kv]
    ggml_tensor * k_diag  = nullptr;
    ggml_tensor * k_undo  = nullptr; // undoes k_diag; also the diagonal of the queries
    ggml_tensor * k_shift = nullptr;

    std::vector<float> k_scale, k_mean; // what the three are filled from

    uint32_t k_identity = 0;         // 0: not conditioned. Goes into saved states, with the type of K

    int64_t k_split = 0;             // MLA: length of the latent part, rotated apart from the rotary part

    bool observe = false;            // measure K and Q instead of changing them
};

// The maps of one llama_kv_cache, with their buffers.
class llama_turbo_maps {
public:
    // k, v: the cache tensors of layer il in buffers of type buft; v is null where V is a view of K
    void add(const llama_hparams & hparams, uint32_t il, ggml_backend_buffer_type_t buft, ggml_tensor * k, ggml_tensor * v);

    // true when K (V) of a layer is rotated or conditioned by these maps: upstream's own rotation must stay off
    bool has_k() const;
    bool has_v() const;

    // allocates and fills the maps
    void alloc(bool no_alloc);

    // one line for each kind of layer: head dims, types, bits a value and MiB as allocated
    void log(const char * cache_kind) const;

private:
    struct layer_info {
        int64_t d_k, d_v;
        ggml_type type_k, type_v;
        size_t  nbytes_k, nbytes_v;
        int64_t nelem_k, nelem_v;
        bool rotated, conditioned;
        uint32_t il;
    };

    std::vector<layer_info>     infos;
    std::deque<llama_turbo_map> maps; // stable addresses

    std::map<ggml_backend_buffer_type_t, ggml_context_ptr> ctxs;
    std::vector<ggml_backend_buffer_ptr> bufs;
};

// The type that stores K, or V, of a layer: as the rules of llama-kv-layers.h say, else type_k or type_v, resolved to the block of the head
// dim; throws std::runtime_error when there is none.
ggml_type llama_turbo_layer_type(const llama_hparams & hparams, uint32_t il, ggml_type type_k, ggml_type type_v, bool is_v);

// Empty when the model can be cached with these types, else one line: the reason and what works.
std::string llama_turbo_unsupported(const llama_hparams & hparams, llm_arch arch, ggml_type type_k, ggml_type type_v, bool flash_attn_off);

// The map of the layer that a tensor, or the tensor it is a view of, belongs to; null when it has none.
const llama_turbo_map * llama_turbo_map_of(const ggml_tensor * t);

// Graph hooks. Each returns its input unchanged when the cache layer has no map.
//   cur [d, n_head, n_tokens, ...] F32; cache: the layer's cache tensor or any view of it
ggml_tensor * llama_turbo_store (ggml_context * ctx, ggml_tensor * cur, const ggml_tensor * cache);
ggml_tensor * llama_turbo_query (ggml_context * ctx, ggml_tensor * cur, const ggml_tensor * cache_k, float kq_scale);
ggml_tensor * llama_turbo_output(ggml_context * ctx, ggml_tensor * cur, const ggml_tensor * cache_v);

// What a saved state says about a cache layer's K: its type and the identity of its conditioning.
int32_t llama_turbo_state_type(const ggml_tensor * cache_k);
// Logs why a state whose K says `saved` cannot be read into this cache, and how to proceed.
void llama_turbo_state_mismatch(int32_t saved, const ggml_tensor * cache_k);

// K-shift of one layer: decode, unrotate, apply rope (on the n_rot channels from n_embd_nope on), rotate, encode. False when the layer has no map.
bool llama_turbo_shift_k(
        ggml_context * ctx,
        ggml_cgraph  * gf,
        ggml_tensor  * cache_k,
        int64_t        n_embd_head,
        int64_t        n_rot,
        int64_t        n_embd_nope,
        const std::function<ggml_tensor * (ggml_tensor *)> & rope);
