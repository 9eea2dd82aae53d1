#include "runtime/tokenizer/pre_tokenizer.h"

#include <optional>
#include <stdexcept>

#include "runtime/text/unicode.h"
#include "runtime/tokenizer/bert.h"
#include "runtime/tokenizer/bpe.h"

namespace pare::runtime {
namespace {

// Applies a SplitBehavior to the spans of a text, which arrive from left to right. At most one span is held back until
// it is known whether the next one joins it.
class SpanJoiner {
 public:
  SpanJoiner(const Piece& piece, SplitBehavior behavior, const PieceSink& sink)
      : piece_(piece), behavior_(behavior), sink_(sink) {}

  void add(size_t begin, size_t end, bool is_delimiter) {
    switch (behavior_) {
      case SplitBehavior::removed:
        if (!is_delimiter) emit(begin, end);
        break;
      case SplitBehavior::isolated:
        emit(begin, end);
        break;
      case SplitBehavior::merged_with_previous:
        hold(begin, end, is_delimiter && !previous_is_delimiter_);
        break;
      case SplitBehavior::merged_with_next:
        hold(begin, end, !is_delimiter && previous_is_delimiter_);
        break;
      case SplitBehavior::contiguous:
        hold(begin, end, is_delimiter == previous_is_delimiter_);
        break;
    }
    previous_is_delimiter_ = is_delimiter;
  }

  void finish() {
    if (held_) emit(held_->first, held_->second);
    held_.reset();
  }

 private:
  void hold(size_t begin, size_t end, bool joins) {
    if (joins && held_) {
      held_->second = end;
      return;
    }
    finish();
    held_ = {begin, end};
  }

  void emit(size_t begin, size_t end) {
    if (end > begin) sink_({piece_.text.substr(begin, end - begin), piece_.at_start && begin == 0});
  }

  const Piece& piece_;
  SplitBehavior behavior_;
  const PieceSink& sink_;
  std::optional<std::pair<size_t, size_t>> held_;
  bool previous_is_delimiter_ = false;
};

void split(const Split& stage, const Piece& piece, const PieceSink& sink) {
  SpanJoiner joiner(piece, stage.behavior, sink);
  size_t covered = 0;
  const auto match = [&](size_t begin, size_t end) {
    if (begin != covered) joiner.add(covered, begin, stage.invert);
    joiner.add(begin, end, !stage.invert);
    covered = end;
  };
  if (const auto* regex = std::get_if<Regex>(&stage.pattern)) {
    regex->for_each_match(piece.text, match);
  } else {
    const std::string& literal = std::get<std::string>(stage.pattern);
    for (size_t at = piece.text.find(literal); at != std::string_view::npos;
         at = piece.text.find(literal, at + literal.size())) {
      match(at, at + literal.size());
    }
  }
  if (covered != piece.text.size()) joiner.add(covered, piece.text.size(), stage.invert);
  joiner.finish();
}

void split_punctuation(const PunctuationSplit& stage, const Piece& piece, const PieceSink& sink) {
  SpanJoiner joiner(piece, stage.behavior, sink);
  size_t covered = 0;
  for (size_t at = 0; at < piece.text.size(); at += utf8_length(piece.text[at])) {
    if (!is_punctuation(utf8_decode(piece.text, at))) continue;
    const size_t end = at + utf8_length(piece.text[at]);
    if (at != covered) joiner.add(covered, at, false);
    joiner.add(at, end, true);
    covered = end;
  }
  if (covered != piece.text.size()) joiner.add(covered, piece.text.size(), false);
  joiner.finish();
}

void add_prefix_space(const Piece& piece, const PieceSink& sink) {
  if (piece.text.starts_with(' ')) {
    sink(piece);
  } else {
    std::string text(1, ' ');
    text += piece.text;
    sink({text, piece.at_start});
  }
}

void metaspace(const Metaspace& stage, const Piece& piece, const PieceSink& sink) {
  std::string text;
  text.reserve(piece.text.size() + piece.text.size() / 2);
  for (const char c : piece.text) {
    if (c == ' ') {
      text += stage.replacement;
    } else {
      text += c;
    }
  }
  const bool prepends =
      stage.prepend == Metaspace::Prepend::always || (stage.prepend == Metaspace::Prepend::first && piece.at_start);
  if (prepends && !text.starts_with(stage.replacement)) text.insert(0, stage.replacement);
  const Piece whole = {text, piece.at_start};
  if (stage.split) {
    split({stage.replacement, SplitBehavior::merged_with_next, false}, whole, sink);
  } else {
    sink(whole);
  }
}

}  // namespace

void PreTokenizer::run_from(size_t stage, const Piece& piece, const PieceSink& sink) const {
  if (piece.text.empty()) return;
  if (stage == stages_.size()) {
    sink(piece);
    return;
  }
  const PieceSink next = [&](const Piece& part) { run_from(stage + 1, part, sink); };
  if (const auto* splits = std::get_if<Split>(&stages_[stage])) {
    split(*splits, piece, next);
  } else if (const auto* spaces = std::get_if<Metaspace>(&stages_[stage])) {
    metaspace(*spaces, piece, next);
  } else if (std::holds_alternative<BertSplit>(stages_[stage])) {
    split_bert(piece.text, [&](size_t begin, size_t end) {
      next({piece.text.substr(begin, end - begin), piece.at_start && begin == 0});
    });
  } else if (const auto* punctuation = std::get_if<PunctuationSplit>(&stages_[stage])) {
    split_punctuation(*punctuation, piece, next);
  } else if (std::holds_alternative<BytesToCharacters>(stages_[stage])) {
    const std::string characters = bytes_to_characters(piece.text);
    next({characters, piece.at_start});
  } else if (std::holds_alternative<CharactersToBytes>(stages_[stage])) {
    const std::optional<std::string> bytes = characters_to_bytes(piece.text);
    if (!bytes) {
      throw std::runtime_error("the tokenizer's pre-tokenizer puts characters after ByteLevel that stand for no bytes");
    }
    next({*bytes, piece.at_start});
  } else {
    add_prefix_space(piece, next);
  }
}

}  // namespace pare::runtime
