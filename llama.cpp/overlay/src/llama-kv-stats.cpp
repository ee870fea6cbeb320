#include "llama-kv-stats.h"

#include "ggml.h"
#include "ggml-backend.h"
#include "llama-hparams.h"
#include "llama-impl.h"
#include "llama-kv-condition.h"
#include "llama-model.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <stdexcept>

// Of the queries of a run, every one of these is asked for weights: they cost n_tokens products of d values each.
static constexpr int64_t QUERY_STRIDE = 8;

// Steps to the fixed point, each half way there. After 8, s is within 1 % of its limit.
static constexpr int N_STEPS = 8;

// Weight of a logit that no query looks at: only there so that a run whose attention is all on one token has statistics at all.
static constexpr float WEIGHT_MIN = 1e-9f;

std::string llama_kv_sample::describe(const char * what) const {
    return format("%u runs of %u %s over %u positions", n_segments, n_tokens, what, span);
}

//
// observation
//

// name prefixes of the observed nodes, followed by the layer index
static const char * const OBSERVE   = "kv_observe_";
static const char * const OBSERVE_K = "kv_observe_k_";
static const char * const OBSERVE_Q = "kv_observe_q_";

static ggml_tensor * observe(ggml_context * ctx, ggml_tensor * cur, const char * prefix, uint32_t il) {
    cur = ggml_cont(ctx, cur->type == GGML_TYPE_F32 ? cur : ggml_cast(ctx, cur, GGML_TYPE_F32));
    ggml_format_name(cur, "%s%u", prefix, il);
    return cur;
}

ggml_tensor * llama_kv_observe_k(ggml_context * ctx, ggml_tensor * k, uint32_t il) {
    return observe(ctx, k, OBSERVE_K, il);
}

ggml_tensor * llama_kv_observe_q(ggml_context * ctx, ggml_tensor * q, uint32_t il, float kq_scale) {
    q = observe(ctx, q, OBSERVE_Q, il);
    // a copy has no use for its parameters
    memcpy(q->op_params, &kq_scale, sizeof(kq_scale));
    return q;
}

//
// statistics
//

namespace {

// One run's tokens of a layer: [n][n_head][d]
struct rows {
    int64_t d = 0, n_head = 0, n = 0;
    std::vector<float> data;

    const float * at(int64_t i, int64_t h) const { return data.data() + (i*n_head + h)*d; }
};

// weighted sums of a layer over all runs, [n_head_kv][d]
struct sums {
    int64_t d = 0, n_head_kv = 0;
    std::vector<double> k_weight; // [n_head_kv]
    std::vector<double> k_sum, k_sqr, q_sqr;
};

// Attention of one query head over a run: w = p(1 - p), row-major [n_q][n_k], row r being query r*QUERY_STRIDE.
struct weights {
    std::vector<float> w;

    // k_t: [d][n_k]
    void compute(const rows & q, int64_t head, const std::vector<float> & k_t, int64_t n_k, float scale, float cap, const std::vector<uint8_t> & visible) {
        const int64_t n_q = (q.n + QUERY_STRIDE - 1)/QUERY_STRIDE;
        w.assign(n_q*n_k, 0.0f);
        std::vector<float> score(n_k);
        for (int64_t r = 0; r < n_q; ++r) {
            const float * qi = q.at(r*QUERY_STRIDE, head);
            std::fill(score.begin(), score.end(), 0.0f);
            // over the keys in the inner loop: no reduction, so it vectorises and does not depend on how
            for (int64_t c = 0; c < q.d; ++c) {
                const float   f  = scale*qi[c];
                const float * kc = k_t.data() + c*n_k;
                for (int64_t j = 0; j < n_k; ++j) {
                    score[j] += f*kc[j];
                }
            }
            const uint8_t * see = visible.data() + r*n_k;
            float max = -INFINITY;
            for (int64_t j = 0; j < n_k; ++j) {
                score[j] = cap > 0.0f ? cap*tanhf(score[j]/cap) : score[j];
                max      = see[j] ? std::max(max, score[j]) : max;
            }
            float sum = 0.0f;
            for (int64_t j = 0; j < n_k; ++j) {
                score[j] = see[j] ? expf(score[j] - max) : 0.0f;
                sum     += score[j];
            }
            for (int64_t j = 0; j < n_k; ++j) {
                const float p = score[j]/sum;
                w[r*n_k + j] = see[j] ? p*(1.0f - p) + WEIGHT_MIN : 0.0f;
            }
        }
    }
};

struct collector {
    const llama_hparams & hparams;
    const bool            centre;

    std::map<uint32_t, rows> keys; // of the run in progress
    std::map<uint32_t, sums> layers;

