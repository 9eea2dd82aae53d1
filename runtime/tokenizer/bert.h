// The steps of BERT's tokenizers before words are looked up (Devlin et al., arXiv 1810.04805; the package's
// normalizers/bert.rs and pre_tokenizers/bert.rs). They are cleaning, CJK ideographs as words, accents, case, and
// splitting at white space and punctuation.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace pare::runtime {

struct BertNormalize {
  bool clean_text = true;  // removes control characters and turns all white space into spaces
  bool space_ideographs = true;
  bool strip_accents = true;  // canonical decomposition without nonspacing marks
  bool lowercase = true;
  std::string apply(std::string_view text) const;  // `text` must be valid UTF-8
};

// Returns valid UTF-8 in lower case, as Rust's char::to_lowercase gives it.
std::string lower_case(std::string_view text);

bool is_punctuation(char32_t code_point);  // Unicode's, and all of ASCII's signs

// Calls the sink with the pieces of valid UTF-8. White space separates and is dropped; each punctuation character is a
// piece of its own.
void split_bert(std::string_view text, const std::function<void(size_t begin, size_t end)>& sink);

}  // namespace pare::runtime
