// Writes the queries, keys and values that attention works on, of a text and of chosen layers, to one GGUF file.
//
// They are read where attention reads them: from the inputs of its own graph nodes, through the evaluation callback. So they are
// after RoPE, norms and scaling of whatever architecture it is, and the scale, cap and mask are those of the node.

#include "../kv-tools.h"
#include "capture-file.h"
#include "collector.h"

#include "common.h"
#include "ggml-backend.h"
#include "llama-turbokv.h"
#include "llama.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

static constexpr int N_UBATCH = 512;

static const char * USAGE =
    "usage: llama-kv-capture -m MODEL -f TEXT -o FILE [options]\n"
    "\n"
    "  llama-kv-capture -m model.gguf -f text.txt -o model.capture.gguf -l 0,5,-1 -c 2048\n"
    "\n"
    "  -c, --ctx N         tokens of the text, from its start (default: 2048 or all of it)\n"
    "  -l, --layers LIST   layers, counted from 0; -1 is the last one (default: all that cache keys)\n"
    "  -fa on|off          flash attention (default: off); the cache is f32 either way\n"
    "      --type f16|f32  of the stored queries and values (default: f16); keys are always f32\n"
    "      --pre-rope      the keys before RoPE too, with the parameters of RoPE\n"
    "  -t, --threads N     (default: the number of cores)\n"
    "  -ngl N              layers to keep on the GPU (default: all that fit, as in the other tools)\n"
    "  -v                  the log of the library\n"
    "\n"
    "exit: 0 written, 1 could not be made, 2 usage\n";

static std::string meta(const llama_model * model, const char * key) {
    char buf[256] = "";
    return llama_model_meta_val_str(model, key, buf, sizeof(buf)) > 0 ? buf : "";
}

static std::vector<int> parse_layers(kv_arguments & args) {
    const std::string spec = args.value();
    std::vector<int> res;
    std::stringstream parts(spec);
    std::string part;
    while (std::getline(parts, part, ',')) {
        char * end = nullptr;
        const long v = strtol(part.c_str(), &end, 10);
        if (part.empty() || *end != '\0' || v < -100000 || v > 100000) {
            args.error("--layers: '" + spec + "' is no list of layers such as 0,5,-1");
        }
        res.push_back((int) v);
    }
    if (res.empty()) {
        args.error("--layers: no layer is named");
    }
    return res;
}

static void run(llama_model * model, capture_info & info, collector & col, const std::vector<int> & wanted, int n_ctx, int n_threads) {
    info.arch       = meta(model, "general.architecture");
    info.model_name = meta(model, "general.name");
    info.n_layer    = llama_model_n_layer(model);

    if (llama_model_has_encoder(model)) {
        kv_fail("architecture %s has an encoder: only decoders are captured", info.arch.c_str());
    }
    for (const int v : wanted) {
        const int il = v < 0 ? v + info.n_layer : v;
        if (il < 0 || il >= info.n_layer) {
            kv_fail("there is no layer %d: the model has %d, 0 to %d", v, info.n_layer, info.n_layer - 1);
        }
        col.wanted.insert(il);
    }

    info.tokens = common_tokenize(llama_model_get_vocab(model), kv_read_text(info.text_path), true);
    const int n_train = llama_model_n_ctx_train(model);
    if (n_ctx > n_train) {
        kv_fail("-c %d: the model was trained on %d positions", n_ctx, n_train);
    }
    if (n_ctx > (int) info.tokens.size()) {
        kv_fail("-c %d: the text has %zu tokens only", n_ctx, info.tokens.size());
    }
    info.tokens.resize(std::min<size_t>(info.tokens.size(), n_ctx > 0 ? n_ctx : std::min(2048, n_train)));
    const int n = (int) info.tokens.size();

    llama_kv_condition_set("off");
    llama_context_params params = llama_context_default_params();
    params.n_ctx             = GGML_PAD(n, 256);
    params.n_batch           = N_UBATCH;
    params.n_ubatch          = N_UBATCH;
    params.n_seq_max         = 1;
    params.n_threads         = n_threads;
    params.n_threads_batch   = n_threads;
    params.type_k            = GGML_TYPE_F32;
    params.type_v            = GGML_TYPE_F32;
    params.flash_attn_type   = info.flash_attn ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
    params.swa_full          = true; // a cache of the window only would hold tokens in another order
    params.no_perf           = true;
    params.cb_eval           = collector::callback;
    params.cb_eval_user_data = &col;

    struct free_context { void operator()(llama_context * ctx) const { llama_free(ctx); } };
    std::unique_ptr<llama_context, free_context> ctx { llama_init_from_model(model, params) };
    if (!ctx) {
        kv_fail("no context of %d tokens could be made for this model (-v shows why)", n);
    }
    if (!llama_get_memory(ctx.get())) {
        kv_fail("architecture %s keeps no K cache: there is nothing to capture", info.arch.c_str());
    }

    for (int i0 = 0; i0 < n; i0 += N_UBATCH) {
        const int n_batch = std::min(N_UBATCH, n - i0);
        col.begin_batch(i0, n_batch);
        col.end_batch(llama_decode(ctx.get(), llama_batch_get_one(info.tokens.data() + i0, n_batch)));
        if (col.seen.empty()) {
            kv_fail("architecture %s keeps no K cache: there is nothing to capture", info.arch.c_str());
        }
        fprintf(stderr, "%d of %d tokens\n", i0 + n_batch, n);
    }
}

