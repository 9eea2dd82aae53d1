// Compares the memory that an encoder's functions say they take with the tensors that they make.
#include "compress/model/encoder_functions.h"

#include <ATen/core/grad_mode.h>
#include <ATen/ops/rand.h>
#include <gtest/gtest.h>

#include "compress/walk/encoder_block.h"
#include "tests/compress/model/counted_memory.h"
#include "tests/runtime/engine/tiny_encoder.h"

namespace pare {
using namespace compress;
using namespace runtime;
namespace {

int64_t most_bytes(const EncoderBlock& block, int64_t num_tokens, int64_t width, int64_t inner) {
  const at::Tensor hidden_TD = at::rand({num_tokens, width}), activated_TF = at::rand({num_tokens, inner});
  const EncoderFunctions functions = block.functions();
  const CountedMemory memory;
  functions.attention(hidden_TD);
  functions.activation(hidden_TD);
  functions.add_output(Stage::attention_output, hidden_TD, hidden_TD);
  functions.add_output(Stage::feed_forward_output, activated_TF, hidden_TD);
  return memory.most_bytes();
}

// Short texts take most at the feed-forward layer, long ones at the scores. With inputs that are rounded no more may be
// there than is said, and without them not much less: the rounded input alone may be missing, and is at most a quarter.
TEST(EncoderFunctions, TakeAsMuchMemoryAsTheySay) {
  const at::NoGradGuard no_grad;
  const Checkpoint checkpoint = Checkpoint::open(tiny_encoder_path());
  const EncoderDescription& model = checkpoint.encoder();
  EncoderBlock block(checkpoint, 0);
  for (const bool is_rounded : {false, true}) {
    for (const Stage stage : kStages) {
      if (is_rounded) block.set_input_format(stage, {.type = InputType::int8});
    }
    for (const int64_t num_tokens : {1, 7, 40, 64}) {
      const int64_t said = EncoderFunctions::forward_bytes(model, num_tokens);
      const int64_t most = most_bytes(block, num_tokens, model.hidden_size, model.feed_forward_size);
      EXPECT_LE(most, said) << num_tokens << " tokens" << (is_rounded ? ", rounded" : "");
      EXPECT_GE(most, said * 3 / 4) << num_tokens << " tokens" << (is_rounded ? ", rounded" : "");
    }
  }
}

}  // namespace
}  // namespace pare
