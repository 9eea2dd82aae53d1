#include "runtime/evaluate/embeddings.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <sstream>
#include <stdexcept>
#include <utility>

#include "runtime/engine/decoder_embeddings.h"
#include "runtime/evaluate/token_source.h"
#include "runtime/system/atomic_file.h"
#include "runtime/system/input_files.h"
#include "runtime/system/json_text.h"
#include "runtime/system/memory_usage.h"
#include "runtime/system/progress.h"
#include "runtime/system/visible_text.h"
#include "runtime/text/unicode.h"

namespace pare::runtime {
namespace {

std::vector<std::string_view> split_at_tabs(std::string_view line) {
  std::vector<std::string_view> columns;
  for (size_t begin = 0;;) {
    const size_t tab = line.find('\t', begin);
    columns.push_back(line.substr(begin, tab - begin));
    if (tab == std::string_view::npos) return columns;
    begin = tab + 1;
  }
}

double parse_score(std::string_view text, const std::string& where) {
  double score = 0.0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), score);
  if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(score)) {
    throw std::runtime_error(where + ": expected a number in the third column, found '" + visible_line(text) + "'");
  }
  return score;
}

// Returns 1-based ranks; equal values share the mean of theirs.
std::vector<double> average_ranks(std::span<const double> values) {
  std::vector<size_t> order(values.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(), [&](size_t a, size_t b) { return values[a] < values[b]; });
  std::vector<double> ranks(values.size());
  for (size_t begin = 0; begin < order.size();) {
    size_t end = begin + 1;
    while (end < order.size() && values[order[end]] == values[order[begin]]) ++end;
    const double rank = 0.5 * static_cast<double>(begin + 1 + end);
    for (size_t i = begin; i < end; ++i) ranks[order[i]] = rank;
    begin = end;
  }
  return ranks;
}

class Embeddings {
 public:
  Embeddings(const EmbeddingModel& model, const TextPairs& data, const Pooling& pooling,
             const std::function<void(int64_t, int64_t)>& progress)
      : width_(static_cast<size_t>(model.width)), values_ND_(data.texts.size() * width_) {
    model.embed(data.texts, pooling, values_ND_.data(), progress);
  }
  std::span<const float> of(size_t text) const { return std::span(values_ND_).subspan(text * width_, width_); }
  std::vector<double> similarities(const TextPairs& data) const {
    std::vector<double> result;
    for (const auto& [a, b] : data.pairs) result.push_back(cosine_similarity(of(a), of(b)));
    return result;
  }

 private:
  size_t width_;
  std::vector<float> values_ND_;
};

nlohmann::json correlation_json(const std::optional<double>& correlation) {
  return correlation ? nlohmann::json(*correlation) : nlohmann::json();
}

std::string correlation_text(const std::optional<double>& correlation, int num_decimals) {
  return correlation ? format_number(*correlation, num_decimals) : "undefined, because all similarities are equal";
}

// Without a reference, there must be something else to compare with.
void check_scores(const TextPairs& data) {
  if (!data.gold.empty()) return;
  throw std::invalid_argument(
      data.source +
      " has no scores in a third column, and there is no reference: there is nothing to compare "
      "with");
}

// Both are of either kind of model.
int64_t context_length(const Checkpoint& checkpoint) {
  return checkpoint.is_encoder() ? checkpoint.encoder().context_length : checkpoint.description().context_length;
}
int64_t vocabulary_size(const Checkpoint& checkpoint) {
  return checkpoint.is_encoder() ? checkpoint.encoder().vocabulary_size : checkpoint.description().vocabulary_size;
}
int64_t hidden_size(const Checkpoint& checkpoint) {
  return checkpoint.is_encoder() ? checkpoint.encoder().hidden_size : checkpoint.description().hidden_size;
}

// Throws std::invalid_argument for a decoder whose makers do not say how its states become an embedding.
Pooling pooling_of(const Checkpoint& checkpoint) {
  require_known_modules(checkpoint.directory());
  const Pooling pooling = read_pooling(checkpoint.directory(), context_length(checkpoint));
  if (pooling.is_stated || checkpoint.is_encoder()) return pooling;
  throw std::invalid_argument("'" + checkpoint.directory().string() +
                              "' is a decoder without 1_Pooling/config.json, which says how its states become an "
                              "embedding: it is no model of embeddings, or that folder was not copied with it");
}

