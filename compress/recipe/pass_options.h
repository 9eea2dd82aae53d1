// The options of the passes that pare brings.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "compress/recipe/pass.h"
#include "compress/recipe/prune_options.h"

namespace pare::compress {

// The operations of the factor of H, [I, I]: Cholesky, inverse and check in float64.
double factor_operations(int64_t width);

// Clones and kinds are alike for all: Options names the class itself.
template <typename Options, PassKind Kind>
class OptionsOf : public PassOptions {
 public:
  std::unique_ptr<PassOptions> clone() const override {
    return std::make_unique<Options>(static_cast<const Options&>(*this));
  }
  PassKind kind() const override { return Kind; }
};

// What the passes share that round weights to a grid, and inputs beside them: rtn and gptq.
template <typename Options>
class GridPass : public OptionsOf<Options, PassKind::rounds> {
 public:
  quant::RefineOptions refine;
  quant::FitOptions fitting;
  runtime::InputFormat activations;

  bool is_overridable(std::string_view key) const override;
  void check(const PassCheck& check) override;
  void settle(const std::string& layer, const std::function<int(std::string_view)>& given_at) override;
  void check_layer(const std::string& layer, int64_t num_out, int64_t num_in) const override;
  StatisticsNeed need() const override;
  void store(runtime::PackScheme& scheme) const override;
  const runtime::InputFormat* input() const override { return &activations; }
  const quant::FitOptions* fit() const override { return &fitting; }
  void set_scale_dtype(runtime::DType dtype) override;
  std::string words(std::string_view key) const override;
  double operations(const StageExtent& stage) const override;
};

class RtnPass : public GridPass<RtnPass> {
 public:
  quant::GridOptions rounding;
  RtnPass() { refine.sweeps = 0; }
  const quant::GridOptions* grid() const override { return &rounding; }
  std::string_view meaning() const override { return "Rounds weights to the nearest code."; }
  void fields(runtime::FieldVisitor& visit) override;
};

inline constexpr std::string_view kPruneNothing = "none";
// The texts that gptq's `prune:` takes.
inline constexpr runtime::TextForm kPruneForm = {"N:M or none", "^([1-9][0-9]*:[1-9][0-9]*|none)$"};

class GptqPass : public GridPass<GptqPass> {
 public:
  quant::GptqOptions gptq;
  // Prunes as well: a pattern N:M; "none": rounds alone.
  std::string prune = std::string(kPruneNothing);
  // alps: before the sweep, as sparsegpt does; sweep: in it, column by column, as published (SparseGPT, arXiv
  // 2301.00774, section 3.5).
  prune::MaskChooser chooser = prune::MaskChooser::alps;
  SparseStorage storage = SparseStorage::dense;
  GptqPass() { fitting.fit = true; }
  const quant::GridOptions* grid() const override { return &gptq.grid; }
  const quant::GptqOptions* column_loop() const override { return &gptq; }
  runtime::SparsePattern pattern() const override {
    return prune == kPruneNothing ? runtime::SparsePattern{} : prune::parse_pattern(prune);
  }
  bool is_overridable(std::string_view key) const override { return key == "prune" || GridPass::is_overridable(key); }
  std::string_view meaning() const override {
    return "Rounds weights column by column, so that later columns make up for earlier errors (GPTQ). It can prune as "
           "well. It needs `calibration`.";
  }
  void fields(runtime::FieldVisitor& visit) override;
  void check(const PassCheck& check) override;
  void check_layer(const std::string& layer, int64_t num_out, int64_t num_in) const override;
  void store(runtime::PackScheme& scheme) const override;
  double operations(const StageExtent& stage) const override;
  int64_t working_bytes(const StageExtent& stage) const override;
  // The pass that chooses as alps does.
  SparseGptPass choice() const;

 private:
  bool chooses_before() const { return prune != kPruneNothing && chooser == prune::MaskChooser::alps; }
};

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

class Fp8Pass : public OptionsOf<Fp8Pass, PassKind::rounds> {
 public:
  bool per_tensor = false;
  runtime::InputFormat activations{.type = runtime::InputType::fp8};
  runtime::DType scale_dtype = runtime::DType::BF16;

