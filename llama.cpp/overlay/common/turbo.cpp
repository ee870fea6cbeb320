#include "turbo.h"

#include "ggml-turbo.h"
#include "llama-turbokv.h"
#include "log.h"

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <stdexcept>

bool common_turbo_check(const std::string & path_model, const llama_model_params & mparams, const llama_context_params & cparams) {
    if (!ggml_is_turbo(cparams.type_k) && !ggml_is_turbo(cparams.type_v) && !llama_kv_layers_active()) {
        return true;
    }

    struct {
        ggml_log_callback callback;
        void * user_data;
    } logger;
    llama_log_get(&logger.callback, &logger.user_data);
    llama_log_set([](ggml_log_level, const char *, void *) {}, nullptr);

    llama_model_params meta = mparams;
    meta.no_alloc  = true;
    meta.load_mode = LLAMA_LOAD_MODE_NONE;
    llama_model * model = llama_model_load_from_file(path_model.c_str(), meta);

    llama_log_set(logger.callback, logger.user_data);

    if (model == nullptr) {
        return true; // the real load says why
    }

    char reason[1024];
    const bool ok = llama_turbo_check_model(model, &cparams, reason, sizeof(reason));
    llama_model_free(model);

    if (!ok) {
        fprintf(stderr, "error: %s: %s\n", path_model.c_str(), reason);
    }
    return ok;
}

void common_turbo_flush_log_at_exit() {
    static const bool registered = atexit([] { common_log_flush(common_log_main()); }) == 0;
    (void) registered;
}

bool common_kv_condition_set(const std::string & value) {
    if (value != "auto" && value != "on" && value != "off" && !std::filesystem::is_regular_file(value)) {
        return false;
    }
    llama_kv_condition_set(value.c_str());
    return true;
}

void common_kv_layers_set(const std::string & value) {
    char reason[1024];
    if (!llama_kv_layers_set(value.c_str(), reason, sizeof(reason))) {
        throw std::invalid_argument(reason);
    }
}

common_arg common_kv_layers_arg() {
    return common_arg(
        {"--kv-layers"}, "LAYERS:TYPE[/TYPE][;...]",
        "other cache types for some layers: 0-1,-1:q8_0 keeps K and V of the first two layers and of the last in q8_0, 5:f16/turbo3 names K and V apart (default: none)",
        [](common_params &, const std::string & value) {
            common_kv_layers_set(value);
        }
    ).set_env("LLAMA_ARG_KV_LAYERS");
}

common_arg common_kv_condition_arg() {
    return common_arg(
        {"--kv-condition"}, "auto|on|off|FILE",
        "conditioning of the keys before they are quantized: a fixed shift and scale of each channel, measured once per model and kept in the user's cache folder\n"
        "auto: for turbo K types; on: for every K type; FILE: made by turbokv-eval condition (default: auto)",
        [](common_params &, const std::string & value) {
            if (!common_kv_condition_set(value)) {
                throw std::invalid_argument("'" + value + "' is none of auto, on, off, and no file of that name exists");
            }
        }
    ).set_env("LLAMA_ARG_KV_CONDITION");
}
