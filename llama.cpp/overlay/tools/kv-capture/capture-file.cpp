#include "capture-file.h"

#include "../kv-tools.h"

#include "ggml-cpp.h"
#include "gguf.h"
#include "llama-turbokv-file.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>

namespace fs = std::filesystem;

static constexpr uint32_t FILE_VERSION = 1;

static std::string fnv1a64(const std::string & path) {
    std::ifstream f(path, std::ios::binary);
    if (!f) {
        kv_fail("%s cannot be read (%s)", path.c_str(), strerror(errno));
    }
    llama_fnv1a64 hash;
    std::vector<char> buf(1 << 20);
    while (f.read(buf.data(), (std::streamsize) buf.size()), f.gcount() > 0) {
        hash.add(buf.data(), (size_t) f.gcount());
    }
    return hash.hex();
}

static ggml_tensor * add_tensor(ggml_context * ctx, gguf_context * gguf, ggml_type type, const std::string & name, const std::vector<float> & data, int64_t ne0, int64_t ne1, int64_t ne2) {
    ggml_tensor * t = ggml_new_tensor_3d(ctx, type, ne0, ne1, ne2);
    ggml_set_name(t, name.c_str());
    for (const float v : data) {
        if (!std::isfinite(v) || (type == GGML_TYPE_F16 && std::fabs(v) > 65504.0f)) {
            kv_fail("%s holds %g, which %s cannot hold%s", name.c_str(), v, ggml_type_name(type), type == GGML_TYPE_F16 ? "; use --type f32" : "");
        }
    }
    if (type == GGML_TYPE_F16) {
        ggml_fp32_to_fp16_row(data.data(), (ggml_fp16_t *) t->data, (int64_t) data.size());
    } else {
        memcpy(t->data, data.data(), data.size()*sizeof(float));
    }
    gguf_add_tensor(gguf, t);
    return t;
}

// [n][n_head][d] -> [n_head][n][d]
static std::vector<float> heads_first(const std::vector<float> & x, int64_t n_head, int64_t d) {
    std::vector<float> res(x.size());
    const int64_t n = (int64_t) x.size()/(n_head*d);
    for (int64_t i = 0; i < n; ++i) {
        for (int64_t h = 0; h < n_head; ++h) {
            std::copy_n(x.data() + (i*n_head + h)*d, d, res.data() + (h*n + i)*d);
        }
    }
    return res;
}

void save_capture(const std::string & path, const capture_info & info, const collector & col, ggml_type type) {
    const int64_t n = (int64_t) info.tokens.size();
    size_t size = n*sizeof(int32_t) + 4096;
    for (const auto & [il, l] : col.layers) {
        GGML_UNUSED(il);
        size += (l.q.size() + l.v.size() + l.k.size() + l.k_pre.size() + l.sinks.size() + l.rope_factors.size())*sizeof(float) + 6*(ggml_tensor_overhead() + 64);
    }
    ggml_init_params params = { size, nullptr, false };
    ggml_context_ptr ctx { ggml_init(params) };
    gguf_context_ptr gguf { gguf_init_empty() };
    if (!ctx) {
        kv_fail("there is no memory for %zu MiB: choose fewer layers or a shorter context", size >> 20);
    }

    gguf_set_val_str (gguf.get(), "general.type",             "kv-capture");
    gguf_set_val_str (gguf.get(), "general.architecture",     info.arch.c_str());
    gguf_set_val_u32 (gguf.get(), "kv_capture.version",       FILE_VERSION);
    gguf_set_val_str (gguf.get(), "kv_capture.model.name",    info.model_name.c_str());
    gguf_set_val_str (gguf.get(), "kv_capture.model.file",    fs::path(info.model_path).filename().string().c_str());
    gguf_set_val_str (gguf.get(), "kv_capture.model.fnv1a64", fnv1a64(info.model_path).c_str());
    gguf_set_val_str (gguf.get(), "kv_capture.text.file",     fs::path(info.text_path).filename().string().c_str());
    gguf_set_val_str (gguf.get(), "kv_capture.text.fnv1a64",  fnv1a64(info.text_path).c_str());
    gguf_set_val_bool(gguf.get(), "kv_capture.flash_attn",    info.flash_attn);
    gguf_set_val_u32 (gguf.get(), "kv_capture.n_layer",       (uint32_t) info.n_layer);
    gguf_set_arr_data(gguf.get(), "kv_capture.tokens", GGUF_TYPE_INT32, info.tokens.data(), info.tokens.size());

    std::vector<int32_t> layers, window;
    std::vector<float>   scale, softcap;
    for (const auto & [il, l] : col.layers) {
        layers .push_back(il);
        window .push_back(l.window);
        scale  .push_back(l.scale);
        softcap.push_back(l.softcap);
    }
    gguf_set_arr_data(gguf.get(), "kv_capture.layers",  GGUF_TYPE_INT32,   layers .data(), layers .size());
    gguf_set_arr_data(gguf.get(), "kv_capture.window",  GGUF_TYPE_INT32,   window .data(), window .size());
    gguf_set_arr_data(gguf.get(), "kv_capture.scale",   GGUF_TYPE_FLOAT32, scale  .data(), scale  .size());
    gguf_set_arr_data(gguf.get(), "kv_capture.softcap", GGUF_TYPE_FLOAT32, softcap.data(), softcap.size());

    for (const auto & [il, l] : col.layers) {
        const std::string blk = "blk." + std::to_string(il) + ".";
        add_tensor(ctx.get(), gguf.get(), type,          blk + "q", heads_first(l.q, l.n_head, l.d), l.d, n, l.n_head);
        add_tensor(ctx.get(), gguf.get(), GGML_TYPE_F32, blk + "k", l.k, l.d,   n, l.n_head_kv);
        add_tensor(ctx.get(), gguf.get(), type,          blk + "v", l.v, l.d_v, n, l.n_head_kv);
        if (!l.sinks.empty()) {
            add_tensor(ctx.get(), gguf.get(), GGML_TYPE_F32, blk + "sinks", l.sinks, (int64_t) l.sinks.size(), 1, 1);
        }
        if (l.has_rope) {
            add_tensor(ctx.get(), gguf.get(), GGML_TYPE_F32, blk + "k_pre", heads_first(l.k_pre, l.n_head_kv, l.d), l.d, n, l.n_head_kv);
            const std::string key = "kv_capture." + blk + "rope.";
            gguf_set_val_i32 (gguf.get(), (key + "dims").c_str(),     l.rope_dims);
            gguf_set_val_i32 (gguf.get(), (key + "mode").c_str(),     l.rope_mode);
            gguf_set_val_i32 (gguf.get(), (key + "ctx_orig").c_str(), l.rope_ctx_orig);
            gguf_set_arr_data(gguf.get(), (key + "params").c_str(), GGUF_TYPE_FLOAT32, l.rope_params.data(), l.rope_params.size());
            if (!l.rope_factors.empty()) {
                add_tensor(ctx.get(), gguf.get(), GGML_TYPE_F32, blk + "rope_factors", l.rope_factors, (int64_t) l.rope_factors.size(), 1, 1);
            }
        }
    }

    llama_turbokv_write_file(gguf.get(), path);
}
