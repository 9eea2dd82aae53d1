#include "runtime/evaluate/token_source.h"

#include <algorithm>
#include <array>
#include <functional>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "runtime/system/atomic_file.h"
#include "runtime/system/input_files.h"
#include "runtime/system/interrupt.h"
#include "runtime/system/json_text.h"
#include "runtime/text/unicode.h"

namespace pare::runtime {
namespace {

constexpr std::string_view kBetweenDocuments = "\n\n";

// Returns the text of one line of a .jsonl file.
std::string read_document(std::string_view line, const std::string& where) {
  const nlohmann::json document = parse_json(line, where, Nul::allowed);
  if (!document.is_object()) throw std::runtime_error(where + ": expected an object with the field 'text'");
  const auto text = document.find("text");
  if (text == document.end() || !text->is_string()) {
    throw std::runtime_error(where + ": expected a string in the field 'text' (or a conversation in 'messages' in " +
                             "every line), found " +
                             (text == document.end() ? std::string("no such field") : text->type_name()));
  }
  return text->get<std::string>();
}

std::string join_documents(const std::vector<std::string>& documents) {
  std::string text;
  for (size_t i = 0; i < documents.size(); ++i) (text += i > 0 ? kBetweenDocuments : "") += documents[i];
  return text;
}

std::vector<std::string> read_lines(std::string_view lines, const std::string& file) {
  std::vector<std::string> documents;
  for_each_line(lines, file, [&](std::string_view line, const std::string& where) {
    documents.push_back(read_document(line, where));
  });
  return documents;
}

// Returns the name for messages.
std::string name_of(const std::filesystem::path& text) {
  return is_standard_input(text) ? "standard input" : text.string();
}

std::string read_source(const std::filesystem::path& text) {
  return read_file_or_pipe(is_standard_input(text) ? std::filesystem::path("/dev/stdin") : text);
}

void check_text(const std::string& text, const std::filesystem::path& path) {
  if (text.empty()) throw std::runtime_error(name_of(path) + ": the text is empty");
  if (const auto offset = find_invalid_utf8(text)) {
    throw std::runtime_error(name_of(path) + ": not UTF-8: byte " + std::to_string(*offset) +
                             " does not start a valid character; convert the file to UTF-8");
  }
}

// Returns true for a file of documents (.jsonl), false for a text. Refuses names that say that the file is something
// else.
bool has_documents(const std::filesystem::path& path) {
  refuse_folder(path, "a text (.txt or .jsonl)", {".txt", ".jsonl"});
  const std::string extension = path.extension().string();
  if (extension == ".npy") {
    throw std::invalid_argument(name_of(path) + ": expected a text, found token windows (.npy): give the text itself");
  }
  if (extension == ".json") {
    throw std::invalid_argument(
        name_of(path) +
        ": expected a text or a .jsonl (on each line a JSON object with the field 'text'), found a "
        ".json: take the texts out of it first");
  }
  return extension == ".jsonl";
}

TokenWindows first_windows(TokenWindows windows, int64_t num_windows) {
  if (num_windows > 0 && num_windows < windows.num_windows) {
    windows.num_windows = num_windows;
    windows.ids_NT.resize(static_cast<size_t>(num_windows * windows.num_tokens));
  }
  return windows;
}

void check_ids(const TokenWindows& windows, int64_t vocabulary_size, const std::filesystem::path& path) {
  const auto bad = std::find_if(windows.ids_NT.begin(), windows.ids_NT.end(),
                                [&](int32_t id) { return id < 0 || id >= vocabulary_size; });
  if (bad == windows.ids_NT.end()) return;
  const int64_t index = bad - windows.ids_NT.begin();
  throw std::invalid_argument(name_of(path) + ": the token id " + std::to_string(*bad) + " (window " +
                              std::to_string(index / windows.num_tokens) + ", position " +
                              std::to_string(index % windows.num_tokens) + ") is outside the model's vocabulary of " +
                              std::to_string(vocabulary_size) + "; was it made with another tokenizer?");
}

}  // namespace

void check_ids_of_texts(std::span<const std::vector<int32_t>> texts, int64_t vocabulary_size,
                        const std::filesystem::path& path) {
  for (const std::vector<int32_t>& ids : texts) {
    for (const int32_t id : ids) {
      if (id >= 0 && id < vocabulary_size) continue;
      throw std::invalid_argument(name_of(path) + ": the model's tokenizer makes the token id " + std::to_string(id) +
                                  " of it, outside the model's vocabulary of " + std::to_string(vocabulary_size) +
                                  ": the tokenizer is another model's, or has tokens that were added to it alone");
    }
  }
}

bool holds_token_windows(const std::filesystem::path& text) {
  return text.extension() == ".npy";
}

bool is_standard_input(const std::filesystem::path& path) {
  constexpr std::array<std::string_view, 4> kNames = {"-", "/dev/stdin", "/dev/fd/0", "/proc/self/fd/0"};
  return std::find(kNames.begin(), kNames.end(), path.string()) != kNames.end();
}

std::vector<std::string> read_texts(const std::filesystem::path& path) {
  const bool is_jsonl = has_documents(path);
  const std::string file = read_source(path);
  check_text(file, path);
  std::vector<std::string> texts;
  for_each_line(file, name_of(path), [&](std::string_view line, const std::string& where) {
    texts.push_back(is_jsonl ? read_document(line, where)
                             : std::string(line.ends_with('\r') ? line.substr(0, line.size() - 1) : line));
    if (texts.back().empty()) texts.pop_back();
  });
  if (texts.empty()) throw std::runtime_error(name_of(path) + ": the text is empty");
  return texts;
}

void for_each_line(std::string_view lines, const std::string& file,
                   const std::function<void(std::string_view line, const std::string& where)>& visit) {
  for (size_t begin = 0, number = 1; begin < lines.size(); ++number) {
    const size_t end = std::min(lines.find('\n', begin), lines.size());
    const std::string_view line = lines.substr(begin, end - begin);
    begin = end + 1;
    if (line.find_first_not_of(" \t\r") != std::string_view::npos) visit(line, file + ":" + std::to_string(number));
  }
}

std::optional<SourceTexts> read_conversations(std::string_view lines, const std::string& file,
                                              const Tokenizer* tokenizer, ChatPart part) {
  const std::string_view first = lines.substr(0, lines.find('\n', lines.find_first_not_of(" \t\r\n")));
  bool are_chats = false;
  for_each_line(first, file,
                [&](std::string_view line, const std::string& where) { are_chats = holds_chat(line, where); });
  if (!are_chats) return std::nullopt;
  if (tokenizer == nullptr) {
    throw std::invalid_argument(file +
                                ": conversations need the model's tokenizer and chat template, and there is none");
  }
  const ChatTemplate chat_template = ChatTemplate::open(*tokenizer);
  SourceTexts source{.texts = {}, .are_chats = true};
  for_each_line(lines, file, [&](std::string_view line, const std::string& where) {
    throw_if_interrupted();
    source.texts.push_back(chat_template.render(parse_chat(line, where, part)));
  });
  return source;
}

SourceTexts read_source_texts(const std::filesystem::path& path, const Tokenizer& tokenizer) {
  const bool is_jsonl = has_documents(path);
  std::string file = read_source(path);
  check_text(file, path);
  if (!is_jsonl) return {.texts = {std::move(file)}};
  if (auto chats = read_conversations(file, path.string(), &tokenizer, ChatPart::whole)) return *chats;
  SourceTexts source{.texts = read_lines(file, path.string())};
  if (std::ranges::all_of(source.texts, &std::string::empty)) {
    throw std::runtime_error(name_of(path) + ": the text is empty");
  }
  return source;
}

std::vector<int32_t> encode_stream(const SourceTexts& source, const Tokenizer& tokenizer, bool add_special_tokens) {
  if (!source.are_chats) return tokenizer.encode(join_documents(source.texts), add_special_tokens);
  std::vector<int32_t> stream;
  for (const std::string& text : source.texts) {
    throw_if_interrupted();
    const std::vector<int32_t> ids = tokenizer.encode(text, /*add_special_tokens=*/false);
    stream.insert(stream.end(), ids.begin(), ids.end());
  }
  return stream;
}

TokenWindows read_token_windows(const std::filesystem::path& path, const Tokenizer* tokenizer, int64_t num_tokens,
                                int64_t num_windows, bool add_special_tokens, int64_t vocabulary_size) {
  TokenWindows windows;
  if (path.extension() == ".npy") {
    windows = first_windows(read_npy(path), num_windows);
  } else {
    if (tokenizer == nullptr) {
      throw std::invalid_argument(name_of(path) +
                                  ": a text needs the model's tokenizer, and there is none; give token " +
                                  "windows as .npy instead");
    }
    if (num_tokens <= 0) {
      throw std::invalid_argument("windows of " + std::to_string(num_tokens) + " tokens; expected at least 1");
    }
    windows.ids_NT = encode_stream(read_source_texts(path, *tokenizer), *tokenizer, add_special_tokens);
    windows.num_tokens = num_tokens;
    const auto num_ids = static_cast<int64_t>(windows.ids_NT.size());
    windows.num_windows = num_ids / num_tokens;
    if (windows.num_windows == 0) {
      throw std::invalid_argument(name_of(path) + ": the text has " + std::to_string(num_ids) +
                                  " tokens, less than one window of " + std::to_string(num_tokens) +
                                  "; give a longer text or a shorter window");
    }
    windows.ids_NT.resize(static_cast<size_t>(windows.num_windows * num_tokens));
    windows = first_windows(std::move(windows), num_windows);
  }
  check_ids(windows, vocabulary_size, path);
  return windows;
}

}  // namespace pare::runtime
