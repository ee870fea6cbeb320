#pragma once

// The one list of the turbo cache types. Everything that must know them (ids, names, traits, switch cases, command-line
// values, tests, kernels) expands it; no other file names a single type. Format: docs/FORMAT.md.
//
// X(ID, ENUM, NAME, BITS, BLOCK): ggml type id, enumerator suffix, user-visible name, bits a value, values a block.
// Ids are written into saved states: never reuse or renumber one.

// what a user names on the command line; also the types of 128-wide blocks
#define GGML_TURBO_FAMILIES(X) \
    X(64, TURBO2,     turbo2,     2, 128) \
    X(65, TURBO3,     turbo3,     3, 128) \
    X(66, TURBO4,     turbo4,     4, 128)

// blocks that are powers of two: usable wherever rows are, upstream's own tests included
#define GGML_TURBO_TYPES_POW2(X) \
    GGML_TURBO_FAMILIES(X)             \
    X(67, TURBO2_64,  turbo2_64,  2,  64) \
    X(68, TURBO3_64,  turbo3_64,  3,  64) \
    X(69, TURBO4_64,  turbo4_64,  4,  64)

#define GGML_TURBO_TYPES(X) \
    GGML_TURBO_TYPES_POW2(X)              \
    X(70, TURBO2_80,  turbo2_80,  2,  80) \
    X(71, TURBO3_80,  turbo3_80,  3,  80) \
    X(72, TURBO4_80,  turbo4_80,  4,  80) \
    X(73, TURBO2_96,  turbo2_96,  2,  96) \
    X(74, TURBO3_96,  turbo3_96,  3,  96) \
    X(75, TURBO4_96,  turbo4_96,  4,  96) \
    X(76, TURBO2_112, turbo2_112, 2, 112) \
    X(77, TURBO3_112, turbo3_112, 3, 112) \
    X(78, TURBO4_112, turbo4_112, 4, 112)

#define GGML_TURBO_TYPE_FIRST 64
#define GGML_TURBO_TYPE_END   79 // one past the last id: becomes GGML_TYPE_COUNT

#define GGML_TURBO_BLOCK_SIZE(BITS, BLOCK) (2 + (BITS)*(BLOCK)/8) // bytes

// expansions for upstream's tables and switches
#define GGML_TURBO_X_ENUM(ID, ENUM, NAME, BITS, BLOCK) GGML_TYPE_##ENUM = ID,
#define GGML_TURBO_X_LIST(ID, ENUM, NAME, BITS, BLOCK) GGML_TYPE_##ENUM,
#define GGML_TURBO_X_CASE(ID, ENUM, NAME, BITS, BLOCK) case GGML_TYPE_##ENUM:
