// Perplexity of whole documents, by word and by byte, as lm-evaluation-harness 0.4.13 measures it (tasks of the type
// loglikelihood_rolling, among them wikitext). Every token is predicted once. The first window of a document begins
// with the tokenizer's prefix token. Each later one has the last token of the one before it as its context, and the
// last one is filled up with tokens from before. Figures by word or byte can be compared between tokenizers.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/evaluate/evaluation.h"
#include "runtime/evaluate/perplexity.h"
#include "runtime/harness/loglikelihood.h"

namespace pare::runtime {

struct CountedDocument {
  std::string text;       // what is predicted
  int64_t num_words = 0;  // runs of white space, and one more: of the text as it stands in the file
  int64_t num_bytes = 0;  // likewise
};

// Reads a .jsonl with one document a line. `text` is taken as it is. `page` is a page of WikiText, whose spaces are
// first put as in plain text (detokenized). num_documents > 0 takes only the first ones; 0: all. Throws
// std::runtime_error (file and line) for anything else and for an empty document, and std::invalid_argument for other
// kinds of files and if there are fewer documents than asked for.
std::vector<CountedDocument> read_counted_documents(const std::filesystem::path& path, int64_t num_documents);

// Returns a page of WikiText as plain text: the harness' wikitext_detokenizer.
std::string detokenize_wikitext(std::string_view page);

// A comparison on the same documents. Differences are taken document by document.
struct DocumentComparison {
  Estimate reference_word_perplexity;
  Estimate word_perplexity_ratio;
};

struct DocumentEvaluation : EvaluationResult {
  std::string source;
  int64_t num_documents = 0, num_words = 0, num_bytes = 0, num_tokens = 0;
  std::vector<double> loglikelihoods;  // of each document
  // Their independent draws are documents: errors are those of a ratio of sums, to first order.
  Estimate word_perplexity, byte_perplexity, bits_per_byte;
  std::optional<DocumentComparison> comparison;
  double seconds = 0.0;  // only scoring, of the model

  std::string to_json() const override;
  std::string to_text() const override;
  std::vector<Figure> figures() const override;
  std::string data_label() const override { return source; }
  std::optional<double> figure(std::string_view gate) const override;  // "word_perplexity_ratio"
};

// `windows` are each document's rolling_windows.
DocumentEvaluation evaluate_documents(Transformer& model, std::span<const CountedDocument> documents,
                                      std::span<const std::vector<ScoredTokens>> windows,
                                      const std::function<void(double, int64_t)>& progress = {});
// Throws std::invalid_argument unless both are of equally many documents.
void compare_documents(DocumentEvaluation& model, const DocumentEvaluation& reference,
                       std::span<const CountedDocument> documents);

class DocumentOptions : public EvaluationOptionsOf<DocumentOptions> {
 public:
  int64_t num_documents = 0;
  int64_t max_length = 0;  // tokens per window; 0: the model's context
  AttentionBits bits;      // of the model; the reference keeps 32

  void fields(FieldVisitor& visit) override;
  std::string help(std::string_view key) const override;
  std::unique_ptr<Measurement> read(EvaluationSource& source) const override;
};
EvaluationRow documents_row();

}  // namespace pare::runtime