class EmbeddingsMeasurement : public Measurement {
 public:
  EmbeddingsMeasurement(TextPairs data, const Pooling& pooling, const Checkpoint& model, bool reference)
      : data_(std::move(data)), pooling_(pooling), reference_(reference) {
    int64_t longest = 0;
    for (const std::vector<int32_t>& ids : data_.texts) {
      num_tokens_ += static_cast<int64_t>(ids.size());
      longest = std::max(longest, static_cast<int64_t>(ids.size()));
    }
    workload_ = model.is_encoder()
                    ? DeviceWorkload{.num_rows = std::max(Encoder::kBatchRows, context_length(model))}
                    : DeviceWorkload{.num_rows = std::max(Transformer::kBatchRows, longest), .num_tokens = longest};
  }

  EvaluationExtent extent() const override {
    return {.reference = reference_,
            .num_texts = static_cast<int64_t>(data_.texts.size()),
            .num_tokens = num_tokens_,
            .workload = workload_};
  }

  std::unique_ptr<EvaluationResult> run(EvaluatedModels& models, Progress& progress) const override {
    const bool are_encoders = models.are_encoders();
    std::optional<EmbeddingModel> reference;
    if (reference_) {
      reference = are_encoders ? EmbeddingModel::of(models.reference_encoder())
                               : EmbeddingModel::of(models.reference_decoder());
    }
    const EmbeddingModel model =
        are_encoders ? EmbeddingModel::of(models.encoder()) : EmbeddingModel::of(models.decoder());
    return std::make_unique<EmbeddingEvaluation>(evaluate_embeddings(
        model, reference ? &*reference : nullptr, data_, pooling_, stage_of(progress, "evaluate", "texts")));
  }

 private:
  TextPairs data_;
  Pooling pooling_;
  int64_t num_tokens_ = 0;
  DeviceWorkload workload_;
  bool reference_;
};

}  // namespace

TextPairs read_text_pairs(const std::filesystem::path& path, const Tokenizer& tokenizer, int64_t max_tokens) {
  refuse_folder(path, "pairs of texts (.tsv)", {".tsv"});
  if (path.extension() != ".tsv") {
    throw std::invalid_argument(path.string() + ": expected pairs of texts in a .tsv file, found '" +
                                path.extension().string() + "'");
  }
  const std::string content = read_file_or_pipe(path);
  if (const auto offset = find_invalid_utf8(content)) {
    throw std::runtime_error(path.string() + ": not UTF-8: byte " + std::to_string(*offset) +
                             " does not start a valid character");
  }
  TextPairs data;
  data.source = path.filename().string();
  std::map<std::string, size_t, std::less<>> known;
  const auto index_of = [&](std::string_view text) {
    const auto [entry, is_new] = known.emplace(text, data.texts.size());
    if (is_new) {
      data.plain_texts.emplace_back(text);
      data.texts.push_back(tokenizer.encode_truncated(text, max_tokens));
    }
    return entry->second;
  };
  size_t num_columns = 0;
  for (size_t begin = 0, number = 1; begin < content.size(); ++number) {
    const size_t end = std::min(content.find('\n', begin), content.size());
    std::string_view line = std::string_view(content).substr(begin, end - begin);
    begin = end + 1;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty()) continue;
    const std::string where = path.string() + ":" + std::to_string(number);
    const std::vector<std::string_view> columns = split_at_tabs(line);
    if (num_columns == 0) num_columns = columns.size();
    if (columns.size() != num_columns || num_columns < 2 || num_columns > 3) {
      throw std::runtime_error(where +
                               ": expected two texts separated by a tab, and a number in every line or in none; " +
                               "found " + std::to_string(columns.size()) + " columns");
    }
    const size_t first = index_of(columns[0]), second = index_of(columns[1]);
    data.pairs.emplace_back(first, second);
    if (num_columns == 3) data.gold.push_back(parse_score(columns[2], where));
  }
  if (data.gold.size() > 1 &&
      std::all_of(data.gold.begin(), data.gold.end(), [&](double g) { return g == data.gold[0]; })) {
    throw std::invalid_argument(path.string() + ": all scores are equal: there is no order to compare with");
  }
  if (data.pairs.size() < 2) {
    throw std::invalid_argument(path.string() + ": expected at least two pairs of texts, found " +
                                std::to_string(data.pairs.size()));
  }
  return data;
}

std::optional<double> rank_correlation(std::span<const double> x, std::span<const double> y) {
  if (x.size() != y.size() || x.size() < 2) {
    throw std::invalid_argument("rank_correlation: expected two rows of equally many values, at least 2, found " +
                                std::to_string(x.size()) + " and " + std::to_string(y.size()));
  }
  const std::vector<double> a = average_ranks(x), b = average_ranks(y);
  const double mean = 0.5 * static_cast<double>(x.size() + 1);
  double products = 0.0, squares_a = 0.0, squares_b = 0.0;
  for (size_t i = 0; i < a.size(); ++i) {
    products += (a[i] - mean) * (b[i] - mean);
    squares_a += (a[i] - mean) * (a[i] - mean);
    squares_b += (b[i] - mean) * (b[i] - mean);
  }
  if (squares_a == 0.0 || squares_b == 0.0) return std::nullopt;
  return products / std::sqrt(squares_a * squares_b);
}

