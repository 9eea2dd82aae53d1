#include "runtime/evaluate/document_perplexity.h"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numeric>
#include <sstream>
#include <stdexcept>
#include <utility>

#include "runtime/evaluate/token_source.h"
#include "runtime/system/atomic_file.h"
#include "runtime/system/input_files.h"
#include "runtime/system/json_text.h"
#include "runtime/system/memory_usage.h"
#include "runtime/system/progress.h"
#include "runtime/system/visible_text.h"
#include "runtime/text/python_text.h"
#include "runtime/text/unicode.h"

namespace pare::runtime {
namespace {

// Takes away white space behind `open` and before the next `close`, pair by pair.
std::string tightened(const std::string& text, char open, char close) {
  std::string result;
  for (size_t at = 0; at < text.size();) {
    const size_t begin = text.find(open, at);
    const size_t end = begin == std::string::npos ? begin : text.find(close, begin + 1);
    if (end == std::string::npos) return result + text.substr(at);
    result += text.substr(at, begin + 1 - at);
    result += strip(std::string_view(text).substr(begin + 1, end - begin - 1));
    result += close;
    at = end + 1;
  }
  return result;
}

// Numbers between slashes, after an apostrophe and a blank, become the five characters [0-9]: the harness replaces them
// by the words of its own expression.
std::string without_slashed_digits(const std::string& text) {
  std::string result;
  for (size_t at = 0; at < text.size();) {
    const bool is_digit = at + 4 < text.size() && text.compare(at, 3, "/' ") == 0 && text[at + 3] >= '0' &&
                          text[at + 3] <= '9' && text[at + 4] == '/';
    result += is_digit ? "/'[0-9]/" : std::string(1, text[at]);
    at += is_digit ? 5 : 1;
  }
  return result;
}

// len(re.split(r"\s+", text)) in Python.
int64_t count_words(std::string_view text) {
  int64_t num_words = 1;
  bool was_space = false;
  for (size_t at = 0; at < text.size(); at += utf8_length(text[at])) {
    const bool is_space = strip(text.substr(at, utf8_length(text[at]))).empty();
    if (is_space && !was_space) ++num_words;
    was_space = is_space;
  }
  return num_words;
}

// Returns sum(values) / sum(weights), and the error of such a ratio to first order.
Estimate ratio_of_sums(std::span<const double> values, std::span<const double> weights) {
  const double sum = std::accumulate(weights.begin(), weights.end(), 0.0);
  Estimate ratio{std::accumulate(values.begin(), values.end(), 0.0) / sum, std::nullopt};
  const auto num = static_cast<double>(values.size());
  if (values.size() < 2) return ratio;
  double sum_of_squares = 0.0;
  for (size_t n = 0; n < values.size(); ++n) {
    const double rest = values[n] - ratio.value * weights[n];
    sum_of_squares += rest * rest;
  }
  ratio.standard_error = std::sqrt(num / (num - 1.0) * sum_of_squares) / sum;
  return ratio;
}

Estimate exp_of(const Estimate& x) {
  Estimate result{std::exp(x.value), std::nullopt};
  if (x.standard_error) result.standard_error = result.value * *x.standard_error;
  return result;
}

std::vector<double> words_of(std::span<const CountedDocument> documents) {
  std::vector<double> words;
  for (const CountedDocument& document : documents) words.push_back(static_cast<double>(document.num_words));
  return words;
}

std::vector<std::vector<ScoredTokens>> windows_of(std::span<const CountedDocument> documents,
                                                  const Tokenizer& tokenizer, int64_t max_inputs) {
  std::vector<std::vector<ScoredTokens>> windows;
  for (const CountedDocument& document : documents) {
    windows.push_back(rolling_windows(tokenizer, document.text, max_inputs));
  }
  return windows;
}

class DocumentMeasurement : public Measurement {
 public:
  using Windows = std::vector<std::vector<ScoredTokens>>;
  DocumentMeasurement(const DocumentOptions& options, std::vector<CountedDocument> documents, Windows own,
                      Windows others)
      : options_(options), documents_(std::move(documents)), own_(std::move(own)), others_(std::move(others)) {}

