#include "llama-kv-condition.h"

#include "ggml-backend.h"
#include "ggml-cpp.h"
#include "ggml-turbo.h"
#include "gguf.h"
#include "llama-hparams.h"
#include "llama-kv-layers.h"
#include "llama-impl.h"
#include "llama-model.h"
#include "llama-turbo-archs.h"
#include "llama-turbokv.h"
#include "llama-turbokv-file.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <stdexcept>

namespace fs = std::filesystem;

// Version of the statistics and of the sample: part of the key of a stored file.
static constexpr uint32_t STATS_VERSION = 2;

// s = (q_sqr/k_var)^EXPONENT: the fixed point of llama-kv-stats.h.
static constexpr double EXPONENT = 0.25;

// Bound of s against its geometric mean: a channel that a sample saw nearly constant, or never asked, must not take the whole range.
static constexpr float SCALE_MAX = 32.0f;

//
// setting
//

static std::mutex  setting_mutex;
static std::string setting_value; // empty: as the environment says

void llama_kv_condition_set(const char * setting) {
    std::lock_guard<std::mutex> lock(setting_mutex);
    setting_value = setting ? setting : "";
}

static std::string setting() {
    std::lock_guard<std::mutex> lock(setting_mutex);
    if (!setting_value.empty()) {
        return setting_value;
    }
    const char * env = getenv("LLAMA_KV_CONDITION");
    return env && *env ? env : "auto";
}

//
// scope
//

static thread_local llama_kv_condition_mode                   scope_mode = LLAMA_KV_CONDITION_NONE;
static thread_local std::shared_ptr<const llama_kv_condition> scope_condition;

llama_kv_condition_scope::llama_kv_condition_scope(llama_kv_condition_mode mode, std::shared_ptr<const llama_kv_condition> condition) :
    prev_mode(scope_mode), prev_condition(scope_condition) {
    scope_mode      = mode;
    scope_condition = std::move(condition);
}

llama_kv_condition_scope::llama_kv_condition_scope(const llama_model & model, const llama_context_params & params) :
    prev_mode(scope_mode), prev_condition(scope_condition) {
    if (scope_mode != LLAMA_KV_CONDITION_OBSERVE) {
        scope_condition = llama_kv_condition_get(model, params);
        scope_mode      = scope_condition ? LLAMA_KV_CONDITION_APPLY : LLAMA_KV_CONDITION_NONE;
    }
}

llama_kv_condition_scope::~llama_kv_condition_scope() {
    scope_mode      = prev_mode;
    scope_condition = std::move(prev_condition);
}

llama_kv_condition_mode llama_kv_condition_scope::mode() {
    return scope_mode;
}

const llama_kv_condition * llama_kv_condition_scope::condition() {
    return scope_condition.get();
}

//
// maps
//

bool llama_kv_condition::maps(uint32_t il, std::vector<float> & scale, std::vector<float> & shift) const {
    const auto it = layers.find(il);
    if (it == layers.end()) {
        return false;
    }
    const auto & st = it->second;

    const size_t n = (size_t) st.d*st.n_head_kv;
    scale.assign(n, 1.0f);
    shift.assign(n, 0.0f);

    for (uint32_t h = 0; h < st.n_head_kv; ++h) {
        const float * mean = st.k_mean.data() + (size_t) h*st.d;
        const float * var  = st.k_var .data() + (size_t) h*st.d;
        const float * sqr  = st.q_sqr .data() + (size_t) h*st.d;

        // without centring the quantiser sees the second moment
        const auto energy = [&](uint32_t j) { return centre ? (double) var[j] : (double) var[j] + (double) mean[j]*mean[j]; };

        // channels that carry nothing on one side take no part in the mean
        double var_sum = 0.0, sqr_sum = 0.0;
        for (uint32_t j = 0; j < st.d; ++j) {
            var_sum += energy(j);
            sqr_sum += sqr[j];
        }
        const double var_min = 1e-8*var_sum/st.d;
        const double sqr_min = 1e-8*sqr_sum/st.d;

        if (var_sum > 0.0 && sqr_sum > 0.0) {
            std::vector<double> log_s(st.d);
            double log_mean = 0.0;
            for (uint32_t j = 0; j < st.d; ++j) {
                log_s[j]  = EXPONENT*(log(std::max((double) sqr[j], sqr_min)) - log(std::max(energy(j), var_min)));
                log_mean += log_s[j]/st.d;
            }
            for (uint32_t j = 0; j < st.d; ++j) {
                scale[(size_t) h*st.d + j] = (float) std::min<double>(SCALE_MAX, std::max<double>(1.0/SCALE_MAX, exp(log_s[j] - log_mean)));
            }
        }
        if (centre) {
            std::copy(mean, mean + st.d, shift.begin() + (size_t) h*st.d);
        }
    }
    return true;
}

