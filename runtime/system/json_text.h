// The one parser of JSON and the one writer: every file and every text that is read or written as JSON goes through them
// (tests/check_includes.py).
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <stdexcept>
#include <string>
#include <string_view>

namespace pare {

// Arrays and objects inside one another. Files of models need fewer than 10; values are written and compared by
// recursion, which a file must not drive.
constexpr size_t kMaxJsonDepth = 64;

class BadJson : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Whether keys and texts may hold U+0000: no name does, and a message that quotes one would end there. What models and
// people write (tokens, prompts, documents, a file's own notes) may.
enum class Nul { refused, allowed };

// One value and nothing behind it (RFC 8259); keys in the order of the alphabet, or, ordered, in that of the text.
// Integers that need more than 64 bits become the nearest double. O(n log n) in the text's bytes. Throws BadJson naming
// `where` and the place: for what is no JSON, is nested more deeply than kMaxJsonDepth (with the depth found), names a
// key of an object twice, is no UTF-8, or holds a number beyond double's range or a refused U+0000 (which an ordered
// one never allows).
nlohmann::json parse_json(std::string_view text, const std::string& where, Nul nul = Nul::refused);
nlohmann::ordered_json parse_ordered_json(std::string_view text, const std::string& where);

// On one line, or on lines of their own, indented by so many spaces more on each level. Bytes that are no UTF-8, which a
// path or another program's file may hold, become U+FFFD: what describes a work must not fail behind it.
std::string json_text(const nlohmann::json& json, int indent = -1);
std::string json_text(const nlohmann::ordered_json& json, int indent = -1);

}  // namespace pare
