// The options of the pass `activation_sparsity`.
#pragma once

#include <string>
#include <string_view>

#include "compress/recipe/pass_options.h"

namespace pare::compress {

// Small inputs of the linears that end feed-forward networks become zero, as TEAL (Liu et al., arXiv 2408.14690) and
// CATS (Lee et al., arXiv 2404.08763) do. The threshold of each is a quantile of |x| over the calibration's tokens.
class ActivationSparsityPass : public OptionsOf<ActivationSparsityPass, PassKind::drops_inputs> {
 public:
  double ratio = 0.4;

  std::string_view meaning() const override {
    return "Drops small inputs of the last linears of feed-forward networks (TEAL), so that decode skips their "
           "columns. It needs `calibration`. Other engines compute the model without dropping.";
  }
  void fields(runtime::FieldVisitor& visit) override;
  void check(const PassCheck& check) override;
  StatisticsNeed need() const override { return StatisticsNeed::hessian_diagonal; }
  bool takes(runtime::Stage stage) const override { return stage.kind == runtime::Stage::feed_forward_output; }
  std::string words(std::string_view key) const override;
};

}  // namespace pare::compress
