// A value of a YAML file that knows its key and its line, so that every complaint starts with FILE:LINE and says what
// is allowed. The only reader of YAML.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace YAML {
class Node;
}

namespace pare::compress {

class YamlValue;

// A change of a document. A step of the path is a key of a map, or, in a list, the key that one of its items has.
struct YamlChange {
  std::vector<std::string> path;
  const YamlValue* value = nullptr;  // that is put there; null: the key is taken away
};

class YamlValue {
 public:
  // `file` is named in messages and must live as long as the value. Throws std::invalid_argument ("FILE:LINE: ...") for
  // what is not YAML, or is nested deeper than any recipe.
  static YamlValue parse(const std::string& yaml, const std::filesystem::path& file);

  // Throws std::invalid_argument: "FILE:LINE: 'key': message".
  [[noreturn]] void fail(const std::string& message) const;

  // Calls the handler of every key of the map; an unknown or repeated key is an error. `explain` may say where an
  // unknown key belongs ("it belongs to ..."); where that is empty, the nearest known one is named.
  using Handlers = std::vector<std::pair<std::string, std::function<void(const YamlValue&)>>>;
  using Explain = std::function<std::string(const std::string& key)>;
  void read_map(const Handlers& handlers, const Explain& explain = {}) const;

  // The items below; each throws as fail() does when the value is of another kind.
  std::vector<YamlValue> list() const;
  std::vector<std::pair<std::string, YamlValue>> entries() const;  // of a map with keys of any name
  std::string text() const;
  bool boolean() const;
  int64_t integer(int64_t low, int64_t high) const;  // in [low, high]
  double number(double low, double high) const;      // in [low, high]

  // Returns the value as YAML, without comments, with these changes one after the other. A map gets the last key of a
  // path if it has none; all steps before it must lead somewhere. Throws as fail() does, naming the step.
  std::string changed(std::span<const YamlChange> changes) const;

  bool has_key(const std::string& name) const;
  bool is_map() const;
  bool is_list() const;

  // One of the given names.
  template <typename T>
  T choice(const std::vector<std::pair<std::string, T>>& choices) const {
    std::vector<std::string> names;
    for (const auto& [name, value] : choices) names.push_back(name);
    return choices[choose(names)].second;
  }

 private:
  YamlValue(const YAML::Node& node, std::string path, const std::filesystem::path& file);
  size_t choose(const std::vector<std::string>& names) const;
  std::string kind() const;

  std::shared_ptr<const YAML::Node> node_;
  std::string path_;  // dotted keys from the top
  const std::filesystem::path* file_;
};

}  // namespace pare::compress
