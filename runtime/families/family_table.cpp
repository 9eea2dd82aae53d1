#include <algorithm>
#include <iterator>
#include <stdexcept>
#include <utility>

#include "runtime/families/families.h"
#include "runtime/families/family_rules.h"

namespace pare::runtime {

template <typename Row>
FamilyTable<Row>::FamilyTable(std::initializer_list<std::span<const Row>> parts) {
  for (const std::span<const Row> rows : parts) {
    for (const Row& row : rows) rows_.push_back(&row);
  }
}

template <typename Row>
void FamilyTable<Row>::add(const Row& row) {
  const auto refuse = [&](const std::string& why) {
    throw std::invalid_argument("the family '" + std::string(row.name) + "' " + why);
  };
  if (find(&Row::name, row.name) == &row) return;
  if (find(&Row::name, row.name) != nullptr) refuse("is there already: expected another name");
  if (const std::string_view missing = not_computed(row); !missing.empty()) {
    refuse("asks for " + std::string(missing) + ", which nothing computes");
  }
  rows_.push_back(&row);
}

template <typename Row>
const Row* FamilyTable<Row>::find(std::string_view Row::*field, std::string_view value) const {
  const auto row = std::ranges::find_if(rows_, [&](const Row* r) { return !value.empty() && r->*field == value; });
  return row == rows_.end() ? nullptr : *row;
}

template <typename Row>
std::vector<const Row*> FamilyTable<Row>::find_all(std::string_view Row::*field, std::string_view value) const {
  std::vector<const Row*> found;
  for (const Row* row : rows_) {
    if (!value.empty() && row->*field == value) found.push_back(row);
  }
  return found;
}

template <typename Row>
std::vector<std::string_view> FamilyTable<Row>::all(std::string_view Row::*field) const {
  std::vector<std::string_view> values;
  for (const Row* row : rows_) {
    const std::string_view value = row->*field;
    if (!value.empty() && std::ranges::find(values, value) == values.end()) values.push_back(value);
  }
  return values;
}

template <typename Row>
std::string FamilyTable<Row>::list(std::string_view Row::*field, std::string_view Row::*having) const {
  std::string all;
  for (const Row* row : rows_) {
    if ((row->*having).empty()) continue;
    const std::string value(row->*field);
    if ((", " + all + ",").find(", " + value + ",") == std::string::npos) all += (all.empty() ? "" : ", ") + value;
  }
  return all;
}

template class FamilyTable<DecoderFamily>;
template class FamilyTable<EncoderFamily>;

FamilyTable<DecoderFamily>& decoder_families() {
  static FamilyTable<DecoderFamily> table({dense_families(), mixture_families()});
  return table;
}

FamilyTable<EncoderFamily>& encoder_families() {
  static FamilyTable<EncoderFamily> table({encoder_rows()});
  return table;
}

std::string_view what_is_missing(std::string_view model_type) {
  constexpr std::string_view kDelta = "layers of linear attention (gated delta rule)";
  constexpr std::string_view kConvolution = "layers of short convolutions";
  constexpr std::string_view kMamba = "state space layers (Mamba)";
  constexpr std::string_view kRecurrent = "recurrent layers";
  constexpr std::string_view kLatent = "latent attention (MLA) in another form than DeepSeek's";
  constexpr std::pair<std::string_view, std::string_view> kMissing[] = {
      {"qwen3_next", kDelta},
      {"qwen3_5", kDelta},
      {"qwen3_5_text", kDelta},
      {"qwen3_5_moe", kDelta},
      {"qwen3_5_moe_text", kDelta},
      {"olmo_hybrid", kDelta},
      {"kimi_linear", kDelta},
      {"lfm2", kConvolution},
      {"lfm2_moe", kConvolution},
      {"mamba", kMamba},
      {"mamba2", kMamba},
      {"falcon_mamba", kMamba},
      {"falcon_h1", kMamba},
      {"granitemoehybrid", kMamba},
      {"bamba", kMamba},
      {"jamba", kMamba},
      {"nemotron_h", kMamba},
      {"zamba", kMamba},
      {"zamba2", kMamba},
      {"recurrent_gemma", kRecurrent},
      {"rwkv", kRecurrent},
      {"xlstm", kRecurrent},
      {"minimax", "layers of linear attention (lightning attention)"},
      {"deepseek_v32", "sparse attention (an indexer of keys)"},
      {"glm4_moe_lite", kLatent},
      {"minicpm3", kLatent},
      {"ministral3", "a factor of queries that grows with the position (llama_4_scaling_beta)"},
  };
  const auto found = std::ranges::find(kMissing, model_type, &std::pair<std::string_view, std::string_view>::first);
  return found == std::end(kMissing) ? "" : found->second;
}

}  // namespace pare::runtime