//
// identity of what the statistics depend on
//

namespace {

struct fnv1a : llama_fnv1a64 {
    using llama_fnv1a64::add;

    void add(const std::string & s) { add(s.data(), s.size()); add("", 1); }
    template <typename T> void add_value(const T & v) { add(&v, sizeof(v)); }
};

} // namespace

// Bytes at four places of every tensor: a fine-tune differs in nearly all of them.
static void add_tensor_sample(fnv1a & hash, const ggml_tensor * t) {
    if (!t->buffer || !t->data) {
        return;
    }
    const size_t size = ggml_nbytes(t);
    const size_t n    = std::min<size_t>(size, 64);
    uint8_t buf[64];
    // repacked weights cannot be read through their buffer, but lie in host memory
    const auto * dev  = ggml_backend_buft_get_device(ggml_backend_buffer_get_type(t->buffer));
    const bool   host = ggml_backend_buffer_is_host(t->buffer) || (dev && ggml_backend_dev_type(const_cast<ggml_backend_dev_t>(dev)) == GGML_BACKEND_DEVICE_TYPE_CPU);
    for (int i = 0; i < 4; ++i) {
        const size_t offset = (size - n)/3*i;
        if (host) {
            memcpy(buf, (const char *) t->data + offset, n);
        } else {
            ggml_backend_tensor_get(t, buf, offset, n);
        }
        hash.add(buf, n);
    }
}

static std::string model_key(const llama_model & model) {
    fnv1a hash;
    for (const auto & [name, t] : model.tensors_by_name) {
        hash.add(name);
        hash.add_value(t->type);
        hash.add(t->ne, sizeof(t->ne));
        add_tensor_sample(hash, t);
    }
    return hash.hex();
}

static std::string sample_key(const llama_context_params & params, const llama_kv_sample & sample) {
    fnv1a hash;
    hash.add_value(STATS_VERSION);
    hash.add_value(params.rope_scaling_type);
    hash.add_value(params.rope_freq_base);
    hash.add_value(params.rope_freq_scale);
    hash.add_value(params.yarn_ext_factor);
    hash.add_value(params.yarn_attn_factor);
    hash.add_value(params.yarn_beta_fast);
    hash.add_value(params.yarn_beta_slow);
    hash.add_value(params.yarn_orig_ctx);
    hash.add_value(sample.n_segments);
    hash.add_value(sample.n_tokens);
    hash.add_value(sample.span);
    hash.add_value(sample.seed);
    return hash.hex();
}

//
// files: a GGUF with the statistics
//

static const char * const FILE_TYPE = "kv-condition";

