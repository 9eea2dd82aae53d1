// How a layer is stored, in words, as pare.json describes it.
#pragma once

#include <string>

#include "runtime/format/stored_scheme.h"
#include "runtime/system/json_text.h"

namespace pare::compress {

// Returns "4 bits, groups of 64", "nvfp4, groups of 16; inputs: ...", "values; zeros: 2:4". `layer` is an entry of
// pare.json's "layers". Throws nlohmann's exceptions for what is none.
std::string stored_as(const nlohmann::ordered_json& layer);

// Gives such an entry what stored_as reads of a scheme: bits, code, group_size, symmetric, per_tensor and input.
void put_scheme(const runtime::PackScheme& scheme, nlohmann::ordered_json& layer);

}  // namespace pare::compress
