// A value of a JSON file with the path that leads to it, for messages.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/system/json_text.h"

namespace pare::runtime {

// A view: the value must outlive it. All members throw std::runtime_error with the path, what was expected and what was
// found.
class JsonNode {
 public:
  JsonNode(const nlohmann::json& value, std::string where) : value_(&value), where_(std::move(where)) {}

  const nlohmann::json& value() const { return *value_; }
  const std::string& where() const { return where_; }
  bool is_null() const;

  [[noreturn]] void fail(const std::string& expected) const;
  // `known` lists what would be understood in place of `what`.
  [[noreturn]] void refuse(const std::string& what, const std::string& known) const;

  bool has(const char* key) const;  // false also for null
  JsonNode at(const std::string& key) const;
  std::vector<JsonNode> items() const;

  const std::string& text() const;
  std::string text(const char* key) const { return at(key).text(); }
  bool flag(const char* key, bool otherwise) const;  // otherwise: absent or null
  int64_t integer() const;                           // below 2^31
  double number() const;

 private:
  const nlohmann::json* value_;
  std::string where_;
};

}  // namespace pare::runtime
