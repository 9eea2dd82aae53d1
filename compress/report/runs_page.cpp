#include "compress/report/runs_page.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <stdexcept>

#include "compress/report/html.h"
#include "compress/report/markdown_text.h"
#include "compress/report/stored_as.h"
#include "quant/pictures/plot.h"
#include "runtime/commands/artifact_files.h"
#include "runtime/evaluate/evaluation.h"
#include "runtime/system/atomic_file.h"
#include "runtime/system/input_files.h"
#include "runtime/system/json_text.h"
#include "runtime/system/progress.h"
#include "runtime/system/sealed_json.h"

namespace pare::compress {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using Value = std::optional<double>;

// Names of figures.
constexpr const char *kPerplexity = "perplexity", *kKl = "kl_mean", *kAgreement = "top1_agreement";

Value finite(const Json& json, const char* key) {
  if (!json.contains(key) || !json[key].is_number()) return std::nullopt;
  const double value = json[key].get<double>();
  return std::isfinite(value) ? Value(value) : std::nullopt;
}

// How most layers are stored, and by which pass.
std::string scheme_of_most(const Json& manifest) {
  std::map<std::string, int> counts;
  for (const Json& layer : manifest.at("layers")) {
    ++counts[layer.at("method").get<std::string>() + ": " + stored_as(layer)];
  }
  const auto most = std::ranges::max_element(counts, {}, [](const auto& entry) { return entry.second; });
  return most == counts.end() ? "" : most->first;
}

// What report.json says of the speed of the evaluation on that data.
Value speed_on(const Json& report, const std::string& data) {
  for (const Json& member : report) {
    if (!member.is_array()) continue;
    for (const Json& result : member) {
      if (result.is_object() && result.contains("protocol_label") && result["protocol_label"] == data) {
        return finite(result, "tokens_per_second");
      }
    }
  }
  return std::nullopt;
}

// The figures of an evaluation that gives perplexities; nothing of others.
std::optional<RunFigures> measured(RunFigures run, const Json& evaluation, const Json& report) {
  run.data = evaluation.at("data").get<std::string>();
  for (const Json& figure : evaluation.at("figures")) {
    const std::string name = figure.at("name").get<std::string>();
    if (name == kPerplexity) {
      run.perplexity = finite(figure, "value");
      run.perplexity_error = finite(figure, "standard_error");
      run.reference_perplexity = finite(figure, "reference");
    } else if (name == kKl) {
      run.kl = finite(figure, "value");
      run.kl_error = finite(figure, "standard_error");
    } else if (name == kAgreement) {
      run.agreement = finite(figure, "value");
    }
  }
  if (!run.perplexity) return std::nullopt;
  run.tokens_per_second = speed_on(report, run.data);
  return run;
}

// What the run's recipe has measured, or `pare bench` later.
std::optional<Json> benchmark_of(const fs::path& place, const Json& report) {
  if (report.contains("benchmark")) return report["benchmark"];
  fs::path file = place;
  file += kBenchEnding;
  if (!runtime::is_there(file)) return std::nullopt;
  return runtime::parse_ordered_json(runtime::read_text_file(file), file.string());
}

// Whether it is of a task: what a recipe may ask of its row's accuracy tells.
bool is_task(const Json& evaluation) {
  if (!evaluation.contains("evaluation")) return false;  // of older versions
  const std::span<const runtime::EvaluationRow* const> rows = runtime::evaluation_rows();
  const auto row = std::ranges::find(rows, evaluation["evaluation"].get<std::string>(), &runtime::EvaluationRow::key);
  return row != rows.end() && std::ranges::find((*row)->gates, "recovery", &runtime::Gate::name) != (*row)->gates.end();
}

// Names the questions: the file, and what report.json says of how many there were, behind how many examples.
std::string questions_of(const Json& evaluation, const Json& result) {
  std::string text = evaluation.at("data").get<std::string>();
  for (const auto& [key, what] : {std::pair("questions", " questions"), {"shots", " shots"}}) {
    if (result.contains(key) && result[key].is_number_integer()) {
      text += ", " + std::to_string(result[key].get<int64_t>()) + what;
    }
  }
  return text;
}

// `result` is that of report.json.
std::optional<TaskFigure> task_of(const Json& evaluation, const Json& result) {
  std::optional<TaskFigure> task;
  for (const Json& figure : evaluation.at("figures")) {
    const std::string name = figure.at("name").get<std::string>();
    const Value value = finite(figure, "value");
    if (!value || name == kPerplexity || name.ends_with("_changed")) continue;
    task = TaskFigure{.name = figure.at("meaning").get<std::string>(),
                      .data = questions_of(evaluation, result),
                      .accuracy = *value,
                      .standard_error = finite(figure, "standard_error"),
                      .reference = finite(figure, "reference")};
  }
  return task;
}

std::vector<RunFigures> figures_of(const fs::path& folder) {
  runtime::require_listed_files(folder);
  const auto read = [&](const char* name) {
    const std::string text = runtime::read_text_file(folder / name);
    if (runtime::check_seal(text) == runtime::Seal::broken) {
      throw std::runtime_error(std::string(name) + " is damaged: it is not what its checksum was taken of");
    }
    return runtime::parse_ordered_json(text, name);
  };
  const Json manifest = read(runtime::kManifestName), report = read(runtime::kReportName);
  RunFigures run;
  const fs::path place = folder.filename().empty() ? folder.parent_path() : folder;
  run.name = place.filename().string();
  run.stored_as = scheme_of_most(manifest);
  run.bytes = std::clamp(finite(report, "output_bytes").value_or(0.0), 0.0, 1e18);
  run.bits_per_weight = finite(report, "bits_per_weight_without_head");
  if (const std::optional<Json> benchmark = benchmark_of(place, report)) {
    run.prefill = finite(*benchmark, "prefill_tokens_per_second");
    run.decode = finite(*benchmark, "decode_tokens_per_second");
    run.prefill_share = finite(*benchmark, "prefill_share");
    run.decode_share = finite(*benchmark, "decode_share");
  }
  std::vector<RunFigures> runs;
  if (manifest.contains("evaluations")) {
    std::map<std::string, size_t> num_of;  // results of each evaluation, which report.json has in their order
    for (const Json& evaluation : manifest["evaluations"]) {
      if (!is_task(evaluation)) continue;
      const std::string key = evaluation["evaluation"].get<std::string>();
      const size_t index = num_of[key]++;
      const bool is_reported = report.contains(key) && report[key].is_array() && index < report[key].size();
      const std::optional<TaskFigure> task = task_of(evaluation, is_reported ? report[key][index] : Json());
      if (task) run.tasks.push_back(*task);
    }
    for (const Json& evaluation : manifest["evaluations"]) {
      if (is_task(evaluation)) continue;
      if (const std::optional<RunFigures> row = measured(run, evaluation, report)) runs.push_back(*row);
    }
  }
  if (runs.empty()) runs.push_back(std::move(run));
  return runs;
}

// What most runs were measured on.
std::string most_common_data(const std::vector<RunFigures>& runs) {
  std::map<std::string, int> counts;
  for (const RunFigures& run : runs) {
    if (run.perplexity) ++counts[run.data];
  }
  const auto most = std::ranges::max_element(counts, {}, [](const auto& entry) { return entry.second; });
  return most == counts.end() ? "" : most->first;
}

bool all_have_kl(const std::vector<RunFigures>& runs, const std::string& data) {
  return std::ranges::all_of(runs, [&](const RunFigures& run) { return run.data != data || run.kl.has_value(); });
}

std::string with_error(const Value& value, const Value& error, int num_decimals) {
  if (!value) return {};
  return runtime::format_number(*value, num_decimals) +
         (error ? " ± " + runtime::format_number(*error, num_decimals) : "");
}

// Quality against a figure of the runs; `best` are joined by a line.
quant::Plot plot_of(const std::vector<RunFigures>& runs, const std::string& data,
                    const std::function<Value(const RunFigures&)>& across, const std::vector<size_t>& best,
                    quant::Plot plot) {
  const bool by_kl = all_have_kl(runs, data);
  const auto up = [&](const RunFigures& run) { return by_kl ? run.kl : run.perplexity; };
  quant::PlotSeries dots{"results", quant::PlotMark::dots, {}, {}},
      front{"best choices", quant::PlotMark::line, {}, {}};
  for (const RunFigures& run : runs) {
    const Value x = across(run), y = up(run);
    if (run.data != data || !x || !y) continue;
    dots.x.push_back(*x);
    dots.y.push_back(*y);
    dots.error.push_back((by_kl ? run.kl_error : run.perplexity_error).value_or(0.0));
    dots.names.push_back(run.name);
  }
  for (const size_t i : best) {
    front.x.push_back(across(runs[i]).value());
    front.y.push_back(up(runs[i]).value());
  }
  plot.y = {by_kl ? "KL divergence from the original (nats per token)" : "perplexity", true};
  plot.series = {dots};
  if (!best.empty()) plot.series.push_back(front);
  plot.names_points = true;
  return plot;
}

// Of the benchmarks, or of the evaluations where no run has one.
std::string speed_picture(const std::vector<RunFigures>& runs, const std::string& data) {
  const auto decode = [](const RunFigures& run) { return run.decode; };
  const auto slowness = [](const RunFigures& run) { return run.decode ? Value(-*run.decode) : std::nullopt; };
  const auto evaluation = [](const RunFigures& run) { return run.tokens_per_second; };
  const bool has_benchmarks =
      std::ranges::any_of(runs, [&](const RunFigures& run) { return run.data == data && run.decode.has_value(); });
  quant::Plot plot{.id = "speed",
                   .title = has_benchmarks ? "Quality against the speed of decode"
                                           : "Quality against the speed of the evaluation, both models together",
                   .description = "A dot for each result. To the right and below is better.",
                   .x = {"tokens per second, on each run's own machine"},
                   .y = {},
                   .series = {}};
  if (!has_benchmarks) return quant::plot_figure(plot_of(runs, data, evaluation, {}, std::move(plot)));
  return quant::plot_figure(plot_of(runs, data, decode, best_runs(runs, data, slowness), std::move(plot)));
}

std::string pictures(const std::vector<RunFigures>& runs, const std::string& data) {
  if (data.empty()) return {};
  const auto size = [](const RunFigures& run) { return Value(run.bytes / 1e6); };
  return "<p>The pictures show what was measured as: " + html_text(data) + ".</p>\n" +
         quant::plot_figure(plot_of(runs, data, size, best_runs(runs, data),
                                    {.id = "size",
                                     .title = "Quality against size",
                                     .description = "A dot for each result. To the left and below is better.",
                                     .x = {"weight files (MB)"},
                                     .y = {},
                                     .series = {}})) +
         speed_picture(runs, data);
}

// A column of a task: its header, and on what it was measured.
struct TaskColumn {
  std::string header, name, data;
};

std::vector<TaskColumn> task_columns(const std::vector<RunFigures>& runs) {
  std::vector<TaskColumn> columns;
  for (const RunFigures& run : runs) {
    for (const TaskFigure& task : run.tasks) {
      const auto is_same = [&](const TaskColumn& column) {
        return column.name == task.name && column.data == task.data;
      };
      if (std::ranges::any_of(columns, is_same)) continue;
      const auto num_alike = std::ranges::count(columns, task.name, &TaskColumn::name);
      columns.push_back(
          {task.name + (num_alike > 0 ? " (" + std::to_string(num_alike + 1) + ")" : ""), task.name, task.data});
    }
  }
  return columns;
}

const TaskFigure* find_task(const RunFigures& run, const TaskColumn& column) {
  const auto found = std::ranges::find_if(
      run.tasks, [&](const TaskFigure& task) { return task.name == column.name && task.data == column.data; });
  return found == run.tasks.end() ? nullptr : &*found;
}

bool has_recovery(const std::vector<RunFigures>& runs, const TaskColumn& column) {
  return std::ranges::any_of(runs, [&](const RunFigures& run) {
    const TaskFigure* const task = find_task(run, column);
    return task != nullptr && task->recovery();
  });
}

std::string in_percent(double share, int num_decimals) {
  return runtime::format_number(100.0 * share, num_decimals) + " %";
}

std::string accuracy_text(const TaskFigure& task) {
  return in_percent(task.accuracy, 2) + (task.standard_error ? " ± " + in_percent(*task.standard_error, 2) : "");
}

// Accuracy and recovery of each task, before the last column.
void add_tasks(const std::vector<RunFigures>& runs, HtmlTable& table) {
  for (const TaskColumn& column : task_columns(runs)) {
    const bool recovers = has_recovery(runs, column);
    table.columns.insert(table.columns.end() - 1, column.header);
    if (recovers) table.columns.insert(table.columns.end() - 1, "its recovery");
    for (size_t i = 0; i < runs.size(); ++i) {
      auto& row = table.rows[i];
      const TaskFigure* const task = find_task(runs[i], column);
      row.insert(row.end() - 1, task == nullptr ? HtmlCell{""} : HtmlCell{accuracy_text(*task), task->accuracy});
      const Value recovery = task == nullptr ? std::nullopt : task->recovery();
      if (recovers) row.insert(row.end() - 1, recovery ? HtmlCell{in_percent(*recovery, 1), recovery} : HtmlCell{""});
    }
  }
}

HtmlTable table_of(const std::vector<RunFigures>& runs) {
  HtmlTable table{.caption = std::to_string(runs.size()) + (runs.size() == 1 ? " row" : " rows"),
                  .columns = {"result", "stored as", "size", "bits per weight", "perplexity", "±", "original's", "KL",
                              "± of KL", "same most probable token", "decode, tokens per second", "MBU",
                              "prefill, tokens per second", "MFU", "evaluation, tokens per second", "measured"},
                  .rows = {},
                  .is_wide = true};
  const auto cell = [](const Value& value, int num_decimals) {
    return value ? HtmlCell{runtime::format_number(*value, num_decimals), value} : HtmlCell{""};
  };
  const auto percent = [](const Value& share) {
    return share ? HtmlCell{runtime::format_number(100.0 * *share, 1) + " %", share} : HtmlCell{""};
  };
  for (const RunFigures& run : runs) {
    table.rows.push_back({{run.name},
                          {run.stored_as},
                          {runtime::format_bytes(static_cast<int64_t>(run.bytes)), run.bytes},
                          cell(run.bits_per_weight, 3),
                          cell(run.perplexity, 4),
                          cell(run.perplexity_error, 4),
                          cell(run.reference_perplexity, 4),
                          cell(run.kl, 5),
                          cell(run.kl_error, 5),
                          cell(run.agreement, 4),
                          cell(run.decode, 1),
                          percent(run.decode_share),
                          cell(run.prefill, 1),
                          percent(run.prefill_share),
                          cell(run.tokens_per_second, 1),
                          {!run.data.empty()   ? run.data
                           : run.tasks.empty() ? "nothing"
                                               : "tasks alone"}});
  }
  add_tasks(runs, table);
  return table;
}

}  // namespace

