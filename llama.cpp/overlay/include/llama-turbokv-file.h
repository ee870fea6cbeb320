#pragma once

// What the files of this fork share: a hash for their keys, and writing them whole or not at all. C++, no part of the C API.

#include "gguf.h"

#include <cerrno>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <stdexcept>
#include <string>

#ifdef _WIN32
#include <process.h>
#else
#include <unistd.h>
#endif

struct llama_fnv1a64 {
    uint64_t h = 0xcbf29ce484222325ull;

    void add(const void * data, size_t size) {
        const uint8_t * p = (const uint8_t *) data;
        for (size_t i = 0; i < size; ++i) {
            h = (h ^ p[i]) * 0x100000001b3ull;
        }
    }

    std::string hex() const {
        char buf[17];
        snprintf(buf, sizeof(buf), "%016llx", (unsigned long long) h);
        return buf;
    }
};

// Written aside, then renamed: a reader never sees half a file, and of two writers the last one wins.
// Throws std::runtime_error, one line.
inline void llama_turbokv_write_file(const gguf_context * gguf, const std::string & path) {
#ifdef _WIN32
    const int pid = _getpid();
#else
    const int pid = (int) getpid();
#endif
    const std::string tmp = path + "." + std::to_string(pid) + ".part";
    std::string reason;
    std::error_code ec;
    errno = 0;
    if (!gguf_write_to_file(gguf, tmp.c_str(), false)) {
        reason = errno ? strerror(errno) : "unknown reason";
    } else if (std::filesystem::rename(tmp, path, ec); ec) {
        reason = ec.message();
    } else {
        return;
    }
    std::filesystem::remove(tmp, ec);
    throw std::runtime_error(path + " cannot be written (" + reason + ")");
}
