// Reference implementation of docs/FORMAT.md: scalar, in the order of its sections. The kernels of the backends must write
// the same bytes. Built without contraction or reassociation (ggml-turbo.cmake), or the lane sums would not be the format's.

#include "ggml-turbo-traits.h"

#include "ggml-impl.h"
#include "ggml-turbo-tables.h"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

// section 1: types

int ggml_turbo_bits(enum ggml_type type) {
    switch (type) {
#define X(ID, ENUM, NAME, BITS, BLOCK) case GGML_TYPE_##ENUM: return BITS;
        GGML_TURBO_TYPES(X)
#undef X
        default: return 0;
    }
}

float ggml_turbo_nmse(enum ggml_type type) {
    switch (type) {
#define X(ID, ENUM, NAME, BITS, BLOCK) case GGML_TYPE_##ENUM: return GGML_TURBO_NMSE_B##BITS##_N##BLOCK;
        GGML_TURBO_TYPES(X)
#undef X
        default: return 0.0f;
    }
}

enum ggml_type ggml_turbo_family_from_name(const char * name) {
#define X(ID, ENUM, NAME, BITS, BLOCK) if (strcmp(name, #NAME) == 0) { return GGML_TYPE_##ENUM; }
    GGML_TURBO_FAMILIES(X)
#undef X
    return GGML_TYPE_COUNT;
}

enum ggml_type ggml_turbo_resolve(enum ggml_type type, int64_t n_embd_head) {
    if (!ggml_is_turbo(type)) {
        return type;
    }
    // MLA keys: their 512 latent channels are the values, and must be whole blocks
    if (n_embd_head == 576) {
        n_embd_head = 64;
    }
    enum ggml_type best = GGML_TYPE_COUNT;
    int best_block = 0;
#define X(ID, ENUM, NAME, BITS, BLOCK) \
    if (BITS == ggml_turbo_bits(type) && n_embd_head % BLOCK == 0 && BLOCK > best_block) { best = GGML_TYPE_##ENUM; best_block = BLOCK; }
    GGML_TURBO_TYPES(X)
#undef X
    return ggml_turbo_hadamard_order(n_embd_head) != 0 ? best : GGML_TYPE_COUNT;
}

// section 4: codec

namespace {

constexpr uint16_t FP16_NAN = 0x7E00;
constexpr float    FP16_MAX = 65504.0f;
constexpr float    ZERO_BELOW = 0x1p-40f;

float lane_sum(const float * v, int n) {
    float a[16];
    memcpy(a, v, sizeof(a));
    for (int g = 16; g < n; g += 16) {
        for (int l = 0; l < 16; ++l) {
            a[l] += v[g + l];
        }
    }
    for (int w = 8; w > 0; w /= 2) {
        for (int l = 0; l < w; ++l) {
            a[l] += a[l + w];
        }
    }
    return a[0];
}

void put_code(uint8_t * qs, int bits, int j, uint32_t code) {
    for (int b = 0; b < bits; ++b) {
        const int bit = bits*j + b;
        qs[bit/8] |= (uint8_t) (((code >> b) & 1u) << (bit % 8));
    }
}

uint32_t get_code(const uint8_t * qs, int bits, int j) {
    uint32_t code = 0;
    for (int b = 0; b < bits; ++b) {
        const int bit = bits*j + b;
        code |= (uint32_t) ((qs[bit/8] >> (bit % 8)) & 1u) << b;
    }
    return code;
}

template <int BITS, int BLOCK>
void quantize_block_ref(const float * x, uint8_t * y) {
    using cb = codebook<BITS, BLOCK>;
    constexpr int H = 1 << (BITS - 1);

    memset(y, 0, GGML_TURBO_BLOCK_SIZE(BITS, BLOCK));

    float m = 0.0f;
    for (int j = 0; j < BLOCK; ++j) {
        if (!std::isfinite(x[j])) {
            memcpy(y, &FP16_NAN, sizeof(FP16_NAN));
            return;
        }
        m = fmaxf(m, fabsf(x[j]));
    }
    if (m < ZERO_BELOW) {
        return;
    }

    int e;
    frexpf(m, &e); // m = f * 2^e, f in [0.5, 1)
    e = e - 1 < 126 ? e - 1 : 126;

    const float p = ldexpf(1.0f, -e);

    float u[BLOCK], v[BLOCK], w[BLOCK];
    for (int j = 0; j < BLOCK; ++j) {
        u[j] = x[j] * p;
        v[j] = u[j] * u[j];
    }
    const float r = sqrtf(lane_sum(v, BLOCK) / (float) BLOCK);

    float t[H]; // H - 1 thresholds
    for (int i = 0; i < H - 1; ++i) {
        t[i] = cb::boundaries[i] * r;
    }

    for (int j = 0; j < BLOCK; ++j) {
        const float a = fabsf(u[j]);
        int i = 0;
        for (int k = 0; k < H - 1; ++k) {
            i += a > t[k];
        }
        put_code(y + 2, BITS, j, u[j] >= 0.0f ? H + i : H - 1 - i);
        v[j] = a * cb::centroids[i];
        w[j] = cb::centroids[i] * cb::centroids[i];
    }

    const float g = lane_sum(v, BLOCK) / lane_sum(w, BLOCK);
    const float s = ldexpf(g, e);

    const ggml_fp16_t d = ggml_fp32_to_fp16(s < FP16_MAX ? s : FP16_MAX);
    memcpy(y, &d, sizeof(d));
}

template <int BITS, int BLOCK>
void dequantize_block_ref(const uint8_t * x, float * y) {
    using cb = codebook<BITS, BLOCK>;
    constexpr int H = 1 << (BITS - 1);

    ggml_fp16_t d16;
    memcpy(&d16, x, sizeof(d16));
    const float d = ggml_fp16_to_fp32(d16);

    for (int j = 0; j < BLOCK; ++j) {
        const int k = (int) get_code(x + 2, BITS, j);
        y[j] = d * (k >= H ? cb::centroids[k - H] : -cb::centroids[H - 1 - k]);
    }
}

} // namespace

#define X(ID, ENUM, NAME, BITS, BLOCK)                                                                              \
    void quantize_row_##NAME##_ref(const float * GGML_RESTRICT x, void * GGML_RESTRICT y, int64_t k) {              \
        GGML_ASSERT(k % BLOCK == 0);                                                                                \
        for (int64_t i = 0; i < k/BLOCK; ++i) {                                                                     \
            quantize_block_ref<BITS, BLOCK>(x + i*BLOCK, (uint8_t *) y + i*GGML_TURBO_BLOCK_SIZE(BITS, BLOCK));     \
        }                                                                                                           \
    }                                                                                                               \
    void dequantize_row_##NAME(const void * GGML_RESTRICT x, float * GGML_RESTRICT y, int64_t k) {                  \
        GGML_ASSERT(k % BLOCK == 0);                                                                                \
        for (int64_t i = 0; i < k/BLOCK; ++i) {                                                                     \
            dequantize_block_ref<BITS, BLOCK>((const uint8_t *) x + i*GGML_TURBO_BLOCK_SIZE(BITS, BLOCK), y + i*BLOCK); \
        }                                                                                                           \
    }
