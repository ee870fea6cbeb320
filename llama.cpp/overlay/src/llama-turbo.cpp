#include "llama-turbo.h"

#include "llama-hparams.h"
#include "llama-kv-condition.h"
#include "llama-kv-layers.h"
#include "llama-impl.h"
#include "llama-model.h"
#include "llama-turbo-archs.h"
#include "llama-turbo-fallback.h"
#include "llama-turbokv.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

// A cache tensor is a leaf: its op_params are free, and views keep a pointer to it. They hold this.
struct map_ref {
    uint64_t magic;
    const llama_turbo_map * map;
};

static constexpr uint64_t MAP_MAGIC = 0x6f62727574766bull; // "kvturbo"
static_assert(sizeof(map_ref) <= GGML_MAX_OP_PARAMS, "the reference must fit a tensor's op_params");

static void attach(ggml_tensor * t, const llama_turbo_map * map) {
    const map_ref ref = { MAP_MAGIC, map };
    memcpy(t->op_params, &ref, sizeof(ref));
}

const llama_turbo_map * llama_turbo_map_of(const ggml_tensor * t) {
    while (t && t->view_src) {
        t = t->view_src;
    }
    if (!t || t->op != GGML_OP_NONE) {
        return nullptr;
    }
    map_ref ref;
    memcpy(&ref, t->op_params, sizeof(ref));
    return ref.magic == MAP_MAGIC ? ref.map : nullptr;
}

//
// types
//

// The rules that hold for the cache under construction; none while the keys are measured in an exact cache.
static std::vector<llama_kv_layer_rule> rules_in_force() {
    return llama_kv_condition_scope::mode() == LLAMA_KV_CONDITION_OBSERVE ? std::vector<llama_kv_layer_rule>() : llama_kv_layers();
}

ggml_type llama_turbo_layer_type(const llama_hparams & hparams, uint32_t il, ggml_type type_k, ggml_type type_v, bool is_v) {
    llama_kv_layers_apply(rules_in_force(), (int32_t) il, (int32_t) hparams.n_layer(), type_k, type_v);

    const ggml_type type = is_v ? type_v : type_k;
    const int64_t   d    = is_v ? hparams.n_embd_head_v(il) : hparams.n_embd_head_k(il);
    const ggml_type res  = ggml_turbo_resolve(type, d);
    if (res == GGML_TYPE_COUNT) {
        throw std::runtime_error(format("%s cache type %s: layer %u has heads of %d values, for which there is no block", is_v ? "V" : "K", ggml_type_name(type), il, (int) d));
    }
    return res;
}

static std::string working_types(int64_t n_embd_head) {
    std::string res = "f16, bf16";
    if (n_embd_head % 32 == 0) {
        res += ", q8_0, q5_0, q5_1, q4_0, q4_1, iq4_nl";
    }
    if (ggml_turbo_resolve(GGML_TYPE_TURBO3, n_embd_head) != GGML_TYPE_COUNT) {
#define X(ID, ENUM, NAME, BITS, BLOCK) res += ", " #NAME;
        GGML_TURBO_FAMILIES(X)
#undef X
    }
    return res;
}

