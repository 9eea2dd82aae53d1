// Texts from standard input and from pipes, and texts of any name.
#include <gtest/gtest.h>

#include "tests/runtime/commands/pare_runtime.h"

namespace pare {
namespace {

class StandardInput : public PareRuntime {
 protected:
  std::string text_words(const std::string& command, const std::string& text) const {
    return command + " " + model_.string() + " --text " + text;
  }
  const std::string from_file_ = " <" + text_.string();
};

TEST_F(StandardInput, IsATextForEveryNameThatItHas) {
  const std::string ids = run(text_words("tokenize", text_.string())).out;
  ASSERT_NE(ids, "");
  for (const char* name : {"-", "/dev/stdin", "/dev/fd/0", "/proc/self/fd/0"}) {
    const Outcome piped = run(text_words("tokenize", name), "cat " + text_.string() + " |");
    EXPECT_EQ(piped.status, 0) << name << piped.err;
    EXPECT_EQ(piped.out, ids) << name;
    EXPECT_EQ(run(text_words("tokenize", name) + from_file_).out, ids) << name;
  }
}

// A reference's tokenizer must cut the text in the same way, so the text is read twice.
TEST_F(StandardInput, IsThereForEveryoneWhoReadsIt) {
  const std::string reference = " --context 16 --reference " + model_.string();
  const nlohmann::json expected = run_json(text_words("eval", text_.string()) + reference);
  for (const char* name : {"-", "/dev/stdin"}) {
    const Outcome piped = run(text_words("eval", name) + reference + " --json", "cat " + text_.string() + " |");
    ASSERT_EQ(piped.status, 0) << piped.err;
    const nlohmann::json found = nlohmann::json::parse(piped.out);
    EXPECT_EQ(found.at("nll"), expected.at("nll"));
    EXPECT_NE(found.at("protocol_label").get<std::string>().find("of standard input"), std::string::npos);
  }
}

TEST_F(StandardInput, WithoutATextIsSaid) {
  const Outcome empty = run(text_words("tokenize", "-") + " </dev/null");
  EXPECT_EQ(empty.status, 1);
  EXPECT_NE(empty.err.find("'/dev/stdin': it is a device"), std::string::npos) << empty.err;
  const Outcome closed = run(text_words("tokenize", "-") + " <&-");
  EXPECT_EQ(closed.status, 1);
  EXPECT_NE(closed.err.find("cannot read '/dev/stdin'"), std::string::npos) << closed.err;
  const Outcome none = run(text_words("tokenize", "-"), "printf '' |");
  EXPECT_EQ(none.status, 1);
  EXPECT_NE(none.err.find("standard input: the text is empty"), std::string::npos) << none.err;
}

TEST_F(StandardInput, ATextIsATextWhateverItsName) {
  const std::string ids = run(text_words("tokenize", text_.string())).out;
  for (const char* name : {"wiki.test.raw", "text.md", "README", "text.TXT"}) {
    std::filesystem::copy_file(text_, folder_.path() / name);
    EXPECT_EQ(run(text_words("tokenize", (folder_.path() / name).string())).out, ids) << name;
  }
}

}  // namespace
}  // namespace pare