double cosine_similarity(std::span<const float> a, std::span<const float> b) {
  double product = 0.0, squares_a = 0.0, squares_b = 0.0;
  for (size_t i = 0; i < a.size(); ++i) {
    const double x = static_cast<double>(a[i]), y = static_cast<double>(b[i]);
    product += x * y;
    squares_a += x * x;
    squares_b += y * y;
  }
  return product / std::sqrt(squares_a * squares_b);
}

void check_comparable(const Checkpoint& model, const Checkpoint& reference, const TextPairs& data) {
  const Pooling own = pooling_of(model);
  const Pooling other = pooling_of(reference);
  const auto fail = [&](const std::string& what) {
    throw std::invalid_argument("'" + reference.directory().string() + "' and '" + model.directory().string() +
                                "' cannot be compared: " + what);
  };
  if (model.is_encoder() != reference.is_encoder()) fail("one is a decoder and one an encoder");
  if (own.kind != other.kind || own.max_tokens != other.max_tokens) {
    fail("their embeddings are a " + other.label() + " and a " + own.label());
  }
  if (hidden_size(model) != hidden_size(reference)) {
    fail("their embeddings have " + std::to_string(hidden_size(reference)) + " and " +
         std::to_string(hidden_size(model)) + " values");
  }
  const Tokenizer tokenizer = Tokenizer::open(reference.directory());
  for (size_t n = 0; n < data.texts.size(); ++n) {
    if (tokenizer.encode_truncated(data.plain_texts[n], other.max_tokens) != data.texts[n]) {
      fail("their tokenizers give different tokens");
    }
  }
}

EmbeddingModel EmbeddingModel::of(Encoder& model) {
  return {.width = model.description().hidden_size,
          .backend = &model.backend(),
          .embed = [&model](auto&&... arguments) { model.embed(arguments...); }};
}

EmbeddingModel EmbeddingModel::of(Transformer& model) {
  return {.width = model.description().hidden_size,
          .backend = &model.backend(),
          .embed = [&model](auto&&... arguments) { embed_with_decoder(model, arguments...); }};
}

EmbeddingEvaluation evaluate_embeddings(const EmbeddingModel& model, const EmbeddingModel* reference,
                                        const TextPairs& data, const Pooling& pooling,
                                        const std::function<void(int64_t, int64_t)>& progress) {
  if (reference == nullptr) check_scores(data);
  if (reference != nullptr && reference->backend != model.backend) {
    throw std::invalid_argument("the model and its reference must be loaded on the same backend");
  }
  MemorySampler memory;
  EmbeddingEvaluation result;
  result.source = data.source;
  result.pooling = pooling.label();
  result.has_scores = !data.gold.empty();
  result.num_pairs = static_cast<int64_t>(data.pairs.size());
  result.num_texts = static_cast<int64_t>(data.texts.size());
  for (const auto& ids : data.texts) result.num_tokens += static_cast<int64_t>(ids.size());

  const auto start = std::chrono::steady_clock::now();
  const int64_t num_steps = result.num_texts * (reference != nullptr ? 2 : 1);
  const auto report = [&](int64_t before) {
    return [&, before](int64_t done, int64_t) {
      if (progress) progress(before + done, num_steps);
    };
  };
  if (progress) progress(0, num_steps);
  const Embeddings own(model, data, pooling, report(0));
  const std::vector<double> similarities = own.similarities(data);
  if (result.has_scores) result.gold_correlation = rank_correlation(similarities, data.gold);
  if (reference != nullptr) {
    const Embeddings other(*reference, data, pooling, report(result.num_texts));
    const std::vector<double> reference_similarities = other.similarities(data);
    std::vector<double> cosines;
    for (size_t n = 0; n < data.texts.size(); ++n) cosines.push_back(cosine_similarity(own.of(n), other.of(n)));
    result.cosine = estimate_over_windows(cosines);
    result.cosine_min = *std::min_element(cosines.begin(), cosines.end());
    result.rank_correlation = rank_correlation(similarities, reference_similarities);
    if (result.has_scores) result.reference_gold_correlation = rank_correlation(reference_similarities, data.gold);
  }
  result.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  result.peak_memory_bytes = memory.peak_bytes();
  return result;
}

