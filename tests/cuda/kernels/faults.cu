#include "faults.h"

#include "common.cuh"

static __global__ void k_reverse(const float * x, float * y, int n, int fault) {
    __shared__ float tile[64];
    const int i = blockIdx.x*64 + threadIdx.x;
    const int j = n - 1 - i;
    if (j >= 0 || fault == (int) planted::store_before_start) {
        const int off = fault == (int) planted::load_past_end ? 1 : 0;
        if (fault != (int) planted::uninitialised_shared || threadIdx.x != 5) {
            tile[threadIdx.x + (fault == (int) planted::shared_past_end && threadIdx.x == 63)] = x[(j >= 0 ? j : 0) + off];
        }
    }
    if (fault == (int) planted::divergent_barrier) {
        if (threadIdx.x < 40) {
            __syncthreads();
        }
    } else if (fault != (int) planted::missing_syncthreads) {
        __syncthreads();
    }
    // a thread reads what another stored
    const int k = blockIdx.x*64 + (threadIdx.x ^ 33);
    if (k < n) {
        y[k + (fault == (int) planted::store_past_end)] = tile[threadIdx.x ^ 33];
    } else if (fault == (int) planted::store_before_start && threadIdx.x == 0) {
        y[-1] = 0.0f;
    }
    if (fault == (int) planted::racing_blocks) {
        y[0] = (float) blockIdx.x;
    }
}

void reverse_rows(const float * x, float * y, int n, planted fault) {
    k_reverse<<<(n + 63)/64, 64>>>(x, y, n, (int) fault);
}

static __global__ void k_warp_sum(const float * x, float * y, int fault) {
    __shared__ float s[32];
    const int l = threadIdx.x;
    s[l] = x[l];
    for (int w = 16; w > 0; w /= 2) {
        if (fault == (int) planted::missing_syncwarp) {
            __shfl_sync(0xFFFFFFFF, 0, 0, 32); // lockstep, but no order of memory
        } else {
            __syncwarp();
        }
        const float v = s[l ^ w];
        if (fault == (int) planted::missing_syncwarp) {
            __shfl_sync(0xFFFFFFFF, 0, 0, 32);
        } else {
            __syncwarp();
        }
        s[l] += v;
    }
    y[l] = s[l];
}

void warp_sum(const float * x, float * y, planted fault) {
    k_warp_sum<<<1, 32>>>(x, y, (int) fault);
}

static __global__ void k_words(const unsigned char * x, unsigned * out, int n, int fault) {
    const int i = threadIdx.x;
    if (i >= n) {
        return;
    }
    if (fault == (int) planted::misaligned) {
        out[i] = *(const unsigned *) (x + 3*i);
    } else {
        out[i] = x[3*i] | x[3*i + 1] << 8 | x[3*i + 2] << 16 | (unsigned) x[3*i + 3] << 24;
    }
}

void words(const unsigned char * x, unsigned * out, int n, planted fault) {
    k_words<<<1, n>>>(x, out, n, (int) fault);
}

static __global__ void k_mma(const half * a, const half * b, float * d, int fault) {
    __shared__ alignas(16) half A[16*16];
    __shared__ alignas(16) half B[8*16];
    const int l = threadIdx.x;
    const unsigned dst = (unsigned) __cvta_generic_to_shared(A + 8*l);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" : : "r"(dst), "l"(a + 8*l));
    for (int i = l; i < 8*16; i += 32) {
        B[i] = b[i];
    }
    if (fault != (int) planted::missing_cp_async_wait) {
        asm volatile("cp.async.wait_all;");
    }
    __syncthreads();
    int fa[4], fb[2];
    float c[4];
    // matrices 0..3 of A: rows 0-7 and 8-15 of columns 0-7, then of columns 8-15
    const half * pa = A + (l % 16)*16 + (l/16)*8;
    const half * pb = B + (l % 8)*16 + (l/8 % 2)*8;
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.b16 {%0, %1, %2, %3}, [%4];" : "=r"(fa[0]), "=r"(fa[1]), "=r"(fa[2]), "=r"(fa[3]) : "l"(pa));
    asm volatile("ldmatrix.sync.aligned.m8n8.x2.b16 {%0, %1}, [%2];" : "=r"(fb[0]), "=r"(fb[1]) : "l"(pb));
    const int g = l/4, t = l % 4;
    for (int i = 0; i < 4; ++i) {
        c[i] = d[(g + 8*(i/2))*8 + 2*t + i % 2];
    }
    asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3]) : "r"(fa[0]), "r"(fa[1]), "r"(fa[2]), "r"(fa[3]), "r"(fb[0]), "r"(fb[1]));
    for (int i = 0; i < 4; ++i) {
        d[(g + 8*(i/2))*8 + 2*t + i % 2] = c[i];
    }
}

void mma_16x8x16(const void * a, const void * b, float * d, planted fault) {
    k_mma<<<1, 32>>>((const half *) a, (const half *) b, d, (int) fault);
}

static __global__ void k_same(float * y) { y[0] = 3.0f; }

void same_value(float * y) {
    k_same<<<1, 2>>>(y);
}
