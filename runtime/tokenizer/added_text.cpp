#include "runtime/tokenizer/added_text.h"

#include <algorithm>

namespace pare::runtime {

AddedText::AddedText(const Tokenizer& tokenizer, std::span<const int32_t> prompt_ids)
    : stream_(tokenizer, /*skip_special_tokens=*/true), prompt_left_(tokenizer.decode(prompt_ids, true).size()) {
  for (const int32_t id : prompt_ids) prompt_left_ -= std::min(prompt_left_, stream_.add(id).size());
}

std::string AddedText::add(int32_t id) {
  return without_prompt(stream_.add(id));
}

std::string AddedText::finish() {
  return without_prompt(stream_.finish());
}

std::string AddedText::without_prompt(const std::string& piece) {
  const size_t of_prompt = std::min(prompt_left_, piece.size());
  prompt_left_ -= of_prompt;
  return piece.substr(of_prompt);
}

}  // namespace pare::runtime
