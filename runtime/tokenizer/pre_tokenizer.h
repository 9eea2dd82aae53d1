// Splits normalized text into the pieces that are encoded one by one, as a tokenizer file says.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "runtime/text/regex.h"

namespace pare::runtime {

// The fate of the matches of a Split. The results are those of '-' on "the-final--countdown":
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
  bool invert = false;  // true: the matches are the text, and what lies between them separates
};

// ByteLevel's add_prefix_space: a space before a piece that does not start with one.
struct PrefixSpace {};

struct Metaspace {
  enum class Prepend { first, never, always };
  std::string replacement;  // one character that stands for ' ', usually U+2581
  Prepend prepend = Prepend::always;
  bool split = true;  // true: split before every replacement
};

// Splits at the characters of punctuation.
struct PunctuationSplit {
  SplitBehavior behavior = SplitBehavior::isolated;
};

// ByteLevel's writing of bytes as characters (bpe.h), for what splits after it; and back, as the model wants them.
struct BytesToCharacters {};
struct CharactersToBytes {};

// BERT's split: white space separates, and each punctuation character is a piece.
struct BertSplit {};

// A part of the text. at_start is true if nothing of the text stands before it.
struct Piece {
  std::string_view text;
  bool at_start = false;
};
using PieceSink = std::function<void(const Piece&)>;  // the piece's text is valid during the call only

class PreTokenizer {
 public:
  using Stage =
      std::variant<Split, PrefixSpace, Metaspace, BertSplit, PunctuationSplit, BytesToCharacters, CharactersToBytes>;
  void add(Stage stage) { stages_.push_back(std::move(stage)); }
  bool empty() const { return stages_.empty(); }

  // Calls the sink for the pieces from left to right; empty ones are left out. Every stage splits the pieces of the one
  // before. Throws what Regex::for_each_match throws.
  void run(const Piece& text, const PieceSink& sink) const { run_from(0, text, sink); }

 private:
  void run_from(size_t stage, const Piece& piece, const PieceSink& sink) const;
  std::vector<Stage> stages_;
};

}  // namespace pare::runtime