static void save(const std::string & path, const llama_kv_condition & cond, const std::string & key_model, const std::string & key_sample, const std::string & source) {
    size_t n_values = 0;
    for (const auto & [il, st] : cond.layers) {
        GGML_UNUSED(il);
        n_values += 3*(st.k_mean.size() + 64);
    }
    ggml_init_params params = { 3*cond.layers.size()*ggml_tensor_overhead() + n_values*sizeof(float) + 1024, nullptr, false };
    ggml_context_ptr ctx { ggml_init(params) };
    gguf_context_ptr gguf { gguf_init_empty() };

    gguf_set_val_str(gguf.get(), "general.type",                 FILE_TYPE);
    gguf_set_val_u32(gguf.get(), "kv_condition.version",         STATS_VERSION);
    gguf_set_val_str(gguf.get(), "kv_condition.model",           key_model.c_str());
    gguf_set_val_str(gguf.get(), "kv_condition.sample",          key_sample.c_str());
    gguf_set_val_str(gguf.get(), "kv_condition.source",          source.c_str());

    for (const auto & [il, st] : cond.layers) {
        const struct { const char * name; const std::vector<float> & data; } arrays[] = {
            { "k_mean", st.k_mean }, { "k_var", st.k_var }, { "q_sqr", st.q_sqr },
        };
        for (const auto & a : arrays) {
            ggml_tensor * t = ggml_new_tensor_2d(ctx.get(), GGML_TYPE_F32, st.d, st.n_head_kv);
            ggml_format_name(t, "blk.%u.%s", il, a.name);
            memcpy(t->data, a.data.data(), ggml_nbytes(t));
            gguf_add_tensor(gguf.get(), t);
        }
    }

    llama_turbokv_write_file(gguf.get(), path);
}

// Throws std::runtime_error with the reason, without the path.
static llama_kv_condition load(const std::string & path, const llama_model & model, const std::string & key_model, const std::string * key_sample) {
    ggml_context * ctx_raw = nullptr;
    gguf_init_params params = { false, &ctx_raw };

    if (!fs::is_regular_file(path)) {
        throw std::runtime_error("there is no such file");
    }
    gguf_context_ptr gguf { gguf_init_from_file(path.c_str(), params) };
    ggml_context_ptr ctx { ctx_raw };
    if (!gguf) {
        throw std::runtime_error("it is damaged or no GGUF file");
    }

    const auto get_str = [&](const char * key) -> std::string {
        const auto id = gguf_find_key(gguf.get(), key);
        return id >= 0 && gguf_get_kv_type(gguf.get(), id) == GGUF_TYPE_STRING ? gguf_get_val_str(gguf.get(), id) : "";
    };
    const auto id_version = gguf_find_key(gguf.get(), "kv_condition.version");

    if (get_str("general.type") != FILE_TYPE || id_version < 0 || gguf_get_kv_type(gguf.get(), id_version) != GGUF_TYPE_UINT32) {
        throw std::runtime_error("it is not a key conditioning file");
    }
    if (gguf_get_val_u32(gguf.get(), id_version) != STATS_VERSION) {
        throw std::runtime_error(format("it is of version %u, this program reads version %u", gguf_get_val_u32(gguf.get(), id_version), STATS_VERSION));
    }
    if (get_str("kv_condition.model") != key_model) {
        throw std::runtime_error("it was made for another model, or for other weights of it");
    }
    if (key_sample && get_str("kv_condition.sample") != *key_sample) {
        throw std::runtime_error("it was made with another sample or other RoPE parameters");
    }

    llama_kv_condition res;
    for (uint32_t il = 0; il < model.hparams.n_layer_all; ++il) {
        llama_kv_stats st;
        struct { const char * name; std::vector<float> & data; } arrays[] = {
            { "k_mean", st.k_mean }, { "k_var", st.k_var }, { "q_sqr", st.q_sqr },
        };
        int n_found = 0;
        for (auto & a : arrays) {
            const ggml_tensor * t = ggml_get_tensor(ctx.get(), format("blk.%u.%s", il, a.name).c_str());
            if (!t) {
                continue;
            }
            if (t->type != GGML_TYPE_F32 || t->ne[0] != model.hparams.n_embd_head_k(il) || t->ne[1] != model.hparams.n_head_kv(il) || t->ne[2] != 1) {
                throw std::runtime_error(format("its tensor %s does not have the shape of the model's keys", t->name));
            }
            a.data.assign((const float *) t->data, (const float *) t->data + ggml_nelements(t));
            for (const float v : a.data) {
                if (!std::isfinite(v) || (a.name[0] == 'q' && v < 0.0f) || (strcmp(a.name, "k_var") == 0 && v < 0.0f)) {
                    throw std::runtime_error(format("its tensor %s holds impossible values", t->name));
                }
            }
            n_found++;
        }
        if (n_found == 3) {
            st.d         = model.hparams.n_embd_head_k(il);
            st.n_head_kv = model.hparams.n_head_kv(il);
            res.layers[il] = std::move(st);
        } else if (n_found != 0) {
            throw std::runtime_error(format("it is incomplete for layer %u", il));
        }
    }
    if (res.layers.empty()) {
        throw std::runtime_error("it holds no layer of the model");
    }
    return res;
}

