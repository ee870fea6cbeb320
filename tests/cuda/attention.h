#pragma once

// GGML_OP_FLASH_ATTN_EXT: cases, data, and what the result must be, in double precision and by plain f32 arithmetic on the decoded cache.

#include "check.h"
#include "tensors.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>

namespace attention {

enum mask_type { NO_MASK, CAUSAL, WINDOW, MASKED_ROWS, BIAS, N_MASKS };
static const char * const mask_names[N_MASKS] = { "none", "causal", "window", "masked rows", "bias per head" };

struct test_case {
    int64_t dk, dv, n_kv, n_tokens, n_head_kv, group, n_stream;
    ggml_type type_k, type_v;
    bool v_of_k; // MLA: V is a view of K
    mask_type mask;
    bool  sinks;
    float softcap, max_bias;

    std::string str() const {
        char s[256];
        snprintf(s, sizeof(s), "dk=%d dv=%d%s %s/%s n_kv=%d n_tokens=%d heads=%dx%d streams=%d mask=%s sinks=%d softcap=%g max_bias=%g",
            (int) dk, (int) dv, v_of_k ? " (view of K)" : "", ggml_type_name(type_k), ggml_type_name(type_v), (int) n_kv, (int) n_tokens, (int) n_head_kv, (int) group,
            (int) n_stream, mask_names[mask], sinks, softcap, max_bias);
        return s;
    }
};

class fixture {
public:
    fixture(const test_case & c, unsigned seed) : c(c), rng(seed) {
        const int64_t n_head = c.n_head_kv*c.group;
        q = t.make("Q", GGML_TYPE_F32, c.dk, n_head, c.n_tokens, c.n_stream);
        k = t.make("K", c.type_k, c.dk*c.n_head_kv, c.n_kv, c.n_stream);
        v = c.v_of_k ? k : t.make("V", c.type_v, c.dv*c.n_head_kv, c.n_kv, c.n_stream);
        mask  = c.mask != NO_MASK ? t.make("mask", GGML_TYPE_F16, c.n_kv, c.n_tokens, c.mask == BIAS ? n_head : 1, c.n_stream) : nullptr;
        sinks = c.sinks ? t.make("sinks", GGML_TYPE_F32, n_head) : nullptr;

        auto heads = [&](ggml_tensor * x, int64_t d, int64_t stride) {
            return ggml_view_4d(t.ctx, x, d, c.n_kv, c.n_head_kv, c.n_stream, x->nb[1], ggml_row_size(x->type, stride), x->nb[2], 0);
        };
        out = ggml_flash_attn_ext(t.ctx, ggml_permute(t.ctx, q, 0, 2, 1, 3), heads(k, c.dk, c.dk), heads(v, c.dv, c.v_of_k ? c.dk : c.dv), mask, scale(), c.max_bias, c.softcap);
        ggml_flash_attn_ext_add_sinks(out, sinks);
        t.allocate("output", out);
        fill();
    }

    // runs compute(out) on an output full of NaN
    template <typename F> std::vector<float> run(F && compute) {
        memset(out->data, 0xFF, ggml_nbytes(out));
        compute(out);
        std::vector<float> res(ggml_nelements(out));
        memcpy(res.data(), out->data, ggml_nbytes(out));
        return res;
    }

    // T = double: the truth. T = float: what arithmetic in f32 gives, sums in order, weights by expf, one division at the end.
    // half_operands: queries, keys, values and weights are rounded to f16 and the sums are of T: what tensor cores do.
    // flip negates the values of every fourth key, the last one among them: a result that is near this one read other values.
    template <typename T> std::vector<T> reference(bool flip = false, bool half_operands = false) const {
        auto h16 = [&](T x) { return half_operands ? (T) ggml_fp16_to_fp32(ggml_fp32_to_fp16((float) x)) : x; };
        const int64_t n_head = c.n_head_kv*c.group;
        std::vector<T> res(c.dv*n_head*c.n_tokens*c.n_stream);
        const int n_log2 = 1 << (int) floor(log2((double) n_head));
        for (int64_t s = 0; s < c.n_stream; ++s) {
            for (int64_t hk = 0; hk < c.n_head_kv; ++hk) {
                const std::vector<float> kf = decoded(k, c.dk, c.dk, hk, s);
                const std::vector<float> vf = decoded(v, c.dv, c.v_of_k ? c.dk : c.dv, hk, s);
                for (int64_t h = hk*c.group; h < (hk + 1)*c.group; ++h) {
                    const T slope = c.max_bias == 0.0f ? T(1) :
                        (T) (h < n_log2 ? pow(2.0, -(double) c.max_bias/n_log2*(h + 1)) : pow(2.0, -(double) c.max_bias/2/n_log2*(2*(h - n_log2) + 1)));
                    for (int64_t i = 0; i < c.n_tokens; ++i) {
                        const float * qi = (const float *) ((const char *) q->data + h*q->nb[1] + i*q->nb[2] + s*q->nb[3]);
                        std::vector<T> x(c.n_kv, -INFINITY);
                        T m = sinks ? (T) ((const float *) sinks->data)[h] : (T) -INFINITY;
                        for (int64_t j = 0; j < c.n_kv; ++j) {
                            const T bias = mask ? (T) ggml_fp16_to_fp32(*(const ggml_fp16_t *) ((const char *) mask->data + j*2 + i*mask->nb[1] + (h % mask->ne[2])*mask->nb[2] + s*mask->nb[3])) : T(0);
                            if (bias == -INFINITY) {
                                continue;
                            }
                            T dot = 0;
                            for (int64_t d = 0; d < c.dk; ++d) {
                                dot += h16(half_operands ? (T) qi[d]*(T) scale() : (T) qi[d])*h16(kf[j*c.dk + d]);
                            }
                            dot *= half_operands ? T(1) : (T) scale();
                            if (c.softcap != 0.0f) {
                                dot = (T) c.softcap*std::tanh(dot/(T) c.softcap);
                            }
                            x[j] = dot + slope*bias;
                            m = std::max(m, x[j]);
                        }
                        T sum = sinks ? std::exp((T) ((const float *) sinks->data)[h] - m) : T(0);
                        T * y = res.data() + ((s*c.n_tokens + i)*n_head + h)*c.dv;
                        for (int64_t j = 0; j < c.n_kv; ++j) {
                            if (x[j] == -INFINITY) {
                                continue;
                            }
                            const T p = std::exp(x[j] - m);
                            sum += p;
                            for (int64_t d = 0; d < c.dv; ++d) {
                                y[d] += h16(p)*(h16(vf[j*c.dv + d])*(flip && (c.n_kv - 1 - j) % 4 == 0 ? T(-1) : T(1)));
                            }
                        }
                        for (int64_t d = 0; d < c.dv && sum > 0; ++d) {
                            y[d] /= sum;
                        }
                    }
                }
            }
        }
        return res;
    }

