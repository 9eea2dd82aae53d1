// What a perplexity says: as JSON, to people, and in a model card.
#include <nlohmann/json.hpp>
#include <sstream>

#include "runtime/evaluate/perplexity.h"
#include "runtime/system/json_text.h"
#include "runtime/system/progress.h"
#include "runtime/system/visible_text.h"

namespace pare::runtime {
namespace {

// The object has mean, rms, min, max, and percentiles: a map from "0.1" to "99.9".
nlohmann::ordered_json statistics_json(const TokenStatistics& statistics) {
  nlohmann::ordered_json json = {{"mean", statistics.mean},
                                 {"rms", statistics.root_mean_square},
                                 {"min", statistics.least},
                                 {"max", statistics.most},
                                 {"percentiles", nlohmann::ordered_json::object()}};
  for (size_t i = 0; i < kPercentiles.size(); ++i) {
    json["percentiles"][percent_name(kPercentiles[i])] = statistics.percentiles[i];
  }
  return json;
}

}  // namespace

std::string Perplexity::to_json() const {
  nlohmann::ordered_json json;
  const auto put = [&](const std::string& name, const Estimate& estimate, const std::string& error_name) {
    json[name] = estimate.value;
    json[error_name] = estimate.standard_error ? nlohmann::ordered_json(*estimate.standard_error) : nullptr;
  };
  put("perplexity", perplexity, "standard_error");
  json["token_standard_error"] = token_standard_error;
  json["nll"] = nll;
  json["window_nll"] = window_nll;
  json["tokens"] = tokens;
  json["windows"] = windows;
  json["context"] = context;
  json["protocol"] = protocol;
  json["protocol_label"] = label;
  json["kv_bits"] = kv_bits;
  json["attention_bits"] = attention_bits;
  json["kv_bytes_per_token"] = kv_bytes_per_token;
  if (zero_inputs) json["zero_inputs"] = *zero_inputs;
  json["seconds"] = seconds;
  json["tokens_per_second"] = tokens_per_second;
  json["peak_memory_bytes"] = peak_memory_bytes;
  if (!events.empty()) json["events"] = events;
  if (top1_accuracy) json["top1_accuracy"] = *top1_accuracy;
  if (comparison) {
    put("reference_perplexity", comparison->reference_perplexity, "reference_standard_error");
    json["reference_nll"] = comparison->reference_nll;
    put("perplexity_ratio", comparison->perplexity_ratio, "perplexity_ratio_standard_error");
    put("perplexity_difference", comparison->perplexity_difference, "perplexity_difference_standard_error");
    put("kl_mean", comparison->kl_mean, "kl_standard_error");
    json["kl_median"] = comparison->kl.percentile(50.0);
    json["kl_p95"] = comparison->kl.percentile(95.0);
    json["kl_p99"] = comparison->kl.percentile(99.0);
    json["kl_max"] = comparison->kl.most;
    json["kl_histogram"] = {{"edges", kl_edges()}, {"counts", comparison->kl_counts}};
    json["kl"] = statistics_json(comparison->kl);
    json["probability_change"] = statistics_json(comparison->probability_change);
    put("probability_change_mean", comparison->probability_change_mean, "probability_change_standard_error");
    json["nll_correlation"] = comparison->nll_correlation;
    put("top1_agreement", comparison->top1_agreement, "top1_agreement_standard_error");
    if (!comparison->block_errors.empty()) json["block_errors"] = comparison->block_errors;
  }
  return json_text(json);
}

std::vector<Figure> Perplexity::figures() const {
  std::vector<Figure> all = {{"perplexity", "perplexity", perplexity.value, perplexity.standard_error}};
  if (!comparison) return all;
  all.front().reference = comparison->reference_perplexity.value;
  const auto add = [&](const std::string& key, const std::string& meaning, const Estimate& estimate) {
    all.push_back({key, meaning, estimate.value, estimate.standard_error, std::nullopt, 5});
  };
  add("perplexity_ratio", "perplexity over the original's", comparison->perplexity_ratio);
  add("kl_mean", "KL divergence from the original, mean in nats per token", comparison->kl_mean);
  add("kl_median", "the same, median", {comparison->kl.percentile(50.0), std::nullopt});
  add("kl_p99", "the same, 99th percentile", {comparison->kl.percentile(99.0), std::nullopt});
  add("top1_agreement", "share of tokens with the same most probable next token", comparison->top1_agreement);
  return all;
}

std::string Perplexity::to_text() const {
  std::ostringstream text;
  text << "protocol              " << visible_line(label) << '\n';
  text << "perplexity            " << with_error(perplexity, 4) << '\n';
  text << "nll                   " << format_number(nll, 6) << " nats per token\n";
  if (top1_accuracy) {
    text << "top-1 accuracy        " << format_number(100.0 * *top1_accuracy, 2) << " %\n";
  }
  if (comparison) {
    const Estimate agreement = comparison->top1_agreement;
    text << "reference perplexity  " << with_error(comparison->reference_perplexity, 4) << '\n';
    text << "ratio                 " << with_error(comparison->perplexity_ratio, 5) << " (paired)\n";
    text << "difference            " << with_error(comparison->perplexity_difference, 4) << " (paired)\n";
    const TokenStatistics &kl = comparison->kl, &change = comparison->probability_change;
    const Estimate& change_mean = comparison->probability_change_mean;
    text << "KL(reference||model)  " << with_error(comparison->kl_mean, 6) << ", median "
         << format_number(kl.percentile(50.0), 6) << ", p95 " << format_number(kl.percentile(95.0), 6) << ", p99 "
         << format_number(kl.percentile(99.0), 6) << ", max " << format_number(kl.most, 4) << '\n'
         << "  percentiles         " << percentiles_text(kl, 1.0, 6) << '\n'
         << "change of p in %      mean " << format_number(100.0 * change_mean.value, 3)
         << (change_mean.standard_error ? " +- " + format_number(100.0 * *change_mean.standard_error, 3) : "")
         << ", RMS " << format_number(100.0 * change.root_mean_square, 3) << ", least "
         << format_number(100.0 * change.least, 2) << ", most " << format_number(100.0 * change.most, 2) << '\n'
         << "  percentiles         " << percentiles_text(change, 100.0, 3) << '\n'
         << "correlation of losses " << format_number(100.0 * comparison->nll_correlation, 3) << " %\n";
    text << "same top-1            " << format_number(100.0 * agreement.value, 2)
         << (agreement.standard_error ? " +- " + format_number(100.0 * *agreement.standard_error, 2) : "") << " %\n";
  }
  text << "keys and values       " << kv_bits << " bits, " << kv_bytes_per_token
       << " bytes per token; attention's products in " << attention_bits << " bits\n";
  if (zero_inputs) {
    text << "zero inputs           " << format_number(100.0 * *zero_inputs, 2)
         << " % of the down projections' inputs\n";
  }
  text << "speed                 " << format_number(tokens_per_second, 1) << " tokens/s, " << format_duration(seconds)
       << '\n';
  text << "peak memory           " << format_bytes(peak_memory_bytes) << '\n';
  return text.str();
}

std::optional<double> Perplexity::figure(std::string_view gate) const {
  if (!comparison) return std::nullopt;
  return gate == "kl" ? comparison->kl_mean.value : comparison->perplexity_ratio.value;
}

}  // namespace pare::runtime
