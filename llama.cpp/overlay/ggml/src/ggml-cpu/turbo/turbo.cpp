// The CPU backend's side of the turbo types: choice of the instruction-set level, entry points for ggml's trait table, and the
// operations that are not table-driven upstream (rotation, copies).

#include "turbo.h"
#include "turbo-kernels.h"

#include "ggml-turbo-cpu.h"
#include "ggml-cpu-impl.h"
#include "ggml-impl.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

// best first
static std::vector<const turbo_kernels *> available_levels() {
    std::vector<const turbo_kernels *> res;
#if defined(GGML_TURBO_X86)
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vbmi") && __builtin_cpu_supports("avx512vnni")) {
        res.push_back(turbo_kernels_avx512());
    }
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c");
#if defined(GGML_TURBO_AVXVNNI)
    if (const turbo_kernels * avxvnni = avx2 ? turbo_kernels_avxvnni() : nullptr) {
        res.push_back(avxvnni);
    }
#endif
    if (avx2) {
        res.push_back(turbo_kernels_avx2());
    }
#endif
#if defined(GGML_TURBO_NEON)
    // neon first: fewer instructions a value (docs/arm.md), until a processor is timed
    res.push_back(turbo_kernels_neon());
    if (const turbo_kernels * dotprod = turbo_kernels_dotprod()) {
        res.push_back(dotprod);
    }
#endif
    res.push_back(turbo_kernels_scalar());
    return res;
}

const turbo_kernels * turbo_kernels_get() {
    static const turbo_kernels * kernels = [] {
        const auto levels = available_levels();
        const char * name = getenv("GGML_TURBO_ISA");
        if (!name || !*name) {
            return levels.front();
        }
        std::string names;
        for (const auto * level : levels) {
            if (strcmp(level->name, name) == 0) {
                return level;
            }
            names += std::string(names.empty() ? "" : ", ") + level->name;
        }
        GGML_ABORT("GGML_TURBO_ISA=%s: this processor and build offer: %s", name, names.c_str());
    }();
    return kernels;
}

const char * ggml_turbo_cpu_level(void) {
    return turbo_kernels_get()->name;
}

int ggml_turbo_cpu_codecs(enum ggml_type type, struct ggml_turbo_cpu_codec * codecs, int n_max) {
    GGML_ASSERT(ggml_is_turbo(type));
    const auto levels = available_levels();
    for (int i = 0; codecs && i < n_max && i < (int) levels.size(); ++i) {
        const auto & k = turbo_kernels_of(levels[i], type);
        codecs[i] = { levels[i]->name, k.encode, k.decode, k.dot, levels[i]->rotate };
    }
    return (int) levels.size();
}

