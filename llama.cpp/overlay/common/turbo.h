#pragma once

#include "llama.h"

#include <string>

// Refuses cache types that the model cannot have before its weights are loaded: reads the metadata only, and only when a turbo type
// is asked for. False: the reason was printed to stderr as one line.
bool common_turbo_check(const std::string & path_model, const llama_model_params & mparams, const llama_context_params & cparams);
