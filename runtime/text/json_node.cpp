#include "runtime/text/json_node.h"

#include <nlohmann/json.hpp>
#include <stdexcept>

#include "runtime/system/json_text.h"
#include "runtime/system/visible_text.h"
#include "runtime/text/unicode.h"

namespace pare::runtime {

bool JsonNode::is_null() const {
  return value_->is_null();
}

void JsonNode::fail(const std::string& expected) const {
  std::string found = json_text(*value_);
  if (found.size() > 80) found = found.substr(0, 77) + "...";
  throw std::runtime_error(visible_line(where_) + ": expected " + expected + ", found " +
                           utf8_with_replacements(found));
}

void JsonNode::refuse(const std::string& what, const std::string& known) const {
  throw std::runtime_error(where_ + ": pare does not know " + visible_line(what) + "; it knows " + known);
}

bool JsonNode::has(const char* key) const {
  return value_->is_object() && value_->contains(key) && !(*value_)[key].is_null();
}

JsonNode JsonNode::at(const std::string& key) const {
  if (!value_->is_object()) fail("an object");
  const auto found = value_->find(key);
  if (found == value_->end()) fail("an object with the key '" + visible_line(key) + "'");
  return {*found, where_ + "." + key};
}

std::vector<JsonNode> JsonNode::items() const {
  if (!value_->is_array()) fail("an array");
  std::vector<JsonNode> nodes;
  nodes.reserve(value_->size());
  for (size_t i = 0; i < value_->size(); ++i) nodes.emplace_back((*value_)[i], where_ + "[" + std::to_string(i) + "]");
  return nodes;
}

const std::string& JsonNode::text() const {
  if (!value_->is_string()) fail("a string");
  return value_->get_ref<const std::string&>();
}

bool JsonNode::flag(const char* key, bool otherwise) const {
  if (!has(key)) return otherwise;
  const JsonNode node = at(key);
  if (!node.value().is_boolean()) node.fail("true or false");
  return node.value().get<bool>();
}

int64_t JsonNode::integer() const {
  if (!value_->is_number_integer() || (value_->is_number_unsigned() && value_->get<uint64_t>() > INT32_MAX)) {
    fail("an integer below 2^31");
  }
  if (value_->get<int64_t>() < INT32_MIN) fail("an integer of 32 bits");
  return value_->get<int64_t>();
}

double JsonNode::number() const {
  if (!value_->is_number()) fail("a number");
  return value_->get<double>();
}

}  // namespace pare::runtime
