#pragma once

// The generated codebooks as templates of bits and block, for the reference and the CPU kernels. Tables only: the units that include it
// are built for different processors, and a function here could be linked from any of them.

#include "ggml-turbo-codebook.h"
#include "ggml-turbo-types.h"

// centroids: the positive half, ascending; boundaries between them (FORMAT.md section 4)
template <int BITS, int BLOCK> struct codebook;

#define X(ID, ENUM, NAME, BITS, BLOCK)                                                                       \
    template <> struct codebook<BITS, BLOCK> {                                                               \
        static constexpr float centroids [1 << (BITS - 1)]       = GGML_TURBO_CENTROIDS_B##BITS##_N##BLOCK;  \
        static constexpr float boundaries[(1 << (BITS - 1)) - 1] = GGML_TURBO_BOUNDARIES_B##BITS##_N##BLOCK; \
    };
GGML_TURBO_TYPES(X)
#undef X
