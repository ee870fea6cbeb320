// Proves of the turbo kernels on the CPU: SET_ROWS and CPY write the bytes of the C reference, GET_ROWS and CPY read the values
// that it reads, for every type, for values on every edge of docs/FORMAT.md section 4, and no other byte is touched.

#include "check.h"
#include "tensors.h"

#include "common.cuh"
#include "turbo/turbo-cuda.h"

#include <algorithm>

static std::mt19937 rng(1);

// n_per_row values a row; every row has another edge in its first block
static std::vector<float> edge_rows(int64_t n_per_row, int & n_rows) {
    std::normal_distribution<float> normal;
    std::vector<std::vector<float>> rows;
    auto random_row = [&](float scale) {
        std::vector<float> r(n_per_row);
        for (float & x : r) {
            x = scale*normal(rng);
        }
        rows.push_back(r);
        return &rows.back();
    };
    for (float s : { 1.0f, 1e-3f, 300.0f, 1e-9f, 1e-12f, 1e5f, 1e20f, 1e37f }) { // below the zero threshold, above the largest half
        random_row(s);
    }
    auto edge = [&](std::initializer_list<std::pair<int, float>> values) {
        auto * r = random_row(1.0f);
        for (const auto & v : values) {
            (*r)[v.first] = v.second;
        }
    };
    edge({ { 3, NAN } });
    edge({ { 17, INFINITY } });
    edge({ { 63, -INFINITY }, { 5, NAN } });
    edge({ { 0, -0.0f }, { 1, 0.0f }, { 2, -1e-40f }, { 3, 1e-40f }, { 4, -1e-45f }, { 5, 1e-38f }, { 6, -1e-38f } }); // denormal numbers beside ordinary ones
    edge({ { 7, 3.4e38f }, { 8, -3.4e38f }, { 9, -1e-7f }, { 10, 1.2e-38f } });                                   // the exponent's clamp; products that underflow
    rows.push_back(std::vector<float>(n_per_row, 0.0f));
    rows.push_back(std::vector<float>(n_per_row, -0.0f));
    rows.push_back(std::vector<float>(n_per_row, 1.0f));                                                           // all on one level
    for (float m : { 0x1p-40f, 0x1.fffffep-41f, -0x1p-40f }) {                                                     // the zero threshold
        rows.push_back(std::vector<float>(n_per_row, 0.0f));
        rows.back()[n_per_row - 1] = m;
        rows.back()[2] = m/3;
    }
    rows.push_back(std::vector<float>(n_per_row, 0.0f));
    rows.back()[5] = -1.0f; // one value only
    for (int i = 0; i < 40; ++i) {
        auto * r = random_row(ldexpf(1.0f, i - 20));
        if (i % 2) { // few distinct values: many on a threshold or near it
            for (float & x : *r) {
                x = roundf(4.0f*x)/4.0f;
            }
        }
    }
    n_rows = (int) rows.size();
    std::vector<float> res;
    for (const auto & r : rows) {
        res.insert(res.end(), r.begin(), r.end());
    }
    return res;
}

static void compute(ggml_backend_cuda_context & cuda, ggml_tensor * op, const char * what) {
    check::that(ggml_cuda_turbo_owns(op) && ggml_cuda_turbo_supports(op), "%s: no kernel", what);
    check::that(ggml_cuda_turbo_compute(cuda, op), "%s: not computed", what);
    check::no_faults(what);
}

static bool same_or_nan(float a, float b) { return memcmp(&a, &b, sizeof(a)) == 0 || (a != a && b != b); }

// the bytes of x as `type` (f32, f16, bf16), and the f32 values of those
static std::vector<char> as_type(std::vector<float> & x, ggml_type type) {
    std::vector<char> res(x.size()*ggml_type_size(type));
    if (type == GGML_TYPE_F32) {
        memcpy(res.data(), x.data(), res.size());
        return res;
    }
    const auto * traits = ggml_get_type_traits(type);
    traits->from_float_ref(x.data(), res.data(), x.size());
    traits->to_float(res.data(), x.data(), x.size());
    return res;
}

