#include "runtime/text/regex.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include <algorithm>
#include <array>
#include <stdexcept>

#include "runtime/system/visible_text.h"
#include "runtime/text/unicode.h"

namespace pare::runtime {
namespace {

// A hostile file must not be able to hang the program: real expressions need a few steps per character of one word.
// backtracking steps per match: of any text, and for each of its bytes. A long run of spaces takes one for each.
constexpr uint32_t kMatchLimit = 1'000'000;
constexpr uint32_t kMatchLimitPerByte = 2;
constexpr uint32_t kHeapLimitKib = 20 * 1024;  // for the interpreter
constexpr size_t kJitStackBytes = size_t{1} << 20;
constexpr size_t kMaxPatternBytes = 16 * 1024;

std::string pcre2_message(int code) {
  std::array<PCRE2_UCHAR, 256> text{};
  pcre2_get_error_message(code, text.data(), text.size());
  return reinterpret_cast<const char*>(text.data());
}

// The objects that a thread needs to match. They are kept because some callers match millions of short texts.
class Scratch {
 public:
  Scratch()
      : data_(pcre2_match_data_create(1, nullptr)),
        context_(pcre2_match_context_create(nullptr)),
        stack_(pcre2_jit_stack_create(32 * 1024, kJitStackBytes, nullptr)) {
    if (data_ == nullptr || context_ == nullptr || stack_ == nullptr) throw std::bad_alloc();
    pcre2_set_heap_limit(context_, kHeapLimitKib);
    pcre2_jit_stack_assign(context_, nullptr, stack_);
  }
  ~Scratch() {
    pcre2_jit_stack_free(stack_);
    pcre2_match_context_free(context_);
    pcre2_match_data_free(data_);
  }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  pcre2_match_data* data() { return data_; }
  pcre2_match_context* context(size_t text_bytes) {
    const auto of_text = kMatchLimitPerByte * std::min<uint64_t>(text_bytes, uint64_t{1} << 30);
    pcre2_set_match_limit(context_, kMatchLimit + static_cast<uint32_t>(of_text));
    return context_;
  }

 private:
  pcre2_match_data* data_;
  pcre2_match_context* context_;
  pcre2_jit_stack* stack_;
};

}  // namespace

struct Regex::Compiled {
  std::string pattern;  // as the file has it
  std::string where;
  std::unique_ptr<pcre2_code, void (*)(pcre2_code*)> code{nullptr, pcre2_code_free};
};

Regex::Regex(std::string_view pattern, const std::string& where) : compiled_(std::make_unique<Compiled>()) {
  compiled_->pattern = pattern;
  compiled_->where = where;
  if (pattern.empty() || pattern.size() > kMaxPatternBytes) {
    throw std::runtime_error(where + ": a regular expression of " + std::to_string(pattern.size()) +
                             " bytes; expected 1 to " + std::to_string(kMaxPatternBytes));
  }
  compile(translate_regex(pattern, where));
}

Regex Regex::graphemes() {
  Regex regex;
  regex.compiled_ = std::make_unique<Compiled>();
  regex.compiled_->pattern = "\\X";
  regex.compiled_->where = "graphemes";
  regex.compile(regex.compiled_->pattern);
  return regex;
}

void Regex::compile(const std::string& translated) {
  const std::unique_ptr<pcre2_compile_context, void (*)(pcre2_compile_context*)> context(
      pcre2_compile_context_create(nullptr), pcre2_compile_context_free);
  if (context == nullptr) throw std::bad_alloc();
  pcre2_set_newline(context.get(), PCRE2_NEWLINE_LF);
  int error = 0;
  PCRE2_SIZE offset = 0;
  compiled_->code.reset(pcre2_compile(reinterpret_cast<PCRE2_SPTR>(translated.data()), translated.size(),
                                      PCRE2_UTF | PCRE2_UCP | PCRE2_MULTILINE | PCRE2_NEVER_BACKSLASH_C, &error,
                                      &offset, context.get()));
  if (compiled_->code == nullptr) {
    throw std::runtime_error(compiled_->where + ": the regular expression '" + visible_line(compiled_->pattern) +
                             "' is not valid: " + pcre2_message(error) + " (at " + std::to_string(offset) + " of '" +
                             visible_line(translated) + "')");
  }
  // This fails if the system forbids executable memory. The interpreter then finds the same matches, more slowly.
  pcre2_jit_compile(compiled_->code.get(), PCRE2_JIT_COMPLETE);
}

Regex::~Regex() = default;
Regex::Regex(Regex&&) noexcept = default;
Regex& Regex::operator=(Regex&&) noexcept = default;

std::optional<std::pair<size_t, size_t>> Regex::match(std::string_view text, size_t from) const {
  thread_local Scratch scratch;
  const int rc = pcre2_match(compiled_->code.get(), reinterpret_cast<PCRE2_SPTR>(text.data()), text.size(), from,
                             PCRE2_NO_UTF_CHECK, scratch.data(), scratch.context(text.size()));
  if (rc == PCRE2_ERROR_NOMATCH) return std::nullopt;
  if (rc < 0) {
    throw std::runtime_error(compiled_->where + ": the regular expression '" + visible_line(compiled_->pattern) +
                             "' cannot be matched at byte " + std::to_string(from) + " of a text of " +
                             std::to_string(text.size()) + " bytes: " + pcre2_message(rc));
  }
  const PCRE2_SIZE* match = pcre2_get_ovector_pointer(scratch.data());
  return std::pair<size_t, size_t>{match[0], match[1]};
}

void Regex::for_each_match(std::string_view text, const std::function<void(size_t, size_t)>& found) const {
  constexpr size_t kUnset = PCRE2_UNSET;
  size_t last_end = kUnset;
  for (size_t from = 0; from <= text.size();) {
    const auto next = match(text, from);
    if (!next) return;
    const auto [begin, end] = *next;
    if (begin == end && end == last_end) {
      if (from == text.size()) return;
      from += utf8_length(text[from]);
      continue;
    }
    from = last_end = end;
    found(begin, end);
  }
}

size_t Regex::end_of_first_match(std::string_view text) const {
  const auto first = match(text, 0);
  return first ? first->second : 0;
}

}  // namespace pare::runtime
