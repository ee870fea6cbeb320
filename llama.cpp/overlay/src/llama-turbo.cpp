#include "llama-turbo.h"

#include "llama-hparams.h"
#include "llama-impl.h"
#include "llama-model.h"
#include "llama-turbokv.h"

#include <algorithm>
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

ggml_type llama_turbo_layer_type(ggml_type type, int64_t n_embd_head, uint32_t il, const char * what) {
    const ggml_type res = ggml_turbo_resolve(type, n_embd_head);
    if (res == GGML_TYPE_COUNT) {
        throw std::runtime_error(format("%s cache type %s: layer %u has heads of %d values, for which there is no block", what, ggml_type_name(type), il, (int) n_embd_head));
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

// architectures whose graph reads the K cache outside of attention, where a rotated K would be wrong
static bool reads_cache_elsewhere(llm_arch arch) {
    switch (arch) {
        case LLM_ARCH_DEEPSEEK32:
        case LLM_ARCH_DEEPSEEK4:
        case LLM_ARCH_DFLASH:
        case LLM_ARCH_DOTS3NOTE:
        case LLM_ARCH_GLM5_NEXT:
        case LLM_ARCH_GLM_DSA:
        case LLM_ARCH_HY_V4:
        case LLM_ARCH_MINIMAX_M3:
        case LLM_ARCH_QWEN4EXP:
            return true;
        default:
            return false;
    }
}

std::string llama_turbo_unsupported(const llama_hparams & hparams, llm_arch arch, ggml_type type_k, ggml_type type_v, bool flash_attn_off) {
    if (!ggml_is_turbo(type_k) && !ggml_is_turbo(type_v)) {
        return "";
    }

    const char * names = ggml_type_name(ggml_is_turbo(type_k) ? type_k : type_v);

    if (reads_cache_elsewhere(arch)) {
        return format("cache type %s: architecture %s reads its K cache outside of attention, which turbo types do not support; use -ctk q8_0 -ctv q8_0 or f16", names, llm_arch_name(arch));
    }

    if (ggml_is_turbo(type_v) && flash_attn_off && !hparams.is_mla()) {
        return format("V cache type %s needs flash attention, which is off%s; use -fa on, or -ctv f16", ggml_type_name(type_v),
                arch == LLM_ARCH_GROK ? " for this architecture" : "");
    }

    for (uint32_t il = 0; il < hparams.n_layer_all; ++il) {
        if (!hparams.has_kv(il) || hparams.n_head_kv(il) == 0) {
            continue;
        }
        const struct { const char * what; const char * flag; ggml_type type; int64_t d; } sides[2] = {
            { "K", "-ctk", type_k, hparams.n_embd_head_k(il) },
            { "V", "-ctv", type_v, hparams.n_embd_head_v(il) },
        };
        for (const auto & s : sides) {
            if (s.what[0] == 'V' && hparams.is_mla()) {
                continue; // a view of K
            }
            if (ggml_turbo_resolve(s.type, s.d) == GGML_TYPE_COUNT) {
                return format("%s cache type %s: layer %u has heads of %d values, for which there is no turbo block; types that work here: %s (%s)",
                        s.what, ggml_type_name(s.type), il, (int) s.d, working_types(s.d).c_str(), s.flag);
            }
        }
    }

    return "";
}

bool llama_turbo_check_model(const llama_model * model, const llama_context_params * params, char * reason, size_t reason_size) {
    const auto res = llama_turbo_unsupported(model->hparams, model->arch, params->type_k, params->type_v,
            params->flash_attn_type == LLAMA_FLASH_ATTN_TYPE_DISABLED || model->arch == LLM_ARCH_GROK);
    snprintf(reason, reason_size, "%s", res.c_str());
    return res.empty();
}

//
// maps
//

void llama_turbo_maps::add(const llama_hparams & hparams, uint32_t il, ggml_backend_buffer_type_t buft, ggml_tensor * k, ggml_tensor * v) {
    const int64_t d_k = hparams.n_embd_head_k(il);
    const int64_t d_v = hparams.n_embd_head_v(il);

    // for experiments only, as upstream's switch for its own rotation; upstream logs it
    const char * LLAMA_ATTN_ROT_DISABLE = getenv("LLAMA_ATTN_ROT_DISABLE");
    const bool disable = LLAMA_ATTN_ROT_DISABLE && atoi(LLAMA_ATTN_ROT_DISABLE) != 0;

    const bool rot_k = !disable && k && ggml_is_turbo(k->type);
    const bool rot_v = !disable && v && ggml_is_turbo(v->type);

    infos.push_back({
        d_k, d_v,
        k ? k->type : GGML_TYPE_COUNT, v ? v->type : GGML_TYPE_COUNT,
        k ? ggml_nbytes(k) : 0, v ? ggml_nbytes(v) : 0,
        k ? ggml_nelements(k) : 0, v ? ggml_nelements(v) : 0,
        rot_k || rot_v,
    });

    if (!rot_k && !rot_v) {
        return;
    }

    auto & ctx = ctxs[buft];
    if (!ctx) {
        ggml_init_params params = {
            /*.mem_size   =*/ hparams.n_layer_all*ggml_tensor_overhead(),
            /*.mem_buffer =*/ nullptr,
            /*.no_alloc   =*/ true,
        };
        ctx.reset(ggml_init(params));
    }

    maps.emplace_back();
    auto & map = maps.back();

    map.il    = il;
    map.signs = ggml_new_tensor_1d(ctx.get(), GGML_TYPE_F32, std::max(d_k, d_v));
    ggml_format_name(map.signs, "cache_turbo_signs_l%u", il);

    if (rot_k) {
        map.k       = k;
        map.k_split = hparams.is_mla() ? d_k - (int64_t) hparams.n_rot(il) : 0;
        attach(k, &map);
    }
    if (rot_v) {
        map.v = v;
        attach(v, &map);
    }
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
        std::vector<float> signs(map.signs->ne[0]);
        ggml_turbo_signs(map.il, signs.size(), signs.data());
        ggml_backend_tensor_set(map.signs, signs.data(), 0, ggml_nbytes(map.signs));
    }
}

void llama_turbo_maps::log(const char * cache_kind) const {
    std::vector<bool> done(infos.size(), false);
    for (size_t i = 0; i < infos.size(); ++i) {
        if (done[i]) {
            continue;
        }
        const auto & a = infos[i];
        int n = 0;
        layer_info sum = {};
        for (size_t j = i; j < infos.size(); ++j) {
            const auto & b = infos[j];
            if (!done[j] && a.d_k == b.d_k && a.d_v == b.d_v && a.type_k == b.type_k && a.type_v == b.type_v && a.rotated == b.rotated) {
                done[j] = true;
                n++;
                sum.nbytes_k += b.nbytes_k;
                sum.nbytes_v += b.nbytes_v;
                sum.nelem_k  += b.nelem_k;
                sum.nelem_v  += b.nelem_v;
            }
        }
        const auto side = [](ggml_type type, int64_t d, size_t nbytes, int64_t nelem) {
            return nelem == 0 ? std::string("view of K") : format("%s x %d, %.4f bits/value, %.3f MiB", ggml_type_name(type), (int) d, 8.0*nbytes/nelem, nbytes/1024.0/1024.0);
        };
        LLAMA_LOG_INFO("kv cache layers (%s): %d, K %s, V %s%s\n", cache_kind, n,
                side(a.type_k, a.d_k, sum.nbytes_k, sum.nelem_k).c_str(), side(a.type_v, a.d_v, sum.nbytes_v, sum.nelem_v).c_str(),
                a.rotated ? ", rotated (turbo)" : "");
    }
}

//
// graph
//

static ggml_tensor * rotate(ggml_context * ctx, ggml_tensor * cur, ggml_tensor * diag, int64_t split, bool inverse) {
    if (cur->type != GGML_TYPE_F32) {
        cur = ggml_cast(ctx, cur, GGML_TYPE_F32);
    }
    return ggml_turbo_rotate(ctx, cur, diag, nullptr, split, inverse);
}

ggml_tensor * llama_turbo_store(ggml_context * ctx, ggml_tensor * cur, const ggml_tensor * cache) {
    const auto * map = llama_turbo_map_of(cache);
    return map ? rotate(ctx, cur, map->signs, map->k == cache ? map->k_split : 0, false) : cur;
}

ggml_tensor * llama_turbo_query(ggml_context * ctx, ggml_tensor * cur, const ggml_tensor * cache_k) {
    const auto * map = llama_turbo_map_of(cache_k);
    return map ? rotate(ctx, cur, map->signs, map->k_split, false) : cur;
}

ggml_tensor * llama_turbo_output(ggml_context * ctx, ggml_tensor * cur, const ggml_tensor * cache_v) {
    const auto * map = llama_turbo_map_of(cache_v);
    return map ? rotate(ctx, cur, map->signs, 0, true) : cur;
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
    if (!map) {
        return false;
    }

    const int64_t n_head_kv = cache_k->ne[0]/n_embd_head;

    ggml_tensor * k = ggml_view_3d(ctx, cache_k,
            n_embd_head, n_head_kv, cache_k->ne[1]*cache_k->ne[2],
            ggml_row_size(cache_k->type, n_embd_head), cache_k->nb[1], 0);

    ggml_tensor * cur = ggml_cast(ctx, k, GGML_TYPE_F32);
    cur = rotate(ctx, cur, map->signs, map->k_split, true);

    // in place on the rotary channels; expanded before the next use of cur, which the graph keeps in order
    ggml_build_forward_expand(gf, rope(
            ggml_view_3d(ctx, cur, n_rot, cur->ne[1], cur->ne[2], cur->nb[1], cur->nb[2], n_embd_nope*cur->nb[0])));

    cur = rotate(ctx, cur, map->signs, map->k_split, false);
    ggml_build_forward_expand(gf, ggml_cpy(ctx, cur, k));
    return true;
}
