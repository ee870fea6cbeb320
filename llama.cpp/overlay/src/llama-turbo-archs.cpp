#include "llama-turbo-archs.h"

bool llama_turbo_reads_cache_elsewhere(llm_arch arch) {
    switch (arch) {
        case LLM_ARCH_DEEPSEEK32:
        case LLM_ARCH_DEEPSEEK4:
        case LLM_ARCH_DFLASH:
        case LLM_ARCH_DOTS3NOTE:
        case LLM_ARCH_GLM5_NEXT:
        case LLM_ARCH_GLM_DSA:
        case LLM_ARCH_HY_V4:
        case LLM_ARCH_MINIMAX_M3:
        case LLM_ARCH_QWEN4EXP:
            return true;
        default:
            return false;
    }
}

bool llama_turbo_lacks_flash_attn(llm_arch arch) {
    switch (arch) {
        case LLM_ARCH_GROK: // turned off when the context is made
        case LLM_ARCH_T5:   // the learned bias of its scores is added on the path without, flash attention or not
            return true;
        default:
            return false;
    }
}
