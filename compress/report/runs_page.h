// `pare report`: many results beside one another, as a page, and as a table for a README.
#pragma once

#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace pare::compress {

// `pare bench DIR --json > DIR.bench.json` gives a result its speed.
inline constexpr const char* kBenchEnding = ".bench.json";

// A task's accuracy in one result: of the last measure, which is acc_norm where a task has it.
struct TaskFigure {
  std::string name;  // "arc, acc_norm"
  std::string data;  // which questions, after how many examples
  double accuracy = 0.0;
  std::optional<double> standard_error, reference;
  // Returns the accuracy over the original's; nothing where that was not measured or has nothing right.
  std::optional<double> recovery() const;
};

// What is known of a result's quality on one text, and of its size.
struct RunFigures {
  std::string name;       // of its folder
  std::string data;       // what was measured on what; empty: nothing was measured
  std::string stored_as;  // of most layers
  double bytes = 0.0;     // of the weight files
  std::optional<double> bits_per_weight, perplexity, perplexity_error, reference_perplexity, kl, kl_error, agreement;
  std::optional<double> tokens_per_second;  // of the evaluation, of both models together
  // Tokens per second, and shares of the machine's roofs (MFU of prefill, MBU of decode): of the recipe's benchmark, or
  // else of DIR.bench.json beside the result DIR.
  std::optional<double> prefill, decode, prefill_share, decode_share;
  std::vector<TaskFigure> tasks;  // of the run, in each of its rows
};

struct FoundRuns {
  std::vector<RunFigures> runs;      // by size
  std::vector<std::string> skipped;  // folders with the reason, as sentences
};

// Reads pare.json and report.json of each folder, or of the folders in it where it has no pare.json itself. Of several
// evaluations of perplexity each is a row. Folders without results are skipped. Throws std::invalid_argument where no
// result is left, or a folder is none.
FoundRuns find_runs(const std::vector<std::filesystem::path>& folders);

// Returns the runs measured on `data` than which no other is better and as small: their indices, by size. Better is a
// lower KL where all of them have one, else a lower perplexity.
std::vector<size_t> best_runs(const std::vector<RunFigures>& runs, const std::string& data);
// The same where `cost` takes the place of the size. Runs without it are left out.
std::vector<size_t> best_runs(const std::vector<RunFigures>& runs, const std::string& data,
                              const std::function<std::optional<double>(const RunFigures&)>& cost);

// Return the page, a table in Markdown, and the rows as a JSON object. Speeds and tasks are columns where a run has
// them. A task on other questions is another column.
std::string runs_page(const FoundRuns& found);
std::string runs_markdown(const FoundRuns& found);
std::string runs_json(const FoundRuns& found);

}  // namespace pare::compress
