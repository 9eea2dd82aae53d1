// The options of the passes that prune, and of gptq's pruning in its own sweep.
#pragma once

#include <algorithm>
#include <array>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "compress/recipe/pass.h"
#include "prune/options.h"

namespace pare::compress {

// How a weight of two of four is stored: with its zeros, as any weight, which every engine reads; or what is kept and
// where it stands (runtime/containers/pare_sparse24.h), which pare alone reads. Other patterns are stored with their
// zeros.
enum class SparseStorage { packed, dense };
inline std::span<const runtime::EnumName<SparseStorage>> enum_names(SparseStorage) {
  static constexpr std::array<runtime::EnumName<SparseStorage>, 2> kNames = {
      {{SparseStorage::packed, "packed"}, {SparseStorage::dense, "dense-with-zeros"}}};
  return kNames;
}

// What `scheme` becomes by the pattern, where it is to be packed and its container leaves that open.
void store_pattern(const runtime::SparsePattern& pattern, SparseStorage storage, runtime::PackScheme& scheme);

void visit_storage(runtime::FieldVisitor& visit, SparseStorage& storage);

// Fails where a recipe asks to pack what is not packed.
void check_storage(const PassCheck& check, const runtime::SparsePattern& pattern, SparseStorage storage);
// Throws std::invalid_argument for a layer whose inputs do not divide into the pattern's groups.
void check_pattern_fits(const runtime::SparsePattern& pattern, const std::string& layer, int64_t num_out,
                        int64_t num_in);

class PrunePass : public PassOptions {
 public:
  prune::SparsityOptions sparsity;
  prune::OwlOptions owl;
  prune::ResolveOptions resolve;
  quant::FitOptions fitting{.fit = true};
  SparseStorage storage = SparseStorage::dense;
  LayerShare share;

  PassKind kind() const override { return PassKind::changes_weights; }
  runtime::SparsePattern pattern() const override { return prune::parse_pattern(sparsity.pattern); }
  // The share of weights that becomes zero, of this layer.
  double pruned_share() const;
  bool resolves() const { return resolve.gradient_steps > 0; }

  void fields(runtime::FieldVisitor& visit) override;
  void check(const PassCheck& check) override;
  bool is_overridable(std::string_view key) const override { return key == "pattern" || key == "ratio"; }
  void check_layer(const std::string& layer, int64_t num_out, int64_t num_in) const override;
  StatisticsNeed need() const override;
  void store(runtime::PackScheme& scheme) const override { store_pattern(pattern(), storage, scheme); }
  const quant::FitOptions* fit() const override { return &fitting; }
  std::string words(std::string_view key) const override { return std::string(key) + " " + sparsity.pattern; }
  double operations(const StageExtent& stage) const override;
  int64_t working_bytes(const StageExtent& stage) const override;
  std::optional<SharedRatio> shared_ratio() const override;
  void set_share(const LayerShare& found) override { share = found; }

 private:
  // The ways of sharing a ratio among layers that the pass has.
  virtual std::vector<prune::Allocation> allocations() const = 0;
};

class MagnitudePass : public PrunePass {
 public:
  MagnitudePass() { sparsity.allocation = prune::Allocation::layer; }
  std::string_view meaning() const override { return "Prunes the smallest weights."; }
  std::unique_ptr<PassOptions> clone() const override { return std::make_unique<MagnitudePass>(*this); }

 private:
  std::vector<prune::Allocation> allocations() const override {
    return {prune::Allocation::row, prune::Allocation::layer, prune::Allocation::global, prune::Allocation::owl};
  }
};

class WandaPass : public PrunePass {
 public:
  std::string_view meaning() const override {
    return "Prunes the weights whose product with the size of their inputs is smallest (Wanda). It needs "
           "`calibration`.";
  }
  std::unique_ptr<PassOptions> clone() const override { return std::make_unique<WandaPass>(*this); }
  void check(const PassCheck& check) override;
  StatisticsNeed need() const override;

 private:
  std::vector<prune::Allocation> allocations() const override {
    return {prune::Allocation::row, prune::Allocation::layer, prune::Allocation::owl};
  }
};

class SparseGptPass : public PrunePass {
 public:
  prune::MaskChooser chooser = prune::MaskChooser::alps;
  prune::AlpsOptions alps;
  double damping = 0.01;  // of mean diag(H) over live columns, in the sweep, the choice of the mask and the re-solving
  int64_t block_size = 128;  // of the sweep

  SparseGptPass() { sparsity.allocation = prune::Allocation::layer; }
  std::string_view meaning() const override {
    return "Prunes by what a weight costs when the others make up for it, as SparseGPT and ALPS do. It needs "
           "`calibration`.";
  }
  std::unique_ptr<PassOptions> clone() const override { return std::make_unique<SparseGptPass>(*this); }
  void fields(runtime::FieldVisitor& visit) override;
  void check(const PassCheck& check) override;
  StatisticsNeed need() const override { return std::max(StatisticsNeed::hessian, PrunePass::need()); }
  double operations(const StageExtent& stage) const override;
  int64_t working_bytes(const StageExtent& stage) const override;

 private:
  std::vector<prune::Allocation> allocations() const override {
    return {prune::Allocation::layer, prune::Allocation::owl};
  }
};

}  // namespace pare::compress
