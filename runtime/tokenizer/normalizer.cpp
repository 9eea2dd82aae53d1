#include "runtime/tokenizer/normalizer.h"

#include <algorithm>
#include <stdexcept>

#include "runtime/tokenizer/unicode.h"

namespace pare::runtime {

size_t max_rewritten_size(size_t size_bytes) {
  constexpr size_t kMaxGrowth = 64;
  constexpr size_t kAlwaysAllowedBytes = size_t{1} << 20;
  return std::max(kAlwaysAllowedBytes, kMaxGrowth * size_bytes);
}

std::string Replace::apply(std::string_view text) const {
  std::string out;
  out.reserve(text.size());
  size_t copied = 0;
  const auto replace = [&](size_t begin, size_t end) {
    out.append(text, copied, begin - copied);
    out += content;
    copied = end;
  };
  if (const auto* regex = std::get_if<Regex>(&pattern)) {
    regex->for_each_match(text, replace);
  } else {
    const std::string& literal = std::get<std::string>(pattern);
    for (size_t at = text.find(literal); at != std::string_view::npos; at = text.find(literal, at + literal.size())) {
      replace(at, at + literal.size());
    }
  }
  return out.append(text, copied);
}

std::string Normalizer::apply(std::string_view text) const {
  const size_t limit = max_rewritten_size(text.size());
  std::string out(text);
  for (const Step& step : steps_) {
    if (std::holds_alternative<NormalizeNfc>(step)) {
      out = normalize_nfc(out);
    } else if (const auto* prepend = std::get_if<Prepend>(&step)) {
      if (!out.empty()) out.insert(0, prepend->prefix);
    } else if (const auto* bert = std::get_if<BertNormalize>(&step)) {
      out = bert->apply(out);
    } else {
      out = std::get<Replace>(step).apply(out);
    }
    if (out.size() > limit) {
      throw std::runtime_error("the tokenizer's normalizer makes " + std::to_string(out.size()) + " bytes out of " +
                               std::to_string(text.size()) + "; at most " + std::to_string(limit) + " are expected");
    }
  }
  return out;
}

}  // namespace pare::runtime
