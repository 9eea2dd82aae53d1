#include "runtime/evaluate/number_answers.h"

#include "runtime/chat/python_case.h"
#include "runtime/text/python_text.h"
#include "runtime/text/regex.h"

namespace pare::runtime {
namespace {

constexpr std::string_view kMark = "#### ";

std::string plain_answer(std::string_view text) {
  std::string answer = replaced(replaced(std::string(text), ",", ""), "$", "");
  if (const size_t mark = answer.rfind(kMark); mark != std::string::npos) answer.erase(0, mark + kMark.size());
  // "\.$" of Python's re: a full stop at the end, or before a line feed that ends the text.
  const size_t end = answer.ends_with('\n') ? answer.size() - 1 : answer.size();
  if (end > 0 && answer[end - 1] == '.') answer.erase(end - 1, 1);
  return with_case(answer, LetterCase::lower);
}

}  // namespace

std::string strict_number(std::string_view text) {
  static const Regex kStrict("#### (\\-?[0-9\\.\\,]+)", "strict-match");
  std::string found(kNoNumber);
  bool is_first = true;
  kStrict.for_each_match(text, [&](size_t begin, size_t end) {
    if (is_first) found = text.substr(begin + kMark.size(), end - begin - kMark.size());
    is_first = false;
  });
  return found;
}

std::string last_number(std::string_view text) {
  static const Regex kFlexible("(-?[$0-9.,]{2,})|(-?[0-9]+)", "flexible-extract");
  std::string found(kNoNumber);
  kFlexible.for_each_match(text, [&](size_t begin, size_t end) { found = text.substr(begin, end - begin); });
  return found;
}

bool is_same_answer(std::string_view found, std::string_view right) {
  return plain_answer(found) == plain_answer(right);
}

}  // namespace pare::runtime