    collector(const llama_hparams & hparams, bool centre) : hparams(hparams), centre(centre) {}

    static bool callback(ggml_tensor * t, bool ask, void * user_data) {
        // ggml names a view of a node after it, with a suffix in parentheses: it holds the same numbers once more
        if (strncmp(t->name, OBSERVE, strlen(OBSERVE)) != 0 || strchr(t->name, '(')) {
            return !ask;
        }
        if (!ask) {
            ((collector *) user_data)->add(t);
        }
        return true;
    }

    // t: F32 [d, n_head, n_tokens], contiguous. The keys of a batch come before its queries.
    void add(const ggml_tensor * t) {
        const bool     is_k = strncmp(t->name, OBSERVE_K, strlen(OBSERVE_K)) == 0;
        const uint32_t il   = (uint32_t) atoi(t->name + strlen(OBSERVE_K));

        rows   batch;
        rows & to = is_k ? keys[il] : batch;
        if (to.n > 0 && (to.d != t->ne[0] || to.n_head != t->ne[1])) {
            return; // layers that share a cache with other head counts: the owner's count
        }
        to.d      = t->ne[0];
        to.n_head = t->ne[1];
        const size_t old = to.data.size();
        to.data.resize(old + ggml_nelements(t));
        ggml_backend_tensor_get(t, to.data.data() + old, 0, ggml_nbytes(t));
        to.n += ggml_nelements(t)/(to.d*to.n_head);

        if (!is_k) {
            float scale;
            memcpy(&scale, t->op_params, sizeof(scale));
            const auto & k = keys[il];
            if (k.n >= batch.n && k.d == batch.d && batch.n_head % k.n_head == 0) {
                add_attention(il, batch, k, scale);
            }
        }
    }

    void next_run() { keys.clear(); }

    // which of the n_k keys each of the chosen queries sees; the queries are the last of the run so far
    std::vector<uint8_t> visible_keys(uint32_t il, int64_t n_q, int64_t n_k, int64_t q_first) const {
        const auto swa = hparams.is_swa(il) ? hparams.swa_type : LLAMA_SWA_TYPE_NONE;
        std::vector<uint8_t> res(((n_q + QUERY_STRIDE - 1)/QUERY_STRIDE)*n_k);
        for (int64_t i = 0, r = 0; i < n_q; i += QUERY_STRIDE, ++r) {
            for (int64_t j = 0; j < n_k; ++j) {
                const bool future = hparams.causal_attn && j > q_first + i;
                res[r*n_k + j] = !future && !llama_hparams::is_masked_swa(hparams.n_swa, swa, (llama_pos) j, (llama_pos) (q_first + i));
            }
        }
        return res;
    }

