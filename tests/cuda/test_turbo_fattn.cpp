// Checks the turbo attention kernels on the CPU against double precision on the decoded cache: an error of at most twice that of plain
// f32 arithmetic (the tensor core kernel: of f32 sums of f16 operands), in every order of threads the same bits, no fault; NaN scales; and how many bytes a decoded token reads.
//
//   test-turbo-fattn [-v] [quick | traffic]    quick: few small cases (planted faults run it); traffic: only the bytes

#include "attention.h"

#include "common.cuh"
#include "turbo/turbo-cuda.h"

#include <string>

using namespace attention;

static bool verbose = false;

static ggml_backend_cuda_context & cuda() {
    static ggml_backend_cuda_context c(0);
    return c;
}

static void compute(ggml_tensor * out) {
    if (!ggml_cuda_turbo_compute(cuda(), out)) {
        check::that(false, "not computed");
    }
}

static ggml_type resolve(ggml_type type, int64_t d) {
    if (type == GGML_TYPE_Q8_0 && d % 32 != 0) {
        return GGML_TYPE_F16;
    }
    return ggml_turbo_resolve(type, d);
}

static double worst_ratio = 0.0, worst_ratio_mma = 0.0;

static void run_case(const test_case & c, unsigned seed, const char * kernel, bool orders) {
    const std::string what = std::string(kernel) + " " + c.str();
    setenv("GGML_TURBO_FATTN", kernel, 1);
    fixture f(c, seed);
    if (!check::that(ggml_cuda_turbo_owns(f.out) && ggml_cuda_turbo_supports(f.out), "%s: no kernel", what.c_str())) {
        return;
    }
    emu::set_order(emu::order::forward);
    const auto y = f.run(compute);
    if (!check::no_faults(what.c_str())) {
        return;
    }
    size_t shared = 0;
    for (const auto & l : emu::take_launches()) {
        shared = std::max(shared, l.dynamic_shared + l.static_shared);
    }
    check::that(shared > 0 && shared <= 100*1024, "%s: a block has %zu bytes of shared memory, more than 100 KiB", what.c_str(), shared);
    const bool mma = strcmp(kernel, "mma") == 0;
    const errors e = measure(f, y, mma);
    const double ratio = e.kernel/std::max(e.plain, ERROR_FLOOR);
    (mma ? worst_ratio_mma : worst_ratio) = std::max(mma ? worst_ratio_mma : worst_ratio, ratio);
    const bool nothing = c.mask == MASKED_ROWS && c.n_kv == 1; // the only key is masked: the output is zero
    check::that(ratio <= 2.0 && (nothing || e.control > 1e-3), "%s: error %.3g, plain %.3g, control %.3g", what.c_str(), e.kernel, e.plain, e.control);
    if (verbose) {
        printf("%s: error %.3g, plain %.3g, control %.3g\n", what.c_str(), e.kernel, e.plain, e.control);
        fflush(stdout);
    }
    for (auto order : { emu::order::reverse, emu::order::shuffled }) {
        if (orders) {
            emu::set_order(order, seed);
            const auto z = f.run(compute);
            check::that(memcmp(y.data(), z.data(), y.size()*sizeof(float)) == 0, "%s: the order of threads changes the result", what.c_str());
            check::no_faults(what.c_str());
        }
    }
    emu::set_order(emu::order::forward);
}

// A masked key whose scale is no number must not show, one that is attended to must.
static void test_nan(ggml_type type, const char * kernel) {
    setenv("GGML_TURBO_FATTN", kernel, 1);
    for (bool of_v : { false, true }) {
        for (bool masked : { false, true }) {
            const int64_t d = ggml_blck_size(type);
            fixture f({ d, d, 100, 2, 1, 3, 1, type, type, false, CAUSAL, false, 0.0f, 0.0f }, 1);
            f.set_scale(of_v ? f.v : f.k, 50, 0x7E00);
            for (int i = 0; masked && i < 2; ++i) {
                f.set_mask(i, 50, -INFINITY);
            }
            bool finite = true;
            for (float x : f.run(compute)) {
                finite = finite && std::isfinite(x);
            }
            check::that(finite == masked, "%s %s: a %s of NaN scale, %s: the output is %s", kernel, ggml_type_name(type), of_v ? "value" : "key", masked ? "masked" : "attended to", finite ? "finite" : "not finite");
            check::no_faults("NaN scale");
        }
    }
}

static const struct { int64_t dk, dv; bool v_of_k; } dims[] = {
    { 64, 64, false }, { 80, 80, false }, { 96, 96, false }, { 112, 112, false }, { 128, 128, false }, { 256, 256, false }, { 512, 512, false }, { 576, 512, true }, { 192, 128, false },
};

