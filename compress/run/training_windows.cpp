#include "compress/run/training_windows.h"

#include <algorithm>
#include <optional>
#include <span>
#include <stdexcept>
#include <utility>

#include "compress/run/run_data.h"
#include "compress/walk/statistics.h"
#include "distill/losses.h"
#include "runtime/evaluate/document_windows.h"
#include "runtime/evaluate/token_source.h"
#include "runtime/system/progress.h"
#include "runtime/system/sha256.h"

namespace pare::compress {
namespace {

namespace fs = std::filesystem;

// Windows to validate on are held out of the text, unless they come from one of their own.
TrainingWindows split(const LabelledWindows& all, const DistillOptions& options, ChosenWindows& chosen) {
  const auto seed = static_cast<uint64_t>(options.seed);
  const int64_t num_validation = options.validation_text.empty() ? options.validation_windows : 0;
  const int64_t num_training = options.windows > 0 ? std::min(options.windows, all.windows.num_windows - num_validation)
                                                   : all.windows.num_windows - num_validation;
  if (num_training < 1) {
    throw std::invalid_argument("distill: " + names_of(options) + " gives " + std::to_string(all.windows.num_windows) +
                                " windows of " + std::to_string(all.windows.num_tokens) + " tokens, of which " +
                                std::to_string(num_validation) +
                                " are for validation: give a longer text, shorter windows ('tokens'), fewer "
                                "'validation_windows' or a 'validation_text'");
  }
  // Validation windows are drawn first, so that they stay the same when more or fewer are trained on.
  std::vector<bool> is_validation(static_cast<size_t>(all.windows.num_windows), false);
  if (num_validation > 0) {
    for (const int64_t n : draw_sorted(all.windows.num_windows, num_validation, seed)) {
      is_validation[static_cast<size_t>(n)] = true;
    }
  }
  std::vector<int64_t> rest;
  for (int64_t n = 0; n < all.windows.num_windows; ++n) {
    if (!is_validation[static_cast<size_t>(n)]) rest.push_back(n);
  }
  TrainingWindows windows;
  const auto take_window = [&](LabelledWindows& part, int64_t n) {
    const auto take = [](std::span<const int32_t> from, std::vector<int32_t>& to) {
      to.insert(to.end(), from.begin(), from.end());
    };
    if (!all.first_N.empty() && part.first_N.empty()) part.first_N.push_back(0);
    take(all.ids(n), part.windows.ids_NT);
    if (!all.labels_NT.empty()) take(all.labels(n), part.labels_NT);
    if (!all.first_N.empty()) part.first_N.push_back(static_cast<int64_t>(part.windows.ids_NT.size()));
    if (!all.starts_N.empty()) part.starts_N.push_back(all.starts_N[static_cast<size_t>(n)]);
    part.windows.num_tokens = all.windows.num_tokens;
    ++part.windows.num_windows;
  };
  for (const int64_t i : draw_sorted(static_cast<int64_t>(rest.size()), num_training, seed)) {
    chosen.training.push_back(rest[static_cast<size_t>(i)]);
    take_window(windows.training, chosen.training.back());
  }
  for (int64_t n = 0; n < all.windows.num_windows; ++n) {
    if (!is_validation[static_cast<size_t>(n)]) continue;
    chosen.validation.push_back(n);
    take_window(windows.validation, n);
  }
  return windows;
}

// The recorded sequences, each as long as it is. Throws std::invalid_argument where they take more than max_bytes.
LabelledWindows read_store(const LogitStore& store, int64_t max_bytes) {
  constexpr int64_t kTokenBytes = 2 * sizeof(int32_t);  // the id and what it predicts
  if (store.num_tokens() > max_bytes / kTokenBytes) {
    throw std::invalid_argument("distill: '" + store.path().string() + "' holds " +
                                std::to_string(store.num_sequences()) + " sequences of " +
                                std::to_string(store.num_tokens()) + " tokens in all, which do not fit into " +
                                runtime::format_bytes(max_bytes) + ": raise --max-memory, or record fewer");
  }
  LabelledWindows data;
  data.windows.num_windows = store.num_sequences();
  data.windows.ids_NT.reserve(static_cast<size_t>(store.num_tokens()));
  data.labels_NT.reserve(static_cast<size_t>(store.num_tokens()));
  data.first_N.push_back(0);
  bool holds_documents = false;
  for (int64_t n = 0; n < store.num_sequences(); ++n) {
    const RecordedSequence sequence = store.sequence(n);
    for (size_t t = 0; t < sequence.ids.size(); ++t) {
      data.windows.ids_NT.push_back(sequence.ids[t]);
      data.labels_NT.push_back(sequence.label_mask[t] != 0 ? sequence.ids[t + 1]
                                                           : static_cast<int32_t>(distill::kIgnoredLabel));
    }
    data.first_N.push_back(static_cast<int64_t>(data.windows.ids_NT.size()));
    data.windows.num_tokens = std::max(data.windows.num_tokens, store.length(n));
    data.starts_N.push_back(sequence.starts);
    holds_documents = holds_documents || !sequence.starts.empty();
  }
  if (!holds_documents) data.starts_N.clear();
  return data;
}

// Whether all inputs of linears are rounded row by row, so that a document's are the same whatever shares its window.
bool rounds_by_row(const runtime::Checkpoint& model) {
  const InputFormats formats = read_input_formats(model);
  return std::all_of(formats.begin(), formats.end(), [](const auto& item) { return item.second.is_rowwise(); });
}

// How texts are read for training.
struct TextReader {
  const DistillOptions& options;
  const runtime::ModelDescription& model;  // of the student
  std::optional<runtime::Tokenizer> tokenizer = {};
  int32_t end_token = 0;
  // Otherwise each window is a piece of one document, as long as that is.
  bool shares_windows = true;