std::string EmbeddingEvaluation::to_json() const {
  nlohmann::ordered_json json = {
      {"source", source}, {"pooling", pooling}, {"pairs", num_pairs}, {"texts", num_texts}, {"tokens", num_tokens}};
  if (cosine) {
    json["cosine_mean"] = cosine->value;
    if (cosine->standard_error) json["cosine_standard_error"] = *cosine->standard_error;
    json["cosine_min"] = cosine_min;
    json["rank_correlation"] = correlation_json(rank_correlation);
  }
  if (has_scores) {
    json["gold_correlation"] = correlation_json(gold_correlation);
    if (cosine) json["reference_gold_correlation"] = correlation_json(reference_gold_correlation);
  }
  json["seconds"] = seconds;
  json["peak_memory_bytes"] = peak_memory_bytes;
  return json_text(json);
}

std::vector<Figure> EmbeddingEvaluation::figures() const {
  std::vector<Figure> all;
  const auto add = [&](const std::string& key, const std::string& meaning, const std::optional<double>& value,
                       const std::optional<double>& reference) {
    if (value) all.push_back({key, meaning, *value, std::nullopt, reference, 5});
  };
  if (cosine) {
    add("cosine_mean", "cosine similarity to the original's embeddings, mean", cosine->value, std::nullopt);
    all.back().standard_error = cosine->standard_error;
    add("cosine_min", "the same, least", cosine_min, std::nullopt);
    add("rank_correlation", "rank correlation of the pairs' similarities with the original's", rank_correlation,
        std::nullopt);
  }
  if (has_scores) {
    add("gold_correlation", "rank correlation of the pairs' similarities with the file's scores", gold_correlation,
        cosine ? reference_gold_correlation : std::nullopt);
  }
  return all;
}

std::string EmbeddingEvaluation::to_text() const {
  std::ostringstream text;
  text << visible_line(source) << ": " << num_pairs << " pairs of " << num_texts << " texts, " << num_tokens
       << " tokens; " << pooling << '\n';
  if (cosine) {
    text << "cosine to the reference  " << format_number(cosine->value, 6);
    if (cosine->standard_error) text << " +- " << format_number(*cosine->standard_error, 6);
    text << ", least " << format_number(cosine_min, 6) << '\n'
         << "rank correlation of the pairs' similarities  " << correlation_text(rank_correlation, 6) << '\n';
  }
  if (has_scores) {
    text << "rank correlation with the file's scores  " << correlation_text(gold_correlation, 5);
    if (cosine) text << " (the reference's " << correlation_text(reference_gold_correlation, 5) << ")";
    text << '\n';
  }
  return text.str();
}

std::optional<double> EmbeddingEvaluation::figure(std::string_view) const {
  return cosine ? std::optional(cosine->value) : std::nullopt;
}

void EmbeddingsOptions::fields(FieldVisitor& visit) {
  visit("pairs", data, "This `.tsv` has two texts a line, whose embeddings are compared.");
  visit("reference", reference, "The uncompressed model is measured as well, and compared with.");
}

std::string EmbeddingsOptions::help(std::string_view key) const {
  if (key != "pairs") return "";
  return "measure the embeddings of a model on this .tsv, which has two texts and perhaps a score on each line: "
         "compare them with --reference (cosine similarity, rank correlation) and with the scores";
}

std::unique_ptr<Measurement> EmbeddingsOptions::read(EvaluationSource& source) const {
  const Pooling pooling = pooling_of(source.model);
  TextPairs pairs = read_text_pairs(data, *source.tokenizer(), pooling.max_tokens);
  check_ids_of_texts(pairs.texts, vocabulary_size(source.model), data);
  if (!reference) check_scores(pairs);
  if (source.other != nullptr) check_comparable(source.model, *source.other, pairs);
  return std::make_unique<EmbeddingsMeasurement>(std::move(pairs), pooling, source.model, reference);
}

EvaluationRow embeddings_row() {
  return {.key = "embeddings",
          .data_key = "pairs",
          .option = "pairs",
          .kind = EvaluatedKind::either,
          .subject = "embeddings of pairs of texts",
          .meaning = "This measures embeddings of pairs of texts, by an encoder or a decoder that is made for it.",
          .make_options = [] { return std::make_unique<EmbeddingsOptions>(); },
          .gates = {{.name = "cosine",
                     .is_least = true,
                     .limits = {.low = -1.0, .high = 1.0},
                     .meaning = "The mean similarity of embeddings with the uncompressed model's must be at least "
                                "this."}}};
}

}  // namespace pare::runtime
