// Speed of cache types on a real model at depth, all in one process: the contexts stay alive side by side and take turns, so that whatever disturbs
// the machine disturbs them alike, and a depth is filled once and not once a repetition. Medians over the rounds; the first type is what the ratios are against.
//
//   bench-turbo-depth -m MODEL [-k TYPES] [-d DEPTHS] [-p PROMPT] [-n GENERATED] [-r ROUNDS] [-t THREADS]
//
// TYPES as in f16,turbo3,turbo3@off,q8_0/turbo3: K and V, or K/V; @on, @off: conditioning of the keys (auto without).
// Attention time is the time at a depth minus the time at depth 0 in the same round, which is what a cache type decides; growth is the exponent of the
// depth that fits its medians (least squares in logarithms, depths of 1024 and more). [a, b] is the 95 % interval, by bootstrap over the rounds.

#include "common.h"
#include "ggml-turbo.h"
#include "llama-cpp.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <random>
#include <sstream>
#include <string>
#include <vector>

struct options {
    std::string model;
    std::string types  = "f16,turbo3";
    std::string depths = "0,4096";
    int n_prompt = 256, n_gen = 32, rounds = 11, threads = 2;
};

enum kind { PROMPT, GENERATION, N_KINDS };
static const char * const KIND_NAMES[N_KINDS] = { "prompt", "generation" };

using samples = std::vector<double>; // milliseconds

struct context {
    llama_context_ptr ctx;
    int depth = 0;
};

struct variant {
    std::string name;
    context deep, empty; // the second stays at depth 0
    std::map<int, samples> ms[N_KINDS], attention[N_KINDS]; // by depth
};

[[noreturn]] static void quit(int code, const std::string & why) {
    fprintf(stderr, "error: %s\n", why.c_str());
    exit(code);
}

static std::vector<std::string> split(const std::string & s, char by) {
    std::vector<std::string> res;
    std::stringstream in(s);
    for (std::string part; std::getline(in, part, by); ) {
        res.push_back(part);
    }
    return res;
}

static double median(samples x) {
    std::sort(x.begin(), x.end());
    return x.size() % 2 ? x[x.size()/2] : 0.5*(x[x.size()/2 - 1] + x[x.size()/2]);
}

static ggml_type parse_type(const std::string & name) {
    for (int i = 0; i < GGML_TYPE_COUNT; ++i) {
        const char * known = ggml_type_name((ggml_type) i);
        if (known && name == known) {
            return (ggml_type) i;
        }
    }
    quit(2, "no cache type is called '" + name + "'");
}

static context make_context(llama_model * model, const options & o, const std::string & spec, int n_ctx) {
    const std::string types     = spec.substr(0, spec.find('@'));
    const std::string condition = types.size() == spec.size() ? "auto" : spec.substr(types.size() + 1);
    const std::string k         = types.substr(0, types.find('/'));
    const std::string v         = k.size() == types.size() ? k : types.substr(k.size() + 1);

    llama_context_params params = llama_context_default_params();
    params.n_ctx           = n_ctx;
    params.n_batch         = std::max(512, o.n_prompt);
    params.n_threads       = o.threads;
    params.n_threads_batch = o.threads;
    params.type_k          = parse_type(k);
    params.type_v          = parse_type(v);
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
    params.swa_full        = true; // tokens are removed again after every measurement
    setenv("LLAMA_KV_CONDITION", condition.c_str(), 1);
    context res;
    res.ctx.reset(llama_init_from_model(model, params));
    if (!res.ctx) {
        quit(3, "no context with the cache " + spec);
    }
    return res;
}

static void evaluate(context & c, const llama_token * tokens, int n) {
    common_batch batch(c.ctx.get());
    for (int i = 0; i < n; ++i) {
        batch.add(tokens[i], c.depth + i, 0, i == n - 1);
    }
    if (llama_process(c.ctx.get(), LLAMA_PROCESS_TYPE_DECODE, batch.get()) != 0) {
        quit(3, "evaluation failed at depth " + std::to_string(c.depth));
    }
    llama_synchronize(c.ctx.get());
    c.depth += n;
}

