#include "runtime/evaluate/task_documents.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <utility>

#include "runtime/chat/python_case.h"
#include "runtime/evaluate/token_source.h"
#include "runtime/system/atomic_file.h"
#include "runtime/system/input_files.h"
#include "runtime/system/json_text.h"
#include "runtime/text/python_text.h"
#include "runtime/text/unicode.h"
#include "runtime/tokenizer/bert.h"

namespace pare::runtime {
namespace {

using Json = nlohmann::json;

constexpr std::string_view kLetters = "ABCD";

int64_t count_code_points(std::string_view text) {
  return std::count_if(text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; });
}

// A line of a file: what it holds, and where it stands.
struct Line {
  const Json& object;
  const std::string& where;
  const std::optional<std::string>& label;  // of the file of labels

  [[noreturn]] void fail(const std::string& what) const { throw std::runtime_error(where + ": " + what); }

  bool has(const char* name) const { return object.contains(name); }

  const Json& field(const char* name) const {
    const auto found = object.find(name);
    if (found == object.end()) fail("the field '" + std::string(name) + "' is missing");
    return *found;
  }

  std::string text(const char* name) const { return text(field(name), name); }
  std::string text(const Json& value, const std::string& name) const {
    if (!value.is_string()) fail("expected a string in the field '" + name + "', found " + value.type_name());
    return value.get<std::string>();
  }

  std::vector<std::string> texts(const char* name) const { return texts(field(name), name); }
  std::vector<std::string> texts(const Json& list, const std::string& name) const {
    if (!list.is_array()) fail("expected a list of strings in the field '" + name + "', found " + list.type_name());
    std::vector<std::string> all;
    for (const Json& item : list) all.push_back(text(item, name));
    return all;
  }

