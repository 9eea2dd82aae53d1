// A checkpoint of 2:4 weights, packed, is the same model as the one with the zeros stored.
#include <gtest/gtest.h>

#include <cmath>

#include "tests/runtime/sparse_checkpoint.h"
#include "tests/temporary_folder.h"

namespace pare {
using namespace runtime;
namespace {

// On these models, float32 forwards that sum in different orders differ by a few 1e-6 of the largest logit
// (transformer_test.cpp).
constexpr double kTolerance = 1e-5;

class SparseModel : public testing::Test {
 protected:
  TemporaryFolder folder_;
  SparseCheckpoint written_ = write_sparse_checkpoint(folder_.path());
};

TEST_F(SparseModel, EveryLinearIsReadBackWithItsPromise) {
  const Checkpoint checkpoint = Checkpoint::open(written_.packed);
  EXPECT_EQ(checkpoint.quantization_method(), "pare-sparse24");
  EXPECT_NO_THROW(checkpoint.check_values());
  size_t num_packed = 0;
  for (const LinearDescription& linear : block_linears(checkpoint.description())) {
    const auto scheme = written_.schemes.find(linear.name);
    const LinearWeights read = checkpoint.linear(linear);
    checkpoint.drop_pages(linear);
    ASSERT_EQ(checkpoint.stored_scheme(linear).has_value(), scheme != written_.schemes.end()) << linear.name;
    if (scheme == written_.schemes.end()) {
      EXPECT_EQ(std::get<DenseWeight>(read.weight).pattern, SparsePattern{});
      EXPECT_EQ(std::get<DenseWeight>(read.weight).owned, nullptr);
      continue;
    }
    ++num_packed;
    EXPECT_EQ(*checkpoint.stored_scheme(linear), scheme->second);
    const StoredLinear& stored = written_.linears.at(linear.name);
    if (scheme->second.is_dense()) {
      const auto& dense = std::get<DenseWeight>(read.weight);
      ASSERT_NE(dense.owned, nullptr);
      EXPECT_EQ(*dense.owned, stored.dense_OI);
      EXPECT_EQ(dense.data.data(), dense.owned->data());
      EXPECT_EQ(dense.data.size(), dense.owned->size());
      EXPECT_EQ(dense.dtype, DType::BF16);
      EXPECT_EQ(dense.pattern, kTwoOfFour);
    } else {
      const auto& codes = std::get<QuantizedWeight>(read.weight);
      EXPECT_EQ(codes.codes_OI, stored.weight.codes_OI);
      EXPECT_EQ(codes.pattern, scheme->second.pattern);
    }
    std::vector<float> rows(static_cast<size_t>(3 * linear.num_in));
    weight_rows(read, 2, 3, rows);
    const std::vector<float> expected = effective_weight(stored);
    EXPECT_TRUE(std::equal(rows.begin(), rows.end(), expected.begin() + 2 * linear.num_in)) << linear.name;
    if (!scheme->second.pattern.is_dense()) {
      EXPECT_GE(2 * count_zeros(read, kTwoOfFour).num_zeros, linear.num_out * linear.num_in);
      EXPECT_EQ(count_zeros(read, kTwoOfFour).num_violations, 0);
    }
  }
  EXPECT_EQ(num_packed, 12u);
}

TEST_F(SparseModel, LogitsAreThoseOfTheDenseCheckpoint) {
  const TokenWindows windows = read_npy(family_path("llama_gqa_untied") / "ids.npy");
  const auto logits = [&](const std::filesystem::path& directory, Backend& backend) {
    Transformer model = Transformer::load(Checkpoint::open(directory), backend);
    return prefill_logits(model, windows.ids_NT, windows.num_windows);
  };
  const std::unique_ptr<Backend> reference = backend_named("reference");
  const std::vector<float> expected = logits(written_.dense, *reference);
  EXPECT_EQ(logits(written_.packed, *reference), expected);
  double largest = 0.0;
  for (const float logit : expected) largest = std::max(largest, static_cast<double>(std::abs(logit)));
  ASSERT_GT(largest, 0.0);
  for (const std::string& name : backend_names()) {
    const std::unique_ptr<Backend> backend = backend_named(name);
    const std::vector<float> found = logits(written_.packed, *backend);
    ASSERT_EQ(found.size(), expected.size());
    for (size_t i = 0; i < found.size(); ++i) ASSERT_NEAR(found[i], expected[i], kTolerance * largest) << name;
  }
}

TEST_F(SparseModel, DamageIsNamedWithFileAndTensor) {
  const auto offset_of = [&](const std::string& name) {
    const SafetensorsFile file = SafetensorsFile::open(written_.packed / "model.safetensors");
    return file.tensors().at(name).data.data() - file.file().bytes().data();
  };
  const std::string name = "model.layers.0.self_attn.q_proj.weight_positions";
  const auto offset = static_cast<std::streamoff>(offset_of(name));
  {
    std::fstream file(written_.packed / "model.safetensors", std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(offset);
    file.put(0);
  }
  const Checkpoint checkpoint = Checkpoint::open(written_.packed);
  const LinearDescription& q = checkpoint.description().blocks[0].q;
  try {
    checkpoint.linear(q);
    ADD_FAILURE() << "no error";
  } catch (const std::runtime_error& error) {
    for (const std::string& part : {written_.packed.string(), name, std::string("ascending")}) {
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what();
    }
  }
}

}  // namespace
}  // namespace pare
