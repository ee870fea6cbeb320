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

#ifdef __cplusplus
}
#endif
