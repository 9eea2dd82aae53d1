// The only parser of JSON and the only writer. Every file and text that is read or written as JSON goes through them
// (tests/check_includes.py).
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <stdexcept>
#include <string>
#include <string_view>

namespace pare::runtime {

// The greatest depth of arrays and objects inside one another. Files of models need fewer than 10. Values are written
// and compared by recursion, whose depth a file must not control.
constexpr size_t kMaxJsonDepth = 64;

class BadJson : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

// Says whether keys and texts may hold U+0000. No name does, and a message that quotes one would end there. Texts that
// models and people write (tokens, prompts, documents, a file's own notes) may.
enum class Nul { refused, allowed };
// Says what becomes of whole numbers that int64_t cannot hold: the nearest double above 64 bits, or BadJson. Text that
// is handed on as it stands must not change its digits.
enum class WideIntegers { nearest, refused };

// Parses one value with nothing after it (RFC 8259). Keys are in alphabetical order, or, in the ordered form, in the
// order of the text. Takes O(n log n) in the text's bytes.
// Throws BadJson naming `where` and the place for text that is not JSON or not UTF-8, and for nesting deeper than
// kMaxJsonDepth (with the depth found). Also throws it for a key that an object names twice, a number beyond double's
// range, and what is refused.
nlohmann::json parse_json(std::string_view text, const std::string& where, Nul nul = Nul::refused);
nlohmann::ordered_json parse_ordered_json(std::string_view text, const std::string& where, Nul nul = Nul::refused,
                                          WideIntegers wide = WideIntegers::nearest);

// Writes on one line (indent < 0), or on several lines, each level indented by `indent` more spaces. Bytes that are not
// UTF-8, as in a path or another program's file, become U+FFFD: a description of finished work must not fail.
std::string json_text(const nlohmann::json& json, int indent = -1);
std::string json_text(const nlohmann::ordered_json& json, int indent = -1);

}  // namespace pare::runtime
