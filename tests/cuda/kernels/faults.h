#pragma once

// Small kernels with a planted fault, and their sound twins: what the emulator must see, and must not.

enum class planted { none, load_past_end, store_past_end, store_before_start, missing_syncthreads, missing_syncwarp, misaligned, uninitialised_shared, shared_past_end, divergent_barrier, racing_blocks, missing_cp_async_wait };

// y[i] = x[n-1-i] for i < n, through shared memory, with blocks of 64
void reverse_rows(const float * x, float * y, int n, planted fault);
// one warp: y[i] = sum of x[0..31], through shared memory
void warp_sum(const float * x, float * y, planted fault);
// out[i] = the 32-bit word of the 3-byte-spaced bytes at x + 3*i (misaligned), or the same from bytes
void words(const unsigned char * x, unsigned * out, int n, planted fault);
// D = A*B^T + D for A 16x16, B 8x16 (f16), D 16x8 (f32), with ldmatrix and mma; A is copied with cp.async
void mma_16x8x16(const void * a, const void * b, float * d, planted fault);
// two threads store the same value to one place
void same_value(float * y);
