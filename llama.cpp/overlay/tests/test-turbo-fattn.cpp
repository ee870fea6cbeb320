// Flash attention on turbo keys and values, on the CPU backend, against a double precision computation on the decoded cache and
// against upstream's row-by-row path (use_ref). Every instruction-set level that this processor has runs in a process of its own.
//
//   test-turbo-fattn               all levels; 0 when every case holds, else 1
//   test-turbo-fattn LEVEL [-v] [-s N]
//                                  one level, in this process; -v prints every case, -s runs one case in N and leaves upstream's path
//                                  out, for an emulator

#include "ggml.h"
#include "ggml-backend.h"
#include "ggml-cpu.h"
#include "ggml-turbo.h"
#include "ggml-turbo-cpu.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <random>
#include <string>
#include <vector>

#undef NDEBUG
#include <cassert>

enum mask_type { NO_MASK, CAUSAL, WINDOW, MASKED_ROWS, BIAS, N_MASKS };

static const char * mask_names[N_MASKS] = { "none", "causal", "window", "masked rows", "bias per head" };

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

// what the attention is computed on in double precision
enum kv_source {
    DECODED, // the values that the cache holds
    NEGATED, // the same with every fourth value negated, the last one among them
    STORED,  // the values before they were coded
};

struct outcome {
    double err;       // relative RMS error against double precision on the decoded cache
    double err_ref;   // the same of upstream's row-by-row path, NaN without it
    double threads;   // relative RMS difference of 1 and 2 threads
    double control;   // relative RMS error against double precision on a cache with some values negated
    double with_codes; // err against the values before they were coded, as a share of what exact arithmetic on the decoded ones has
};

static double rel_rms(const std::vector<float> & x, const std::vector<double> & y) {
    double e = 0.0, n = 0.0;
    for (size_t i = 0; i < x.size(); ++i) {
        if (!std::isfinite(x[i])) {
            return INFINITY;
        }
        e += (x[i] - y[i])*(x[i] - y[i]);
        n += y[i]*y[i];
    }
    return n > 0.0 ? sqrt(e/n) : sqrt(e);
}

class fixture {
public:
    fixture(const test_case & t, unsigned seed) : t(t), rng(seed) {
        ggml_init_params ip = { 64*ggml_tensor_overhead() + ggml_graph_overhead(), nullptr, true };
        ctx = ggml_init(ip);
        backend = ggml_backend_cpu_init();

        const int64_t n_head = t.n_head_kv*t.group;

        q = ggml_new_tensor_4d(ctx, GGML_TYPE_F32, t.dk, n_head, t.n_tokens, t.n_stream);
        k = ggml_new_tensor_3d(ctx, t.type_k, t.dk*t.n_head_kv, t.n_kv, t.n_stream);
        v = t.v_of_k ? k : ggml_new_tensor_3d(ctx, t.type_v, t.dv*t.n_head_kv, t.n_kv, t.n_stream);
        mask  = t.mask != NO_MASK ? ggml_new_tensor_4d(ctx, GGML_TYPE_F16, t.n_kv, t.n_tokens, t.mask == BIAS ? n_head : 1, t.n_stream) : nullptr;
        sinks = t.sinks ? ggml_new_tensor_1d(ctx, GGML_TYPE_F32, n_head) : nullptr;

        auto heads = [&](ggml_tensor * c, int64_t d, int64_t stride) {
            return ggml_view_4d(ctx, c, d, t.n_kv, t.n_head_kv, t.n_stream, c->nb[1], ggml_row_size(c->type, stride), c->nb[2], 0);
        };
        ggml_tensor * kv = heads(k, t.dk, t.dk);
        ggml_tensor * vv = heads(v, t.dv, t.v_of_k ? t.dk : t.dv);
        out = ggml_flash_attn_ext(ctx, ggml_permute(ctx, q, 0, 2, 1, 3), kv, vv, mask, scale(), t.max_bias, t.softcap);
        ggml_flash_attn_ext_add_sinks(out, sinks);
        ggml_prec_set_acc(out, GGML_PREC_F32);
        gf = ggml_new_graph(ctx);
        ggml_build_forward_expand(gf, out);

        buf = ggml_backend_alloc_ctx_tensors(ctx, backend);
        assert(buf);
        fill();
    }