  EvaluationExtent extent() const override {
    EvaluationExtent extent = {.reference = options_.reference,
                               .num_texts = static_cast<int64_t>(documents_.size()),
                               .workload = {.kv_bits = std::min(options_.bits.kv, options_.bits.products)},
                               .in_turn = true};
    for (const Windows* all : {&own_, &others_}) {
      for (const std::vector<ScoredTokens>& windows : *all) {
        for (const ScoredTokens& window : windows) {
          extent.workload.num_tokens = std::max(extent.workload.num_tokens, window.num_inputs());
          if (all == &own_) extent.num_tokens += window.num_inputs();
          extent.held_bytes += static_cast<int64_t>(window.ids.size() * sizeof(int32_t));
        }
      }
    }
    extent.workload.num_rows =
        std::max(extent.workload.num_tokens, std::min(Transformer::kBatchRows, extent.num_tokens));
    return extent;
  }

  std::unique_ptr<EvaluationResult> run(EvaluatedModels& models, Progress& progress) const override {
    const auto evaluated = [&](Transformer& model, const Windows& windows) {
      DocumentEvaluation result =
          evaluate_documents(model, documents_, windows, stage_of(progress, "evaluate", "windows"));
      result.source = std::filesystem::path(options_.data).filename().string();
      return result;
    };
    models.decoder().use_attention_bits(options_.bits);
    auto result = std::make_unique<DocumentEvaluation>(evaluated(models.decoder(), own_));
    if (!options_.reference) return result;
    models.release_model();
    compare_documents(*result, evaluated(models.reference_decoder(), others_), documents_);
    return result;
  }

