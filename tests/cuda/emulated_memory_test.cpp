// Compares the memory that the emulated device has allocated with the estimate that is made before a model is loaded.
#include "runtime/engine/memory_need.h"
#include "tests/cuda/on_cuda.h"
#include "tests/cuda/stories_artifacts.h"
#include "tests/places.h"
#include "tests/runtime/engine/tiny_models.h"
#include "tests/temporary_folder.h"

namespace pare {
using namespace runtime;
namespace {

// The memory that a session has taken after a few tokens, and the estimate. Both leave out the buffers of logits, which
// are far larger than all else here.
struct Taken {
  int64_t weight_bytes = 0, cache_bytes = 0, work_bytes = 0;
};
struct TakenAndEstimated {
  Taken taken, estimated;
};

class EmulatedCudaArtifacts : public testing::TestWithParam<StoriesArtifact> {
 protected:
  EmulatedCudaArtifacts() { emulation::set_options({.hides_memory = false}); }
  ~EmulatedCudaArtifacts() override { emulation::set_options({}); }

  TakenAndEstimated measured(const PackScheme& scheme, int64_t num_rows, int64_t num_tokens) const {
    const std::filesystem::path directory = folder_.path() / "artifact";
    std::filesystem::remove_all(directory);
    write_artifact(directory, Checkpoint::open(std::filesystem::path(kSourceFolder) / "calibration_data/stories260k"),
                   scheme);
    nlohmann::json config = nlohmann::json::parse(file_text(directory / "config.json"));
    config["max_position_embeddings"] = 4096;
    std::ofstream(directory / "config.json") << config.dump();
    const Checkpoint artifact = Checkpoint::open(directory);
    const MemoryNeed need =
        memory_need(artifact, {.num_rows = num_rows, .num_tokens = num_tokens, .keeps_every_layer = true});
    const auto allocated = [] { return static_cast<int64_t>(emulation::allocated_bytes()); };
    const std::unique_ptr<Backend> cuda = make_cuda_backend();
    const int64_t before = allocated();
    Transformer model = Transformer::load(artifact, *cuda);
    const int64_t loaded = allocated();
    const std::unique_ptr<Transformer::Session> session = model.start(num_tokens);
    session->feed(std::vector<int32_t>{1, 5, 9, 2});  // the most rows whose keys are cut into stretches
    const int64_t logit_bytes = 2 * Backend::kLogitFloats * static_cast<int64_t>(sizeof(float));
    return {{loaded - before, need.cache_bytes, allocated() - loaded - need.cache_bytes},
            {need.weight_bytes, need.cache_bytes, need.work_bytes - logit_bytes}};
  }

  TemporaryFolder folder_;
};
INSTANTIATE_TEST_SUITE_P(Stories260k, EmulatedCudaArtifacts, testing::ValuesIn(artifacts()),
                         [](const auto& test) { return test.param.name; });

TEST_P(EmulatedCudaArtifacts, TheEstimateOfMemoryIsNotTooSmall) {
  const auto [taken, estimated] = measured(GetParam().scheme, 4096, 4096);
  EXPECT_LE(taken.weight_bytes, estimated.weight_bytes);
  EXPECT_LE(taken.work_bytes, estimated.work_bytes);
}

// The estimate has rows to spare, which hide what it leaves out. Its growth with the extent shows that.
class EmulatedMemory : public EmulatedCudaArtifacts {};
INSTANTIATE_TEST_SUITE_P(
    Inputs, EmulatedMemory,
    testing::Values(StoriesArtifact{"plain", {.bits = 8}},
                    StoriesArtifact{"codes",
                                    {.bits = 8, .layout = CodeLayout::bytes, .input = {.type = InputType::int8}}}),
    [](const auto& test) { return test.param.name; });

// More tokens need rotations of more positions, and attention's results for more stretches.
TEST_P(EmulatedMemory, MoreTokensTakeWhatTheEstimateAdds) {
  const TakenAndEstimated few = measured(GetParam().scheme, 1024, 1024), many = measured(GetParam().scheme, 1024, 4096);
  EXPECT_LT(few.taken.work_bytes, many.taken.work_bytes);
  EXPECT_LE(many.taken.work_bytes - few.taken.work_bytes, many.estimated.work_bytes - few.estimated.work_bytes);
}

// Compares a linear that multiplies floats with one that multiplies codes.
TEST_P(EmulatedMemory, InputsTakeWhatTheEstimateAdds) {
  const TakenAndEstimated plain = measured({.bits = 8}, 1024, 1024), own = measured(GetParam().scheme, 1024, 1024);
  EXPECT_EQ(plain.taken.work_bytes < own.taken.work_bytes, !GetParam().scheme.input.is_plain());
  EXPECT_LE(own.taken.work_bytes - plain.taken.work_bytes, own.estimated.work_bytes - plain.estimated.work_bytes);
}

}  // namespace
}  // namespace pare