    ~fixture() {
        ggml_backend_buffer_free(buf);
        ggml_backend_free(backend);
        ggml_free(ctx);
    }

    std::vector<float> compute(int n_threads, bool use_ref) {
        ggml_backend_cpu_set_n_threads(backend, n_threads);
        ggml_backend_cpu_set_use_ref(backend, use_ref);
        memset(out->data, 0xFF, ggml_nbytes(out)); // NaN: a row that is not written shows
        assert(ggml_backend_graph_compute(backend, gf) == GGML_STATUS_SUCCESS);
        std::vector<float> res(ggml_nelements(out));
        memcpy(res.data(), out->data, ggml_nbytes(out));
        return res;
    }

    // attention in double precision
    std::vector<double> exact(kv_source source) const {
        const int64_t n_head = t.n_head_kv*t.group;
        std::vector<double> res(t.dv*n_head*t.n_tokens*t.n_stream);
        const int n_log2 = 1 << (int) floor(log2((double) n_head));
        for (int64_t s = 0; s < t.n_stream; ++s) {
            for (int64_t hk = 0; hk < t.n_head_kv; ++hk) {
                const std::vector<float> kf = values(k, rows_k, source, t.dk, t.dk, hk, s);
                const std::vector<float> vf = values(v, t.v_of_k ? rows_k : rows_v, source, t.dv, t.v_of_k ? t.dk : t.dv, hk, s);
                for (int64_t h = hk*t.group; h < (hk + 1)*t.group; ++h) {
                    const double slope = t.max_bias == 0.0f ? 1.0 : h < n_log2 ? pow(2.0, -t.max_bias/n_log2*(h + 1)) : pow(2.0, -t.max_bias/2/n_log2*(2*(h - n_log2) + 1));
                    for (int64_t i = 0; i < t.n_tokens; ++i) {
                        const float * qi = (const float *) ((const char *) q->data + h*q->nb[1] + i*q->nb[2] + s*q->nb[3]);
                        std::vector<double> x(t.n_kv, -INFINITY);
                        double m = t.sinks ? ((const float *) sinks->data)[h] : -INFINITY;
                        for (int64_t j = 0; j < t.n_kv; ++j) {
                            const double bias = mask ? ggml_fp16_to_fp32(*(const ggml_fp16_t *) ((const char *) mask->data + j*2 + i*mask->nb[1] + (h % mask->ne[2])*mask->nb[2] + s*mask->nb[3])) : 0.0;
                            if (bias == -INFINITY) {
                                continue;
                            }
                            double dot = 0.0;
                            for (int64_t d = 0; d < t.dk; ++d) {
                                dot += (double) qi[d]*kf[j*t.dk + d];
                            }
                            dot *= scale();
                            if (t.softcap != 0.0f) {
                                dot = t.softcap*tanh(dot/t.softcap);
                            }
                            x[j] = dot + slope*bias;
                            m = std::max(m, x[j]);
                        }
                        double sum = t.sinks ? exp(((const float *) sinks->data)[h] - m) : 0.0;
                        double * y = res.data() + ((s*t.n_tokens + i)*n_head + h)*t.dv;
                        for (int64_t j = 0; j < t.n_kv; ++j) {
                            if (x[j] == -INFINITY) {
                                continue;
                            }
                            const double p = exp(x[j] - m);
                            sum += p;
                            for (int64_t d = 0; d < t.dv; ++d) {
                                y[d] += p*vf[j*t.dv + d]*(source == NEGATED && (t.n_kv - 1 - j) % 4 == 0 ? -1.0 : 1.0);
                            }
                        }
                        for (int64_t d = 0; d < t.dv && sum > 0.0; ++d) {
                            y[d] /= sum;
                        }
                    }
                }
            }
        }
        return res;
    }

    // overwrites the scale of a block of the cache with bits
    void set_scale(ggml_tensor * c, int64_t key, uint16_t bits) {
        memcpy((char *) c->data + key*c->nb[1], &bits, sizeof(bits));
    }