#define X(ID, ENUM, NAME, BITS, BLOCK)                                                                                      \
    void quantize_row_##NAME(const float * GGML_RESTRICT x, void * GGML_RESTRICT y, int64_t k) {                            \
        turbo_kernels_of(turbo_kernels_get(), GGML_TYPE_##ENUM).encode(x, y, k);                                            \
    }                                                                                                                       \
    void ggml_vec_dot_##NAME##_f32(int n, float * GGML_RESTRICT s, size_t bs, const void * GGML_RESTRICT vx, size_t bx,     \
            const void * GGML_RESTRICT vy, size_t by, int nrc) {                                                            \
        GGML_ASSERT(nrc == 1);                                                                                              \
        GGML_UNUSED(bs); GGML_UNUSED(bx); GGML_UNUSED(by); GGML_UNUSED(nrc);                                                \
        *s = turbo_kernels_of(turbo_kernels_get(), GGML_TYPE_##ENUM).dot(vx, (const float *) vy, n);                        \
    }
GGML_TURBO_TYPES(X)
#undef X

// the rows [first, last) of nr that thread ith of nth works on
static void thread_rows(const ggml_compute_params * params, int64_t nr, int64_t & first, int64_t & last) {
    const int64_t per_thread = (nr + params->nth - 1)/params->nth;
    first = std::min(nr, per_thread*params->ith);
    last  = std::min(nr, first + per_thread);
}

void ggml_compute_forward_turbo_rotate(const ggml_compute_params * params, ggml_tensor * dst) {
    const ggml_tensor * x     = dst->src[0];
    const ggml_tensor * diag  = dst->src[1];
    const ggml_tensor * shift = dst->src[2];

    const bool    inverse = ggml_get_op_params_i32(dst, 0) != 0;
    const int64_t split   = ggml_get_op_params_i32(dst, 1);

    const int64_t d = x->ne[0];
    const auto rotate = params->use_ref ? turbo_kernels_scalar()->rotate : turbo_kernels_get()->rotate;

    // heads that share one row of a map
    const int64_t diag_group  = diag  ? x->ne[1]/diag->ne[1]  : 1;
    const int64_t shift_group = shift ? x->ne[1]/shift->ne[1] : 1;

    int64_t first, last;
    thread_rows(params, ggml_nrows(x), first, last);

    for (int64_t r = first; r < last; ++r) {
        const int64_t i1 = r % x->ne[1];
        const int64_t i2 = r / x->ne[1] % x->ne[2];
        const int64_t i3 = r / x->ne[1] / x->ne[2];

        const float * px = (const float *) ((const char *) x->data   + i1*x->nb[1]   + i2*x->nb[2]   + i3*x->nb[3]);
        float       * py = (float       *) ((char       *) dst->data + i1*dst->nb[1] + i2*dst->nb[2] + i3*dst->nb[3]);
        const float * pd = diag  ? (const float *) ((const char *) diag->data  + i1/diag_group *diag->nb[1])  : nullptr;
        const float * ps = shift ? (const float *) ((const char *) shift->data + i1/shift_group*shift->nb[1]) : nullptr;

        if (split > 0) {
            rotate(px, pd, ps, py, split, inverse);
        }
        rotate(px + split, pd ? pd + split : nullptr, ps ? ps + split : nullptr, py + split, d - split, inverse);
    }
}

static void load_f32(const ggml_tensor * t, const char * p, size_t nb0, float * x, int64_t n) {
    for (int64_t j = 0; j < n; ++j, p += nb0) {
        switch (t->type) {
            case GGML_TYPE_F32:  x[j] = *(const float *) p; break;
            case GGML_TYPE_F16:  x[j] = ggml_fp16_to_fp32(*(const ggml_fp16_t *) p); break;
            case GGML_TYPE_BF16: x[j] = ggml_bf16_to_fp32(*(const ggml_bf16_t *) p); break;
            default: GGML_ABORT("copy from %s to a turbo type is not supported", ggml_type_name(t->type));
        }
    }
}

static void store_f32(const ggml_tensor * t, char * p, size_t nb0, const float * x, int64_t n) {
    for (int64_t j = 0; j < n; ++j, p += nb0) {
        switch (t->type) {
            case GGML_TYPE_F32:  *(float       *) p = x[j]; break;
            case GGML_TYPE_F16:  *(ggml_fp16_t *) p = ggml_fp32_to_fp16(x[j]); break;
            case GGML_TYPE_BF16: *(ggml_bf16_t *) p = ggml_fp32_to_bf16(x[j]); break;
            default: GGML_ABORT("copy from a turbo type to %s is not supported", ggml_type_name(t->type));
        }
    }
}

// byte offset of element i (counted in logical order) of t; i is the first of its block
static size_t element_offset(const ggml_tensor * t, int64_t i) {
    const int64_t i0 = i % t->ne[0]; i /= t->ne[0];
    const int64_t i1 = i % t->ne[1]; i /= t->ne[1];
    const int64_t i2 = i % t->ne[2]; i /= t->ne[2];
    return i0/ggml_blck_size(t->type)*t->nb[0] + i1*t->nb[1] + i2*t->nb[2] + i*t->nb[3];
}

bool ggml_turbo_compute_forward_dup(const ggml_compute_params * params, ggml_tensor * dst) {
    const ggml_tensor * src = dst->src[0];
    const bool from = ggml_is_turbo(src->type);
    const bool to   = ggml_is_turbo(dst->type);

    if ((!from && !to) || src->type == dst->type) {
        return false;
    }
    if (from && to) {
        GGML_ABORT("copy from %s to %s is not supported", ggml_type_name(src->type), ggml_type_name(dst->type));
    }

    const ggml_type type  = from ? src->type : dst->type;
    const int64_t   block = ggml_blck_size(type);
    const auto *    level = params->use_ref ? turbo_kernels_scalar() : turbo_kernels_get();
    const auto &    kernels = turbo_kernels_of(level, type);

    // a block never crosses a row of its own side; on the other side it may, then it goes element by element
    const ggml_tensor * flt = from ? dst : src;
    const bool whole = flt->ne[0] % block == 0;

    int64_t first, last;
    thread_rows(params, ggml_nelements(src)/block, first, last);

    float x[128];
    for (int64_t i = first; i < last; ++i) {
        if (from) {
            kernels.decode((const char *) src->data + element_offset(src, i*block), x, block);
            if (whole) {
                store_f32(dst, (char *) dst->data + element_offset(dst, i*block), dst->nb[0], x, block);
            } else {
                for (int64_t j = 0; j < block; ++j) {
                    store_f32(dst, (char *) dst->data + element_offset(dst, i*block + j), dst->nb[0], x + j, 1);
                }
            }
        } else {
            if (whole) {
                load_f32(src, (const char *) src->data + element_offset(src, i*block), src->nb[0], x, block);
            } else {
                for (int64_t j = 0; j < block; ++j) {
                    load_f32(src, (const char *) src->data + element_offset(src, i*block + j), src->nb[0], x + j, 1);
                }
            }
            kernels.encode(x, (char *) dst->data + element_offset(dst, i*block), block);
        }
    }
    return true;
}
