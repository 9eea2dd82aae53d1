// Committed vocabularies, unpacked, and what the `tokenizers` package says about texts.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <random>
#include <string>
#include <vector>

#include "runtime/system/atomic_file.h"
#include "runtime/tokenizer/gguf_vocabulary.h"
#include "runtime/tokenizer/tokenizer.h"
#include "tests/places.h"
#include "tests/temporary_folder.h"

namespace pare {
using namespace runtime;

inline std::filesystem::path tokenizer_golden(const std::string& name) {
  return std::filesystem::path(kSourceFolder) / "tests/golden/tokenizers" / name;
}

// Returns the file of tests/golden/tokenizers/NAME.gz, unpacked into the build folder once. Tests run side by side, so
// the file appears there by a rename.
inline std::filesystem::path unpacked(const std::string& name) {
  const auto folder = std::filesystem::path(kBuildFolder) / "tokenizers";
  const auto packed = tokenizer_golden(name + ".gz"), file = folder / name;
  if (std::filesystem::exists(file) &&
      std::filesystem::last_write_time(file) > std::filesystem::last_write_time(packed))
    return file;
  std::filesystem::create_directories(folder);
  const auto partial = folder / (name + "." + std::to_string(::getpid()));
  const std::string command = "gzip -dc '" + packed.string() + "' > '" + partial.string() + "'";
  if (std::system(command.c_str()) != 0) throw std::runtime_error("failed: " + command);
  std::filesystem::rename(partial, file);
  return file;
}

// Returns the vocabulary of tests/golden/tokenizers/NAME.vocabulary.json.gz.
inline GgufVocabulary golden_vocabulary(const std::string& name) {
  const auto file = nlohmann::json::parse(read_text_file(unpacked(name + ".vocabulary.json")));
  const auto list = [&]<typename T>(const char* key, std::vector<T>& values) {
    if (file.contains(key)) values = file[key].get<std::vector<T>>();
  };
  GgufVocabulary vocabulary;
  vocabulary.where = name;
  vocabulary.model = file["model"];
  vocabulary.pre = file.value("pre", "");
  list("tokens", vocabulary.tokens);
  list("token_type", vocabulary.token_types);
  list("merges", vocabulary.merges);
  list("scores", vocabulary.scores);
  vocabulary.bos_token = file["bos_token_id"];
  vocabulary.eos_token = file["eos_token_id"];
  vocabulary.unknown_token = file["unknown_token_id"];
  vocabulary.add_bos = file["add_bos_token"];
  vocabulary.add_space_prefix = file["add_space_prefix"];
  return vocabulary;
}

// Returns the tokenizer.json of a family, which is committed or made from the committed vocabulary.
inline std::filesystem::path family_file(const std::string& name) {
  if (std::filesystem::exists(tokenizer_golden(name + ".json.gz"))) return unpacked(name + ".json");
  const auto file = std::filesystem::path(kBuildFolder) / "tokenizers" / (name + ".made.json");
  write_file_atomically(file, make_tokenizer_json(golden_vocabulary(name)));
  return file;
}

// Runs tokenizers_oracle.py. `mode` and `file` (may be empty) are its first arguments.
inline nlohmann::json ask_oracle(const std::string& mode, const std::filesystem::path& file,
                                 const std::vector<std::string>& texts) {
  const char* python = std::getenv("PARE_PYTHON");
  if (python == nullptr) {
    throw std::runtime_error(
        "PARE_PYTHON must name a Python with the packages of tests/requirements.txt: PARE_PYTHON=.../bin/python ctest");
  }
  const TemporaryFolder folder;
  write_file_atomically(folder.path() / "texts.json", nlohmann::json(texts).dump());
  std::string command =
      "'" + std::string(python) + "' '" + kSourceFolder + "/tests/runtime/tokenizer/tokenizers_oracle.py' " + mode;
  if (!file.empty()) command += " '" + file.string() + "'";
  command += " '" + (folder.path() / "texts.json").string() + "' '" + (folder.path() / "out.json").string() + "'";
  if (std::system(command.c_str()) != 0) throw std::runtime_error("failed: " + command);
  return nlohmann::json::parse(read_text_file(folder.path() / "out.json"));
}

// Expects the package's ids with and without special tokens, and its decoded text with and without them, for every
// text.
inline void expect_as_oracle(const Tokenizer& tokenizer, const nlohmann::json& expected,
                             const std::vector<std::string>& texts) {
  ASSERT_EQ(expected.size(), texts.size());
  for (size_t i = 0; i < texts.size(); ++i) {
    const auto ids = tokenizer.encode(texts[i], true);
    ASSERT_EQ(tokenizer.encode(texts[i], false), expected[i]["ids"].get<std::vector<int32_t>>())
        << "text: " << texts[i].substr(0, 300);
    ASSERT_EQ(ids, expected[i]["ids_with_special"].get<std::vector<int32_t>>());
    ASSERT_EQ(tokenizer.decode(ids, false), expected[i]["text"].get<std::string>());
    ASSERT_EQ(tokenizer.decode(ids, true), expected[i]["text_without_special"].get<std::string>());
  }
}

// Returns texts of pieces that are hard for tokenizers: odd white space, digits of several scripts, marks, joiners,
// contractions, long runs, and `more` (added tokens, for example).
inline std::vector<std::string> awkward_texts(size_t count, const std::vector<std::string>& more) {
  std::vector<std::string> pieces = {" ",
                                     "  ",
                                     "    ",
                                     "\n",
                                     "\r\n",
                                     "\n\n",
                                     "\t",
                                     "\v",
                                     "\f",
                                     "\u0085",
                                     "\u00A0",
                                     "\u1680",
                                     "\u180E",
                                     "\u2003",
                                     "\u200B",
                                     "\u2028",
                                     "\u2029",
                                     "\u202F",
                                     "\u3000",
                                     "\uFEFF",
                                     "a",
                                     "Hello",
                                     "world",
                                     "'s",
                                     "'S",
                                     "'re",
                                     "'LL",
                                     "'\u017F",
                                     "\u2019s",
                                     "\u017F",
                                     "\u212A",
                                     "1",
                                     "12345",
                                     "\u0664\u0665",
                                     "\u0967",
                                     "\u00B2",
                                     "\u00BD",
                                     "\u2167",
                                     "\u3007",
                                     "\U0001D7D8",
                                     "\u00E9",
                                     "e\u0301",
                                     "e\u0323\u0307",
                                     "e\u0307\u0323",
                                     "\u1E69",
                                     "\u212B",
                                     "\u0344",
                                     "\u0958",
                                     "\u1100\u1161\u11A8",
                                     "\uAC00\u11A8",
                                     "\uD55C",
                                     "\u0301",
                                     "\u20DD",
                                     "\u0915\u094D\u0937",
                                     "\u0E01\u0E33",
                                     "\u4F60\u597D",
                                     "\u3042\u30A2",
                                     "\uFF71\uFF9E",
                                     "\u0431\u044B",
                                     "\u05D0\u05B7",
                                     "\u0639\u0631",
                                     "\U0001F600",
                                     "\U0001F468\u200D\U0001F469\u200D\U0001F467",
                                     "\u2764\uFE0F",
                                     "\U0001F1E9\U0001F1EA",
                                     "\U00020000",
                                     "\U000F0000",
                                     "\u0001",
                                     "\u007F",
                                     "!",
                                     "...",
                                     "->",
                                     "_",
                                     "$",
                                     "\u20AC",
                                     "\u2581",
                                     "\u2581\u2581",
                                     "<0x0A>",
                                     "<",
                                     "|",
                                     "/",
                                     "http://a.b/c?d=1",
                                     "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa"};
  pieces.insert(pieces.end(), more.begin(), more.end());
  std::mt19937 generator(7);
  std::vector<std::string> texts = {""};
  while (texts.size() < count) {
    std::string text;
    for (size_t n = 1 + generator() % 12; n > 0; --n) text += pieces[generator() % pieces.size()];
    texts.push_back(text);
  }
  return texts;
}

}  // namespace pare