    void set_mask(int64_t token, int64_t key, float x) {
        ((ggml_fp16_t *) ((char *) mask->data + token*mask->nb[1]))[key] = ggml_fp32_to_fp16(x);
    }

    ggml_tensor * k, * v;

private:
    const test_case t;
    std::mt19937 rng;

    ggml_context * ctx;
    ggml_backend_t backend;
    ggml_backend_buffer_t buf;
    ggml_cgraph * gf;
    ggml_tensor * q, * mask, * sinks, * out;
    std::vector<float> rows_k, rows_v; // before they were coded

    float scale() const { return 1.0f/sqrtf((float) t.dk); }

    // t.n_kv x d values of one head and stream; rows are those of the tensor before they were coded
    std::vector<float> values(const ggml_tensor * c, const std::vector<float> & rows, kv_source source, int64_t d, int64_t stride, int64_t head, int64_t s) const {
        std::vector<float> res(t.n_kv*d);
        for (int64_t j = 0; j < t.n_kv; ++j) {
            if (source == STORED) {
                memcpy(res.data() + j*d, rows.data() + (s*t.n_kv + j)*c->ne[0] + head*stride, d*sizeof(float));
                continue;
            }
            ggml_get_type_traits(c->type)->to_float((const char *) c->data + j*c->nb[1] + s*c->nb[2] + ggml_row_size(c->type, stride)*head, res.data() + j*d, d);
        }
        return res;
    }

    void fill() {
        std::normal_distribution<float> normal;
        for (int64_t i = 0; i < ggml_nelements(q); ++i) {
            ((float *) q->data)[i] = 2.0f*normal(rng);
        }
        for (ggml_tensor * c : { k, v }) {
            const int64_t n = c->ne[0];
            std::vector<float> row(n);
            std::vector<float> & rows = c == k ? rows_k : rows_v;
            rows.clear(); // a V that is a view of K fills the same tensor a second time
            for (int64_t j = 0; j < c->ne[1]*c->ne[2]; ++j) {
                // norms vary by the key; the first value is next to nothing, as an attention sink's is
                const float f = c == v && j % t.n_kv == 0 ? 0.01f : expf(0.3f*normal(rng));
                for (float & x : row) {
                    x = f*normal(rng);
                }
                ggml_get_type_traits(c->type)->from_float_ref(row.data(), (char *) c->data + j*c->nb[1], n);
                rows.insert(rows.end(), row.begin(), row.end());
            }
        }
        for (int64_t h = 0; sinks && h < ggml_nelements(sinks); ++h) {
            ((float *) sinks->data)[h] = 2.0f + normal(rng);
        }
        for (int64_t r = 0; mask && r < ggml_nrows(mask); ++r) {
            const int64_t i = r % t.n_tokens;
            const int64_t pos = t.n_kv - t.n_tokens + i; // the tokens are the last ones
            for (int64_t j = 0; j < t.n_kv; ++j) {
                float x = 0.0f;
                switch (t.mask) {
                    case CAUSAL:      x = t.max_bias > 0.0f ? (float) -std::abs(pos - j) : 0.0f; if (j > std::max<int64_t>(pos, 0)) { x = -INFINITY; } break;
                    case WINDOW:      if (j > pos || j <= pos - 70) { x = -INFINITY; } break;
                    case MASKED_ROWS: if (i % 2 == 1 || j % 3 == 0) { x = -INFINITY; } break;
                    case BIAS:        x = normal(rng); break;
                    default: break;
                }
                ((ggml_fp16_t *) mask->data)[r*t.n_kv + j] = ggml_fp32_to_fp16(x);
            }
        }
    }
};

static outcome run(const test_case & t, unsigned seed, bool with_ref) {
    fixture f(t, seed);
    const auto exact  = f.exact(DECODED);
    const auto stored = f.exact(STORED);
    const auto one = f.compute(1, false);
    const auto two = f.compute(2, false);
    const double of_codes = rel_rms(std::vector<float>(exact.begin(), exact.end()), stored);
    return {
        rel_rms(one, exact),
        with_ref ? rel_rms(f.compute(1, true), exact) : NAN,
        rel_rms(two, std::vector<double>(one.begin(), one.end())),
        rel_rms(one, f.exact(NEGATED)),
        of_codes > 0.0 ? rel_rms(one, stored)/of_codes : 1.0,
    };
}

