#include "runtime/format/name_pattern.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <stdexcept>

namespace pare::runtime {
namespace {

constexpr size_t kMaxCharacters = 1000;
constexpr size_t kMaxStates = 10'000;
constexpr int kMaxDepth = 50;

using CharacterSet = std::bitset<128>;

bool is_word(unsigned char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}

CharacterSet range(char first, char last) {
  CharacterSet set;
  for (size_t c = static_cast<unsigned char>(first); c <= static_cast<unsigned char>(last); ++c) set.set(c);
  return set;
}

// Returns the set of \d, \W and the like.
std::optional<CharacterSet> class_of(char letter) {
  CharacterSet set;
  const bool is_negated = letter == 'D' || letter == 'W' || letter == 'S';
  if (letter == 'd' || letter == 'D') {
    set = range('0', '9');
  } else if (letter == 'w' || letter == 'W') {
    for (size_t c = 0; c < 128; ++c) set.set(c, is_word(static_cast<unsigned char>(c)));
  } else if (letter == 's' || letter == 'S') {
    for (const char c : std::string_view(" \t\n\r\f\v\x1c\x1d\x1e\x1f")) set.set(static_cast<size_t>(c));
  } else {
    return std::nullopt;
  }
  return is_negated ? ~set : set;
}

}  // namespace

// A parser by recursive descent. A piece of the automaton is entered at `first`. The `next` of `last`, a state of its
// own, leads out of it. States are copied by parsing the same text again, so that a{3} needs no other code than aaa.
class NamePatternParser {
 public:
  explicit NamePatternParser(std::string_view text) : text_(text) {
    if (text.size() > kMaxCharacters) fail("more than " + std::to_string(kMaxCharacters) + " characters");
    for (const char c : text) {
      if (static_cast<unsigned char>(c) >= 128) fail("a character that is not ASCII");
    }
  }

  NamePattern parse() {
    const Piece all = alternatives(0);
    if (position_ < text_.size()) fail("a ')' without '('");
    result_.start_ = all.first;
    link(all.last, add({Kind::accept}));
    return std::move(result_);
  }

 private:
  using Kind = NamePattern::Kind;
  using State = NamePattern::State;
  struct Piece {
    int32_t first, last;
  };
  struct Repeat {
    int least = 1;
    int most = 1;  // -1: without limit
  };

  [[noreturn]] void fail(const std::string& what) const {
    throw std::invalid_argument("the regular expression '" + std::string(text_.substr(0, 200)) +
                                "' is not supported by this runtime: " + what);
  }
  bool at(char c) const { return position_ < text_.size() && text_[position_] == c; }
  bool take(char c) {
    if (!at(c)) return false;
    ++position_;
    return true;
  }
  char take_any(const char* expected) {
    if (position_ == text_.size()) fail(std::string("it ends where ") + expected + " is expected");
    return text_[position_++];
  }

  int32_t add(const State& state) {
    if (result_.states_.size() >= kMaxStates) fail("more than " + std::to_string(kMaxStates) + " states");
    result_.states_.push_back(state);
    return static_cast<int32_t>(result_.states_.size()) - 1;
  }
  void link(int32_t from, int32_t to) { result_.states_[static_cast<size_t>(from)].next = to; }
  // Adds a state that passes on without a character: a split with one branch.
  int32_t add_pass() { return add({Kind::split}); }

  Piece characters(const CharacterSet& set) {
    result_.sets_.push_back(set);
    State state{Kind::characters};
    state.set_index = static_cast<int32_t>(result_.sets_.size()) - 1;
    const int32_t index = add(state);
    return {index, index};
  }

  Piece alternatives(int depth) {
    if (depth > kMaxDepth) fail("groups nested too deeply");
    Piece all = sequence(depth);
    while (take('|')) {
      const Piece other = sequence(depth);
      State split{Kind::split};
      split.next = all.first;
      split.other = other.first;
      const int32_t first = add(split), last = add_pass();
      link(all.last, last);
      link(other.last, last);
      all = {first, last};
    }
    return all;
  }

  Piece sequence(int depth) {
    const int32_t begin = add_pass();
    Piece all{begin, begin};
    while (position_ < text_.size() && !at('|') && !at(')')) {
      const Piece item = repeated(depth);
      link(all.last, item.first);
      all.last = item.last;
    }
    return all;
  }

