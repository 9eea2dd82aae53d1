// Checked access to config.json, and the values that decoders and encoders read alike.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "runtime/format/dtype.h"
#include "runtime/model/model_description.h"
#include "runtime/system/json_text.h"

namespace pare::runtime {

// Bounds far above any model, so that hostile sizes can neither overflow a product nor allocate much.
inline constexpr int64_t kMaxWidth = int64_t{1} << 17;
inline constexpr int64_t kMaxFeedForward = int64_t{1} << 20;
inline constexpr int64_t kMaxBlocks = 1024;
inline constexpr int64_t kMaxHeads = 4096;
inline constexpr int64_t kMaxHeadSize = 4096;
inline constexpr int64_t kMaxVocabulary = int64_t{1} << 24;
inline constexpr int64_t kMaxTokens = std::numeric_limits<int32_t>::max();
inline constexpr double kMaxFactor = 1e6;  // of activations, scores and experts

// Parses a file's text. Throws std::invalid_argument, with `where`, for what is no JSON object.
nlohmann::json parse_config(const std::string& text, const std::string& where);

// Returns a value as messages show it: short, arrays and objects only named, since printing them recurses.
std::string value_text(const nlohmann::json& value);

// One object of the file, which must outlive the section. A key whose value is null counts as absent, and so does
// the key "". What reads a value throws std::invalid_argument with the file, the key, what was expected and what was
// found.
class ConfigSection {
 public:
  ConfigSection(const nlohmann::json& object, std::string where, std::string path = "")
      : object_(object), where_(std::move(where)), path_(std::move(path)) {}

  [[noreturn]] void fail(std::string_view key, std::string_view expected) const;
  const nlohmann::json* find(std::string_view key) const;  // null: absent
  bool has(std::string_view key) const { return find(key) != nullptr; }
  bool is_null(std::string_view key) const;  // there, with the value null
  bool is_empty() const;
  const std::string& where() const { return where_; }

  int64_t integer(std::string_view key, int64_t least, int64_t most) const;
  int64_t integer_or(std::string_view key, int64_t otherwise, int64_t least, int64_t most) const {
    return has(key) ? integer(key, least, most) : otherwise;
  }
  // Returns a number in (above, most].
  double number(std::string_view key, double above, double most) const;
  double number_or(std::string_view key, double otherwise, double above, double most) const {
    return has(key) ? number(key, above, most) : otherwise;
  }
  bool boolean_or(std::string_view key, bool otherwise) const;  // null is false, as in Python
  std::string string(std::string_view key) const;
  std::string string_or(std::string_view key, std::string_view otherwise) const {
    return has(key) ? string(key) : std::string(otherwise);
  }
  // Returns the object under `key`; nothing if absent.
  std::optional<ConfigSection> section(std::string_view key) const;

  Activation activation_or(std::string_view key, std::string_view otherwise) const;
  DType dtype_or(DType otherwise) const;  // of `dtype`, or of `torch_dtype`
  void require_false(std::string_view key, std::string_view why) const;

 private:
  const nlohmann::json& object_;
  std::string where_, path_;
};

}  // namespace pare::runtime