  // A label that counts choices from `first` on: a whole number, or its digits.
  int64_t number(const char* name, int64_t first, int64_t num_choices) const {
    std::string digits;
    if (!has(name) && label) {
      digits = *label;
    } else {
      const Json& value = field(name);
      if (value.is_number_integer()) {
        digits = std::to_string(value.get<int64_t>());
      } else if (value.is_boolean()) {
        digits = value.get<bool>() ? "1" : "0";
      } else {
        digits = text(name);
      }
    }
    for (int64_t n = 0; n < num_choices; ++n) {
      if (digits == std::to_string(first + n)) return n;
    }
    fail("expected a label from " + std::to_string(first) + " to " + std::to_string(first + num_choices - 1) +
         " in the field '" + name + "', found '" + digits +
         "': a set without labels (a hidden test set) measures nothing");
  }
};

int64_t place_of(const Line& line, const std::vector<std::string>& labels, const std::string& answer) {
  const auto found = std::find(labels.begin(), labels.end(), answer);
  if (found == labels.end()) line.fail("the answer '" + answer + "' is the label of no choice");
  return found - labels.begin();
}

// One question, and what may follow it.
TaskDocument ask(const Line& line, const std::string& question, const std::vector<std::string>& choices, int64_t gold) {
  if (choices.size() < 2) line.fail("expected at least two choices, found " + std::to_string(choices.size()));
  if (gold >= static_cast<int64_t>(choices.size())) {
    line.fail("the label " + std::to_string(gold) + " names none of " + std::to_string(choices.size()) + " choices");
  }
  TaskDocument document;
  for (const std::string& choice : choices) {
    document.choices.push_back({question, " " + choice, count_code_points(choice)});
  }
  document.gold = gold;
  document.solved = question + " " + choices[static_cast<size_t>(gold)] + "\n\n";
  return document;
}

TaskDocument read_piqa(const Line& line) {
  return ask(line, "Question: " + line.text("goal") + "\nAnswer:", {line.text("sol1"), line.text("sol2")},
             line.number("label", 0, 2));
}

TaskDocument read_hellaswag(const Line& line) {
  const std::string context = line.text("ctx_a") + " " + with_case(line.text("ctx_b"), LetterCase::capitalized);
  std::vector<std::string> endings = line.texts("endings");
  for (std::string& ending : endings) ending = clean_hellaswag(ending);
  return ask(line, clean_hellaswag(line.text("activity_label") + ": " + context), endings,
             line.number("label", 0, static_cast<int64_t>(endings.size())));
}

// The options complete the context, and what stands behind the gap is scored ("partial evaluation", arXiv 1806.02847).
TaskDocument read_winogrande(const Line& line) {
  const std::string sentence = line.text("sentence");
  const size_t gap = sentence.find('_');
  if (gap == std::string::npos) line.fail("the sentence has no '_', where an option belongs");
  const std::string rest(strip(std::string_view(sentence).substr(gap + 1)));
  if (rest.empty()) line.fail("nothing stands behind the sentence's '_': there is nothing to score");
  TaskDocument document;
  document.gold = line.number("answer", 1, 2);
  for (const char* name : {"option1", "option2"}) {
    const std::string choice = sentence.substr(0, gap) + line.text(name);
    document.choices.push_back({choice, " " + rest, count_code_points(choice)});
  }
  document.solved = document.choices[static_cast<size_t>(document.gold)].context + " " + rest + "\n\n";
  return document;
}

// The choices and their labels, as the Hub has them (two lists), or as AI2 has them (a list of text and label).
struct LabelledChoices {
  std::vector<std::string> texts, labels;
};
LabelledChoices read_labelled(const Line& line, const Json& choices) {
  LabelledChoices found;
  if (choices.is_object()) {
    if (!choices.contains("text") || !choices.contains("label")) line.fail("'choices' lacks 'text' or 'label'");
    found = {line.texts(choices.at("text"), "choices.text"), line.texts(choices.at("label"), "choices.label")};
  } else if (choices.is_array()) {
    for (const Json& choice : choices) {
      if (!choice.is_object() || !choice.contains("text") || !choice.contains("label")) {
        line.fail("expected a text and a label in each of 'choices'");
      }
      found.texts.push_back(line.text(choice.at("text"), "choices.text"));
      found.labels.push_back(line.text(choice.at("label"), "choices.label"));
    }
  } else {
    line.fail(std::string("expected texts and labels in the field 'choices', found ") + choices.type_name());
  }
  if (found.texts.size() != found.labels.size()) line.fail("'choices' has another number of texts than of labels");
  return found;
}

// A question of AI2: its stem and choices stand in it, or beside it on the Hub.
TaskDocument read_of_ai2(const Line& line, const char* stem, std::string_view before, std::string_view after) {
  const auto nested = line.object.find("question");
  const bool is_nested = nested != line.object.end() && nested->is_object();
  if (is_nested && (!nested->contains("stem") || !nested->contains("choices"))) {
    line.fail("'question' lacks 'stem' or 'choices'");
  }
  const std::string question = is_nested ? line.text(nested->at("stem"), "question.stem") : line.text(stem);
  const LabelledChoices choices = read_labelled(line, is_nested ? nested->at("choices") : line.field("choices"));
  const std::string answer = line.text("answerKey");
  return ask(line, std::string(before) + question + std::string(after), choices.texts,
             place_of(line, choices.labels, std::string(strip(answer))));
}

TaskDocument read_arc(const Line& line) {
  return read_of_ai2(line, "question", "Question: ", "\nAnswer:");
}

TaskDocument read_openbookqa(const Line& line) {
  return read_of_ai2(line, "question_stem", "", "");
}

TaskDocument read_boolq(const Line& line) {
  return ask(line, line.text("passage") + "\nQuestion: " + line.text("question") + "?\nAnswer:", {"no", "yes"},
             line.number(line.has("label") ? "label" : "answer", 0, 2));
}

TaskDocument read_mmlu(const Line& line) {
  const std::vector<std::string> choices = line.texts("choices");
  if (choices.size() != kLetters.size()) {
    line.fail("expected 4 choices, found " + std::to_string(choices.size()));
  }
  std::string question = std::string(strip(line.text("question")));
  for (size_t n = 0; n < choices.size(); ++n) question += "\n" + std::string(1, kLetters[n]) + ". " + choices[n];
  const Json& answer = line.field("answer");
  const bool is_letter = answer.is_string() && answer.get_ref<const std::string&>().size() == 1 &&
                         kLetters.find(answer.get_ref<const std::string&>()[0]) != std::string_view::npos;
  const int64_t gold = is_letter ? static_cast<int64_t>(kLetters.find(answer.get_ref<const std::string&>()[0]))
                                 : line.number("answer", 0, 4);
  TaskDocument document = ask(line, question + "\nAnswer:", {"A", "B", "C", "D"}, gold);
  document.subject = line.text("subject");
  document.description = "The following are multiple choice questions (with answers) about " +
                         replaced(document.subject, "_", " ") + ".\n\n";
  return document;
}

TaskDocument read_lambada(const Line& line) {
  const std::string text = line.text("text");
  const size_t blank = text.rfind(' ');
  const std::string word = " " + text.substr(blank == std::string::npos ? 0 : blank + 1);
  if (word.size() == 1) line.fail("the text ends with a blank: it has no last word");
  const std::string context = blank == std::string::npos ? "" : text.substr(0, blank);
  TaskDocument document;
  document.choices = {{context, word, count_code_points(word)}};
  // The blank of the word follows the one that the harness puts between a question and its answer.
  document.solved = context + " " + word + "\n\n";
  return document;
}

TaskDocument read_gsm8k(const Line& line) {
  const std::string answer = line.text("answer");
  if (answer.find("#### ") == std::string::npos) {
    line.fail("the answer has no '#### ', behind which its number stands");
  }
  TaskDocument document;
  document.choices = {{"Question: " + line.text("question") + "\nAnswer:", " " + answer, count_code_points(answer)}};
  document.solved = document.choices[0].context + " " + answer + "\n\n";
  return document;
}

struct Reader {
  Task task;
  TaskDocument (*read)(const Line& line);
};

const std::vector<Reader>& readers() {
  static const std::vector<Reader> kReaders = {
      {{.name = "piqa",
        .subject = "how to do everyday things",
        .meaning = "This asks how everyday things are done (PIQA).",
        .has_norm = true,
        .is_no_example = true,
        .fields = "goal, sol1, sol2 and label"},
       read_piqa},
      {{.name = "hellaswag",
        .subject = "how a scene goes on",
        .meaning = "This asks how scenes go on (HellaSwag).",
        .has_norm = true,
        .is_no_example = true,
        .fields = "activity_label, ctx_a, ctx_b, endings and label"},
       read_hellaswag},
      {{.name = "winogrande",
        .subject = "whom or what a sentence means",
        .meaning = "This asks whom or what a sentence means (Winogrande).",
        .is_no_example = true,
        .fields = "sentence, option1, option2 and answer"},
       read_winogrande},
      {{.name = "arc",
        .subject = "school science, from ARC-Easy or ARC-Challenge",
        .meaning = "This asks questions of school science (ARC-Easy or ARC-Challenge).",
        .has_norm = true,
        .fields = "question, choices and answerKey"},
       read_arc},
      {{.name = "boolq",
        .subject = "yes or no to a passage",
        .meaning = "This asks yes or no to a passage (BoolQ).",
        .is_no_example = true,
        .fields = "passage, question and label or answer"},
       read_boolq},
      {{.name = "openbookqa",
        .subject = "elementary science",
        .meaning = "This asks questions of elementary science (OpenBookQA).",
        .has_norm = true,
        .fields = "question_stem, choices and answerKey"},
       read_openbookqa},
      {{.name = "mmlu",
        .subject = "many subjects, with four choices",
        .meaning = "This asks questions of many subjects, with four choices (MMLU).",
        .takes_first_examples = true,
        .fields = "question, subject, choices and answer"},
       read_mmlu},
      {{.name = "lambada",
        .subject = "the last word of a passage",
        .meaning = "This asks for the last word of passages (LAMBADA).",
        .score = TaskScore::last_word,
        .fields = "text"},
       read_lambada},
      {{.name = "gsm8k",
        .subject = "grade-school mathematics, in answers that the model writes",
        .meaning = "This asks problems of grade-school mathematics (GSM8K). The model writes its answers.",
        .score = TaskScore::number,
        .fields = "question and answer"},
       read_gsm8k}};
  return kReaders;
}

const Reader& reader_of(const Task& task) {
  for (const Reader& reader : readers()) {
    if (reader.task.name == task.name) return reader;
  }
  throw std::logic_error("there is no task '" + std::string(task.name) + "'");
}

// The labels beside a .jsonl without any; none: there is no such file.
std::vector<std::string> read_labels(const std::filesystem::path& path) {
  std::filesystem::path labels = path;
  labels.replace_filename(path.stem().string() + "-labels.lst");
  std::vector<std::string> all;
  if (!std::filesystem::exists(labels)) return all;
  for_each_line(read_text_file(labels), labels.string(),
                [&](std::string_view line, const std::string&) { all.emplace_back(strip(line)); });
  return all;
}

// The subject that a file of mmlu's authors is named after: abstract_algebra_test.csv.
std::string subject_of(const std::filesystem::path& path) {
  std::string name = path.stem().string();
  for (const std::string_view part : {"_test", "_dev", "_val", "_train"}) {
    if (name.ends_with(part)) return name.substr(0, name.size() - part.size());
  }
  return name;
}

// The records of a .csv (RFC 4180), each with the line at which it begins.
struct Record {
  std::vector<std::string> fields;
  int64_t line = 1;
};
std::vector<Record> read_csv(const std::string& text, const std::string& path) {
  std::vector<Record> records;
  int64_t line = 1;
  for (size_t at = 0; at < text.size();) {
    Record record{.fields = {""}, .line = line};
    bool is_quoted = false;
    for (bool ends = false; at < text.size() && !ends; ++at) {
      const char c = text[at];
      if (c == '\n') ++line;
      if (c == '"') {
        const bool is_doubled = is_quoted && at + 1 < text.size() && text[at + 1] == '"';
        if (is_doubled) record.fields.back() += text[++at];
        if (!is_doubled) is_quoted = !is_quoted;
      } else if (is_quoted) {
        record.fields.back() += c;
      } else if (c == ',') {
        record.fields.emplace_back();
      } else if (c == '\n') {
        ends = true;
      } else if (c != '\r') {
        record.fields.back() += c;
      }
    }
    if (is_quoted) {
      throw std::runtime_error(path + ":" + std::to_string(record.line) + ": a quotation mark is not closed");
    }
    if (record.fields != std::vector<std::string>{""}) records.push_back(std::move(record));
  }
  return records;
}

std::vector<TaskDocument> read_csv_documents(const Reader& reader, const std::filesystem::path& path) {
  std::vector<TaskDocument> documents;
  const std::string text = read_file_or_pipe(path), subject = subject_of(path);
  if (const auto offset = find_invalid_utf8(text)) {
    throw std::runtime_error(path.string() + ": not UTF-8: byte " + std::to_string(*offset) +
                             " does not start a valid character; convert the file to UTF-8");
  }
  for (const Record& record : read_csv(text, path.string())) {
    const std::string where = path.string() + ":" + std::to_string(record.line);
    const std::vector<std::string>& fields = record.fields;
    if (fields.size() != 6) {
      throw std::runtime_error(where + ": expected a question, four choices and a letter, found " +
                               std::to_string(fields.size()) + " columns");
    }
    const Json object = {{"question", fields[0]},
                         {"choices", {fields[1], fields[2], fields[3], fields[4]}},
                         {"answer", fields[5]},
                         {"subject", subject}};
    documents.push_back(reader.read({object, where, std::nullopt}));
    documents.back().source = json_text(object);
  }
  return documents;
}

}  // namespace

