#include "compress/survey/allocate_sparsity.h"

#include <ATen/ops/empty.h>

#include <map>
#include <utility>

#include "prune/magnitude.h"
#include "prune/owl.h"
#include "prune/wanda.h"
#include "runtime/system/interrupt.h"

namespace pare::compress {
namespace {

// A step of the plan whose share is still open.
struct OpenStep {
  size_t block = 0;
  const LayerPlan* layer = nullptr;
  Step* step = nullptr;
  SharedRatio shared = {};
};

// Layers compete with those that the same pass prunes by the same ratio.
using Competition = std::pair<size_t, double>;

std::map<Competition, std::vector<OpenStep>> open_steps(prune::Allocation allocation, RunPlan& plan) {
  std::map<Competition, std::vector<OpenStep>> found;
  for (size_t b = 0; b < plan.blocks.size(); ++b) {
    for (LayerPlan& layer : plan.blocks[b]) {
      for (Step& step : layer.steps) {
        const std::optional<SharedRatio> shared = step.options->shared_ratio();
        if (!shared || shared->allocation != allocation) continue;
        found[{step.pass, shared->ratio}].push_back({b, &layer, &step, *shared});
      }
    }
  }
  return found;
}

void set_share(const LayerShare& share, OpenStep& open) {
  const std::shared_ptr<PassOptions> options = copy_of(*open.step->options);
  options->set_share(share);
  open.step->options = options;
}

at::Tensor weight_of(const runtime::Checkpoint& checkpoint, const runtime::LinearDescription& linear) {
  at::Tensor weight_OI = at::empty({linear.num_out, linear.num_in}, at::kFloat);
  runtime::weight_rows(checkpoint.linear(linear), 0, linear.num_out,
                       {weight_OI.data_ptr<float>(), static_cast<size_t>(weight_OI.numel())});
  checkpoint.drop_pages(linear);
  return weight_OI;
}

void share_by_magnitude(const runtime::Checkpoint& checkpoint, std::vector<OpenStep>& steps) {
  prune::GlobalThreshold threshold(steps.front().shared.ratio);
  do {
    for (const OpenStep& open : steps) {
      runtime::throw_if_interrupted();
      threshold.add(prune::magnitude_scores(weight_of(checkpoint, open.layer->linear)));
    }
  } while (threshold.end_pass());
  for (size_t i = 0; i < steps.size(); ++i) {
    const prune::KeepAbove& rule = threshold.rules()[i];
    set_share({.threshold = rule.threshold, .num_equal = rule.num_equal}, steps[i]);
  }
}

// Counts the outliers of each block among the scores of the layers that the steps prune.
class OutlierTask : public BlockTask {
 public:
  OutlierTask(const std::vector<OpenStep>& steps, double multiple) : steps_(steps), multiple_(multiple) {}

  bool is_done(int64_t block) const override { return steps_in(block).empty(); }
  StatisticsNeed need(int64_t block, runtime::Stage stage) const override {
    for (const OpenStep* open : steps_in(block)) {
      if (open->layer->stage == stage) return StatisticsNeed::hessian_diagonal;
    }
    return StatisticsNeed::none;
  }
  void at_stage(int64_t index, Block& block, runtime::Stage stage, LayerStatistics statistics) override {
    for (const OpenStep* open : steps_in(index)) {
      if (open->layer->stage != stage) continue;
      scores_.push_back(prune::wanda_scores(block.weight(stage, open->layer->index), statistics.hessian_diagonal_I));
      num_weights_ += scores_.back().numel();
    }
  }
  void leave(int64_t index, Block&) override {
    units_[static_cast<size_t>(index)] = {prune::outlier_share(scores_, multiple_), num_weights_};
    scores_.clear();
    num_weights_ = 0;
  }
  const std::map<size_t, prune::OwlUnit>& units() const { return units_; }

 private:
  std::vector<const OpenStep*> steps_in(int64_t block) const {
    std::vector<const OpenStep*> found;
    for (const OpenStep& open : steps_) {
      if (open.block == static_cast<size_t>(block)) found.push_back(&open);
    }
    return found;
  }

  const std::vector<OpenStep>& steps_;
  double multiple_;
  std::vector<at::Tensor> scores_;
  int64_t num_weights_ = 0;
  std::map<size_t, prune::OwlUnit> units_;
};

void share_by_outliers(ModelWalk& walk, std::vector<OpenStep>& steps) {
  const prune::OwlOptions owl = steps.front().shared.owl;
  OutlierTask task(steps, owl.outlier);
  walk_blocks(walk, static_cast<int64_t>(steps.back().block) + 1, task, [](int64_t) {});
  std::vector<prune::OwlUnit> units;
  for (const auto& [block, unit] : task.units()) units.push_back(unit);
  const std::vector<double> ratios = prune::owl_ratios(units, steps.front().shared.ratio, owl);
  for (OpenStep& open : steps) {
    const auto place = std::distance(task.units().begin(), task.units().find(open.block));
    set_share({.ratio = ratios[static_cast<size_t>(place)]}, open);
  }
}

}  // namespace

void allocate_sparsity(const runtime::Checkpoint& checkpoint,
                       const std::function<std::unique_ptr<ModelWalk>()>& make_walk, RunPlan& plan) {
  for (auto& [competition, steps] : open_steps(prune::Allocation::global, plan)) share_by_magnitude(checkpoint, steps);
  for (auto& [competition, steps] : open_steps(prune::Allocation::owl, plan)) share_by_outliers(*make_walk(), steps);
}

}  // namespace pare::compress
