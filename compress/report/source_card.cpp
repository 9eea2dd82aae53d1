#include "compress/report/source_card.h"

#include <algorithm>
#include <array>
#include <span>
#include <stdexcept>

#include "compress/recipe/yaml_value.h"
#include "runtime/commands/small_files.h"
#include "runtime/model/checkpoint_files.h"
#include "runtime/system/visible_text.h"
#include "runtime/text/unicode.h"

namespace pare::compress {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMostHeadBytes = size_t{64} << 10;
constexpr size_t kMostValues = 100, kMostValueBytes = 300;
constexpr std::array<std::string_view, 8> kTakenOver = {"license",      "license_name", "license_link", "language",
                                                        "library_name", "pipeline_tag", "datasets",     "tags"};

// Returns the lines between the marks; nothing where the text has no head, or no end of it.
std::optional<std::string> head_of(const std::string& card, bool& has_begun) {
  size_t begin = card.starts_with("\xEF\xBB\xBF") ? 3 : 0;  // a byte order mark
  const auto line_at = [&](size_t from) {
    std::string line = card.substr(from, std::min(card.find('\n', from), card.size()) - from);
    while (!line.empty() && (line.back() == '\r' || line.back() == ' ')) line.pop_back();
    return line;
  };
  has_begun = line_at(begin) == "---" && card.find('\n', begin) != std::string::npos;
  if (!has_begun) return std::nullopt;
  begin = card.find('\n', begin) + 1;
  for (size_t at = begin; at < card.size() && at < kMostHeadBytes;) {
    if (line_at(at) == "---") return card.substr(begin, at - begin);
    const size_t end = card.find('\n', at);
    if (end == std::string::npos) break;
    at = end + 1;
  }
  return std::nullopt;
}

// Returns a value of the head: an empty text where a card has no use for it, nothing where there is none.
std::optional<std::string> text_of(const YamlValue& value) {
  if (value.is_map() || value.is_list()) return "";
  std::string text;
  try {
    text = value.text();
  } catch (const std::invalid_argument&) {
    return std::nullopt;
  }
  const bool is_usable =
      text.size() <= kMostValueBytes && !runtime::find_invalid_utf8(text) && runtime::visible_line(text) == text;
  return is_usable ? text : std::string();
}

// Returns the beginning of a file of a model's folder: one byte more than a head has, so that a longer one is known.
std::string beginning_of(const fs::path& directory, const std::string& name) {
  const runtime::InputFile file = runtime::open_small_file(directory, name);
  std::string text(std::min(static_cast<size_t>(file.size_bytes()), kMostHeadBytes + 1), '\0');
  file.read(0, std::as_writable_bytes(std::span(text)));
  return text;
}

}  // namespace

bool is_own_card(const fs::path& directory, const std::string& name) {
  return runtime::is_there(directory / name) && beginning_of(directory, name).find(kCardMark) != std::string::npos;
}

std::vector<std::string> CardHead::values(std::string_view field) const {
  const auto found = std::ranges::find(fields, field, &std::pair<std::string, std::vector<std::string>>::first);
  return found == fields.end() ? std::vector<std::string>() : found->second;
}

CardHead read_card_head(const std::string& card, const std::string& name) {
  CardHead head;
  bool has_begun = false;
  const std::optional<std::string> yaml = head_of(card, has_begun);
  if (!yaml) {
    if (has_begun) {
      head.problems.push_back("'" + name + "': its YAML head has no end, a line '---', within " +
                              std::to_string(kMostHeadBytes >> 10) +
                              " KiB: the model card takes none of its fields over");
    }
    return head;
  }
  if (yaml->find_first_not_of(" \t\r\n") == std::string::npos) return head;
  try {
    const fs::path file = name;
    for (const auto& [key, value] : YamlValue::parse(*yaml, file).entries()) {
      if (std::ranges::find(kTakenOver, key) == kTakenOver.end() || !head.values(key).empty()) continue;
      std::vector<std::string> values;
      size_t num_unusable = 0;
      for (const YamlValue& item : value.is_list() ? value.list() : std::vector{value}) {
        const std::optional<std::string> text = text_of(item);
        if (!text) continue;
        if (text->empty() || values.size() == kMostValues) {
          ++num_unusable;
        } else {
          values.push_back(*text);
        }
      }
      if (num_unusable > 0) {
        head.problems.push_back("'" + name + "': the model card does not take over all of '" + key +
                                "', because values are no text of one line, too long or too many");
      }
      if (!values.empty()) head.fields.emplace_back(key, std::move(values));
    }
  } catch (const std::invalid_argument& error) {
    head.fields.clear();
    head.problems = {"'" + name +
                     "': its YAML head cannot be read, and the model card takes none of its fields over (" +
                     runtime::visible_line(error.what()) + ")"};
  }
  return head;
}

std::optional<std::string> source_card_name(const fs::path& directory) {
  const std::vector<std::string> names = runtime::find_small_files(directory).copied;
  const auto has = [&](const char* name) { return std::ranges::find(names, name) != names.end(); };
  if (!has(kCardName)) return has(kSourceCardName) ? std::optional<std::string>(kSourceCardName) : std::nullopt;
  if (has(kSourceCardName) && is_own_card(directory, kCardName)) return kSourceCardName;
  return kCardName;
}

CardHead card_head_of(const fs::path& directory, const std::string& name) {
  return read_card_head(beginning_of(directory, name), name);
}

std::string keep_source_card(const fs::path& artifact) {
  if (!runtime::is_there(artifact / kCardName)) return {};
  if (!runtime::is_there(artifact / kSourceCardName)) {
    fs::rename(artifact / kCardName, artifact / kSourceCardName);
    return kSourceCardName;
  }
  if (is_own_card(artifact, kCardName)) return {};
  fs::path free = artifact / kSourceCardName;
  for (int i = 2; runtime::is_there(free); ++i) free = artifact / ("README.source." + std::to_string(i) + ".md");
  fs::rename(artifact / kCardName, free);
  return free.filename().string();
}

}  // namespace pare::compress
