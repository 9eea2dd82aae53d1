#include "runtime/tokenizer/tokenizer_hash.h"

#include <map>
#include <nlohmann/json.hpp>
#include <span>
#include <stdexcept>

#include "runtime/files/gguf.h"
#include "runtime/system/atomic_file.h"
#include "runtime/system/json_text.h"
#include "runtime/system/sha256.h"
#include "runtime/tokenizer/gguf_vocabulary.h"

namespace pare::runtime {
namespace {

using Json = nlohmann::json;

[[noreturn]] void fail(const std::filesystem::path& path, const std::string& expected) {
  throw std::runtime_error(path.string() + ": expected " + expected + " in a tokenizer.json");
}

// Returns a pair for either way of writing a merge.
Json merge_pair(const std::filesystem::path& path, const Json& merge) {
  if (merge.is_array() && merge.size() == 2) return merge;
  const size_t space = merge.is_string() ? merge.get_ref<const std::string&>().find(' ') : std::string::npos;
  if (space == std::string::npos) fail(path, "merges of two tokens each");
  const auto& text = merge.get_ref<const std::string&>();
  return Json::array({text.substr(0, space), text.substr(space + 1)});
}

}  // namespace

std::string tokenizer_hash(const std::filesystem::path& path) {
  const std::filesystem::path file = std::filesystem::is_directory(path) ? path / "tokenizer.json" : path;
  const std::string json = file.extension() == ".gguf" ? make_tokenizer_json(read_gguf_vocabulary(GgufFile::open(file)))
                                                       : read_text_file(file);
  const Json tokenizer = parse_json(json, file.string(), Nul::allowed);
  if (!tokenizer.is_object() || !tokenizer.contains("model") || !tokenizer["model"].is_object() ||
      !tokenizer["model"].contains("vocab")) {
    fail(file, "a model with a vocabulary");
  }
  const Json& model = tokenizer["model"];
  // An object of nlohmann::json is sorted by its keys.
  Json identity = {{"type", model.value("type", Json())}, {"vocab", model["vocab"]}};
  identity["merges"] = Json::array();
  for (const Json& merge : model.value("merges", Json::array())) identity["merges"].push_back(merge_pair(file, merge));
  std::map<int64_t, std::string> added;  // by id
  for (const Json& token : tokenizer.value("added_tokens", Json::array())) {
    if (!token.is_object() || !token.contains("id") || !token["id"].is_number_integer() || !token.contains("content") ||
        !token["content"].is_string()) {
      fail(file, "added tokens with an id and a content");
    }
    added[token["id"].get<int64_t>()] = token["content"].get<std::string>();
  }
  identity["added"] = Json::array();
  for (const auto& [id, content] : added) identity["added"].push_back({id, content});
  const std::string text = json_text(identity);
  return sha256_hex(std::as_bytes(std::span(text)));
}

}  // namespace pare::runtime
