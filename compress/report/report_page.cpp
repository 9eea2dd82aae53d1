#include "compress/report/report_page.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <span>
#include <stdexcept>
#include <vector>

#include "compress/report/html.h"
#include "compress/report/stored_as.h"
#include "compress/train/training_picture.h"
#include "quant/pictures/budget_picture.h"
#include "quant/pictures/picture_text.h"
#include "quant/pictures/plot.h"
#include "runtime/commands/artifact_files.h"
#include "runtime/system/json_text.h"
#include "runtime/system/progress.h"
#include "runtime/system/sha256.h"

namespace pare::compress {
namespace {

using Json = nlohmann::ordered_json;

std::optional<double> number(const Json& json, const char* key) {
  if (!json.contains(key) || !json[key].is_number()) return std::nullopt;
  return json[key].get<double>();
}

std::string text(const Json& json, const char* key) {
  return json.contains(key) && json[key].is_string() ? json[key].get<std::string>() : std::string();
}

HtmlCell cell(const std::optional<double>& value, int num_decimals) {
  if (!value) return {""};
  return {runtime::format_number(*value, num_decimals), value};
}

HtmlCell short_cell(const std::optional<double>& value) {
  if (!value) return {""};
  return {quant::short_digits(*value, 4), value};
}

HtmlCell bytes_cell(const std::optional<double>& value) {
  if (!value) return {""};
  return {runtime::format_bytes(static_cast<int64_t>(*value)), value};
}

HtmlCell with_unit(const std::optional<double>& value, const char* unit) {
  if (!value) return {""};
  return {runtime::format_number(*value, 1) + " " + unit, value};
}

// --- the summary ---

std::string tile(const std::string& value, const std::string& meaning) {
  return "<li><b>" + html_text(value) + "</b><span>" + html_text(meaning) + "</span></li>\n";
}

std::string tiles(const Json& report, const Json& manifest) {
  std::string html = "<ul class=\"tiles\">\n";
  const double bytes = number(report, "output_bytes").value_or(0.0),
               before = number(report, "source_bytes").value_or(0.0);
  html += tile(runtime::format_bytes(static_cast<int64_t>(bytes)),
               "of weights, before " + runtime::format_bytes(static_cast<int64_t>(before)) +
                   (before > 0.0 ? ": " + runtime::format_number(100.0 * bytes / before, 1) + " %" : ""));
  if (const auto bits = number(report, "bits_per_weight_without_head"); bits && std::isfinite(*bits)) {
    html += tile(runtime::format_number(*bits, 3), "bits per weight of the blocks' linears");
  }
  if (const auto bits = number(report, "bits_per_weight"); bits && std::isfinite(*bits)) {
    html += tile(runtime::format_number(*bits, 3), "bits per weight with embedding and head");
  }
  if (manifest.contains("evaluations")) {
    for (const Json& evaluation : manifest["evaluations"]) {
      const Json& first = evaluation.at("figures").empty() ? Json::object() : evaluation["figures"][0];
      if (const auto value = number(first, "value")) {
        const auto reference = number(first, "reference");
        html += tile(
            runtime::format_number(*value, 4),
            text(first, "meaning") + (reference ? ", the original's is " + runtime::format_number(*reference, 4) : ""));
      }
    }
  }
  if (report.contains("benchmark")) {
    const auto figure = [&](const char* key, double factor) {
      return runtime::format_number(factor * number(report["benchmark"], key).value_or(0.0), 1);
    };
    html += tile(figure("decode_tokens_per_second", 1.0),
                 "tokens per second in decode, " + figure("decode_share", 100.0) + " % of the roof of reading");
    html += tile(figure("prefill_tokens_per_second", 1.0),
                 "tokens per second in prefill, " + figure("prefill_share", 100.0) + " % of the roof of multiply-adds");
  }
  html += tile(runtime::format_duration(number(report, "seconds").value_or(0.0)), "the last process of the run");
  html += tile(runtime::format_bytes(static_cast<int64_t>(number(report, "peak_memory_bytes").value_or(0.0))),
               "peak memory");
  return html + "</ul>\n";
}

// --- what was measured ---

// Every evaluation's result has a list of its own in report.json.
void for_each_result(const Json& report, const std::function<void(const Json&)>& use) {
  for (const Json& member : report) {
    if (!member.is_array()) continue;
    for (const Json& result : member) {
      if (result.is_object() && result.contains("tokens_per_second") && result.contains("peak_memory_bytes")) {
        use(result);
      }
    }
  }
}

// The counts of tokens between edges of KL; the two outermost have no edge on one side.
std::string kl_histogram(const Json& result, const std::string& id) {
  if (!result.contains("kl_histogram")) return {};
  const auto edges = result["kl_histogram"].at("edges").get<std::vector<double>>();
  const auto counts = result["kl_histogram"].at("counts").get<std::vector<double>>();
  if (edges.size() < 2 || counts.size() != edges.size() + 1) return {};
  quant::PlotSeries bars{"tokens", quant::PlotMark::bars, {}, {}};
  const double step = edges[1] / edges[0];
  for (size_t i = 0; i < counts.size(); ++i) {
    const double low = i == 0 ? edges[0] / step : edges[i - 1],
                 high = i == edges.size() ? edges.back() * step : edges[i];
    bars.x.push_back(std::sqrt(low * high));
    bars.y.push_back(counts[i]);
    bars.names.push_back(quant::fixed_digits(counts[i], 0) + " tokens " +
                         (i == 0 ? "below " + quant::short_digits(high, 3)
                          : i == edges.size()
                              ? "of at least " + quant::short_digits(low, 3)
                              : "from " + quant::short_digits(low, 3) + " to " + quant::short_digits(high, 3)));
  }
  return quant::plot_figure({.id = id,
                             .title = "How far each token's prediction is from the original's",
                             .description = "A histogram of the KL divergence of tokens, on a logarithmic axis.",
                             .x = {"KL divergence of a token (nats)", true},
                             .y = {"tokens"},
                             .series = {bars}});
}

std::string evaluations(const Json& report, const Json& manifest) {
  if (!manifest.contains("evaluations")) return {};
  std::string html;
  for (const Json& evaluation : manifest["evaluations"]) {
    HtmlTable table{text(evaluation, "data"), {"figure", "original", "this model", "±"}, {}};
    for (const Json& figure : evaluation.at("figures")) {
      const int decimals = std::clamp(figure.at("decimals").get<int>(), 0, 10);
      table.rows.push_back({{text(figure, "meaning")},
                            cell(number(figure, "reference"), decimals),
                            cell(number(figure, "value"), decimals),
                            cell(number(figure, "standard_error"), decimals)});
    }
    html += html_table(table);
  }
  int num_pictures = 0;
  for_each_result(report,
                  [&](const Json& result) { html += kl_histogram(result, "kl" + std::to_string(num_pictures++)); });
  return html.empty() ? html : html + "<p>± is the standard error over the windows or texts.</p>\n";
}

// --- speed ---

// One row of each model for prefill and decode: its speed, and what share of the machine's roof that is.
std::string speed(const Json& report) {
  if (!report.contains("benchmark")) return {};
  const Json& benchmark = report["benchmark"];
  HtmlTable table{"Speed beside the roofs of the machine",
                  {"what", "model", "tokens per second", "median", "rate", "roof", "share of the roof"},
                  {}};
  const auto add = [&](const Json& result, const std::string& model, const std::string& phase, const std::string& rate,
                       const char* unit) {
    const auto value = [&](const std::string& key) { return number(result, (phase + key).c_str()); };
    const auto share = value("_share");
    table.rows.push_back({{phase + " of " + quant::fixed_digits(value("_tokens").value_or(0.0), 0) + " tokens"},
                          {model},
                          cell(value("_tokens_per_second"), 1),
                          cell(value("_tokens_per_second_median"), 1),
                          with_unit(value("_" + rate), unit),
                          with_unit(value("_roof_" + rate), unit),
                          with_unit(share ? std::optional(100.0 * *share) : std::nullopt, "%")});
  };
  const auto add_models = [&](const char* phase, const char* rate, const char* unit) {
    add(benchmark, "this model", phase, rate, unit);
    if (benchmark.contains("reference")) add(benchmark["reference"], "original", phase, rate, unit);
  };
  add_models("prefill", "gflops", "GFLOP/s");
  add_models("decode", "gbps", "GB/s");
  const double num_threads = number(benchmark, "threads").value_or(0.0);
  return html_table(table) + "<p>Measured on " + html_text(text(benchmark, "backend")) +
         (num_threads > 0.0 ? " with " + quant::fixed_digits(num_threads, 0) + " threads" : "") +
         ". Of prefill the share is the linears' operations over those of multiply-adds in registers (MFU). Of decode "
         "it is the bytes read over those of plain reading (MBU): the median of all repetitions, each beside the roof "
         "that was measured around it. The roof in the table is the highest of them.</p>\n";
}

// --- layers ---

// The number in a name such as "model.layers.12.mlp.down_proj"; nothing where it has none.
std::optional<double> block_of(const std::string& name) {
  for (size_t begin = 0; begin < name.size();) {
    const size_t end = std::min(name.find('.', begin), name.size());
    const std::string part = name.substr(begin, end - begin);
    if (!part.empty() && part.size() < 7 && std::ranges::all_of(part, [](char c) { return c >= '0' && c <= '9'; })) {
      return std::stod(part);
    }
    begin = end + 1;
  }
  return std::nullopt;
}

struct LayerFigure {
  std::string id, title, axis;
  const char* key;
};

std::string layer_plot(const Json& manifest, const LayerFigure& figure) {
  std::vector<quant::PlotSeries> series;
  for (const Json& layer : manifest.at("layers")) {
    const std::string name = text(layer, "name");
    const auto value = number(layer, figure.key);
    const auto block = block_of(name);
    if (!value || !block) continue;
    const std::string kind = name.substr(name.rfind('.') + 1);
    auto found = std::ranges::find(series, kind, &quant::PlotSeries::label);
    if (found == series.end())
      found = series.insert(series.end(), quant::PlotSeries{kind, quant::PlotMark::dots, {}, {}});
    found->x.push_back(*block);
    found->y.push_back(*value);
    found->names.push_back(name + ": " + quant::short_digits(*value, 4));
  }
  if (series.empty()) return {};
  return quant::plot_figure(
      {.id = figure.id,
       .title = figure.title,
       .description = "A dot for each layer, from the first block to the last, on a logarithmic axis.",
       .x = {.label = "block", .is_whole = true},
       .y = {figure.axis, true},
       .series = series});
}

// What all layers up to a block have changed together, as the evaluations that compare with the original measured it.
std::string accumulated_errors(const Json& report) {
  std::vector<quant::PlotSeries> series;
  for_each_result(report, [&](const Json& result) {
    if (!result.contains("block_errors")) return;
    quant::PlotSeries line{text(result, "protocol_label"), quant::PlotMark::dots, {}, {}};
    const Json& errors = result["block_errors"];
    for (size_t block = 0; block < errors.size(); ++block) {
      if (!errors[block].is_number()) continue;
      line.x.push_back(static_cast<double>(block));
      line.y.push_back(errors[block].get<double>());
      line.names.push_back("behind block " + std::to_string(block) + ": " + quant::short_digits(line.y.back(), 4));
    }
    series.push_back(line);
  });
  if (series.empty()) return {};
  return quant::plot_figure({.id = "accumulated",
                             .title = "Error behind each block, of all layers up to there together",
                             .description = "A dot for each block, from the first to the last, on a logarithmic axis.",
                             .x = {.label = "block", .is_whole = true},
                             .y = {"relative error of the hidden state", true},
                             .series = series}) +
         "<p>The error behind a block is |h - h0|² / |h0|²: h is the hidden state of this model, and h0 the "
         "original's on the same tokens. The last 64th of each window's tokens is looked at.</p>\n";
}

std::string layers(const Json& report, const Json& manifest) {
  if (manifest.at("layers").empty()) return {};
  std::string html =
      layer_plot(manifest, {"errors", "Error of each layer's weights alone", "relative error", "relative_error"}) +
      layer_plot(manifest, {"outputs", "Error of outputs of layers with rounded inputs", "relative error of the output",
                            "output_error"}) +
      accumulated_errors(report);
  HtmlTable table{std::to_string(manifest["layers"].size()) + " layers",
                  {"layer", "shape", "pass", "stored as", "size", "bits per weight", "error", "measured by", "events"},
                  {}};
  for (const Json& layer : manifest["layers"]) {
    const std::string name = text(layer, "name");
    const auto shape = layer.at("shape").get<std::vector<int64_t>>();
    const double num_weights = static_cast<double>(shape.at(0)) * static_cast<double>(shape.at(1));
    const std::optional<double> bytes =
        report.contains("layer_bytes") ? number(report["layer_bytes"], name.c_str()) : std::nullopt;
    std::optional<double> bits;
    if (bytes) bits = 8.0 * *bytes / num_weights;
    table.rows.push_back({{name},
                          {std::to_string(shape[0]) + " × " + std::to_string(shape[1]), num_weights},
                          {text(layer, "method")},
                          {stored_as(layer)},
                          bytes_cell(bytes),
                          cell(bits, 3),
                          short_cell(number(layer, "relative_error")),
                          {text(layer, "error_measure")},
                          {layer.at("events").empty() ? "" : std::to_string(layer["events"].size())}});
  }
  table.is_wide = true;
  return html + html_table(table) +
         "<p>The error is that of the layer alone, relative to its own weights under the measure named.</p>\n";
}

// --- training, survey, budget ---

std::string training_of(const Json& training, const std::string& id) {
  std::vector<TrainingPoint> curve;
  for (const Json& point : training.at("curve")) {
    curve.push_back({.step = point.at("step").get<int64_t>(),
                     .num_tokens = point.at("tokens").get<int64_t>(),
                     .loss = number(point, "loss"),
                     .validation_perplexity = point.at("validation_perplexity").get<double>(),
                     .validation_loss = number(point, "validation_loss"),
                     .validation_kl = number(point, "validation_kl")});
  }
  std::string html;
  for (const quant::Plot& plot : training_plots(curve, training.at("kept_step").get<int64_t>(), id)) {
    html += quant::plot_figure(plot);
  }
  return html;
}

std::string trainings(const Json& report) {
  std::string html;
  if (report.contains("earlier_trainings")) {
    for (size_t i = 0; i < report["earlier_trainings"].size(); ++i) {
      html += training_of(report["earlier_trainings"][i], "earlier" + std::to_string(i));
    }
  }
  if (report.contains("training")) html += training_of(report["training"], "training");
  return html;
}

std::string sensitivity(const Json& report) {
  if (!report.contains("sensitivity")) return {};
  HtmlTable table{"What rounding each group of layers alone adds: " + text(report["sensitivity"], "label"),
                  {"group", "part", "scheme", "weights", "error", "KL (nats per token)"},
                  {}};
  for (const Json& group : report["sensitivity"].at("groups")) {
    const auto kl =
        group.contains("kl") && group["kl"].is_object() ? number(group["kl"], "value") : number(group, "kl");
    const auto weights = number(group, "weights");
    table.rows.push_back({{text(group, "name")},
                          {text(group, "part")},
                          {text(group, "scheme")},
                          cell(weights, 0),
                          short_cell(number(group, "error")),
                          short_cell(kl)});
  }
  return html_table(table);
}

std::string budget(const Json& report) {
  if (!report.contains("budget")) return {};
  const Json& budget = report["budget"];
  std::string html;
  if (budget.contains("curve")) {
    const auto mark = [](const Json& point, const std::string& label) {
      return quant::PictureMark{label, point.at("size_bytes").get<int64_t>(), point.at("predicted_loss").get<double>()};
    };
    quant::BudgetPicture picture{.title = "Predicted loss against size",
                                 .loss_label = "predicted loss (nats per token)",
                                 .num_weights = budget.at("weights").get<int64_t>(),
                                 .curve = {},
                                 .chosen = mark(budget, "chosen"),
                                 .marks = {}};
    for (const Json& point : budget["curve"]) {
      picture.curve.push_back({point.at("size_bytes").get<int64_t>(), point.at("predicted_loss").get<double>()});
    }
    if (budget.contains("uniform")) {
      for (const Json& point : budget["uniform"]) picture.marks.push_back(mark(point, text(point, "scheme")));
    }
    html += quant::plot_figure(quant::budget_plot(picture));
  }
  HtmlTable table{"What the budget gave each group", {"group", "bits", "group size", "size", "predicted loss"}, {}};
  for (const Json& group : budget.at("groups")) {
    table.rows.push_back({{text(group, "name")},
                          cell(number(group, "bits"), 0),
                          cell(number(group, "group_size"), 0),
                          bytes_cell(number(group, "size_bytes")),
                          short_cell(number(group, "predicted_loss"))});
  }
  return html + html_table(table);
}

// --- the rest ---

std::string engines(const Json& manifest) {
  if (manifest.at("engines").empty()) return {};
  HtmlTable table{"What the rules of these releases say; loading was not tried", {"engine", "loads it", "because"}, {}};
  for (const Json& verdict : manifest["engines"]) {
    std::string reasons;
    for (const Json& reason : verdict.at("reasons"))
      reasons += (reasons.empty() ? "" : "; ") + reason.get<std::string>();
    table.rows.push_back({{text(verdict, "engine")}, {verdict.at("loads").get<bool>() ? "yes" : "no"}, {reasons}});
  }
  return html_table(table);
}

std::string events(const Json& report) {
  if (report.at("events").empty()) return "<p>Nothing went other than planned.</p>\n";
  std::string html = "<ul>\n";
  for (const Json& event : report["events"]) html += "<li>" + html_text(event.get<std::string>()) + "</li>\n";
  return html + "</ul>\n";
}

std::string times(const Json& report) {
  HtmlTable table{"Seconds of this process", {"stage", "seconds"}, {}};
  for (const auto& [stage, seconds] : report.at("stage_seconds").items()) {
    if (seconds.get<double>() >= 0.005) table.rows.push_back({{stage}, cell(seconds.get<double>(), 2)});
  }
  std::string html = table.rows.empty() ? "" : html_table(table);
  for_each_result(report, [&](const Json& result) {
    const auto rate = number(result, "tokens_per_second");
    if (!rate) return;
    html += "<p>An evaluation took " + runtime::format_number(*rate, 1) + " tokens per second.</p>\n";
  });
  return html;
}

}  // namespace

std::string report_page(const std::string& report_text, const std::string& manifest_text, const std::string& name) {
  const Json report = runtime::parse_ordered_json(report_text, runtime::kReportName);
  const Json manifest = runtime::parse_ordered_json(manifest_text, runtime::kManifestName);
  try {
    std::string body = "<header>\n<h1>" + html_text(name) + "</h1>\n<p>A model compressed by pare " +
                       html_text(text(manifest, "pare")) + ".</p>\n</header>\n<main>\n" + tiles(report, manifest);
    body += html_section("measured", "What was measured", evaluations(report, manifest));
    body += html_section("speed", "Speed", speed(report));
    body += html_section("loads", "Who loads it", engines(manifest));
    body += html_section("training-section", "Training", trainings(report));
    body += html_section("layers", "Layers", layers(report, manifest));
    body += html_section("sensitivity", "Sensitivity", sensitivity(report));
    body += html_section("budget", "Budget", budget(report));
    body += html_section("events", "Events", events(report));
    body += html_section("times", "Time", times(report));
    body += html_section("recipe", "Recipe", "<pre>" + html_text(text(manifest, "recipe")) + "</pre>\n");
    body += "</main>\n<footer>Made of report.json and pare.json, which hold all figures.</footer>\n";
    return html_page(name + ": report", body);
  } catch (const nlohmann::json::exception& error) {
    throw std::runtime_error(std::string("report.json or pare.json is not what pare writes: ") + error.what());
  }
}

std::string with_page(const std::string& report, const std::string& page) {
  Json json = runtime::parse_ordered_json(report, runtime::kReportName);
  json[runtime::kPageMember] = runtime::sha256_hex(std::as_bytes(std::span(page)));
  return runtime::json_text(json, 2);
}

}  // namespace pare::compress
