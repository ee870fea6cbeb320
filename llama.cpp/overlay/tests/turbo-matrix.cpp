// Every cell of one model: cache family x sides (K and V, K only, V only) x flash attention, against the f32 cache without flash attention.
// Prints one JSON object a line; judging them is the caller's part (tests/matrix).
//
//   kld    mean KL divergence of the cell's predictions, in nats
//   twin   the same for an f32 cache whose entries pass the Gaussian test channel of the codec's distortion: what this model makes of an error of
//          that size. x' = (1 - e) x + sqrt(e (1 - e)) |x|/sqrt(d) g, with e the codec's normalised MSE and g standard normal: the channel of
//          rate-distortion theory (Cover and Thomas, Elements of Information Theory, section 10.3), which has the two properties of a
//          least-squares code: E|x' - x|^2 = e |x|^2 and <x', x - x'> = 0. V is multiplied by 1/sqrt(1 - e), as the cache does.
//   floor  the same for an f16 cache with the cell's flash attention: rounding
//
// With --faults each cell is also run with planted faults, through the graph's evaluation callback: the libraries are those that are shipped.
//
//   codebook    neighbouring entries of the codebook are swapped (stored codes have their lowest bit flipped)
//   rotation    entries are stored without their rotation
//   unrotated   nothing is rotated (K, V, queries): exact but for the code, which then meets the outlier channels
//   swap        K's entries are stored as V and V's as K
//
// usage: turbo-matrix MODEL.gguf [--faults]
//        turbo-matrix --refused            architectures that are refused, with the reason

#include "common.h"
#include "ggml-turbo.h"
#include "llama-cpp.h"
#include "llama-turbokv.h"

#include "../src/llama-model.h"
#include "../src/llama-turbo.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <random>
#include <string>
#include <vector>

using json = nlohmann::ordered_json;

static constexpr int N_TOKENS = 320; // the last N_SINGLE as single tokens: the other path of every attention kernel
static constexpr int N_SINGLE = 16;
static constexpr int N_UBATCH = 64;
static constexpr int N_FIRST  = 16;  // positions before it see too little of the cache to count
static constexpr int N_ENCODE = 64;
static constexpr int N_TWIN   = 4;   // independent draws of the noise

static std::string log_text;
static std::string log_error;

static void keep_log(ggml_log_level level, const char * text, void *) {
    log_text += text;
    if (level == GGML_LOG_LEVEL_ERROR) {
        log_error = text;
        log_error.erase(log_error.find_last_not_of('\n') + 1);
    }
}

[[noreturn]] static void fail(const std::string & what) {
    fprintf(stderr, "error: %s\n", what.c_str());
    exit(1);
}

//
// what the evaluation callback does to the entries that were just stored
//

enum class touch { nothing, entropy, channel, codebook, rotation, swap };

struct hook {
    const llama_model * model = nullptr;
    touch what = touch::nothing;

    double nmse_k = 0; // of the channel
    double nmse_v = 0;
    std::mt19937_64 rng;

    std::map<uint32_t, ggml_tensor *> stored_k; // by layer, for swap

    double entropy = 0, entropy_uniform = 0;
    int64_t n_rows = 0;

    int64_t n_touched = 0;
};

// The cache entries of one SET_ROWS, token by token; V without flash attention is stored transposed, one value a row.
struct entries {
    ggml_tensor * t;
    bool is_k;
    uint32_t il;
    int64_t n_embd;
    int64_t n_tokens;

    static bool of(ggml_tensor * t, entries & e) {
        if (t->op != GGML_OP_SET_ROWS) {
            return false;
        }
        const ggml_tensor * root = t;
        while (root->view_src) {
            root = root->view_src;
        }
        char side = 0;
        unsigned il = 0;
        if (sscanf(root->name, "cache_%c_l%u", &side, &il) != 2 || (side != 'k' && side != 'v')) {
            return false;
        }
        e = { t, side == 'k', il, root->ne[0], ggml_nelements(t->src[0])/root->ne[0] };
        return true;
    }

    bool transposed() const { return t->ne[0] == 1; }

    char * row(int64_t i) const {
        const char * p = (const char *) t->src[1]->data;
        const int64_t idx = t->src[1]->type == GGML_TYPE_I64 ? ((const int64_t *) p)[i] : ((const int32_t *) p)[i];
        return (char *) t->data + idx*t->nb[1];
    }

    static void get(ggml_type type, const char * p, float * x, int64_t n) {
        if (type == GGML_TYPE_F32) {
            memcpy(x, p, n*sizeof(float));
        } else {
            ggml_get_type_traits(type)->to_float(p, x, n);
        }
    }