 private:
  DocumentOptions options_;
  std::vector<CountedDocument> documents_;
  Windows own_, others_;
};

}  // namespace

std::string detokenize_wikitext(std::string_view page) {
  std::string text = replaced(std::string(page), "s '", "s'");
  text = without_slashed_digits(text);
  for (const auto& [old, with] : {std::pair(" @-@ ", "-"),
                                  {" @,@ ", ","},
                                  {" @.@ ", "."},
                                  {" : ", ": "},
                                  {" ; ", "; "},
                                  {" . ", ". "},
                                  {" ! ", "! "},
                                  {" ? ", "? "},
                                  {" , ", ", "}}) {
    text = replaced(text, old, with);
  }
  for (const auto& [open, close] : {std::pair('(', ')'), {'[', ']'}, {'{', '}'}, {'"', '"'}, {'\'', '\''}}) {
    text = tightened(text, open, close);
  }
  for (const auto& [old, with] : {std::pair("= = = =", "===="),
                                  {"= = =", "==="},
                                  {"= =", "=="},
                                  {" \u00b0 ", "\u00b0"},
                                  {" \n", "\n"},
                                  {"\n ", "\n"},
                                  {" N ", " 1 "},
                                  {" 's", "'s"}}) {
    text = replaced(text, old, with);
  }
  return text;
}

std::vector<CountedDocument> read_counted_documents(const std::filesystem::path& path, int64_t num_documents) {
  refuse_folder(path, "documents (.jsonl)", {".jsonl"});
  if (path.extension() != ".jsonl") {
    throw std::invalid_argument(path.string() + ": expected a .jsonl with a document a line (text, or page), found '" +
                                path.extension().string() + "'");
  }
  std::vector<CountedDocument> documents;
  for_each_line(read_file_or_pipe(path), path.string(), [&](std::string_view line, const std::string& where) {
    const nlohmann::json object = parse_json(line, where, Nul::allowed);
    const bool is_page = object.is_object() && object.contains("page");
    const char* const name = is_page ? "page" : "text";
    if (!object.is_object() || !object.contains(name) || !object.at(name).is_string()) {
      throw std::runtime_error(where + ": expected an object with a string in the field 'text' or 'page'");
    }
    const auto text = object.at(name).get<std::string>();
    documents.push_back(
        {is_page ? detokenize_wikitext(text) : text, count_words(text), static_cast<int64_t>(text.size())});
    if (strip(documents.back().text).empty()) throw std::runtime_error(where + ": the document is empty");
  });
  const auto num_found = static_cast<int64_t>(documents.size());
  if (num_found < std::max<int64_t>(num_documents, 1)) {
    throw std::invalid_argument(path.string() + ": expected at least " +
                                std::to_string(std::max<int64_t>(num_documents, 1)) + " documents, found " +
                                std::to_string(num_found) + (num_found > 0 ? ": ask for fewer" : ""));
  }
  if (num_documents > 0) documents.resize(static_cast<size_t>(num_documents));
  return documents;
}

DocumentEvaluation evaluate_documents(Transformer& model, std::span<const CountedDocument> documents,
                                      std::span<const std::vector<ScoredTokens>> windows,
                                      const std::function<void(double, int64_t)>& progress) {
  MemorySampler memory;
  const auto start = std::chrono::steady_clock::now();
  std::vector<ScoredTokens> all;
  for (const std::vector<ScoredTokens>& of_document : windows) {
    all.insert(all.end(), of_document.begin(), of_document.end());
  }
  const std::vector<Loglikelihood> found = loglikelihoods(model, all, progress);
  DocumentEvaluation result;
  std::vector<double> losses, bytes;
  size_t at = 0;
  for (size_t n = 0; n < documents.size(); ++n) {
    double sum = 0.0;
    for (const ScoredTokens& window : windows[n]) {
      sum += found.at(at++).sum;
      result.num_tokens += window.num_scored;
    }
    result.loglikelihoods.push_back(sum);
    losses.push_back(-sum);
    bytes.push_back(static_cast<double>(documents[n].num_bytes));
    result.num_words += documents[n].num_words;
    result.num_bytes += documents[n].num_bytes;
  }
  result.num_documents = static_cast<int64_t>(documents.size());
  result.word_perplexity = exp_of(ratio_of_sums(losses, words_of(documents)));
  const Estimate per_byte = ratio_of_sums(losses, bytes);
  result.byte_perplexity = exp_of(per_byte);
  result.bits_per_byte = per_byte;
  result.bits_per_byte.value /= std::log(2.0);
  if (per_byte.standard_error) result.bits_per_byte.standard_error = *per_byte.standard_error / std::log(2.0);
  result.seconds = seconds_since(start);
  result.peak_memory_bytes = memory.peak_bytes();
  return result;
}

void compare_documents(DocumentEvaluation& model, const DocumentEvaluation& reference,
                       std::span<const CountedDocument> documents) {
  if (model.loglikelihoods.size() != reference.loglikelihoods.size()) {
    throw std::invalid_argument("the model was measured on " + std::to_string(model.loglikelihoods.size()) +
                                " documents, the reference on " + std::to_string(reference.loglikelihoods.size()) +
                                ": they cannot be compared");
  }
  std::vector<double> more;  // of the loss
  for (size_t n = 0; n < model.loglikelihoods.size(); ++n) {
    more.push_back(reference.loglikelihoods[n] - model.loglikelihoods[n]);
  }
  model.comparison = {.reference_word_perplexity = reference.word_perplexity,
                      .word_perplexity_ratio = exp_of(ratio_of_sums(more, words_of(documents)))};
}

std::string DocumentEvaluation::to_json() const {
  using Json = nlohmann::ordered_json;
  Json json;
  const auto put = [&](const std::string& name, const Estimate& estimate) {
    json[name] = estimate.value;
    json[name + "_standard_error"] = estimate.standard_error ? Json(*estimate.standard_error) : nullptr;
  };
  put("word_perplexity", word_perplexity);
  put("byte_perplexity", byte_perplexity);
  put("bits_per_byte", bits_per_byte);
  if (comparison) {
    put("reference_word_perplexity", comparison->reference_word_perplexity);
    put("word_perplexity_ratio", comparison->word_perplexity_ratio);
  }
  json["source"] = source;
  json["documents"] = num_documents;
  json["words"] = num_words;
  json["bytes"] = num_bytes;
  json["tokens"] = num_tokens;
  json["loglikelihoods"] = loglikelihoods;
  json["seconds"] = seconds;
  json["peak_memory_bytes"] = peak_memory_bytes;
  return json_text(json);
}

std::vector<Figure> DocumentEvaluation::figures() const {
  std::vector<Figure> all = {
      {"word_perplexity", "perplexity by word", word_perplexity.value, word_perplexity.standard_error},
      {"bits_per_byte", "bits per byte", bits_per_byte.value, bits_per_byte.standard_error}};
  if (!comparison) return all;
  all.front().reference = comparison->reference_word_perplexity.value;
  const Estimate& ratio = comparison->word_perplexity_ratio;
  all.push_back({"word_perplexity_ratio", "perplexity by word over the original's", ratio.value, ratio.standard_error,
                 std::nullopt, 5});
  return all;
}

std::string DocumentEvaluation::to_text() const {
  std::ostringstream text;
  text << "documents             " << visible_line(source) << ", " << num_documents << " documents, " << num_words
       << " words, " << num_bytes << " bytes, " << num_tokens << " tokens\n"
       << "word perplexity       " << with_error(word_perplexity, 4) << '\n'
       << "byte perplexity       " << with_error(byte_perplexity, 6) << '\n'
       << "bits per byte         " << with_error(bits_per_byte, 6) << '\n';
  if (comparison) {
    text << "reference's           " << with_error(comparison->reference_word_perplexity, 4) << " per word\n"
         << "ratio                 " << with_error(comparison->word_perplexity_ratio, 5) << " (paired)\n";
  }
  text << "time                  " << format_duration(seconds) << '\n'
       << "peak memory           " << format_bytes(peak_memory_bytes) << '\n';
  return text.str();
}

std::optional<double> DocumentEvaluation::figure(std::string_view) const {
  return comparison ? std::optional(comparison->word_perplexity_ratio.value) : std::nullopt;
}

void DocumentOptions::fields(FieldVisitor& visit) {
  visit("file", data, "Perplexity by word and byte is measured on the documents of this `.jsonl`.");
  visit("limit", num_documents, {.low = 0, .high = 1 << 30},
        "The first so many documents are measured, and the file must hold them. 0 takes all.");
  visit("max_length", max_length, {.low = 2, .high = 1 << 20},
        "A window has at most this many tokens. Without it, as many as the model's context.");
  visit_bits(visit, bits);
  visit("reference", reference, "The uncompressed model is measured as well, and compared with.");
}

std::string DocumentOptions::help(std::string_view key) const {
  if (key == "file") {
    return "measure the perplexity of whole documents by word and by byte, as lm-evaluation-harness does: a .jsonl "
           "with a text, or a page of WikiText, a line";
  }
  if (key == "limit") return kLimitHelp;
  return key == "max_length" ? "tokens per window (default: the model's context)" : "";
}

std::unique_ptr<Measurement> DocumentOptions::read(EvaluationSource& source) const {
  std::vector<CountedDocument> documents = read_counted_documents(data, num_documents);
  const auto windows_for = [&](const Tokenizer& tokenizer, const Checkpoint& model) {
    const int64_t longest = model.description().context_length;
    if (max_length > longest) {
      throw std::invalid_argument("max_length: windows of " + std::to_string(max_length) +
                                  " tokens were asked for; the model's context is " + std::to_string(longest));
    }
    return windows_of(documents, tokenizer, max_length == 0 ? longest : max_length);
  };
  auto own = windows_for(*source.tokenizer(), source.model), others = own;
  if (source.other != nullptr) {  // texts are compared, so it may have another tokenizer
    others = windows_for(Tokenizer::open(source.other->directory()), *source.other);
  }
  return std::make_unique<DocumentMeasurement>(*this, std::move(documents), std::move(own), std::move(others));
}

EvaluationRow documents_row() {
  return {.key = "documents",
          .data_key = "file",
          .option = "documents",
          .kind = EvaluatedKind::decoder,
          .subject = "perplexity of documents by word and byte",
          .meaning = "This measures the perplexity of whole documents, by word and by byte.",
          .make_options = [] { return std::make_unique<DocumentOptions>(); },
          .gates = {{.name = "word_perplexity_ratio",
                     .limits = {.low = 0.0, .high = 1e6},
                     .meaning = "The perplexity by word may be at most this many times that of the uncompressed "
                                "model."}}};
}

}  // namespace pare::runtime
