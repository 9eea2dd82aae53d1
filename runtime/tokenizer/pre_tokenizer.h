// How a tokenizer file splits normalized text into the pieces that are encoded one by one.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "runtime/tokenizer/regex.h"

namespace pare {

// What becomes of the matches of a Split. On '-' with "the-final--countdown":
enum class SplitBehavior {
  removed,               // the final countdown
  isolated,              // the - final - - countdown
  merged_with_previous,  // the- final- - countdown
  merged_with_next,      // the -final - -countdown
  contiguous,            // the - final -- countdown
};

struct Split {
  std::variant<std::string, Regex> pattern;  // the string is not empty
  SplitBehavior behavior = SplitBehavior::isolated;
  bool invert = false;  // the matches are the text, what lies between them the delimiters
};

// ByteLevel's add_prefix_space: a space before a piece that does not start with one.
struct PrefixSpace {};

struct Metaspace {
  enum class Prepend { first, never, always };
  std::string replacement;  // one character that stands for ' ', U+2581 as a rule
  Prepend prepend = Prepend::always;
  bool split = true;  // before every replacement
};

// BERT's: white space separates, punctuation stands alone.
struct BertSplit {};

// A part of the text. at_start: nothing of the text stands before it.
struct Piece {
  std::string_view text;
  bool at_start = false;
};
using PieceSink = std::function<void(const Piece&)>;  // the piece's text is valid during the call only

class PreTokenizer {
 public:
  using Stage = std::variant<Split, PrefixSpace, Metaspace, BertSplit>;
  void add(Stage stage) { stages_.push_back(std::move(stage)); }

  // Calls the sink for the pieces from left to right; empty ones are left out. Every stage splits what the one before
  // it gave. Throws what Regex::for_each_match throws.
  void run(const Piece& text, const PieceSink& sink) const { run_from(0, text, sink); }

 private:
  void run_from(size_t stage, const Piece& piece, const PieceSink& sink) const;
  std::vector<Stage> stages_;
};

}  // namespace pare
