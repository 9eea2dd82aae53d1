// The changes that a tokenizer file makes to text before it is split, one after the other.
#pragma once

#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "runtime/text/charsmap.h"
#include "runtime/text/regex.h"
#include "runtime/tokenizer/bert.h"

namespace pare::runtime {

enum class NormalizationForm { nfc, nfd, nfkc, nfkd };
struct Lowercase {};
struct StripAccents {};  // removes combining marks
struct StripSpaces {     // removes white space at the text's ends
  bool left = true, right = true;
};
struct Prepend {
  std::string prefix;  // put before every text that is not empty
};
struct Replace {
  std::variant<std::string, Regex> pattern;  // the string is not empty
  std::string content;
  std::string apply(std::string_view text) const;
};

// The largest size that a text of `size_bytes` may reach. Real files at most triple it (' ' to U+2581); a hostile one
// could double it at every step.
size_t max_rewritten_size(size_t size_bytes);

class Normalizer {
 public:
  using Step =
      std::variant<NormalizationForm, Lowercase, StripAccents, StripSpaces, Charsmap, Prepend, Replace, BertNormalize>;
  void add(Step step) { steps_.push_back(std::move(step)); }
  bool empty() const { return steps_.empty(); }

  // Throws std::runtime_error if the steps make the text absurdly long.
  std::string apply(std::string_view text) const;

 private:
  std::vector<Step> steps_;
};

}  // namespace pare::runtime
