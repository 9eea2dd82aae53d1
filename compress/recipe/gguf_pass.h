// The options of the pass `gguf`.
#pragma once

#include <string>
#include <string_view>

#include "compress/recipe/pass_options.h"

namespace pare::compress {

// Weights are rounded to blocks of GGUF, column by column as by gptq. They are stored as the blocks that llama.cpp
// reads, in the container pare-gguf.
class GgufPass : public OptionsOf<GgufPass, PassKind::rounds> {
 public:
  const runtime::WeightCode* type = runtime::find_weight_code("q4_k");
  quant::GptqOptions gptq;  // its loop alone
  quant::RefineOptions refine;
  quant::FitOptions fitting{.fit = true};

  std::string_view meaning() const override {
    return "Rounds weights to blocks of GGUF column by column, as `gptq` does. `pare export --format gguf` then writes "
           "the file for llama.cpp. It needs `calibration`.";
  }
  void fields(runtime::FieldVisitor& visit) override;
  void check(const PassCheck& check) override;
  bool is_overridable(std::string_view key) const override { return key == "type"; }
  void settle_shape(int64_t num_out, int64_t num_in) override;
  void check_layer(const std::string& layer, int64_t num_out, int64_t num_in) const override;
  StatisticsNeed need() const override { return fitting.fit ? StatisticsNeed::original : StatisticsNeed::hessian; }
  void store(runtime::PackScheme& scheme) const override;
  bool holds_zeros() const override;
  const quant::FitOptions* fit() const override { return &fitting; }
  std::string words(std::string_view key) const override;
  double operations(const StageExtent& stage) const override;
};

}  // namespace pare::compress
