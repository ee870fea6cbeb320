#include "collector.h"

#include "../kv-tools.h"

#include "ggml-backend.h"

#include <algorithm>
#include <cctype>
#include <cstdlib>
#include <cstring>

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
        kv_fail("%s is of type %s, f32 was expected", t->name, ggml_type_name(t->type));
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

static std::string join(const std::set<int> & values) {
    std::string res;
    for (const int v : values) {
        res += (res.empty() ? "" : ", ") + std::to_string(v);
    }
    return res;
}

void collector::begin_batch(int first, int n) {
    n_past  = first;
    n_batch = n;
    done.clear();
    candidates.clear();
}

void collector::end_batch(int32_t rc) const {
    if (!error.empty()) {
        kv_fail("%s", error.c_str());
    }
    if (rc != 0) {
        kv_fail("the model could not be run (llama_decode: %d)", rc);
    }
    for (const int il : wanted) {
        if (!seen.empty() && !seen.count(il)) {
            kv_fail("layer %d caches no keys of its own; layers that do: %s", il, join(seen).c_str());
        }
    }
    for (const auto & [il, l] : layers) {
        if (l.d_v == 0 || l.scale == 0.0f || !done.count(il)) {
            kv_fail("layer %d: its attention was not recognised", il);
        }
        if (pre_rope && l.k_pre.size() != (size_t) ((n_past + n_batch)*l.d*l.n_head_kv)) {
            kv_fail("layer %d: its keys before RoPE were not found; leave out --pre-rope", il);
        }
    }
}

bool collector::callback(ggml_tensor * t, bool ask, void * user_data) {
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

// q: [d, n_batch, n_head], k: [d, n_kv, n_head_kv]
void collector::take_q_k(int il, const ggml_tensor * q, const ggml_tensor * k) {
    auto & l = layers[il];
    const int64_t n = n_past + n_batch;
    if (q->ne[1] != n_batch || q->ne[3] != 1 || k->ne[3] != 1) {
        kv_fail("layer %d asks with %d queries for %d tokens, which is not understood", il, (int) q->ne[1], n_batch);
    }
    if (k->ne[1] < n || q->ne[0] != k->ne[0] || q->ne[2] % k->ne[2] != 0) {
        kv_fail("layer %d: the shapes of queries and keys do not fit", il);
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
        kv_fail("layer %d: the shapes of keys and values do not fit", il);
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
        kv_fail("layer %d attends without a mask: only causal attention is captured", il);
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
                kv_fail("layer %d: its mask is neither causal nor a causal window (token %d, cell %d)", il, pos, (int) j);
            }
        }
        const int window = first > 0 ? pos - first + 1 : 0;
        if (l.window == 0) {
            l.window = window;
        }
        if (window != l.window && pos + 1 > l.window) {
            kv_fail("layer %d: its window changes from token to token (chunked attention?), which is not understood", il);
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
        kv_fail("layer %d adds a bias by position to its scores (ALiBi), which the file cannot hold", il);
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
            kv_fail("attention reads keys that are in no cache: models that run without one cannot be captured");
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
                    kv_fail("layer %d scales its scores after capping them, which the file cannot hold", il);
                }
                params[0] = inner*softcap;
                s = s->src[0]->src[0]->src[0];
            }
            if (s->op != GGML_OP_MUL_MAT) {
                kv_fail("layer %d adds a bias to its scores, which the file cannot hold", il);
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
