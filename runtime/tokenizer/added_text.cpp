#include "runtime/tokenizer/added_text.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

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

StopStrings::StopStrings(std::vector<std::string> stops) : stops_(std::move(stops)) {
  if (std::find(stops_.begin(), stops_.end(), "") != stops_.end()) {
    throw std::invalid_argument("a stop string is empty: it would end every text before its first character");
  }
}

std::string StopStrings::add(std::string_view piece) {
  if (found_) return "";
  held_ += piece;
  size_t begin = std::string::npos;
  for (const std::string& stop : stops_) begin = std::min(begin, held_.find(stop));
  found_ = begin != std::string::npos;
  if (found_) return std::exchange(held_, "").substr(0, begin);
  // The longest end of the text with which a string may begin.
  size_t num_held = 0;
  for (const std::string& stop : stops_) {
    for (size_t length = std::min(stop.size() - 1, held_.size()); length > num_held; --length) {
      if (std::string_view(held_).ends_with(std::string_view(stop).substr(0, length))) num_held = length;
    }
  }
  std::string certain = held_.substr(0, held_.size() - num_held);
  held_.erase(0, certain.size());
  return certain;
}

std::string StopStrings::finish() {
  return std::exchange(held_, "");
}

std::optional<int32_t> special_token_id(const Tokenizer& tokenizer, const std::string& text) {
  const std::optional<int32_t> id = tokenizer.token_id(text);
  const bool is_special = id && tokenizer.decode({&*id, 1}, /*skip_special_tokens=*/true).empty() &&
                          tokenizer.decode({&*id, 1}, /*skip_special_tokens=*/false) == text;
  return is_special ? id : std::nullopt;
}

std::vector<int32_t> special_token_ids(const Tokenizer& tokenizer, const std::vector<std::string>& texts) {
  std::vector<int32_t> ids;
  for (const std::string& text : texts) {
    if (const std::optional<int32_t> id = special_token_id(tokenizer, text)) ids.push_back(*id);
  }
  return ids;
}

}  // namespace pare::runtime
