// What the emulated device has given away, beside the estimate that is made before a model is loaded.
#include "runtime/engine/memory_need.h"
#include "tests/cuda/on_cuda.h"
#include "tests/cuda/stories_artifacts.h"
#include "tests/places.h"
#include "tests/runtime/engine/tiny_models.h"
#include "tests/temporary_folder.h"

namespace pare {
namespace {

class EmulatedCudaArtifacts : public testing::TestWithParam<Artifact> {
 protected:
  EmulatedCudaArtifacts() { emulation::set_options({.hides_memory = false}); }
  ~EmulatedCudaArtifacts() override { emulation::set_options({}); }

  TemporaryFolder folder_;
  std::unique_ptr<Backend> cuda_ = make_cuda_backend();
};
INSTANTIATE_TEST_SUITE_P(Stories260k, EmulatedCudaArtifacts, testing::ValuesIn(artifacts()),
                         [](const auto& test) { return test.param.name; });

// With a context of 4096. Beside the work there are the buffers of logits, far larger than all else here.
TEST_P(EmulatedCudaArtifacts, TheEstimateOfMemoryIsNotTooSmall) {
  const std::filesystem::path directory = folder_.path() / "artifact";
  write_artifact(directory, Checkpoint::open(std::filesystem::path(kSourceFolder) / "calibration_data/stories260k"),
                 GetParam().scheme);
  nlohmann::json config = nlohmann::json::parse(file_text(directory / "config.json"));
  config["max_position_embeddings"] = 4096;
  std::ofstream(directory / "config.json") << config.dump();
  const Checkpoint artifact = Checkpoint::open(directory);
  const MemoryNeed need = memory_need(artifact, {.num_rows = 4096, .num_tokens = 4096, .keeps_every_layer = true});
  const auto before = static_cast<int64_t>(emulation::allocated_bytes());
  Transformer model = Transformer::load(artifact, *cuda_);
  const auto loaded = static_cast<int64_t>(emulation::allocated_bytes());
  EXPECT_LE(loaded - before, need.weight_bytes);
  const std::unique_ptr<Transformer::Session> session = model.start(4096);
  const auto logit_bytes = static_cast<int64_t>(2 * Backend::kLogitFloats * sizeof(float));
  EXPECT_LE(static_cast<int64_t>(emulation::allocated_bytes()) - loaded,
            need.cache_bytes + need.work_bytes - logit_bytes);
}

}  // namespace
}  // namespace pare
