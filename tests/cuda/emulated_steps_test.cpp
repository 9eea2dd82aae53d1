// Counts the launches of a token, which the emulated device knows.
#include "tests/cuda/on_cuda.h"
#include "tests/cuda/step_logits.h"
#include "tests/places.h"
#include "tests/runtime/engine/tiny_models.h"

namespace pare {
using namespace runtime;
namespace {

class EmulatedSteps : public testing::Test {
 protected:
  EmulatedSteps() { emulation::set_options({.hides_memory = false}); }
  ~EmulatedSteps() override { emulation::set_options({}); }

  std::unique_ptr<Backend> cuda_ = make_cuda_backend();
};

// Embedding, final norm and head; and in each layer two norms, four linears, rotation, attention and activation.
// Contexts of more than 256 tokens have one more, which joins stretches.
TEST_F(EmulatedSteps, ATokenIsNineLaunchesALayerAndOneGraph) {
  Transformer model = Transformer::load(
      Checkpoint::open(std::filesystem::path(kSourceFolder) / "calibration_data/stories260k"), *cuda_);
  const auto num_layers = model.description().blocks.size();
  for (const auto& [max_tokens, num_of_layer] : {std::pair<int64_t, size_t>{256, 9}, {257, 10}}) {
    const auto session = model.start(max_tokens);
    const std::vector<int32_t> ids = some_ids(10, model.description().vocabulary_size);
    step_logits(*session, std::span(ids).first(7), 2);
    const size_t launches = emulation::num_launches(), graphs = emulation::num_graph_launches();
    for (size_t token = 7; token < 10; ++token) session->feed({&ids[token], 1});
    EXPECT_EQ(emulation::num_launches() - launches, 3 * (num_of_layer * num_layers + 3)) << max_tokens;
    EXPECT_EQ(emulation::num_graph_launches() - graphs, 3) << max_tokens;
  }
}

TEST_F(EmulatedSteps, EveryFamilyIsRecorded) {
  for (const std::string& family : families()) {
    Transformer model = Transformer::load(Checkpoint::open(family_path(family)), *cuda_);
    const auto session = model.start(10);
    const size_t graphs = emulation::num_graph_launches();
    step_logits(*session, some_ids(8, model.description().vocabulary_size), 2);
    EXPECT_GE(emulation::num_graph_launches() - graphs, 4) << family;
  }
}

}  // namespace
}  // namespace pare