GGML_TURBO_TYPES(X)
#undef X

void ggml_turbo_quantize_row_ref(enum ggml_type type, const float * x, void * y, int64_t k) {
    GGML_ASSERT(ggml_is_turbo(type));
    ggml_get_type_traits(type)->from_float_ref(x, y, k);
}

void ggml_turbo_dequantize_row_ref(enum ggml_type type, const void * x, float * y, int64_t k) {
    GGML_ASSERT(ggml_is_turbo(type));
    ggml_get_type_traits(type)->to_float(x, y, k);
}

size_t ggml_turbo_quantize_chunk(enum ggml_type type, const float * x, void * y, int64_t nrows, int64_t n_per_row) {
    ggml_turbo_quantize_row_ref(type, x, y, nrows*n_per_row);
    return nrows*ggml_row_size(type, n_per_row);
}

bool ggml_turbo_validate_row_data(enum ggml_type type, const void * data, size_t nbytes) {
    const size_t size = ggml_type_size(type);
    for (size_t i = 0; i < nbytes/size; ++i) {
        ggml_fp16_t d;
        memcpy(&d, (const char *) data + i*size, sizeof(d));
        if (!std::isfinite(ggml_fp16_to_fp32(d))) {
            fprintf(stderr, "%s: the scale of block %zu is not finite\n", __func__, i);
            return false;
        }
    }
    return true;
}

// section 5: rotation

void ggml_turbo_signs(uint32_t layer, int64_t d, float * signs) {
    uint64_t z = (uint64_t) layer * 0x9E3779B97F4A7C15ull;
    uint64_t w = 0;
    for (int64_t j = 0; j < d; ++j) {
        if (j % 64 == 0) {
            z += 0x9E3779B97F4A7C15ull;
            w = z;
            w = (w ^ (w >> 30)) * 0xBF58476D1CE4E5B9ull;
            w = (w ^ (w >> 27)) * 0x94D049BB133111EBull;
            w =  w ^ (w >> 31);
        }
        signs[j] = (w >> (j % 64)) & 1 ? -1.0f : 1.0f;
    }
}

int ggml_turbo_hadamard_order(int64_t d) {
    for (int m : { 1, 12, 20, 28, 36 }) {
        const int64_t p = d / m;
        if (d > 0 && p*m == d && p >= 2 && (p & (p - 1)) == 0) {
            return m;
        }
    }
    return 0;
}

