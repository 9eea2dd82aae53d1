// Checks stories260k in every container, opened from its files. The device must compute what the CPU's kernels compute.
#include "runtime/containers/container_table.h"
#include "tests/cuda/on_cuda.h"
#include "tests/cuda/step_logits.h"
#include "tests/cuda/stories_artifacts.h"
#include "tests/places.h"
#include "tests/runtime/engine/tiny_models.h"
#include "tests/temporary_folder.h"

namespace pare {
using namespace runtime;
namespace {

// The differences between every token's logits. They are the largest distance relative to the row's norm, the root of
// the mean square of all differences, and the largest KL from p's distribution to q's, in nats.
struct Distance {
  double relative = 0.0, rms = 0.0, kl = 0.0;
};

Distance distance(std::span<const float> p_RV, std::span<const float> q_RV, size_t vocabulary_size) {
  Distance result;
  double all = 0.0;
  for (size_t first = 0; first < p_RV.size(); first += vocabulary_size) {
    double sum_p = 0.0, sum_q = 0.0, squares = 0.0, differences = 0.0, kl = 0.0;
    const auto p = [&](size_t i) { return static_cast<double>(p_RV[first + i]); };
    const auto q = [&](size_t i) { return static_cast<double>(q_RV[first + i]); };
    for (size_t i = 0; i < vocabulary_size; ++i) {
      sum_p += std::exp(p(i));
      sum_q += std::exp(q(i));
      squares += p(i) * p(i);
      differences += (p(i) - q(i)) * (p(i) - q(i));
    }
    for (size_t i = 0; i < vocabulary_size; ++i) {
      kl += std::exp(p(i)) / sum_p * (p(i) - std::log(sum_p) - q(i) + std::log(sum_q));
    }
    all += differences;
    result.relative = std::max(result.relative, std::sqrt(differences / squares));
    result.kl = std::max(result.kl, kl);
  }
  result.rms = std::sqrt(all / static_cast<double>(p_RV.size()));
  return result;
}

class CudaArtifacts : public testing::TestWithParam<StoriesArtifact> {
 protected:
  CudaArtifacts() { emulation::set_options({.hides_memory = false}); }
  ~CudaArtifacts() override { emulation::set_options({}); }

  TemporaryFolder folder_;
  std::unique_ptr<Backend> cuda_ = make_cuda_backend();
  std::unique_ptr<Backend> cpu_ = make_cpu_backend(detect_isa(), 2);
};
INSTANTIATE_TEST_SUITE_P(Stories260k, CudaArtifacts, testing::ValuesIn(artifacts()),
                         [](const auto& test) { return test.param.name; });

// With exact inputs, both backends err only by roundings of float32, which add up as cuda_goldens_test.cpp says.
// With rounded inputs, some values lie so close between two codes, or to an outlier's threshold, that the backends
// choose differently. Where a row's scale is its largest magnitude / 127.5, that value lies exactly between two codes
// in half of the rows. The model is so small that a single choice moves all later logits. Still, two right
// implementations differ by less than rounding itself changes. A wrong rule makes rounding errors of its own, 1.4 times
// as much (rounded_transformer_test.cpp). cuda_linear_test.cpp checks bit by bit that the rules are right.
TEST_P(CudaArtifacts, TheDeviceComputesWhatTheCpuComputes) {
  const std::filesystem::path root = kSourceFolder;
  const Checkpoint source = Checkpoint::open(root / "calibration_data/stories260k");
  write_artifact(folder_.path() / "artifact", source, GetParam().scheme);
  const Checkpoint artifact = Checkpoint::open(folder_.path() / "artifact");
  EXPECT_EQ(artifact.quantization_method(), container_format(GetParam().scheme.container).method());
  const TokenWindows windows = read_npy(root / "tests/cuda/goldens/stories260k/ids.npy");
  const std::span<const int32_t> ids = windows.window(0);
  const auto logits = [&](Backend& backend, bool is_exact) {
    Transformer model = Transformer::load(artifact, backend, {}, [&](LinearWeights& linear) {
      if (is_exact) linear.input = {};
      if (is_exact) linear.outlier_weight_OJ.clear();
    });
    std::vector<float> all = prefill_logits(model, {ids.begin(), ids.begin() + 17}, 1);
    const std::unique_ptr<Transformer::Session> session = model.start(windows.num_tokens);
    session->feed(ids.first(3));
    for (size_t token = 3; token < 6; ++token) {
      const std::span<const float> row = session->feed(ids.subspan(token, 1));
      all.insert(all.end(), row.begin(), row.end());
    }
    return all;
  };
  const auto vocabulary_size = static_cast<size_t>(source.description().vocabulary_size);
  const std::vector<float> expected = logits(*cpu_, false), found = logits(*cuda_, false);
  const Distance differs = distance(expected, found, vocabulary_size);
  if (GetParam().scheme.input.is_plain()) {
    EXPECT_LE(differs.relative, 2 * 4 * kUnitRoundoff * std::sqrt(172.0) * std::sqrt(2 * 5.0));
    EXPECT_LE(differs.kl, 1e-4);
  } else {
    const double rounding = distance(expected, logits(*cpu_, true), vocabulary_size).rms;
    EXPECT_GT(rounding, 0.0);
    EXPECT_LE(differs.rms, rounding);
  }
}

TEST_P(CudaArtifacts, RecordedStepsGiveTheBitsOfPlainOnes) {
  const std::filesystem::path root = kSourceFolder;
  write_artifact(folder_.path() / "artifact", Checkpoint::open(root / "calibration_data/stories260k"),
                 GetParam().scheme);
  const Checkpoint artifact = Checkpoint::open(folder_.path() / "artifact");
  const std::unique_ptr<Backend> plain = make_cuda_backend(false);
  const auto logits = [&](Backend& backend) {
    Transformer model = Transformer::load(artifact, backend);
    const auto session = model.start(12);
    return step_logits(*session, some_ids(9, model.description().vocabulary_size), 2);
  };
  EXPECT_TRUE(same_bits(logits(*cuda_), logits(*plain)));
}

}  // namespace
}  // namespace pare
