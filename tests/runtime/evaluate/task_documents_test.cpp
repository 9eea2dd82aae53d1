// Data sets in each of the shapes in which they are published; what Python's random module draws; and what is refused.
// The prompts themselves are compared with those of lm-evaluation-harness by task_accuracy_test.cpp.
#include "runtime/evaluate/task_documents.h"

#include <gtest/gtest.h>

#include <fstream>

#include "runtime/evaluate/few_shot.h"
#include "tests/expect_error.h"
#include "tests/temporary_folder.h"

namespace pare {
using namespace runtime;
namespace {

const Task& task_named(std::string_view name) {
  for (const Task& task : tasks()) {
    if (task.name == name) return task;
  }
  throw std::logic_error("no such task");
}

class TaskDocuments : public testing::Test {
 protected:
  std::filesystem::path write(const std::string& name, const std::string& text) {
    std::ofstream(folder_.path() / name) << text;
    return folder_.path() / name;
  }
  std::vector<TaskDocument> read(const std::string& task, const std::string& text, const std::string& name = "x.jsonl",
                                 int64_t limit = 0) {
    return read_task_documents(task_named(task), write(name, text), limit);
  }
  TaskDocument only(const std::string& task, const std::string& text, const std::string& name = "x.jsonl") {
    return read(task, text, name).at(0);
  }
  static void expect_same(const TaskDocument& a, const TaskDocument& b) {
    ASSERT_EQ(a.choices.size(), b.choices.size());
    for (size_t n = 0; n < a.choices.size(); ++n) {
      EXPECT_EQ(a.choices[n].context, b.choices[n].context);
      EXPECT_EQ(a.choices[n].continuation, b.choices[n].continuation);
      EXPECT_EQ(a.choices[n].num_characters, b.choices[n].num_characters);
    }
    EXPECT_EQ(a.gold, b.gold);
    EXPECT_EQ(a.solved, b.solved);
    EXPECT_EQ(a.description, b.description);
  }
  TemporaryFolder folder_;
};

TEST_F(TaskDocuments, AreTheSameInEveryShape) {
  expect_same(
      only("arc", R"({"question":"Why?","choices":{"text":["x","y"],"label":["A","B"]},"answerKey":"B"})"),
      only("arc", R"({"question":{"stem":"Why?","choices":[{"text":"x","label":"A"},{"text":"y","label":"B"}]},)"
                  R"("answerKey":"B"})"));
  expect_same(
      only("openbookqa", R"({"question_stem":"So","choices":{"text":["x","y"],"label":["A","B"]},"answerKey":" A"})"),
      only("openbookqa", R"({"question":{"stem":"So","choices":[{"text":"x","label":"A"},)"
                         R"({"text":"y","label":"B"}]},"answerKey":"A"})"));
  expect_same(only("boolq", R"({"passage":"p","question":"q","label":1})"),
              only("boolq", R"({"passage":"p","question":"q","answer":true,"title":"t"})"));
  expect_same(
      only("mmlu", R"({"question":"say \"a\"\n","subject":"us_history","choices":["1","2, 3","4","5"],"answer":2})"),
      only("mmlu", "\"say \"\"a\"\"\n\",1,\"2, 3\",4,5,C\r\n", "us_history_test.csv"));
  const std::string piqa = R"({"goal":"g","sol1":"a","sol2":"b"})";
  write("valid-labels.lst", "1\n0\n");
  const auto labelled = read("piqa", piqa + "\n" + piqa + "\n", "valid.jsonl");
  expect_same(only("piqa", R"({"goal":"g","sol1":"a","sol2":"b","label":1})"), labelled.at(0));
  EXPECT_EQ(labelled.at(1).gold, 0);
}

TEST_F(TaskDocuments, PutQuestionsInTheWordsOfTheHarness) {
  const TaskDocument document =
      only("mmlu", R"({"question":" Who?\n","subject":"us_history","choices":["I","you","he","Zoë"],"answer":"D"})");
  EXPECT_EQ(document.description, "The following are multiple choice questions (with answers) about us history.\n\n");
  EXPECT_EQ(document.choices.at(3).context, "Who?\nA. I\nB. you\nC. he\nD. Zoë\nAnswer:");
  EXPECT_EQ(document.choices.at(3).continuation, " D");
  EXPECT_EQ(document.solved, "Who?\nA. I\nB. you\nC. he\nD. Zoë\nAnswer: D\n\n");
  EXPECT_EQ(only("piqa", R"({"goal":"g","sol1":"Zoë","sol2":"b","label":0})").choices.at(0).num_characters, 3);
}

// By Python: re.sub(r"\[.*?\]", "", text.strip().replace(" [title]", ". ")).replace("  ", " ").
TEST_F(TaskDocuments, CleanHellaswagAsPythonDoes) {
  EXPECT_EQ(clean_hellaswag("  a [title] b [x] c"), "a. b c");
  EXPECT_EQ(clean_hellaswag("[a [b] c] d"), " c] d");
  EXPECT_EQ(clean_hellaswag("[a\n] [] [b"), "[a\n] [b");
  EXPECT_EQ(clean_hellaswag("a   b    c\u00a0"), "a  b  c");
}

// By Python 3.11: r = random.Random(1234); [r.sample(range(n), k) for n, k in ((10, 3), (30, 7), (1000, 4), (100, 8))].
TEST_F(TaskDocuments, AreDrawnAsPythonDraws) {
  PythonRandom random(1234);
  const std::vector<std::vector<size_t>> expected = {
      {7, 1, 0}, {2, 25, 18, 1, 21, 22, 29}, {100, 784, 363, 242}, {2, 3, 44, 82, 79, 61, 78, 59}};
  const std::vector<std::pair<size_t, size_t>> sizes = {{10, 3}, {30, 7}, {1000, 4}, {100, 8}};
  for (size_t n = 0; n < sizes.size(); ++n) {
    EXPECT_EQ(random.sample(sizes[n].first, sizes[n].second), expected[n]) << n;
  }
  expect_error<std::invalid_argument>([&] { random.sample(2, 3); }, {"3 examples", "from 2"});
}

TEST_F(TaskDocuments, AreNoExamplesForThemselves) {
  std::vector<TaskDocument> documents;
  for (const char* text : {"a", "b", "c", "d"}) {
    TaskDocument document;
    document.solved = document.source = text;
    documents.push_back(document);
  }
  const Task piqa = task_named("piqa");
  const std::vector<std::string> prefixes = few_shot_prefixes(piqa, documents, documents, 3);
  for (size_t n = 0; n < documents.size(); ++n) {
    EXPECT_EQ(prefixes[n].size(), 3u);
    EXPECT_EQ(prefixes[n].find(documents[n].solved), std::string::npos) << prefixes[n];
  }
  expect_error<std::invalid_argument>([&] { few_shot_prefixes(piqa, documents, documents, 4); },
                                      {"4 shots need 5 solved examples", "there are 3"});
  documents[0].subject = "x";
  const Task mmlu = task_named("mmlu");
  EXPECT_EQ(few_shot_prefixes(mmlu, documents, documents, 1).at(0), "a");
  expect_error<std::invalid_argument>([&] { few_shot_prefixes(mmlu, documents, documents, 2); },
                                      {"2 shots need 2 solved examples of the subject 'x'; there are 1"});
}

TEST_F(TaskDocuments, AreRefusedWithTheirLine) {
  const std::string good = R"({"goal":"g","sol1":"a","sol2":"b","label":0})";
  const auto refuse = [&](const std::string& task, const std::string& line, std::initializer_list<std::string> parts) {
    expect_error<std::runtime_error>([&] { read(task, line); }, parts);
  };
  refuse("piqa", good + "\n\n" + R"({"goal":"g","sol1":"a","label":0})", {"x.jsonl:3", "'sol2' is missing"});
  refuse("piqa", good + "\n{\"goal\":1,\"sol1\":\"a\",\"sol2\":\"b\",\"label\":0}",
         {"x.jsonl:2", "a string in the field 'goal'"});
  refuse("piqa", "[1]", {"x.jsonl:1", "expected an object with the fields goal, sol1, sol2 and label"});
  refuse("piqa", R"({"goal":"g","sol1":"a","sol2":"b","label":2})", {"from 0 to 1", "found '2'"});
  refuse("piqa", R"({"goal":"g","sol1":"a","sol2":"b"})", {"'label' is missing"});
  refuse("hellaswag", R"({"activity_label":"a","ctx_a":"b","ctx_b":"c","endings":["x","y"],"label":""})",
         {"found ''", "hidden test set"});
  refuse("winogrande", R"({"sentence":"a b","option1":"x","option2":"y","answer":"1"})", {"has no '_'"});
  refuse("winogrande", R"({"sentence":"a _ b","option1":"x","option2":"y","answer":"0"})", {"from 1 to 2"});
  refuse("arc", R"({"question":"q","choices":{"text":["x","y"],"label":["A","B"]},"answerKey":"E"})",
         {"'E' is the label of no choice"});
  refuse("arc", R"({"question":"q","choices":{"text":["x","y"],"label":["A"]},"answerKey":"A"})", {"another number"});
  refuse("mmlu", R"({"question":"q","subject":"s","choices":["x"],"answer":0})", {"expected 4 choices, found 1"});
  refuse("lambada", R"({"text":"ends with "})", {"no last word"});
  refuse("gsm8k", R"({"question":"q","answer":"It is 5."})", {"x.jsonl:1", "the answer has no '#### '"});
  refuse("gsm8k", R"({"question":"q","answer":5})", {"a string in the field 'answer', found number"});
  expect_error<std::runtime_error>([&] { read("mmlu", "q,1,2,3,4,A\nq,1,2,3,A\n", "x.csv"); },
                                   {"x.csv:2", "found 5 columns"});
  expect_error<std::runtime_error>([&] { read("mmlu", "q,1,2,3,4,A\n\"q,1,2", "x.csv"); }, {"x.csv:2", "not closed"});
  write("y-labels.lst", "1\n");
  expect_error<std::runtime_error>([&] { read("piqa", good + "\n" + good, "y.jsonl"); }, {"2 lines", "has 1"});
  expect_error<std::invalid_argument>([&] { read("piqa", good, "x.jsonl", 2); }, {"at least 2 questions, found 1"});
  expect_error<std::invalid_argument>([&] { read("piqa", "", "x.jsonl"); }, {"at least 1 questions, found 0"});
  expect_error<std::invalid_argument>([&] { read("piqa", good, "x.csv"); }, {"in a .jsonl file", "found '.csv'"});
  expect_error<std::invalid_argument>([&] { read_task_documents(task_named("piqa"), folder_.path(), 0); },
                                      {"questions of piqa"});
}

}  // namespace
}  // namespace pare
