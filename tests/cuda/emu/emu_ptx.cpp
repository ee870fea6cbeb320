// The PTX instructions that ggml writes as asm statements. Fragment layouts: PTX ISA, "Matrix multiply-accumulate operation using
// mma instruction" and "ldmatrix"; g = lane/4, t = lane%4.

#include "cuda_emu.h"
#include "emu_internal.h"

#include <unordered_map>

namespace emu {

namespace {

enum class op { ldmatrix, ldmatrix_trans, movmatrix, cp_async, commit, wait_group, wait_all, mma_f16, mma_bf16, mma_s8, prefetch };

struct instruction { op o; int m = 0, n = 0, k = 0; bool acc_f32 = false; int count = 0; };

bool starts(const std::string & s, const char * prefix) { return s.rfind(prefix, 0) == 0; }

instruction parse(const char * text) {
    const std::string s = text;
    if (starts(s, "ldmatrix.sync.aligned.m8n8.x")) {
        return { s.find(".trans") != s.npos ? op::ldmatrix_trans : op::ldmatrix, 8, 8, 0, false, s[28] - '0' };
    }
    if (starts(s, "movmatrix.sync.aligned.m8n8.trans.b16")) { return { op::movmatrix }; }
    if (starts(s, "cp.async.wait_all"))   { return { op::wait_all }; }
    if (starts(s, "cp.async.wait_group")) { return { op::wait_group, 0, 0, 0, false, atoi(text + 19) }; }
    if (starts(s, "cp.async.commit_group")) { return { op::commit }; }
    if (starts(s, "cp.async.cg.shared.global") || starts(s, "cp.async.ca.shared.global")) {
        return { op::cp_async, 0, 0, 0, false, atoi(text + s.rfind(',') + 1) };
    }
    if (starts(s, "prefetch")) { return { op::prefetch }; }
    int m, n, k;
    char d[8], a[8], b[8], c[8];
    if (sscanf(text, "mma.sync.aligned.m%dn%dk%d.row.col.%7[a-z0-9].%7[a-z0-9].%7[a-z0-9].%7[a-z0-9]", &m, &n, &k, d, a, b, c) == 7 && n == 8) {
        const std::string ab = a;
        if (ab == "f16"  && m == 16 && (k == 8 || k == 16)) { return { op::mma_f16,  m, n, k, std::string(d) == "f32" }; }
        if (ab == "bf16" && m == 16 && (k == 8 || k == 16)) { return { op::mma_bf16, m, n, k, true }; }
        if (ab == "s8"   && m == 16 && (k == 16 || k == 32)) { return { op::mma_s8,   m, n, k, false }; }
    }
    fprintf(stderr, "emu: PTX instruction not emulated: %s\n", text);
    abort();
}

template <typename T> T get(const value & v) { T r; memcpy(&r, v.b, sizeof(T)); return r; }

float half_at(uint32_t word, int i, bool bf16) {
    const uint16_t h = (uint16_t) (word >> 16*i);
    if (bf16) {
        const uint32_t w = (uint32_t) h << 16;
        float r;
        memcpy(&r, &w, 4);
        return r;
    }
    __half_raw raw;
    raw.x = h;
    return __half2float(raw);
}

void finish_copies(size_t n) {
    fiber & f = *current;
    for (size_t i = 0; i < n; ++i) {
        memcpy(f.copies[i].dst, f.copies[i].src, f.copies[i].size);
    }
    f.copies.erase(f.copies.begin(), f.copies.begin() + n);
}

// D += A*B of 16-bit floats. Products are exact, the sum of a row is rounded once.
void mma_float(const instruction & in, operand * d, const value * v) {
    const int na = in.k/4, nb = in.k/8;
    struct { uint32_t a[4], b[2]; } mine = {};
    for (int i = 0; i < na; ++i) { mine.a[i] = get<uint32_t>(v[i]); }
    for (int i = 0; i < nb; ++i) { mine.b[i] = get<uint32_t>(v[na + i]); }
    const exchange_rows rows = exchange(~0u, &mine, sizeof(mine));
    const int g = current->lane/4, t = current->lane % 4;
    const bool bf16 = in.o == op::mma_bf16;
    for (int i = 0; i < 4; ++i) { // c_i: row g or g + 8, column 2t or 2t + 1
        const int row = g, hi = i/2, col = 2*t + i % 2;
        double sum = 0.0;
        for (int k = 0; k < in.k; ++k) {
            const uint32_t * a = (const uint32_t *) rows[row*4 + k % 8/2];
            const uint32_t * b = (const uint32_t *) rows[col*4 + k % 8/2] + 4;
            sum += (double) half_at(a[hi + 2*(k/8)], k % 2, bf16)*half_at(b[k/8], k % 2, bf16);
        }
        if (in.acc_f32) {
            float & c = *(float *) d[i].p;
            c = (float) (c + sum);
        } else {
            uint16_t * c = (uint16_t *) d[hi].p + i % 2;
            __half_raw raw;
            raw.x = *c;
            const __half r = __double2half(__half2float(raw) + sum);
            memcpy(c, &r, 2);
        }
    }
}

void mma_int(const instruction & in, operand * d, const value * v) {
    const int na = in.k/8, nb = in.k/16;
    struct { uint32_t a[4], b[2]; } mine = {};
    for (int i = 0; i < na; ++i) { mine.a[i] = get<uint32_t>(v[i]); }
    for (int i = 0; i < nb; ++i) { mine.b[i] = get<uint32_t>(v[na + i]); }
    const exchange_rows rows = exchange(~0u, &mine, sizeof(mine));
    const int g = current->lane/4, t = current->lane % 4;
    for (int i = 0; i < 4; ++i) {
        const int hi = i/2, col = 2*t + i % 2;
        int sum = 0;
        for (int k = 0; k < in.k; ++k) {
            const uint32_t a = ((const uint32_t *) rows[g*4   + k % 16/4])[hi + 2*(k/16)];
            const uint32_t b = ((const uint32_t *) rows[col*4 + k % 16/4])[4 + k/16];
            sum += (int8_t) (a >> 8*(k % 4))*(int8_t) (b >> 8*(k % 4));
        }
        *(int *) d[i].p += sum;
    }
}

void ldmatrix(const instruction & in, operand * d, const value & address) {
    const uintptr_t mine = address.size == 4 ? get<uint32_t>(address) : get<uint64_t>(address);
    uintptr_t addr[WARP];
    const exchange_rows rows = exchange(~0u, &mine, sizeof(mine));
    for (int i = 0; i < WARP; ++i) {
        memcpy(&addr[i], rows[i], sizeof(addr[i]));
    }
    const int g = current->lane/4, t = current->lane % 4;
    for (int j = 0; j < in.count; ++j) {
        uint16_t h[2];
        for (int i = 0; i < 2; ++i) {
            const bool trans = in.o == op::ldmatrix_trans;
            const uintptr_t p = addr[8*j + (trans ? 2*t + i : g)] + 2*(trans ? g : 2*t + i);
            check_access(p, 2, false, true, (uintptr_t) __builtin_return_address(0));
            memcpy(&h[i], (const void *) p, 2);
        }
        if (addr[8*j + g] % 16 != 0) {
            add_fault("misaligned", "ldmatrix row is not 16-byte aligned");
        }
        memcpy(d[j].p, h, 4);
    }
}

} // namespace

void ptx(const char * text, std::initializer_list<operand> outs, std::initializer_list<value> ins) {
    static std::unordered_map<const char *, instruction> cache;
    auto it = cache.find(text);
    if (it == cache.end()) {
        it = cache.emplace(text, parse(text)).first;
    }
    const instruction & in = it->second;
    operand d[8];
    std::copy(outs.begin(), outs.end(), d);
    const value * v = ins.begin();
    fiber & f = *current;
    switch (in.o) {
        case op::mma_f16: case op::mma_bf16: mma_float(in, d, v); break;
        case op::mma_s8: mma_int(in, d, v); break;
        case op::ldmatrix: case op::ldmatrix_trans: ldmatrix(in, d, v[0]); break;
        case op::movmatrix: {
            const uint32_t x = get<uint32_t>(v[0]);
            const exchange_rows rows = exchange(~0u, &x, 4);
            const int g = f.lane/4, t = f.lane % 4;
            uint16_t h[2];
            for (int i = 0; i < 2; ++i) {
                memcpy(&h[i], rows[(2*t + i)*4 + g/2] + 2*(g % 2), 2);
            }
            memcpy(d[0].p, h, 4);
        } break;
        case op::cp_async: {
            const uintptr_t dst = v[0].size == 4 ? get<uint32_t>(v[0]) : get<uint64_t>(v[0]);
            const uintptr_t src = get<uint64_t>(v[1]);
            const uintptr_t pc = (uintptr_t) __builtin_return_address(0);
            if (dst % in.count || src % in.count) {
                add_fault("misaligned", "cp.async of " + std::to_string(in.count) + " bytes");
            }
            check_access(src, in.count, false, false, pc);
            check_access(dst, in.count, true,  false, pc);
            f.copies.push_back({ (void *) dst, (const void *) src, (size_t) in.count });
        } break;
        case op::commit: f.groups.push_back(f.copies.size()); break;
        case op::wait_all: finish_copies(f.copies.size()); f.groups.clear(); break;
        case op::wait_group:
            while (f.groups.size() > (size_t) in.count) {
                const size_t n = f.groups.front();
                finish_copies(n);
                f.groups.erase(f.groups.begin());
                for (size_t & g : f.groups) { g -= n; }
            }
            break;
        case op::prefetch: break;
    }
}

} // namespace emu
