// A whole evaluation of one's own, in one file with its row: whether a model and its reference would go on in the same
// way. The program knows nothing of it but the row.
#pragma once

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "runtime/evaluate/evaluation.h"
#include "runtime/evaluate/token_source.h"

namespace pare::test {
using namespace runtime;

struct Favourites : EvaluationResult {
  std::string source;
  int64_t num_windows = 0;
  std::optional<double> agreement;  // the share of windows after which both find the same token most probable

  std::string to_json() const override {
    nlohmann::json json = {{"windows", num_windows}};
    if (agreement) json["agreement"] = *agreement;
    return json.dump();
  }
  std::string to_text() const override { return "favourites of " + std::to_string(num_windows) + " windows\n"; }
  std::string data_label() const override { return source; }
  std::optional<double> figure(std::string_view) const override { return agreement; }
};

class FavouritesMeasurement : public Measurement {
 public:
  FavouritesMeasurement(TokenWindows windows, std::string source, bool reference)
      : windows_(std::move(windows)), source_(std::move(source)), reference_(reference) {}
  EvaluationExtent extent() const override {
    const int64_t num_tokens = windows_.num_tokens;
    return {.reference = reference_,
            .num_texts = windows_.num_windows,
            .num_tokens = windows_.num_windows * num_tokens,
            .workload = {.num_rows = num_tokens, .num_tokens = num_tokens, .keeps_every_layer = true},
            .in_turn = true};
  }
  std::unique_ptr<EvaluationResult> run(EvaluatedModels& models, Progress& progress) const override {
    auto result = std::make_unique<Favourites>();
    result->source = source_;
    result->num_windows = windows_.num_windows;
    const auto bar = stage_of(progress, "evaluate", "windows");
    const std::vector<int64_t> own = favourites(models.decoder(), bar);
    if (!reference_) return result;
    models.release_model();
    const std::vector<int64_t> others = favourites(models.reference_decoder(), bar);
    double num_equal = 0.0;
    for (size_t n = 0; n < own.size(); ++n) num_equal += own[n] == others[n] ? 1.0 : 0.0;
    result->agreement = num_equal / static_cast<double>(own.size());
    return result;
  }

 private:
  std::vector<int64_t> favourites(Transformer& model, const std::function<void(double, int64_t)>& bar) const {
    std::vector<int64_t> found;
    bar(0.0, windows_.num_windows);
    for (int64_t n = 0; n < windows_.num_windows; ++n) {
      const std::span<const float> logits = model.start(windows_.num_tokens)->feed(windows_.window(n));
      found.push_back(std::max_element(logits.begin(), logits.end()) - logits.begin());
      bar(static_cast<double>(n + 1), windows_.num_windows);
    }
    return found;
  }
  TokenWindows windows_;
  std::string source_;
  bool reference_;
};

class FavouritesOptions : public EvaluationOptionsOf<FavouritesOptions> {
 public:
  int64_t num_windows = 0;
  bool whole = true;

  void fields(FieldVisitor& visit) override {
    visit("ids", data, "Windows of token ids are continued.");
    visit("most_windows", num_windows, {.low = 0, .high = 100}, "This many windows are read. 0 reads all.");
    visit("whole", whole, "Windows are read to their end, not to their middle.");
    visit("reference", reference, "The uncompressed model is asked as well.");
  }
  std::unique_ptr<Measurement> read(EvaluationSource& source) const override {
    const TokenWindows all =
        read_token_windows(data, nullptr, 0, num_windows, false, source.model.description().vocabulary_size);
    TokenWindows windows;
    windows.num_windows = all.num_windows;
    windows.num_tokens = whole ? all.num_tokens : all.num_tokens / 2;
    for (int64_t n = 0; n < all.num_windows; ++n) {
      const auto ids = all.window(n).first(static_cast<size_t>(windows.num_tokens));
      windows.ids_NT.insert(windows.ids_NT.end(), ids.begin(), ids.end());
    }
    return std::make_unique<FavouritesMeasurement>(std::move(windows), data, reference);
  }
};

// The one row of the table.
inline const EvaluationRow kFavouritesRow = {.key = "test_favourites",
                                             .data_key = "ids",
                                             .option = "test-favourites",
                                             .kind = EvaluatedKind::decoder,
                                             .subject = "favourites",
                                             .meaning = "This asks models how they would go on.",
                                             .make_options = [] { return std::make_unique<FavouritesOptions>(); },
                                             .gates = {{.name = "test_agreement",
                                                        .is_least = true,
                                                        .limits = {.low = 0.0, .high = 2.0},
                                                        .meaning = "The models must agree at least so often."}}};

}  // namespace pare::test