static const ggml_type types[][2] = {
    { GGML_TYPE_TURBO3, GGML_TYPE_TURBO3 }, { GGML_TYPE_TURBO2, GGML_TYPE_TURBO2 }, { GGML_TYPE_TURBO4, GGML_TYPE_TURBO4 }, { GGML_TYPE_TURBO4, GGML_TYPE_TURBO2 },
    { GGML_TYPE_TURBO3, GGML_TYPE_F16 }, { GGML_TYPE_F16, GGML_TYPE_TURBO3 }, { GGML_TYPE_TURBO4, GGML_TYPE_Q8_0 }, { GGML_TYPE_Q8_0, GGML_TYPE_TURBO2 },
};

static test_case make_case(size_t id, size_t it, int64_t n_kv, int64_t n_tokens, int64_t group, unsigned count) {
    test_case c = {};
    c.dk = dims[id].dk; c.dv = dims[id].dv; c.v_of_k = dims[id].v_of_k;
    c.n_kv = n_kv; c.n_tokens = n_tokens;
    c.n_head_kv = c.v_of_k ? 1 : 2;
    c.group     = group;
    c.n_stream  = 1 + count/3 % 2;
    c.type_k = resolve(types[it][0], c.dk);
    c.type_v = c.v_of_k ? c.type_k : resolve(types[it][1], c.dv);
    c.mask  = (mask_type) (count % N_MASKS);
    c.sinks = count % 7 < 2;
    c.softcap  = count % 11 < 2 ? 5.0f : 0.0f;
    c.max_bias = c.mask != NO_MASK && count % 3 == 1 ? 8.0f : 0.0f;
    return c;
}

static void test_all() {
    const bool fast = !emu::instrumented();
    // n_kv, n_tokens, group. Vec: up to 8 query rows of a KV head; lengths below, at, and off multiples of the tiles
    const int64_t vec_sizes[][3]  = { { 1, 1, 4 }, { 33, 1, 8 }, { 128, 2, 4 }, { 301, 1, 3 }, { 63, 3, 1 }, { 513, 1, 4 } };
    const int64_t tile_sizes[][3] = { { 1, 5, 3 }, { 31, 11, 4 }, { 64, 33, 1 }, { 301, 3, 8 }, { 129, 17, 1 } };
    const int nsms[] = { 4, 1, 132 }; // multiprocessors: in how many runs the keys are cut
    unsigned count = 0;
    for (size_t id = 0; id < sizeof(dims)/sizeof(dims[0]); ++id) {
        for (size_t it = 0; it < 8; ++it) {
            if (dims[id].v_of_k && types[it][0] != types[it][1]) {
                continue;
            }
            ++count;
            // the checked variant costs more: one size a pair
            const size_t n_vec = sizeof(vec_sizes)/sizeof(vec_sizes[0]), n_tile = sizeof(tile_sizes)/sizeof(tile_sizes[0]);
            for (size_t i = 0; i < (fast ? 3 : 1); ++i) {
                emu::device.nsm = nsms[(count + i) % 3];
                const auto & s = vec_sizes[(count + 2*i) % n_vec];
                run_case(make_case(id, it, s[0], s[1], s[2], count + 2*i), count, "vec", fast);
            }
            for (size_t i = 0; i < (fast ? 2 : 1); ++i) {
                emu::device.nsm = nsms[(count + i) % 3];
                const auto & s = tile_sizes[(count + 2*i) % n_tile];
                run_case(make_case(id, it, s[0], s[1], s[2], count + i), count, "tile", fast);
            }
            // tensor cores: d <= 256, one mask for all heads
            test_case c = make_case(id, it, tile_sizes[count % n_tile][0], tile_sizes[count % n_tile][1], tile_sizes[count % n_tile][2], count);
            if (c.dk <= 256 && c.mask != BIAS) {
                run_case(c, count, "mma", fast);
            }
        }
    }
    // one and two rows have kernels of their own
    for (size_t id = 0; id < sizeof(dims)/sizeof(dims[0]); ++id) {
        for (int64_t group : { 1, 2 }) {
            test_case c = make_case(id, id % 3, 140, 1, group, ++count);
            c.n_head_kv = 1;
            run_case(c, count, "vec", fast);
        }
    }
    emu::device.nsm = 4;
    printf("tensor cores: largest error: %.2f times that of f32 sums of f16 operands\n", worst_ratio_mma);
    printf("largest error: %.2f times that of plain f32 arithmetic (at least %g)\n", worst_ratio, ERROR_FLOOR);
#define X(ID, ENUM, NAME, BITS, BLOCK) test_nan(GGML_TYPE_##ENUM, ID % 2 ? "vec" : "tile");
    GGML_TURBO_TYPES(X)
#undef X
}

static void test_quick() {
    run_case(make_case(0, 0, 97, 1, 4, 6), 1, "vec", true);
    run_case(make_case(0, 0, 97, 9, 4, 6), 1, "tile", true);
    emu::device.nsm = 132;
    run_case(make_case(0, 0, 301, 1, 4, 6), 1, "vec", true);
}

