// Checks a decoder's functions against logits of transformers, and their gradients against differences of their
// loss.
#include "compress/model/decoder_functions.h"

#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/log_softmax.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <fstream>

#include "runtime/files/npy.h"
#include "tests/golden_families.h"

namespace pare {
using namespace compress;
using namespace runtime;
namespace {

namespace fs = std::filesystem;
const fs::path kFamilies = fs::path(kSourceFolder) / "tests" / "golden" / "families";

std::vector<float> read_logits(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  const std::vector<char> bytes{std::istreambuf_iterator<char>(file), {}};
  const size_t header = 10 + static_cast<uint8_t>(bytes.at(8)) + 256 * static_cast<uint8_t>(bytes.at(9));
  std::vector<float> values((bytes.size() - header) / sizeof(float));
  std::memcpy(values.data(), bytes.data() + header, values.size() * sizeof(float));
  return values;
}

// All weights of a model as tensors.
struct Weights {
  std::vector<NamedTensors> blocks;
  at::Tensor embedding, gain, head;
};

Weights read_weights(const Checkpoint& checkpoint, at::ScalarType compute) {
  Weights weights;
  const ModelDescription& model = checkpoint.description();
  for (size_t b = 0; b < model.blocks.size(); ++b) {
    weights.blocks.push_back(read_block(checkpoint, static_cast<int64_t>(b), compute));
  }
  weights.embedding = read_table(checkpoint, checkpoint.embedding(), compute);
  weights.head = model.tied_head ? weights.embedding : read_table(checkpoint, checkpoint.head(), compute);
  weights.gain = read_gain(checkpoint, model.final_norm);
  return weights;
}

at::Tensor ids_of(const TokenWindows& windows) {
  at::Tensor ids_BT = at::empty({windows.num_windows, windows.num_tokens}, at::kLong);
  std::copy(windows.ids_NT.begin(), windows.ids_NT.end(), ids_BT.data_ptr<int64_t>());
  return ids_BT;
}

at::Tensor logits_of(const DecoderFunctions& model, const Weights& weights, const at::Tensor& ids_BT) {
  at::Tensor hidden = model.embed(ids_BT, weights.embedding);
  for (size_t b = 0; b < weights.blocks.size(); ++b) {
    hidden = model.block(static_cast<int64_t>(b), weights.blocks[b], hidden);
  }
  return model.logits(weights.head, model.final_norm(weights.gain, hidden));
}

class FamilyInTraining : public testing::TestWithParam<std::string> {
 protected:
  FamilyInTraining()
      : checkpoint(Checkpoint::open(kFamilies / GetParam())), windows(read_npy(kFamilies / GetParam() / "ids.npy")) {}
  Checkpoint checkpoint;
  TokenWindows windows;
};

// Everything is float32, and sums are in another order, as in the calibration's block (decoder_block_test.cpp says why
// 1e-4).
TEST_P(FamilyInTraining, LogitsEqualThoseOfTransformers) {
  const at::NoGradGuard no_grad;
  DecoderFunctions model(checkpoint.description(), windows.num_tokens, at::kFloat);
  model.set_frozen(checkpoint);
  const at::Tensor logits = logits_of(model, read_weights(checkpoint, at::kFloat), ids_of(windows)).contiguous();
  const std::vector<float> expected = read_logits(kFamilies / GetParam() / "logits.npy");
  ASSERT_EQ(static_cast<size_t>(logits.numel()), expected.size());
  float largest = 0.0f, worst = 0.0f;
  for (const float value : expected) largest = std::max(largest, std::fabs(value));
  for (size_t i = 0; i < expected.size(); ++i) {
    worst = std::max(worst, std::fabs(logits.const_data_ptr<float>()[i] - expected[i]));
  }
  EXPECT_LE(worst, 1e-4f * largest);
}

// bfloat16 keeps 8 bits. Inputs and outputs of products are rounded by up to 2^-9 relatively, a few dozen times in a
// row, with errors that partly cancel. A twentieth of their norm would be another model's. (Mixtures are left out: a
// rounded token may go to another expert, and then its value is that of another function.)
class DenseFamilyInTraining : public FamilyInTraining {};
TEST_P(DenseFamilyInTraining, BfloatIsNear) {
  const at::NoGradGuard no_grad;
  DecoderFunctions model(checkpoint.description(), windows.num_tokens, at::kBFloat16);
  model.set_frozen(checkpoint);
  const at::Tensor logits = logits_of(model, read_weights(checkpoint, at::kBFloat16), ids_of(windows)).contiguous();
  const std::vector<float> expected = read_logits(kFamilies / GetParam() / "logits.npy");
  double squares = 0.0, difference = 0.0;
  for (size_t i = 0; i < expected.size(); ++i) {
    squares += expected[i] * expected[i];
    difference += std::pow(logits.const_data_ptr<float>()[i] - expected[i], 2.0);
  }
  EXPECT_LE(std::sqrt(difference / squares), 0.05);
}

// Along the gradient itself the loss changes by |g| h to first order. The central difference of a loss in float32 has
// an error of about 1e-6 / h from rounding and h^2 from curvature. With a step that changes the loss by about 1e-2,
// both are far below 2 %. In a mixture a step of that size sends tokens to other experts, where the loss jumps. There
// the step is a hundredth of that, and rounding is still below 1 %.
TEST_P(FamilyInTraining, GradientsAreThoseOfDifferences) {
  const ModelDescription& description = checkpoint.description();
  DecoderFunctions model(description, windows.num_tokens, at::kFloat);
  model.set_frozen(checkpoint);
  Weights weights = read_weights(checkpoint, at::kFloat);
  const at::Tensor ids_BT = ids_of(windows);
  const bool is_mixture = description.has_mixture();
  const auto loss = [&] {
    const at::Tensor logits_BTV = logits_of(model, weights, ids_BT);
    const int64_t last = windows.num_tokens - 1;
    return at::log_softmax(logits_BTV.narrow(1, 0, last).to(at::kDouble), -1)
        .gather(2, ids_BT.narrow(1, 1, last).unsqueeze(2))
        .mean()
        .neg();
  };
  std::vector<std::pair<std::string, at::Tensor*>> tensors = {{"embedding", &weights.embedding},
                                                              {"final norm", &weights.gain}};
  for (NamedTensors& block : weights.blocks) {
    for (auto& [name, tensor] : block) tensors.emplace_back(name, &tensor);
  }
  std::vector<at::Tensor> inputs;
  for (auto& [name, tensor] : tensors) {
    *tensor = tensor->detach().requires_grad_(true);
    inputs.push_back(*tensor);
  }
  if (description.tied_head) weights.head = weights.embedding;
  std::vector<at::Tensor> gradients;
  {
    const at::AutoGradMode with_gradients(true);
    gradients = torch::autograd::grad({loss()}, inputs, {}, false, false, /*allow_unused=*/true);
  }
  const at::NoGradGuard no_grad;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const auto& [name, tensor] = tensors[i];
    // In a mixture, an expert without tokens and a router whose only choice is certain have no gradient.
    if (!gradients[i].defined()) continue;
    const double norm = gradients[i].to(at::kDouble).norm().item<double>();
    if (norm < 1e-6) continue;
    const at::Tensor start = tensor->detach().clone();
    const double step = std::min((is_mixture ? 1e-4 : 1e-2) / norm, 0.02 * std::max(1.0, start.norm().item<double>()));
    const at::Tensor direction = gradients[i].div(norm);
    tensor->set_data(start.add(direction, step));
    if (description.tied_head && i == 0) weights.head = weights.embedding;
    const double above = loss().item<double>();
    tensor->set_data(start.add(direction, -step));
    if (description.tied_head && i == 0) weights.head = weights.embedding;
    const double below = loss().item<double>();
    tensor->set_data(start);
    EXPECT_NEAR((above - below) / (2.0 * step) / norm, 1.0, 0.02) << name;
  }
}

INSTANTIATE_TEST_SUITE_P(Golden, FamilyInTraining, testing::ValuesIn(golden_families()),
                         [](const auto& family) { return family.param; });

INSTANTIATE_TEST_SUITE_P(Golden, DenseFamilyInTraining, testing::ValuesIn(dense_golden_families()),
                         [](const auto& family) { return family.param; });

TEST(DecoderFunctions, RefusesOtherTypesAndMissingTensors) {
  const Checkpoint checkpoint = Checkpoint::open(kFamilies / "llama_gqa_untied");
  EXPECT_THROW(DecoderFunctions(checkpoint.description(), 8, at::kHalf), std::invalid_argument);
  const DecoderFunctions model(checkpoint.description(), 8, at::kFloat);
  EXPECT_THROW(model.block(0, {}, at::empty({1, 8, checkpoint.description().hidden_size}, at::kFloat)),
               std::invalid_argument);
}

// The token occurs hundreds of times. If its gradient were summed in bfloat16, each part after the first hundred would
// lose most of its value.
TEST(DecoderFunctionsEmbedding, ItsGradientIsSummedInFloat32) {
  for (const char* family : {"llama_gqa_untied", "gemma3_local_global"}) {  // the second one scales embeddings
    const Checkpoint checkpoint = Checkpoint::open(kFamilies / family);
    const ModelDescription& model = checkpoint.description();
    const DecoderFunctions functions(model, 600, at::kBFloat16);
    const int64_t num_tokens = 600, width = model.hidden_size;
    at::Tensor ids_BT = at::full({1, num_tokens}, 3, at::kLong);
    ids_BT[0][17] = 5;
    const at::Tensor gradient_BTD =
        at::full({1, num_tokens, width}, 1.0, at::kFloat).mul(1.0 + 0.25 * std::ldexp(1.0, -7));
    const at::Tensor found_VD =
        functions.embedding_gradient(ids_BT, gradient_BTD, at::empty({model.vocabulary_size, width}, at::kBFloat16));
    const double each = (1.0 + 0.25 * std::ldexp(1.0, -7)) * static_cast<double>(model.embedding_scale);
    for (int64_t v = 0; v < model.vocabulary_size; ++v) {
      const double expected = each * (v == 3 ? 599.0 : v == 5 ? 1.0 : 0.0);
      // There are 600 sums, each with a rounding of 2^-24.
      EXPECT_NEAR(found_VD[v][width - 1].item<double>(), expected, std::abs(expected) * 600 * std::ldexp(1.0, -24));
    }
  }
}

}  // namespace
}  // namespace pare