std::string llama_turbo_unsupported(const llama_hparams & hparams, llm_arch arch, ggml_type type_k, ggml_type type_v, bool flash_attn_off) {
    std::vector<llama_kv_layer_rule> rules;
    try {
        rules = rules_in_force();
    } catch (const std::exception & err) {
        return format("LLAMA_KV_LAYERS: %s", err.what());
    }
    if (!ggml_is_turbo(type_k) && !ggml_is_turbo(type_v) && rules.empty()) {
        return "";
    }
    if (const auto reason = llama_kv_layers_out_of_range(rules, (int32_t) hparams.n_layer()); !reason.empty()) {
        return format("--kv-layers %s: %s", llama_kv_layers_text().c_str(), reason.c_str());
    }

    for (uint32_t il = 0; il < hparams.n_layer_all; ++il) {
        if (!hparams.has_kv(il) || hparams.n_head_kv(il) == 0) {
            continue;
        }
        ggml_type layer_k = type_k, layer_v = type_v;
        llama_kv_layers_apply(rules, (int32_t) il, (int32_t) hparams.n_layer(), layer_k, layer_v);
        const bool by_rule = layer_k != type_k || layer_v != type_v;

        if ((ggml_is_turbo(layer_k) || ggml_is_turbo(layer_v)) && llama_turbo_reads_cache_elsewhere(arch)) {
            return format("cache type %s: architecture %s reads its K cache outside of attention, which turbo types do not support; use -ctk q8_0 -ctv q8_0 or f16",
                    ggml_type_name(ggml_is_turbo(layer_k) ? layer_k : layer_v), llm_arch_name(arch));
        }
        if (hparams.is_mla() && layer_k != layer_v) {
            const char * name = ggml_type_name(ggml_is_turbo(layer_k) ? layer_k : layer_v);
            return format("cache types %s and %s: this model stores V inside of K (MLA), so both must be the same type: use -ctk %s -ctv %s",
                    ggml_type_name(layer_k), ggml_type_name(layer_v), name, name);
        }
        // upstream refuses a quantised type_v by itself, but does not know the rules
        const bool lacks_fa = llama_turbo_lacks_flash_attn(arch);
        if ((ggml_is_turbo(layer_v) || (by_rule && ggml_is_quantized(layer_v))) && (flash_attn_off || lacks_fa)) {
            return format("V cache type %s needs flash attention, which is off%s; use %s%s", ggml_type_name(layer_v),
                    lacks_fa ? " for this architecture" : "", lacks_fa ? "" : "-fa on, or ", hparams.is_mla() ? "-ctk f16 -ctv f16" : "-ctv f16");
        }

        const struct { const char * what; const char * flag; ggml_type type; int64_t d; } sides[2] = {
            { "K", by_rule ? "--kv-layers" : "-ctk", layer_k, hparams.n_embd_head_k(il) },
            { "V", by_rule ? "--kv-layers" : "-ctv", layer_v, hparams.n_embd_head_v(il) },
        };
        for (const auto & s : sides) {
            if (s.what[0] == 'V' && hparams.is_mla()) {
                continue; // a view of K
            }
            const ggml_type resolved = ggml_turbo_resolve(s.type, s.d);
            if (resolved == GGML_TYPE_COUNT || (by_rule && s.d % ggml_blck_size(resolved) != 0)) {
                return format("%s cache type %s: layer %u has heads of %d values, for which there is no %sblock; types that work here: %s (%s)",
                        s.what, ggml_type_name(s.type), il, (int) s.d, ggml_is_turbo(s.type) ? "turbo " : "", working_types(s.d).c_str(), s.flag);
            }
        }
    }

    return "";
}

bool llama_turbo_check_model(const llama_model * model, const llama_context_params * params, char * reason, size_t reason_size) {
    const auto res = llama_turbo_unsupported(model->hparams, model->arch, params->type_k, params->type_v,
            params->flash_attn_type == LLAMA_FLASH_ATTN_TYPE_DISABLED);
    snprintf(reason, reason_size, "%s", res.c_str());
    return res.empty();
}

//
// maps
//

// FNV-1a over the values: the same maps, the same identity
static uint32_t identity_of(const std::vector<float> & scale, const std::vector<float> & mean) {
    uint32_t h = 0x811c9dc5u;
    for (const auto * v : { &scale, &mean }) {
        const uint8_t * p = (const uint8_t *) v->data();
        for (size_t i = 0; i < v->size()*sizeof(float); ++i) {
            h = (h ^ p[i])*0x01000193u;
        }
    }
    h = (h ^ (h >> 23)) & 0x7FFFFF; // it shares 31 bits with the type
    return h == 0 ? 1 : h;
}