// One decoded token at depth n, 8 KV heads, 132 multiprocessors: what is read of each buffer, in packed caches. docs/cuda.md has the figures.
static void test_traffic() {
    if (!emu::instrumented()) {
        return;
    }
    unsetenv("GGML_TURBO_FATTN");
    const emu::device_props device = emu::device;
    emu::device.nsm = 132;
    emu::device.l2  = 132*(64 << 10); // 64 KiB a multiprocessor: a GTX 1660 has 70, an RTX 3090 75, an H200 388
    // blocks: those that read each byte of the cache
    const struct { const char * kernel; int64_t dk, dv, n_head_kv, group; ggml_type type; bool v_of_k; double blocks; } cases[] = {
        { "vec",  128, 128, 8,  4, GGML_TYPE_TURBO3, false, 1.0 }, { "vec",  128, 128, 8,  4, GGML_TYPE_TURBO4, false, 1.0 },
        { "vec",  128, 128, 8,  1, GGML_TYPE_TURBO2, false, 1.0 }, { "vec",   64,  64, 8,  3, GGML_TYPE_TURBO3, false, 1.0 },
        { "vec",  256, 256, 8,  4, GGML_TYPE_TURBO3, false, 1.0 }, { "vec",  128, 128, 8,  8, GGML_TYPE_TURBO4, false, 1.0 },
        { "vec",  128, 128, 8,  8, GGML_TYPE_TURBO2, false, 1.0 }, { "mma",  128, 128, 8, 16, GGML_TYPE_TURBO3, false, 1.0 },
        { "tile", 576, 512, 1, 16, GGML_TYPE_TURBO3, true,  2.0 }, // MLA of 16 heads: 8 rows a block
    };
    printf("bytes read for a token, of the packed cache's: by blocks, each byte once a block, and from DRAM\n"
           "      dk  dv heads group type        keys blocks   K + V   queries  mask   partial results  all    DRAM\n");
    for (const auto & x : cases) {
        for (int64_t n_kv : { 1024, 4096, 32768 }) {
            fixture f({ x.dk, x.dv, n_kv, 1, x.n_head_kv, x.group, 1, resolve(x.type, x.dk), resolve(x.type, x.dv), x.v_of_k, CAUSAL, false, 0.0f, 0.0f }, 1);
            emu::reset_traffic();
            emu::take_launches();
            f.run(compute);
            check::no_faults("traffic");
            const auto attention = emu::take_launches().at(0);
            check::that(attention.kernel.find(x.kernel) != std::string::npos, "%s: %s runs, not %s", f.c.str().c_str(), attention.kernel.c_str(), x.kernel);
            std::vector<std::pair<int, emu::traffic>> parts = { // column, bytes
                { 0, emu::traffic_of(f.k->data) }, { 1, emu::traffic_of(f.q->data) }, { 2, emu::traffic_of(f.mask->data) }, { 3, emu::traffic_of_pool() },
            };
            if (!x.v_of_k) {
                parts.push_back({ 0, emu::traffic_of(f.v->data) });
            }
            const double cache = (double) f.packed_bytes();
            double by_block[4] = {}, all = 0.0, dram = 0.0;
            for (const auto & [column, t] : parts) {
                by_block[column] += t.read.by_block/cache;
                all  += t.read.by_block/cache;
                dram += t.read.dram/cache;
            }
            printf("%-4s %3d %3d %5d %5d %-10s %5d %6u   %.3f   %.3f    %.3f  %.3f            %.3f  %.3f\n", x.kernel, (int) x.dk, (int) x.dv, (int) x.n_head_kv, (int) x.group,
                ggml_type_name(f.c.type_k), (int) n_kv, attention.grid[0]*attention.grid[1]*attention.grid[2], by_block[0], by_block[1], by_block[2], by_block[3], all, dram);
            fflush(stdout);
            check::that(by_block[0] == x.blocks, "%s: blocks read the cache %.3f times, not %.0f", f.c.str().c_str(), by_block[0], x.blocks);
            // At 1024 keys, MLA's queries (16 heads x 576 f32) alone are more than a tenth of the cache that these heads share: no kernel can read less than
            // both once. Elsewhere the bar is 1.1.
            const double queries = (double) ggml_nbytes(f.q)/cache, limit = queries > 0.1 ? 1.1 + queries : 1.1;
            check::that(dram <= limit, "%s: %.3f of the packed cache's bytes come from DRAM, more than %.3f", f.c.str().c_str(), dram, limit);
        }
    }
    emu::device = device;
}

int main(int argc, char ** argv) {
    std::string what;
    for (int i = 1; i < argc; ++i) {
        if (std::string(argv[i]) == "-v") { verbose = true; } else { what = argv[i]; }
    }
    if (what == "quick") {
        test_quick();
    } else if (what == "traffic") {
        test_traffic();
    } else {
        test_all();
        test_traffic();
    }
    return check::finish("turbo attention");
}