    static void put(ggml_type type, char * p, const float * x, int64_t n) {
        ggml_quantize_chunk(type, x, p, 0, 1, n, nullptr);
    }

    std::vector<float> read(int64_t i) const {
        std::vector<float> x(n_embd);
        if (transposed()) {
            for (int64_t j = 0; j < n_embd; ++j) {
                get(t->type, row(i*n_embd + j), &x[j], 1);
            }
        } else {
            get(t->type, row(i), x.data(), n_embd);
        }
        return x;
    }

    void write(int64_t i, const std::vector<float> & x) const {
        if (transposed()) {
            for (int64_t j = 0; j < n_embd; ++j) {
                put(t->type, row(i*n_embd + j), &x[j], 1);
            }
        } else {
            put(t->type, row(i), x.data(), n_embd);
        }
    }
};

static void test_channel(hook & h, const entries & e) {
    const double nmse = e.is_k ? h.nmse_k : h.nmse_v;
    if (nmse == 0) {
        return;
    }
    const auto & hp = h.model->hparams;
    const int64_t d = e.is_k ? hp.n_embd_head_k(e.il) : hp.n_embd_head_v(e.il);
    // vectors that are rotated as one
    std::vector<int64_t> parts = { d };
    if (e.is_k && hp.is_mla()) {
        const int64_t n_rot = hp.n_rot(e.il);
        parts = { d - n_rot, n_rot };
    }
    std::normal_distribution<double> gauss;
    for (int64_t i = 0; i < e.n_tokens; ++i) {
        auto x = e.read(i);
        for (size_t first = 0, p = 0; first < x.size(); first += parts[p], p = (p + 1) % parts.size()) {
            double norm2 = 0;
            for (int64_t j = 0; j < parts[p]; ++j) {
                norm2 += (double) x[first + j]*x[first + j];
            }
            const double noise = sqrt(nmse*(1 - nmse)*norm2/parts[p]);
            const double gain  = e.is_k ? 1.0 : 1.0/sqrt(1 - nmse);
            for (int64_t j = 0; j < parts[p]; ++j) {
                x[first + j] = (float) (gain*((1 - nmse)*x[first + j] + noise*gauss(h.rng)));
            }
        }
        e.write(i, x);
        h.n_touched++;
    }
}

static void flip_codes(hook & h, const entries & e) {
    const int     bits  = ggml_turbo_bits(e.t->type);
    const int64_t block = ggml_blck_size(e.t->type);
    const size_t  bytes = ggml_type_size(e.t->type);
    for (int64_t i = 0; i < e.n_tokens; ++i) {
        char * p = e.row(i);
        for (int64_t b = 0; b < e.n_embd/block; ++b, p += bytes) {
            for (int64_t j = 0; j < block; ++j) {
                p[2 + j*bits/8] ^= (char) (1 << (j*bits % 8)); // behind the fp16 scale
            }
        }
        h.n_touched++;
    }
}

static void store_unrotated(hook & h, const entries & e) {
    const ggml_tensor * r = e.t->src[0];
    while (r && r->op != GGML_OP_TURBO_ROTATE) {
        r = r->view_src;
    }
    if (!r) {
        fail("fault 'rotation': an entry of a turbo type is stored without a rotation");
    }
    const ggml_tensor * x = r->src[0];
    const int64_t d = x->ne[0];
    for (int64_t i = 0; i < e.n_tokens; ++i) {
        std::vector<float> row(e.n_embd);
        for (int64_t j = 0; j < e.n_embd; ++j) {
            row[j] = *(const float *) ((const char *) x->data + (j % d)*x->nb[0] + (j/d)*x->nb[1] + i*x->nb[2]);
        }
        if (i == 0 && !r->src[2] && ((const int32_t *) r->op_params)[1] == 0) { // is the rotation's input still there?
            std::vector<float> y(d);
            ggml_turbo_rotate_row_ref(row.data(), r->src[1] ? (const float *) r->src[1]->data : nullptr, nullptr, y.data(), d, false);
            for (int64_t j = 0; j < d; ++j) {
                if (fabsf(y[j] - ((const float *) r->data)[j]) > 1e-3f*(1 + fabsf(y[j]))) {
                    fail("fault 'rotation': the input of the rotation is gone when its result is stored");
                }
            }
        }
        e.write(i, row);
        h.n_touched++;
    }
}

