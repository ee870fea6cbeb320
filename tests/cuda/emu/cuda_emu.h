#pragma once

// The device side of CUDA for plain g++ (x86-64): force-included before every kernel source, after emu_prep.py rewrote in it the
// things that no C++ compiler parses. One fiber runs one CUDA thread; barriers, shuffles and votes are rendezvous between fibers.

#include <cuda_runtime.h>
#include <cuda.h>
#include <cublas_v2.h>
#include <cuda_fp16.h>
#include <cuda_bf16.h>
#include <cuda_fp8.h>
#include <cuda_fp4.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <tuple>
#include <type_traits>
#include <vector>

#include "emu.h"

#undef  __shared__
#undef  __constant__
#undef  __launch_bounds__
#define __launch_bounds__(...)
#define __constant__
#define __builtin_assume(x) ((void) 0)
#ifndef EMU_ARCH
#define EMU_ARCH 900
#endif
#define __CUDA_ARCH__ EMU_ARCH // after the CUDA headers: it selects ggml's code paths, not the headers' assembly
#define warpSize 32

extern uint3 threadIdx, blockIdx;
extern dim3  blockDim, gridDim;

namespace emu {

// Rendezvous of the lanes in mask; each gives `size` <= 64 bytes and sees what every other gave: the result points to 32 rows of 64 bytes.
// It stays valid until the caller's second next rendezvous with the same mask.
using exchange_rows = const unsigned char (*)[64];
exchange_rows exchange(unsigned mask, const void * mine, size_t size);
void shuffle(unsigned mask, const void * mine, void * res, size_t size, int src);
void sync_warp(unsigned mask); // also orders memory, which a shuffle does not
void sync_block();
int  sync_block_or(int p);
void atomic_access(const void * p, size_t n);
int  lane();

// Shared memory: a named array lives in the block's arena at a place of its own, with a gap to its neighbours.
void * shared_array(const void * key, const char * name, size_t size, size_t align);
void * shared_dynamic();

using body_t = void (*)(void *);
void launch(const char * kernel, dim3 grid, dim3 block, size_t smem, body_t body, void * arg);

template <typename K> struct launcher { // kernel<<<grid, block, smem, stream>>>(args...)
    const char * name; K k; dim3 g, b; size_t s;
    template <typename... A> void operator()(A && ... a) {
        // by value, as a launch takes them: a reference may lead into host memory
        auto values = std::make_tuple(a...);
        auto call = [&] { std::apply(k, values); };
        launch(name, g, b, s, [](void * p) { (*(decltype(call) *) p)(); }, &call);
    }
};
template <typename K> launcher<K> make_launcher(const char * name, K k, dim3 g, dim3 b, size_t s = 0, cudaStream_t = nullptr) { return { name, k, g, b, s }; }

template <typename T> T from_lane(unsigned mask, T v, int src) { // the value of lane src, one's own if src < 0
    static_assert(sizeof(T) <= 64, "shuffled type is too large");
    T res;
    shuffle(mask, &v, (void *) &res, sizeof(T), src);
    return res;
}
unsigned ballot(unsigned mask, bool p);

// asm statements: operands in the order %0, %1, ...
struct operand { void * p; size_t size; };
template <typename T> operand out(T & x) { return { (void *) &x, sizeof(T) }; }
struct value { alignas(16) unsigned char b[16]; size_t size; template <typename T> value(const T & x) : size(sizeof(T)) { static_assert(sizeof(T) <= 16, ""); memcpy(b, &x, sizeof(T)); } };
void ptx(const char * text, std::initializer_list<operand> outs, std::initializer_list<value> ins);

float sqrt_approx(float x); // within an ulp of the root, and not always the rounded root: as sqrt.approx may be

} // namespace emu

inline void __syncthreads() { emu::sync_block(); }
inline void __syncwarp(unsigned mask = ~0u) { emu::sync_warp(mask); }
inline int  __syncthreads_or(int p) { return emu::sync_block_or(p); }
inline void __threadfence() {}
inline void __threadfence_block() {}
inline size_t __cvta_generic_to_shared(const void * p) { return (size_t) p; }
inline void __trap() { abort(); }
inline unsigned __activemask() { return ~0u; }

