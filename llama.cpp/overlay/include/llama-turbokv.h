#pragma once

// What turbokv adds to the C API of llama.h.

#include "llama.h"

#ifdef __cplusplus
extern "C" {
#endif

    // False when the model cannot be cached with the K and V types of params; reason then holds one line: why, and which types work.
    // The model may have been loaded without its weights (llama_model_params.no_alloc).
    LLAMA_API bool llama_turbo_check_model(
            const struct llama_model          * model,
            const struct llama_context_params * params,
                                         char * reason,
                                       size_t   reason_size);

    // Key conditioning of the contexts made from now on: "auto" (turbo K types), "on" (every K type), "off", or the path of a file.
    // NULL or "": what the environment variable LLAMA_KV_CONDITION says, else auto.
    LLAMA_API void llama_kv_condition_set(const char * setting);

    // Cache types by layer for the contexts made from now on, over type_k and type_v of their parameters: "0-1,-1:q8_0;5:f16/turbo3" gives
    // the first two layers and the last one q8_0 for K and V, and layer 5 an f16 K with a turbo3 V.
    // NULL or "": what the environment variable LLAMA_KV_LAYERS says, else none. False: reason holds one line, and nothing changed.
    LLAMA_API bool llama_kv_layers_set(const char * rules, char * reason, size_t reason_size);

    // Whether any layer is given a type of its own, by llama_kv_layers_set or by the environment.
    LLAMA_API bool llama_kv_layers_active(void);

    // Measures the keys of a model and writes a conditioning file.
    //   tokens     n_tokens ids of a text; or NULL for random ids, then n_tokens 0 means the default sample
    //   n_segment  tokens of one run from an empty cache; 0: as in the default sample
    //   n_span     positions over which the starts of the runs are spread evenly; up to n_segment: all start at 0
    //   params     RoPE parameters, threads and offloading are taken from it
    // False: reason holds one line.
    LLAMA_API bool llama_kv_condition_write(
            const struct llama_model          * model,
            const struct llama_context_params * params,
                            const llama_token * tokens,
                                      int32_t   n_tokens,
                                      int32_t   n_segment,
                                      int32_t   n_span,
                                   const char * path,
                                         char * reason,
                                       size_t   reason_size);

#ifdef __cplusplus
}
#endif
