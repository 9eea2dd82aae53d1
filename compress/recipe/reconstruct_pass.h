// `reconstruct:` the last item of a group of layerwise passes: each block is trained to give what the original one
// gives in its place (compress/reconstruct). Its options and their defaults, free of LibTorch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "compress/recipe/pass_options.h"
#include "compress/recipe/training_precision.h"
#include "runtime/format/fields.h"

namespace pare::compress {

// What of a block's layers is trained.
struct ReconstructedParts {
  bool weights = true;  // offsets of codes on their grid, and weights that pruning has kept in floating point
  bool scales = true;   // of codes

  void fields(runtime::FieldVisitor& visit);
};

struct ReconstructOptions {
  int64_t epochs = 4;
  int64_t batch = 2;                   // windows of a step
  double learning_rate = 2e-3;         // of weights that pruning has kept in floating point
  double scale_learning_rate = 3e-3;   // of scales, relative to their size
  double offset_learning_rate = 2e-2;  // of offsets of codes, in steps of the grid
  double final_rate = 0.05;            // of the learning rate, at the last step
  int64_t patience = 1;                // stop after so many epochs without a lower loss on held-out windows; 0: never
  ReconstructedParts train = {};
  TrainingPrecision precision = TrainingPrecision::automatic;
  // Rates that the recipe says itself; something must be trained by them. Not options.
  std::vector<std::string> asked_rates = {};

  void fields(runtime::FieldVisitor& visit);
};

class ReconstructPass : public OptionsOf<ReconstructPass, PassKind::reconstructs> {
 public:
  ReconstructOptions reconstruct;
  std::string_view meaning() const override {
    return "Trains each block, after its layers are rounded or pruned, to give what the original block gives. It "
           "needs a text in `calibration`.";
  }
  void fields(runtime::FieldVisitor& visit) override { reconstruct.fields(visit); }
  void check(const PassCheck& check) override;
  const ReconstructOptions* reconstruction() const override { return &reconstruct; }
};

}  // namespace pare::compress
