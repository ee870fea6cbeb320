// Microbenchmarks of the turbo kernels on the CPU backend: encode, decode, dot and rotate a value, as a share of memcpy and of the f16 kernel; attention of one
// token and of a prompt, as a ratio to f16. Rounds are interleaved and medians are compared. GGML_TURBO_ISA forces the level of the attention rows.
//
//   bench-turbo-kernels [-t THREADS] [-r ROUNDS] [-d HEAD_DIM] [-g GROUP] [-k HEADS_KV] [-n N_KV] [-p PROMPT] [-c 0|1]
//
// -p 1: no prompt; -c 0: attention only

#include "ggml.h"
#include "ggml-backend.h"
#include "ggml-cpu.h"
#include "ggml-turbo.h"
#include "ggml-turbo-cpu.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

struct options {
    int n_threads = 1, rounds = 11, d = 64, group = 3, n_head_kv = 3, n_kv = 4096, n_prompt = 256, codec = 1;
};

static double now_us() {
    return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

struct entry {
    std::string name;
    std::function<void()> run;
    std::vector<double> us;
};

static double median(std::vector<double> x) {
    std::sort(x.begin(), x.end());
    return x[x.size()/2];
}

// every entry once a round, in turn
static void measure(std::vector<entry> & entries, int rounds) {
    for (auto & e : entries) {
        e.run();
    }
    for (int r = 0; r < rounds; ++r) {
        for (auto & e : entries) {
            const double t = now_us();
            e.run();
            e.us.push_back(now_us() - t);
        }
    }
}

static std::vector<float> normal_values(size_t n) {
    std::mt19937 rng(1);
    std::normal_distribution<float> normal;
    std::vector<float> x(n);
    for (float & v : x) {
        v = normal(rng);
    }
    return x;
}

class attention {
public:
    attention(const options & o, ggml_type type, int n_tokens) {
        ggml_init_params ip = { 16*ggml_tensor_overhead() + ggml_graph_overhead(), nullptr, true };
        ctx = ggml_init(ip);
        backend = ggml_backend_cpu_init();
        ggml_backend_cpu_set_n_threads(backend, o.n_threads);

        ggml_tensor * q = ggml_new_tensor_3d(ctx, GGML_TYPE_F32, o.d, o.group*o.n_head_kv, n_tokens);
        ggml_tensor * k = ggml_new_tensor_2d(ctx, type, o.d*o.n_head_kv, o.n_kv);
        ggml_tensor * v = ggml_new_tensor_2d(ctx, type, o.d*o.n_head_kv, o.n_kv);
        ggml_tensor * m = ggml_new_tensor_2d(ctx, GGML_TYPE_F16, o.n_kv, n_tokens);
        auto heads = [&](ggml_tensor * c) { return ggml_view_3d(ctx, c, o.d, o.n_kv, o.n_head_kv, c->nb[1], ggml_row_size(type, o.d), 0); };
        ggml_tensor * out = ggml_flash_attn_ext(ctx, ggml_permute(ctx, q, 0, 2, 1, 3), heads(k), heads(v), m, 1.0f/sqrtf((float) o.d), 0.0f, 0.0f);
        ggml_prec_set_acc(out, GGML_PREC_F32);
        gf = ggml_new_graph(ctx);
        ggml_build_forward_expand(gf, out);
        buf = ggml_backend_alloc_ctx_tensors(ctx, backend);

        const auto x = normal_values(ggml_nelements(k));
        for (ggml_tensor * c : { k, v }) {
            ggml_get_type_traits(type)->from_float_ref(x.data(), c->data, ggml_nelements(c));
        }
        const auto xq = normal_values(ggml_nelements(q));
        memcpy(q->data, xq.data(), ggml_nbytes(q));
        for (int i = 0; i < n_tokens; ++i) {
            for (int j = 0; j < o.n_kv; ++j) {
                ((ggml_fp16_t *) m->data)[(int64_t) i*o.n_kv + j] = ggml_fp32_to_fp16(j > o.n_kv - n_tokens + i ? -INFINITY : 0.0f);
            }
        }
    }

    ~attention() {
        ggml_backend_buffer_free(buf);
        ggml_backend_free(backend);
        ggml_free(ctx);
    }

    void run() { ggml_backend_graph_compute(backend, gf); }

private:
    ggml_context * ctx;
    ggml_backend_t backend;
    ggml_backend_buffer_t buf;
    ggml_cgraph * gf;
};

static void bench_attention(const options & o, int n_tokens) {
    std::vector<entry> entries;
    std::vector<std::unique_ptr<attention>> runs;
    for (ggml_type family : { GGML_TYPE_F16, GGML_TYPE_Q8_0, GGML_TYPE_TURBO3, GGML_TYPE_TURBO2, GGML_TYPE_TURBO4 }) {
        const ggml_type type = ggml_turbo_resolve(family, o.d);
        runs.push_back(std::make_unique<attention>(o, type, n_tokens));
        entries.push_back({ ggml_type_name(type), [a = runs.back().get()] { a->run(); }, {} });
    }
    measure(entries, o.rounds);
    const double f16 = median(entries[0].us);
    for (auto & e : entries) {
        const double us = median(e.us);
        printf("attention  %4d tokens, %6d keys, d %3d, %dx%d heads, %d threads  %-10s %10.1f us  %7.3f ns/(key*head*token)  %5.3f x f16  (fastest %.1f us)\n", n_tokens, o.n_kv, o.d,
            o.n_head_kv, o.group, o.n_threads, e.name.c_str(), us, 1e3*us/((double) o.n_kv*o.n_head_kv*o.group*n_tokens), us/f16, *std::min_element(e.us.begin(), e.us.end()));
    }
}

static void bench_codec(const options & o) {
    constexpr int64_t n = 64*1024*7*5*3; // whole blocks of every size
    const auto x = normal_values(n);
    std::vector<float> y(n);
    std::vector<uint8_t> z(n);
    std::vector<ggml_fp16_t> h(n);
    const auto * f16 = ggml_get_type_traits_cpu(GGML_TYPE_F16);
    float sum = 0.0f;

    std::vector<entry> entries;
    entries.push_back({ "memcpy f32", [&] { memcpy(y.data(), x.data(), n*sizeof(float)); }, {} });
    entries.push_back({ "f16 encode", [&] { f16->from_float(x.data(), h.data(), n); }, {} });
    entries.push_back({ "f16 decode", [&] { ggml_cpu_fp16_to_fp32(h.data(), y.data(), n); }, {} });
    entries.push_back({ "f16 dot",    [&] { float s = 0.0f; for (int64_t i = 0; i < n; i += o.d) { float r; f16->vec_dot(o.d, &r, 0, h.data() + i, 0, h.data(), 0, 1); s += r; } sum += s; }, {} });

    for (ggml_type family : { GGML_TYPE_TURBO2, GGML_TYPE_TURBO3, GGML_TYPE_TURBO4 }) {
        const ggml_type type = ggml_turbo_resolve(family, o.d);
        std::vector<ggml_turbo_cpu_codec> codecs(ggml_turbo_cpu_codecs(type, nullptr, 0));
        ggml_turbo_cpu_codecs(type, codecs.data(), (int) codecs.size());
        for (const auto & c : codecs) {
            const std::string name = std::string(ggml_type_name(type)) + " " + c.level;
            const size_t row = ggml_row_size(type, o.d);
            entries.push_back({ name + " encode", [&, c]      { for (int64_t i = 0; i < n; i += o.d) { c.encode(x.data() + i, z.data() + i/o.d*row, o.d); } }, {} });
            entries.push_back({ name + " decode", [&, c]      { c.decode(z.data(), y.data(), n/o.d*o.d); }, {} });
            entries.push_back({ name + " dot",    [&, c, row] { float s = 0.0f; for (int64_t i = 0; i < n; i += o.d) { s += c.dot(z.data() + i/o.d*row, x.data(), o.d); } sum += s; }, {} });
            if (family == GGML_TYPE_TURBO3) {
                entries.push_back({ std::string("rotate ") + c.level, [&, c] { for (int64_t i = 0; i + o.d <= n; i += o.d) { c.rotate(x.data() + i, x.data(), nullptr, y.data() + i, o.d, false); } }, {} });
            }
        }
    }
    for (int i = 0; i < 1; ++i) {
        measure(entries, std::max(3, o.rounds/3));
    }
    const double copy = median(entries[0].us);
    for (const auto & e : entries) {
        const std::string what = e.name.substr(e.name.rfind(' ') + 1);
        double ref = 0.0;
        for (int i = 1; i < 4; ++i) {
            if (entries[i].name == "f16 " + what) {
                ref = median(entries[i].us);
            }
        }
        const double us = median(e.us);
        printf("codec      %-26s %7.3f ns/value  %6.2f x memcpy", e.name.c_str(), 1e3*us/n, us/copy);
        ref > 0.0 ? printf("  %6.2f x f16 %s\n", us/ref, what.c_str()) : printf("\n");
    }
    if (sum == 12345.0f) { // the sums are used
        printf("\n");
    }
}

int main(int argc, char ** argv) {
    options o;
    for (int i = 1; i < argc; i += 2) {
        int * value = nullptr;
        if (argv[i][0] == '-' && argv[i][1] && !argv[i][2]) {
            switch (argv[i][1]) {
                case 't': value = &o.n_threads; break;
                case 'r': value = &o.rounds;    break;
                case 'd': value = &o.d;         break;
                case 'g': value = &o.group;     break;
                case 'k': value = &o.n_head_kv; break;
                case 'n': value = &o.n_kv;      break;
                case 'p': value = &o.n_prompt;  break;
                case 'c': value = &o.codec;     break;
            }
        }
        if (!value || i + 1 == argc || (*value = atoi(argv[i + 1])) < (value == &o.codec ? 0 : 1)) {
            fprintf(stderr, "usage: %s [-t THREADS] [-r ROUNDS] [-d HEAD_DIM] [-g GROUP] [-k HEADS_KV] [-n N_KV] [-p PROMPT] [-c 0|1], each 1 or more\n", argv[0]);
            return 2;
        }
    }
    if (ggml_turbo_resolve(GGML_TYPE_TURBO3, o.d) == GGML_TYPE_COUNT) {
        fprintf(stderr, "%s: there is no turbo type for head dimension %d\n", argv[0], o.d);
        return 2;
    }
    printf("level %s\n", ggml_turbo_cpu_level());
    if (o.codec) {
        bench_codec(o);
    }
    bench_attention(o, 1);
    if (o.n_prompt > 1) {
        bench_attention(o, o.n_prompt);
    }
    return 0;
}