std::optional<double> TaskFigure::recovery() const {
  return reference && *reference > 0.0 ? std::optional(accuracy / *reference) : std::nullopt;
}

FoundRuns find_runs(const std::vector<fs::path>& folders) {
  FoundRuns found;
  std::set<fs::path> seen;
  const auto skip = [&](const fs::path& folder, const std::string& why) {
    found.skipped.push_back("'" + folder.string() + "' is skipped: " + why);
  };
  const auto take = [&](const fs::path& folder) {
    if (!seen.insert(fs::weakly_canonical(folder)).second) return;
    for (const char* name : {runtime::kManifestName, runtime::kReportName}) {
      if (!runtime::is_there(folder / name)) return skip(folder, std::string("it has no ") + name);
    }
    try {
      const std::vector<RunFigures> runs = figures_of(folder);
      found.runs.insert(found.runs.end(), runs.begin(), runs.end());
    } catch (const std::exception& error) {
      std::string why = error.what();
      std::ranges::replace(why, '\n', ' ');
      skip(folder, why);
    }
  };
  for (const fs::path& folder : folders) {
    if (!fs::is_directory(folder)) {
      throw std::invalid_argument("'" + folder.string() +
                                  "' is no folder: expected results of 'pare run', or a folder that they lie in");
    }
    if (runtime::is_there(folder / runtime::kManifestName)) {
      take(folder);
      continue;
    }
    std::vector<fs::path> inner;
    for (const auto& entry : fs::directory_iterator(folder)) {
      if (entry.is_directory() && !entry.path().filename().string().starts_with('.')) inner.push_back(entry.path());
    }
    if (inner.empty()) skip(folder, "it holds no result");
    std::ranges::sort(inner);
    for (const fs::path& each : inner) take(each);
  }
  if (found.runs.empty()) {
    std::string reasons;
    for (const std::string& line : found.skipped) reasons += "; " + line;
    throw std::invalid_argument("no result of 'pare run' to report on" + reasons);
  }
  std::ranges::stable_sort(found.runs, {}, &RunFigures::bytes);
  return found;
}