void llama_turbo_maps::add(const llama_hparams & hparams, uint32_t il, ggml_backend_buffer_type_t buft, ggml_tensor * k, ggml_tensor * v) {
    const int64_t d_k = hparams.n_embd_head_k(il);
    const int64_t d_v = hparams.n_embd_head_v(il);
    const int64_t n_head_kv = hparams.n_head_kv(il);

    for (const ggml_tensor * t : { k, v }) {
        if (t) {
            llama_turbo_check_device(buft, t->type, t->ne[0]);
        }
    }

    // for experiments only, as upstream's switch for its own rotation; upstream logs it
    const char * LLAMA_ATTN_ROT_DISABLE = getenv("LLAMA_ATTN_ROT_DISABLE");
    const bool disable = LLAMA_ATTN_ROT_DISABLE && atoi(LLAMA_ATTN_ROT_DISABLE) != 0;

    const auto mode = llama_kv_condition_scope::mode();

    std::vector<float> scale, mean;
    const bool observe = k && mode == LLAMA_KV_CONDITION_OBSERVE;
    const bool cond_k  = k && mode == LLAMA_KV_CONDITION_APPLY && !disable && ggml_turbo_hadamard_order(d_k) != 0 &&
        llama_kv_condition_scope::condition()->maps(il, scale, mean);
    // upstream's rotation serves the whole cache or none of it: in a cache of several types, the layers of mainline types are rotated here too
    const bool mixed   = mode != LLAMA_KV_CONDITION_OBSERVE && !llama_kv_layers_text().empty();
    const auto rotated = [&](const ggml_tensor * t, int64_t d) {
        return t && !disable && (ggml_is_turbo(t->type) || (mixed && ggml_is_quantized(t->type) && ggml_turbo_hadamard_order(d) != 0));
    };
    const bool rot_k   = cond_k || rotated(k, d_k);
    const bool rot_v   = rotated(v, d_v);

    infos.push_back({
        d_k, d_v,
        k ? k->type : GGML_TYPE_COUNT, v ? v->type : GGML_TYPE_COUNT,
        k ? ggml_nbytes(k) : 0, v ? ggml_nbytes(v) : 0,
        k ? ggml_nelements(k) : 0, v ? ggml_nelements(v) : 0,
        rot_k || rot_v, cond_k, il,
    });

    if (!rot_k && !rot_v && !observe) {
        return;
    }

    maps.emplace_back();
    auto & map = maps.back();
    map.il      = il;
    map.observe = observe;

    if (rot_k || observe) {
        map.k       = k;
        map.k_split = hparams.is_mla() ? d_k - (int64_t) hparams.n_rot(il) : 0;
        attach(k, &map);
    }
    if (rot_v) {
        map.v = v;
        attach(v, &map);
    }
    if (observe) {
        return;
    }

    auto & ctx = ctxs[buft];
    if (!ctx) {
        ggml_init_params params = {
            /*.mem_size   =*/ 5*hparams.n_layer_all*ggml_tensor_overhead(),
            /*.mem_buffer =*/ nullptr,
            /*.no_alloc   =*/ true,
        };
        ctx.reset(ggml_init(params));
    }

    map.signs = ggml_new_tensor_1d(ctx.get(), GGML_TYPE_F32, std::max(d_k, d_v));
    ggml_format_name(map.signs, "cache_turbo_signs_l%u", il);

    if (rot_v) {
        map.v_undo = ggml_new_tensor_1d(ctx.get(), GGML_TYPE_F32, d_v);
        ggml_format_name(map.v_undo, "cache_turbo_v_undo_l%u", il);
    }

    if (cond_k) {
        map.k_diag  = ggml_new_tensor_2d(ctx.get(), GGML_TYPE_F32, d_k, n_head_kv);
        map.k_undo  = ggml_new_tensor_2d(ctx.get(), GGML_TYPE_F32, d_k, n_head_kv);
        map.k_shift = ggml_new_tensor_2d(ctx.get(), GGML_TYPE_F32, d_k, n_head_kv);
        ggml_format_name(map.k_diag,  "cache_turbo_k_diag_l%u",  il);
        ggml_format_name(map.k_undo,  "cache_turbo_k_undo_l%u",  il);
        ggml_format_name(map.k_shift, "cache_turbo_k_shift_l%u", il);
        map.k_identity = identity_of(scale, mean);
        map.k_scale    = std::move(scale);
        map.k_mean     = std::move(mean);
    }
}

bool llama_turbo_maps::has_k() const {
    return std::any_of(maps.begin(), maps.end(), [](const llama_turbo_map & map) { return map.k != nullptr; });
}

bool llama_turbo_maps::has_v() const {
    return std::any_of(maps.begin(), maps.end(), [](const llama_turbo_map & map) { return map.v != nullptr; });
}

// Decoded values are shorter than their source (ggml_turbo_nmse). Quantisation noise averages out over the tokens that a query attends to,
// the shortness does not: giving the length back took the KLD of turbo3 on SmolLM2 from 0.124 to 0.119 and changed nothing on Gemma-3
// (docs/ablation.md).
static float value_gain(ggml_type type) {
    return 1.0f/sqrtf(1.0f - ggml_turbo_nmse(type));
}

