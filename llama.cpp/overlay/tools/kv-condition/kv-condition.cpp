// Makes a key conditioning file ahead of time, from random tokens or from a text.

#include "common.h"
#include "llama-turbokv.h"
#include "llama.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

static const char * USAGE =
    "usage: llama-kv-condition -m MODEL -o FILE [options]\n"
    "\n"
    "  llama-kv-condition -m model.gguf -o model.kv.gguf\n"
    "  llama-cli -m model.gguf -ctk turbo3 -ctv turbo3 --kv-condition model.kv.gguf\n"
    "\n"
    "  -f, --file TEXT     measure this text (default: random tokens, no text is needed)\n"
    "  -n, --tokens N      tokens to measure (default: with a text 4096 or all of it, else the built-in sample)\n"
    "  -s, --segment N     tokens of one run from an empty cache (default: as in the built-in sample)\n"
    "  -p, --span N        positions over which the starts of the runs are spread (default: all start at 0)\n"
    "  -c, --ctx-size N    tokens of the contexts that the file is for; chooses the built-in sample (default: the model's own)\n"
    "  -t, --threads N     (default: the number of cores)\n"
    "  -ngl N              layers to keep on the GPU (default: all that fit, as in the other tools)\n"
    "  -v                  the log of the library\n"
    "\n"
    "exit: 0 written, 1 could not be made, 2 usage\n";

[[noreturn]] static void usage_error(const std::string & what) {
    fprintf(stderr, "error: %s\n\n%s", what.c_str(), USAGE);
    exit(2);
}

int main(int argc, char ** argv) {
    std::string path_model, path_out, path_text;
    int n_tokens = 0, n_segment = 0, n_span = 0, n_ctx = 0;
    int n_threads = (int) std::max(1u, std::thread::hardware_concurrency());
    bool verbose = false;

    llama_model_params mparams = llama_model_default_params();

    for (int i = 1; i < argc; ++i) {
        const std::string arg = argv[i];
        const auto value = [&]() -> std::string {
            if (i + 1 >= argc) {
                usage_error(arg + " needs a value");
            }
            return argv[++i];
        };
        const auto number = [&]() -> int {
            const std::string s = value();
            char * end = nullptr;
            const long v = strtol(s.c_str(), &end, 10);
            if (*end != '\0' || v < 0 || v > 1 << 24) {
                usage_error(arg + ": '" + s + "' is no number it can use");
            }
            return (int) v;
        };
        if      (arg == "-m" || arg == "--model")   { path_model = value(); }
        else if (arg == "-o" || arg == "--output")  { path_out   = value(); }
        else if (arg == "-f" || arg == "--file")    { path_text  = value(); }
        else if (arg == "-n" || arg == "--tokens")  { n_tokens   = number(); }
        else if (arg == "-s" || arg == "--segment") { n_segment  = number(); }
        else if (arg == "-p" || arg == "--span")    { n_span     = number(); }
        else if (arg == "-c" || arg == "--ctx-size") { n_ctx     = number(); }
        else if (arg == "-t" || arg == "--threads") { n_threads  = std::max(1, number()); }
        else if (arg == "-ngl")                     { mparams.n_gpu_layers = number(); }
        else if (arg == "-v")                       { verbose = true; }
        else if (arg == "-h" || arg == "--help")    { printf("%s", USAGE); return 0; }
        else                                        { usage_error("unknown argument " + arg); }
    }
    if (path_model.empty() || path_out.empty()) {
        usage_error(path_model.empty() ? "no model is named (-m)" : "no output file is named (-o)");
    }

    if (!verbose) {
        llama_log_set([](ggml_log_level level, const char * text, void *) {
            if (level >= GGML_LOG_LEVEL_WARN && level != GGML_LOG_LEVEL_CONT) {
                fputs(text, stderr);
            }
        }, nullptr);
    }
    llama_backend_init();
    ggml_backend_load_all();

    llama_model * model = llama_model_load_from_file(path_model.c_str(), mparams);
    if (model == nullptr) {
        fprintf(stderr, "error: the model %s cannot be loaded\n", path_model.c_str());
        return 1;
    }

    std::vector<llama_token> tokens;
    if (!path_text.empty()) {
        std::ifstream f(path_text, std::ios::binary);
        std::stringstream text;
        if (!f || !(text << f.rdbuf())) {
            fprintf(stderr, "error: the text %s cannot be read, or is empty\n", path_text.c_str());
            return 1;
        }
        tokens = common_tokenize(llama_model_get_vocab(model), text.str(), true);
        tokens.resize(std::min<size_t>(tokens.size(), n_tokens > 0 ? n_tokens : 4096));
        n_tokens = (int) tokens.size();
    } else if (n_segment > 0 && n_tokens == 0) {
        usage_error("-s without a text needs -n");
    }

    llama_context_params cparams = llama_context_default_params();
    cparams.n_ctx           = (uint32_t) n_ctx;
    cparams.n_threads       = n_threads;
    cparams.n_threads_batch = n_threads;

    char reason[1024];
    const bool ok = llama_kv_condition_write(model, &cparams, path_text.empty() ? nullptr : tokens.data(), n_tokens, n_segment, n_span, path_out.c_str(), reason, sizeof(reason));
    if (ok) {
        fprintf(stderr, "written: %s\n", path_out.c_str());
    } else {
        fprintf(stderr, "error: %s\n", reason);
    }

    llama_model_free(model);
    llama_backend_free();
    return ok ? 0 : 1;
}