  Piece repeated(int depth) {
    const size_t begin = position_;
    Piece item = atom(depth);
    const size_t end_of_atom = position_;
    const std::optional<Repeat> repeat = quantifier();
    if (!repeat) return item;
    const size_t end = position_;
    const auto again = [&] {
      position_ = begin;
      const Piece copy = atom(depth);
      if (position_ != end_of_atom) fail("a broken quantifier");
      return copy;
    };
    const int32_t first = add_pass();
    Piece all{first, first};
    const auto append = [&](const Piece& piece) {
      link(all.last, piece.first);
      all.last = piece.last;
    };
    for (int i = 0; i < repeat->least; ++i) append(i == 0 ? item : again());
    bool is_used = repeat->least > 0;
    const auto next_copy = [&] {
      const Piece piece = is_used ? again() : item;
      is_used = true;
      return piece;
    };
    if (repeat->most < 0) {
      const Piece loop = next_copy();
      State split{Kind::split};
      split.other = loop.first;
      const int32_t choice = add(split);
      link(loop.last, choice);
      append({choice, choice});
    }
    for (int i = repeat->least; i < repeat->most; ++i) {
      const Piece piece = next_copy();
      State split{Kind::split};
      split.other = piece.first;
      const int32_t choice = add(split), last = add_pass();
      link(choice, last);
      link(piece.last, last);
      append({choice, last});
    }
    position_ = end;
    return all;
  }

  std::optional<Repeat> quantifier() {
    std::optional<Repeat> repeat;
    if (take('*')) {
      repeat = Repeat{0, -1};
    } else if (take('+')) {
      repeat = Repeat{1, -1};
    } else if (take('?')) {
      repeat = Repeat{0, 1};
    } else if (at('{')) {
      repeat = counted();
    }
    if (!repeat) return repeat;
    take('?');  // lazy
    if (at('*') || at('+') || at('?') || at('{')) fail("a quantifier of a quantifier");
    return repeat;
  }

  Repeat counted() {
    take('{');
    Repeat repeat;
    repeat.least = number();
    repeat.most = repeat.least;
    if (take(',')) repeat.most = at('}') ? -1 : number();
    if (!take('}')) fail("expected '}' after the numbers of a quantifier");
    if (repeat.most >= 0 && repeat.most < repeat.least) fail("a quantifier whose second number is below its first");
    return repeat;
  }

  int number() {
    int value = 0;
    bool has_digit = false;
    while (position_ < text_.size() && text_[position_] >= '0' && text_[position_] <= '9') {
      value = 10 * value + (text_[position_++] - '0');
      has_digit = true;
      if (value > 1000) fail("a quantifier of more than 1000");
    }
    if (!has_digit) fail("expected a number in the quantifier");
    return value;
  }

  Piece atom(int depth) {
    const char c = take_any("a character");
    switch (c) {
      case '(': {
        if (take('?') && !take(':')) fail("a group (?...) other than (?:...)");
        const Piece group = alternatives(depth + 1);
        if (!take(')')) fail("a '(' without ')'");
        return group;
      }
      case '[':
        return characters(bracket());
      case '.':
        return characters(~range('\n', '\n'));
      case '^':
        return assertion(Kind::begin);
      case '$':
        return assertion(Kind::end);
      case '\\':
        if (take('b')) return assertion(Kind::boundary);
        if (take('B')) return assertion(Kind::no_boundary);
        return characters(escaped());
      case '*':
      case '+':
      case '?':
      case '{':
        fail(std::string("a '") + c + "' with nothing before it");
      default:
        return characters(range(c, c));
    }
  }

  Piece assertion(Kind kind) {
    const int32_t index = add({kind});
    return {index, index};
  }

  // Parses what follows a backslash: a class, a control character, or a character that is not a letter or digit.
  CharacterSet escaped() {
    const char c = take_any("an escaped character");
    if (const std::optional<CharacterSet> set = class_of(c)) return *set;
    const std::string_view letters = "tnrfv", values = "\t\n\r\f\v";
    if (const size_t index = letters.find(c); index != std::string_view::npos)
      return range(values[index], values[index]);
    if (c != '_' && is_word(static_cast<unsigned char>(c))) fail(std::string("the escape \\") + c);
    return range(c, c);
  }

