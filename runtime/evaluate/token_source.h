// The sources of token windows: a text (UTF-8, whatever the file is called), .jsonl (field "text", documents joined by
// a blank line; or field "messages", conversations) or .npy (used as it is). "-" is standard input.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/chat/chat_template.h"
#include "runtime/files/npy.h"
#include "runtime/tokenizer/tokenizer.h"

namespace pare::runtime {

// True if the user means standard input: "-", or one of the names that the system has for it.
bool is_standard_input(const std::filesystem::path& path);

// Throws std::invalid_argument if texts hold an id outside the vocabulary; `path` is where they come from.
void check_ids_of_texts(std::span<const std::vector<int32_t>> texts, int64_t vocabulary_size,
                        const std::filesystem::path& path);

// True for a file that holds token windows (.npy), so that no tokenizer is needed.
bool holds_token_windows(const std::filesystem::path& text);

// Returns the texts of a file one by one: the lines of a text, or the documents of a .jsonl. Empty ones are left out.
// Throws std::runtime_error (path; for JSON the line), also for an empty text. Throws std::invalid_argument for the
// .npy and .json that other options take.
std::vector<std::string> read_texts(const std::filesystem::path& path);

// The texts of a file that a tokenizer is to encode one by one.
struct SourceTexts {
  std::vector<std::string> texts;
  bool are_chats = false;  // conversations: they hold their special tokens, and none are to be added
};
// Returns the documents of a file: a whole text, or the lines of a .jsonl (field "text"). Where the first line holds a
// conversation (field "messages", or a list as "prompt"), all lines must, and each becomes what the chat template
// beside the tokenizer writes. Throws what read_texts, ChatTemplate::open, parse_chat and ChatTemplate::render throw.
SourceTexts read_source_texts(const std::filesystem::path& path, const Tokenizer& tokenizer);
// Visits the lines of a .jsonl, except those of white space alone. `where` is the file's name and the line's number.
void for_each_line(std::string_view lines, const std::string& file,
                   const std::function<void(std::string_view line, const std::string& where)>& visit);
// Returns what the chat template beside the tokenizer makes of a .jsonl's conversations; none if the first line is no
// conversation. Throws what read_source_texts throws, and std::invalid_argument for a conversation without a tokenizer.
std::optional<SourceTexts> read_conversations(std::string_view lines, const std::string& file,
                                              const Tokenizer* tokenizer, ChatPart part);
// Encodes a whole file as one stream: documents joined by a blank line, conversations one after the other.
std::vector<int32_t> encode_stream(const SourceTexts& source, const Tokenizer& tokenizer, bool add_special_tokens);

// Tokenizes the whole text once and cuts it into non-overlapping windows; the incomplete tail is dropped. num_windows
// <= 0: all. add_special_tokens puts the tokenizer's BOS once at the start of the stream. Throws std::invalid_argument
// if the text gives less than one window (how many tokens it has, how many one window needs). A .npy must hold [N, T]
// windows; its T overrides num_tokens. Ids must lie in [0, vocabulary_size).
TokenWindows read_token_windows(const std::filesystem::path& path, const Tokenizer* tokenizer, int64_t num_tokens,
                                int64_t num_windows, bool add_special_tokens, int64_t vocabulary_size);

}  // namespace pare::runtime
