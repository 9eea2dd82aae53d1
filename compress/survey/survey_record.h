// The result of a survey, as a run keeps it under OUT.partial/progress and reports it. This is free of LibTorch.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/evaluate/perplexity.h"
#include "runtime/format/linear_weights.h"

namespace pare::compress {

// The part that a measurement rounds.
enum class RoundedPart { weights, activations };
std::string_view part_name(RoundedPart part);  // "weights"

// One way to store a group, and the error that it is predicted to leave.
struct SurveyedCandidate {
  int bits = 4;  // 2, 3, 4, 8, 16
  int64_t group_size = runtime::kPerChannel;
  int64_t size_bytes = 0;
  double error = 0.0;
};

struct SurveyedGroup {
  std::string name;
  std::vector<std::string> layers;
  int64_t num_weights = 0;
  RoundedPart part = RoundedPart::weights;
  std::string scheme;                         // a description of what was measured: "gptq 3 bits g32"
  double error = 0.0;                         // predicted for that scheme, in the candidates' unit
  runtime::Estimate increase;                 // in the mean negative log likelihood, nats per token, paired by window
  runtime::Estimate kl;                       // KL(uncompressed || rounded), nats per token
  std::vector<SurveyedCandidate> candidates;  // for a budget: ascending bits, for each descending group size
};

struct Survey {
  std::string label;  // the text that was measured on
  double baseline_nll = 0.0;
  std::vector<SurveyedGroup> groups;  // in the order of the model; those of `sensitivity.groups` in the recipe's order
};

// Write and read one JSON object; doubles survive unchanged. parse_survey throws std::runtime_error with `where`, also
// for numbers that no survey has: numbers of bits in which nothing is stored, and sizes and errors below 0.
std::string to_json(const Survey& survey);
Survey parse_survey(const std::string& json, const std::string& where);

// Returns the table for people: a title, a line of headings, then one line for each group. Where num_columns have no
// room for all of it, names are shortened and the least important columns are left out.
std::vector<std::string> to_lines(const Survey& survey, size_t num_columns);

}  // namespace pare::compress