  CharacterSet bracket() {
    const bool is_negated = take('^');
    CharacterSet set;
    bool is_first = true;
    while (is_first || !at(']')) {
      is_first = false;
      const CharacterSet low = bracket_item();
      if (at('-') && position_ + 1 < text_.size() && text_[position_ + 1] != ']') {
        take('-');
        const CharacterSet high = bracket_item();
        if (low.count() != 1 || high.count() != 1) fail("a range between character classes");
        const char first = only_character(low), last = only_character(high);
        if (first > last) fail("a range whose end is below its start");
        set |= range(first, last);
      } else {
        set |= low;
      }
    }
    take(']');
    return is_negated ? ~set : set;
  }

  CharacterSet bracket_item() {
    const char c = take_any("']'");
    if (c == '\\') return escaped();
    if (c == '[') fail("a '[' inside [...]; write \\[");
    return range(c, c);
  }

  static char only_character(const CharacterSet& set) {
    size_t c = 0;
    while (!set.test(c)) ++c;
    return static_cast<char>(c);
  }

  std::string_view text_;
  size_t position_ = 0;
  NamePattern result_;
};

NamePattern NamePattern::parse(std::string_view pattern) {
  return NamePatternParser(pattern).parse();
}

// Follows the states that need no character from `state`. Notes the others in `active`, each once per step (marked
// states are done). Returns true if the accepting state is reached. The stack is on the heap, since chains may be long.
bool NamePattern::add(int32_t state, std::string_view name, size_t position, std::vector<int32_t>& active,
                      std::vector<uint32_t>& mark, uint32_t step, int64_t& num_steps) const {
  const auto word_at = [&](size_t i) { return i < name.size() && is_word(static_cast<unsigned char>(name[i])); };
  const bool is_boundary = word_at(position) != (position > 0 && word_at(position - 1));
  std::vector<int32_t> pending = {state};
  while (!pending.empty()) {
    const int32_t index = pending.back();
    pending.pop_back();
    ++num_steps;
    if (index < 0 || mark[static_cast<size_t>(index)] == step) continue;
    mark[static_cast<size_t>(index)] = step;
    const State& found = states_[static_cast<size_t>(index)];
    switch (found.kind) {
      case Kind::accept:
        return true;
      case Kind::characters:
        active.push_back(index);
        break;
      case Kind::split:
        pending.push_back(found.next);
        pending.push_back(found.other);
        break;
      case Kind::begin:
        if (position == 0) pending.push_back(found.next);
        break;
      case Kind::end:
        if (position == name.size()) pending.push_back(found.next);
        break;
      case Kind::boundary:
        if (is_boundary) pending.push_back(found.next);
        break;
      case Kind::no_boundary:
        if (!is_boundary) pending.push_back(found.next);
        break;
    }
  }
  return false;
}

bool NamePattern::matches(std::string_view name, int64_t& num_steps) const {
  num_steps += static_cast<int64_t>(states_.size() / 16);  // for clearing the marks, at least 16 at a time
  std::vector<uint32_t> mark(states_.size(), 0);
  std::vector<int32_t> active, next;
  if (add(start_, name, 0, active, mark, 1, num_steps)) return true;
  for (size_t position = 0; position < name.size() && !active.empty(); ++position) {
    const auto c = static_cast<unsigned char>(name[position]);
    next.clear();
    num_steps += static_cast<int64_t>(active.size());
    const auto step = static_cast<uint32_t>(position + 2);
    for (const int32_t index : active) {
      const State& state = states_[static_cast<size_t>(index)];
      if (c >= 128 || !sets_[static_cast<size_t>(state.set_index)].test(c)) continue;
      if (add(state.next, name, position + 1, next, mark, step, num_steps)) return true;
    }
    active.swap(next);
  }
  return false;
}

bool is_in_modules(std::string_view module, const std::set<std::string, std::less<>>& names) {
  for (size_t dot = module.find('.'); dot != std::string_view::npos; dot = module.find('.', dot + 1)) {
    if (names.contains(module.substr(dot + 1))) return true;
  }
  return names.contains(module);
}

}  // namespace pare::runtime
