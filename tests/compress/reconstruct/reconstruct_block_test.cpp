// Checks the loss of a block's reconstruction against plain loops and differences. Checks its training: what it must
// lower, what it must leave alone, and that threads change no byte.
#include "compress/reconstruct/reconstruct_block.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>
#include <gtest/gtest.h>
#include <omp.h>
#include <torch/csrc/autograd/autograd.h>

#include <cmath>
#include <filesystem>

#include "prune/mask.h"
#include "quant/rtn.h"
#include "runtime/evaluate/token_source.h"
#include "runtime/files/npy.h"
#include "tests/expect_error.h"
#include "tests/places.h"

namespace pare {
using namespace compress;
using namespace prune;
using namespace quant;
using namespace runtime;
namespace {

namespace fs = std::filesystem;
const fs::path kFamilies = fs::path(kSourceFolder) / "tests" / "golden" / "families";

// Returns the sum over t of |y_t - y0_t|^2 / |y0_t|^2, over T, in float64.
double plain_loss(const at::Tensor& output_TD, const at::Tensor& target_TD) {
  double sum = 0.0;
  for (int64_t t = 0; t < target_TD.size(0); ++t) {
    double error = 0.0, size = 0.0;
    for (int64_t d = 0; d < target_TD.size(1); ++d) {
      const double y = output_TD[t][d].item<float>(), y0 = target_TD[t][d].item<float>();
      error += (y - y0) * (y - y0);
      size += y0 * y0;
    }
    sum += error / size;
  }
  return sum / static_cast<double>(target_TD.size(0));
}

// Returns windows of a text for the bundled model, and for a golden model its own windows.
const fs::path kStories = fs::path(kSourceFolder) / "calibration_data" / "stories260k";
TokenWindows read_windows(const fs::path& directory, const Checkpoint& checkpoint) {
  if (directory != kStories) return read_npy(directory / "ids.npy");
  const Tokenizer tokenizer = Tokenizer::open(directory);
  return read_token_windows(kStories.parent_path() / "stories.txt", &tokenizer, /*num_tokens=*/64, /*num_windows=*/24,
                            /*add_special_tokens=*/true, checkpoint.description().vocabulary_size);
}

// The first block of a model, with embedded tokens before it and the whole block's outputs as targets.
class BlockOf {
 public:
  explicit BlockOf(const fs::path& directory = kStories)
      : checkpoint(Checkpoint::open(directory)),
        windows(read_windows(directory, checkpoint)),
        model(checkpoint.description(), windows.num_tokens, at::kFloat),
        weights(read_block(checkpoint, 0, at::kFloat)) {
    const at::NoGradGuard no_grad;
    at::Tensor ids_NT = at::empty({windows.num_windows, windows.num_tokens}, at::kLong);
    std::copy(windows.ids_NT.begin(), windows.ids_NT.end(), ids_NT.data_ptr<int64_t>());
    inputs_NTD = model.embed(ids_NT, read_table(checkpoint, checkpoint.embedding(), at::kFloat));
    targets_NTD = model.block(0, weights, inputs_NTD);
  }

  // The last window decides, and the others are trained on.
  BlockSamples samples() const {
    BlockSamples samples;
    samples.is_held_N.assign(static_cast<size_t>(windows.num_windows), false);
    samples.is_held_N.back() = true;
    samples.with_states = [this](int64_t window, const UseStates& use) {
      use(inputs_NTD.select(0, window), targets_NTD.select(0, window));
    };
    return samples;
  }

  std::vector<LinearDescription> linears() const { return linears_of(checkpoint.description().blocks[0]); }

  double plain_held_loss(const ParameterViews& views) const {
    const at::NoGradGuard no_grad;
    NamedTensors values;
    for (const auto& [name, view] : views) values[name] = view->value(at::kFloat);
    const int64_t last = windows.num_windows - 1;
    return plain_loss(model.block(0, values, inputs_NTD.narrow(0, last, 1)).squeeze(0), targets_NTD.select(0, last));
  }