    void add_attention(uint32_t il, const rows & q, const rows & k, float scale) {
        const int64_t d       = k.d;
        const int64_t group   = q.n_head/k.n_head;
        const int64_t q_first = k.n - q.n;
        const int64_t n_q     = (q.n + QUERY_STRIDE - 1)/QUERY_STRIDE;
        const float   cap     = hparams.attn_soft_cap ? hparams.f_attn_logit_softcapping : 0.0f;
        const auto    visible = visible_keys(il, q.n, k.n, q_first);

        auto & sum = layers[il];
        if (sum.k_weight.empty()) {
            sum.d         = d;
            sum.n_head_kv = k.n_head;
            sum.k_weight.assign(k.n_head, 0.0);
            for (auto * v : { &sum.k_sum, &sum.k_sqr, &sum.q_sqr }) {
                v->assign(d*k.n_head, 0.0);
            }
        }
        if (sum.d != d || sum.n_head_kv != k.n_head) {
            return;
        }

        std::vector<float> k_t(d*k.n);
        std::vector<weights> ws(group);
        for (int64_t h = 0; h < k.n_head; ++h) {
            for (int64_t j = 0; j < k.n; ++j) {
                for (int64_t c = 0; c < d; ++c) {
                    k_t[c*k.n + j] = k.at(j, h)[c];
                }
            }
            for (int64_t g = 0; g < group; ++g) {
                ws[g].compute(q, h*group + g, k_t, k.n, scale, cap, visible);
            }

            // the fixed point: s2 = s^2, starting from the plain moments
            std::vector<double> mu(d, 0.0), s2(d, 1.0), k_sqr(d), k_sum(d), q_sqr(d);
            std::vector<double> a(k.n), b(n_q), wk(k.n, 1.0), wq(n_q*group, 1.0);
            double wk_sum = 0.0;
            for (int step = 0; ; ++step) {
                moments(k, h, wk, k_sum, k_sqr, wk_sum);
                std::fill(q_sqr.begin(), q_sqr.end(), 0.0);
                for (int64_t g = 0; g < group; ++g) {
                    for (int64_t r = 0; r < n_q; ++r) {
                        const float * qi = q.at(r*QUERY_STRIDE, h*group + g);
                        for (int64_t c = 0; c < d; ++c) {
                            q_sqr[c] += wq[g*n_q + r]*qi[c]*qi[c];
                        }
                    }
                }
                if (step == N_STEPS) {
                    break;
                }
                double log_mean = 0.0;
                std::vector<double> log_s2(d);
                const double k_min = 1e-8*std::max(1e-30, sum_of(k_sqr)/d), q_min = 1e-8*std::max(1e-30, sum_of(q_sqr)/d);
                for (int64_t c = 0; c < d; ++c) {
                    mu[c]     = centre ? k_sum[c]/wk_sum : 0.0;
                    const double var = k_sqr[c] - (centre ? k_sum[c]*mu[c] : 0.0);
                    log_s2[c] = 0.5*(log(std::max(q_sqr[c], q_min)) - log(std::max(var, k_min)));
                    log_mean += log_s2[c]/d;
                }
                for (int64_t c = 0; c < d; ++c) {
                    s2[c] = step == 0 ? exp(log_s2[c] - log_mean) : sqrt(s2[c]*exp(log_s2[c] - log_mean));
                }
                std::fill(wk.begin(), wk.end(), 0.0);
                for (int64_t j = 0; j < k.n; ++j) {
                    const float * kj = k.at(j, h);
                    a[j] = 0.0;
                    for (int64_t c = 0; c < d; ++c) {
                        a[j] += s2[c]*(kj[c] - mu[c])*(kj[c] - mu[c]);
                    }
                }
                for (int64_t g = 0; g < group; ++g) {
                    for (int64_t r = 0; r < n_q; ++r) {
                        const float * qi = q.at(r*QUERY_STRIDE, h*group + g);
                        double bi = 0.0, ai = 0.0;
                        for (int64_t c = 0; c < d; ++c) {
                            bi += qi[c]*qi[c]/s2[c];
                        }
                        const float * w = ws[g].w.data() + r*k.n;
                        for (int64_t j = 0; j < k.n; ++j) {
                            wk[j] += w[j]*bi;
                            ai    += w[j]*a[j];
                        }
                        wq[g*n_q + r] = ai;
                    }
                }
            }
            sum.k_weight[h] += wk_sum;
            for (int64_t c = 0; c < d; ++c) {
                sum.k_sum[h*d + c] += k_sum[c];
                sum.k_sqr[h*d + c] += k_sqr[c];
                sum.q_sqr[h*d + c] += q_sqr[c];
            }
        }
    }

    static double sum_of(const std::vector<double> & v) {
        double res = 0.0;
        for (const double x : v) {
            res += x;
        }
        return res;
    }

    static void moments(const rows & k, int64_t h, const std::vector<double> & weight, std::vector<double> & sum, std::vector<double> & sqr, double & weight_sum) {
        std::fill(sum.begin(), sum.end(), 0.0);
        std::fill(sqr.begin(), sqr.end(), 0.0);
        weight_sum = sum_of(weight);
        for (int64_t j = 0; j < k.n; ++j) {
            const float * kj = k.at(j, h);
            for (int64_t c = 0; c < k.d; ++c) {
                const double v = weight[j]*kj[c];
                sum[c] += v;
                sqr[c] += v*kj[c];
            }
        }
    }
};

uint64_t splitmix64(uint64_t & z) {
    uint64_t w = z += 0x9E3779B97F4A7C15ull;
    w = (w ^ (w >> 30)) * 0xBF58476D1CE4E5B9ull;
    w = (w ^ (w >> 27)) * 0x94D049BB133111EBull;
    return w ^ (w >> 31);
}

} // namespace

llama_kv_sample llama_kv_sample_for(const llama_model & model, uint32_t n_ctx_seq) {
    llama_kv_sample res;
    if (n_ctx_seq <= LLAMA_KV_SHORT_CONTEXT) {
        res.n_segments = 8;
        res.n_tokens   = 512;
        res.span       = 512;
    }
    res.span     = std::min(res.span, model.hparams.n_ctx_train);
    res.n_tokens = std::min(res.n_tokens, model.hparams.n_ctx_train);
    return res;
}