static void fill(context & c, const std::vector<llama_token> & tokens, int depth) {
    while (c.depth < depth) {
        evaluate(c, tokens.data() + c.depth, std::min(512, depth - c.depth));
    }
}

// milliseconds; the cache is as it was afterwards
static double measure(context & c, const std::vector<llama_token> & tokens, int n, int at_once) {
    const int depth  = c.depth;
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < n; i += at_once) {
        evaluate(c, tokens.data() + depth + i, at_once);
    }
    const double ms = std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count();
    if (!llama_memory_seq_rm(llama_get_memory(c.ctx.get()), 0, depth, -1)) {
        quit(3, "this model's memory cannot remove single tokens, which the measurement needs");
    }
    c.depth = depth;
    return ms;
}

static void run_round(variant & v, int depth, const std::vector<llama_token> & tokens, const options & o) {
    const int n[N_KINDS] = { o.n_prompt, o.n_gen }, at_once[N_KINDS] = { o.n_prompt, 1 };
    for (int k = 0; k < N_KINDS; ++k) {
        const double ms = measure(v.deep, tokens, n[k], at_once[k]);
        v.ms[k][depth].push_back(ms);
        if (depth > 0) {
            v.attention[k][depth].push_back(ms - measure(v.empty, tokens, n[k], at_once[k]));
        }
    }
}

struct interval { double value, lo, hi; };

// the same rounds are drawn for every sample: they are paired
template <typename F>
static interval bootstrap(size_t rounds, F && statistic) {
    std::mt19937 rng(1);
    std::uniform_int_distribution<size_t> draw(0, rounds - 1);
    std::vector<size_t> index(rounds);
    for (size_t i = 0; i < rounds; ++i) {
        index[i] = i;
    }
    interval res = { statistic(index), 0.0, 0.0 };
    samples drawn;
    for (int b = 0; b < 2000; ++b) {
        for (size_t & i : index) {
            i = draw(rng);
        }
        drawn.push_back(statistic(index));
    }
    std::sort(drawn.begin(), drawn.end());
    res.lo = drawn[50];
    res.hi = drawn[1949];
    return res;
}

static double median_of(const samples & x, const std::vector<size_t> & index) {
    samples res;
    for (size_t i : index) {
        res.push_back(x[i]);
    }
    return median(res);
}

static void report(const std::vector<variant> & variants, const std::vector<int> & depths, const options & o) {
    for (int k = 0; k < N_KINDS; ++k) {
        const int n = k == PROMPT ? o.n_prompt : o.n_gen;
        for (int depth : depths) {
            for (const auto & v : variants) {
                const auto & base = variants[0].ms[k].at(depth);
                const auto & own  = v.ms[k].at(depth);
                const auto ratio  = bootstrap(own.size(), [&](const auto & i) { return median_of(base, i)/median_of(own, i); });
                printf("%-10s depth %6d  %-14s %9.2f t/s  %6.3f x %s [%.3f, %.3f]", KIND_NAMES[k], depth, v.name.c_str(), 1e3*n/median(own), ratio.value,
                    variants[0].name.c_str(), ratio.lo, ratio.hi);
                if (depth > 0) {
                    const auto & base_a = variants[0].attention[k].at(depth);
                    const auto & own_a  = v.attention[k].at(depth);
                    const auto attention = bootstrap(own_a.size(), [&](const auto & i) { return median_of(own_a, i)/median_of(base_a, i); });
                    printf("  attention %9.3f ms  %6.3f x %s [%.3f, %.3f]", median(own_a)/(k == PROMPT ? 1 : n), attention.value, variants[0].name.c_str(), attention.lo, attention.hi);
                }
                printf("\n");
            }
        }
    }
    for (int k = 0; k < N_KINDS; ++k) {
        for (const auto & v : variants) {
            const auto exponent = bootstrap(o.rounds, [&](const auto & index) {
                double n = 0, sx = 0, sy = 0, sxx = 0, sxy = 0;
                for (const auto & [depth, ms] : v.attention[k]) {
                    const double y = depth >= 1024 ? median_of(ms, index) : 0.0;
                    if (y > 0.0) {
                        const double x = log(depth);
                        n += 1, sx += x, sy += log(y), sxx += x*x, sxy += x*log(y);
                    }
                }
                return n < 3 ? NAN : (n*sxy - sx*sy)/(n*sxx - sx*sx);
            });
            if (std::isfinite(exponent.value)) {
                printf("%-10s growth  %-14s attention time ~ depth^%.3f [%.3f, %.3f]\n", KIND_NAMES[k], v.name.c_str(), exponent.value, exponent.lo, exponent.hi);
            }
        }
    }
}

