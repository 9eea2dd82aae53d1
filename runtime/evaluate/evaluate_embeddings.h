// How far an encoder's embeddings are from a reference's: their cosine similarity text by text, and whether both order
// pairs of texts alike.
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
#include "runtime/evaluate/evaluate.h"
#include "runtime/tokenizer/tokenizer.h"

namespace pare {

// Pairs of texts; every distinct text stands once.
struct TextPairs {
  std::vector<std::string> plain_texts;
  std::vector<std::vector<int32_t>> texts;       // their ids
  std::vector<std::pair<size_t, size_t>> pairs;  // which texts
  std::vector<double> gold;                      // of each pair; empty: the file has none
  std::string source;                            // name of the file
};

// A .tsv file: one pair a line, two texts parted by a tab, and a number as third column in every line or in none. Empty
// lines are skipped. Texts are cut to max_tokens tokens. Throws std::runtime_error (file and line) for anything else,
// and std::invalid_argument for less than two pairs.
TextPairs read_text_pairs(const std::filesystem::path& path, const Tokenizer& tokenizer, int64_t max_tokens);

// Spearman's rank correlation: Pearson's of the ranks, equal values sharing the mean of theirs. Throws
// std::invalid_argument unless there are as many x as y and at least two. None where all x or all y are equal.
std::optional<double> rank_correlation(std::span<const double> x, std::span<const double> y);

// Cosine similarity, in float64.
double cosine_similarity(std::span<const float> a, std::span<const float> b);

struct EmbeddingEvaluation {
  std::string source;
  std::string pooling;  // Pooling::label
  int64_t num_pairs = 0, num_texts = 0, num_tokens = 0;
  // With a reference:
  std::optional<Estimate> cosine;  // of a text's embeddings under both models, mean over the texts
  double cosine_min = 0.0;
  std::optional<double> rank_correlation;  // of the pairs' similarities under both models; none: all equal under one
  // With gold scores: of the similarities with them, likewise.
  bool has_scores = false;
  std::optional<double> gold_correlation, reference_gold_correlation;
  double seconds = 0.0;  // of embedding alone, both models
  int64_t peak_memory_bytes = 0;
};

// Both models must make embeddings of one kind: the same pooling and width and, of the file's texts, the same tokens.
// Throws std::invalid_argument.
void check_comparable(const Checkpoint& model, const Checkpoint& reference, const TextPairs& data);

// `reference` may be null where there are gold scores; both share a backend (std::invalid_argument). Throws what
// Encoder::embed throws. `progress` (texts done, texts, of all models) may be empty.
EmbeddingEvaluation evaluate_embeddings(Encoder& model, Encoder* reference, const TextPairs& data,
                                        const Pooling& pooling,
                                        const std::function<void(int64_t, int64_t)>& progress = {});

// One JSON object; a few lines of text.
std::string to_json(const EmbeddingEvaluation& evaluation);
std::string to_text(const EmbeddingEvaluation& evaluation);

}  // namespace pare
