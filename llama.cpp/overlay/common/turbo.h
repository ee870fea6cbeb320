#pragma once

#include "arg.h"
#include "llama.h"

#include <string>

// Refuses cache types that the model cannot have before its weights are loaded: reads the metadata only, and only when a turbo type
// is asked for. False: the reason was printed to stderr as one line.
bool common_turbo_check(const std::string & path_model, const llama_model_params & mparams, const llama_context_params & cparams);

// Upstream's log is written by a thread that nobody waits for: without this a program can exit 0 with its last lines, the result among
// them, unwritten.
void common_turbo_flush_log_at_exit();

// Sets the key conditioning of the contexts made from now on. False when value is none of auto, on, off and no file of that name exists.
bool common_kv_condition_set(const std::string & value);

// Sets the cache types by layer. Throws std::invalid_argument with the reason.
void common_kv_layers_set(const std::string & value);

// --kv-layers RULES, for every tool that has -ctk.
common_arg common_kv_layers_arg();

// --kv-condition auto|on|off|FILE, for every tool that has -ctk.
common_arg common_kv_condition_arg();
