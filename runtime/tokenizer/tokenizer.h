// Text to token ids and back, from a Hugging Face tokenizer.json: byte-level BPE (GPT-2, Llama 3, Qwen, NeoX, SmolLM2),
// SentencePiece-style BPE with byte fallback (Llama 2, Mistral, Gemma), and WordPiece (BERT).
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace pare {

class Tokenizer {
 public:
  // `path` is a tokenizer.json or a directory holding one (with tokenizer_config.json beside it when present), or a
  // vocabulary-only or full .gguf. Throws std::runtime_error / std::invalid_argument: an unknown model, normalizer,
  // pre-tokenizer or decoder is refused by name.
  static Tokenizer open(const std::filesystem::path& path);
  static Tokenizer parse(const std::string& tokenizer_json, const std::string& where);
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;
  ~Tokenizer();

  // UTF-8 text to ids. add_special_tokens applies the file's post-processor (a leading BOS, say). Added tokens found in
  // the text are always recognized, as the `tokenizers` package does. Invalid UTF-8 throws std::invalid_argument with
  // the byte offset.
  std::vector<int32_t> encode(std::string_view text, bool add_special_tokens) const;
  // With special tokens, in at most max_tokens ids: what does not fit is cut off the end of the text, not off what
  // stands around it. Throws std::invalid_argument when the special tokens alone do not fit.
  std::vector<int32_t> encode_truncated(std::string_view text, int64_t max_tokens) const;
  // Ids to UTF-8 text. Throws std::invalid_argument for an id outside the vocabulary.
  std::string decode(std::span<const int32_t> ids, bool skip_special_tokens) const;

  int64_t vocabulary_size() const;  // added tokens included
  std::optional<int32_t> token_id(std::string_view token) const;
  std::optional<int32_t> bos_token() const;  // what the post-processor puts first, if anything

 private:
  friend class TextStream;
  Tokenizer();
  struct State;
  std::unique_ptr<State> state_;
};

// Ids to text as they come. What add() and finish() have returned, joined, is what Tokenizer::decode gives for all ids.
// Text is held back only while a later token could change it: inside a character, or in a run of byte tokens, which
// spell U+FFFD each when the whole run is no UTF-8. Only the last few tokens are decoded again for each new one.
class TextStream {
 public:
  // The tokenizer must outlive it.
  TextStream(const Tokenizer& tokenizer, bool skip_special_tokens);

  // The text that is certain now and was not before. Throws std::invalid_argument for an id outside the vocabulary.
  std::string add(int32_t id);
  // What was held back; nothing is added afterwards.
  std::string finish();

 private:
  std::string take();

  const Tokenizer& tokenizer_;
  bool skip_special_tokens_;
  // Tokens whose text was returned, kept because what follows is not decoded as a text's beginning is; then those that
  // are held back.
  std::vector<std::string> tokens_;
  std::vector<size_t> cuts_;  // where tokens_ was cut; the last is the first token held back
  size_t context_bytes_ = 0;  // of the text of the tokens before that
};

}  // namespace pare