int main(int argc, char ** argv) {
    options o;
    for (int i = 1; i < argc; i += 2) {
        const std::string name = argv[i];
        const std::map<std::string, std::string *> texts = { { "-m", &o.model }, { "-k", &o.types }, { "-d", &o.depths } };
        const std::map<std::string, int *> numbers       = { { "-p", &o.n_prompt }, { "-n", &o.n_gen }, { "-r", &o.rounds }, { "-t", &o.threads } };
        if (i + 1 < argc && texts.count(name)) {
            *texts.at(name) = argv[i + 1];
        } else if (i + 1 == argc || !numbers.count(name) || (*numbers.at(name) = atoi(argv[i + 1])) < 1) {
            quit(2, "usage: " + std::string(argv[0]) + " -m MODEL [-k TYPES] [-d DEPTHS] [-p PROMPT] [-n GENERATED] [-r ROUNDS] [-t THREADS], numbers of 1 or more");
        }
    }
    std::vector<int> depths;
    for (const auto & d : split(o.depths, ',')) {
        depths.push_back(atoi(d.c_str()));
    }
    if (o.model.empty() || depths.empty() || !std::is_sorted(depths.begin(), depths.end())) {
        quit(2, "a model (-m) and depths in rising order are needed");
    }
    llama_log_set([](ggml_log_level level, const char * text, void *) {
        if (level == GGML_LOG_LEVEL_ERROR) {
            fputs(text, stderr);
        }
    }, nullptr);
    llama_backend_init();
    llama_model_ptr model(llama_model_load_from_file(o.model.c_str(), llama_model_default_params()));
    if (!model) {
        quit(2, "cannot load " + o.model);
    }
    const int n_ctx = depths.back() + std::max(o.n_prompt, o.n_gen);
    std::vector<variant> variants;
    for (const auto & spec : split(o.types, ',')) {
        variants.push_back({ spec, make_context(model.get(), o, spec, n_ctx), make_context(model.get(), o, spec, std::max(o.n_prompt, o.n_gen)), {}, {} });
    }
    std::mt19937 rng(1);
    std::uniform_int_distribution<int> any(0, llama_vocab_n_tokens(llama_model_get_vocab(model.get())) - 1);
    std::vector<llama_token> tokens(n_ctx);
    for (auto & t : tokens) {
        t = any(rng);
    }
    for (int depth : depths) {
        for (auto & v : variants) {
            fill(v.deep, tokens, depth);
        }
        fprintf(stderr, "depth %d filled\n", depth);
        for (auto & v : variants) { // warm up
            measure(v.deep,  tokens, o.n_prompt, o.n_prompt);
            measure(v.empty, tokens, o.n_prompt, o.n_prompt);
        }
        for (int r = 0; r < o.rounds; ++r) {
            for (size_t i = 0; i < variants.size(); ++i) {
                run_round(variants[(r + i) % variants.size()], depth, tokens, o); // nobody always follows the same other
            }
        }
        fprintf(stderr, "depth %d measured\n", depth);
    }
    report(variants, depths, o);
    return 0;
}
