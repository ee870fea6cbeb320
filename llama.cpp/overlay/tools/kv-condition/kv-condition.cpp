// Makes a key conditioning file ahead of time, from random tokens or from a text.

#include "../kv-tools.h"

#include "common.h"
#include "llama-turbokv.h"
#include "llama.h"

#include <algorithm>
#include <cstdio>
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

int main(int argc, char ** argv) {
    std::string path_model, path_out, path_text;
    int n_tokens = 0, n_segment = 0, n_span = 0, n_ctx = 0;
    int n_threads = (int) std::max(1u, std::thread::hardware_concurrency());
    bool verbose = false;

    llama_model_params mparams = llama_model_default_params();

    kv_arguments args(argc, argv, USAGE);
    while (args.next()) {
        if      (args.is("-m", "--model"))    { path_model = args.value(); }
        else if (args.is("-o", "--output"))   { path_out   = args.value(); }
        else if (args.is("-f", "--file"))     { path_text  = args.value(); }
        else if (args.is("-n", "--tokens"))   { n_tokens   = args.number(0); }
        else if (args.is("-s", "--segment"))  { n_segment  = args.number(0); }
        else if (args.is("-p", "--span"))     { n_span     = args.number(0); }
        else if (args.is("-c", "--ctx-size")) { n_ctx      = args.number(0); }
        else if (args.is("-t", "--threads"))  { n_threads  = args.number(1); }
        else if (args.is("-ngl"))             { mparams.n_gpu_layers = args.number(0); }
        else if (args.is("-v"))               { verbose = true; }
        else                                  { args.unknown(); }
    }
    if (path_model.empty() || path_out.empty()) {
        args.error(path_model.empty() ? "no model is named (-m)" : "no output file is named (-o)");
    }
    if (n_segment > 0 && n_tokens == 0 && path_text.empty()) {
        args.error("-s without a text needs -n");
    }

    if (!verbose) {
        kv_quiet_log();
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
        try {
            tokens = common_tokenize(llama_model_get_vocab(model), kv_read_text(path_text), true);
        } catch (const std::runtime_error & err) {
            fprintf(stderr, "error: %s\n", err.what());
            return 1;
        }
        tokens.resize(std::min<size_t>(tokens.size(), n_tokens > 0 ? n_tokens : 4096));
        n_tokens = (int) tokens.size();
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
