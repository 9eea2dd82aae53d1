// The table of passes for the recipe's fuzzer. It reads options and applies nothing, so it does not need LibTorch.
#include "compress/recipe/activation_sparsity_pass.h"
#include "compress/recipe/distill_pass.h"
#include "compress/recipe/pass_options.h"
#include "compress/recipe/prune_options.h"
#include "compress/recipe/reconstruct_pass.h"

namespace pare::compress {
namespace {

template <typename Options>
PassRow row(std::string_view key) {
  return {key, [] { return std::make_unique<Options>(); }, nullptr};
}

}  // namespace

std::span<const PassRow* const> pass_rows() {
  static const std::vector<PassRow> kRows = {row<MagnitudePass>("magnitude"),
                                             row<WandaPass>("wanda"),
                                             row<SparseGptPass>("sparsegpt"),
                                             row<RtnPass>("rtn"),
                                             row<GptqPass>("gptq"),
                                             row<GgufPass>("gguf"),
                                             row<Fp8Pass>("fp8"),
                                             row<LlmInt8Pass>("llm_int8"),
                                             row<ActivationsPass>("activations"),
                                             row<AwqPass>("awq"),
                                             row<SmoothQuantPass>("smoothquant"),
                                             row<ActivationSparsityPass>("activation_sparsity"),
                                             row<ReconstructPass>("reconstruct"),
                                             row<DistillPass>("distill")};
  static const std::vector<const PassRow*> pointers = [] {
    std::vector<const PassRow*> all;
    for (const PassRow& item : kRows) all.push_back(&item);
    return all;
  }();
  return pointers;
}

}  // namespace pare::compress
