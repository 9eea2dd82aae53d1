#include "runtime/system/sealed_json.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <span>
#include <stdexcept>

#include "runtime/system/json_text.h"
#include "runtime/system/sha256.h"

namespace pare::runtime {
namespace {

constexpr const char* kMember = "sha256";
constexpr std::string_view kBefore = ",\n  \"sha256\": \"";
constexpr std::string_view kAfter = "\"\n}\n";
constexpr size_t kHexLetters = 64;

std::string hash_of(std::string_view before_hex) {
  std::string text(before_hex);
  text.append(kHexLetters, '0');
  text.append(kAfter);
  return sha256_hex(std::as_bytes(std::span(text)));
}

std::string_view without_trailing_space(std::string_view text) {
  const size_t last = text.find_last_not_of(" \n\r\t");
  return text.substr(0, last == std::string_view::npos ? 0 : last + 1);
}

bool is_hex(const nlohmann::json& value) {
  if (!value.is_string()) return false;
  const auto& text = value.get_ref<const std::string&>();
  return text.size() == kHexLetters && std::all_of(text.begin(), text.end(), [](unsigned char c) {
           return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f');
         });
}

}  // namespace

std::string seal_json(std::string_view object) {
  object = without_trailing_space(object);
  if (!object.starts_with('{') || !object.ends_with('}')) {
    throw std::invalid_argument("seal_json: expected the text of a JSON object");
  }
  std::string text(without_trailing_space(object.substr(0, object.size() - 1)));
  if (text.size() == 1) throw std::invalid_argument("seal_json: expected an object with a member");
  text += kBefore;
  const std::string hash = hash_of(text);
  text += hash;
  return text += kAfter;
}

Seal check_seal(std::string_view file) {
  if (file.ends_with(kAfter) && file.size() > kHexLetters + kAfter.size()) {
    const std::string_view before = file.substr(0, file.size() - kAfter.size() - kHexLetters);
    if (before.ends_with(kBefore) && file.substr(before.size(), kHexLetters) == hash_of(before)) return Seal::whole;
  }
  nlohmann::json json;
  try {
    json = parse_json(file, "a sealed file");
  } catch (const BadJson&) {
    return Seal::broken;
  }
  if (!json.is_object()) return Seal::broken;
  // Either word of the member may be the damaged one.
  for (const auto& [name, value] : json.items()) {
    if (name == kMember || is_hex(value)) return Seal::broken;
  }
  return Seal::none;
}

}  // namespace pare::runtime
