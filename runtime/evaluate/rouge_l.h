// Rouge-L: how much of a reference text a candidate contains in the same order.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace pare::runtime {

// C.-Y. Lin, "ROUGE: A Package for Automatic Evaluation of Summaries" (2004), section 3.1, equations 2 to 4 with
// beta = 1. With L the length of the longest common subsequence, precision = L / words of the candidate, recall =
// L / words of the reference, f_measure = 2 P R / (P + R). All are 0 if nothing is common or a text has no words. They
// lie in [0, 1]; papers often print 100 times as much.
struct RougeL {
  double precision = 0.0;
  double recall = 0.0;
  double f_measure = 0.0;
};

// Returns the words of a UTF-8 text as the Python package rouge_score 0.1.2 finds them: runs of [a-z0-9] of the
// lower-case text. With `stem`, porter_stem reduces those of more than three characters. All other characters separate
// words, so that a text in another script has none. Throws std::invalid_argument if the text is not UTF-8 (the message
// says which byte).
std::vector<std::string> rouge_words(std::string_view text, bool stem);

// Returns the length of the longest sequence of words that both have in this order, not necessarily next to each other.
// Memory is linear in the shorter; time is the product of both lengths.
int64_t longest_common_subsequence(std::span<const std::string> a, std::span<const std::string> b);

// Returns what rouge_score's RougeScorer(["rougeL"], use_stemmer=stem) gives. Throws what rouge_words throws.
RougeL rouge_l(std::string_view candidate, std::string_view reference, bool stem);

}  // namespace pare::runtime
