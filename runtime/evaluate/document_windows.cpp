#include "runtime/evaluate/document_windows.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "runtime/evaluate/token_source.h"
#include "runtime/system/atomic_file.h"
#include "runtime/system/input_files.h"
#include "runtime/system/interrupt.h"
#include "runtime/system/json_text.h"

namespace pare::runtime {
namespace {

namespace fs = std::filesystem;

// Returns the eos_token that a file of the model's folder names, as a text or as an added token; empty: none.
std::string named_end(const fs::path& file) {
  if (!is_there(file)) return {};
  const nlohmann::json json = parse_json(read_text_file(file), file.string(), Nul::allowed);
  if (!json.is_object() || !json.contains("eos_token")) return {};
  const nlohmann::json& token = json["eos_token"];
  if (token.is_string()) return token.get<std::string>();
  if (token.is_object() && token.contains("content") && token["content"].is_string()) {
    return token["content"].get<std::string>();
  }
  return {};
}

int32_t id_of(const std::string& token, const Tokenizer& tokenizer, const std::string& who) {
  const std::optional<int32_t> id = tokenizer.token_id(token);
  if (id) return *id;
  throw std::invalid_argument(who + " '" + token +
                              "', which is not a token of the vocabulary: expected one of its tokens");
}

void check_ids(const std::vector<int32_t>& ids, int64_t num_vocabulary, const fs::path& path) {
  for (const int32_t id : ids) {
    if (id >= 0 && id < num_vocabulary) continue;
    throw std::invalid_argument(path.string() + ": the tokenizer gives the id " + std::to_string(id) +
                                ", outside the model's vocabulary of " + std::to_string(num_vocabulary));
  }
}

std::vector<std::vector<int32_t>> encode_documents(const fs::path& path, const DocumentCut& cut) {
  if (cut.num_tokens <= 0) {
    throw std::invalid_argument("windows of " + std::to_string(cut.num_tokens) + " tokens; expected at least 1");
  }
  std::vector<std::vector<int32_t>> documents;
  const SourceTexts source = read_source_texts(path, cut.tokenizer);
  for (const std::string& text : source.texts) {
    throw_if_interrupted();
    if (text.empty()) continue;
    std::vector<int32_t>& ids =
        documents.emplace_back(cut.tokenizer.encode(text, /*add_special_tokens=*/!source.are_chats));
    if (!source.are_chats && (ids.empty() || ids.back() != cut.end_token)) ids.push_back(cut.end_token);
    check_ids(ids, cut.num_vocabulary, path);
  }
  return documents;
}

}  // namespace

int32_t end_of_document(const std::string& name, const Tokenizer& tokenizer, const fs::path& model,
                        const ModelDescription& description) {
  if (!name.empty()) return id_of(name, tokenizer, "a document should end with");
  for (const char* file : {"tokenizer_config.json", "special_tokens_map.json"}) {
    const std::string token = named_end(model / file);
    if (!token.empty()) return id_of(token, tokenizer, (model / file).string() + ": its 'eos_token' is");
  }
  if (!description.eos_tokens.empty()) return description.eos_tokens.front();
  throw std::invalid_argument("'" + model.string() +
                              "' names no token that ends a text (eos_token in tokenizer_config.json, eos_token_id in "
                              "config.json): name the one that ends a document ('end_of_document', --end-of-document)");
}

DocumentWindows read_document_windows(const fs::path& path, const DocumentCut& cut, int64_t num_windows) {
  DocumentWindows result;
  TokenWindows& windows = result.windows;
  windows.num_tokens = cut.num_tokens;
  std::vector<int64_t> starts;
  for (const std::vector<int32_t>& ids : encode_documents(path, cut)) {
    starts.push_back(static_cast<int64_t>(windows.ids_NT.size()));
    windows.ids_NT.insert(windows.ids_NT.end(), ids.begin(), ids.end());
  }
  const auto num_ids = static_cast<int64_t>(windows.ids_NT.size());
  windows.num_windows = num_ids / cut.num_tokens;
  if (windows.num_windows == 0) {
    throw std::invalid_argument(path.string() + ": the text has " + std::to_string(num_ids) +
                                " tokens, less than one window of " + std::to_string(cut.num_tokens) +
                                "; give a longer text or a shorter window");
  }
  if (num_windows > 0) windows.num_windows = std::min(windows.num_windows, num_windows);
  windows.ids_NT.resize(static_cast<size_t>(windows.num_windows * cut.num_tokens));
  result.starts_N.resize(static_cast<size_t>(windows.num_windows));
  for (const int64_t start : starts) {
    const int64_t window = start / cut.num_tokens, position = start % cut.num_tokens;
    if (window >= windows.num_windows || position == 0) continue;
    result.starts_N[static_cast<size_t>(window)].push_back(static_cast<int32_t>(position));
  }
  return result;
}

std::vector<std::vector<int32_t>> read_document_pieces(const fs::path& path, const DocumentCut& cut,
                                                       int64_t least_tokens) {
  std::vector<std::vector<int32_t>> pieces;
  for (const std::vector<int32_t>& ids : encode_documents(path, cut)) {
    for (size_t first = 0; first < ids.size(); first += static_cast<size_t>(cut.num_tokens)) {
      const size_t end = std::min(ids.size(), first + static_cast<size_t>(cut.num_tokens));
      if (static_cast<int64_t>(end - first) < least_tokens) continue;
      pieces.emplace_back(ids.begin() + static_cast<int64_t>(first), ids.begin() + static_cast<int64_t>(end));
    }
  }
  if (pieces.empty()) {
    throw std::invalid_argument(path.string() + ": no document has " + std::to_string(least_tokens) +
                                " tokens; give longer ones");
  }
  return pieces;
}

}  // namespace pare::runtime
