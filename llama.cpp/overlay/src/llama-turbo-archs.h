#pragma once

#include "llama-arch.h"

// Architectures whose graph reads the K cache outside of attention, where a rotated or conditioned K would be wrong.
bool llama_turbo_reads_cache_elsewhere(llm_arch arch);