template <typename T> T __shfl_xor_sync(unsigned mask, T v, int m, int w = 32) {
    const int l = emu::lane(), s = l ^ m;
    return emu::from_lane(mask, v, s < (l & ~(w - 1)) + w ? s : -1);
}
template <typename T> T __shfl_sync(unsigned mask, T v, int s, int w = 32) {
    return emu::from_lane(mask, v, (emu::lane() & ~(w - 1)) + (s & (w - 1)));
}
template <typename T> T __shfl_up_sync(unsigned mask, T v, unsigned d, int w = 32) {
    const int l = emu::lane(), s = l - (int) d;
    return emu::from_lane(mask, v, s >= (l & ~(w - 1)) ? s : -1);
}
template <typename T> T __shfl_down_sync(unsigned mask, T v, unsigned d, int w = 32) {
    const int l = emu::lane(), s = l + (int) d;
    return emu::from_lane(mask, v, s < (l & ~(w - 1)) + w ? s : -1);
}
inline unsigned __ballot_sync(unsigned mask, int p) { return emu::ballot(mask, p); }
inline int __any_sync(unsigned mask, int p) { return emu::ballot(mask, p) != 0; }
inline int __all_sync(unsigned mask, int p) { return emu::ballot(mask, !p) == 0; }
template <typename T> T __reduce_add_sync(unsigned mask, T v) { for (int o = 16; o; o >>= 1) { v += __shfl_xor_sync(mask, v, o); } return v; }
template <typename T> T __reduce_max_sync(unsigned mask, T v) { for (int o = 16; o; o >>= 1) { const T t = __shfl_xor_sync(mask, v, o); v = t > v ? t : v; } return v; }
template <typename T> T __reduce_or_sync (unsigned mask, T v) { for (int o = 16; o; o >>= 1) { v |= __shfl_xor_sync(mask, v, o); } return v; }

inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __ffs(int x) { return __builtin_ffs(x); }
inline int __clz(int x) { return x ? __builtin_clz((unsigned) x) : 32; }
inline unsigned __brev(unsigned x) { unsigned r = 0; for (int i = 0; i < 32; ++i) { r |= ((x >> i) & 1u) << (31 - i); } return r; }
inline unsigned __umulhi(unsigned a, unsigned b) { return (uint64_t(a)*b) >> 32; }
inline int __mul24(int a, int b) { return a*b; }
inline unsigned __funnelshift_r(unsigned lo, unsigned hi, unsigned s) { return (unsigned) (((uint64_t(hi) << 32) | lo) >> (s & 31)); }
inline unsigned __funnelshift_l(unsigned lo, unsigned hi, unsigned s) { return (unsigned) ((((uint64_t(hi) << 32) | lo) << (s & 31)) >> 32); }
inline unsigned __funnelshift_rc(unsigned lo, unsigned hi, unsigned s) { return (unsigned) (((uint64_t(hi) << 32) | lo) >> (s < 32 ? s : 32)); }
inline int __dp4a(int a, int b, int c) { for (int i = 0; i < 32; i += 8) { c += int8_t(a >> i)*int8_t(b >> i); } return c; }
template <typename F> unsigned emu_simd4(unsigned a, unsigned b, F f) {
    unsigned r = 0;
    for (int i = 0; i < 32; i += 8) { r |= unsigned(uint8_t(f(uint8_t(a >> i), uint8_t(b >> i)))) << i; }
    return r;
}
inline unsigned __vadd4 (unsigned a, unsigned b)   { return emu_simd4(a, b, [](int x, int y) { return x + y; }); }
inline unsigned __vsub4 (unsigned a, unsigned b)   { return emu_simd4(a, b, [](int x, int y) { return x - y; }); }
inline unsigned __vsubss4(unsigned a, unsigned b)  { return emu_simd4(a, b, [](int8_t x, int8_t y) { int d = x - y; return d < -128 ? -128 : d > 127 ? 127 : d; }); }
inline unsigned __vcmpne4(unsigned a, unsigned b)  { return emu_simd4(a, b, [](int x, int y) { return x != y ? 255 : 0; }); }
inline unsigned __vcmpeq4(unsigned a, unsigned b)  { return emu_simd4(a, b, [](int x, int y) { return x == y ? 255 : 0; }); }
inline unsigned __byte_perm(unsigned a, unsigned b, unsigned s) {
    const uint64_t v = (uint64_t(b) << 32) | a;
    unsigned r = 0;
    for (int i = 0; i < 4; ++i) {
        const unsigned c = (s >> 4*i) & 15;
        uint8_t x = (uint8_t) (v >> 8*(c & 7));
        if (c & 8) { x = x & 128 ? 255 : 0; }
        r |= unsigned(x) << 8*i;
    }
    return r;
}
template <typename T> T __ldg (const T * p) { return *p; }
template <typename T> T __ldcs(const T * p) { return *p; }
template <typename T> T __ldcg(const T * p) { return *p; }

