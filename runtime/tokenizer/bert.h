// What BERT's tokenizers do to text before words are looked up (Devlin et al., arXiv 1810.04805; the package's
// normalizers/bert.rs and pre_tokenizers/bert.rs): cleaning, CJK ideographs as words, accents, case; splitting at white
// space and punctuation.
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace pare {

struct BertNormalize {
  bool clean_text = true;  // control characters go, every white space becomes a space
  bool space_ideographs = true;
  bool strip_accents = true;  // canonical decomposition without nonspacing marks
  bool lowercase = true;
  std::string apply(std::string_view text) const;  // valid UTF-8
};

// Calls the sink with the pieces of valid UTF-8: white space separates and is dropped, each punctuation character
// stands alone.
void split_bert(std::string_view text, const std::function<void(size_t begin, size_t end)>& sink);

}  // namespace pare
