// A device that lacks kernels for turbo caches: a stand-in for a GPU, whose memory and arithmetic are the CPU's, and whose list of operations
// is the test's. llama.cpp gives it a model; the log must name what the scheduler took back to the CPU, in one line, and a device that
// cannot store into the cache must be refused.
//
// usage: test-turbo-fallback MODEL

#include "common.h"
#include "ggml-backend-impl.h"
#include "ggml-cpu.h"
#include "ggml-turbo.h"
#include "llama-cpp.h"
#include "llama-turbokv.h"

#include <cmath>
#include <cstdio>
#include <set>
#include <string>
#include <vector>

//
// the device
//

static std::set<ggml_op> missing; // no kernels for these on turbo types
static int64_t n_computed = 0;    // nodes that the device ran

static ggml_backend_dev_t cpu_device() {
    return ggml_backend_dev_by_type(GGML_BACKEND_DEVICE_TYPE_CPU);
}

static const char * stub_name(ggml_backend_dev_t)    { return "STUB0"; }
static const char * stub_description(ggml_backend_dev_t) { return "stand-in for a GPU"; }

static void stub_memory(ggml_backend_dev_t, size_t * free, size_t * total) {
    *free = *total = (size_t) 1 << 32;
}

static enum ggml_backend_dev_type stub_type(ggml_backend_dev_t) { return GGML_BACKEND_DEVICE_TYPE_GPU; }

static void stub_props(ggml_backend_dev_t dev, ggml_backend_dev_props * props) {
    *props = {};
    props->name        = stub_name(dev);
    props->description = stub_description(dev);
    props->type        = stub_type(dev);
    stub_memory(dev, &props->memory_free, &props->memory_total);
}

static bool stub_supports_op(ggml_backend_dev_t, const ggml_tensor * op) {
    bool turbo = op->op == GGML_OP_TURBO_ROTATE || ggml_is_turbo(op->type);
    for (int i = 0; i < GGML_MAX_SRC; ++i) {
        turbo = turbo || (op->src[i] && ggml_is_turbo(op->src[i]->type));
    }
    return !(turbo && missing.count(op->op)) && ggml_backend_dev_supports_op(cpu_device(), op);
}

static ggml_backend_buffer_type_t stub_buffer_type(ggml_backend_dev_t dev);

static bool stub_supports_buft(ggml_backend_dev_t dev, ggml_backend_buffer_type_t buft) { return buft == stub_buffer_type(dev); }

static ggml_backend_buffer_t stub_alloc(ggml_backend_buffer_type_t buft, size_t size) {
    ggml_backend_buffer_t buffer = ggml_backend_buft_alloc_buffer(ggml_backend_cpu_buffer_type(), size);
    if (buffer) {
        buffer->buft = buft;
    }
    return buffer;
}

static ggml_backend_buffer_type_t stub_buffer_type(ggml_backend_dev_t dev) {
    static ggml_backend_buffer_type type = {
        {
            [](ggml_backend_buffer_type_t) { return "STUB0"; },
            stub_alloc,
            [](ggml_backend_buffer_type_t) { return ggml_backend_buft_get_alignment(ggml_backend_cpu_buffer_type()); },
            nullptr,
            nullptr,
            nullptr, // not the host's memory: the scheduler has to copy
        },
        dev,
        nullptr,
    };
    return &type;
}

static ggml_status stub_compute(ggml_backend_t backend, ggml_cgraph * graph) {
    n_computed += ggml_graph_n_nodes(graph);
    return ggml_backend_graph_compute((ggml_backend_t) backend->context, graph);
}

static ggml_backend_t stub_init(ggml_backend_dev_t dev, const char *) {
    static ggml_guid guid = { 't', 'u', 'r', 'b', 'o', ' ', 's', 't', 'u', 'b' };
    ggml_backend_i iface = {};
    iface.get_name      = [](ggml_backend_t) { return "STUB0"; };
    iface.free          = [](ggml_backend_t b) { ggml_backend_free((ggml_backend_t) b->context); delete b; };
    iface.graph_compute = stub_compute;
    return new ggml_backend { &guid, iface, dev, ggml_backend_dev_init(cpu_device(), nullptr) };
}