std::span<const Task> tasks() {
  static const std::vector<Task> kTasks = [] {
    std::vector<Task> all;
    for (const Reader& reader : readers()) all.push_back(reader.task);
    return all;
  }();
  return kTasks;
}

std::string clean_hellaswag(std::string_view text) {
  const std::string titled = replaced(std::string(strip(text)), " [title]", ". ");
  std::string plain;
  for (size_t at = 0; at < titled.size();) {
    const size_t end = titled[at] == '[' ? titled.find_first_of("]\n", at) : std::string::npos;
    if (end != std::string::npos && titled[end] == ']') {
      at = end + 1;
    } else {
      plain += titled[at++];
    }
  }
  // Each pair of blanks becomes one, so that four become two.
  return replaced(plain, "  ", " ");
}

std::vector<TaskDocument> read_task_documents(const Task& task, const std::filesystem::path& path, int64_t limit) {
  const Reader& reader = reader_of(task);
  const bool may_be_csv = reader.read == read_mmlu;
  const std::string kinds = may_be_csv ? ".jsonl or .csv" : ".jsonl";
  refuse_folder(path, "the questions of " + std::string(task.name) + " (" + kinds + ")", {".jsonl", ".csv"});
  const std::string extension = path.extension().string();
  if (extension != ".jsonl" && !(may_be_csv && extension == ".csv")) {
    throw std::invalid_argument(path.string() + ": expected the questions of " + std::string(task.name) + " in a " +
                                kinds + " file (a line has " + std::string(task.fields) + "), found " +
                                (extension.empty() ? "a name without an ending" : "'" + extension + "'"));
  }
  std::vector<TaskDocument> documents;
  if (extension == ".csv") {
    documents = read_csv_documents(reader, path);
  } else {
    const std::vector<std::string> labels = read_labels(path);
    size_t number = 0;
    for_each_line(read_file_or_pipe(path), path.string(), [&](std::string_view text, const std::string& where) {
      Json object = parse_json(text, where, Nul::allowed);
      if (!object.is_object()) {
        throw std::runtime_error(where + ": expected an object with the fields " + std::string(task.fields) +
                                 ", found " + object.type_name());
      }
      const std::optional<std::string> label = number < labels.size() ? std::optional(labels[number]) : std::nullopt;
      documents.push_back(reader.read({object, where, label}));
      documents.back().source = json_text(object) + label.value_or("");
      ++number;
    });
    if (!labels.empty() && labels.size() != number) {
      throw std::runtime_error(path.string() + ": it has " + std::to_string(number) +
                               " lines, and the file of labels beside it has " + std::to_string(labels.size()));
    }
  }
  const auto num_found = static_cast<int64_t>(documents.size());
  if (num_found < std::max<int64_t>(limit, 1)) {
    throw std::invalid_argument(path.string() + ": expected at least " + std::to_string(std::max<int64_t>(limit, 1)) +
                                " questions, found " + std::to_string(num_found) +
                                (num_found > 0 ? ": ask for fewer" : ""));
  }
  if (limit > 0) documents.resize(static_cast<size_t>(limit));
  return documents;
}

}  // namespace pare::runtime
