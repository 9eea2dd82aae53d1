// Measures how far a model's embeddings are from a reference's: their cosine similarity text by text, and whether
// both order pairs of texts alike.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "runtime/engine/encoder.h"
#include "runtime/engine/transformer.h"
#include "runtime/evaluate/evaluation.h"
#include "runtime/evaluate/perplexity.h"
#include "runtime/tokenizer/tokenizer.h"

namespace pare::runtime {

// Pairs of texts. Every distinct text is stored once.
struct TextPairs {
  std::vector<std::string> plain_texts;
  std::vector<std::vector<int32_t>> texts;       // their ids
  std::vector<std::pair<size_t, size_t>> pairs;  // indices into texts
  std::vector<double> gold;                      // for each pair; empty: the file has none
  std::string source;                            // name of the file
};

// Reads a .tsv file: one pair a line, two texts separated by a tab, and a number as third column in every line or in
// none. Empty lines are skipped. Texts are cut to max_tokens tokens. Throws std::runtime_error (file and line) for
// anything else, and std::invalid_argument for fewer than two pairs.
TextPairs read_text_pairs(const std::filesystem::path& path, const Tokenizer& tokenizer, int64_t max_tokens);

// Returns Spearman's rank correlation: Pearson's of the ranks, where equal values share the mean of theirs. Returns
// nothing if all x or all y are equal. Throws std::invalid_argument unless there are as many x as y and at least two.
std::optional<double> rank_correlation(std::span<const double> x, std::span<const double> y);

// Returns the cosine similarity, computed in float64.
double cosine_similarity(std::span<const float> a, std::span<const float> b);

struct EmbeddingEvaluation : EvaluationResult {
  std::string source;
  std::string pooling;  // Pooling::label
  int64_t num_pairs = 0, num_texts = 0, num_tokens = 0;
  // Only with a reference:
  std::optional<Estimate> cosine;  // between a text's embeddings under both models, mean over the texts
  double cosine_min = 0.0;
  std::optional<double> rank_correlation;  // between the similarities under both models; none: all equal under one
  // Rank correlations of the similarities with the gold scores, if the file has them; none: all equal.
  bool has_scores = false;
  std::optional<double> gold_correlation, reference_gold_correlation;
  double seconds = 0.0;  // only embedding, both models

  std::string to_json() const override;
  std::string to_text() const override;
  std::vector<Figure> figures() const override;
  std::string data_label() const override { return source; }
  std::optional<double> figure(std::string_view gate) const override;  // "cosine"
};

// Throws std::invalid_argument unless both models make embeddings of one kind: with the same pooling and width, and
// from the same tokens of the file's texts.
void check_comparable(const Checkpoint& model, const Checkpoint& reference, const TextPairs& data);

// A model that makes embeddings, of either kind.
struct EmbeddingModel {
  int64_t width = 0;  // D
  const Backend* backend = nullptr;
  // As Encoder::embed.
  std::function<void(std::span<const std::vector<int32_t>> texts, const Pooling& pooling, float* embeddings_ND,
                     const std::function<void(int64_t, int64_t)>& progress)>
      embed;
  // Both refer to the model, which must outlive this.
  static EmbeddingModel of(Encoder& model);
  static EmbeddingModel of(Transformer& model);
};

// `reference` may be null if there are gold scores; both models share a backend (else std::invalid_argument). Throws
// what `embed` throws. `progress` (texts done, texts, of all models) may be empty.
EmbeddingEvaluation evaluate_embeddings(const EmbeddingModel& model, const EmbeddingModel* reference,
                                        const TextPairs& data, const Pooling& pooling,
                                        const std::function<void(int64_t, int64_t)>& progress = {});

class EmbeddingsOptions : public EvaluationOptionsOf<EmbeddingsOptions> {
 public:
  void fields(FieldVisitor& visit) override;
  std::string help(std::string_view key) const override;
  std::unique_ptr<Measurement> read(EvaluationSource& source) const override;
};
EvaluationRow embeddings_row();

}  // namespace pare::runtime
