#include "runtime/engine/block_errors.h"

#include <gtest/gtest.h>

#include <cmath>
#include <stdexcept>

#include "tests/runtime/engine/tiny_models.h"

namespace pare {
namespace {

struct Seen {
  std::vector<std::vector<float>> states;  // by block, of all batches
  BlockObserver observer(int64_t num_rows) {
    return {num_rows, [this](int64_t block, std::span<const float> states_RD) {
              if (states.size() <= static_cast<size_t>(block)) states.resize(static_cast<size_t>(block) + 1);
              std::vector<float>& all = states[static_cast<size_t>(block)];
              all.insert(all.end(), states_RD.begin(), states_RD.end());
            }};
  }
};

// Behind the last block stands what the final norm is taken of. Its result is the same, whoever looks on.
TEST(BlockObserver, SeesTheLastRowsOfEachSequenceBehindEveryBlock) {
  for (const std::string family : {"llama_gqa_untied", "gemma3_local_global", "gpt_neox_parallel", "granite_factors",
                                   "mixtral_experts", "olmo2_norms_after"}) {
    for (const std::string& name : backend_names()) {
      const std::unique_ptr<Backend> backend = backend_named(name);
      Transformer model = Transformer::load(Checkpoint::open(family_path(family)), *backend);
      const ModelDescription& description = model.description();
      const auto width = static_cast<size_t>(description.hidden_size);
      const std::vector<int32_t> ids = {5, 9, 2, 7, 1, 3, 8, 4, 6, 11};
      const std::vector<int64_t> lengths = {6, 1, 3};
      const auto hidden_of = [&](const BlockObserver* observer) {
        const Buffer<float> hidden = backend->allocate(static_cast<int64_t>(ids.size() * width));
        model.prefill_sequences(ids, lengths, hidden.get(), {}, observer);
        std::vector<float> values(ids.size() * width);
        backend->download<float>(hidden.get(), values);
        return values;
      };
      Seen seen;
      const BlockObserver observer = seen.observer(2);
      const std::vector<float> expected = hidden_of(nullptr);
      EXPECT_EQ(hidden_of(&observer), expected);
      ASSERT_EQ(seen.states.size(), description.blocks.size());
      for (const std::vector<float>& states : seen.states) ASSERT_EQ(states.size(), 5 * width);
      // The final norm of what was seen, up to its gains: the ratios of two rows' values, each over its row's size.
      const bool has_means = description.final_norm.centers;
      const auto normalized = [&](const float* row, size_t i) {
        double mean = 0.0, squares = 0.0;
        for (size_t d = 0; d < width; ++d) mean += row[d] / static_cast<double>(width);
        if (!has_means) mean = 0.0;
        for (size_t d = 0; d < width; ++d) squares += std::pow(row[d] - mean, 2.0) / static_cast<double>(width);
        return (row[i] - mean) / std::sqrt(squares + description.final_norm.epsilon);
      };
      const size_t rows[] = {4, 5, 6, 8, 9};  // the last two of each sequence
      const std::vector<float>& last = seen.states.back();
      for (size_t d = 0; d < width; ++d) {
        // y = gain * n + bias in each row: three rows tell whether y is a linear function of n.
        const auto n = [&](size_t r) { return normalized(last.data() + r * width, d); };
        const auto y = [&](size_t r) { return static_cast<double>(expected[rows[r] * width + d]); };
        const double wrong = (y(1) - y(0)) * (n(2) - n(0)) - (y(2) - y(0)) * (n(1) - n(0));
        EXPECT_NEAR(wrong, 0.0, 1e-3) << family << " " << name << " channel " << d;
      }
    }
  }
}

TEST(BlockErrors, OfAModelBesideItselfAreZeroAndBatchesMustBeTheSame) {
  const std::unique_ptr<Backend> backend = make_reference_backend();
  Transformer model = Transformer::load(Checkpoint::open(family_path("llama_gqa_untied")), *backend);
  const std::vector<int32_t> ids = {5, 9, 2, 7, 1, 3, 8, 4};
  const Buffer<float> hidden = backend->allocate(static_cast<int64_t>(ids.size()) * model.description().hidden_size);
  BlockErrors errors(model.description(), 1);
  for (int batch = 0; batch < 2; ++batch) {
    model.prefill_windows(ids, 2, hidden.get(), {}, &errors.keeps());
    model.prefill_windows(ids, 2, hidden.get(), {}, &errors.compares());
  }
  EXPECT_EQ(errors.values(), std::vector<double>(model.description().blocks.size(), 0.0));
  EXPECT_THROW(model.prefill_windows(ids, 4, hidden.get(), {}, &errors.compares()), std::logic_error);
  ModelDescription other = model.description();
  EXPECT_TRUE(BlockErrors::can_compare(model.description(), other));
  other.blocks.pop_back();
  EXPECT_FALSE(BlockErrors::can_compare(model.description(), other));
}

}  // namespace
}  // namespace pare