// cache [n, n_cells, 2 sides, 2 streams]; rows go to cells by idx; idx is shared by the sides, and by the streams or not
static void test_set_rows(ggml_backend_cuda_context & cuda, ggml_type type, ggml_type src_type, ggml_type idx_type, bool shared_streams) {
    tensors t;
    const std::string what = std::string("set_rows ") + ggml_type_name(src_type) + " -> " + ggml_type_name(type);
    const int64_t n = 3*ggml_blck_size(type);
    int n_edge;
    std::vector<float> x = edge_rows(n, n_edge);
    const int64_t n_rows = (n_edge + 3)/4, n_cells = n_rows + 3;
    x.resize(n*n_rows*4, 0.25f);
    const std::vector<char> bytes = as_type(x, src_type);

    ggml_tensor * src = t.make("source", src_type, n, n_rows, 2, 2);
    ggml_tensor * dst = t.make("cache", type, n, n_cells, 2, 2);
    ggml_tensor * idx = t.make("rows", idx_type, n_rows, 1, shared_streams ? 1 : 2);
    memcpy(src->data, bytes.data(), bytes.size());
    auto cell = [&](int64_t i, int64_t s) { return (5*i + (shared_streams ? 0 : 2*s) + 1) % n_cells; };
    for (int64_t s = 0; s < idx->ne[2]; ++s) {
        for (int64_t i = 0; i < n_rows; ++i) {
            char * p = (char *) idx->data + s*idx->nb[2] + i*idx->nb[0];
            if (idx_type == GGML_TYPE_I64) { *(int64_t *) p = cell(i, s); } else { *(int32_t *) p = (int32_t) cell(i, s); }
        }
    }
    std::vector<char> expected(ggml_nbytes(dst), (char) 0xA5);
    memset(dst->data, 0xA5, ggml_nbytes(dst));
    for (int64_t s = 0; s < 2; ++s) {
        for (int64_t k = 0; k < 2; ++k) {
            for (int64_t i = 0; i < n_rows; ++i) {
                ggml_quantize_chunk(type, x.data() + ((s*2 + k)*n_rows + i)*n, expected.data() + cell(i, s)*dst->nb[1] + k*dst->nb[2] + s*dst->nb[3], 0, 1, n, nullptr);
            }
        }
    }
    compute(cuda, ggml_set_rows(t.ctx, dst, src, idx), what.c_str());
    size_t at = 0;
    while (at < expected.size() && expected[at] == ((const char *) dst->data)[at]) {
        ++at;
    }
    check::that(at == expected.size(), "%s: byte %zu of row %zu differs from ggml_quantize_chunk", what.c_str(), at % dst->nb[1], at/dst->nb[1]);
}

static void test_cpy_encode(ggml_backend_cuda_context & cuda, ggml_type type, ggml_type src_type, bool strided) {
    tensors t;
    const std::string what = std::string("cpy ") + ggml_type_name(src_type) + " -> " + ggml_type_name(type) + (strided ? " (views)" : "");
    const int64_t block = ggml_blck_size(type), n = 2*block;
    int n_rows;
    std::vector<float> x = edge_rows(n, n_rows);
    const std::vector<char> bytes = as_type(x, src_type);
    ggml_tensor * src = t.make("source", src_type, n, n_rows);
    memcpy(src->data, bytes.data(), bytes.size());
    // strided: blocks of a row go to rows of a wider cache
    ggml_tensor * cache = t.make("cache", type, strided ? 3*block : n, strided ? 2*n_rows : n_rows);
    ggml_tensor * dst = cache;
    ggml_tensor * from = src;
    if (strided) {
        from = ggml_view_3d(t.ctx, src, block, 2, n_rows, ggml_row_size(src_type, block), src->nb[1], 0);
        dst  = ggml_view_3d(t.ctx, cache, block, 2, n_rows, cache->nb[1], 2*cache->nb[1], ggml_row_size(type, block));
    }
    std::vector<char> expected(ggml_nbytes(cache), (char) 0xA5);
    memset(cache->data, 0xA5, ggml_nbytes(cache));
    for (int64_t i = 0; i < n_rows; ++i) {
        for (int64_t b = 0; b < 2; ++b) {
            const size_t at = strided ? (2*i + b)*cache->nb[1] + ggml_row_size(type, block) : i*cache->nb[1] + ggml_row_size(type, b*block);
            ggml_quantize_chunk(type, x.data() + i*n + b*block, expected.data() + at, 0, 1, block, nullptr);
        }
    }
    compute(cuda, ggml_cpy(t.ctx, from, dst), what.c_str());
    check::that(memcmp(expected.data(), cache->data, expected.size()) == 0, "%s: bytes differ from ggml_quantize_chunk", what.c_str());
}

