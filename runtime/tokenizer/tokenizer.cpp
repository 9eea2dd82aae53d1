#include "runtime/tokenizer/tokenizer.h"

#include <algorithm>
#include <stdexcept>

#include "runtime/files/gguf.h"
#include "runtime/system/atomic_file.h"
#include "runtime/system/input_files.h"
#include "runtime/system/interrupt.h"
#include "runtime/system/visible_text.h"
#include "runtime/text/unicode.h"
#include "runtime/tokenizer/gguf_vocabulary.h"
#include "runtime/tokenizer/tokenizer_folder.h"
#include "runtime/tokenizer/tokenizer_json.h"

namespace pare::runtime {
namespace {

struct Entry {
  std::string text;     // what the decoder gets
  bool exists = false;  // ids may have gaps
  bool special = false;
};

}  // namespace

struct Tokenizer::State {
  explicit State(TokenizerParts from) : parts(std::move(from)) {}

  std::filesystem::path opened_from;

  TokenizerParts parts;
  AddedTokenFinder raw_tokens;         // searched for in the text as it is
  AddedTokenFinder normalized_tokens;  // searched for in the normalized text
  std::vector<Entry> entries;          // by id

  void index(const std::string& where);
  const Entry& entry(int32_t id) const;  // throws std::invalid_argument for an id that does not exist
  void encode_text(std::string_view text, bool at_start, WordCache& cache, std::vector<int32_t>& ids) const;
};

// Computes what is derived from the parts, and checks the ids that they mention.
void Tokenizer::State::index(const std::string& where) {
  int32_t max_id = -1;
  for (const auto& [token, id] : parts.model->vocabulary()) max_id = std::max(max_id, id);
  for (const AddedToken& token : parts.added.tokens()) max_id = std::max(max_id, token.id);
  entries.resize(static_cast<size_t>(max_id) + 1);
  for (const auto& [token, id] : parts.model->vocabulary()) {
    Entry& entry = entries[static_cast<size_t>(id)];
    if (entry.exists) {
      throw std::runtime_error(where + ": '" + visible_line(entry.text) + "' and '" + visible_line(token) +
                               "' have the same id " + std::to_string(id));
    }
    entry = {token, true, false};
  }
  for (const AddedToken& token : parts.added.tokens()) {
    const std::string normalized =
        token.normalized || token.decodes_normalized ? parts.normalizer.apply(token.content) : "";
    const std::string& decoded = token.decodes_normalized ? normalized : token.content;
    AddedToken searched = token;
    searched.is_text = parts.split_special_tokens && token.special;
    (token.normalized ? normalized_tokens : raw_tokens).add(searched, token.normalized ? normalized : token.content);
    // Where ids of the vocabulary have gaps, a new token may take the id of another; it then hides that, as in the
    // package.
    // The package compares what a decoder gets with the special tokens.
    entries[static_cast<size_t>(token.id)] = {decoded, true, token.special && decoded == token.content};
  }
  for (const auto* ids : {&parts.post_processor.before, &parts.post_processor.after}) {
    for (const int32_t id : *ids) {
      if (id < 0 || id > max_id || !entries[static_cast<size_t>(id)].exists) {
        throw std::runtime_error(where + ": the post-processor adds the id " + std::to_string(id) +
                                 ", which is not in the vocabulary");
      }
    }
  }
}

const Entry& Tokenizer::State::entry(int32_t id) const {
  if (id < 0 || static_cast<size_t>(id) >= entries.size() || !entries[static_cast<size_t>(id)].exists) {
    throw std::invalid_argument("the token id " + std::to_string(id) + " is not in the vocabulary (ids 0 to " +
                                std::to_string(entries.size() - 1) + ")");
  }
  return entries[static_cast<size_t>(id)];
}

// Encodes text between raw added tokens.
void Tokenizer::State::encode_text(std::string_view text, bool at_start, WordCache& cache,
                                   std::vector<int32_t>& ids) const {
  const std::string normalized = parts.normalizer.empty() ? std::string() : parts.normalizer.apply(text);
  const std::string_view source = parts.normalizer.empty() ? text : std::string_view(normalized);
  const PieceSink encode_piece = [&](const Piece& piece) {
    throw_if_interrupted();
    parts.model->encode(piece.text, cache, ids);
  };
  normalized_tokens.split(
      source,
      [&](size_t begin, size_t end) {
        parts.pre_tokenizer.run({source.substr(begin, end - begin), at_start && begin == 0}, encode_piece);
      },
      [&](int32_t id) { ids.push_back(id); });
}

Tokenizer::Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;
Tokenizer::~Tokenizer() = default;

// Refuses a folder that has its tokenizer in another form.
void refuse_other_tokenizer(const std::filesystem::path& directory) {
  std::string found;
  for (const char* name : {"tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "vocab.txt", "vocab.json",
                           "tiktoken.model", "tekken.json"}) {
    if (found.empty() && is_there(directory / name)) found = name;
  }
  if (found.empty()) return;
  if (found == "vocab.json" && is_there(directory / "merges.txt")) found += " and merges.txt";
  throw std::runtime_error("'" + directory.string() + "' holds no tokenizer.json, but " + found +
                           ": make one of it with transformers: python3 -c \"import transformers as t; "
                           "t.AutoTokenizer.from_pretrained('" +
                           directory.string() + "').save_pretrained('" + directory.string() + "')\"");
}

Tokenizer Tokenizer::open(const std::filesystem::path& path) {
  if (path.extension() == ".gguf") {
    const GgufFile file = GgufFile::open(path);
    Tokenizer tokenizer = parse(make_tokenizer_json(read_gguf_vocabulary(file)), path.string());
    tokenizer.state_->parts.special_tokens = gguf_special_tokens(file);
    tokenizer.state_->opened_from = path;
    return tokenizer;
  }
  const auto file = std::filesystem::is_directory(path) ? path / "tokenizer.json" : path;
  if (!is_there(file)) {
    refuse_other_tokenizer(path);
    throw std::runtime_error(file.string() +
                             ": no such file; expected a tokenizer.json, a directory with one, or a .gguf");
  }
  Tokenizer tokenizer;
  tokenizer.state_ = std::make_unique<State>(read_tokenizer_folder(file));
  tokenizer.state_->index(file.string());
  tokenizer.state_->opened_from = path;
  return tokenizer;
}

const std::vector<std::pair<std::string, std::string>>& Tokenizer::special_tokens() const {
  return state_->parts.special_tokens;
}

const std::filesystem::path& Tokenizer::source() const {
  return state_->opened_from;
}

Tokenizer Tokenizer::parse(const std::string& tokenizer_json, const std::string& where) {
  Tokenizer tokenizer;
  tokenizer.state_ = std::make_unique<State>(parse_tokenizer_json(tokenizer_json, where));
  tokenizer.state_->index(where);
  return tokenizer;
}

std::vector<int32_t> Tokenizer::encode(std::string_view text, bool add_special_tokens) const {
  if (const auto offset = find_invalid_utf8(text)) {
    throw std::invalid_argument("the text is not UTF-8: byte " + std::to_string(*offset) + " of " +
                                std::to_string(text.size()) + " does not start a valid character; convert it to UTF-8");
  }
  const PostProcessor& around = state_->parts.post_processor;
  std::vector<int32_t> ids;
  if (add_special_tokens) ids = around.before;
  WordCache cache;
  state_->raw_tokens.split(
      text,
      [&](size_t begin, size_t end) { state_->encode_text(text.substr(begin, end - begin), begin == 0, cache, ids); },
      [&](int32_t id) { ids.push_back(id); });
  if (add_special_tokens) ids.insert(ids.end(), around.after.begin(), around.after.end());
  return ids;
}

std::vector<int32_t> Tokenizer::encode_truncated(std::string_view text, int64_t max_tokens) const {
  std::vector<int32_t> ids = encode(text, true);
  const auto& [before, after] = state_->parts.post_processor;
  if (static_cast<int64_t>(before.size() + after.size()) > max_tokens) {
    throw std::invalid_argument("a text in " + std::to_string(max_tokens) + " tokens: the tokenizer puts " +
                                std::to_string(before.size() + after.size()) + " around every text");
  }
  if (static_cast<int64_t>(ids.size()) <= max_tokens) return ids;
  ids.resize(static_cast<size_t>(max_tokens) - after.size());
  ids.insert(ids.end(), after.begin(), after.end());
  return ids;
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special_tokens) const {
  std::vector<std::string> tokens;
  tokens.reserve(ids.size());
  for (const int32_t id : ids) {
    const Entry& entry = state_->entry(id);
    if (!skip_special_tokens || !entry.special) tokens.push_back(entry.text);
  }
  return state_->parts.decoder.run(std::move(tokens));
}

int64_t Tokenizer::vocabulary_size() const {
  return static_cast<int64_t>(state_->entries.size());
}

std::optional<int32_t> Tokenizer::token_id(std::string_view token) const {
  const AddedToken* added = state_->parts.added.find(token);
  return added != nullptr ? std::optional(added->id) : state_->parts.model->id(token);
}

TextStream::TextStream(const Tokenizer& tokenizer, bool skip_special_tokens)
    : tokenizer_(tokenizer), skip_special_tokens_(skip_special_tokens), cuts_{0} {}

std::string TextStream::add(int32_t id) {
  const Entry& entry = tokenizer_.state_->entry(id);
  if (skip_special_tokens_ && entry.special) return "";
  tokens_.push_back(entry.text);
  const auto held_back = std::span<const std::string>(tokens_).subspan(cuts_.back());
  return tokenizer_.state_->parts.decoder.may_cut_behind(held_back) ? take() : "";
}

std::string TextStream::finish() {
  return tokens_.size() > cuts_.back() ? take() : "";
}

std::string TextStream::take() {
  const Decoder& decoder = tokenizer_.state_->parts.decoder;
  std::string text = decoder.run(tokens_).substr(context_bytes_);
  cuts_.push_back(tokens_.size());
  // The fewest last tokens with some text are context enough for the text that follows (Decoder::may_cut_behind).
  size_t kept = cuts_.size() - 1;
  std::string context;
  while (context.empty() && kept > 0) {
    --kept;
    context = decoder.run({tokens_.begin() + static_cast<std::ptrdiff_t>(cuts_[kept]), tokens_.end()});
  }
  context_bytes_ = context.size();
  const size_t num_dropped = cuts_[kept];
  tokens_.erase(tokens_.begin(), tokens_.begin() + static_cast<std::ptrdiff_t>(num_dropped));
  cuts_.erase(cuts_.begin(), cuts_.begin() + static_cast<std::ptrdiff_t>(kept));
  for (size_t& cut : cuts_) cut -= num_dropped;
  return text;
}

std::optional<int32_t> Tokenizer::bos_token() const {
  const auto& before = state_->parts.post_processor.before;
  return before.empty() ? std::nullopt : std::optional(before.front());
}

}  // namespace pare::runtime
