#include "runtime/system/json_text.h"

#include <algorithm>
#include <limits>
#include <nlohmann/json.hpp>
#include <type_traits>
#include <unordered_set>
#include <utility>
#include <vector>

#include "runtime/system/visible_text.h"

namespace pare::runtime {
namespace {

constexpr size_t kMaxQuotedBytes = 200;

std::string shortened(const std::string& text) {
  return text.size() <= kMaxQuotedBytes ? text : text.substr(0, kMaxQuotedBytes) + "...";
}

// Returns the most brackets that are open at once, outside of strings.
size_t depth_of(std::string_view text) {
  size_t depth = 0, deepest = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string && c == '\\') {
      ++i;
    } else if (c == '"') {
      in_string = !in_string;
    } else if (!in_string && (c == '[' || c == '{')) {
      deepest = std::max(deepest, ++depth);
    } else if (!in_string && (c == ']' || c == '}') && depth > 0) {
      --depth;
    }
  }
  return deepest;
}

// Returns the library's message for an error without its own numbers. The message quotes the text as it is, valid or
// not.
std::string plain_message(const nlohmann::detail::exception& error) {
  std::string message = error.what();
  if (const size_t end = message.find("] "); message.starts_with("[json.") && end != std::string::npos) {
    message = message.substr(end + 2);
  }
  message = shortened(message);
  for (char& c : message) {
    if (static_cast<unsigned char>(c) >= 0x7F || static_cast<unsigned char>(c) < 0x20) c = '?';
  }
  return message;
}

[[noreturn]] void fail(const std::string& where, const std::string& what) {
  throw BadJson(where + ": not valid JSON: " + what);
}

// Builds the value from the parser's events. (The library's own callback looks through all members of an object after
// each of them, which is quadratic.)
template <typename Json>
class Builder {
 public:
  Builder(std::string_view text, const std::string& where, Nul nul, WideIntegers wide)
      : text_(text), where_(where), nul_(nul), wide_(wide) {}

  Json take() { return std::move(root_); }

  bool null() { return add(nullptr); }
  bool boolean(bool value) { return add(value); }
  bool number_integer(int64_t value) { return add(value); }
  bool number_unsigned(uint64_t value) {
    if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) check_wide(std::to_string(value));
    return add(value);
  }
  bool number_float(double value, const std::string& digits) {
    if (digits.find_first_not_of("-0123456789") == std::string::npos) check_wide(digits);
    return add(value);
  }
  bool string(std::string& value) {
    check_nul(value);
    return add(std::move(value));
  }
  bool binary(typename Json::binary_t&) { fail(where_, "bytes"); }  // only in formats other than JSON

  bool start_object(size_t) { return open(Json::object()); }
  bool start_array(size_t) { return open(Json::array()); }
  bool end_array() { return close(); }
  bool end_object() {
    if constexpr (kIsOrdered) keys_.pop_back();
    return close();
  }

  bool key(std::string& name) {
    check_nul(name);
    auto& members = open_.back()->template get_ref<typename Json::object_t&>();
    bool is_new = false;
    if constexpr (kIsOrdered) {
      is_new = keys_.back().insert(name).second;
      // Adds to the list of pairs, because the ordered object itself would search all of them first.
      using Pairs = std::vector<std::pair<const std::string, Json>>;
      if (is_new) slot_ = &static_cast<Pairs&>(members).emplace_back(name, nullptr).second;
    } else {
      const auto [member, inserted] = members.emplace(name, nullptr);
      is_new = inserted;
      slot_ = &member->second;
    }
    if (!is_new) fail(where_, "an object has the key '" + shortened(visible_line(name)) + "' twice");
    return true;
  }

  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception& error) {
    fail(where_, plain_message(error));
  }

 private:
  static constexpr bool kIsOrdered = std::is_same_v<Json, nlohmann::ordered_json>;

  void check_nul(const std::string& text) const {
    if (nul_ == Nul::refused && has_nul(text)) {
      throw BadJson(where_ + ": '" + shortened(visible_line(text)) + "' holds the character U+0000");
    }
  }

  void check_wide(const std::string& digits) const {
    if (wide_ != WideIntegers::refused) return;
    throw BadJson(where_ + ": the whole number " + shortened(digits) +
                  " needs more than 64 bits (with its sign); write it as a text in quotes");
  }

  bool add(Json value) {
    place(std::move(value));
    return true;
  }

  Json* place(Json value) {
    Json* target = &root_;
    if (!open_.empty() && open_.back()->is_array()) {
      target = &open_.back()->template get_ref<typename Json::array_t&>().emplace_back();
    } else if (!open_.empty()) {
      target = slot_;
    }
    *target = std::move(value);
    return target;
  }

  bool open(Json container) {
    if (open_.size() == kMaxJsonDepth) {
      throw BadJson(where_ + ": the JSON is nested too deeply: " + std::to_string(depth_of(text_)) +
                    " arrays and objects inside one another, expected at most " + std::to_string(kMaxJsonDepth));
    }
    if constexpr (kIsOrdered) {
      if (container.is_object()) keys_.emplace_back();
    }
    open_.push_back(place(std::move(container)));  // stays in place until it is closed: its parent does not grow
    return true;
  }

  bool close() {
    open_.pop_back();
    return true;
  }

  std::string_view text_;
  const std::string& where_;
  Nul nul_;
  WideIntegers wide_;
  Json root_;
  std::vector<Json*> open_;
  std::vector<std::unordered_set<std::string>> keys_;  // for each open object
  Json* slot_ = nullptr;                               // the value of the last key
};

template <typename Json>
Json parse(std::string_view text, const std::string& where, Nul nul, WideIntegers wide) {
  Builder<Json> builder(text, where, nul, wide);
  Json::sax_parse(text, &builder);
  return builder.take();
}

}  // namespace

nlohmann::json parse_json(std::string_view text, const std::string& where, Nul nul) {
  return parse<nlohmann::json>(text, where, nul, WideIntegers::nearest);
}

nlohmann::ordered_json parse_ordered_json(std::string_view text, const std::string& where, Nul nul, WideIntegers wide) {
  return parse<nlohmann::ordered_json>(text, where, nul, wide);
}

std::string json_text(const nlohmann::json& json, int indent) {
  return json.dump(indent, ' ', false, nlohmann::json::error_handler_t::replace);
}

std::string json_text(const nlohmann::ordered_json& json, int indent) {
  return json.dump(indent, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace pare::runtime
