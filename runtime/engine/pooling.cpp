#include "runtime/engine/pooling.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <vector>

#include "runtime/system/atomic_file.h"
#include "runtime/system/input_files.h"
#include "runtime/system/json_text.h"

namespace pare::runtime {
namespace {

nlohmann::json read_json(const std::filesystem::path& path) {
  nlohmann::json json = parse_json(read_text_file(path), path.string());
  if (!json.is_object()) throw std::runtime_error(path.string() + ": expected a JSON object");
  return json;
}

}  // namespace

std::string Pooling::label() const {
  const std::string what = kind == Kind::mean ? "mean over tokens" : "first token";
  return what + (is_stated ? "" : " (no 1_Pooling/config.json: assumed)") + ", at most " + std::to_string(max_tokens) +
         " tokens of a text";
}

Pooling read_pooling(const std::filesystem::path& directory, const EncoderDescription& model) {
  Pooling pooling;
  pooling.max_tokens = model.context_length;
  if (const auto path = directory / "sentence_bert_config.json"; is_there(path)) {
    const nlohmann::json settings = read_json(path);
    const auto limit = settings.find("max_seq_length");
    if (limit != settings.end() && !limit->is_null()) {
      if (!limit->is_number_unsigned() || limit->get<uint64_t>() == 0) {
        throw std::runtime_error(path.string() + ": key 'max_seq_length': expected a positive number");
      }
      pooling.max_tokens = std::min<int64_t>(
          model.context_length, static_cast<int64_t>(std::min<uint64_t>(limit->get<uint64_t>(), 1u << 30)));
    }
  }
  const auto path = directory / "1_Pooling" / "config.json";
  if (!is_there(path)) return pooling;
  pooling.is_stated = true;
  std::vector<std::string> modes;
  const nlohmann::json settings = read_json(path);
  for (const auto& [key, value] : settings.items()) {
    if (key.starts_with("pooling_mode_") && value == true) modes.push_back(key);
  }
  if (modes == std::vector<std::string>{"pooling_mode_mean_tokens"}) return pooling;
  if (modes != std::vector<std::string>{"pooling_mode_cls_token"}) {
    std::string found;
    for (const std::string& mode : modes) found += (found.empty() ? "" : ", ") + mode;
    throw std::runtime_error(path.string() +
                             ": expected one of pooling_mode_mean_tokens and pooling_mode_cls_token, found " +
                             (found.empty() ? "none" : found));
  }
  pooling.kind = Pooling::Kind::first_token;
  return pooling;
}

}  // namespace pare::runtime