static fs::path cache_folder() {
    const auto env = [](const char * name) { const char * v = getenv(name); return fs::path(v ? v : ""); };
    fs::path base;
#if defined(_WIN32)
    base = env("LOCALAPPDATA");
#elif defined(__APPLE__)
    base = env("HOME").empty() ? fs::path() : env("HOME") / "Library" / "Caches";
#else
    base = env("XDG_CACHE_HOME");
    if (base.empty() && !env("HOME").empty()) {
        base = env("HOME") / ".cache";
    }
#endif
    return base.empty() ? base : base / "turbokv" / "kv-condition";
}

//
// policy
//

// Empty where the keys can be centred, else why not.
static std::string why_not_centre(const llama_model & model) {
    if (std::any_of(model.layers.begin(), model.layers.end(), [](const llama_layer & l) { return l.attn_sinks != nullptr; })) {
        return "the model has attention sink logits";
    }
    if (model.hparams.attn_soft_cap || model.arch == LLM_ARCH_GROK) {
        return "the model caps its attention scores";
    }
    return "";
}

static llama_kv_condition measure(const llama_model & model, const llama_context_params & params, const std::vector<llama_token> & tokens, const llama_kv_sample & sample) {
    llama_kv_condition res;
    res.layers = llama_kv_measure(model, params, tokens, sample, why_not_centre(model).empty());
    return res;
}

// Tokens that one sequence of such a context can hold.
static uint32_t n_ctx_seq(const llama_model & model, const llama_context_params & params) {
    const uint32_t n_ctx = params.n_ctx ? params.n_ctx : model.hparams.n_ctx_train;
    return params.kv_unified ? n_ctx : n_ctx/std::max(1u, params.n_seq_max);
}

static std::string why_none(const llama_model & model) {
    if (model.hparams.is_mla()) {
        return "values are a view of the keys";
    }
    if (llama_model_has_encoder(&model)) {
        return "encoder-decoder models are not measured";
    }
    if (llama_turbo_reads_cache_elsewhere(model.arch)) {
        return format("architecture %s reads its keys outside of attention", llm_arch_name(model.arch));
    }
    if (model.hparams.vocab_only) {
        return "the model has no weights";
    }
    return "";
}

