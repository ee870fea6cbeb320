// Proves the emulator on kernels that are known to be right: upstream's. FWHT, quantise on write, attention (vec, and the
// tensor-core kernel with its ldmatrix, mma and cp.async), in every order of threads, without a fault.

#include "attention.h"

#include "common.cuh"
#include "fwht.cuh"
#include "set-rows.cuh"
#include "fattn-vec.cuh"

template <int DKQ, int DV, int ncols1, int ncols2> void ggml_cuda_flash_attn_ext_mma_f16_case(ggml_backend_cuda_context & ctx, ggml_tensor * dst);

#define CASE(D, K, V) extern template void ggml_cuda_flash_attn_ext_vec_case<D, GGML_TYPE_##K, GGML_TYPE_##V>(ggml_backend_cuda_context &, ggml_tensor *);
CASE( 64, F16,  F16)
CASE(128, F16,  F16)
CASE(256, F16,  F16)
#undef CASE

// never called: the caches are f16, and no mask is sparse
to_fp16_cuda_t    ggml_get_to_fp16_cuda   (ggml_type) { abort(); }
to_fp16_nc_cuda_t ggml_get_to_fp16_nc_cuda(ggml_type) { abort(); }
void ggml_cuda_flash_attn_ext_compact_mask(const ggml_tensor *, int *, int *, int, int, int, cudaStream_t) { abort(); }

static void test_set_rows(ggml_backend_cuda_context & cuda, ggml_type type) {
    tensors t;
    const int64_t n = 160, rows = 37;
    ggml_tensor * src = t.make("source", GGML_TYPE_F32, n, rows);
    ggml_tensor * idx = t.make("rows", GGML_TYPE_I64, rows);
    ggml_tensor * dst = t.make("cache", type, n, rows);
    std::mt19937 rng(1);
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < n*rows; ++i) {
        ((float *) src->data)[i] = normal(rng);
    }
    for (int64_t i = 0; i < rows; ++i) {
        ((int64_t *) idx->data)[i] = 7*i % rows;
    }
    ggml_cuda_op_set_rows(cuda, ggml_set_rows(t.ctx, dst, src, idx));
    check::no_faults("set_rows");
    std::vector<char> row(dst->nb[1]);
    int wrong = 0;
    for (int64_t i = 0; i < rows; ++i) {
        ggml_quantize_chunk(type, (const float *) src->data + i*n, row.data(), 0, 1, n, nullptr);
        wrong += memcmp(row.data(), (const char *) dst->data + 7*i % rows*dst->nb[1], row.size()) != 0;
    }
    check::that(wrong == 0, "set_rows %s: %d of %d rows are not those of ggml_quantize_chunk", ggml_type_name(type), wrong, (int) rows);
}

static void test_fwht(ggml_backend_cuda_context & cuda, int64_t n) {
    tensors t;
    const int64_t rows = 5;
    ggml_tensor * h = t.make("matrix", GGML_TYPE_F32, n, n);
    ggml_tensor * x = t.make("x", GGML_TYPE_F32, n, rows);
    const float s = 1.0f/sqrtf((float) n);
    for (int64_t i = 0; i < n*n; ++i) {
        ((float *) h->data)[i] = __builtin_popcountll((i/n) & (i % n)) % 2 ? -s : s;
    }
    std::mt19937 rng(1);
    std::normal_distribution<float> normal;
    for (int64_t i = 0; i < n*rows; ++i) {
        ((float *) x->data)[i] = normal(rng);
    }
    ggml_tensor * y = t.allocate("y", ggml_mul_mat(t.ctx, h, x));
    const bool done = ggml_cuda_op_fwht(cuda, x, y);
    check::no_faults("fwht");
    std::vector<double> exact(n*rows);
    for (int64_t r = 0; r < rows; ++r) {
        for (int64_t i = 0; i < n; ++i) {
            for (int64_t j = 0; j < n; ++j) {
                exact[r*n + i] += (double) ((float *) h->data)[i*n + j]*((float *) x->data)[r*n + j];
            }
        }
    }
    const double e = check::rel_rms((const float *) y->data, exact.data(), n*rows);
    check::that(done && e < 2e-7, "fwht %d: error %g", (int) n, e);
}

template <typename F>
static void test_attention(const char * name, attention::test_case c, double bound, F && compute) {
    attention::fixture f(c, 1);
    std::vector<float> first;
    for (auto order : { emu::order::forward, emu::order::reverse, emu::order::shuffled }) {
        emu::set_order(order, 3);
        const auto y = f.run(compute);
        // upstream's warps exchange weights in shared memory on the strength of a shuffle, which orders no memory: not for us to judge
        auto faults = emu::take_faults();
        faults.erase(std::remove_if(faults.begin(), faults.end(), [](const emu::fault & x) { return x.kind == "race"; }), faults.end());
        if (!check::that(faults.empty(), "%s: %zu faults", c.str().c_str(), faults.size())) {
            emu::print_faults(faults);
        }
        if (first.empty()) {
            first = y;
            const auto e = attention::measure(f, y);
            check::that(e.kernel < bound && e.control > 100*bound, "%s %s: error %g, f32 %g, control %g", name, c.str().c_str(), e.kernel, e.plain, e.control);
            printf("%s %s: error %.2g (f32 %.2g)\n", name, c.str().c_str(), e.kernel, e.plain);
        }
        check::that(memcmp(first.data(), y.data(), 4*y.size()) == 0, "%s %s: the order of threads changes the result", name, c.str().c_str());
    }
    emu::set_order(emu::order::forward);
}

int main() {
    emu::device.flush_subnormals = true;
    ggml_backend_cuda_context cuda(0);

    for (auto type : { GGML_TYPE_Q8_0, GGML_TYPE_Q4_0 }) {
        test_set_rows(cuda, type);
    }
    for (int64_t n : { 64, 128, 256, 512 }) {
        test_fwht(cuda, n);
    }

    using namespace attention;
    const auto F16 = GGML_TYPE_F16;
    // half precision accumulators; caches are padded to 256 keys, as upstream needs them
    test_attention("vec", { 128, 128, 512, 1, 2, 4, 1, F16, F16, false, CAUSAL,  false, 0.0f, 0.0f }, 2e-3, [&](ggml_tensor * o) { ggml_cuda_flash_attn_ext_vec_case<128, GGML_TYPE_F16, GGML_TYPE_F16>(cuda, o); });
    test_attention("vec", {  64,  64, 256, 2, 2, 3, 2, F16, F16, false, CAUSAL,  true,  0.0f, 8.0f }, 2e-3, [&](ggml_tensor * o) { ggml_cuda_flash_attn_ext_vec_case< 64, GGML_TYPE_F16, GGML_TYPE_F16>(cuda, o); });
    test_attention("vec", { 256, 256, 256, 2, 1, 8, 1, F16, F16, false, WINDOW,    false, 5.0f, 0.0f }, 2e-3, [&](ggml_tensor * o) { ggml_cuda_flash_attn_ext_vec_case<256, GGML_TYPE_F16, GGML_TYPE_F16>(cuda, o); });
    test_attention("mma", { 128, 128, 512, 9, 1, 2, 1, F16, F16, false, CAUSAL,  false, 0.0f, 0.0f }, 2e-3, [&](ggml_tensor * o) { ggml_cuda_flash_attn_ext_mma_f16_case<128, 128, 8, 1>(cuda, o); });

    return check::finish("upstream kernels");
}
