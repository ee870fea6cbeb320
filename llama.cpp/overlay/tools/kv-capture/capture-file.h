// The GGUF file that llama-kv-capture writes.

#pragma once

#include "collector.h"
#include "llama.h"

#include <string>
#include <vector>

struct capture_info {
    std::string model_path, model_name, arch, text_path;
    std::vector<llama_token> tokens;
    bool flash_attn = false;
    int32_t n_layer = 0;
};

// Writes what `col` holds; q and v as `type`, F16 or F32. Throws std::runtime_error.
void save_capture(const std::string & path, const capture_info & info, const collector & col, ggml_type type);
