#pragma once

// ggml tensors in the emulator's device memory. Every tensor that is no view has a buffer of its own, which ends where the tensor does.

#include "emu.h"

#include "ggml.h"

#include <cstring>
#include <random>
#include <string>
#include <vector>

class tensors {
public:
    tensors() {
        ctx = ggml_init({ 256*ggml_tensor_overhead(), nullptr, true });
    }
    ~tensors() {
        ggml_free(ctx);
        for (void * p : owned) {
            emu::dev_free(p);
        }
    }
    tensors(const tensors &) = delete;
    tensors & operator=(const tensors &) = delete;

    ggml_tensor * make(const char * name, ggml_type type, int64_t ne0, int64_t ne1 = 1, int64_t ne2 = 1, int64_t ne3 = 1) {
        return allocate(name, ggml_new_tensor_4d(ctx, type, ne0, ne1, ne2, ne3));
    }

    // gives the result of an operation its memory
    ggml_tensor * allocate(const char * name, ggml_tensor * t) {
        ggml_set_name(t, name);
        if (!t->data) {
            owned.push_back(emu::dev_alloc(ggml_nbytes(t), name));
            t->data = owned.back();
        }
        return t;
    }

    ggml_context * ctx;

private:
    std::vector<void *> owned;
};