  runtime::DocumentCut cut() const { return {*tokenizer, end_token, options.tokens, model.vocabulary_size}; }

  LabelledWindows read_pieces(const fs::path& text, int64_t num_windows) const {
    const int64_t least = options.loss.loss == distill::DistillLoss::minillm ? options.prompt_tokens : 2;
    const std::vector<std::vector<int32_t>> pieces =
        runtime::read_document_pieces(text, cut(), std::max<int64_t>(least, 2));
    const auto num_pieces = static_cast<int64_t>(pieces.size());
    LabelledWindows data;
    data.windows.num_windows = num_windows > 0 ? std::min(num_windows, num_pieces) : num_pieces;
    data.windows.num_tokens = options.tokens;
    data.first_N.push_back(0);
    for (const std::vector<int32_t>& ids : std::span(pieces).first(static_cast<size_t>(data.windows.num_windows))) {
      data.windows.ids_NT.insert(data.windows.ids_NT.end(), ids.begin(), ids.end());
      data.first_N.push_back(static_cast<int64_t>(data.windows.ids_NT.size()));
    }
    return data;
  }

  // num_windows: the first so many; 0: all.
  LabelledWindows read(const fs::path& text, int64_t num_windows) const {
    LabelledWindows data;
    if (runtime::holds_token_windows(text)) {
      data.windows = runtime::read_token_windows(text, nullptr, options.tokens, num_windows,
                                                 /*add_special_tokens=*/true, model.vocabulary_size);
    } else if (shares_windows) {
      runtime::DocumentWindows documents = runtime::read_document_windows(text, cut(), num_windows);
      data = {std::move(documents.windows), {}, std::move(documents.starts_N)};
    } else {
      data = read_pieces(text, num_windows);
    }
    if (data.windows.num_tokens > model.context_length || data.windows.num_tokens < 2) {
      throw std::invalid_argument("distill: '" + text.string() + "' holds windows of " +
                                  std::to_string(data.windows.num_tokens) +
                                  " tokens; expected 2 to the model's context, " +
                                  std::to_string(model.context_length) + " ('tokens' sets the length)");
    }
    return data;
  }
};

// Where each window begins, where that follows from their one length.
void write_first(LabelledWindows& data) {
  if (!data.first_N.empty()) return;
  for (int64_t n = 0; n <= data.windows.num_windows; ++n) data.first_N.push_back(n * data.windows.num_tokens);
}

// `more` behind `all`, of texts, whose labels are the next tokens.
void append(LabelledWindows more, LabelledWindows& all) {
  if (all.first_N.empty() != more.first_N.empty()) {
    write_first(all);
    write_first(more);
  }
  if (all.starts_N.empty() != more.starts_N.empty()) {
    all.starts_N.resize(static_cast<size_t>(all.windows.num_windows));
    more.starts_N.resize(static_cast<size_t>(more.windows.num_windows));
  }
  const auto num_before = static_cast<int64_t>(all.windows.ids_NT.size());
  for (size_t n = 1; n < more.first_N.size(); ++n) all.first_N.push_back(num_before + more.first_N[n]);
  all.windows.ids_NT.insert(all.windows.ids_NT.end(), more.windows.ids_NT.begin(), more.windows.ids_NT.end());
  all.starts_N.insert(all.starts_N.end(), more.starts_N.begin(), more.starts_N.end());
  all.windows.num_windows += more.windows.num_windows;
}

}  // namespace

std::string names_of(const DistillOptions& options) {
  if (!options.logits.empty()) return "'" + options.logits + "'";
  std::string names;
  for (const std::string& text : options.text) names += (names.empty() ? "'" : ", '") + text + "'";
  return names;
}

TrainingWindows read_training_windows(const DistillOptions& options, const runtime::Checkpoint& student,
                                      const runtime::Checkpoint* teacher, const LogitStore* store, int64_t max_bytes,
                                      ChosenWindows& chosen) {
  TextReader reader{options, student.description()};
  const auto is_text = [](const std::string& file) { return !file.empty() && !runtime::holds_token_windows(file); };
  const bool reads_text = store == nullptr && std::any_of(options.text.begin(), options.text.end(), is_text);
  if (reads_text || is_text(options.validation_text)) {
    reader.tokenizer = runtime::Tokenizer::open(student.directory());
    reader.end_token = runtime::end_of_document(options.end_of_document, *reader.tokenizer, student.directory(),
                                                student.description());
    // A prompt is the beginning of one document, and so is what a range of a whole sequence is taken of.
    reader.shares_windows = options.loss.loss != distill::DistillLoss::minillm && rounds_by_row(student) &&
                            (teacher == nullptr || rounds_by_row(*teacher));
  }
  const auto read_all = [&](const std::vector<std::string>& texts) {
    LabelledWindows all = reader.read(texts.front(), 0);
    for (const std::string& text : std::span(texts).subspan(1)) {
      LabelledWindows more = reader.read(text, 0);
      if (more.windows.num_tokens != all.windows.num_tokens) {
        throw std::invalid_argument("distill: '" + text + "' holds windows of " +
                                    std::to_string(more.windows.num_tokens) + " tokens; expected " +
                                    std::to_string(all.windows.num_tokens) + " as in '" + texts.front() +
                                    "': all training data must have windows of one length");
      }
      append(std::move(more), all);
    }
    return all;
  };
  TrainingWindows windows =
      split(store == nullptr ? read_all(options.text) : read_store(*store, max_bytes), options, chosen);
  if (!options.validation_text.empty()) {
    windows.validation = reader.read(options.validation_text, options.validation_windows);
  }
  return windows;
}

std::string data_identity(const LabelledWindows& data) {
  std::string identity = windows_hash(data.windows);
  if (data.first_N.empty() && data.starts_N.empty()) return identity;
  runtime::Sha256 hash;
  hash.update(std::as_bytes(std::span(data.labels_NT)));
  hash.update(std::as_bytes(std::span(data.first_N)));
  for (const std::vector<int32_t>& starts : data.starts_N) {
    const std::string size = std::to_string(starts.size()) + " ";
    hash.update(std::as_bytes(std::span(size)));
    hash.update(std::as_bytes(std::span(starts)));
  }
  return identity + " documents " + hash.hex();
}

}  // namespace pare::compress
