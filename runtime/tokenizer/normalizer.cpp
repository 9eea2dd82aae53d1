#include "runtime/tokenizer/normalizer.h"

#include <algorithm>
#include <stdexcept>

#include "runtime/text/unicode.h"

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

namespace {

std::string normalize_step(NormalizationForm form, const std::string& text) {
  switch (form) {
    case NormalizationForm::nfc:
      return normalize_nfc(text);
    case NormalizationForm::nfd:
      return normalize_nfd(text);
    case NormalizationForm::nfkc:
      return normalize_nfkc(text);
    case NormalizationForm::nfkd:
      return normalize_nfkd(text);
  }
  return text;
}

std::string normalize_step(const Lowercase&, const std::string& text) {
  return lower_case(text);
}

std::string normalize_step(const StripAccents&, const std::string& text) {
  std::string out;
  out.reserve(text.size());
  for (size_t at = 0; at < text.size(); at += utf8_length(text[at])) {
    if (!is_combining_mark(utf8_decode(text, at))) out.append(text, at, utf8_length(text[at]));
  }
  return out;
}

std::string normalize_step(const StripSpaces& step, const std::string& text) {
  size_t begin = 0, end = text.size();
  while (step.left && begin < end && is_white_space(utf8_decode(text, begin))) begin += utf8_length(text[begin]);
  while (step.right && end > begin && is_white_space(utf8_decode(text, utf8_previous(text, end)))) {
    end = utf8_previous(text, end);
  }
  return text.substr(begin, end - begin);
}

std::string normalize_step(const Prepend& step, const std::string& text) {
  return text.empty() ? text : step.prefix + text;
}

std::string normalize_step(const Charsmap& step, const std::string& text) {
  return step.apply(text);
}
std::string normalize_step(const Replace& step, const std::string& text) {
  return step.apply(text);
}
std::string normalize_step(const BertNormalize& step, const std::string& text) {
  return step.apply(text);
}

}  // namespace

std::string Normalizer::apply(std::string_view text) const {
  const size_t limit = max_rewritten_size(text.size());
  std::string out(text);
  for (const Step& step : steps_) {
    out = std::visit([&](const auto& one) { return normalize_step(one, out); }, step);
    if (out.size() > limit) {
      throw std::runtime_error("the tokenizer's normalizer makes " + std::to_string(out.size()) + " bytes out of " +
                               std::to_string(text.size()) + "; at most " + std::to_string(limit) + " are expected");
    }
  }
  return out;
}

}  // namespace pare::runtime
