#pragma once

#include "llama-arch.h"

// Architectures whose graph reads the K cache outside of attention, where a rotated or conditioned K would be wrong.
bool llama_turbo_reads_cache_elsewhere(llm_arch arch);

// Architectures that attend without flash attention even when it is on, where V cannot be of a turbo type.
bool llama_turbo_lacks_flash_attn(llm_arch arch);
