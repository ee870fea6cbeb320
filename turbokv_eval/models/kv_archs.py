"""What single architectures do to the layout of a cache, as llama.cpp's `src/models/*.cpp` and `create_memory` have it.

A table for a rule that many share, a function where one has its own. Read at the commit that llama.cpp/UPSTREAM names;
tests compare the tables with the sources where they are materialised.
"""

from dataclasses import dataclass

from turbokv_eval.errors import BadInput
from turbokv_eval.models.gguf_meta import Metadata

# llama-turbo-archs.cpp of the fork: turbo types are refused for these. All but one keep more than K and V.
READS_CACHE_ELSEWHERE = frozenset(
    ("deepseek32", "deepseek4", "dflash", "dots3note", "glm5-next", "glm-dsa", "hy_v4", "minimax-m3", "qwen4exp")
)

# llama_turbo_lacks_flash_attn of the fork: no turbo type for V.
LACKS_FLASH_ATTENTION = frozenset(("grok", "t5"))

# llm_arch_is_recurrent and the cases of create_memory without a memory
_RECURRENT = frozenset(("mamba", "mamba2", "rwkv6", "rwkv6qwen2", "rwkv7", "arwkv7"))
_WITHOUT_CACHE = frozenset(
    (
        "bert",
        "jina-bert-v2",
        "jina-bert-v3",
        "nomic-bert",
        "nomic-bert-moe",
        "neo-bert",
        "eurobert",
        "wavtokenizer-dec",
        "modern-bert",
        "gemma-embedding",
        "dream",
        "llada",
        "llada-moe",
        "rnd1",
    )
)

# llm_arch_is_hybrid, without those of READS_CACHE_ELSEWHERE
HYBRID = frozenset(
    (
        "jamba",
        "falcon-h1",
        "plamo2",
        "granitehybrid",
        "lfm2",
        "lfm2moe",
        "nemotron_h",
        "nemotron_h_moe",
        "qwen3next",
        "kimi-linear",
        "bailingmoe3",
        "kimi-k3",
        "qwen35",
        "qwen35moe",
        "minimax-01",
    )
)
# Every n-th layer is attention, unless the file says which.
_INTERVAL = {"qwen3next": 4, "qwen35": 4, "qwen35moe": 4, "minimax-01": 8}
_NEMOTRON = frozenset(("nemotron_h", "nemotron_h_moe"))


@dataclass(frozen=True)
class _Window:
    """How an architecture comes to its sliding windows.

    period:      every period-th layer is full, unless the file has a pattern; None: the file must have an array.
    dense_first: the first of a period is full, not the last.
    always:      windows even where the file says no length, or 0.
    default:     length where the file says none; fixed: length whatever the file says.
    """

    period: int | None
    dense_first: bool = False
    always: bool = False
    default: int | None = None
    fixed: int | None = None


_WINDOWS = {
    "afmoe": _Window(4),
    "cohere2": _Window(4, always=True),
    "cohere2moe": _Window(4, dense_first=True, always=True),
    "exaone-moe": _Window(4, always=True),
    "exaone4": _Window(4, always=True, default=4096),
    "gemma2": _Window(2, always=True, default=4096),
    "gemma3": _Window(6),
    "gemma3n": _Window(5, always=True),
    "gemma4": _Window(None, always=True),
    "gpt-oss": _Window(2, always=True),
    "granite_swa": _Window(None, always=True),
    "laguna": _Window(4, dense_first=True),
    "lfm2": _Window(None),
    "llama4": _Window(4, always=True, fixed=8192),
    "maple": _Window(None, always=True),
    "mellum": _Window(4),
    "mimo2": _Window(None, always=True),
    "muse-glimmer": _Window(4, always=True),
    "olmo2": _Window(4),
    "plamo3": _Window(8),
    "smallthinker": _Window(4, dense_first=True, fixed=4096),
    "spark2_5": _Window(None, always=True),
    "step35": _Window(None, always=True),
}

# Known to llama.cpp, with K and V of every layer over the whole context.
_PLAIN_NAMES = """
apertus arcee arctic baichuan bailingmoe bailingmoe2 bitnet bloom chameleon chatglm codeshell cogvlm command-r dbrx
deci deepseek deepseek2 deepseek2-ocr dots1 eagle3 ernie4_5 ernie4_5-moe exaone falcon gemma glm4 glm4moe gpt2 gptj
gptneox granite granitemoe graniteswitch grok grovemoe hrm_text hunyuan-dense hunyuan-moe hunyuan_vl hy_v3 internlm2
jais jais2 llama llama-embed maincoder minicpm minicpm3 minimax-m2 mistral3 mistral4 mpt nanbeige nemotron olmo olmoe
openelm orion paddleocr pangu-embedded phi2 phi3 phimoe plamo plm pockettts qwen qwen2 qwen2moe qwen2vl qwen3 qwen3moe
qwen3tts qwen3vl qwen3vlmoe refact seed_oss smollm3 stablelm starcoder starcoder2 t5 talkie xverse
"""
_PLAIN = frozenset(_PLAIN_NAMES.split())


def uncountable(arch: str) -> str:
    """Why the cache of an architecture cannot be told from metadata; empty where it can."""
    if arch in _RECURRENT:
        return f"architecture {arch} is recurrent: it has a state of fixed size and no KV cache; give another model"
    if arch in _WITHOUT_CACHE or arch in ("t5encoder", "clip"):
        return f"architecture {arch} has no KV cache; give another model"
    if arch in READS_CACHE_ELSEWHERE:
        return (
            f"architecture {arch} keeps an index or compressed keys beside K and V, which are not counted here; run"
            f" llama-cli and read `KV buffer size` in its log"
        )
    if arch == "gemma4-assistant":
        return "architecture gemma4-assistant uses the cache of the model that it assists; give that model"
    return ""


