#include "compress/passes/pass_table.h"

#include "compress/recipe/activation_sparsity_pass.h"
#include "compress/recipe/distill_pass.h"
#include "compress/recipe/pass_options.h"
#include "compress/recipe/prune_options.h"
#include "compress/recipe/reconstruct_pass.h"

namespace pare::compress {
namespace {

template <typename Options>
PassRow row(std::string_view key, ApplyPass apply = nullptr) {
  return {key, [] { return std::make_unique<Options>(); }, std::move(apply)};
}

std::vector<const PassRow*>& table() {
  static const std::vector<PassRow> kRows = {
      row<MagnitudePass>("magnitude", apply_magnitude),
      row<WandaPass>("wanda", apply_wanda),
      row<SparseGptPass>("sparsegpt", apply_sparsegpt),
      row<RtnPass>("rtn", apply_rtn),
      row<GptqPass>("gptq", apply_gptq),
      row<GgufPass>("gguf", apply_gguf),
      row<Fp8Pass>("fp8", apply_fp8),
      row<LlmInt8Pass>("llm_int8", apply_llm_int8),
      row<ActivationsPass>("activations", apply_activations),
      row<AwqPass>("awq", apply_awq),
      row<SmoothQuantPass>("smoothquant", apply_smoothquant),
      row<ActivationSparsityPass>("activation_sparsity", apply_activation_sparsity),
      row<ReconstructPass>("reconstruct"),
      row<DistillPass>("distill"),
  };
  static std::vector<const PassRow*> pointers = [] {
    std::vector<const PassRow*> all;
    for (const PassRow& item : kRows) all.push_back(&item);
    return all;
  }();
  return pointers;
}

}  // namespace

std::span<const PassRow* const> pass_rows() {
  return table();
}

void add_pass(const PassRow& row) {
  if (find_pass(row.key) == &row) return;
  if (find_pass(row.key) != nullptr) {
    throw std::invalid_argument("there is a pass '" + std::string(row.key) + "' already");
  }
  table().push_back(&row);
}

}  // namespace pare::compress