void llama_turbo_maps::alloc(bool no_alloc) {
    for (auto & [buft, ctx] : ctxs) {
        ggml_backend_buffer_t buf;
        if (no_alloc) {
            buf = ggml_backend_buft_alloc_buffer(buft, 0);
            for (ggml_tensor * t = ggml_get_first_tensor(ctx.get()); t != nullptr; t = ggml_get_next_tensor(ctx.get(), t)) {
                t->buffer = buf;
            }
        } else {
            buf = ggml_backend_alloc_ctx_tensors_from_buft(ctx.get(), buft);
        }
        if (!buf) {
            throw std::runtime_error("failed to allocate the rotation maps of the kv cache");
        }
        bufs.emplace_back(buf);
    }

    if (no_alloc) {
        return;
    }
    for (const auto & map : maps) {
        if (map.observe) {
            continue;
        }
        std::vector<float> signs(map.signs->ne[0]);
        ggml_turbo_signs(map.il, signs.size(), signs.data());
        ggml_backend_tensor_set(map.signs, signs.data(), 0, ggml_nbytes(map.signs));

        if (map.v_undo) {
            std::vector<float> undo(signs.begin(), signs.begin() + map.v_undo->ne[0]);
            for (float & v : undo) {
                v *= value_gain(map.v->type);
            }
            ggml_backend_tensor_set(map.v_undo, undo.data(), 0, ggml_nbytes(map.v_undo));
        }
        if (map.k_diag) {
            const size_t n = map.k_scale.size();
            const size_t d = map.k_diag->ne[0];
            std::vector<float> diag(n), undo(n);
            for (size_t i = 0; i < n; ++i) {
                diag[i] = signs[i % d]*map.k_scale[i];
                undo[i] = signs[i % d]/map.k_scale[i];
            }
            ggml_backend_tensor_set(map.k_diag,  diag.data(),       0, ggml_nbytes(map.k_diag));
            ggml_backend_tensor_set(map.k_undo,  undo.data(),       0, ggml_nbytes(map.k_undo));
            ggml_backend_tensor_set(map.k_shift, map.k_mean.data(), 0, ggml_nbytes(map.k_shift));
        }
    }
}

void llama_turbo_maps::log(const char * cache_kind) const {
    const std::string rules = llama_kv_layers_text();
    if (!rules.empty()) {
        LLAMA_LOG_INFO("kv cache layers (%s): types by layer as --kv-layers says: %s\n", cache_kind, rules.c_str());
    }
    std::vector<bool> done(infos.size(), false);
    for (size_t i = 0; i < infos.size(); ++i) {
        if (done[i]) {
            continue;
        }
        const auto & a = infos[i];
        std::vector<uint32_t> layers;
        layer_info sum = {};
        for (size_t j = i; j < infos.size(); ++j) {
            const auto & b = infos[j];
            if (!done[j] && a.d_k == b.d_k && a.d_v == b.d_v && a.type_k == b.type_k && a.type_v == b.type_v && a.rotated == b.rotated && a.conditioned == b.conditioned) {
                done[j] = true;
                layers.push_back(b.il);
                sum.nbytes_k += b.nbytes_k;
                sum.nbytes_v += b.nbytes_v;
                sum.nelem_k  += b.nelem_k;
                sum.nelem_v  += b.nelem_v;
            }
        }
        const auto side = [](ggml_type type, int64_t d, size_t nbytes, int64_t nelem) {
            return nelem == 0 ? std::string("view of K") : format("%s x %d, %.4f bits/value, %.3f MiB", ggml_type_name(type), (int) d, 8.0*nbytes/nelem, nbytes/1024.0/1024.0);
        };
        LLAMA_LOG_INFO("kv cache layers (%s): %zu, K %s, V %s%s%s%s%s\n", cache_kind, layers.size(),
                side(a.type_k, a.d_k, sum.nbytes_k, sum.nelem_k).c_str(), side(a.type_v, a.d_v, sum.nbytes_v, sum.nelem_v).c_str(),
                a.rotated ? ", rotated (turbo)" : "", a.conditioned ? ", K conditioned" : "",
                rules.empty() ? "" : ", layers ", rules.empty() ? "" : llama_kv_layers_describe(layers).c_str());
    }
}

//
// graph
//

static ggml_tensor * rotate(ggml_context * ctx, ggml_tensor * cur, ggml_tensor * diag, ggml_tensor * shift, int64_t split, bool inverse) {
    if (cur->type != GGML_TYPE_F32) {
        cur = ggml_cast(ctx, cur, GGML_TYPE_F32);
    }
    return ggml_turbo_rotate(ctx, cur, diag, shift, split, inverse);
}