std::shared_ptr<const llama_kv_condition> llama_kv_condition_get(const llama_model & model, const llama_context_params & params) {
    const std::string value = setting();

    if (model.hparams.no_alloc || value == "off") {
        return nullptr;
    }
    const auto rules = llama_kv_layers();
    if (value == "auto" && !ggml_is_turbo(params.type_k) &&
            std::none_of(rules.begin(), rules.end(), [](const llama_kv_layer_rule & r) { return ggml_is_turbo(r.type_k); })) {
        return nullptr;
    }
    const std::string none = why_none(model);
    if (!none.empty()) {
        if (value != "auto" && value != "on") {
            throw std::runtime_error(format("--kv-condition %s: the keys of this model cannot be conditioned: %s; use --kv-condition off", value.c_str(), none.c_str()));
        }
        LLAMA_LOG_INFO("key conditioning: off, %s\n", none.c_str());
        return nullptr;
    }

    const llama_kv_sample sample = llama_kv_sample_for(model, n_ctx_seq(model, params));
    const std::string key_model = model_key(model);

    auto cond = std::make_shared<llama_kv_condition>();
    std::string origin;

    if (value != "auto" && value != "on") {
        try {
            *cond = load(value, model, key_model, nullptr);
        } catch (const std::exception & err) {
            throw std::runtime_error(format("--kv-condition %s: %s; make one with: turbokv-eval condition MODEL -o FILE, or use --kv-condition auto", value.c_str(), err.what()));
        }
        origin = "read from " + value;
    } else {
        const std::string key_sample = sample_key(params, sample);
        const fs::path folder = cache_folder();
        const fs::path path   = folder.empty() ? folder : folder / (key_model + "-" + key_sample + ".gguf");

        bool found = false;
        std::error_code ec;
        if (!path.empty() && fs::exists(path, ec)) {
            try {
                *cond = load(path.string(), model, key_model, &key_sample);
                found = true;
                origin = "found in " + path.string();
            } catch (const std::exception & err) {
                LLAMA_LOG_WARN("key conditioning: %s is not usable: %s; it is made again\n", path.string().c_str(), err.what());
            }
        }
        if (!found) {
            // a warning, because the tools hide the library's other lines and this one explains a wait
            LLAMA_LOG_WARN("key conditioning: measuring the keys with %s, once for this model and class of context length ...\n", sample.describe("random tokens").c_str());
            const auto t0 = std::chrono::steady_clock::now();
            *cond = measure(model, params, llama_kv_random_tokens(model, sample), sample);
            origin = format("computed in %.1f s", std::chrono::duration<double>(std::chrono::steady_clock::now() - t0).count());
            if (cond->layers.empty()) {
                LLAMA_LOG_INFO("key conditioning: off, the model caches no keys\n");
                return nullptr;
            }
            try {
                if (path.empty()) {
                    throw std::runtime_error("no cache folder is known (HOME is not set)");
                }
                fs::create_directories(folder, ec);
                save(path.string(), *cond, key_model, key_sample, sample.describe("random tokens"));
                origin += ", kept in " + path.string();
            } catch (const std::exception & err) {
                LLAMA_LOG_WARN("key conditioning: not kept for the next time: %s\n", err.what());
            }
        }
    }

    cond->why_not_centre = why_not_centre(model);
    cond->centre         = cond->why_not_centre.empty();
    LLAMA_LOG_INFO("key conditioning: %s, %zu layers, keys are %s%s%s%s\n", origin.c_str(), cond->layers.size(),
            cond->centre ? "centred and equalised" : "equalised, not centred", cond->centre ? "" : " (", cond->why_not_centre.c_str(), cond->centre ? "" : ")");
    return cond;
}

bool llama_kv_condition_write(
        const llama_model * model,
        const llama_context_params * params,
        const llama_token * tokens,
        int32_t n_tokens,
        int32_t n_segment,
        int32_t n_span,
        const char * path,
        char * reason,
        size_t reason_size) {
    try {
        const std::string none = why_none(*model);
        if (!none.empty()) {
            throw std::runtime_error("the keys of this model cannot be conditioned: " + none);
        }
        llama_kv_sample sample = llama_kv_sample_for(*model, n_ctx_seq(*model, *params));
        std::vector<llama_token> ids;
        std::string source;
        if (tokens || n_tokens > 0) {
            if (n_segment <= 0) {
                n_segment = std::min((int32_t) sample.n_tokens, n_tokens);
            }
            if (n_segment <= 0 || n_tokens < n_segment) {
                throw std::runtime_error(format("the sample has %d tokens, at least %d are needed", n_tokens, n_segment));
            }
            sample.n_tokens   = (uint32_t) n_segment;
            sample.n_segments = (uint32_t) (n_tokens/n_segment);
            sample.span       = (uint32_t) std::max(n_span, n_segment);
        }
        if (tokens) {
            ids.assign(tokens, tokens + (size_t) sample.n_segments*sample.n_tokens);
        } else {
            ids = llama_kv_random_tokens(*model, sample);
        }
        source = sample.describe(tokens ? "tokens of a text" : "random tokens");
        const auto cond = measure(*model, *params, ids, sample);
        if (cond.layers.empty()) {
            throw std::runtime_error("the model caches no keys");
        }
        save(path, cond, model_key(*model), sample_key(*params, sample), source);
        return true;
    } catch (const std::exception & err) {
        snprintf(reason, reason_size, "%s", err.what());
        return false;
    }
}