// Paley II: m = 2(q + 1), q = 1 mod 4 a prime power. q = 9 needs GF(9) = GF(3)[w]/(w^2 + 1), the element a + b*w numbered 3a + b.
static std::vector<float> make_hadamard(int m) {
    if (m == 1) {
        return { 1.0f };
    }
    const int q = m/2 - 1;
    const bool ext = q == 9;

    auto sub = [&](int x, int y) {
        return ext ? 3*((x/3 - y/3 + 3) % 3) + (x%3 - y%3 + 3) % 3 : (x - y + q) % q;
    };
    auto sqr = [&](int x) {
        const int a = x/3, b = x%3;
        return ext ? 3*((a*a + 2*b*b) % 3) + (2*a*b) % 3 : (x*x) % q;
    };

    std::vector<int> chi(q, -1);
    for (int x = 0; x < q; ++x) {
        chi[sqr(x)] = 1;
    }
    chi[0] = 0;

    const int n = q + 1;
    std::vector<float> res(m*m);
    for (int i = 0; i < n; ++i) {
        for (int j = 0; j < n; ++j) {
            const int c = i == j ? 0 : i == 0 || j == 0 ? 1 : chi[sub(i - 1, j - 1)];
            const int o = i == j;
            res[(2*i    )*m + 2*j    ] = (float) ( c + o);
            res[(2*i    )*m + 2*j + 1] = (float) ( c - o);
            res[(2*i + 1)*m + 2*j    ] = (float) ( c - o);
            res[(2*i + 1)*m + 2*j + 1] = (float) (-c - o);
        }
    }
    return res;
}

const float * ggml_turbo_hadamard_matrix(int m) {
    switch (m) {
        case  1: { static const std::vector<float> h = make_hadamard( 1); return h.data(); }
        case 12: { static const std::vector<float> h = make_hadamard(12); return h.data(); }
        case 20: { static const std::vector<float> h = make_hadamard(20); return h.data(); }
        case 28: { static const std::vector<float> h = make_hadamard(28); return h.data(); }
        case 36: { static const std::vector<float> h = make_hadamard(36); return h.data(); }
        default: return nullptr;
    }
}

void ggml_turbo_rotate_row_ref(const float * x, const float * diag, const float * shift, float * y, int64_t d, bool inverse) {
    const int m = ggml_turbo_hadamard_order(d);
    GGML_ASSERT(m > 0 && "no rotation for this dimension");
    const float * h = ggml_turbo_hadamard_matrix(m);
    const int64_t p = d/m;

    std::vector<float> a(d), b(d);
    for (int64_t j = 0; j < d; ++j) {
        a[j] = inverse ? x[j] : (x[j] - (shift ? shift[j] : 0.0f)) * (diag ? diag[j] : 1.0f);
    }
    for (int64_t len = 1; len < p; len *= 2) {
        for (int64_t i = 0; i < d; i += 2*len) {
            for (int64_t j = i; j < i + len; ++j) {
                const float s = a[j], t = a[j + len];
                a[j]       = s + t;
                a[j + len] = s - t;
            }
        }
    }
    for (int r = 0; r < m; ++r) {
        for (int64_t j = 0; j < p; ++j) {
            float s = 0.0f;
            for (int c = 0; c < m; ++c) {
                s += h[r*m + c] * a[c*p + j];
            }
            b[r*p + j] = s;
        }
    }
    const float scale = 1.0f/sqrtf((float) d);
    for (int64_t j = 0; j < d; ++j) {
        y[j] = b[j] * scale;
        if (inverse) {
            y[j] = y[j] * (diag ? diag[j] : 1.0f) + (shift ? shift[j] : 0.0f);
        }
    }
}

struct ggml_tensor * ggml_turbo_rotate(
        struct ggml_context * ctx,
        struct ggml_tensor  * x,
        struct ggml_tensor  * diag,
        struct ggml_tensor  * shift,
        int64_t               split,
        bool                  inverse) {
    const int64_t d = x->ne[0];
    const int64_t n_head = x->ne[1];

    GGML_ASSERT(x->type == GGML_TYPE_F32 && x->nb[0] == sizeof(float));
    GGML_ASSERT(split >= 0 && split < d);
    GGML_ASSERT(ggml_turbo_hadamard_order(split == 0 ? d : split) != 0 && ggml_turbo_hadamard_order(d - split) != 0);
    for (struct ggml_tensor * map : { diag, shift }) {
        GGML_ASSERT(map == NULL || (map->type == GGML_TYPE_F32 && ggml_is_contiguous_rows(map) && map->ne[0] >= d && n_head % map->ne[1] == 0));
    }

    struct ggml_tensor * result = ggml_new_tensor_4d(ctx, GGML_TYPE_F32, x->ne[0], x->ne[1], x->ne[2], x->ne[3]);

    const int32_t params[2] = { inverse, (int32_t) split };
    memcpy(result->op_params, params, sizeof(params));

    result->op     = GGML_OP_TURBO_ROTATE;
    result->src[0] = x;
    result->src[1] = diag;
    result->src[2] = shift;

    return result;
}