static ggml_backend_device stub = {};

static ggml_backend_reg stub_reg = {
    GGML_BACKEND_API_VERSION,
    {
        [](ggml_backend_reg_t) { return "STUB"; },
        [](ggml_backend_reg_t) -> size_t { return 1; },
        [](ggml_backend_reg_t, size_t) -> ggml_backend_dev_t { return &stub; },
        nullptr,
    },
    nullptr,
};

static void register_stub() {
    stub.iface.get_name        = stub_name;
    stub.iface.get_description = stub_description;
    stub.iface.get_memory      = stub_memory;
    stub.iface.get_type        = stub_type;
    stub.iface.get_props       = stub_props;
    stub.iface.init_backend    = stub_init;
    stub.iface.get_buffer_type = stub_buffer_type;
    stub.iface.supports_op     = stub_supports_op;
    stub.iface.supports_buft   = stub_supports_buft;
    stub.reg                   = &stub_reg;
    ggml_backend_register(&stub_reg);
}

//
// the test
//

static std::vector<std::string> warnings; // of a fallback
static std::string error;

static void log_lines(ggml_log_level level, const char * text, void *) {
    const std::string line(text);
    if (level == GGML_LOG_LEVEL_WARN && line.find("turbo operations fall back: ") != std::string::npos) {
        warnings.push_back(line);
    }
    if (level == GGML_LOG_LEVEL_ERROR) {
        error += line;
    }
}

struct settings {
    ggml_type    type      = GGML_TYPE_TURBO3;
    bool         offload   = true;
    const char * condition = "off";
};

static llama_context_ptr make_context(llama_model * model, const settings & s) {
    llama_context_params params = llama_context_default_params();
    params.n_ctx           = 256;
    params.n_batch         = params.n_ubatch        = 64;
    params.n_threads       = params.n_threads_batch = 2;
    params.type_k          = params.type_v          = s.type;
    params.offload_kqv     = s.offload;
    params.flash_attn_type = LLAMA_FLASH_ATTN_TYPE_ENABLED;
    warnings.clear();
    error.clear();
    llama_kv_condition_set(s.condition);
    return llama_context_ptr(llama_init_from_model(model, params));
}

static std::vector<float> logits(llama_context * ctx) {
    const int n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(llama_get_model(ctx)));
    common_batch batch(ctx);
    for (int i = 0; i < 32; ++i) {
        batch.add(1 + 7*i % (n_vocab - 1), i, 0, i == 31);
    }
    if (llama_process(ctx, LLAMA_PROCESS_TYPE_DECODE, batch.get()) != 0) {
        return {};
    }
    const float * l = llama_get_logits_ith(ctx, -1);
    return std::vector<float>(l, l + n_vocab);
}

static int n_failed = 0, n_ran = 0;

static void expect(bool ok, const char * what, const std::string & found) {
    ++n_ran;
    n_failed += !ok;
    printf("%-4s %s%s%s\n", ok ? "ok" : "FAIL", what, ok ? "" : ": ", ok ? "" : found.c_str());
}

static bool near(const std::vector<float> & a, const std::vector<float> & b) {
    double err = 0, norm = 0;
    for (size_t i = 0; i < a.size() && i < b.size(); ++i) {
        err  += ((double) a[i] - b[i])*((double) a[i] - b[i]);
        norm += (double) b[i]*b[i];
    }
    return !a.empty() && a.size() == b.size() && err <= 1e-8*norm;
}

static std::string joined() {
    std::string res;
    for (const auto & line : warnings) {
        res += line;
    }
    return std::to_string(warnings.size()) + " lines: " + res;
}