int main(int argc, char ** argv) {
    std::string path_out;
    std::vector<int> wanted;
    int n_ctx = 0;
    int n_threads = (int) std::max(1u, std::thread::hardware_concurrency());
    bool verbose = false;
    ggml_type type = GGML_TYPE_F16;
    capture_info info;
    collector col;

    llama_model_params mparams = llama_model_default_params();

    kv_arguments args(argc, argv, USAGE);
    while (args.next()) {
        if      (args.is("-m", "--model"))   { info.model_path = args.value(); }
        else if (args.is("-o", "--output"))  { path_out        = args.value(); }
        else if (args.is("-f", "--file"))    { info.text_path  = args.value(); }
        else if (args.is("-c", "--ctx"))     { n_ctx     = args.number(1); }
        else if (args.is("-l", "--layers"))  { wanted    = parse_layers(args); }
        else if (args.is("-fa"))             { info.flash_attn = args.choice("on", "off"); }
        else if (args.is("--type"))          { type = args.choice("f16", "f32") ? GGML_TYPE_F16 : GGML_TYPE_F32; }
        else if (args.is("--pre-rope"))      { col.pre_rope = true; }
        else if (args.is("-t", "--threads")) { n_threads = args.number(1); }
        else if (args.is("-ngl"))            { mparams.n_gpu_layers = args.number(0); }
        else if (args.is("-v"))              { verbose = true; }
        else                                 { args.unknown(); }
    }
    if (info.model_path.empty() || info.text_path.empty() || path_out.empty()) {
        args.error(info.model_path.empty() ? "no model is named (-m)" : info.text_path.empty() ? "no text is named (-f)" : "no output file is named (-o)");
    }

    if (!verbose) {
        kv_quiet_log();
    }
    llama_backend_init();
    ggml_backend_load_all();

    llama_model * model = llama_model_load_from_file(info.model_path.c_str(), mparams);
    if (model == nullptr) {
        fprintf(stderr, "error: the model %s cannot be loaded\n", info.model_path.c_str());
        return 1;
    }

    int rc = 0;
    try {
        run(model, info, col, wanted, n_ctx, n_threads);
        save_capture(path_out, info, col, type);
        fprintf(stderr, "written: %s\n", path_out.c_str());
    } catch (const std::exception & err) {
        fprintf(stderr, "error: %s\n", err.what());
        rc = 1;
    }

    llama_model_free(model);
    llama_backend_free();
    return rc;
}