    size_t packed_bytes() const { return ggml_nbytes(k) + (c.v_of_k ? 0 : ggml_nbytes(v)); }

    void set_scale(ggml_tensor * x, int64_t key, uint16_t bits) { memcpy((char *) x->data + key*x->nb[1], &bits, sizeof(bits)); }
    void set_mask(int64_t token, int64_t key, float x) { ((ggml_fp16_t *) ((char *) mask->data + token*mask->nb[1]))[key] = ggml_fp32_to_fp16(x); }

    const test_case c;
    tensors t;
    ggml_tensor * q, * k, * v, * mask, * sinks, * out;

private:
    std::mt19937 rng;

    float scale() const { return 1.0f/sqrtf((float) c.dk); }

    std::vector<float> decoded(const ggml_tensor * x, int64_t d, int64_t stride, int64_t head, int64_t s) const {
        std::vector<float> res(c.n_kv*d);
        for (int64_t j = 0; j < c.n_kv; ++j) {
            ggml_get_type_traits(x->type)->to_float((const char *) x->data + j*x->nb[1] + s*x->nb[2] + ggml_row_size(x->type, stride)*head, res.data() + j*d, d);
        }
        return res;
    }

    void fill() {
        std::normal_distribution<float> normal;
        for (int64_t i = 0; i < ggml_nelements(q); ++i) {
            ((float *) q->data)[i] = 2.0f*normal(rng);
        }
        for (ggml_tensor * x : { k, v }) {
            const int64_t n = x->ne[0];
            std::vector<float> row(n);
            for (int64_t j = 0; j < x->ne[1]*x->ne[2]; ++j) {
                // norms vary by the key; the first value is next to nothing, as an attention sink's is
                const float f = x == v && j % c.n_kv == 0 ? 0.01f : expf(0.3f*normal(rng));
                for (float & y : row) {
                    y = f*normal(rng);
                }
                ggml_get_type_traits(x->type)->from_float_ref(row.data(), (char *) x->data + j*x->nb[1], n);
            }
        }
        for (int64_t h = 0; sinks && h < ggml_nelements(sinks); ++h) {
            ((float *) sinks->data)[h] = 2.0f + normal(rng);
        }
        for (int64_t r = 0; mask && r < ggml_nrows(mask); ++r) {
            const int64_t i = r % c.n_tokens;
            const int64_t pos = c.n_kv - c.n_tokens + i; // the tokens are the last ones
            for (int64_t j = 0; j < c.n_kv; ++j) {
                float x = 0.0f;
                switch (c.mask) {
                    case CAUSAL:      x = c.max_bias > 0.0f ? (float) -std::abs(pos - j) : 0.0f; if (j > std::max<int64_t>(pos, 0)) { x = -INFINITY; } break;
                    case WINDOW:      if (j > pos || j <= pos - 70) { x = -INFINITY; } break;
                    case MASKED_ROWS: if (i % 2 == 1 || j % 3 == 0) { x = -INFINITY; } break;
                    case BIAS:        x = normal(rng); break;
                    default: break;
                }
                ((ggml_fp16_t *) mask->data)[r*c.n_kv + j] = ggml_fp32_to_fp16(x);
            }
        }
    }
};

struct errors { double kernel, plain, control; };

inline errors measure(const fixture & f, const std::vector<float> & y, bool half_operands = false) {
    const auto exact = f.reference<double>();
    const auto plain = f.reference<float>(false, half_operands);
    const auto flipped = f.reference<double>(true);
    return { check::rel_rms(y.data(), exact.data(), y.size()), check::rel_rms(plain.data(), exact.data(), y.size()), check::rel_rms(y.data(), flipped.data(), y.size()) };
}

// Below this relative RMS error the comparison with f32 arithmetic says nothing: one key, whose weight is one, has no error at all there.
constexpr double ERROR_FLOOR = 1e-7;

} // namespace attention