static void swap_sides(hook & h, const entries & e) {
    if (e.is_k) {
        h.stored_k[e.il] = e.t;
        return;
    }
    entries k;
    if (!entries::of(h.stored_k.at(e.il), k) || k.n_embd != e.n_embd || k.n_tokens != e.n_tokens) {
        fail("fault 'swap': K and V of a layer are not alike");
    }
    for (int64_t i = 0; i < e.n_tokens; ++i) {
        const auto a = k.read(i);
        const auto b = e.read(i);
        k.write(i, b);
        e.write(i, a);
        h.n_touched++;
    }
}

// Entropy of the attention, and that of uniform attention over the tokens in sight.
static void measure_entropy(hook & h, const ggml_tensor * t) {
    for (int64_t r = 0; r < ggml_nrows(t); ++r) {
        const float * p = (const float *) ((const char *) t->data + r*t->nb[1]); // the result of a softmax is contiguous
        double sum = 0, s = 0;
        int seen = 0;
        for (int64_t j = 0; j < t->ne[0]; ++j) {
            if (p[j] > 0) {
                s -= p[j]*log(p[j]);
                sum += p[j];
                seen++;
            }
        }
        if (seen > N_FIRST && sum > 0) {
            h.entropy += s/sum + log(sum); // a sink takes a part of the sum
            h.entropy_uniform += log(seen);
            h.n_rows++;
        }
    }
}

static bool on_eval(ggml_tensor * t, bool ask, void * data) {
    auto & h = *(hook *) data;
    if (h.what == touch::entropy) {
        const bool mine = t->op == GGML_OP_SOFT_MAX && strncmp(t->name, "kq_soft_max", 11) == 0;
        if (mine && !ask) {
            measure_entropy(h, t);
        }
        return mine || !ask;
    }
    entries e;
    if (h.what == touch::nothing || !entries::of(t, e)) {
        return !ask;
    }
    if (ask) {
        return true;
    }
    const bool turbo = ggml_is_turbo(t->type);
    switch (h.what) {
        case touch::channel:  test_channel(h, e);                break;
        case touch::codebook: if (turbo) flip_codes(h, e);       break;
        case touch::rotation: if (turbo) store_unrotated(h, e);  break;
        case touch::swap:     swap_sides(h, e);                  break;
        default: break;
    }
    return true;
}

//
// runs
//

struct config {
    ggml_type type_k = GGML_TYPE_F32;
    ggml_type type_v = GGML_TYPE_F32;
    bool flash_attn = false;
    const char * condition = "off";
    bool unrotated = false;
};

using logits_t = std::vector<float>;

static llama_context_ptr make_context(llama_model * model, const config & c, hook & h) {
    llama_context_params params = llama_context_default_params();
    params.n_ctx             = 512;
    params.n_batch           = N_TOKENS;
    params.n_ubatch          = N_UBATCH;
    params.n_threads         = 1;
    params.n_threads_batch   = 1;
    params.type_k            = c.type_k;
    params.type_v            = c.type_v;
    params.flash_attn_type   = c.flash_attn ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
    params.cb_eval           = on_eval;
    params.cb_eval_user_data = &h;

    h.model = model;
    log_text.clear();
    log_error.clear();
    setenv("LLAMA_ATTN_ROT_DISABLE", c.unrotated ? "1" : "0", 1);
    llama_kv_condition_set(c.condition);
    llama_context_ptr ctx(llama_init_from_model(model, params));
    llama_kv_condition_set(nullptr);
    setenv("LLAMA_ATTN_ROT_DISABLE", "0", 1);
    return ctx;
}

static void process(llama_context * ctx, llama_process_type type, const std::vector<llama_token> & tokens, int first, int n) {
    common_batch batch(ctx);
    for (int i = 0; i < n; ++i) {
        batch.add(tokens[first + i], first + i, 0, true);
    }
    if (llama_process(ctx, type, batch.get()) != 0) {
        fail("a batch could not be processed: " + log_error);
    }
}

static logits_t run(llama_context * ctx, const std::vector<llama_token> & tokens) {
    const auto * model = llama_get_model(ctx);
    const int n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(model));
    const int n = (int) tokens.size();
    logits_t logits;
    if (llama_model_has_encoder(model)) {
        const std::vector<llama_token> source(tokens.rbegin(), tokens.rbegin() + N_ENCODE);
        process(ctx, LLAMA_PROCESS_TYPE_ENCODE, source, 0, N_ENCODE);
    }
    for (int first = 0; first < n; ) {
        const int len = first < n - N_SINGLE ? n - N_SINGLE : 1;
        process(ctx, LLAMA_PROCESS_TYPE_DECODE, tokens, first, len);
        for (int i = 0; i < len; ++i) {
            const float * l = llama_get_logits_ith(ctx, i);
            logits.insert(logits.end(), l, l + n_vocab);
        }
        first += len;
    }
    return logits;
}

