// Attention on packed keys and values: which nodes there are kernels for, how one is cut, and the merge of split keys.
//
// Occupancy kernel                     threads  dynamic shared  sm_75  sm_90
//           turbo_fattn_merge              512               0      2      4

#include "turbo-fattn.cuh"

#include <algorithm>
#include <cstdlib>
#include <cstring>

static bool side_kind(const ggml_tensor * t, turbo_kind & kind) {
    if (ggml_is_turbo(t->type)) {
        kind = TURBO_KIND_TURBO;
        return true;
    }
    switch (t->type) {
        case GGML_TYPE_F16:  kind = TURBO_KIND_F16;  return true;
        case GGML_TYPE_Q8_0: kind = TURBO_KIND_Q8_0; return true;
        default:             return false;
    }
}

static bool side_supported(const ggml_tensor * t) {
    turbo_kind kind;
    if (!side_kind(t, kind) || t->nb[0] != ggml_type_size(t->type) || t->ne[0] % 16 != 0 || t->ne[1] == 0) {
        return false;
    }
    // f16 is read in pairs, blocks are read in halves
    const size_t align = kind == TURBO_KIND_F16 ? 4 : 2;
    return t->nb[1] % align == 0 && t->nb[2] % align == 0 && t->nb[3] % align == 0 && t->view_offs % align == 0;
}

bool ggml_cuda_turbo_fattn_supports(const ggml_tensor * op) {
    const ggml_tensor * q    = op->src[0];
    const ggml_tensor * k    = op->src[1];
    const ggml_tensor * v    = op->src[2];
    const ggml_tensor * mask = op->src[3];

    if (!ggml_is_turbo(k->type) && !ggml_is_turbo(v->type)) {
        return false; // a turbo type as Q or mask
    }
    return side_supported(k) && side_supported(v) && ggml_cuda_turbo_fattn_tile_supports(k->ne[0], v->ne[0]) &&
        q->type == GGML_TYPE_F32 && q->nb[0] == sizeof(float) && ggml_is_contiguous(op) && op->type == GGML_TYPE_F32 &&
        q->ne[0] == k->ne[0] && k->ne[1] == v->ne[1] && k->ne[2] == v->ne[2] && k->ne[3] == v->ne[3] && q->ne[2] % k->ne[2] == 0 && q->ne[3] == k->ne[3] &&
        (!mask || (mask->type == GGML_TYPE_F16 && mask->nb[0] == sizeof(half) && ggml_nelements(mask) <= UINT32_MAX));
}

static turbo_side make_side(const ggml_tensor * t) {
    turbo_side s;
    s.data = (const char *) t->data;
    s.nb1  = t->nb[1]; s.nb2 = t->nb[2]; s.nb3 = t->nb[3];
    s.d    = (int) t->ne[0];
    side_kind(t, s.kind);
    s.format = turbo_format_of(t->type);
    return s;
}

static turbo_fattn_args make_args(ggml_tensor * dst) {
    const ggml_tensor * q     = dst->src[0];
    const ggml_tensor * k     = dst->src[1];
    const ggml_tensor * v     = dst->src[2];
    const ggml_tensor * mask  = dst->src[3];
    const ggml_tensor * sinks = dst->src[4];

    float scale, max_bias, softcap;
    memcpy(&scale,    (const float *) dst->op_params + 0, sizeof(float));
    memcpy(&max_bias, (const float *) dst->op_params + 1, sizeof(float));
    memcpy(&softcap,  (const float *) dst->op_params + 2, sizeof(float));

    turbo_fattn_args a = {};
    a.q     = (const char *) q->data;
    a.k     = make_side(k);
    a.v     = make_side(v);
    a.mask  = mask  ? (const char *)  mask->data  : nullptr;
    a.sinks = sinks ? (const float *) sinks->data : nullptr;
    a.dst   = (float *) dst->data;
    a.q_nb1 = q->nb[1]; a.q_nb2 = q->nb[2]; a.q_nb3 = q->nb[3];
    a.mask_ne2 = a.mask_ne3 = 1;
    if (mask) {
        a.mask_nb1 = mask->nb[1]; a.mask_nb2 = mask->nb[2]; a.mask_nb3 = mask->nb[3];
        a.mask_ne2 = (int) mask->ne[2]; a.mask_ne3 = (int) mask->ne[3];
    }
    a.n_kv      = (int) k->ne[1];
    a.n_tokens  = (int) q->ne[1];
    a.n_head    = (int) q->ne[2];
    a.n_head_kv = (int) k->ne[2];
    a.n_stream  = (int) q->ne[3];
    a.group     = a.n_head/a.n_head_kv;
    a.rows      = a.group*a.n_tokens;
    a.cap       = softcap*TURBO_LOG2E;
    a.q_scale   = softcap != 0.0f ? scale/softcap : scale*TURBO_LOG2E;
    if (max_bias > 0.0f) {
        a.n_head_log2 = 1 << (int) floorf(log2f((float) a.n_head));
        a.m0 = powf(2.0f, -(max_bias       )/a.n_head_log2);
        a.m1 = powf(2.0f, -(max_bias / 2.0f)/a.n_head_log2);
    }
    return a;
}

