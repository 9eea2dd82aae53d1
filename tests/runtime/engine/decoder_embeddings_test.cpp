#include "runtime/engine/decoder_embeddings.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "runtime/model/checkpoint.h"
#include "runtime/system/atomic_file.h"
#include "tests/expect_error.h"
#include "tests/places.h"
#include "tests/runtime/engine/tiny_models.h"

namespace pare {
using namespace runtime;
namespace {

namespace fs = std::filesystem;

const fs::path kGolden = fs::path(kSourceFolder) / "tests/golden";

// Float32 forward passes of this model differ by a few 1e-6 of a state; 1e-4 is what the project promises.
TEST(DecoderEmbeddings, AreThoseOfTransformers) {
  const auto golden = nlohmann::json::parse(read_text_file(kGolden / "decoder_embeddings.json"));
  const auto texts = golden["texts"].get<std::vector<std::vector<int32_t>>>();
  for (const std::string& name : backend_names()) {
    const std::unique_ptr<Backend> backend = backend_named(name);
    Transformer model =
        Transformer::load(Checkpoint::open(kGolden / "families" / golden["family"].get<std::string>()), *backend);
    const auto width = static_cast<size_t>(model.description().hidden_size);
    for (const auto& [kind, key] :
         {std::pair{Pooling::Kind::last_token, "last_token"}, std::pair{Pooling::Kind::mean, "mean"}}) {
      std::vector<float> found(texts.size() * width);
      int64_t done = 0;
      embed_with_decoder(model, texts, {.kind = kind}, found.data(), [&](int64_t now, int64_t) { done = now; });
      EXPECT_EQ(done, 3);
      for (size_t n = 0; n < texts.size(); ++n) {
        for (size_t d = 0; d < width; ++d) {
          ASSERT_NEAR(found[n * width + d], golden[key][n][d].get<double>(), 1e-4) << name << " " << key << " " << n;
        }
      }
    }
  }
}

// Texts of more rows than a batch holds are taken in several, each as it is alone.
TEST(DecoderEmbeddings, BatchesDoNotChangeThem) {
  const std::unique_ptr<Backend> backend = backend_named(backend_names().back());
  Transformer model = Transformer::load(Checkpoint::open(kGolden / "families/llama_gqa_untied"), *backend);
  const auto width = static_cast<size_t>(model.description().hidden_size);
  std::vector<std::vector<int32_t>> texts;
  for (int32_t n = 0; n < 90; ++n) texts.emplace_back(static_cast<size_t>(39 + n), n);  // 7,515 rows
  std::vector<float> all(texts.size() * width), alone(width);
  embed_with_decoder(model, texts, {.kind = Pooling::Kind::mean}, all.data());
  for (const size_t n : {size_t{0}, size_t{60}, size_t{89}}) {
    embed_with_decoder(model, std::span(texts).subspan(n, 1), {.kind = Pooling::Kind::mean}, alone.data());
    for (size_t d = 0; d < width; ++d) ASSERT_NEAR(all[n * width + d], alone[d], 1e-5) << n;
  }
}

TEST(DecoderEmbeddings, PoolingTakesFirstLastOrMean) {
  const std::vector<float> hidden_TD = {1, 2, 3, 4, 8, 0};
  std::vector<float> pooled(2);
  pool_rows(hidden_TD, Pooling::Kind::first_token, pooled);
  EXPECT_EQ(pooled, (std::vector<float>{1, 2}));
  pool_rows(hidden_TD, Pooling::Kind::last_token, pooled);
  EXPECT_EQ(pooled, (std::vector<float>{8, 0}));
  pool_rows(hidden_TD, Pooling::Kind::mean, pooled);
  EXPECT_EQ(pooled, (std::vector<float>{4, 2}));
  pooled = {0, 0};
  expect_error<std::runtime_error>([&] { normalize_embedding(pooled, 7); }, {"text 7", "is 0"});
}

}  // namespace
}  // namespace pare
