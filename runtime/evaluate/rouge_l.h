// Rouge-L: how much of a reference text a candidate has in the same order.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace pare {

// C.-Y. Lin, "ROUGE: A Package for Automatic Evaluation of Summaries" (2004), section 3.1, equations 2 to 4 with
// beta = 1: with L the length of the longest common subsequence, precision = L / words of the candidate, recall = L /
// words of the reference, f_measure = 2 P R / (P + R); all 0 where nothing is common or a text has no words. In [0, 1];
// papers often print 100 times as much.
struct RougeL {
  double precision = 0.0;
  double recall = 0.0;
  double f_measure = 0.0;
};

// The words of a UTF-8 text as the Python package rouge_score 0.1.2 has them: runs of [a-z0-9] of the lower-case text,
// with `stem` those of more than three characters by porter_stem. Whatever else there is parts words, so that a text in
// another script has none. Throws std::invalid_argument where the text is not UTF-8 (which byte).
std::vector<std::string> rouge_words(std::string_view text, bool stem);

// The length of the longest sequence of words that both have in this order, not necessarily next to each other. Memory
// is linear in the shorter, time the product of both lengths.
int64_t longest_common_subsequence(std::span<const std::string> a, std::span<const std::string> b);

// What rouge_score's RougeScorer(["rougeL"], use_stemmer=stem) gives. Throws what rouge_words throws.
RougeL rouge_l(std::string_view candidate, std::string_view reference, bool stem);

}  // namespace pare
