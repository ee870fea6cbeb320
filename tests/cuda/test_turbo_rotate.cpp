// Proves of GGML_OP_TURBO_ROTATE on the CPU: within twice the error of the plain O(d^2) sum in f32 (docs/FORMAT.md section 5), for every
// dimension, both directions, with maps for groups of heads, split vectors, strided input; forward then inverse is the identity.

#include "check.h"
#include "tensors.h"

#include "common.cuh"
#include "turbo/turbo-cuda.h"

static std::mt19937 rng(1);

static std::vector<float> random(size_t n, float mean) {
    std::normal_distribution<float> normal;
    std::vector<float> r(n);
    for (float & x : r) {
        x = mean + normal(rng);
    }
    return r;
}

// entry of H_d
static int hadamard(int64_t d, int64_t i, int64_t j) {
    const int m = ggml_turbo_hadamard_order(d);
    const int64_t p = d/m;
    const int sign = __builtin_popcountll((i % p) & (j % p)) % 2 ? -1 : 1;
    return ggml_turbo_hadamard_matrix(m)[i/p*m + j/p] < 0.0f ? -sign : sign;
}

template <typename T>
static void rotate(const float * x, const float * diag, const float * shift, T * y, int64_t d, bool inverse) {
    std::vector<T> a(d);
    for (int64_t j = 0; j < d; ++j) {
        a[j] = inverse ? (T) x[j] : ((T) x[j] - (shift ? (T) shift[j] : T(0)))*(diag ? (T) diag[j] : T(1));
    }
    const T scale = T(1)/std::sqrt((T) d);
    for (int64_t i = 0; i < d; ++i) {
        T s = 0;
        for (int64_t j = 0; j < d; ++j) {
            s += hadamard(d, i, j) < 0 ? -a[j] : a[j];
        }
        s *= scale;
        y[i] = inverse ? s*(diag ? (T) diag[i] : T(1)) + (shift ? (T) shift[i] : T(0)) : s;
    }
}

static void test(ggml_backend_cuda_context & cuda, int64_t d, int64_t split, bool inverse, bool with_diag, bool with_shift, bool strided) {
    tensors t;
    char what[128];
    snprintf(what, sizeof(what), "rotate d=%d split=%d %s diag=%d shift=%d strided=%d", (int) d, (int) split, inverse ? "inverse" : "forward", with_diag, with_shift, strided);
    const int64_t n_head = 6, n_map = 2, n_tokens = 3, n_stream = 2;

    ggml_tensor * x = t.make("x", GGML_TYPE_F32, strided ? 3*d : d, n_head, n_tokens, n_stream);
    const auto xs = random(ggml_nelements(x), 0.0f);
    memcpy(x->data, xs.data(), ggml_nbytes(x));
    ggml_tensor * in = strided ? ggml_view_4d(t.ctx, x, d, n_head, n_tokens, n_stream, x->nb[1], x->nb[2], x->nb[3], d*sizeof(float)) : x;
    ggml_tensor * diag  = with_diag  ? t.make("diag",  GGML_TYPE_F32, d, n_map) : nullptr;
    ggml_tensor * shift = with_shift ? t.make("shift", GGML_TYPE_F32, d, n_map) : nullptr;
    for (ggml_tensor * m : { diag, shift }) {
        if (m) {
            const auto r = random(ggml_nelements(m), m == diag ? 3.0f : 0.0f);
            memcpy(m->data, r.data(), ggml_nbytes(m));
        }
    }
    ggml_tensor * y = t.allocate("y", ggml_turbo_rotate(t.ctx, in, diag, shift, split, inverse));
    check::that(ggml_cuda_turbo_owns(y) && ggml_cuda_turbo_supports(y), "%s: no kernel", what);
    ggml_cuda_turbo_compute(cuda, y);
    check::no_faults(what);

    std::vector<double> exact(ggml_nelements(y));
    std::vector<float>  plain(ggml_nelements(y));
    for (int64_t r = 0; r < ggml_nrows(y); ++r) {
        const int64_t h = r % n_head, tok = r/n_head % n_tokens, s = r/n_head/n_tokens;
        const float * xr = (const float *) ((const char *) in->data + h*in->nb[1] + tok*in->nb[2] + s*in->nb[3]);
        const float * dr = diag  ? (const float *) diag->data  + h/(n_head/n_map)*d : nullptr;
        const float * sr = shift ? (const float *) shift->data + h/(n_head/n_map)*d : nullptr;
        for (int64_t first = 0; first < d; first = split && first == 0 ? split : d) {
            const int64_t n = split ? (first == 0 ? split : d - split) : d;
            rotate(xr + first, dr ? dr + first : nullptr, sr ? sr + first : nullptr, exact.data() + r*d + first, n, inverse);
            rotate(xr + first, dr ? dr + first : nullptr, sr ? sr + first : nullptr, plain.data() + r*d + first, n, inverse);
        }
    }
    const double e = check::rel_rms((const float *) y->data, exact.data(), exact.size());
    const double p = check::rel_rms(plain.data(), exact.data(), exact.size());
    check::that(e <= 2*p, "%s: error %.3g, the plain sum has %.3g", what, e, p);

    // there and back
    if (!inverse && !with_diag) {
        ggml_tensor * z = t.allocate("z", ggml_turbo_rotate(t.ctx, y, nullptr, shift, split, true));
        ggml_cuda_turbo_compute(cuda, z);
        std::vector<double> back;
        for (int64_t r = 0; r < ggml_nrows(y); ++r) {
            const float * xr = (const float *) ((const char *) in->data + r % n_head*in->nb[1] + r/n_head % n_tokens*in->nb[2] + r/n_head/n_tokens*in->nb[3]);
            back.insert(back.end(), xr, xr + d);
        }
        const double b = check::rel_rms((const float *) z->data, back.data(), back.size());
        check::that(b < 1e-6, "%s and back: error %.3g", what, b);
        check::no_faults(what);
    }
}

int main() {
    ggml_backend_cuda_context cuda(0);
    emu::set_order(emu::order::shuffled, 5);
    int i = 0;
    for (int64_t d : { 64, 80, 96, 112, 128, 160, 192, 256, 320, 512, 576 }) {
        for (bool inverse : { false, true }) {
            test(cuda, d, 0, inverse, false, false, false);
            test(cuda, d, 0, inverse, true,  ++i % 2, i % 3 == 0);
            test(cuda, d, 0, inverse, false, true, true);
        }
    }
    for (bool inverse : { false, true }) {
        test(cuda, 576, 512, inverse, true,  true,  false); // MLA: latent and rotary part
        test(cuda, 576, 512, inverse, false, false, true);
    }
    return check::finish("turbo rotation");
}