// Merges the runs of keys: one block a row of dst, one thread a value.
static __global__ void turbo_fattn_merge(const turbo_fattn_args a) {
    const int64_t  row  = blockIdx.x;
    const float2 * meta = a.meta + row*a.n_split;
    const float  * part = a.part + row*a.n_split*a.v.d;

    float M = -INFINITY;
    for (int i = 0; i < a.n_split; ++i) {
        M = fmaxf(M, meta[i].x);
    }
    float S = 0.0f, y = 0.0f;
    for (int i = 0; i < a.n_split; ++i) {
        const float2 m = meta[i];
        if (m.y == 0.0f) {
            continue;
        }
        const float f = exp2f(m.x - M);
        S += m.y*f;
        y += part[(int64_t) i*a.v.d + threadIdx.x]*f;
    }
    a.dst[row*a.v.d + threadIdx.x] = y*turbo_fattn_factor(a, (int) (row % a.n_head), M, S);
}

enum fattn_kernel { FATTN_VEC, FATTN_TILE, FATTN_MMA };

// GGML_TURBO_FATTN=vec, tile or mma is for tests: it forces one.
static fattn_kernel choose_kernel(const turbo_fattn_args & a, int cc) {
    const bool   mma  = ggml_cuda_turbo_fattn_mma_has(a, cc);
    const char * name = getenv("GGML_TURBO_FATTN");
    if (!name || !*name) {
        return a.rows <= ggml_cuda_turbo_fattn_vec_rows(a) ? FATTN_VEC : mma ? FATTN_MMA : FATTN_TILE;
    }
    if (strcmp(name, "vec") == 0) {
        return FATTN_VEC;
    }
    if (strcmp(name, "tile") == 0) {
        return FATTN_TILE;
    }
    if (strcmp(name, "mma") == 0 && mma) {
        return FATTN_MMA;
    }
    GGML_ABORT("GGML_TURBO_FATTN=%s: this node and device offer: vec, tile%s", name, mma ? ", mma" : "");
}

// n_blocks: thread blocks before the keys are split. resident: those that fit on a multiprocessor. min_keys: fewer are not worth a run. step: keys of a
// run are a multiple of it.
struct split_plan { int64_t n_blocks, resident, min_keys, step; };

static split_plan plan_split(const turbo_fattn_args & a, fattn_kernel kernel) {
    switch (kernel) {
        case FATTN_VEC: {
            const turbo_vec_plan vec = ggml_cuda_turbo_fattn_vec_plan(a);
            return { (int64_t) (a.rows + vec.rows - 1)/vec.rows*a.n_head_kv*a.n_stream, vec.resident, 1, vec.keys };
        }
        case FATTN_MMA:
            return { ggml_cuda_turbo_fattn_mma_blocks(a), ggml_cuda_turbo_fattn_mma_resident(a), 256, 32 };
        default:
            return { ggml_cuda_turbo_fattn_tile_blocks(a), 2, 256, 32 };
    }
}

void ggml_cuda_turbo_fattn(ggml_backend_cuda_context & ctx, ggml_tensor * dst) {
    turbo_fattn_args a = make_args(dst);
    cudaStream_t stream = ctx.stream();

    if (ggml_nelements(dst) == 0) {
        return;
    }

    const auto & device = ggml_cuda_info().devices[ctx.device];
    const fattn_kernel kernel = choose_kernel(a, device.cc);

    // Keys are split until every multiprocessor has the blocks that fit there (head comments of the kernels).
    const split_plan plan     = plan_split(a, kernel);
    const int64_t    n_wanted = std::max<int64_t>(1, plan.resident*device.nsm/plan.n_blocks);
    const int64_t    n_split  = std::min(n_wanted, std::max<int64_t>(1, a.n_kv/plan.min_keys));
    a.chunk   = (int) (((a.n_kv + n_split - 1)/n_split + plan.step - 1)/plan.step*plan.step);
    a.n_split = (a.n_kv + a.chunk - 1)/a.chunk;

    ggml_cuda_pool_alloc<float>  part(ctx.pool());
    ggml_cuda_pool_alloc<float2> meta(ctx.pool());
    if (a.n_split > 1) {
        a.part = part.alloc(ggml_nelements(dst)*a.n_split);
        a.meta = meta.alloc(ggml_nrows(dst)*a.n_split);
    }

    if (kernel == FATTN_TILE) {
        ggml_cuda_turbo_fattn_tile(a, stream);
    } else if (kernel == FATTN_MMA) {
        ggml_cuda_turbo_fattn_mma(a, stream);
    } else if (a.k.kind == TURBO_KIND_TURBO && a.v.kind == TURBO_KIND_TURBO) {
        ggml_cuda_turbo_fattn_vec(a, stream);
    } else {
        ggml_cuda_turbo_fattn_vec_mixed(a, stream);
    }
    CUDA_CHECK(cudaGetLastError());

    if (a.n_split > 1) {
        turbo_fattn_merge<<<(unsigned) ggml_nrows(dst), a.v.d, 0, stream>>>(a);
    }
}