std::vector<size_t> best_runs(const std::vector<RunFigures>& runs, const std::string& data) {
  return best_runs(runs, data, [](const RunFigures& run) { return Value(run.bytes); });
}

std::vector<size_t> best_runs(const std::vector<RunFigures>& runs, const std::string& data,
                              const std::function<Value(const RunFigures&)>& cost) {
  const bool by_kl = all_have_kl(runs, data);
  const auto loss = [&](size_t i) { return by_kl ? runs[i].kl : runs[i].perplexity; };
  std::vector<size_t> order;
  for (size_t i = 0; i < runs.size(); ++i) {
    if (runs[i].data == data && loss(i) && cost(runs[i])) order.push_back(i);
  }
  std::ranges::stable_sort(order, [&](size_t a, size_t b) {
    const double of_a = *cost(runs[a]), of_b = *cost(runs[b]);
    return of_a != of_b ? of_a < of_b : *loss(a) < *loss(b);
  });
  std::vector<size_t> best;
  for (const size_t i : order) {
    if (best.empty() || *loss(i) < *loss(best.back())) best.push_back(i);
  }
  return best;
}

std::string runs_page(const FoundRuns& found) {
  const std::string title = "Results beside one another";
  std::string body = "<header>\n<h1>" + title + "</h1>\n</header>\n<main>\n" +
                     pictures(found.runs, most_common_data(found.runs)) +
                     html_section("results", "All results", html_table(table_of(found.runs)));
  std::string skipped;
  for (const std::string& line : found.skipped) skipped += "<li>" + html_text(line) + "</li>\n";
  if (!skipped.empty()) body += html_section("skipped", "Skipped", "<ul>\n" + skipped + "</ul>\n");
  return html_page(title, body +
                              "</main>\n<footer>Made by pare report, of each result's pare.json and "
                              "report.json.</footer>\n");
}