static std::vector<double> log_softmax(const float * l, int n) {
    const double max = *std::max_element(l, l + n);
    double sum = 0;
    for (int i = 0; i < n; ++i) {
        sum += exp(l[i] - max);
    }
    std::vector<double> res(n);
    for (int i = 0; i < n; ++i) {
        res[i] = l[i] - max - log(sum);
    }
    return res;
}

static double mean_kld(const logits_t & base, const logits_t & other, int n_vocab) {
    double sum = 0;
    int n = 0;
    for (size_t t = N_FIRST; t < base.size()/n_vocab; ++t, ++n) {
        const auto p = log_softmax(&base [t*n_vocab], n_vocab);
        const auto q = log_softmax(&other[t*n_vocab], n_vocab);
        for (int i = 0; i < n_vocab; ++i) {
            sum += exp(p[i])*(p[i] - q[i]);
        }
    }
    return sum/n;
}

static bool all_finite(const logits_t & l) {
    return std::all_of(l.begin(), l.end(), [](float v) { return std::isfinite(v); });
}

//
// the cells
//

struct fault {
    const char * name;
    touch what;
};

static const fault faults[] = {
    { "codebook",  touch::codebook },
    { "rotation",  touch::rotation },
    { "unrotated", touch::nothing  },
    { "swap",      touch::swap     },
};

