// Values of a quantization_config, and the words of messages about them.
#pragma once

#include <initializer_list>
#include <string>

#include "runtime/system/json_text.h"

namespace pare::runtime {

// Throws std::invalid_argument. `where` names the file.
[[noreturn]] void fail_config(const std::string& where, const std::string& what);
// Returns ", found VALUE" for the end of a message, of an object or array its type alone.
std::string found_text(const nlohmann::json& value);
// Returns the value under `key`; an absent key counts as null.
const nlohmann::json& value_or_null(const nlohmann::json& object, const char* key);
// Returns the value of the first key that is there, or null. Releases wrote the same thing under different names.
const nlohmann::json& first_value(const nlohmann::json& object, std::initializer_list<const char*> keys);

}  // namespace pare::runtime