// blocks and fibers run one at a time: plain code is atomic
template <typename T> T atomicAdd(T * p, T v) { emu::atomic_access(p, sizeof(T)); T o; __builtin_memcpy(&o, p, sizeof(T)); const T n = o + v; __builtin_memcpy(p, &n, sizeof(T)); return o; }
template <typename T> T atomicMax(T * p, T v) { emu::atomic_access(p, sizeof(T)); T o; __builtin_memcpy(&o, p, sizeof(T)); const T n = o < v ? v : o; __builtin_memcpy(p, &n, sizeof(T)); return o; }
template <typename T> T atomicOr (T * p, T v) { emu::atomic_access(p, sizeof(T)); T o; __builtin_memcpy(&o, p, sizeof(T)); const T n = o | v; __builtin_memcpy(p, &n, sizeof(T)); return o; }

template <typename A, typename B> constexpr std::common_type_t<A, B> min(A a, B b) { std::common_type_t<A, B> x = a, y = b; return y < x ? y : x; }
template <typename A, typename B> constexpr std::common_type_t<A, B> max(A a, B b) { std::common_type_t<A, B> x = a, y = b; return x < y ? y : x; }

// Operations that nvcc rounds as written: the volatile keeps the host compiler from contracting them.
inline float __fmul_rn(float a, float b) { volatile float r = a*b; return r; }
inline float __fadd_rn(float a, float b) { volatile float r = a + b; return r; }
inline float __fsub_rn(float a, float b) { volatile float r = a - b; return r; }
inline float __fdiv_rn(float a, float b) { volatile float r = a/b; return r; }
inline float __fsqrt_rn(float a) { volatile float r = __builtin_sqrtf(a); return r; }
inline float __fmaf_rn(float a, float b, float c) { return __builtin_fmaf(a, b, c); }
inline float __frcp_rn(float a) { volatile float r = 1.0f/a; return r; }
inline float __fdividef(float a, float b) { return a/b; }
inline float __expf(float x)   { return expf(x); }
inline float __exp2f(float x)  { return exp2f(x); }
inline float __logf(float x)   { return logf(x); }
inline float __log2f(float x)  { return log2f(x); }
inline float __powf(float x, float y) { return powf(x, y); }
inline float __tanhf(float x)  { return tanhf(x); }
inline float rsqrtf(float x)   { return 1.0f/__builtin_sqrtf(x); }
inline float __saturatef(float x) { return x < 0.0f ? 0.0f : x > 1.0f ? 1.0f : x; }
inline int      __float_as_int (float x)    { int r; memcpy(&r, &x, 4); return r; }
inline unsigned __float_as_uint(float x)    { unsigned r; memcpy(&r, &x, 4); return r; }
inline float    __int_as_float (int x)      { float r; memcpy(&r, &x, 4); return r; }
inline float    __uint_as_float(unsigned x) { float r; memcpy(&r, &x, 4); return r; }
inline int __float2int_rn(float x) { return (int) nearbyintf(x); }
inline int __float2int_rz(float x) { return (int) x; }
inline int __float2int_rd(float x) { return (int) floorf(x); }
// GCC does not instrument the store of a call's result. So that `shared[i] = __float2half_rn(x)` is seen, the result goes through a variable.
inline __attribute__((always_inline)) __half emu_float2half_rn (float x) { __half r = __float2half_rn(x); return r; }
inline __attribute__((always_inline)) __half emu_float2half    (float x) { __half r = __float2half(x);    return r; }
inline __attribute__((always_inline)) __half emu_ushort_as_half(unsigned short x) { __half r = __ushort_as_half(x); return r; }
#define __float2half_rn(x)  emu_float2half_rn(x)
#define __float2half(x)     emu_float2half(x)
#define __ushort_as_half(x) emu_ushort_as_half(x)
#ifdef EMU_FAST_MATH
#define sqrtf(x) emu::sqrt_approx(x) // -use_fast_math
#endif

template <typename... A> cudaError_t cudaFuncSetAttribute(void (*)(A...), cudaFuncAttribute, int) { return cudaSuccess; }
inline void cudaGridDependencySynchronize() {}
inline void cudaTriggerProgrammaticLaunchCompletion() {}
