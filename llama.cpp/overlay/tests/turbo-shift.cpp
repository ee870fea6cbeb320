// Context shift on a real model: how far the logits of each cache type are from a fresh evaluation of the shifted context with an f16 cache,
// when the type evaluates it afresh too, and when it gets there by a shift. Mean KL divergence in nats, and the difference of the two.
//
// Some difference is inherent, because the kept values were computed while the removed tokens were still there: the f16 row shows it. A type
// whose keys are shifted wrongly, or lose much by being stored twice, adds more.
//
// usage: turbo-shift MODEL TEXT

#include "common.h"
#include "ggml-turbo.h"
#include "llama-cpp.h"

#include <cmath>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

static constexpr int N_KEEP    = 64;
static constexpr int N_REMOVED = 256;
static constexpr int N_CONTEXT = 640; // before the shift
static constexpr int N_SCORED  = 128;

static std::vector<std::vector<double>> log_probs(llama_context * ctx, const std::vector<llama_token> & tokens, int pos) {
    const int n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(llama_get_model(ctx)));
    common_batch batch(ctx);
    for (size_t i = 0; i < tokens.size(); ++i) {
        batch.add(tokens[i], pos + (int) i, 0, true);
    }
    std::vector<std::vector<double>> res;
    if (llama_process(ctx, LLAMA_PROCESS_TYPE_DECODE, batch.get()) != 0) {
        return res;
    }
    for (size_t i = 0; i < tokens.size(); ++i) {
        const float * l = llama_get_logits_ith(ctx, (int) i);
        double max = l[0], sum = 0.0;
        for (int j = 0; j < n_vocab; ++j) {
            max = std::max(max, (double) l[j]);
        }
        for (int j = 0; j < n_vocab; ++j) {
            sum += exp(l[j] - max);
        }
        std::vector<double> p(n_vocab);
        for (int j = 0; j < n_vocab; ++j) {
            p[j] = l[j] - max - log(sum);
        }
        res.push_back(std::move(p));
    }
    return res;
}

static double mean_kld(const std::vector<std::vector<double>> & p, const std::vector<std::vector<double>> & q) {
    double sum = 0.0;
    for (size_t i = 0; i < p.size(); ++i) {
        for (size_t j = 0; j < p[i].size(); ++j) {
            sum += exp(p[i][j])*(p[i][j] - q[i][j]);
        }
    }
    return p.empty() || p.size() != q.size() ? NAN : sum/p.size();
}

static llama_context_ptr make_context(llama_model * model, ggml_type type) {
    llama_context_params params = llama_context_default_params();
    params.n_ctx           = 1024;
    params.n_batch         = 1024;
    params.n_threads       = 2;
    params.n_threads_batch = 2;
    params.type_k          = type;
    params.type_v          = type;
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
    return llama_context_ptr(llama_init_from_model(model, params));
}

int main(int argc, char ** argv) {
    if (argc != 3) {
        fprintf(stderr, "usage: turbo-shift MODEL TEXT\n");
        return 2;
    }
    llama_log_set([](ggml_log_level level, const char * text, void *) { if (level == GGML_LOG_LEVEL_ERROR) { fputs(text, stderr); } }, nullptr);
    llama_backend_init();

    llama_model_ptr model(llama_model_load_from_file(argv[1], llama_model_default_params()));
    std::ifstream file(argv[2]);
    const std::string text((std::istreambuf_iterator<char>(file)), {});
    if (!model || text.empty()) {
        fprintf(stderr, "error: cannot read %s\n", model ? argv[2] : argv[1]);
        return 2;
    }
    auto tokens = common_tokenize(llama_model_get_vocab(model.get()), text.substr(0, 16*(N_CONTEXT + N_SCORED)), true);
    if (tokens.size() < N_CONTEXT + N_SCORED) {
        fprintf(stderr, "error: the text has %zu tokens, %d are needed\n", tokens.size(), N_CONTEXT + N_SCORED);
        return 2;
    }
    const auto begin = tokens.begin();
    const std::vector<llama_token> context(begin, begin + N_CONTEXT), scored(begin + N_CONTEXT, begin + N_CONTEXT + N_SCORED);
    std::vector<llama_token> kept(begin, begin + N_KEEP);
    kept.insert(kept.end(), begin + N_KEEP + N_REMOVED, begin + N_CONTEXT);

    std::vector<std::vector<double>> want; // the first type's: f16
    printf("type     fresh   shifted added\n");
    for (const ggml_type type : { GGML_TYPE_F16, GGML_TYPE_Q8_0, GGML_TYPE_TURBO4, GGML_TYPE_TURBO3, GGML_TYPE_TURBO2 }) {
        auto fresh   = make_context(model.get(), type);
        auto shifted = make_context(model.get(), type);
        if (!fresh || !shifted || log_probs(fresh.get(), kept, 0).empty() || log_probs(shifted.get(), context, 0).empty()) {
            fprintf(stderr, "error: the model does not run with %s\n", ggml_type_name(type));
            return 1;
        }
        auto * mem = llama_get_memory(shifted.get());
        if (!llama_memory_can_shift(mem) || !llama_memory_seq_rm(mem, 0, N_KEEP, N_KEEP + N_REMOVED)) {
            fprintf(stderr, "error: the model's cache cannot be shifted\n");
            return 1;
        }
        llama_memory_seq_add(mem, 0, N_KEEP + N_REMOVED, -1, -N_REMOVED);
        const int  pos  = (int) kept.size();
        const auto again = log_probs(fresh.get(), scored, pos);
        want = want.empty() ? again : want;
        const double kld_fresh   = mean_kld(want, again);
        const double kld_shifted = mean_kld(want, log_probs(shifted.get(), scored, pos));
        printf("%-8s %.4f  %.4f  %.4f\n", ggml_type_name(type), kld_fresh, kld_shifted, kld_shifted - kld_fresh);
        fflush(stdout);
    }
    return 0;
}