  // Returns every tensor of the block unchanged.
  ParameterViews frozen() const {
    ParameterViews views;
    for (const auto& [name, tensor] : weights) views[name] = frozen_view(tensor);
    return views;
  }

  Checkpoint checkpoint;
  TokenWindows windows;
  DecoderFunctions model;
  NamedTensors weights;
  at::Tensor inputs_NTD, targets_NTD;
};

at::Tensor magnitude_mask(const at::Tensor& weight_OI) {
  return keep_best(weight_OI.abs(), SparsePattern{2, 4});
}

// Returns codes of 3 bits for all linears. They are pruned 2:4 first if `prunes`.
ParameterViews rounded_views(const BlockOf& block, bool prunes, std::map<std::string, GridView*>& grids) {
  ParameterViews views = block.frozen();
  for (const LinearDescription& linear : block.linears()) {
    const at::Tensor& weight_OI = block.weights.at(linear.name + ".weight");
    const at::Tensor kept_OI = prunes ? magnitude_mask(weight_OI) : at::Tensor();
    const GridOptions grid{.bits = 3, .group_size = kPerChannel, .scales = ScaleSearch::squared_error};
    const QuantizedWeight codes = rtn(prunes ? masked(weight_OI, kept_OI) : weight_OI, {}, grid, kept_OI);
    auto view = std::make_unique<GridView>(linear.name, codes,
                                           GridTraining{.offsets = true, .scales = true, .kept_OI = kept_OI});
    grids[linear.name] = view.get();
    views[linear.name + ".weight"] = std::move(view);
  }
  return views;
}

const ReconstructOptions kFloat32{.batch = 2, .precision = TrainingPrecision::float32};

TEST(BlockLoss, IsThatOfPlainLoops) {
  const BlockOf block;
  const at::Tensor target_TD = block.targets_NTD.select(0, 0), output_TD = block.inputs_NTD.select(0, 0);
  const double expected = plain_loss(output_TD, target_TD);
  EXPECT_NEAR(block_loss(output_TD, target_TD).item<double>(), expected, 1e-5 * expected);
  // Every token counts alike: a token whose norm is a hundred times that of others changes nothing.
  at::Tensor large_TD = target_TD.clone(), far_TD = output_TD.clone();
  large_TD[0].mul_(100.0);
  far_TD[0].mul_(100.0);
  EXPECT_NEAR(block_loss(far_TD, large_TD).item<double>(), expected, 1e-5 * expected);
}

class BlockGradient : public testing::TestWithParam<const char*> {};

// Goes along each tensor's own gradient, by central differences of the loss in float32. The loss changes by a hundredth
// in a step. Its rounding, about 1e-6 of it, and the curvature over the step stay far below 2 %.
TEST_P(BlockGradient, IsThatOfDifferences) {
  const BlockOf block(kFamilies / GetParam());
  const at::Tensor input = block.inputs_NTD.narrow(0, 0, 1), target_TD = block.targets_NTD.select(0, 0);
  NamedTensors weights = block.weights;
  std::vector<std::string> names;
  std::vector<at::Tensor> leaves;
  for (const LinearDescription& linear : block.linears()) {
    names.push_back(linear.name + ".weight");
    // The weight is pruned, because the gradient is 0 at the minimum.
    const at::Tensor& weight_OI = block.weights.at(names.back());
    leaves.push_back(masked(weight_OI, magnitude_mask(weight_OI)).requires_grad_(true));
    weights[names.back()] = leaves.back();
  }
  const auto loss = [&] { return block_loss(block.model.block(0, weights, input).squeeze(0), target_TD); };
  std::vector<at::Tensor> gradients;
  double start = 0.0;
  {
    const at::AutoGradMode with_gradients(true);
    const at::Tensor value = loss();
    start = value.item<double>();
    gradients = torch::autograd::grad({value}, leaves, {}, false, false, /*allow_unused=*/true);
  }
  const at::NoGradGuard no_grad;
  int num_compared = 0;
  for (size_t i = 0; i < names.size(); ++i) {
    if (!gradients[i].defined()) continue;
    const double norm = gradients[i].norm().item<double>();
    if (norm < 1e-5) continue;
    const double step = std::min(1e-2 * start / norm, 0.02 * leaves[i].norm().item<double>());
    const at::Tensor direction_OI = gradients[i].div(norm);
    weights[names[i]] = leaves[i].detach().add(direction_OI, step);
    const double above = loss().item<double>();
    weights[names[i]] = leaves[i].detach().add(direction_OI, -step);
    const double below = loss().item<double>();
    weights[names[i]] = leaves[i].detach();
    EXPECT_NEAR((above - below) / (2.0 * step) / norm, 1.0, 0.02) << names[i];
    ++num_compared;
  }
  EXPECT_GE(num_compared, 5);
}

INSTANTIATE_TEST_SUITE_P(Golden, BlockGradient,
                         testing::Values("llama_gqa_untied", "gemma3_local_global", "qwen2_biases_tied"));

TEST(ReconstructBlock, LowersTheLossOnWindowsItHasNotSeen) {
  const BlockOf block;
  std::map<std::string, GridView*> grids;
  ParameterViews views = rounded_views(block, false, grids);
  const double before = block.plain_held_loss(views);
  const Reconstruction result = reconstruct_block(block.model, 0, block.samples(), kFloat32, views);
  EXPECT_NEAR(result.loss_before, before, 1e-5 * before);
  EXPECT_LT(result.loss_after, 0.95 * result.loss_before);
  EXPECT_NEAR(result.loss_after, block.plain_held_loss(views), 1e-5 * before) << "of the values that are left";
  EXPECT_GE(result.best_epoch, 1);
}

TEST(ReconstructBlock, ThreadsChangeNoByte) {
  const BlockOf block;
  const int threads = omp_get_max_threads();
  std::vector<std::map<std::string, QuantizedWeight>> results;
  for (const int num_threads : {1, 3}) {
    omp_set_num_threads(num_threads);
    std::map<std::string, GridView*> grids;
    ParameterViews views = rounded_views(block, true, grids);
    ReconstructOptions options = kFloat32;
    options.epochs = 2;
    reconstruct_block(block.model, 0, block.samples(), options, views);
    auto& result = results.emplace_back();
    for (const auto& [name, grid] : grids) result[name] = grid->weight();
  }
  omp_set_num_threads(threads);
  for (const auto& [name, weight] : results[0]) {
    EXPECT_EQ(weight.codes_OI, results[1].at(name).codes_OI) << name;
    EXPECT_EQ(weight.scales_OG, results[1].at(name).scales_OG) << name;
  }
}

TEST(ReconstructBlock, KeepsZerosAndGrid) {
  const BlockOf block;
  std::map<std::string, GridView*> grids;
  ParameterViews views = rounded_views(block, true, grids);
  ReconstructOptions options = kFloat32;
  options.offset_learning_rate = 0.2;
  ASSERT_GE(reconstruct_block(block.model, 0, block.samples(), options, views).best_epoch, 1);
  int64_t num_changed = 0;
  for (const LinearDescription& linear : block.linears()) {
    const QuantizedWeight weight = grids.at(linear.name)->weight();
    EXPECT_NO_THROW(validate(weight, linear.name));
    const at::Tensor& dense_OI = block.weights.at(linear.name + ".weight");
    const at::Tensor kept_OI = magnitude_mask(dense_OI);
    const QuantizedWeight start =
        rtn(masked(dense_OI, kept_OI), {}, {.bits = 3, .group_size = kPerChannel, .scales = ScaleSearch::squared_error},
            kept_OI);
    EXPECT_EQ(weight.zeros_OG, start.zeros_OG);
    EXPECT_EQ(weight.scale_dtype, start.scale_dtype);
    for (size_t i = 0; i < weight.codes_OI.size(); ++i) {
      const bool is_changed = weight.codes_OI[i] != start.codes_OI[i];
      EXPECT_FALSE(is_changed && !kept_OI.const_data_ptr<bool>()[i]) << linear.name;
      num_changed += is_changed;
    }
    for (const float scale : weight.scales_OG) EXPECT_EQ(scale, round_to(scale, weight.scale_dtype));
  }
  EXPECT_GT(num_changed, 0) << "codes, not scales alone";
}

// Trains the kept weights of a mask, in floating point.
TEST(ReconstructBlock, TrainsKeptWeights) {
  const BlockOf block;
  ParameterViews views = block.frozen();
  for (const LinearDescription& linear : block.linears()) {
    const std::string name = linear.name + ".weight";
    const at::Tensor kept_OI = magnitude_mask(block.weights.at(name));
    views[name] =
        float_view(name, ParameterKind::weight, masked(block.weights.at(name), kept_OI), DType::BF16, kept_OI);
  }
  ReconstructOptions options = kFloat32;
  options.learning_rate = 1e-3;
  const Reconstruction result = reconstruct_block(block.model, 0, block.samples(), options, views);
  EXPECT_LT(result.loss_after, 0.9 * result.loss_before);
  for (const LinearDescription& linear : block.linears()) {
    const std::string name = linear.name + ".weight";
    const at::Tensor weight_OI = views.at(name)->stored();
    EXPECT_FALSE(
        weight_OI.ne(0.0).logical_and_(magnitude_mask(block.weights.at(name)).logical_not()).any().item<bool>());
    EXPECT_TRUE(weight_OI.equal(weight_OI.to(at::kBFloat16).to(at::kFloat))) << name;
  }
}

// A change that does not help on held-out windows is not kept: the start is a candidate like any other.
TEST(ReconstructBlock, IsNeverWorseThanTheStart) {
  const BlockOf block;
  std::map<std::string, GridView*> grids;
  ParameterViews views = rounded_views(block, false, grids);
  std::map<std::string, QuantizedWeight> before;
  for (const auto& [name, grid] : grids) before[name] = grid->weight();
  ReconstructOptions options = kFloat32;
  options.offset_learning_rate = 5.0;
  options.scale_learning_rate = 0.5;
  options.patience = 2;
  const Reconstruction result = reconstruct_block(block.model, 0, block.samples(), options, views);
  EXPECT_EQ(result.best_epoch, 0);
  EXPECT_EQ(result.num_epochs, 2) << "patience";
  EXPECT_EQ(result.loss_after, result.loss_before);
  for (const auto& [name, grid] : grids) {
    EXPECT_EQ(grid->weight().codes_OI, before.at(name).codes_OI) << name;
    EXPECT_EQ(grid->weight().scales_OG, before.at(name).scales_OG) << name;
  }
}

TEST(ReconstructBlock, RefusesWhatCannotBeTrained) {
  const BlockOf block;
  ParameterViews frozen = block.frozen();
  expect_error<std::invalid_argument>(
      [&] { reconstruct_block(block.model, 0, block.samples(), kFloat32, frozen); },
      {"expected windows to train on, held-out windows and weights to train", ", 1 and 0"});
  BlockSamples none_held = block.samples();
  none_held.is_held_N.assign(none_held.is_held_N.size(), false);
  std::map<std::string, GridView*> grids;
  ParameterViews views = rounded_views(block, false, grids);
  expect_error<std::invalid_argument>([&] { reconstruct_block(block.model, 0, none_held, kFloat32, views); },
                                      {"held-out windows", ", 0 and 7"});
  BlockSamples broken = block.samples();
  broken.with_states = [&](int64_t window, const UseStates& use) {
    use(at::full({block.windows.num_tokens, block.inputs_NTD.size(2)}, NAN, at::kFloat),
        block.targets_NTD.select(0, window));
  };
  expect_error<std::runtime_error>([&] { reconstruct_block(block.model, 0, broken, kFloat32, views); },
                                   {"model.layers.0", "not finite", "lower its learning rates"});
}

}  // namespace
}  // namespace pare