std::string runs_markdown(const FoundRuns& found) {
  const std::vector<TaskColumn> tasks = task_columns(found.runs);
  const auto any = [&](const Value RunFigures::*figure) {
    return std::ranges::any_of(found.runs, [&](const RunFigures& run) { return (run.*figure).has_value(); });
  };
  std::vector<std::string> columns = {"result",          "stored as",  "size",
                                      "bits per weight", "perplexity", "KL from the original"};
  const bool has_decode = any(&RunFigures::decode), has_prefill = any(&RunFigures::prefill);
  if (has_decode) columns.emplace_back("decode, tokens/s");
  if (has_prefill) columns.emplace_back("prefill, tokens/s");
  for (const TaskColumn& task : tasks) {
    columns.push_back(markdown_text(task.header));
    if (has_recovery(found.runs, task)) columns.emplace_back("its recovery");
  }
  std::string text = "|", rule = "|";
  for (const std::string& column : columns) {
    text += " " + column + " |";
    rule += "---|";
  }
  text += "\n" + rule + "\n";
  std::set<std::string> data;
  for (const RunFigures& run : found.runs) {
    if (!run.data.empty()) data.insert(run.data);
    text += "| " + markdown_text(run.name) + " | " + markdown_text(run.stored_as) + " | " +
            runtime::format_bytes(static_cast<int64_t>(run.bytes)) + " | " +
            with_error(run.bits_per_weight, std::nullopt, 3) + " | " +
            with_error(run.perplexity, run.perplexity_error, 3) + " | " + with_error(run.kl, run.kl_error, 5) + " |";
    if (has_decode) text += " " + with_error(run.decode, std::nullopt, 1) + " |";
    if (has_prefill) text += " " + with_error(run.prefill, std::nullopt, 1) + " |";
    for (const TaskColumn& column : tasks) {
      const TaskFigure* const task = find_task(run, column);
      text += " " + (task == nullptr ? std::string() : accuracy_text(*task)) + " |";
      if (!has_recovery(found.runs, column)) continue;
      const Value recovery = task == nullptr ? std::nullopt : task->recovery();
      text += " " + (recovery ? in_percent(*recovery, 1) : std::string()) + " |";
    }
    text += "\n";
  }
  for (const std::string& label : data) text += "\nMeasured: " + markdown_text(label) + ".\n";
  for (const TaskColumn& task : tasks) {
    text += "\nMeasured: " + markdown_text(task.header) + ": " + markdown_text(task.data) + ".\n";
  }
  return text;
}

