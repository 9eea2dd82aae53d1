#include "runtime/tokenizer/decoder.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <optional>
#include <stdexcept>
#include <utility>

#include "runtime/text/unicode.h"
#include "runtime/tokenizer/bpe.h"

namespace pare::runtime {
namespace {

using Tokens = std::vector<std::string>;

std::string join(const Tokens& tokens, const char* separator) {
  std::string text;
  for (size_t i = 0; i < tokens.size(); ++i) text += (i == 0 ? "" : separator) + tokens[i];
  return text;
}

Tokens decode_step(const ByteLevelDecoder&, Tokens tokens) {
  std::string bytes;
  for (const std::string& token : tokens) bytes += characters_to_bytes(token).value_or(token);
  return {utf8_with_replacements(bytes)};
}

std::optional<char> fallback_byte(const std::string& token) {
  if (token.size() != 6 || !token.starts_with("<0x") || token[5] != '>') return std::nullopt;
  unsigned byte = 0;
  const auto [end, error] = std::from_chars(token.data() + 3, token.data() + 5, byte, 16);
  if (error != std::errc() || end != token.data() + 5) return std::nullopt;
  return static_cast<char>(byte);
}

Tokens decode_step(const ByteFallbackDecoder&, Tokens tokens) {
  Tokens out;
  std::string run;
  const auto flush = [&] {
    if (run.empty()) return;
    if (find_invalid_utf8(run)) {
      out.insert(out.end(), run.size(), "\uFFFD");
    } else {
      out.push_back(run);
    }
    run.clear();
  };
  for (std::string& token : tokens) {
    if (const auto byte = fallback_byte(token)) {
      run += *byte;
    } else {
      flush();
      out.push_back(std::move(token));
    }
  }
  flush();
  return out;
}

Tokens decode_step(const FuseDecoder&, Tokens tokens) {
  return {join(tokens, "")};
}

Tokens decode_step(const StripDecoder& step, Tokens tokens) {
  for (std::string& token : tokens) {
    size_t begin = 0, end = token.size();
    for (size_t i = 0; i < step.start && begin < end && utf8_decode(token, begin) == step.content; ++i) {
      begin += utf8_length(token[begin]);
    }
    for (size_t i = 0; i < step.stop && end > begin; ++i) {
      const size_t last = utf8_previous(token, end);
      if (utf8_decode(token, last) != step.content) break;
      end = last;
    }
    token = token.substr(begin, end - begin);
  }
  return tokens;
}

Tokens decode_step(const Replace& step, Tokens tokens) {
  for (std::string& token : tokens) token = step.apply(token);
  return tokens;
}

// Turns the mark into a space again, and drops the one that encoding put before the text.
Tokens decode_step(const Metaspace& step, Tokens tokens) {
  for (size_t i = 0; i < tokens.size(); ++i) {
    const bool drop = i == 0 && step.prepend != Metaspace::Prepend::never;
    tokens[i] = Replace{step.replacement, drop ? "" : " "}.apply(tokens[i]);
  }
  return tokens;
}

// Source: the package's decoders/wordpiece.rs: cleanup, in its order.
constexpr std::array<std::pair<const char*, const char*>, 11> kCleanups = {{{" .", "."},
                                                                            {" ?", "?"},
                                                                            {" !", "!"},
                                                                            {" ,", ","},
                                                                            {" ' ", "'"},
                                                                            {" n't", "n't"},
                                                                            {" 'm", "'m"},
                                                                            {" do not", " don't"},
                                                                            {" 's", "'s"},
                                                                            {" 've", "'ve"},
                                                                            {" 're", "'re"}}};

Tokens decode_step(const WordPieceDecoder& step, Tokens tokens) {
  for (size_t i = 0; i < tokens.size(); ++i) {
    if (i > 0) {
      const bool continues = tokens[i].starts_with(step.prefix);
      tokens[i] = continues ? tokens[i].substr(step.prefix.size()) : " " + tokens[i];
    }
    if (!step.cleanup) continue;
    for (const auto& [found, instead] : kCleanups) tokens[i] = Replace{std::string(found), instead}.apply(tokens[i]);
  }
  return tokens;
}

// True if the last bytes begin a character whose other bytes may follow.
bool ends_inside_character(std::string_view bytes) {
  const size_t first = bytes.size() - std::min<size_t>(bytes.size(), 3);
  for (size_t at = bytes.size(); at-- > first;) {
    const auto byte = static_cast<unsigned char>(bytes[at]);
    if (byte >= 0xC0) return utf8_length(bytes[at]) > bytes.size() - at;
    if (byte < 0x80) return false;
  }
  return false;
}

// Returns the last bytes that the tokens spell, at least three if there are so many.
std::string last_bytes(std::span<const std::string> tokens) {
  std::string bytes;
  for (size_t i = tokens.size(); i-- > 0 && bytes.size() < 3;) {
    bytes.insert(0, characters_to_bytes(tokens[i]).value_or(tokens[i]));
  }
  return bytes;
}

size_t size_of(const Tokens& tokens) {
  size_t size = 0;
  for (const std::string& token : tokens) size += token.size();
  return size;
}

}  // namespace

std::string Decoder::run(std::vector<std::string> tokens) const {
  if (steps_.empty()) return join(tokens, " ");
  const size_t limit = max_rewritten_size(size_of(tokens));
  for (const Step& step : steps_) {
    tokens = std::visit([&](const auto& one) { return decode_step(one, std::move(tokens)); }, step);
    if (size_of(tokens) > limit) {
      throw std::runtime_error("the tokenizer's decoder makes " + std::to_string(size_of(tokens)) +
                               " bytes of text; at most " + std::to_string(limit) + " are expected");
    }
  }
  return join(tokens, "");
}

bool Decoder::may_cut_behind(std::span<const std::string> tokens) const {
  bool is_joined = false;         // true once the tokens have become one
  Tokens last = {tokens.back()};  // as the step sees it, while it is known
  bool knows_last = true;
  for (const Step& step : steps_) {
    if (is_joined) {
      // Once some text is left, only cuts off the front of the text are settled.
      const auto* strip = std::get_if<StripDecoder>(&step);
      if (!std::holds_alternative<FuseDecoder>(step) && (strip == nullptr || strip->stop > 0)) return false;
    } else if (std::holds_alternative<ByteLevelDecoder>(step)) {
      if (&step != &steps_.front() || ends_inside_character(last_bytes(tokens))) return false;
      is_joined = true;
    } else if (std::holds_alternative<FuseDecoder>(step)) {
      is_joined = true;
    } else if (std::holds_alternative<ByteFallbackDecoder>(step)) {
      if (!knows_last || fallback_byte(last.front())) return false;
      knows_last = false;
    } else if (std::holds_alternative<Replace>(step) || std::holds_alternative<StripDecoder>(step)) {
      last = std::visit([&](const auto& one) { return decode_step(one, std::move(last)); }, step);
    } else {
      knows_last = false;  // it depends on what stands before it
    }
  }
  return true;
}

}  // namespace pare::runtime
