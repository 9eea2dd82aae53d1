// The numbers that texts end with, found and compared as lm-evaluation-harness 0.4.13 does for GSM8K
// (lm_eval/tasks/gsm8k/gsm8k.yaml; filters/extraction.py: RegexFilter; api/metrics.py: exact_match_hf_evaluate).
#pragma once

#include <string>
#include <string_view>

namespace pare::runtime {

inline constexpr std::string_view kNoNumber = "[invalid]";  // what stands for a text without a number

// Returns what stands behind the first "#### ", as solved examples write it; or kNoNumber. Texts are valid UTF-8.
std::string strict_number(std::string_view text);
// Returns the last thing in the text that looks like a number; or kNoNumber.
std::string last_number(std::string_view text);

// True if what was found is the right answer. Of both count neither case, commas and dollars, nor a full stop at the
// end, nor what stands before the last "#### ".
bool is_same_answer(std::string_view found, std::string_view right);

}  // namespace pare::runtime