std::string runs_json(const FoundRuns& found) {
  Json rows = Json::array();
  for (const RunFigures& run : found.runs) {
    Json row = {{"name", run.name}, {"stored_as", run.stored_as}, {"output_bytes", run.bytes}, {"data", run.data}};
    const auto put = [&](const char* key, const Value& value) {
      if (value) row[key] = *value;
    };
    put("bits_per_weight_without_head", run.bits_per_weight);
    put("perplexity", run.perplexity);
    put("standard_error", run.perplexity_error);
    put("reference_perplexity", run.reference_perplexity);
    put("kl_mean", run.kl);
    put("kl_standard_error", run.kl_error);
    put("top1_agreement", run.agreement);
    put("tokens_per_second", run.tokens_per_second);
    put("decode_tokens_per_second", run.decode);
    put("decode_share", run.decode_share);
    put("prefill_tokens_per_second", run.prefill);
    put("prefill_share", run.prefill_share);
    for (const TaskFigure& task : run.tasks) {
      Json entry = {{"name", task.name}, {"data", task.data}, {"accuracy", task.accuracy}};
      if (task.standard_error) entry["standard_error"] = *task.standard_error;
      if (task.reference) entry["reference"] = *task.reference;
      if (const Value recovery = task.recovery()) entry["recovery"] = *recovery;
      row["tasks"].push_back(std::move(entry));
    }
    rows.push_back(std::move(row));
  }
  return runtime::json_text(Json{{"runs", rows}, {"skipped", found.skipped}});
}

}  // namespace pare::compress
