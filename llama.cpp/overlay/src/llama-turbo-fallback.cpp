#include "llama-turbo-fallback.h"

#include "ggml-cpp.h"
#include "ggml-turbo.h"
#include "llama-cparams.h"
#include "llama-hparams.h"
#include "llama-impl.h"

#include <map>
#include <stdexcept>
#include <utility>

static bool is_cpu(ggml_backend_dev_t dev) {
    return !dev || ggml_backend_dev_type(dev) == GGML_BACKEND_DEVICE_TYPE_CPU;
}

void llama_turbo_check_device(ggml_backend_buffer_type_t buft, ggml_type type, int64_t n_embd) {
    ggml_backend_dev_t dev = ggml_backend_buft_get_device(buft);
    if (!ggml_is_turbo(type) || is_cpu(dev)) {
        return;
    }
    const ggml_init_params params = {
        /*.mem_size   =*/ 8*ggml_tensor_overhead(),
        /*.mem_buffer =*/ nullptr,
        /*.no_alloc   =*/ true,
    };
    ggml_context_ptr ctx(ggml_init(params));
    ggml_tensor * cache = ggml_new_tensor_2d(ctx.get(), type, n_embd, 1);
    ggml_tensor * cur   = ggml_new_tensor_2d(ctx.get(), GGML_TYPE_F32, n_embd, 1);
    ggml_tensor * rows  = ggml_new_tensor_1d(ctx.get(), GGML_TYPE_I64, 1);
    if (!ggml_backend_dev_supports_op(dev, ggml_set_rows(ctx.get(), cache, cur, rows))) {
        throw std::runtime_error(format("cache type %s: device %s has no kernels for it; use --no-kv-offload to keep the cache on the CPU, or -ctk q8_0 -ctv q8_0",
                ggml_type_name(type), ggml_backend_dev_name(dev)));
    }
}

static const ggml_tensor * root_of(const ggml_tensor * t) {
    while (t->view_src) {
        t = t->view_src;
    }
    return t;
}

static bool touches_data(const ggml_tensor * node) {
    return node->op != GGML_OP_NONE && node->op != GGML_OP_VIEW && node->op != GGML_OP_RESHAPE && node->op != GGML_OP_PERMUTE && node->op != GGML_OP_TRANSPOSE;
}

// Whether a node that runs on the CPU reads a turbo cache, or the maps beside one, from another device. The scheduler has put a copy, which has
// no buffer yet, in the place of what the CPU cannot read where it is.
static bool reads_from_afar(const ggml_tensor * node) {
    for (int i = 0; i < GGML_MAX_SRC; ++i) {
        const ggml_tensor * src = node->src[i];
        if (src && (ggml_is_turbo(src->type) || (node->op == GGML_OP_TURBO_ROTATE && i > 0))) {
            ggml_backend_buffer_t buffer = root_of(src)->buffer;
            if (!buffer || !is_cpu(ggml_backend_buft_get_device(ggml_backend_buffer_get_type(buffer)))) {
                return true;
            }
        }
    }
    return false;
}

std::string llama_turbo_fallback(ggml_backend_sched_t sched, ggml_cgraph * gf) {
    std::map<std::pair<std::string, std::string>, int> counts; // of operation and device
    std::string home;
    for (int i = 0; i < ggml_graph_n_nodes(gf); ++i) {
        ggml_tensor * node = ggml_graph_node(gf, i);
        if (!touches_data(node)) {
            continue;
        }
        if (const ggml_tensor * cache = root_of(node); cache->buffer && node->op == GGML_OP_SET_ROWS) {
            ggml_backend_dev_t dev = ggml_backend_buft_get_device(ggml_backend_buffer_get_type(cache->buffer));
            home = home.empty() && !is_cpu(dev) ? ggml_backend_dev_name(dev) : home;
        }
        ggml_backend_t runs = ggml_backend_sched_get_tensor_backend(sched, node);
        if (runs && is_cpu(ggml_backend_get_device(runs)) && reads_from_afar(node)) {
            ++counts[{ ggml_op_name(node->op), ggml_backend_name(runs) }];
        }
    }
    if (counts.empty() || home.empty()) {
        return "";
    }
    std::string what;
    for (const auto & [key, n] : counts) {
        what += format("%s%d %s on %s", what.empty() ? "" : ", ", n, key.first.c_str(), key.second.c_str());
    }
    return format("turbo operations fall back: %s; the cache is on %s, which has no kernel for them, so that every token moves it: "
            "use --no-kv-offload, or -ctk q8_0 -ctv q8_0 --kv-condition off", what.c_str(), home.c_str());
}

void llama_turbo_log_fallback(ggml_backend_sched_t sched, const llama_memory_context_i * mctx, const llama_cparams & cparams, const llama_hparams & hparams,
        const std::function<ggml_cgraph * ()> & reserve) {
    if (!mctx || cparams.training || hparams.no_alloc || ggml_backend_sched_get_n_backends(sched) < 2) {
        return;
    }
    if (const auto line = llama_turbo_fallback(sched, reserve()); !line.empty()) {
        LLAMA_LOG_WARN("%s: %s\n", __func__, line.c_str());
    }
}
