// The codec and the rotation of the turbo types, at every instruction-set level of this processor, against the vectors that
// the NumPy reference wrote and against properties of FORMAT.md.
//
// usage: test-turbo-codec VECTORS_DIR [EXPECTED_LEVEL]
// EXPECTED_LEVEL: fail unless this is the level in use (set GGML_TURBO_ISA to force one)

#include "ggml-alloc.h"
#include "ggml-backend.h"
#include "ggml-cpu.h"
#include "ggml-turbo-cpu.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <random>
#include <string>
#include <vector>

using json = nlohmann::json;

static int n_checks = 0;
static int n_failed = 0;

#define CHECK(cond, ...)                                             \
    do {                                                             \
        n_checks++;                                                  \
        if (!(cond)) {                                               \
            n_failed++;                                              \
            fprintf(stderr, "%s:%d: %s: ", __FILE__, __LINE__, #cond); \
            fprintf(stderr, __VA_ARGS__);                            \
            fprintf(stderr, "\n");                                   \
        }                                                            \
    } while (0)

static const std::vector<ggml_type> TYPES = { GGML_TURBO_TYPES(GGML_TURBO_X_LIST) };

static std::vector<uint8_t> from_hex(const std::string & s) {
    std::vector<uint8_t> res(s.size()/2);
    for (size_t i = 0; i < res.size(); ++i) {
        res[i] = (uint8_t) std::stoi(s.substr(2*i, 2), nullptr, 16);
    }
    return res;
}

template <typename T>
static std::vector<T> array_from_hex(const std::string & s) {
    const auto bytes = from_hex(s);
    std::vector<T> res(bytes.size()/sizeof(T));
    memcpy(res.data(), bytes.data(), bytes.size());
    return res;
}

static json load(const std::string & path) {
    std::ifstream f(path);
    if (!f) {
        fprintf(stderr, "%s: cannot be read; usage: test-turbo-codec VECTORS_DIR [EXPECTED_LEVEL]\n", path.c_str());
        exit(2);
    }
    return json::parse(f);
}

static std::vector<ggml_turbo_cpu_codec> codecs_of(ggml_type type) {
    std::vector<ggml_turbo_cpu_codec> res(ggml_turbo_cpu_codecs(type, nullptr, 0));
    ggml_turbo_cpu_codecs(type, res.data(), (int) res.size());
    return res;
}

static bool same_values(const std::vector<float> & a, const std::vector<float> & b) {
    for (size_t i = 0; i < a.size(); ++i) {
        // -0 and 0 differ, NaNs do not
        if (memcmp(&a[i], &b[i], sizeof(float)) != 0 && !(std::isnan(a[i]) && std::isnan(b[i]))) {
            return false;
        }
    }
    return a.size() == b.size();
}

static ggml_type type_of(int bits, int block) {
    for (ggml_type type : TYPES) {
        if (ggml_turbo_bits(type) == bits && ggml_blck_size(type) == block) {
            return type;
        }
    }
    return GGML_TYPE_COUNT;
}

static void test_types() {
    // written into saved states
    const struct { ggml_type type; int id; const char * name; size_t size; } expected[] = {
        { GGML_TYPE_TURBO2,     64, "turbo2",     34 }, { GGML_TYPE_TURBO3,     65, "turbo3",     50 }, { GGML_TYPE_TURBO4,     66, "turbo4",     66 },
        { GGML_TYPE_TURBO2_64,  67, "turbo2_64",  18 }, { GGML_TYPE_TURBO3_64,  68, "turbo3_64",  26 }, { GGML_TYPE_TURBO4_64,  69, "turbo4_64",  34 },
        { GGML_TYPE_TURBO2_80,  70, "turbo2_80",  22 }, { GGML_TYPE_TURBO3_80,  71, "turbo3_80",  32 }, { GGML_TYPE_TURBO4_80,  72, "turbo4_80",  42 },
        { GGML_TYPE_TURBO2_96,  73, "turbo2_96",  26 }, { GGML_TYPE_TURBO3_96,  74, "turbo3_96",  38 }, { GGML_TYPE_TURBO4_96,  75, "turbo4_96",  50 },
        { GGML_TYPE_TURBO2_112, 76, "turbo2_112", 30 }, { GGML_TYPE_TURBO3_112, 77, "turbo3_112", 44 }, { GGML_TYPE_TURBO4_112, 78, "turbo4_112", 58 },
    };
    CHECK(sizeof(expected)/sizeof(expected[0]) == TYPES.size(), "%zu types", TYPES.size());
    for (const auto & e : expected) {
        CHECK((int) e.type == e.id, "%s", e.name);
        CHECK(strcmp(ggml_type_name(e.type), e.name) == 0, "%s", ggml_type_name(e.type));
        CHECK(ggml_type_size(e.type) == e.size, "%s: %zu bytes", e.name, ggml_type_size(e.type));
        CHECK(ggml_is_quantized(e.type), "%s", e.name);
    }

    const struct { int d; ggml_type type; } resolved[] = {
        { 64, GGML_TYPE_TURBO3_64 }, { 80, GGML_TYPE_TURBO3_80 }, { 96, GGML_TYPE_TURBO3_96 }, { 112, GGML_TYPE_TURBO3_112 },
        { 128, GGML_TYPE_TURBO3 }, { 160, GGML_TYPE_TURBO3_80 }, { 192, GGML_TYPE_TURBO3_96 }, { 256, GGML_TYPE_TURBO3 },
        { 320, GGML_TYPE_TURBO3_80 }, { 512, GGML_TYPE_TURBO3 }, { 576, GGML_TYPE_TURBO3_64 }, { 72, GGML_TYPE_COUNT }, { 100, GGML_TYPE_COUNT }, { 32, GGML_TYPE_COUNT },
    };
    for (const auto & r : resolved) {
        CHECK(ggml_turbo_resolve(GGML_TYPE_TURBO3, r.d) == r.type, "d = %d", r.d);
    }
    CHECK(ggml_turbo_resolve(GGML_TYPE_Q4_0, 100) == GGML_TYPE_Q4_0, "other types resolve to themselves");
    CHECK(ggml_turbo_family_from_name("turbo3") == GGML_TYPE_TURBO3, "name");
    CHECK(ggml_turbo_family_from_name("turbo3_64") == GGML_TYPE_COUNT, "a member is no family");
}

static void test_vectors(const std::string & dir) {
    int n_cases = 0;
    for (int n : { 64, 80, 96, 112, 128 }) {
        const json doc = load(dir + "/codec_n" + std::to_string(n) + ".json");
        CHECK(doc.at("format_version") == 1, "n = %d", n);
        for (const auto & t : doc.at("types")) {
            const ggml_type type = type_of(t.at("bits"), n);
            CHECK((int) type == t.at("id") && ggml_type_name(type) == t.at("name") && ggml_type_size(type) == t.at("block_bytes"), "%s", t.dump().c_str());
        }
        for (const auto & c : doc.at("cases")) {
            const auto x = array_from_hex<float>(c.at("input"));
            for (const auto & [bits, hex] : c.at("encoded").items()) {
                const ggml_type type = type_of(std::stoi(bits), n);
                const auto expected = from_hex(hex);
                for (const auto & codec : codecs_of(type)) {
                    std::vector<uint8_t> y(expected.size(), 0xAA);
                    codec.encode(x.data(), y.data(), n);
                    CHECK(y == expected, "%s %s, case %s", codec.level, ggml_type_name(type), c.at("name").get<std::string>().c_str());
                    if (c.contains("decoded")) {
                        std::vector<float> d(n);
                        codec.decode(expected.data(), d.data(), n);
                        CHECK(same_values(d, array_from_hex<float>(c.at("decoded").at(bits))), "%s %s, case %s", codec.level, ggml_type_name(type), c.at("name").get<std::string>().c_str());
                    }
                    n_cases++;
                }
            }
        }
        for (const auto & c : doc.at("decode_only")) {
            const ggml_type type = type_of(c.at("bits"), n);
            const auto y = from_hex(c.at("encoded"));
            for (const auto & codec : codecs_of(type)) {
                std::vector<float> d(n);
                codec.decode(y.data(), d.data(), n);
                CHECK(same_values(d, array_from_hex<float>(c.at("decoded"))), "%s %s, scale %s", codec.level, ggml_type_name(type), c.at("encoded").get<std::string>().substr(0, 4).c_str());
                n_cases++;
            }
        }
    }
    CHECK(n_cases > 400, "only %d vectors ran", n_cases);
}

// many random rows of many magnitudes: every level writes and reads what the reference does
static void test_levels_agree() {
    std::mt19937 rng(1);
    std::normal_distribution<float> normal;
    std::uniform_real_distribution<float> exponent(-45.0f, 38.0f);
    for (ggml_type type : TYPES) {
        const int    n    = (int) ggml_blck_size(type);
        const size_t size = ggml_type_size(type);
        std::vector<float> x(4*n), d(4*n), d_ref(4*n), q(4*n);
        std::vector<uint8_t> y(4*size), y_ref(4*size);
        for (int i = 0; i < 300; ++i) {
            const float scale = i % 3 ? 1.0f : powf(10.0f, exponent(rng));
            for (auto & v : x) { v = normal(rng)*scale; }
            for (auto & v : q) { v = normal(rng); }
            if (i % 7 == 0) {
                for (auto & v : x) { v = roundf(v*4)/4; } // ties and equal magnitudes
            }
            ggml_turbo_quantize_row_ref(type, x.data(), y_ref.data(), x.size());
            ggml_turbo_dequantize_row_ref(type, y_ref.data(), d_ref.data(), x.size());
            double dot_ref = 0, dot_abs = 0;
            for (size_t j = 0; j < x.size(); ++j) {
                dot_ref += (double) d_ref[j]*q[j];
                dot_abs += fabs((double) d_ref[j]*q[j]);
            }
            for (const auto & codec : codecs_of(type)) {
                codec.encode(x.data(), y.data(), x.size());
                CHECK(y == y_ref, "%s %s, row %d", codec.level, ggml_type_name(type), i);
                codec.decode(y_ref.data(), d.data(), x.size());
                CHECK(same_values(d, d_ref), "%s %s, row %d", codec.level, ggml_type_name(type), i);
                const float dot = codec.dot(y_ref.data(), q.data(), x.size());
                // n roundings of at most 2^-24 each
                CHECK(!std::isfinite((float) dot_abs) || fabs(dot - dot_ref) <= dot_abs*x.size()*0x1p-24, "%s %s, row %d: dot %g, expected %g", codec.level, ggml_type_name(type), i, dot, dot_ref);
            }
        }
    }
}

// normalised MSE on rotated unit vectors against the codebook's theory (FORMAT.md section 3), with the stored scale
static void test_mse() {
    const struct { ggml_type type; double nmse; } expected[] = { { GGML_TYPE_TURBO2, 0.1160 }, { GGML_TYPE_TURBO3, 0.0340 }, { GGML_TYPE_TURBO4, 0.0093 } };
    std::mt19937 rng(2);
    std::normal_distribution<float> normal;
    const int d = 128;
    for (const auto & e : expected) {
        double err = 0;
        const int n_rows = 20000;
        const auto codec = codecs_of(e.type).front();
        std::vector<float> x(d), z(d), signs(d);
        std::vector<uint8_t> y(ggml_type_size(e.type));
        ggml_turbo_signs(3, d, signs.data());
        for (int r = 0; r < n_rows; ++r) {
            double norm = 0;
            for (auto & v : x) { v = normal(rng); norm += (double) v*v; }
            for (auto & v : x) { v /= (float) sqrt(norm); }
            codec.rotate(x.data(), signs.data(), nullptr, z.data(), d, false);
            codec.encode(z.data(), y.data(), d);
            codec.decode(y.data(), x.data(), d);
            for (int j = 0; j < d; ++j) {
                err += ((double) x[j] - z[j])*((double) x[j] - z[j]);
            }
        }
        err /= n_rows;
        printf("%s: normalised MSE %.5f (codebook %.4f)\n", ggml_type_name(e.type), err, e.nmse);
        CHECK(err < e.nmse*1.01, "%s: %g", ggml_type_name(e.type), err);
        CHECK(err > e.nmse*0.90, "%s: %g is better than can be", ggml_type_name(e.type), err);
    }
}

// error of the plain O(d^2) float sum, the bound of FORMAT.md section 5; H is rebuilt from unit vectors
static double naive_error(const std::vector<float> & x, const std::vector<double> & expected) {
    const int d = (int) x.size();
    const int m = ggml_turbo_hadamard_order(d);
    const float * h = ggml_turbo_hadamard_matrix(m);
    const int p = d/m;
    double err = 0;
    for (int i = 0; i < d; ++i) {
        float s = 0;
        for (int j = 0; j < d; ++j) {
            const float sylvester = __builtin_popcount((unsigned) (i % p) & (unsigned) (j % p)) % 2 ? -1.0f : 1.0f;
            s += h[(i/p)*m + j/p]*sylvester*x[j];
        }
        err = std::max(err, fabs(s/sqrtf((float) d) - expected[i]));
    }
    return err;
}

static void test_rotation(const std::string & dir) {
    const json doc = load(dir + "/rotation.json");

    for (const auto & s : doc.at("signs")) {
        const int d = s.at("d");
        const auto bits = from_hex(s.at("bits"));
        std::vector<float> signs(d);
        ggml_turbo_signs(s.at("layer"), d, signs.data());
        bool same = true;
        for (int j = 0; j < d; ++j) {
            same = same && signs[j] == ((bits[j/8] >> (j % 8)) & 1 ? -1.0f : 1.0f);
        }
        CHECK(same, "layer %d", s.at("layer").get<int>());
    }

    std::mt19937 rng(3);
    std::normal_distribution<float> normal;
    int n_dims = 0;
    for (const auto & v : doc.at("vectors")) {
        const int d = v.at("d");
        const auto x        = array_from_hex<float>(v.at("input"));
        const auto expected = array_from_hex<double>(v.at("output"));
        std::vector<float> signs(d), signed_x(d);
        ggml_turbo_signs(v.at("layer"), d, signs.data());
        for (int j = 0; j < d; ++j) {
            signed_x[j] = x[j]*signs[j];
        }
        const double bound = 2*naive_error(signed_x, expected);
        CHECK(ggml_turbo_hadamard_order(d) == v.at("m"), "d = %d", d);

        for (const auto & codec : codecs_of(GGML_TYPE_TURBO3)) {
            std::vector<float> y(d), z(d), q(d), k(d), rq(d), rk(d), shift(d), diag(d), inv(d);
            codec.rotate(x.data(), signs.data(), nullptr, y.data(), d, false);
            double err = 0;
            for (int j = 0; j < d; ++j) {
                err = std::max(err, fabs(y[j] - expected[j]));
            }
            CHECK(err <= bound, "%s, d = %d: error %g, bound %g", codec.level, d, err, bound);

            // undone, with a general map
            for (int j = 0; j < d; ++j) {
                shift[j] = normal(rng);
                diag[j]  = signs[j]*expf(normal(rng));
                inv[j]   = 1.0f/diag[j];
                q[j]     = normal(rng);
                k[j]     = normal(rng);
            }
            for (const float * s : { (const float *) nullptr, (const float *) shift.data() }) {
                codec.rotate(k.data(), diag.data(), s, y.data(), d, false);
                codec.rotate(y.data(), inv.data(),  s, z.data(), d, true);
                err = 0;
                for (int j = 0; j < d; ++j) {
                    err = std::max(err, fabs(z[j] - k[j])*fabs(diag[j]));
                }
                CHECK(err < 2e-5, "%s, d = %d: round trip error %g", codec.level, d, err);
            }

            // q.k is kept: q takes the inverse diagonal
            codec.rotate(q.data(), inv.data(),  nullptr, rq.data(), d, false);
            codec.rotate(k.data(), diag.data(), nullptr, rk.data(), d, false);
            double qk = 0, rqk = 0;
            for (int j = 0; j < d; ++j) {
                qk  += (double) q[j]*k[j];
                rqk += (double) rq[j]*rk[j];
            }
            CHECK(fabs(qk - rqk) < 1e-4*d, "%s, d = %d: q.k %g became %g", codec.level, d, qk, rqk);
        }
        n_dims++;
    }
    CHECK(n_dims == 11, "%d dims", n_dims);
}

// copies through the graph, all block sizes, permuted and partial float sides
static void test_copies() {
    ggml_backend_t backend = ggml_backend_cpu_init();
    std::mt19937 rng(4);
    std::normal_distribution<float> normal;
    for (ggml_type type : TYPES) {
        const int64_t n = ggml_blck_size(type);
        for (ggml_type flt : { GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_BF16 }) {
            ggml_init_params params = { 16*ggml_tensor_overhead() + ggml_graph_overhead(), nullptr, true };
            ggml_context * ctx = ggml_init(params);

            // a [2n, 5, 3] float tensor seen permuted as [2n, 3, 5], to turbo, and back to float in another order of rows
            ggml_tensor * a = ggml_new_tensor_3d(ctx, flt,  2*n, 5, 3);
            ggml_tensor * q = ggml_new_tensor_3d(ctx, type, 2*n, 3, 5);
            ggml_tensor * b = ggml_new_tensor_3d(ctx, flt,  2*n, 5, 3);
            ggml_tensor * r = ggml_new_tensor_1d(ctx, GGML_TYPE_I32, 4);
            ggml_tensor * to   = ggml_cpy(ctx, ggml_permute(ctx, a, 0, 2, 1, 3), q);
            ggml_tensor * from = ggml_cpy(ctx, to, ggml_permute(ctx, b, 0, 2, 1, 3));
            ggml_tensor * rows = ggml_get_rows(ctx, ggml_reshape_2d(ctx, to, 2*n, 15), r);
            ggml_cgraph * gf = ggml_new_graph(ctx);
            ggml_build_forward_expand(gf, from);
            ggml_build_forward_expand(gf, rows);
            ggml_backend_buffer_t buf = ggml_backend_alloc_ctx_tensors(ctx, backend);

            std::vector<float> x(2*n*15);
            for (auto & v : x) { v = normal(rng); }
            if (flt == GGML_TYPE_F32) {
                ggml_backend_tensor_set(a, x.data(), 0, ggml_nbytes(a));
            } else {
                std::vector<uint8_t> tmp(ggml_nbytes(a));
                ggml_get_type_traits(flt)->from_float_ref(x.data(), tmp.data(), x.size());
                ggml_get_type_traits(flt)->to_float(tmp.data(), x.data(), x.size());
                ggml_backend_tensor_set(a, tmp.data(), 0, ggml_nbytes(a));
            }
            const int32_t ids[4] = { 14, 0, 7, 7 };
            ggml_backend_tensor_set(r, ids, 0, sizeof(ids));
            ggml_backend_cpu_set_n_threads(backend, 2);
            CHECK(ggml_backend_graph_compute(backend, gf) == GGML_STATUS_SUCCESS, "%s", ggml_type_name(type));

            std::vector<uint8_t> raw(ggml_nbytes(b));
            std::vector<float> y(x.size()), got_rows(2*n*4), e(2*n);
            ggml_backend_tensor_get(b, raw.data(), 0, raw.size());
            if (flt == GGML_TYPE_F32) {
                memcpy(y.data(), raw.data(), raw.size());
            } else {
                ggml_get_type_traits(flt)->to_float(raw.data(), y.data(), y.size());
            }
            ggml_backend_tensor_get(rows, got_rows.data(), 0, ggml_nbytes(rows));

            std::vector<uint8_t> bytes(2*ggml_type_size(type));
            bool same = true, same_rows = true;
            for (int row = 0; row < 15; ++row) {
                ggml_turbo_quantize_row_ref(type, x.data() + row*2*n, bytes.data(), 2*n);
                ggml_turbo_dequantize_row_ref(type, bytes.data(), e.data(), 2*n);
                for (int i = 0; i < 4; ++i) {
                    const int i1 = ids[i] % 3, i2 = ids[i] / 3; // row of q
                    if (i1*5 + i2 == row) {
                        same_rows = same_rows && memcmp(e.data(), got_rows.data() + i*2*n, 2*n*sizeof(float)) == 0;
                    }
                }
                if (flt != GGML_TYPE_F32) {
                    std::vector<uint8_t> tmp(2*n*2);
                    ggml_get_type_traits(flt)->from_float_ref(e.data(), tmp.data(), 2*n);
                    ggml_get_type_traits(flt)->to_float(tmp.data(), e.data(), 2*n);
                }
                same = same && memcmp(e.data(), y.data() + row*2*n, 2*n*sizeof(float)) == 0;
            }
            CHECK(same, "copy %s <-> %s", ggml_type_name(type), ggml_type_name(flt));
            CHECK(same_rows, "get_rows of %s", ggml_type_name(type));

            ggml_backend_buffer_free(buf);
            ggml_free(ctx);
        }
    }
    ggml_backend_free(backend);
}

int main(int argc, char ** argv) {
    if (argc < 2 || argc > 3) {
        fprintf(stderr, "usage: test-turbo-codec VECTORS_DIR [EXPECTED_LEVEL]\n");
        return 2;
    }
    const char * level = ggml_turbo_cpu_level();
    if (argc == 3) {
        CHECK(strcmp(level, argv[2]) == 0, "the level in use is %s, expected %s", level, argv[2]);
    }

    test_types();
    test_vectors(argv[1]);
    test_levels_agree();
    test_mse();
    test_rotation(argv[1]);
    test_copies();

    printf("level in use: %s; %d checks, %d failed\n", level, n_checks, n_failed);
    return n_failed == 0 ? 0 : 1;
}
