// Proves the emulator: planted faults are seen and named, sound kernels are not blamed, every thread order gives the sound result.

#include "check.h"
#include "kernels/faults.h"

#include "ggml.h"

#include <random>
#include <string>

static bool has(const std::vector<emu::fault> & f, const char * kind) {
    for (const auto & x : f) {
        if (x.kind == kind) {
            return true;
        }
    }
    return false;
}

static void expect(const char * what, const char * kind, bool seen_only_when_checked) {
    const auto f = emu::take_faults();
    if (seen_only_when_checked && !emu::instrumented()) {
        return;
    }
    if (!check::that(has(f, kind), "%s: no fault '%s' (%zu others)", what, kind, f.size())) {
        emu::print_faults(f);
    }
}

int main() {
    const int n = 150; // no multiple of the block
    std::vector<float> ref(n);
    float * x = (float *) emu::dev_alloc(n*sizeof(float), "x");
    float * y = (float *) emu::dev_alloc(n*sizeof(float), "y");
    for (int i = 0; i < n; ++i) {
        x[i] = ref[n - 1 - i] = (float) i;
    }

    for (auto order : { emu::order::forward, emu::order::reverse, emu::order::shuffled }) {
        emu::set_order(order, 7);

        memset(y, 0, n*sizeof(float));
        reverse_rows(x, y, n, planted::none);
        check::no_faults("reverse");
        check::that(memcmp(y, ref.data(), n*sizeof(float)) == 0, "reverse: wrong result");

        warp_sum(x, y, planted::none);
        check::no_faults("warp sum");
        check::that(y[13] == 31*16, "warp sum: %g", y[13]);

        same_value(y);
        check::no_faults("two stores of one value");
    }
    emu::set_order(emu::order::forward);

    reverse_rows(x, y, n, planted::load_past_end);
    expect("load past the end", "out-of-bounds", true);
    reverse_rows(x, y, n, planted::store_past_end);
    expect("store past the end", emu::instrumented() ? "out-of-bounds" : "canary", false);
    reverse_rows(x, y, n, planted::store_before_start);
    expect("store before the start", emu::instrumented() ? "out-of-bounds" : "canary", false);
    reverse_rows(x, y, n, planted::shared_past_end);
    expect("store past a shared array", "out-of-bounds", true);
    reverse_rows(x, y, n, planted::uninitialised_shared);
    expect("shared element never stored", "uninitialised", true);
    reverse_rows(x, y, n, planted::missing_syncthreads);
    expect("removed __syncthreads", emu::instrumented() ? "race" : "", true);
    reverse_rows(x, y, n, planted::divergent_barrier);
    expect("barrier in a branch", "deadlock", false);
    reverse_rows(x, y, n, planted::racing_blocks);
    expect("blocks that store to one place", "race", true);
    warp_sum(x, y, planted::missing_syncwarp);
    expect("removed __syncwarp", "race", true);

    // without instrumentation a removed barrier shows as a result that depends on the order of threads
    if (!emu::instrumented()) {
        std::vector<float> a(n), b(n);
        for (auto * r : { &a, &b }) {
            emu::set_order(r == &a ? emu::order::forward : emu::order::reverse);
            memset(y, 0, n*sizeof(float));
            reverse_rows(x, y, n, planted::missing_syncthreads);
            memcpy(r->data(), y, n*sizeof(float));
        }
        emu::set_order(emu::order::forward);
        emu::take_faults();
        check::that(memcmp(a.data(), b.data(), n*sizeof(float)) != 0, "removed __syncthreads: the order of threads does not show it");
    }

    unsigned char * bytes = (unsigned char *) emu::dev_alloc(200, "bytes");
    unsigned * out = (unsigned *) emu::dev_alloc(20*sizeof(unsigned), "words");
    for (int i = 0; i < 200; ++i) {
        bytes[i] = (unsigned char) (37*i);
    }
    words(bytes, out, 20, planted::none);
    check::no_faults("words from bytes");
    words(bytes, out, 20, planted::misaligned);
    expect("misaligned word", "misaligned", true);

    // traffic: every byte of x once; 150 floats are 18.75 sectors. A large L2 cache keeps x for the second launch, and y, which was never loaded,
    // for the third; one of 4 lines has lost x by then, and what of y does not fit. Three blocks of x meet in two sectors, the first of one block
    // and the last of the other: when all run at once, a cache of 4 lines has lost these in between.
    const emu::device_props device = emu::device;
    const struct { size_t l2; int nsm, dram, dram_again; } caches[] = { { device.l2, 4, 608, 608 }, { 4*128, 1, 608, 2*608 }, { 4*128, 4, 608 + 64, 2*(608 + 64) } };
    for (const auto & cache : caches) {
        if (!emu::instrumented()) {
            break;
        }
        emu::device.l2            = cache.l2;
        emu::device.nsm           = cache.nsm;
        emu::device.blocks_per_sm = 1;
        emu::reset_traffic();
        reverse_rows(x, y, n, planted::none);
        const auto r = emu::traffic_of(x).read, w = emu::traffic_of(y).write;
        check::that(r.requested == 600 && r.by_block == 600 && (int) r.dram == cache.dram, "traffic of x: %d %d %d", (int) r.requested, (int) r.by_block, (int) r.dram);
        check::that(w.requested == 600 && w.by_block == 600, "traffic of y: %d %d", (int) w.requested, (int) w.by_block);
        check::that(cache.dram == 608 ? w.dram == 608 : w.dram >= 608, "y, written back: %d", (int) w.dram);
        reverse_rows(x, y, n, planted::none);
        reverse_rows(y, x, n, planted::none);
        const auto again = emu::traffic_of(x).read, y_read = emu::traffic_of(y).read;
        check::that(again.by_block == 1200 && (int) again.dram == cache.dram_again, "x, read again: %d %d", (int) again.by_block, (int) again.dram);
        check::that(y_read.by_block == 600 && (cache.l2 == device.l2 ? y_read.dram == 0 : y_read.dram >= 608 - 512), "y, read back: %d %d", (int) y_read.by_block, (int) y_read.dram);
        check::no_faults("traffic");
    }
    emu::device = device;

    // tensor core instructions
    ggml_fp16_t * a = (ggml_fp16_t *) emu::dev_alloc(256*2, "a"), * b = (ggml_fp16_t *) emu::dev_alloc(128*2, "b");
    float * d = (float *) emu::dev_alloc(128*4, "d");
    std::mt19937 rng(1);
    std::normal_distribution<float> normal;
    for (int i = 0; i < 256; ++i) { a[i] = ggml_fp32_to_fp16(normal(rng)); }
    for (int i = 0; i < 128; ++i) { b[i] = ggml_fp32_to_fp16(normal(rng)); }
    for (int i = 0; i < 128; ++i) { d[i] = normal(rng); }
    std::vector<double> exact(128);
    for (int i = 0; i < 16; ++i) {
        for (int j = 0; j < 8; ++j) {
            exact[i*8 + j] = d[i*8 + j];
            for (int k = 0; k < 16; ++k) {
                exact[i*8 + j] += (double) ggml_fp16_to_fp32(a[i*16 + k])*ggml_fp16_to_fp32(b[j*16 + k]);
            }
        }
    }
    mma_16x8x16(a, b, d, planted::none);
    check::no_faults("mma");
    check::that(check::rel_rms(d, exact.data(), 128) < 1e-7, "mma: error %g", check::rel_rms(d, exact.data(), 128));
    mma_16x8x16(a, b, d, planted::missing_cp_async_wait);
    check::that(!std::isfinite(d[0]), "cp.async without a wait gives the right result");
    emu::take_faults();

    return check::finish("emulator");
}