static ggml_tensor * store_k(ggml_context * ctx, ggml_tensor * cur, const llama_turbo_map & map) {
    return rotate(ctx, cur, map.k_diag ? map.k_diag : map.signs, map.k_shift, map.k_split, false);
}

ggml_tensor * llama_turbo_store(ggml_context * ctx, ggml_tensor * cur, const ggml_tensor * cache) {
    const auto * map = llama_turbo_map_of(cache);
    if (!map) {
        return cur;
    }
    if (map->observe) {
        return llama_kv_observe_k(ctx, cur, map->il);
    }
    return map->k == cache ? store_k(ctx, cur, *map) : rotate(ctx, cur, map->signs, nullptr, 0, false);
}

ggml_tensor * llama_turbo_query(ggml_context * ctx, ggml_tensor * cur, const ggml_tensor * cache_k, float kq_scale) {
    const auto * map = llama_turbo_map_of(cache_k);
    if (!map) {
        return cur;
    }
    if (map->observe) {
        return llama_kv_observe_q(ctx, cur, map->il, kq_scale);
    }
    return rotate(ctx, cur, map->k_undo ? map->k_undo : map->signs, nullptr, map->k_split, false);
}

ggml_tensor * llama_turbo_output(ggml_context * ctx, ggml_tensor * cur, const ggml_tensor * cache_v) {
    const auto * map = llama_turbo_map_of(cache_v);
    return map && !map->observe ? rotate(ctx, cur, map->v_undo ? map->v_undo : map->signs, nullptr, 0, true) : cur;
}

//
// state
//

int32_t llama_turbo_state_type(const ggml_tensor * cache_k) {
    const auto * map = llama_turbo_map_of(cache_k);
    return (int32_t) cache_k->type | (int32_t) ((map ? map->k_identity : 0) << 8);
}

void llama_turbo_state_mismatch(int32_t saved, const ggml_tensor * cache_k) {
    const int32_t  mine       = llama_turbo_state_type(cache_k);
    const uint32_t saved_cond = (uint32_t) saved >> 8;
    const uint32_t mine_cond  = (uint32_t) mine  >> 8;
    if ((saved & 0xFF) != (mine & 0xFF) || saved_cond == mine_cond) {
        return;
    }
    if (saved_cond == 0) {
        LLAMA_LOG_ERROR("the state was saved without key conditioning and this context runs with it: make the context with --kv-condition off, or process the prompt again\n");
    } else if (mine_cond == 0) {
        LLAMA_LOG_ERROR("the state was saved with key conditioning and this context runs without it: make the context with the --kv-condition of the saved state, or process the prompt again\n");
    } else {
        LLAMA_LOG_ERROR("the state was saved with another key conditioning than this context runs: make the context with the --kv-condition of the saved state, or process the prompt again; "
                "contexts of up to %u tokens a sequence and longer ones are conditioned apart, unless both are given one --kv-condition FILE\n", LLAMA_KV_SHORT_CONTEXT);
    }
}

bool llama_turbo_shift_k(
        ggml_context * ctx,
        ggml_cgraph  * gf,
        ggml_tensor  * cache_k,
        int64_t        n_embd_head,
        int64_t        n_rot,
        int64_t        n_embd_nope,
        const std::function<ggml_tensor * (ggml_tensor *)> & rope) {
    const auto * map = llama_turbo_map_of(cache_k);
    if (!map || map->observe) {
        return false;
    }

    const int64_t n_head_kv = cache_k->ne[0]/n_embd_head;

    ggml_tensor * k = ggml_view_3d(ctx, cache_k,
            n_embd_head, n_head_kv, cache_k->ne[1]*cache_k->ne[2],
            ggml_row_size(cache_k->type, n_embd_head), cache_k->nb[1], 0);

    ggml_tensor * cur = ggml_cast(ctx, k, GGML_TYPE_F32);
    cur = rotate(ctx, cur, map->k_undo ? map->k_undo : map->signs, map->k_shift, map->k_split, true);

    // in place on the rotary channels; expanded before the next use of cur, which the graph keeps in order
    ggml_build_forward_expand(gf, rope(
            ggml_view_3d(ctx, cur, n_rot, cur->ne[1], cur->ne[2], cur->nb[1], cur->nb[2], n_embd_nope*cur->nb[0])));

    cur = store_k(ctx, cur, *map);
    ggml_build_forward_expand(gf, ggml_cpy(ctx, cur, k));
    return true;
}