static void test_decode(ggml_backend_cuda_context & cuda, ggml_type type) {
    tensors t;
    const std::string name = ggml_type_name(type);
    const int64_t n = 3*ggml_blck_size(type), n_rows = 20;
    ggml_tensor * cache = t.make("cache", type, n, n_rows, 2);
    // any bytes are a block: NaN, infinite and denormal scales among them
    for (size_t i = 0; i < ggml_nbytes(cache); ++i) {
        ((unsigned char *) cache->data)[i] = (unsigned char) rng();
    }
    const uint16_t scales[] = { 0x0000, 0x8000, 0x0001, 0x03FF, 0x7BFF, 0x7C00, 0xFC00, 0x7E00, 0x3C00 };
    for (size_t i = 0; i < sizeof(scales)/2; ++i) {
        memcpy((char *) cache->data + i*cache->nb[1], &scales[i], 2);
    }
    std::vector<float> values(n*n_rows*2);
    ggml_get_type_traits(type)->to_float(cache->data, values.data(), values.size());

    ggml_tensor * idx = t.make("rows", GGML_TYPE_I32, 7, 2);
    for (int i = 0; i < 14; ++i) {
        ((int32_t *) idx->data)[i] = (11*i + 3) % (int) n_rows;
    }
    ggml_tensor * rows = t.allocate("got", ggml_get_rows(t.ctx, cache, idx));
    compute(cuda, rows, ("get_rows " + name).c_str());
    int wrong = 0;
    for (int64_t i = 0; i < 14; ++i) {
        for (int64_t j = 0; j < n; ++j) {
            wrong += !same_or_nan(((float *) rows->data)[i*n + j], values[(i/7*n_rows + ((int32_t *) idx->data)[i])*n + j]);
        }
    }
    check::that(wrong == 0, "get_rows %s: %d values differ", name.c_str(), wrong);

    for (ggml_type to : { GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_BF16 }) {
        ggml_tensor * dst = t.make("copy", to, n, n_rows, 2);
        compute(cuda, ggml_cpy(t.ctx, cache, dst), ("cpy " + name + " -> " + ggml_type_name(to)).c_str());
        std::vector<float> rounded = values, got(values.size());
        as_type(rounded, to);
        if (to == GGML_TYPE_F32) {
            memcpy(got.data(), dst->data, 4*got.size());
        } else {
            ggml_get_type_traits(to)->to_float(dst->data, got.data(), got.size());
        }
        wrong = 0;
        for (size_t i = 0; i < got.size(); ++i) {
            wrong += !same_or_nan(got[i], rounded[i]);
        }
        check::that(wrong == 0, "cpy %s -> %s: %d values differ", name.c_str(), ggml_type_name(to), wrong);
    }

    // to itself, out of a view: the even rows
    ggml_tensor * even = ggml_view_3d(t.ctx, cache, n, n_rows/2, 2, 2*cache->nb[1], cache->nb[2], 0);
    ggml_tensor * same = t.make("copy", type, n, n_rows/2, 2);
    compute(cuda, ggml_cpy(t.ctx, even, same), ("cpy " + name + " -> itself").c_str());
    wrong = 0;
    for (int64_t i = 0; i < n_rows; ++i) {
        wrong += memcmp((char *) same->data + i*same->nb[1], (char *) cache->data + 2*i*cache->nb[1], same->nb[1]) != 0;
    }
    check::that(wrong == 0, "cpy %s -> itself: %d rows differ", name.c_str(), wrong);
}

int main() {
    ggml_backend_cuda_context cuda(0);
    emu::set_order(emu::order::shuffled, 5);
    int i = 0;
#define X(ID, ENUM, NAME, BITS, BLOCK) {                                                                                               \
        const ggml_type type = GGML_TYPE_##ENUM;                                                                                       \
        test_set_rows(cuda, type, GGML_TYPE_F32, GGML_TYPE_I64, i % 2 == 0);                                                           \
        test_set_rows(cuda, type, i % 2 ? GGML_TYPE_F32 : GGML_TYPE_F16, i % 2 ? GGML_TYPE_I32 : GGML_TYPE_I64, i % 2 == 1);           \
        for (ggml_type from : { GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_BF16 }) {                                                      \
            test_cpy_encode(cuda, type, from, false);                                                                                  \
            test_cpy_encode(cuda, type, from, true);                                                                                   \
        }                                                                                                                              \
        test_decode(cuda, type);                                                                                                       \
        ++i;                                                                                                                           \
    }
    GGML_TURBO_TYPES(X)
#undef X
    return check::finish("turbo codec");
}
