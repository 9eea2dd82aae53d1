#include "compress/recipe/yaml_value.h"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/yaml.h>

#include <algorithm>
#include <iomanip>
#include <set>
#include <sstream>
#include <stdexcept>

#include "runtime/format/fields.h"
#include "runtime/system/nearest_name.h"
#include "runtime/system/visible_text.h"

namespace pare::compress {
namespace {

// yaml-cpp builds the tree recursively; a recipe needs six levels.
constexpr int kMaxNesting = 32;

// Without trailing zeros: 0.5, 1000000, 1e-16.
std::string format(double value) {
  std::ostringstream text;
  text << std::setprecision(15) << value;
  return text.str();
}

std::string names_of(const YamlValue::Handlers& handlers) {
  std::string all;
  for (const auto& [name, unused] : handlers) all += (all.empty() ? "" : ", ") + name;
  return all;
}

// YAML recursion is bounded before yaml-cpp sees the text: flow brackets and indentation both nest.
void check_nesting(const std::string& yaml, const std::filesystem::path& file) {
  int depth = 0;
  int line = 1;
  size_t indent = 0;
  bool at_line_start = true;
  for (const char c : yaml) {
    if (c == '\n') {
      ++line;
      indent = 0;
      at_line_start = true;
      continue;
    }
    if (at_line_start && (c == ' ' || c == '-' || c == '?' || c == ':')) {
      ++indent;
    } else {
      at_line_start = false;
    }
    if (c == '[' || c == '{') ++depth;
    if ((c == ']' || c == '}') && depth > 0) --depth;
    if (depth > kMaxNesting || indent > 8 * kMaxNesting) {
      throw std::invalid_argument(file.string() + ":" + std::to_string(line) + ": nested deeper than " +
                                  std::to_string(kMaxNesting) + " levels; a recipe needs six");
    }
  }
}

[[noreturn]] void refuse_nul(const std::filesystem::path& file, int64_t line) {
  throw std::invalid_argument(file.string() + ":" + std::to_string(line) +
                              ": expected a text, found the character U+0000");
}

// Notes where a document starts, and refuses U+0000 in texts, where an escape makes one. All other content is
// YAML::Load's matter.
class DocumentScan : public YAML::EventHandler {
 public:
  explicit DocumentScan(const std::filesystem::path& file) : file_(file) {}
  YAML::Mark mark;
  void OnDocumentStart(const YAML::Mark& start) override { mark = start; }
  void OnDocumentEnd() override {}
  void OnNull(const YAML::Mark&, YAML::anchor_t) override {}
  void OnAlias(const YAML::Mark&, YAML::anchor_t) override {}
  void OnScalar(const YAML::Mark& where, const std::string&, YAML::anchor_t, const std::string& text) override {
    if (runtime::has_nul(text)) refuse_nul(file_, where.line + 1);
  }
  void OnSequenceStart(const YAML::Mark&, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {}
  void OnSequenceEnd() override {}
  void OnMapStart(const YAML::Mark&, const std::string&, YAML::anchor_t, YAML::EmitterStyle::value) override {}
  void OnMapEnd() override {}

 private:
  const std::filesystem::path& file_;
};

// YAML::Load reads the first document and is silent about the rest. YAML::LoadAll never ends where a sign belongs to no
// document (a text that starts with ','), for it is then before an empty document again and again: so two at most.
void check_documents(const std::string& yaml, const std::filesystem::path& file) {
  if (const size_t nul = yaml.find('\0'); nul != std::string::npos) {  // in a comment as well
    refuse_nul(file, 1 + std::count(yaml.begin(), yaml.begin() + static_cast<int64_t>(nul), '\n'));
  }
  std::istringstream text(yaml);
  YAML::Parser parser(text);
  DocumentScan scan(file);
  if (!parser.HandleNextDocument(scan) || !parser.HandleNextDocument(scan)) return;
  throw std::invalid_argument(file.string() + ":" + std::to_string(scan.mark.line + 1) +
                              ": a second document (after '---', '...' or a sign that belongs to no value); a recipe "
                              "is one document: keep one, or give each a file of its own");
}

// A tree in which nothing is shared: a change of one place changes no other. Aliases can stand for more than memory
// holds.
YAML::Node unshared(const YAML::Node& node, int64_t& num_left) {
  if (--num_left < 0) throw std::length_error("more values than any recipe has");
  YAML::Node copy;
  if (node.IsScalar()) {
    copy = node.Scalar();
  } else if (node.IsSequence()) {
    copy = YAML::Node(YAML::NodeType::Sequence);
    for (const auto& item : node) copy.push_back(unshared(item, num_left));
  } else if (node.IsMap()) {
    copy = YAML::Node(YAML::NodeType::Map);
    // A key that stands twice stays, so that the reader refuses it.
    for (const auto& entry : node) copy.force_insert(unshared(entry.first, num_left), unshared(entry.second, num_left));
  }
  copy.SetTag(node.Tag());
  copy.SetStyle(node.Style());
  return copy;
}

// Where the step leads from a node: the value of a map's key, or the item of a list that has the key.
std::vector<YAML::Node> targets(const YAML::Node& from, const std::string& step) {
  std::vector<YAML::Node> found;
  if (from.IsMap()) {
    for (const auto& entry : from) {
      if (entry.first.IsScalar() && entry.first.Scalar() == step) found.push_back(entry.second);
    }
  } else if (from.IsSequence()) {
    for (const auto& item : from) {
      for (const YAML::Node& target : item.IsMap() ? targets(item, step) : std::vector<YAML::Node>()) {
        found.push_back(target);
      }
    }
  }
  return found;
}

}  // namespace

YamlValue::YamlValue(const YAML::Node& node, std::string path, const std::filesystem::path& file)
    : node_(std::make_shared<const YAML::Node>(node)), path_(std::move(path)), file_(&file) {}

YamlValue YamlValue::parse(const std::string& yaml, const std::filesystem::path& file) {
  check_nesting(yaml, file);
  try {
    check_documents(yaml, file);
    return {YAML::Load(yaml), "", file};
  } catch (const YAML::Exception& error) {
    throw std::invalid_argument(file.string() + ":" + std::to_string(error.mark.line + 1) + ": not YAML: " + error.msg);
  }
}

void YamlValue::fail(const std::string& message) const {
  const YAML::Mark mark = node_->Mark();
  const int line = mark.is_null() ? 1 : mark.line + 1;
  throw std::invalid_argument(file_->string() + ":" + std::to_string(line) + ": " +
                              (path_.empty() ? "" : "'" + path_ + "': ") + message);
}

void YamlValue::read_map(const Handlers& handlers, const Explain& explain) const {
  if (!is_map()) fail("expected a map with the keys " + names_of(handlers) + ", found " + kind());
  std::set<std::string> seen;
  for (const auto& entry : *node_) {
    const YamlValue key(entry.first, path_, *file_);
    const std::string name = key.text();
    const YamlValue value(entry.second, path_.empty() ? name : path_ + "." + name, *file_);
    if (!seen.insert(name).second) key.fail("the key '" + name + "' appears twice; keep one");
    const auto handler =
        std::find_if(handlers.begin(), handlers.end(), [&](const auto& known) { return known.first == name; });
    if (handler == handlers.end()) {
      std::vector<std::string> known;
      for (const auto& [known_name, unused] : handlers) known.push_back(known_name);
      const std::string place = explain ? explain(name) : "";
      key.fail("unknown key '" + name + "'" + (place.empty() ? runtime::did_you_mean(name, known) : ": " + place) +
               "; allowed: " + names_of(handlers));
    }
    handler->second(value);
  }
}

std::vector<YamlValue> YamlValue::list() const {
  if (!is_list()) fail("expected a list, found " + kind());
  std::vector<YamlValue> items;
  for (size_t i = 0; i < node_->size(); ++i)
    items.push_back({(*node_)[i], path_ + "[" + std::to_string(i) + "]", *file_});
  return items;
}

std::vector<std::pair<std::string, YamlValue>> YamlValue::entries() const {
  if (!is_map()) fail("expected a map, found " + kind());
  std::vector<std::pair<std::string, YamlValue>> items;
  for (const auto& entry : *node_) {
    const std::string name = YamlValue(entry.first, path_, *file_).text();
    items.emplace_back(name, YamlValue(entry.second, path_ + "." + name, *file_));
  }
  return items;
}

std::string YamlValue::text() const {
  if (!node_->IsScalar() || node_->Scalar().empty()) fail("expected a text, found " + kind());
  return node_->Scalar();
}

bool YamlValue::boolean() const {
  bool value = false;
  if (!node_->IsScalar() || !YAML::convert<bool>::decode(*node_, value)) {
    fail("expected true or false, found " + kind());
  }
  return value;
}

int64_t YamlValue::integer(int64_t low, int64_t high) const {
  int64_t value = 0;
  const std::string range = "a whole number from " + std::to_string(low) + " to " + std::to_string(high);
  if (!node_->IsScalar() || !YAML::convert<int64_t>::decode(*node_, value)) {
    fail("expected " + range + ", found " + kind());
  }
  if (value < low || value > high) fail("expected " + range + ", found " + std::to_string(value));
  return value;
}

double YamlValue::number(double low, double high) const {
  double value = 0.0;
  if (!node_->IsScalar() || !YAML::convert<double>::decode(*node_, value)) fail("expected a number, found " + kind());
  if (!(value >= low && value <= high)) {
    const std::string from = low == runtime::kAboveZero ? "above 0 and at most " : "from " + format(low) + " to ";
    fail("expected a number " + from + format(high) + ", found " + node_->Scalar());
  }
  return value;
}

bool YamlValue::has_key(const std::string& name) const {
  return is_map() && (*node_)[name].IsDefined();
}

std::string YamlValue::changed(std::span<const YamlChange> changes) const {
  constexpr int64_t kMostValues = 100'000;
  int64_t num_left = kMostValues;
  try {
    YAML::Node root = unshared(*node_, num_left);
    for (const YamlChange& change : changes) {
      YAML::Node place = root;
      std::string way;
      for (size_t i = 0; i < change.path.size(); ++i) {
        const std::string& step = change.path[i];
        way += (way.empty() ? "" : ".") + step;
        const std::vector<YAML::Node> found = targets(place, step);
        if (found.size() > 1) fail("'" + way + "' stands for " + std::to_string(found.size()) + " places; name one");
        const bool is_last = i + 1 == change.path.size();
        if (is_last && change.value == nullptr) {
          if (!found.empty()) place.remove(step);
        } else if (is_last && found.empty()) {
          if (place.IsNull()) place = YAML::Node(YAML::NodeType::Map);
          if (!place.IsMap()) fail("'" + way + "': there is no such place in the recipe");
          place.force_insert(step, unshared(*change.value->node_, num_left));
        } else if (found.empty()) {
          fail("'" + way + "': there is no such place in the recipe");
        } else if (is_last) {
          YAML::Node target = found.front();
          target = unshared(*change.value->node_, num_left);
        } else {
          place.reset(found.front());
        }
      }
    }
    YAML::Emitter text;
    text << root;
    return std::string(text.c_str()) + "\n";
  } catch (const std::length_error& error) {
    fail(error.what());
  }
}

bool YamlValue::is_list() const {
  return node_->IsSequence();
}

bool YamlValue::is_map() const {
  return node_->IsMap();
}

size_t YamlValue::choose(const std::vector<std::string>& names) const {
  const std::string found = text();
  const auto name = std::find(names.begin(), names.end(), found);
  if (name != names.end()) return static_cast<size_t>(name - names.begin());
  std::string allowed;
  for (const std::string& known : names) allowed += (allowed.empty() ? "" : ", ") + known;
  fail("expected " + std::string(names.size() > 1 ? "one of " : "") + allowed + ", found '" + found + "'" +
       runtime::did_you_mean(found, names));
}

std::string YamlValue::kind() const {
  if (!node_->IsDefined() || node_->IsNull()) return "nothing";
  if (node_->IsMap()) return "a map";
  if (node_->IsSequence()) return "a list";
  return "'" + node_->Scalar() + "'";
}

}  // namespace pare::compress
