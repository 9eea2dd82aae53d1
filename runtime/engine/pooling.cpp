#include "runtime/engine/pooling.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/system/atomic_file.h"
#include "runtime/system/input_files.h"
#include "runtime/system/json_text.h"

namespace pare::runtime {
namespace {

// sentence-transformers' keys.
constexpr std::pair<std::string_view, Pooling::Kind> kModes[] = {
    {"pooling_mode_mean_tokens", Pooling::Kind::mean},
    {"pooling_mode_cls_token", Pooling::Kind::first_token},
    {"pooling_mode_lasttoken", Pooling::Kind::last_token},
};

nlohmann::json read_json(const std::filesystem::path& path) {
  nlohmann::json json = parse_json(read_text_file(path), path.string());
  if (!json.is_object()) throw std::runtime_error(path.string() + ": expected a JSON object");
  return json;
}

}  // namespace

std::string Pooling::label() const {
  const std::string what =
      kind == Kind::mean ? "mean over tokens" : (kind == Kind::first_token ? "first token" : "last token");
  return what + (is_stated ? "" : " (no 1_Pooling/config.json: assumed)") + ", at most " + std::to_string(max_tokens) +
         " tokens of a text";
}

Pooling read_pooling(const std::filesystem::path& directory, int64_t context_length) {
  Pooling pooling;
  pooling.max_tokens = context_length;
  if (const auto path = directory / "sentence_bert_config.json"; is_there(path)) {
    const nlohmann::json settings = read_json(path);
    const auto limit = settings.find("max_seq_length");
    if (limit != settings.end() && !limit->is_null()) {
      if (!limit->is_number_unsigned() || limit->get<uint64_t>() == 0) {
        throw std::runtime_error(path.string() + ": key 'max_seq_length': expected a positive number");
      }
      pooling.max_tokens =
          std::min<int64_t>(context_length, static_cast<int64_t>(std::min<uint64_t>(limit->get<uint64_t>(), 1u << 30)));
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
  for (const auto& [mode, kind] : kModes) {
    if (modes != std::vector<std::string>{std::string(mode)}) continue;
    pooling.kind = kind;
    return pooling;
  }
  std::string found, known;
  for (const std::string& mode : modes) found += (found.empty() ? "" : ", ") + mode;
  for (const auto& [mode, kind] : kModes) known += (known.empty() ? "" : ", ") + std::string(mode);
  throw std::runtime_error(path.string() + ": expected one of " + known + ", found " +
                           (found.empty() ? "none" : found));
}

void require_known_modules(const std::filesystem::path& directory) {
  constexpr std::array<std::string_view, 3> kKnown = {"Transformer", "Pooling", "Normalize"};
  const auto path = directory / "modules.json";
  if (!is_there(path)) return;
  const nlohmann::json modules = parse_json(read_text_file(path), path.string());
  if (!modules.is_array()) throw std::runtime_error(path.string() + ": expected a list of modules");
  for (const nlohmann::json& module : modules) {
    const auto type = module.is_object() ? module.find("type") : module.end();
    if (!module.is_object() || type == module.end() || !type->is_string()) {
      throw std::runtime_error(path.string() + ": expected modules with a type");
    }
    const auto full = type->get<std::string>();
    const std::string name = full.substr(full.rfind('.') + 1);
    if (std::ranges::find(kKnown, name) != kKnown.end()) continue;
    throw std::runtime_error(path.string() + ": embeddings are not computed through a module of type '" +
                             full.substr(0, 200) +
                             "', only through Transformer, Pooling and Normalize: to compare what the pooling gives, "
                             "leave it out of a copy of the file");
  }
}

void pool_rows(std::span<const float> hidden_TD, Pooling::Kind kind, std::span<float> pooled_D) {
  const size_t width = pooled_D.size(), num_rows = hidden_TD.size() / width;
  if (kind != Pooling::Kind::mean) {
    const size_t row = kind == Pooling::Kind::first_token ? 0 : num_rows - 1;
    std::copy_n(hidden_TD.begin() + static_cast<std::ptrdiff_t>(row * width), width, pooled_D.begin());
    return;
  }
  for (size_t d = 0; d < width; ++d) {
    double sum = 0.0;
    for (size_t t = 0; t < num_rows; ++t) sum += static_cast<double>(hidden_TD[t * width + d]);
    pooled_D[d] = static_cast<float>(sum / static_cast<double>(num_rows));
  }
}

void normalize_embedding(std::span<float> embedding_D, int64_t text) {
  double sum = 0.0;
  for (const float value : embedding_D) sum += static_cast<double>(value) * static_cast<double>(value);
  if (!std::isfinite(sum) || sum <= 0.0) {
    throw std::runtime_error("the embedding of text " + std::to_string(text) +
                             " is not finite or is 0: the weights are damaged or the model overflows float32");
  }
  for (float& value : embedding_D) value = static_cast<float>(static_cast<double>(value) / std::sqrt(sum));
}

}  // namespace pare::runtime
