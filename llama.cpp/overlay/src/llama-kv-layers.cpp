#include "llama-kv-layers.h"

#include "ggml-turbo.h"
#include "llama-impl.h"
#include "llama-turbokv.h"

#include <cstdlib>
#include <mutex>
#include <stdexcept>

static constexpr const char * EXAMPLE = "write for example 0-1,-1:q8_0 (LAYERS:TYPE or LAYERS:K/V, several joined by ';', -1 is the last layer)";

// what upstream's -ctk takes
static constexpr ggml_type MAINLINE_TYPES[] = {
    GGML_TYPE_F32, GGML_TYPE_F16, GGML_TYPE_BF16, GGML_TYPE_Q8_0, GGML_TYPE_Q4_0, GGML_TYPE_Q4_1, GGML_TYPE_IQ4_NL, GGML_TYPE_Q5_0, GGML_TYPE_Q5_1,
};

static ggml_type parse_type(const std::string & name) {
    for (const ggml_type type : MAINLINE_TYPES) {
        if (name == ggml_type_name(type)) {
            return type;
        }
    }
    const ggml_type turbo = ggml_turbo_family_from_name(name.c_str());
    if (turbo == GGML_TYPE_COUNT) {
        std::string known;
        for (const ggml_type type : MAINLINE_TYPES) {
            known += std::string(ggml_type_name(type)) + ", ";
        }
#define X(ID, ENUM, NAME, BITS, BLOCK) known += #NAME ", ";
        GGML_TURBO_FAMILIES(X)
#undef X
        throw std::invalid_argument(format("'%s' is no cache type; types: %s", name.c_str(), known.substr(0, known.size() - 2).c_str()));
    }
    return turbo;
}

static std::vector<std::string> split(const std::string & text, char separator) {
    std::vector<std::string> res(1);
    for (const char c : text) {
        if (c == separator) {
            res.emplace_back();
        } else {
            res.back() += c;
        }
    }
    return res;
}

// One number at pos, moved behind it. A layer number has at most 4 digits.
static bool parse_number(const std::string & text, size_t & pos, int32_t & value) {
    const size_t start = pos;
    if (pos < text.size() && text[pos] == '-') {
        pos++;
    }
    const size_t digits = pos;
    while (pos < text.size() && text[pos] >= '0' && text[pos] <= '9') {
        pos++;
    }
    if (pos == digits || pos - digits > 4) {
        return false;
    }
    value = atoi(text.substr(start, pos - start).c_str());
    return true;
}

static llama_kv_layer_rule::range parse_range(const std::string & text) {
    llama_kv_layer_rule::range res = {};
    size_t pos = 0;
    bool ok = parse_number(text, pos, res.first);
    res.last = res.first;
    if (ok && pos < text.size()) {
        ok = text[pos++] == '-' && parse_number(text, pos, res.last) && pos == text.size();
    }
    if (!ok) {
        throw std::invalid_argument(format("'%s' is no layer and no range of layers; %s", text.c_str(), EXAMPLE));
    }
    return res;
}

std::vector<llama_kv_layer_rule> llama_kv_layers_parse(const std::string & text) {
    std::vector<llama_kv_layer_rule> res;
    if (text.empty()) {
        return res;
    }
    for (const auto & part : split(text, ';')) {
        const auto sides = split(part, ':');
        if (sides.size() != 2 || sides[0].empty() || sides[1].empty()) {
            throw std::invalid_argument(format("'%s' is no rule; %s", part.c_str(), EXAMPLE));
        }
        llama_kv_layer_rule rule;
        for (const auto & range : split(sides[0], ',')) {
            rule.layers.push_back(parse_range(range));
        }
        const auto types = split(sides[1], '/');
        if (types.size() > 2) {
            throw std::invalid_argument(format("'%s' names more than a K and a V type; %s", part.c_str(), EXAMPLE));
        }
        rule.type_k = parse_type(types.front());
        rule.type_v = parse_type(types.back());
        res.push_back(std::move(rule));
    }
    return res;
}

//
// setting
//

static std::mutex  setting_mutex;
static std::string setting_value; // empty: as the environment says

bool llama_kv_layers_set(const char * rules, char * reason, size_t reason_size) {
    const std::string value = rules ? rules : "";
    try {
        llama_kv_layers_parse(value);
    } catch (const std::exception & err) {
        snprintf(reason, reason_size, "%s", err.what());
        return false;
    }
    std::lock_guard<std::mutex> lock(setting_mutex);
    setting_value = value;
    return true;
}

std::string llama_kv_layers_text() {
    std::lock_guard<std::mutex> lock(setting_mutex);
    if (!setting_value.empty()) {
        return setting_value;
    }
    const char * env = getenv("LLAMA_KV_LAYERS");
    return env ? env : "";
}

bool llama_kv_layers_active(void) {
    return !llama_kv_layers_text().empty();
}

std::vector<llama_kv_layer_rule> llama_kv_layers() {
    return llama_kv_layers_parse(llama_kv_layers_text());
}

//
// use
//

static int32_t absolute(int32_t il, int32_t n_layer) {
    return il < 0 ? il + n_layer : il;
}

void llama_kv_layers_apply(const std::vector<llama_kv_layer_rule> & rules, int32_t il, int32_t n_layer, ggml_type & type_k, ggml_type & type_v) {
    for (const auto & rule : rules) {
        for (const auto & r : rule.layers) {
            if (absolute(r.first, n_layer) <= il && il <= absolute(r.last, n_layer)) {
                type_k = rule.type_k;
                type_v = rule.type_v;
            }
        }
    }
}

std::string llama_kv_layers_out_of_range(const std::vector<llama_kv_layer_rule> & rules, int32_t n_layer) {
    for (const auto & rule : rules) {
        for (const auto & r : rule.layers) {
            for (const int32_t il : { r.first, r.last }) {
                if (absolute(il, n_layer) < 0 || absolute(il, n_layer) >= n_layer) {
                    return format("layer %d does not exist: the model has layers 0 to %d", il, n_layer - 1);
                }
            }
            if (absolute(r.first, n_layer) > absolute(r.last, n_layer)) {
                return format("the range %d-%d is empty in a model of %d layers", r.first, r.last, n_layer);
            }
        }
    }
    return "";
}

std::string llama_kv_layers_describe(const std::vector<uint32_t> & layers) {
    std::string res;
    for (size_t i = 0; i < layers.size();) {
        size_t j = i;
        while (j + 1 < layers.size() && layers[j + 1] == layers[j] + 1) {
            j++;
        }
        res += res.empty() ? "" : ",";
        res += j > i ? format("%u-%u", layers[i], layers[j]) : format("%u", layers[i]);
        i = j + 1;
    }
    return res;
}
