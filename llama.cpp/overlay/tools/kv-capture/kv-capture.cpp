// Writes the queries, keys and values that attention works on, of a text and of chosen layers, to one GGUF file.
//
// They are read where attention reads them: from the inputs of its own graph nodes, through the evaluation callback. So they are
// after RoPE, norms and scaling of whatever architecture it is, and the scale, cap and mask are those of the node.

#include "common.h"
#include "ggml-backend.h"
#include "ggml-cpp.h"
#include "ggml.h"
#include "gguf.h"
#include "llama-turbokv.h"
#include "llama.h"

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <map>
#include <set>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#ifdef _WIN32
#include <process.h>
#define getpid _getpid
#else
#include <unistd.h>
#endif

namespace fs = std::filesystem;

static constexpr uint32_t FILE_VERSION = 1;
static constexpr int      N_UBATCH     = 512;

static const char * USAGE =
    "usage: llama-kv-capture -m MODEL -f TEXT -o FILE [options]\n"
    "\n"
    "  llama-kv-capture -m model.gguf -f text.txt -o model.capture.gguf -l 0,5,-1 -c 2048\n"
    "\n"
    "  -c, --ctx N         tokens of the text, from its start (default: 2048 or all of it)\n"
    "  -l, --layers LIST   layers, counted from 0; -1 is the last one (default: all that cache keys)\n"
    "  -fa on|off          flash attention (default: off); the cache is f32 either way\n"
    "      --type f16|f32  of the stored queries and values (default: f16); keys are always f32\n"
    "      --pre-rope      the keys before RoPE too, with the parameters of RoPE\n"
    "  -t, --threads N     (default: the number of cores)\n"
    "  -ngl N              layers to keep on the GPU (default: all that fit, as in the other tools)\n"
    "  -v                  the log of the library\n"
    "\n"
    "exit: 0 written, 1 could not be made, 2 usage\n";

[[noreturn]] static void usage_error(const std::string & what) {
    fprintf(stderr, "error: %s\n\n%s", what.c_str(), USAGE);
    exit(2);
}

[[noreturn]] static void fail(const char * fmt, ...) {
    char buf[1024];
    va_list args;
    va_start(args, fmt);
    vsnprintf(buf, sizeof(buf), fmt, args);
    va_end(args);
    throw std::runtime_error(buf);
}

//
// identity of the inputs
//

static std::string fnv1a64_file(const std::string & path) {
    std::ifstream f(path, std::ios::binary);
    if (!f) {
        fail("%s cannot be read (%s)", path.c_str(), strerror(errno));
    }
    uint64_t h = 0xcbf29ce484222325ull;
    std::vector<char> buf(1 << 20);
    while (f.read(buf.data(), (std::streamsize) buf.size()), f.gcount() > 0) {
        for (std::streamsize i = 0; i < f.gcount(); ++i) {
            h = (h ^ (uint8_t) buf[i]) * 0x100000001b3ull;
        }
    }
    char hex[17];
    snprintf(hex, sizeof(hex), "%016llx", (unsigned long long) h);
    return hex;
}

//
// collector
//

namespace {

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

struct collector {
    std::set<int> wanted; // empty: every layer
    bool pre_rope = false;

    // the batch that is being evaluated
    int n_past = 0, n_batch = 0;

    std::set<int>             seen;
    std::map<int, layer_data> layers;
    std::set<int>             done; // of this batch: layers that share a cache are taken at its owner
    std::string               error;

    struct candidate {
        const ggml_tensor * root;
        size_t              offs;
        std::vector<float>  data;
    };
    std::map<int, candidate> candidates;