std::vector<llama_token> llama_kv_random_tokens(const llama_model & model, const llama_kv_sample & sample) {
    const llama_vocab * vocab = llama_model_get_vocab(&model);
    std::vector<llama_token> usable;
    for (llama_token id = 0; id < llama_vocab_n_tokens(vocab); ++id) {
        const auto attr = llama_vocab_get_attr(vocab, id);
        if (!(attr & (LLAMA_TOKEN_ATTR_UNKNOWN | LLAMA_TOKEN_ATTR_UNUSED | LLAMA_TOKEN_ATTR_CONTROL)) && !llama_vocab_is_eog(vocab, id)) {
            usable.push_back(id);
        }
    }
    if (usable.empty()) {
        throw std::runtime_error("the vocabulary has no ordinary tokens");
    }
    uint64_t seed = sample.seed;
    std::vector<llama_token> res((size_t) sample.n_segments*sample.n_tokens);
    for (size_t i = 0; i < res.size(); ++i) {
        const bool bos = i % sample.n_tokens == 0 && llama_vocab_get_add_bos(vocab);
        res[i] = bos ? llama_vocab_bos(vocab) : usable[splitmix64(seed) % usable.size()];
    }
    return res;
}

static llama_kv_stats finish(const sums & sum) {
    llama_kv_stats res;
    res.d         = (uint32_t) sum.d;
    res.n_head_kv = (uint32_t) sum.n_head_kv;
    for (int64_t i = 0; i < sum.d*sum.n_head_kv; ++i) {
        const double weight = sum.k_weight[i/sum.d];
        const double mean   = sum.k_sum[i]/weight;
        res.k_mean.push_back((float) mean);
        res.k_var .push_back((float) std::max(0.0, sum.k_sqr[i]/weight - mean*mean));
        res.q_sqr .push_back((float) (sum.q_sqr[i]/weight));
    }
    return res;
}

static bool all_finite(const llama_kv_stats & st) {
    for (const auto * v : { &st.k_mean, &st.k_var, &st.q_sqr }) {
        if (!std::all_of(v->begin(), v->end(), [](float x) { return std::isfinite(x); })) {
            return false;
        }
    }
    return true;
}

std::map<uint32_t, llama_kv_stats> llama_kv_measure(
        const llama_model & model,
        llama_context_params params,
        const std::vector<llama_token> & tokens,
        const llama_kv_sample & sample,
        bool centre) {
    collector col(model.hparams, centre);

    const uint32_t n_ctx = GGML_PAD(sample.n_tokens, 256);

    params.n_ctx             = n_ctx;
    params.n_batch           = n_ctx;
    params.n_ubatch          = std::min<uint32_t>(n_ctx, 512);
    params.n_seq_max         = 1;
    params.type_k            = GGML_TYPE_F32;
    params.type_v            = GGML_TYPE_F32;
    params.flash_attn_type   = LLAMA_FLASH_ATTN_TYPE_DISABLED;
    params.cb_eval           = collector::callback;
    params.cb_eval_user_data = &col;
    params.embeddings        = false;
    params.no_perf           = true;
    params.swa_full          = true;
    params.samplers          = nullptr;
    params.n_samplers        = 0;
    params.ctx_other         = nullptr;

    llama_context * ctx = nullptr;
    {
        llama_kv_condition_scope scope(LLAMA_KV_CONDITION_OBSERVE, nullptr);
        ctx = llama_init_from_model(const_cast<llama_model *>(&model), params);
    }
    if (!ctx) {
        throw std::runtime_error("no context could be made to measure the keys");
    }

    llama_batch batch = llama_batch_init((int32_t) n_ctx, 0, 1);
    int32_t rc = 0;
    const uint32_t n_segments = (uint32_t) tokens.size()/sample.n_tokens;
    for (uint32_t s = 0; s < n_segments && rc == 0; ++s) {
        const uint32_t range = sample.span > sample.n_tokens ? sample.span - sample.n_tokens : 0;
        const uint32_t start = n_segments > 1 ? (uint32_t) ((uint64_t) range*s/(n_segments - 1)) : 0;

        llama_memory_clear(llama_get_memory(ctx), true);
        col.next_run();
        batch.n_tokens = (int32_t) sample.n_tokens;
        for (uint32_t i = 0; i < sample.n_tokens; ++i) {
            batch.token   [i]    = tokens[(size_t) s*sample.n_tokens + i];
            batch.pos     [i]    = (llama_pos) (start + i);
            batch.n_seq_id[i]    = 1;
            batch.seq_id  [i][0] = 0;
            batch.logits  [i]    = i + 1 == sample.n_tokens;
        }
        rc = llama_decode(ctx, batch);
    }
    llama_batch_free(batch);
    llama_free(ctx);

    if (rc != 0) {
        throw std::runtime_error(format("the model could not be run to measure the keys (llama_decode: %d)", rc));
    }

    std::map<uint32_t, llama_kv_stats> res;
    for (const auto & [il, sum] : col.layers) {
        auto st = finish(sum);
        if (all_finite(st)) {
            res[il] = std::move(st);
        }
    }
    return res;
}
