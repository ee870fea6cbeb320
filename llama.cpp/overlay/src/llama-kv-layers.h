#pragma once

// Cache types by layer: rules that give some layers other K and V types than the rest of the cache has.
//
//   RULES = RULE[;RULE...]   RULE = LAYERS:TYPE[/TYPE]   LAYERS = N|N-N[,...]
//
// Layers count from 0, negative ones from the end (-1 is the last). One type is for K and V, two are K/V. A later rule wins.
// Nothing else knows the syntax; nothing here knows a cache.

#include "ggml.h"

#include <cstdint>
#include <string>
#include <vector>

struct llama_kv_layer_rule {
    struct range { int32_t first, last; };

    std::vector<range> layers;
    ggml_type type_k, type_v;
};

// Throws std::invalid_argument, one line, when text does not follow the syntax or names an unknown type.
std::vector<llama_kv_layer_rule> llama_kv_layers_parse(const std::string & text);

// The rules in force: what llama_kv_layers_set was given, else LLAMA_KV_LAYERS in the environment, else none. Throws as the parser.
std::vector<llama_kv_layer_rule> llama_kv_layers();
std::string                      llama_kv_layers_text();

// Changes type_k and type_v to what the rules say of layer il of n_layer.
void llama_kv_layers_apply(const std::vector<llama_kv_layer_rule> & rules, int32_t il, int32_t n_layer, ggml_type & type_k, ggml_type & type_v);

// Empty, or one line: which layer of the rules a model of n_layer layers does not have.
std::string llama_kv_layers_out_of_range(const std::vector<llama_kv_layer_rule> & rules, int32_t n_layer);

// "0-1,5" for sorted layer numbers
std::string llama_kv_layers_describe(const std::vector<uint32_t> & layers);
