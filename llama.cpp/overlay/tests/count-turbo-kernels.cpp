// Runs one kernel of the turbo types a number of times, for counting its instructions in an emulator, where nothing can be timed:
// the difference of two counts is the kernel's alone (ci/neon-count.sh). Prints how many values one run handles. GGML_TURBO_ISA is the level.
//
//   count-turbo-kernels encode|decode|dot|rotate TYPE REPEAT
//   count-turbo-kernels attention TYPE TOKENS GROUP REPEAT     TYPE: of K and V, f16 too; values: of K and V, times tokens for a prompt

#include "ggml.h"
#include "ggml-backend.h"
#include "ggml-cpu.h"
#include "ggml-turbo.h"
#include "ggml-turbo-cpu.h"

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

static ggml_type type_of(const char * name) {
    for (int i = 0; i < GGML_TYPE_COUNT; ++i) {
        if (ggml_type_name((ggml_type) i) && strcmp(ggml_type_name((ggml_type) i), name) == 0) {
            return (ggml_type) i;
        }
    }
    fprintf(stderr, "%s: no such type\n", name);
    exit(2);
}

static std::vector<float> wave(size_t n) {
    std::vector<float> res(n);
    for (size_t i = 0; i < n; ++i) {
        res[i] = sinf(0.37f*(float) (i*i % 10007));
    }
    return res;
}

static int64_t run_codec(const std::string & kernel, ggml_type type, int repeat) {
    std::vector<ggml_turbo_cpu_codec> codecs(ggml_turbo_cpu_codecs(type, nullptr, 0));
    ggml_turbo_cpu_codecs(type, codecs.data(), (int) codecs.size());
    for (const auto & c : codecs) {
        if (strcmp(c.level, ggml_turbo_cpu_level()) != 0) {
            continue;
        }
        const int64_t d = ggml_blck_size(type), n = 64*d;
        const std::vector<float> x = wave(n);
        std::vector<float> y(n);
        std::vector<char> blocks(ggml_row_size(type, n));
        c.encode(x.data(), blocks.data(), n);
        float sum = 0.0f;
        for (int r = 0; r < repeat; ++r) {
            if (kernel == "encode") {
                c.encode(x.data(), blocks.data(), n);
            } else if (kernel == "decode") {
                c.decode(blocks.data(), y.data(), n);
            } else if (kernel == "dot") {
                sum += c.dot(blocks.data(), x.data(), n);
            } else if (kernel == "rotate") {
                for (int64_t i = 0; i < n; i += d) {
                    c.rotate(x.data() + i, x.data(), nullptr, y.data() + i, d, false);
                }
            } else {
                fprintf(stderr, "%s: no such kernel\n", kernel.c_str());
                exit(2);
            }
        }
        return std::isnan(sum + y[0]) ? 0 : n;
    }
    return 0;
}

static int64_t run_attention(ggml_type type, int64_t n_tokens, int64_t group, int repeat) {
    const int64_t d = ggml_is_turbo(type) ? ggml_blck_size(type) : 64, n_kv = 256;
    ggml_init_params params = { 16*ggml_tensor_overhead() + ggml_graph_overhead(), nullptr, true };
    ggml_context * ctx = ggml_init(params);
    ggml_backend_t backend = ggml_backend_cpu_init();
    ggml_backend_cpu_set_n_threads(backend, 1);

    ggml_tensor * q = ggml_new_tensor_3d(ctx, GGML_TYPE_F32, d, n_tokens, group);
    ggml_tensor * k = ggml_new_tensor_3d(ctx, type, d, n_kv, 1);
    ggml_tensor * v = ggml_new_tensor_3d(ctx, type, d, n_kv, 1);
    ggml_tensor * out = ggml_flash_attn_ext(ctx, q, k, v, nullptr, 0.125f, 0.0f, 0.0f);
    ggml_cgraph * gf = ggml_new_graph(ctx);
    ggml_build_forward_expand(gf, out);
    ggml_backend_buffer_t buf = ggml_backend_alloc_ctx_tensors(ctx, backend);

    const std::vector<float> x = wave(d*n_kv);
    for (int64_t i = 0; i < ggml_nelements(q); ++i) {
        ((float *) q->data)[i] = x[i % x.size()];
    }
    ggml_get_type_traits(type)->from_float_ref(x.data(), k->data, d*n_kv);
    ggml_get_type_traits(type)->from_float_ref(x.data(), v->data, d*n_kv);
    for (int r = 0; r < repeat; ++r) {
        if (ggml_backend_graph_compute(backend, gf) != GGML_STATUS_SUCCESS) {
            return 0;
        }
    }
    ggml_backend_buffer_free(buf);
    ggml_backend_free(backend);
    ggml_free(ctx);
    return 2*d*n_kv*n_tokens;
}

int main(int argc, char ** argv) {
    const bool attention = argc == 6 && strcmp(argv[1], "attention") == 0;
    const int repeat = argc == 4 || attention ? atoi(argv[argc - 1]) : 0;
    if (repeat < 1) {
        fprintf(stderr, "usage: count-turbo-kernels encode|decode|dot|rotate TYPE REPEAT, or attention TYPE TOKENS GROUP REPEAT\n");
        return 2;
    }
    const int64_t n = attention ? run_attention(type_of(argv[2]), atoi(argv[3]), atoi(argv[4]), repeat) : run_codec(argv[1], type_of(argv[2]), repeat);
    printf("%lld values at the level %s\n", (long long) n, ggml_turbo_cpu_level());
    return n > 0 ? 0 : 1;
}