    static bool callback(ggml_tensor * t, bool ask, void * user_data) {
        auto * self = (collector *) user_data;
        if (!self->error.empty()) {
            return !ask;
        }
        try {
            return self->node(t, ask) || !ask;
        } catch (const std::exception & err) {
            self->error = err.what();
            return !ask;
        }
    }

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

} // namespace

// NAME-7 -> 7; -1 when the tensor is not called NAME
static int layer_of(const ggml_tensor * t, const char * name) {
    const size_t n = strlen(name);
    return strncmp(t->name, name, n) == 0 && t->name[n] == '-' && isdigit((unsigned char) t->name[n + 1]) ? atoi(t->name + n + 1) : -1;
}

static const ggml_tensor * root_of(const ggml_tensor * t) {
    while (t->view_src) {
        t = t->view_src;
    }
    return t;
}

// flash attention casts an f32 cache to f16: what it was cast from
static const ggml_tensor * before_cast(const ggml_tensor * t) {
    return t->op == GGML_OP_CPY ? t->src[0] : t;
}

// layer of a cache tensor, by the name that the cache gives it: cache_k_l7
static int cache_layer_of(const ggml_tensor * t) {
    const char * p = strstr(root_of(t)->name, "k_l");
    return p && isdigit((unsigned char) p[3]) ? atoi(p + 3) : -1;
}

// F32 or F16, any strides, to contiguous floats
static std::vector<float> read(const ggml_tensor * t) {
    if (t->type != GGML_TYPE_F32 && t->type != GGML_TYPE_F16) {
        fail("%s is of type %s, f32 was expected", t->name, ggml_type_name(t->type));
    }
    std::vector<uint8_t> raw(ggml_nbytes(t));
    ggml_backend_tensor_get(t, raw.data(), 0, raw.size());

    std::vector<float> res((size_t) ggml_nelements(t));
    size_t i = 0;
    for (int64_t i3 = 0; i3 < t->ne[3]; ++i3) {
        for (int64_t i2 = 0; i2 < t->ne[2]; ++i2) {
            for (int64_t i1 = 0; i1 < t->ne[1]; ++i1) {
                const uint8_t * row = raw.data() + i1*t->nb[1] + i2*t->nb[2] + i3*t->nb[3];
                for (int64_t i0 = 0; i0 < t->ne[0]; ++i0) {
                    const uint8_t * p = row + i0*t->nb[0];
                    if (t->type == GGML_TYPE_F32) {
                        memcpy(&res[i], p, sizeof(float));
                    } else {
                        ggml_fp16_t h;
                        memcpy(&h, p, sizeof(h));
                        res[i] = ggml_fp16_to_fp32(h);
                    }
                    i++;
                }
            }
        }
    }
    return res;
}

// q: [d, n_batch, n_head], k: [d, n_kv, n_head_kv]
void collector::take_q_k(int il, const ggml_tensor * q, const ggml_tensor * k) {
    auto & l = layers[il];
    const int64_t n = n_past + n_batch;
    if (q->ne[1] != n_batch || q->ne[3] != 1 || k->ne[3] != 1) {
        fail("layer %d asks with %d queries for %d tokens, which is not understood", il, (int) q->ne[1], n_batch);
    }
    if (k->ne[1] < n || q->ne[0] != k->ne[0] || q->ne[2] % k->ne[2] != 0) {
        fail("layer %d: the shapes of queries and keys do not fit", il);
    }
    l.d         = q->ne[0];
    l.n_head    = q->ne[2];
    l.n_head_kv = k->ne[2];

    const auto values = read(q); // [n_head][n_batch][d]
    const size_t base = l.q.size();
    l.q.resize(base + values.size());
    for (int64_t h = 0; h < l.n_head; ++h) {
        for (int64_t i = 0; i < n_batch; ++i) {
            std::copy_n(values.data() + (h*n_batch + i)*l.d, l.d, l.q.data() + base + (i*l.n_head + h)*l.d);
        }
    }

    const auto keys = read(k);
    l.k.resize((size_t) (l.n_head_kv*n*l.d));
    for (int64_t h = 0; h < l.n_head_kv; ++h) {
        std::copy_n(keys.data() + h*k->ne[1]*l.d, n*l.d, l.k.data() + h*n*l.d);
    }
}

// [n_kv, d_v, n_head_kv] when transposed, else [d_v, n_kv, n_head_kv]
void collector::take_v(int il, const ggml_tensor * v, bool transposed) {
    auto & l = layers[il];
    const int64_t n    = n_past + n_batch;
    const int64_t n_kv = v->ne[transposed ? 0 : 1];
    l.d_v = v->ne[transposed ? 1 : 0];
    if (n_kv < n || v->ne[2] != l.n_head_kv || v->ne[3] != 1) {
        fail("layer %d: the shapes of keys and values do not fit", il);
    }
    const auto values = read(v);
    l.v.resize((size_t) (l.n_head_kv*n*l.d_v));
    for (int64_t h = 0; h < l.n_head_kv; ++h) {
        const float * head = values.data() + h*n_kv*l.d_v;
        for (int64_t i = 0; i < n; ++i) {
            for (int64_t j = 0; j < l.d_v; ++j) {
                l.v[(h*n + i)*l.d_v + j] = transposed ? head[j*n_kv + i] : head[i*l.d_v + j];
            }
        }
    }
}

// Checks that the mask is causal, whole or with a window, and that cell i of the cache holds token i.
void collector::take_mask(int il, const ggml_tensor * mask) {
    if (!mask) {
        fail("layer %d attends without a mask: only causal attention is captured", il);
    }
    auto & l = layers[il];
    const auto rows = read(mask);
    const int64_t n_kv = mask->ne[0];
    for (int i = 0; i < n_batch; ++i) {
        const float * row = rows.data() + (int64_t) i*n_kv;
        const int pos = n_past + i;
        int first = 0;
        while (first < pos && row[first] != 0.0f) {
            first++;
        }
        for (int64_t j = 0; j < n_kv; ++j) {
            const bool visible = row[j] == 0.0f;
            if (visible != (j >= first && j <= pos) || (!visible && !(row[j] < -1e4f))) {
                fail("layer %d: its mask is neither causal nor a causal window (token %d, cell %d)", il, pos, (int) j);
            }
        }
        const int window = first > 0 ? pos - first + 1 : 0;
        if (l.window == 0) {
            l.window = window;
        }
        if (window != l.window && pos + 1 > l.window) {
            fail("layer %d: its window changes from token to token (chunked attention?), which is not understood", il);
        }
    }
}

void collector::take_sinks(int il, const ggml_tensor * sinks) {
    if (sinks) {
        layers[il].sinks = read(sinks);
    }
}

void collector::set_scores(int il, float scale, float softcap, float max_bias) {
    if (max_bias > 0.0f) {
        fail("layer %d adds a bias by position to its scores (ALiBi), which the file cannot hold", il);
    }
    layers[il].scale   = scale;
    layers[il].softcap = softcap;
}

// The input of RoPE may be overwritten by its output, so it was kept when it was computed.
void collector::take_rope(int il, const ggml_tensor * rope) {
    const ggml_tensor * src = rope->src[0];
    const auto it = candidates.find(il);
    if (it == candidates.end() || it->second.root != root_of(src) || (src->view_src && it->second.offs != src->view_offs) ||
            (int64_t) it->second.data.size() != ggml_nelements(src)) {
        return;
    }
    auto & l = layers[il];
    l.k_pre.insert(l.k_pre.end(), it->second.data.begin(), it->second.data.end());

    const int32_t * p = (const int32_t *) rope->op_params;
    l.has_rope      = true;
    l.rope_dims     = p[1];
    l.rope_mode     = p[2];
    l.rope_ctx_orig = p[4];
    l.rope_params.resize(6);
    memcpy(l.rope_params.data(), p + 5, 6*sizeof(float));
    if (rope->src[2]) {
        l.rope_factors = read(rope->src[2]);
    }
}

bool collector::node(const ggml_tensor * t, bool ask) {
    if (t->op == GGML_OP_FLASH_ATTN_EXT) {
        const ggml_tensor * k = before_cast(t->src[1]);
        const int il = cache_layer_of(k);
        if (il < 0) {
            fail("attention reads keys that are in no cache: models that run without one cannot be captured");
        }
        if (!is_wanted(il) || done.count(il)) {
            return false;
        }
        if (!ask) {
            float params[3]; // scale, max_bias, softcap
            memcpy(params, t->op_params, sizeof(params));
            set_scores(il, params[2] != 0.0f ? params[0]*params[2] : params[0], params[2], params[1]);
            take_mask (il, t->src[3]);
            take_sinks(il, t->src[4]);
            take_q_k  (il, t->src[0], k);
            take_v    (il, before_cast(t->src[2]), false);
            done.insert(il);
        }
        return true;
    }

    int il;
    if (t->op == GGML_OP_MUL_MAT && (il = layer_of(t, "kq")) >= 0) {
        if (!is_wanted(il) || cache_layer_of(t->src[0]) != il) {
            return false; // the owner of a shared cache is taken
        }
        if (!ask) {
            take_q_k(il, t->src[1], t->src[0]);
        }
        return true;
    }
    if (t->op == GGML_OP_SOFT_MAX && (il = layer_of(t, "kq_soft_max")) >= 0) {
        if (layers.find(il) == layers.end()) {
            return false;
        }
        if (!ask) {
            float params[2]; // scale, max_bias
            memcpy(params, t->op_params, sizeof(params));
            float softcap = 0.0f;
            const ggml_tensor * s = t->src[0];
            if (s->op == GGML_OP_SCALE && s->src[0]->op == GGML_OP_UNARY && ggml_get_unary_op(s->src[0]) == GGML_UNARY_OP_TANH && s->src[0]->src[0]->op == GGML_OP_SCALE) {
                float inner;
                memcpy(&softcap, s->op_params, sizeof(float));
                memcpy(&inner, s->src[0]->src[0]->op_params, sizeof(float));
                if (params[0] != 1.0f) {
                    fail("layer %d scales its scores after capping them, which the file cannot hold", il);
                }
                params[0] = inner*softcap;
                s = s->src[0]->src[0]->src[0];
            }
            if (s->op != GGML_OP_MUL_MAT) {
                fail("layer %d adds a bias to its scores, which the file cannot hold", il);
            }
            set_scores(il, params[0], softcap, params[1]);
            take_mask (il, t->src[1]);
            take_sinks(il, t->src[2]);
        }
        return true;
    }
    if (t->op == GGML_OP_MUL_MAT && (il = layer_of(t, "kqv")) >= 0) {
        if (layers.find(il) == layers.end() || done.count(il)) {
            return false;
        }
        if (!ask) {
            take_v(il, t->src[0], true);
            done.insert(il);
        }
        return true;
    }
    if (pre_rope) {
        il = std::max(layer_of(t, "Kcur"), layer_of(t, "Kcur_normed"));
        if (il >= 0 && (wanted.empty() || wanted.count(il))) {
            if (t->op == GGML_OP_ROPE) {
                if (ask) {
                    take_rope(il, t);
                }
                return false;
            }
            if (!ask) {
                candidates[il] = { root_of(t), t->view_src ? t->view_offs : 0, read(t) };
            }
            return true;
        }
    }
    return false;
}

//
// file
//

namespace {

struct capture_info {
    std::string model_path, model_name, arch, model_hash, text_path, text_hash;
    std::vector<llama_token> tokens;
    bool flash_attn = false;
    int32_t n_layer = 0;
};

} // namespace

static ggml_tensor * add_tensor(ggml_context * ctx, gguf_context * gguf, ggml_type type, const std::string & name, const std::vector<float> & data, int64_t ne0, int64_t ne1, int64_t ne2) {
    ggml_tensor * t = ggml_new_tensor_3d(ctx, type, ne0, ne1, ne2);
    ggml_set_name(t, name.c_str());
    for (const float v : data) {
        if (!std::isfinite(v) || (type == GGML_TYPE_F16 && std::fabs(v) > 65504.0f)) {
            fail("%s holds %g, which %s cannot hold%s", name.c_str(), v, ggml_type_name(type), type == GGML_TYPE_F16 ? "; use --type f32" : "");
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

static void save(const std::string & path, const capture_info & info, const collector & col, ggml_type type) {
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
        fail("there is no memory for %zu MiB: choose fewer layers or a shorter context", size >> 20);
    }

    gguf_set_val_str (gguf.get(), "general.type",             "kv-capture");
    gguf_set_val_str (gguf.get(), "general.architecture",     info.arch.c_str());
    gguf_set_val_u32 (gguf.get(), "kv_capture.version",       FILE_VERSION);
    gguf_set_val_str (gguf.get(), "kv_capture.model.name",    info.model_name.c_str());
    gguf_set_val_str (gguf.get(), "kv_capture.model.file",    fs::path(info.model_path).filename().string().c_str());
    gguf_set_val_str (gguf.get(), "kv_capture.model.fnv1a64", info.model_hash.c_str());
    gguf_set_val_str (gguf.get(), "kv_capture.text.file",     fs::path(info.text_path).filename().string().c_str());
    gguf_set_val_str (gguf.get(), "kv_capture.text.fnv1a64",  info.text_hash.c_str());
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

    // aside, then renamed: a reader never sees half a file
    const std::string tmp = path + "." + std::to_string((int) getpid()) + ".part";
    std::error_code ec;
    errno = 0;
    if (!gguf_write_to_file(gguf.get(), tmp.c_str(), false)) {
        const std::string reason = errno ? strerror(errno) : "unknown reason";
        fs::remove(tmp, ec);
        fail("%s cannot be written (%s)", path.c_str(), reason.c_str());
    }
    fs::rename(tmp, path, ec);
    if (ec) {
        const std::string reason = ec.message();
        fs::remove(tmp, ec);
        fail("%s cannot be written (%s)", path.c_str(), reason.c_str());
    }
}

//
// main
//

static std::string join(const std::set<int> & values) {
    std::string res;
    for (const int v : values) {
        res += (res.empty() ? "" : ", ") + std::to_string(v);
    }
    return res;
}

static std::string meta(const llama_model * model, const char * key) {
    char buf[256] = "";
    return llama_model_meta_val_str(model, key, buf, sizeof(buf)) > 0 ? buf : "";
}

static std::vector<int> parse_layers(const std::string & spec) {
    std::vector<int> res;
    std::stringstream parts(spec);
    std::string part;
    while (std::getline(parts, part, ',')) {
        char * end = nullptr;
        const long v = strtol(part.c_str(), &end, 10);
        if (part.empty() || *end != '\0' || v < -100000 || v > 100000) {
            usage_error("--layers: '" + spec + "' is no list of layers such as 0,5,-1");
        }
        res.push_back((int) v);
    }
    if (res.empty()) {
        usage_error("--layers: no layer is named");
    }
    return res;
}

static void run(llama_model * model, capture_info & info, collector & col, const std::vector<int> & wanted, int n_ctx, int n_threads) {
    info.arch       = meta(model, "general.architecture");
    info.model_name = meta(model, "general.name");
    info.n_layer    = llama_model_n_layer(model);

    if (llama_model_has_encoder(model)) {
        fail("architecture %s has an encoder: only decoders are captured", info.arch.c_str());
    }
    for (const int v : wanted) {
        const int il = v < 0 ? v + info.n_layer : v;
        if (il < 0 || il >= info.n_layer) {
            fail("there is no layer %d: the model has %d, 0 to %d", v, info.n_layer, info.n_layer - 1);
        }
        col.wanted.insert(il);
    }

    std::ifstream f(info.text_path, std::ios::binary);
    std::stringstream text;
    if (!f || !(text << f.rdbuf())) {
        fail("the text %s cannot be read, or is empty", info.text_path.c_str());
    }
    info.tokens = common_tokenize(llama_model_get_vocab(model), text.str(), true);
    const int n_train = llama_model_n_ctx_train(model);
    if (n_ctx > n_train) {
        fail("-c %d: the model was trained on %d positions", n_ctx, n_train);
    }
    if (n_ctx > (int) info.tokens.size()) {
        fail("-c %d: the text has %zu tokens only", n_ctx, info.tokens.size());
    }
    info.tokens.resize(std::min<size_t>(info.tokens.size(), n_ctx > 0 ? n_ctx : std::min(2048, n_train)));
    const int n = (int) info.tokens.size();

    llama_kv_condition_set("off");
    llama_context_params params = llama_context_default_params();
    params.n_ctx             = GGML_PAD(n, 256);
    params.n_batch           = N_UBATCH;
    params.n_ubatch          = N_UBATCH;
    params.n_seq_max         = 1;
    params.n_threads         = n_threads;
    params.n_threads_batch   = n_threads;
    params.type_k            = GGML_TYPE_F32;
    params.type_v            = GGML_TYPE_F32;
    params.flash_attn_type   = info.flash_attn ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
    params.swa_full          = true; // a cache of the window only would hold tokens in another order
    params.no_perf           = true;
    params.cb_eval           = collector::callback;
    params.cb_eval_user_data = &col;

    struct free_context { void operator()(llama_context * ctx) const { llama_free(ctx); } };
    std::unique_ptr<llama_context, free_context> ctx { llama_init_from_model(model, params) };
    if (!ctx) {
        fail("no context of %d tokens could be made for this model (-v shows why)", n);
    }
    if (!llama_get_memory(ctx.get())) {
        fail("architecture %s keeps no K cache: there is nothing to capture", info.arch.c_str());
    }

    for (int i0 = 0; i0 < n; i0 += N_UBATCH) {
        col.n_past  = i0;
        col.n_batch = std::min(N_UBATCH, n - i0);
        col.done.clear();
        col.candidates.clear();

        const int32_t rc = llama_decode(ctx.get(), llama_batch_get_one(info.tokens.data() + i0, col.n_batch));
        if (!col.error.empty()) {
            fail("%s", col.error.c_str());
        }
        if (rc != 0) {
            fail("the model could not be run (llama_decode: %d)", rc);
        }
        if (col.seen.empty()) {
            fail("architecture %s keeps no K cache: there is nothing to capture", info.arch.c_str());
        }
        for (const int il : col.wanted) {
            if (!col.seen.count(il)) {
                fail("layer %d caches no keys of its own; layers that do: %s", il, join(col.seen).c_str());
            }
        }
        for (const auto & [il, l] : col.layers) {
            if (l.d_v == 0 || l.scale == 0.0f || !col.done.count(il)) {
                fail("layer %d: its attention was not recognised", il);
            }
            if (col.pre_rope && l.k_pre.size() != (size_t) ((i0 + col.n_batch)*l.d*l.n_head_kv)) {
                fail("layer %d: its keys before RoPE were not found; leave out --pre-rope", il);
            }
        }
        fprintf(stderr, "%d of %d tokens\n", i0 + col.n_batch, n);
    }
}

int main(int argc, char ** argv) {
    std::string path_out;
    std::vector<int> wanted;
    int n_ctx = 0;
    int n_threads = (int) std::max(1u, std::thread::hardware_concurrency());
    bool verbose = false;
    ggml_type type = GGML_TYPE_F16;
    capture_info info;
    collector col;

    llama_model_params mparams = llama_model_default_params();

    for (int i = 1; i < argc; ++i) {
        const std::string arg = argv[i];
        const auto value = [&]() -> std::string {
            if (i + 1 >= argc) {
                usage_error(arg + " needs a value");
            }
            return argv[++i];
        };
        const auto number = [&](int min) -> int {
            const std::string s = value();
            char * end = nullptr;
            const long v = strtol(s.c_str(), &end, 10);
            if (s.empty() || *end != '\0' || v < min || v > 1 << 24) {
                usage_error(arg + ": '" + s + "' is no number it can use");
            }
            return (int) v;
        };
        const auto choice = [&](const char * a, const char * b) -> bool {
            const std::string s = value();
            if (s != a && s != b) {
                usage_error(arg + ": '" + s + "' is neither " + a + " nor " + b);
            }
            return s == a;
        };
        if      (arg == "-m" || arg == "--model")   { info.model_path = value(); }
        else if (arg == "-o" || arg == "--output")  { path_out        = value(); }
        else if (arg == "-f" || arg == "--file")    { info.text_path  = value(); }
        else if (arg == "-c" || arg == "--ctx")     { n_ctx     = number(1); }
        else if (arg == "-l" || arg == "--layers")  { wanted    = parse_layers(value()); }
        else if (arg == "-fa")                      { info.flash_attn = choice("on", "off"); }
        else if (arg == "--type")                   { type = choice("f16", "f32") ? GGML_TYPE_F16 : GGML_TYPE_F32; }
        else if (arg == "--pre-rope")               { col.pre_rope = true; }
        else if (arg == "-t" || arg == "--threads") { n_threads = number(1); }
        else if (arg == "-ngl")                     { mparams.n_gpu_layers = number(0); }
        else if (arg == "-v")                       { verbose = true; }
        else if (arg == "-h" || arg == "--help")    { printf("%s", USAGE); return 0; }
        else                                        { usage_error("unknown argument " + arg); }
    }
    if (info.model_path.empty() || info.text_path.empty() || path_out.empty()) {
        usage_error(info.model_path.empty() ? "no model is named (-m)" : info.text_path.empty() ? "no text is named (-f)" : "no output file is named (-o)");
    }

    if (!verbose) {
        llama_log_set([](ggml_log_level level, const char * text, void *) {
            if (level >= GGML_LOG_LEVEL_WARN && level != GGML_LOG_LEVEL_CONT) {
                fputs(text, stderr);
            }
        }, nullptr);
    }
    llama_backend_init();
    ggml_backend_load_all();

    llama_model * model = llama_model_load_from_file(info.model_path.c_str(), mparams);
    if (model == nullptr) {
        fprintf(stderr, "error: the model %s cannot be loaded\n", info.model_path.c_str());
        return 1;
    }

    int rc = 0;
    try {
        run(model, info, col, wanted, n_ctx, n_threads);
        info.model_hash = fnv1a64_file(info.model_path);
        info.text_hash  = fnv1a64_file(info.text_path);
        save(path_out, info, col, type);
        fprintf(stderr, "written: %s\n", path_out.c_str());
    } catch (const std::exception & err) {
        fprintf(stderr, "error: %s\n", err.what());
        rc = 1;
    }

    llama_model_free(model);
    llama_backend_free();
    return rc;
}
