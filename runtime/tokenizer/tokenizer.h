// Converts text to token ids and back, from a Hugging Face tokenizer.json: byte-level BPE (GPT-2, Llama 3, Qwen, NeoX,
// SmolLM2), SentencePiece-style BPE with byte fallback (Llama 2, Mistral, Gemma), Unigram (T5, XLM-R), and WordPiece
// (BERT).
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace pare::runtime {

class Tokenizer {
 public:
  // `path` is a tokenizer.json, a directory with one, or a .gguf, with or without weights. Other files beside a
  // tokenizer.json change it (tokenizer_folder.h). Throws std::runtime_error / std::invalid_argument. An unknown
  // model, normalizer, pre-tokenizer or decoder is refused by name.
  static Tokenizer open(const std::filesystem::path& path);
  static Tokenizer parse(const std::string& tokenizer_json, const std::string& where);
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // Converts UTF-8 text to ids. add_special_tokens applies the file's post-processor (a leading BOS, say). Added tokens
  // in the text are always recognized, as in the `tokenizers` package. Throws std::invalid_argument, with the byte
  // offset, for invalid UTF-8.
  std::vector<int32_t> encode(std::string_view text, bool add_special_tokens) const;
  // Encodes with special tokens, in at most max_tokens ids. Text that does not fit is cut off at its end; the special
  // tokens around it stay. Throws std::invalid_argument if the special tokens alone do not fit.
  std::vector<int32_t> encode_truncated(std::string_view text, int64_t max_tokens) const;
  // Converts ids to UTF-8 text. Throws std::invalid_argument for an id outside the vocabulary.
  std::string decode(std::span<const int32_t> ids, bool skip_special_tokens) const;

  int64_t vocabulary_size() const;  // added tokens included
  std::optional<int32_t> token_id(std::string_view token) const;
  std::optional<int32_t> bos_token() const;  // the id that the post-processor puts first, if any
  // The special tokens that have names, which templates of conversations call them by (bos_token, image_token): name,
  // content. None for a parsed one.
  const std::vector<std::pair<std::string, std::string>>& special_tokens() const;
  // Where it was opened: beside it the model's other files lie. Empty for a parsed one.
  const std::filesystem::path& source() const;

 private:
  friend class TextStream;
  Tokenizer();
  struct State;
  std::unique_ptr<State> state_;
};

// Converts ids to text as they come. The results of add() and finish(), joined, are what Tokenizer::decode gives for
// all ids. Text is held back only while a later token could change it: inside a character, or in a run of byte tokens.
// These spell U+FFFD each if the whole run is not UTF-8. Only the last few tokens are decoded again for each new one.
class TextStream {
 public:
  // The tokenizer must outlive it.
  TextStream(const Tokenizer& tokenizer, bool skip_special_tokens);

  // Returns the text that is certain now and was not before. Throws std::invalid_argument for an id outside the
  // vocabulary.
  std::string add(int32_t id);
  // Returns the text that was held back; nothing is added afterwards.
  std::string finish();

 private:
  std::string take();

  const Tokenizer& tokenizer_;
  bool skip_special_tokens_;
  // First come tokens whose text was returned; they are kept because later tokens are not decoded like the beginning of
  // a text. Those that are held back follow.
  std::vector<std::string> tokens_;
  std::vector<size_t> cuts_;  // where tokens_ was cut; the last is the first token held back
  size_t context_bytes_ = 0;  // text of the tokens before that
};

}  // namespace pare::runtime
