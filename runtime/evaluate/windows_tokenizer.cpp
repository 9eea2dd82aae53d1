#include "runtime/evaluate/windows_tokenizer.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "runtime/evaluate/token_source.h"
#include "runtime/system/atomic_file.h"
#include "runtime/system/json_text.h"
#include "runtime/system/sha256.h"
#include "runtime/tokenizer/tokenizer_hash.h"

namespace pare::runtime {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxFileBytes = 4096;
constexpr size_t kHashDigits = 64;

std::string how_to_write(const std::string& model) {
  return "'pare tokenize " + model + " --text FILE --windows OUT.npy' writes windows that name their tokenizer";
}

// Reads a SHA-256 in hexadecimal digits.
std::string read_hash(const nlohmann::json& json, const char* key, const std::string& where) {
  const auto found = json.find(key);
  const bool is_text = found != json.end() && found->is_string();
  const std::string text = is_text ? found->get<std::string>() : std::string();
  if (text.size() != kHashDigits || text.find_first_not_of("0123456789abcdef") != std::string::npos) {
    throw std::runtime_error(where + ": expected a SHA-256 of " + std::to_string(kHashDigits) +
                             " hexadecimal digits under '" + key + "', found " +
                             (is_text ? "'" + text + "'" : std::string("none")));
  }
  return text;
}

}  // namespace

fs::path windows_tokenizer_file(const fs::path& windows) {
  return windows.string() + ".json";
}

std::optional<std::string> windows_tokenizer(const fs::path& windows) {
  const fs::path file = windows_tokenizer_file(windows);
  if (!is_there(file)) return std::nullopt;
  const std::string where = file.string();
  const nlohmann::json json = parse_json(read_text_file(file, kMaxFileBytes), where);
  if (!json.is_object()) throw std::runtime_error(where + ": expected an object with 'tokenizer' and 'sha256'");
  const std::string tokenizer = read_hash(json, "tokenizer", where), expected = read_hash(json, "sha256", where);
  if (const std::string found = sha256_file(windows); found != expected) {
    throw std::runtime_error(where + ": names the tokenizer of windows with the SHA-256 " + expected + ", and '" +
                             windows.string() + "' has " + found +
                             ": the windows were written again later; write both again, or remove the .json");
  }
  return tokenizer;
}

void write_windows(const fs::path& path, const TokenWindows& windows, const std::string& tokenizer_hash) {
  write_npy(path, windows);
  const nlohmann::ordered_json json = {{"tokenizer", tokenizer_hash}, {"sha256", sha256_file(path)}};
  write_file_atomically(windows_tokenizer_file(path), json_text(json) + "\n");
}

// The returned text names no folder. It is stored with an output, whose bytes do not depend on where a phase's model
// lies.
std::optional<std::string> check_windows_tokenizer(const fs::path& text, const fs::path& model) {
  if (!holds_token_windows(text)) return std::nullopt;
  const std::optional<std::string> of_windows = windows_tokenizer(text);
  if (!of_windows) {
    return "'" + text.string() + "' does not say which tokenizer its token ids belong to (there is no '" +
           windows_tokenizer_file(text).filename().string() +
           "' beside it); ids of another tokenizer are nonsense to the model: " + how_to_write("MODEL");
  }
  if (!is_there(model / "tokenizer.json")) {
    return "'" + text.string() + "' holds token ids of a tokenizer with the hash " + *of_windows +
           ", and the model has no tokenizer.json to compare with, so nothing says whether they are the model's";
  }
  const std::string of_model = tokenizer_hash(model);
  if (of_model == *of_windows) return std::nullopt;
  throw std::invalid_argument("'" + text.string() + "' holds token ids of another tokenizer than that of '" +
                              model.string() + "' (vocabulary and merges have the hashes " + *of_windows + " and " +
                              of_model +
                              "): they are nonsense to this model; give the text itself (.txt, .jsonl), or " +
                              "windows of this tokenizer: " + how_to_write(model.string()));
}

void check_windows_tokenizers(const std::vector<fs::path>& texts, const fs::path& model,
                              std::vector<std::string>& events) {
  for (const fs::path& text : texts) {
    const std::optional<std::string> event = check_windows_tokenizer(text, model);
    if (event && std::find(events.begin(), events.end(), *event) == events.end()) events.push_back(*event);
  }
}

void add_text(const fs::path& text, InputFiles& files) {
  files.add(text);
  if (holds_token_windows(text)) files.add(windows_tokenizer_file(text));
}

}  // namespace pare::runtime