def notes(arch: str) -> tuple[str, ...]:
    """What must be said with the numbers of an architecture."""
    if arch in _PLAIN or arch in _WINDOWS or arch in HYBRID:
        return ()
    return (f"architecture {arch} is not known here: counted as full attention in every layer",)


def layer_counts(meta: Metadata) -> tuple[int, int]:
    """Layers of the model in all, and those at its end that only predict further tokens (MTP)."""
    blocks, nextn = meta.number("block_count"), meta.number("nextn_predict_layers", 0)
    if blocks <= 0 or not 0 <= nextn <= blocks:
        raise BadInput(f"{meta.path} has {blocks} layers, {nextn} of them for prediction: its metadata make no sense")
    if meta.arch == "graniteswitch":
        return blocks + 1, 0
    if meta.arch == "nanbeige":
        return blocks * max(1, meta.number("num_loops", 1)), 0
    # A model that is nothing but prediction layers has no others that could be left out.
    return blocks, nextn if nextn < blocks else 0


def recurrent_layers(meta: Metadata, layers: int, n_layer: int, heads_kv: tuple[int, ...]) -> tuple[bool, ...]:
    """Which layers have a recurrent state."""
    arch = meta.arch
    if arch not in HYBRID:
        return (False,) * layers
    if arch == "falcon-h1":
        return (True,) * layers
    if arch in _INTERVAL:
        if meta.own("attention.recurrent_layers") in meta:
            return tuple(map(bool, meta.per_layer("attention.recurrent_layers", layers)))
        interval = meta.number("full_attention_interval", _INTERVAL[arch])
        return tuple(i < n_layer and (i + 1) % interval != 0 for i in range(layers))
    none = tuple(i < n_layer and heads_kv[i] == 0 for i in range(layers))
    if arch in _NEMOTRON:
        ff = meta.per_layer("feed_forward_length", layers, (0,) * layers)
        return tuple(is_none and ff[i] == 0 for i, is_none in enumerate(none))
    return none


def attention_layers(meta: Metadata, layers: int, n_layer: int, recurrent: tuple[bool, ...]) -> tuple[bool, ...]:
    """Which layers have a place in the attention cache, with KV heads or without."""
    arch = meta.arch
    if arch == "falcon-h1":
        return (True,) * layers
    if arch in _NEMOTRON:
        ff = meta.per_layer("feed_forward_length", layers, (0,) * layers)
        return tuple(not recurrent[i] and ff[i] == 0 for i in range(layers))
    if arch in HYBRID and arch not in _INTERVAL:
        return tuple(not is_recurrent for is_recurrent in recurrent)
    return tuple(i < n_layer and not recurrent[i] for i in range(layers))


def layers_with_cache(meta: Metadata, layers: int) -> int:
    """Layers from the start that have a cache of their own; those behind use one of these."""
    if meta.arch == "gemma3n":
        return 20
    if meta.arch == "gemma4":
        return layers - meta.number("attention.shared_kv_layers", 0)
    return layers


def windows(meta: Metadata, layers: int, n_layer: int, recurrent: tuple[bool, ...]) -> tuple[int, tuple[bool, ...]]:
    """Length of the sliding window in tokens, and which layers have one. Raises BadInput."""
    none = (False,) * layers
    rule = _WINDOWS.get(meta.arch)
    if rule is None or (meta.arch == "exaone4" and n_layer != 64):
        return 0, none
    said = meta.number("attention.sliding_window", rule.default or 0)
    # llama4 has chunks of fixed length unless the file says 0.
    if meta.arch == "llama4" and meta.own("attention.sliding_window") in meta and said == 0:
        return 0, none
    length = rule.fixed if rule.fixed is not None and (rule.always or said > 0) else said
    if length == 0:
        if rule.always:
            raise BadInput(f"{meta.path} has no {meta.own('attention.sliding_window')}: its metadata are not complete")
        return 0, none
    if meta.arch == "lfm2":
        return length, tuple(i < n_layer and not is_recurrent for i, is_recurrent in enumerate(recurrent))
    return length, _pattern(meta, rule, layers, n_layer)


def _pattern(meta: Metadata, rule: _Window, layers: int, n_layer: int) -> tuple[bool, ...]:
    key = "attention.sliding_window_pattern"
    found = meta.get(meta.own(key))
    if isinstance(found, list):
        return tuple(i < len(found) and bool(found[i]) for i in range(layers))
    if rule.period is None:
        raise BadInput(f"{meta.path} has no array {meta.own(key)}: its metadata are not complete")
    period = meta.number(key, rule.period)
    full = 0 if rule.dense_first else period - 1
    return tuple(i < n_layer and (period == 0 or i % period != full) for i in range(layers))


def state_values(meta: Metadata, heads: int) -> tuple[int, int]:
    """Values of the two states of one recurrent layer for one sequence (llama_hparams::n_embd_r and n_embd_s)."""
    if meta.arch not in HYBRID:
        return 0, 0
    conv, inner = meta.number("ssm.conv_kernel", 0), meta.number("ssm.inner_size", 0)
    state, groups = meta.number("ssm.state_size", 0), meta.number("ssm.group_count", 0)
    if cache := meta.number("shortconv.l_cache", 0):
        return meta.number("embedding_length") * (cache - 1), state * inner
    if kda := meta.number("kda.head_dim", 0):
        return 3 * (conv - 1 if conv else 3) * heads * kda, kda * kda * heads
    r = max(conv - 1, 0) * (inner + 2 * groups * state)
    if meta.arch == "minimax-01":
        linear = meta.number("attention.key_length", meta.number("embedding_length") // heads)
        return r, linear * linear * heads
    return r, state * inner