int main(int argc, char ** argv) {
    if (argc != 2) {
        fprintf(stderr, "usage: test-turbo-fallback MODEL\n");
        return 2;
    }
    llama_log_set(log_lines, nullptr);
    llama_backend_init();
    register_stub();

    auto load = [&](int n_gpu_layers) {
        llama_model_params params = llama_model_default_params();
        params.n_gpu_layers = n_gpu_layers;
        return llama_model_ptr(llama_model_load_from_file(argv[1], params));
    };
    auto on_cpu = load(0), on_stub = load(99);
    if (!on_cpu || !on_stub) {
        fprintf(stderr, "error: cannot load %s: %s\n", argv[1], error.c_str());
        return 2;
    }
    const int n_layer = llama_model_n_layer(on_stub.get());

    auto cpu = make_context(on_cpu.get(), {});
    expect(warnings.empty(), "a cache on the CPU falls nowhere", joined());
    const auto want = logits(cpu.get());

    // rotations of a layer: K, V, Q and the output
    const struct { const char * name; std::set<ggml_op> missing; std::string attention, rotation; } cases[] = {
        { "all kernels there",       {},                                                 "", "" },
        { "no attention",            { GGML_OP_FLASH_ATTN_EXT },                         std::to_string(n_layer) + " FLASH_ATTN_EXT on CPU", "" },
        { "no rotation",             { GGML_OP_TURBO_ROTATE },                           "", std::to_string(4*n_layer) + " TURBO_ROTATE on CPU" },
        { "no attention, rotation",  { GGML_OP_FLASH_ATTN_EXT, GGML_OP_TURBO_ROTATE },   std::to_string(n_layer) + " FLASH_ATTN_EXT on CPU, ", std::to_string(4*n_layer) + " TURBO_ROTATE on CPU" },
    };
    for (const auto & c : cases) {
        missing = c.missing;
        auto ctx = make_context(on_stub.get(), {});
        const std::string line = warnings.empty() ? "" : warnings[0];
        if (c.missing.empty()) {
            expect(warnings.empty(), c.name, joined());
        } else {
            expect(warnings.size() == 1 && line.find("fall back: " + c.attention + c.rotation + "; the cache is on STUB0") != std::string::npos &&
                    line.find("--no-kv-offload") != std::string::npos, c.name, joined());
        }
        n_computed = 0;
        const bool same = ctx && near(logits(ctx.get()), want);
        expect(same && n_computed > 0, "  the same logits, partly from the device", same ? "the device computed nothing" : "other logits");
    }

    missing = { GGML_OP_FLASH_ATTN_EXT, GGML_OP_TURBO_ROTATE };
    {
        auto ctx = make_context(on_stub.get(), { GGML_TYPE_TURBO3, false });
        expect(ctx && warnings.empty(), "a cache kept on the CPU falls nowhere", joined());
    }
    {
        auto ctx = make_context(on_stub.get(), { GGML_TYPE_F16, true });
        expect(ctx && warnings.empty(), "an f16 cache is none of ours", joined());
    }
    {
        auto ctx = make_context(on_stub.get(), { GGML_TYPE_Q8_0, true, "on" });
        expect(ctx && warnings.size() == 1 && warnings[0].find(std::to_string(2*n_layer) + " TURBO_ROTATE on CPU") != std::string::npos,
                "conditioned keys of another type are ours", joined());
    }
    missing = { GGML_OP_SET_ROWS };
    {
        auto ctx = make_context(on_stub.get(), {});
        expect(!ctx && error.find("turbo3") != std::string::npos && error.find("device STUB0 has no kernels for it; use --no-kv-offload") != std::string::npos,
                "a device that cannot store into the cache is refused", error);
    }
    {
        auto ctx = make_context(on_stub.get(), { GGML_TYPE_TURBO3, false });
        expect(ctx != nullptr, "  and keeps it on the CPU when told so", error);
    }

    printf("%d checks, %d failed\n", n_ran, n_failed);
    return n_failed == 0 ? 0 : 1;
}