  std::string_view meaning() const override {
    return "Stores weights as 8-bit floating point (E4M3), and rounds inputs to it.";
  }
  void fields(runtime::FieldVisitor& visit) override;
  void check(const PassCheck& check) override;
  StatisticsNeed need() const override;
  void store(runtime::PackScheme& scheme) const override;
  const runtime::InputFormat* input() const override { return &activations; }
  void set_scale_dtype(runtime::DType dtype) override { scale_dtype = dtype; }
  std::string words(std::string_view key) const override;
  double operations(const StageExtent& stage) const override;
};

class LlmInt8Pass : public OptionsOf<LlmInt8Pass, PassKind::rounds> {
 public:
  quant::LlmInt8Options llm_int8{.layout = quant::LlmInt8Layout::bitsandbytes};
  runtime::InputFormat activations{.type = runtime::InputType::int8, .outliers = runtime::OutlierRule::absolute};

  std::string_view meaning() const override {
    return "Rounds weights and inputs to 8 bits, except columns with outliers (LLM.int8).";
  }
  void fields(runtime::FieldVisitor& visit) override;
  void check(const PassCheck& check) override;
  StatisticsNeed need() const override { return StatisticsNeed::hessian_diagonal; }
  bool needs_data() const override { return needs_range(); }
  bool needs_range() const override;
  void store(runtime::PackScheme& scheme) const override;
  const runtime::InputFormat* input() const override { return &activations; }
  std::string words(std::string_view key) const override;
  double operations(const StageExtent& stage) const override;
};

// Inputs are rounded and weights left alone.
class ActivationsPass : public OptionsOf<ActivationsPass, PassKind::rounds> {
 public:
  runtime::InputFormat activations{.type = runtime::InputType::int8};
  runtime::DType scale_dtype = runtime::DType::BF16;

  std::string_view meaning() const override {
    return "Rounds the inputs of linears to 8 bits and leaves weights as they are.";
  }
  void fields(runtime::FieldVisitor& visit) override;
  void check(const PassCheck& check) override;
  StatisticsNeed need() const override;
  void store(runtime::PackScheme& scheme) const override;
  const runtime::InputFormat* input() const override { return &activations; }
  void set_scale_dtype(runtime::DType dtype) override { scale_dtype = dtype; }
};

class AwqPass : public OptionsOf<AwqPass, PassKind::scales_inputs> {
 public:
  quant::AwqOptions awq;
  std::string_view meaning() const override {
    return "Scales inputs and weights before rounding, so that important weights lose less (AWQ). `rtn` or `gptq` "
           "follows it. It needs `calibration`.";
  }
  void fields(runtime::FieldVisitor& visit) override { awq.fields(visit); }
  void check(const PassCheck& check) override;
  StatisticsNeed need() const override { return StatisticsNeed::hessian; }
  std::string why_not_before(const PassOptions& rounding, std::string_view key) const override;
  double operations(const StageExtent& stage) const override;
};

class SmoothQuantPass : public OptionsOf<SmoothQuantPass, PassKind::scales_inputs> {
 public:
  quant::SmoothQuantOptions smoothquant;
  std::string_view meaning() const override {
    return "Moves large values from inputs to weights before both are rounded (SmoothQuant). `rtn` or `gptq` "
           "follows it, with `activations: int8`. It needs `calibration`.";
  }
  void fields(runtime::FieldVisitor& visit) override { smoothquant.fields(visit); }
  void check(const PassCheck& check) override;
  StatisticsNeed need() const override { return StatisticsNeed::hessian_diagonal; }
  std::string why_not_before(const PassOptions& rounding, std::string_view key) const override;
  double operations(const StageExtent& stage) const override;
};

extern template class GridPass<RtnPass>;
extern template class GridPass<GptqPass>;

}  // namespace pare::compress