// A masked key whose scale is no number must not show, one that is attended to must.
static bool test_nan(ggml_type type) {
    bool ok = true;
    for (bool of_v : { false, true }) {
        for (bool masked : { false, true }) {
            fixture f({ 64, 64, 100, 2, 1, 3, 1, type, type, false, CAUSAL, false, 0.0f, 0.0f }, 1);
            f.set_scale(of_v ? f.v : f.k, 50, 0x7E00);
            for (int i = 0; masked && i < 2; ++i) {
                f.set_mask(i, 50, -INFINITY);
            }
            bool finite = true;
            for (float x : f.compute(1, false)) {
                finite = finite && std::isfinite(x);
            }
            if (finite != masked) {
                printf("FAIL %s: a %s of NaN scale, %s: the output is %s\n", ggml_type_name(type), of_v ? "value" : "key", masked ? "masked" : "attended to", finite ? "finite" : "not finite");
                ok = false;
            }
        }
    }
    return ok;
}

static ggml_type resolve(ggml_type type, int64_t d) {
    if (type == GGML_TYPE_Q8_0 && d % 32 != 0) {
        return GGML_TYPE_F16;
    }
    return ggml_turbo_resolve(type, d);
}

static int run_level(const std::string & level, bool verbose, unsigned sample) {
    if (level != ggml_turbo_cpu_level()) {
        fprintf(stderr, "level %s asked for, %s runs\n", level.c_str(), ggml_turbo_cpu_level());
        return 1;
    }

    const struct { int64_t dk, dv; bool v_of_k; } dims[] = {
        { 64, 64, false }, { 80, 80, false }, { 96, 96, false }, { 112, 112, false }, { 128, 128, false }, { 256, 256, false }, { 576, 512, true }, { 192, 128, false },
    };
    const ggml_type types[][2] = {
        { GGML_TYPE_TURBO3, GGML_TYPE_TURBO3 }, { GGML_TYPE_TURBO2, GGML_TYPE_TURBO2 }, { GGML_TYPE_TURBO4, GGML_TYPE_TURBO4 }, { GGML_TYPE_TURBO4, GGML_TYPE_TURBO2 },
        { GGML_TYPE_TURBO3, GGML_TYPE_F16 }, { GGML_TYPE_F16, GGML_TYPE_TURBO3 }, { GGML_TYPE_TURBO4, GGML_TYPE_Q8_0 }, { GGML_TYPE_Q8_0, GGML_TYPE_TURBO2 },
    };
    const int64_t sizes[][2] = { // n_kv, n_tokens
        { 1, 1 }, { 31, 5 }, { 256, 1 }, { 777, 2 }, { 777, 33 }, { 256, 33 }, { 777, 1 }, { 31, 2 }, { 2049, 5 },
    };
    const int64_t groups[] = { 1, 3, 4, 8 };

    int n = 0, n_fail = 0;
    double worst = 0.0, worst_ref = 0.0, worst_with_codes = 0.0, sum = 0.0, sum_ref = 0.0;
    unsigned count = 0;
    auto check = [&](const test_case & t, unsigned seed) {
        // the integer kernels round queries, weights and levels; some levels have them for a few query rows of a KV head only (MAX_FEW in turbo-fattn.cpp)
        const bool few  = t.group*t.n_tokens <= 12 && ggml_is_turbo(t.type_k) && ggml_is_turbo(t.type_v);
        const bool ints  = level == "avx512" || level == "avxvnni" || (level != "scalar" && few);
        const double bound = ints ? 4e-4 : 1e-5;

        const outcome o = run(t, seed, sample == 1);
        const bool nothing = t.mask == MASKED_ROWS && t.n_kv == 1; // the only key is masked: the output is zero
        // what rounding may add to the error that the codes have anyway: next to nothing, whatever the kernel
        const bool ok = o.err <= bound && o.threads <= bound/2 && (nothing || o.control > 10*bound) && o.with_codes <= 1.01;
        if (!ok || verbose) {
            printf("%s %s: error %.2e (row by row %.2e), 2 threads %.2e, control %.2e, with the codes' error %.6f of exact arithmetic's\n", ok ? "ok  " : "FAIL", t.str().c_str(), o.err, o.err_ref, o.threads, o.control, o.with_codes);
        }
        worst     = std::max(worst, o.err);
        worst_ref = std::max(worst_ref, o.err_ref);
        worst_with_codes = std::max(worst_with_codes, o.with_codes);
        sum += o.err;
        sum_ref += o.err_ref;
        n++;
        n_fail += !ok;
    };

    // every row kernel: bits, block, number of rows; an odd number of keys, of which the last tile is not full
#define X(ID, ENUM, NAME, BITS, BLOCK)                                                                                                        \
    for (int64_t rows = 1; rows <= 6; ++rows) {                                                                                               \
        check({ BLOCK, BLOCK, 77, 1, 1, rows, 1, GGML_TYPE_##ENUM, GGML_TYPE_##ENUM, false, NO_MASK, false, 0.0f, 0.0f }, (unsigned) rows);   \
    }
    GGML_TURBO_TYPES(X)
#undef X

    for (const auto & d : dims) {
        for (const auto & ty : types) {
            if (d.v_of_k && ty[0] != ty[1]) {
                continue;
            }
            for (const auto & sz : sizes) {
                test_case t = {};
                t.dk = d.dk; t.dv = d.dv; t.v_of_k = d.v_of_k;
                t.n_kv = sz[0]; t.n_tokens = sz[1];
                t.n_head_kv = d.v_of_k ? 1 : 2;
                t.group    = groups[count % 4];
                t.n_stream = 1 + (count/3) % 2;
                t.type_k = d.v_of_k ? resolve(ty[0], 64) : resolve(ty[0], d.dk); // V's 512 of 576 must be whole blocks
                t.type_v = d.v_of_k ? t.type_k : resolve(ty[1], d.dv);
                t.mask  = (mask_type) (count % N_MASKS);
                t.sinks = count % 7 < 2;
                t.softcap  = count % 11 < 2 ? 5.0f : 0.0f;
                t.max_bias = t.mask != NO_MASK && count % 3 == 1 ? 8.0f : 0.0f;
                if (++count % sample != 0) {
                    continue;
                }

                check(t, count);
            }
        }
    }
#define X(ID, ENUM, NAME, BITS, BLOCK) if (BLOCK == 64) { n++; n_fail += !test_nan(GGML_TYPE_##ENUM); }
    GGML_TURBO_TYPES(X)
#undef X

    printf("%s: %d cases, %d failed; relative RMS error: largest %.2e, mean %.2e", level.c_str(), n, n_fail, worst, sum/n);
    if (sample == 1) {
        printf(" (row by row %.2e, %.2e)", worst_ref, sum_ref/n);
    }
    printf("; with the codes' error at most %.6f of exact arithmetic's\n", worst_with_codes);
    return n_fail ? 1 : 0;
}

int main(int argc, char ** argv) {
    if (argc > 1) {
        bool verbose = false;
        int  sample  = 1;
        for (int i = 2; i < argc; ++i) {
            if (strcmp(argv[i], "-v") == 0) {
                verbose = true;
            } else if (strcmp(argv[i], "-s") == 0 && i + 1 < argc && atoi(argv[i + 1]) > 0) {
                sample = atoi(argv[++i]);
            } else {
                fprintf(stderr, "usage: test-turbo-fattn [LEVEL [-v] [-s N]]\n");
                return 2;
            }
        }
        return run_level(argv[1], verbose, (unsigned) sample);
    }

    std::vector<ggml_turbo_cpu_codec> codecs(ggml_turbo_cpu_codecs(GGML_TYPE_TURBO3, nullptr, 0));
    ggml_turbo_cpu_codecs(GGML_TYPE_TURBO3, codecs.data(), (int) codecs.size());

    int rc = 0;
    for (const auto & c : codecs) {
#ifdef _WIN32
        _putenv_s("GGML_TURBO_ISA", c.level);
#else
        setenv("GGML_TURBO_ISA", c.level, 1);
#endif
        fflush(stdout);
        rc |= system((std::string("\"") + argv[0] + "\" " + c.level).c_str()) != 0;
    }
    return rc;
}