static int run_model(const char * path, bool with_faults) {
    llama_model_params mparams = llama_model_default_params();
    llama_model_ptr model(llama_model_load_from_file(path, mparams));
    if (!model) {
        fail(std::string(path) + " cannot be loaded: " + log_error);
    }
    const auto & hp = model->hparams;
    const int n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(model.get()));

    std::mt19937_64 rng(1);
    std::vector<llama_token> tokens(N_TOKENS);
    for (auto & t : tokens) {
        t = (llama_token) (rng() % n_vocab);
    }

    const auto print = [](const json & line) {
        printf("%s\n", line.dump(-1, ' ', false, json::error_handler_t::replace).c_str());
        fflush(stdout);
    };

    logits_t base;
    {
        hook h;
        h.what = touch::entropy;
        auto ctx = make_context(model.get(), {}, h);
        if (!ctx) {
            fail("no context with an f32 cache: " + log_error);
        }
        base = run(ctx.get(), tokens);
        if (!all_finite(base)) {
            fail("the f32 cache gives logits that are not finite");
        }
        print({ { "kind", "reference" }, { "entropy", h.entropy/h.n_rows }, { "entropy_uniform", h.entropy_uniform/h.n_rows } });
    }

    uint32_t il_kv = 0; // a layer with a cache
    while (il_kv < hp.n_layer_all && (!hp.has_kv(il_kv) || hp.n_head_kv(il_kv) == 0)) {
        il_kv++;
    }
    const int64_t d_k = hp.n_embd_head_k(il_kv);
    const int64_t d_v = hp.n_embd_head_v(il_kv);
    const bool    mla = hp.is_mla();

    // why a context cannot be had, empty when it can
    const auto measure = [&](const config & c, hook & h, double & kld, bool & finite) -> std::string {
        auto ctx = make_context(model.get(), c, h);
        if (!ctx) {
            return log_error.empty() ? "no context" : log_error;
        }
        const std::string made = log_text;
        const auto logits = run(ctx.get(), tokens);
        log_text = made;
        finite = all_finite(logits);
        kld    = finite ? mean_kld(base, logits, n_vocab) : NAN;
        return "";
    };

    std::map<std::string, double> twins;
    double floors[2] = { 0, 0 };
    for (int fa = 0; fa < 2; ++fa) {
        hook h;
        bool finite = false;
        const auto why = measure({ GGML_TYPE_F16, GGML_TYPE_F16, fa == 1, "off" }, h, floors[fa], finite);
        if (!why.empty() || !finite) {
            fail(std::string("an f16 cache does not work, flash attention ") + (fa ? "on: " : "off: ") + why);
        }
    }

    const ggml_type families[] = {
#define X(ID, ENUM, NAME, BITS, BLOCK) GGML_TYPE_##ENUM,
        GGML_TURBO_FAMILIES(X)
#undef X
    };
    const struct { const char * name; bool k, v; } sides[] = { { "K+V", true, true }, { "K", true, false }, { "V", false, true } };

    for (const ggml_type family : families) {
        for (const auto & side : sides) {
            for (int fa = 1; fa >= 0; --fa) {
                const config c = { side.k ? family : GGML_TYPE_F16, side.v ? family : GGML_TYPE_F16, fa == 1, "auto" };

                json line = { { "kind", "cell" }, { "family", ggml_type_name(family) }, { "sides", side.name }, { "flash_attn", fa == 1 } };

                llama_context_params params = llama_context_default_params();
                params.type_k = c.type_k;
                params.type_v = c.type_v;
                params.flash_attn_type = fa ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
                char reason[1024];
                const bool unsupported = !llama_turbo_check_model(model.get(), &params, reason, sizeof(reason));

                hook h;
                double kld = 0;
                bool finite = false;
                const auto why = measure(c, h, kld, finite);
                if (!why.empty()) {
                    line["refused"]   = unsupported ? reason : why;
                    line["announced"] = unsupported; // by the check that programs make before they load the weights
                    print(line);
                    continue;
                }
                line["admitted"] = !unsupported;
                line["finite"]   = finite;
                line["kld"]      = kld;
                line["floor"]    = floors[fa];
                line["log"]      = log_text;

                const std::string key = std::string(ggml_type_name(family)) + side.name;
                if (twins.find(key) == twins.end()) {
                    double sum = 0;
                    for (int i = 0; i < N_TWIN; ++i) {
                        hook twin;
                        twin.what   = touch::channel;
                        twin.rng.seed(1 + i);
                        twin.nmse_k = side.k        ? ggml_turbo_nmse(ggml_turbo_resolve(family, d_k)) : 0;
                        twin.nmse_v = side.v && !mla ? ggml_turbo_nmse(ggml_turbo_resolve(family, d_v)) : 0;
                        double one = 0;
                        const auto no = measure({ GGML_TYPE_F32, GGML_TYPE_F32, false, side.k ? "on" : "off" }, twin, one, finite);
                        if (!no.empty() || !finite || twin.n_touched == 0) {
                            fail("no noisy f32 cache: " + no);
                        }
                        sum += one/N_TWIN;
                    }
                    twins[key] = sum;
                }
                line["twin"] = twins[key];
                print(line);

                for (const auto & f : faults) {
                    if (!with_faults || (f.what == touch::swap && (mla || d_k != d_v))) {
                        continue;
                    }
                    hook broken;
                    broken.what = f.what;
                    config b = c;
                    b.unrotated = strcmp(f.name, "unrotated") == 0;
                    const auto no = measure(b, broken, kld, finite);
                    if (!no.empty() || (broken.n_touched == 0) != b.unrotated) {
                        fail(std::string("fault '") + f.name + "' could not be planted: " + no);
                    }
                    json fl = { { "kind", "fault" }, { "fault", f.name }, { "family", ggml_type_name(family) }, { "sides", side.name },
                        { "flash_attn", fa == 1 }, { "finite", finite }, { "kld", kld }, { "floor", floors[fa] }, { "twin", twins[key] } };
                    print(fl);
                }
            }
        }
    }
    return 0;
}

static int list_refused() {
    for (int i = 0; i < LLM_ARCH_UNKNOWN; ++i) {
        for (const ggml_type type_v : { GGML_TYPE_F16, GGML_TYPE_TURBO3 }) {
            const auto reason = llama_turbo_unsupported(llama_hparams(), (llm_arch) i, GGML_TYPE_TURBO3, type_v, false);
            if (!reason.empty()) {
                printf("%s\n", json({ { "kind", "architecture" }, { "name", llm_arch_name((llm_arch) i) },
                    { "sides", type_v == GGML_TYPE_F16 ? "K" : "K+V" }, { "refused", reason } }).dump().c_str());
                break;
            }
        }
    }
    return 0;
}

int main(int argc, char ** argv) {
    const bool with_faults = argc == 3 && strcmp(argv[2], "--faults") == 0;
    if (argc < 2 || argc > 3 || (argc == 3 && !with_faults)) {
        fprintf(stderr, "usage: turbo-matrix MODEL.gguf [--faults]\n       turbo-matrix --refused\n");
        return 2;
    }
    llama_log_set(keep_log, nullptr);
    llama_backend_init();
    return strcmp(argv[1], "--refused") == 0 ? list_refused() : run_model(argv[1], with_faults);
}
