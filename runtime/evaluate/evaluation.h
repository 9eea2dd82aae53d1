// What can be measured of a model, as a table. An evaluation is one file and one row of evaluation_table.cpp. Its list
// of fields gives the keys of a recipe's `evaluate:` and the options of `eval`. What both do with it goes through these
// classes, and nobody else knows it by name:
//
//   EvaluationRow -> EvaluationOptions -> read() -> Measurement -> run() -> EvaluationResult
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/engine/activation_mode.h"
#include "runtime/engine/encoder.h"
#include "runtime/engine/memory_need.h"
#include "runtime/engine/transformer.h"
#include "runtime/format/fields.h"
#include "runtime/model/checkpoint.h"
#include "runtime/system/progress.h"
#include "runtime/tokenizer/tokenizer.h"

namespace pare::runtime {

// The extent of a measurement says what it takes. Its figures are of one model; a reference takes as much again.
struct EvaluationExtent {
  bool reference = false;
  int64_t num_texts = 0;         // windows, prompts or texts
  int64_t num_tokens = 0;        // of all texts
  int64_t num_new_tokens = 0;    // decoded one by one, at most
  DeviceWorkload workload = {};  // of a decoder; the reference's keys and values stay float32. Encoders: num_rows alone
  int64_t held_bytes = 0;        // ids and figures, of both models
  bool in_turn = false;          // the models work one after the other, and need not be held together
};

// The models that are measured: one, and perhaps a reference. Each is loaded when it is first asked for.
class EvaluatedModels {
 public:
  // keeps_models: other measurements follow. `loading` shows how loading goes; null: nothing does. All arguments must
  // outlive this.
  // activations: the model's, not the reference's.
  EvaluatedModels(const Checkpoint& model, const Checkpoint* reference, Backend& backend, bool keeps_models,
                  Progress* loading = nullptr, ActivationMode activations = ActivationMode::exact);

  // They throw what load throws; std::logic_error for a reference that is not there.
  Transformer& decoder();
  Transformer& reference_decoder();
  Encoder& encoder();
  Encoder& reference_encoder();
  bool are_encoders() const { return model_.is_encoder(); }
  const Checkpoint& checkpoint() const { return model_; }
  // The measurement does not need the model any more. It is dropped unless others follow.
  void release_model();

 private:
  template <typename Model>
  Model& loaded(const Checkpoint* checkpoint, std::optional<Model>& model);
  const Checkpoint& model_;
  const Checkpoint* reference_;
  Backend& backend_;
  bool keeps_models_;
  Progress* loading_;
  ActivationMode activations_;
  std::optional<Transformer> decoder_, reference_decoder_;
  std::optional<Encoder> encoder_, reference_encoder_;
};

// Returns what the models take of a backend's memory with these measurements, before any is loaded: a list for each set
// of models that are held at once. reference may be null. keeps_models: as of EvaluatedModels. on_host: as of
// DeviceWorkload.
std::vector<std::vector<MemoryNeed>> memory_needs(const Checkpoint& model, const Checkpoint* reference,
                                                  std::span<const EvaluationExtent> extents, bool keeps_models,
                                                  bool on_host);

// One figure of a result for people, the same on any number of threads: no time and no memory.
struct Figure {
  std::string key;      // as in the JSON object of the result
  std::string meaning;  // "perplexity", in the words of a table
  double value = 0.0;
  std::optional<double> standard_error = {};
  std::optional<double> reference = {};  // the reference model's; empty: it has none
  int num_decimals = 4;                  // that people are shown
};

// Holds what was measured. Derived classes say which figures these are.
class EvaluationResult {
 public:
  int64_t peak_memory_bytes = 0;    // sampled RssAnon + RssShmem; callers may add the peak while loading
  std::vector<std::string> events;  // describe what is not known about the data
  virtual ~EvaluationResult() = default;
  virtual std::string to_json() const = 0;  // one JSON object
  virtual std::string to_text() const = 0;  // a few lines of text, without the events
  // Names the data in messages.
  virtual std::string data_label() const = 0;
  // Returns the figures that a model card shows, in their order.
  virtual std::vector<Figure> figures() const { return {}; }
  // Returns the figure that a gate of the row bounds; nothing if it was not measured.
  virtual std::optional<double> figure(std::string_view) const { return std::nullopt; }
};

// An evaluation with its data in the models' tokens.
class Measurement {
 public:
  virtual ~Measurement() = default;
  virtual EvaluationExtent extent() const = 0;
  // Throws Interrupted, and what the measure throws.
  virtual std::unique_ptr<EvaluationResult> run(EvaluatedModels& models, Progress& progress) const = 0;
};

// The models for which data are read.
class EvaluationSource {
 public:
  // compared: a model that is compared with and may have another tokenizer; null: there is none, or its tokenizer is
  // the model's. What is not known about the data is added to `unknown`. All must outlive this.
  EvaluationSource(const Checkpoint& measured, const Checkpoint* compared, std::vector<std::string>& unknown)
      : model(measured), other(compared), events(unknown) {}
  // Returns the model's tokenizer, which is opened once.
  std::shared_ptr<const Tokenizer> tokenizer();
  // The same; null for a file that holds token windows.
  const Tokenizer* tokenizer_for(const std::filesystem::path& text);

  const Checkpoint& model;
  const Checkpoint* const other;
  std::vector<std::string>& events;

 private:
  std::shared_ptr<const Tokenizer> tokenizer_;
};

class EvaluationOptions {
 public:
  std::string data;       // the file that is measured on
  bool reference = true;  // another model is measured too, and compared with

  virtual ~EvaluationOptions() = default;
  virtual std::unique_ptr<EvaluationOptions> clone() const = 0;
  // Visits every option, `data` and `reference` included, with what it means (runtime/format/fields.h).
  virtual void fields(FieldVisitor& visit) = 0;
  // Visits every file beside `data` that read() opens, with the key that names it; one that is not given is "".
  virtual void other_files(const std::function<void(std::string_view key, std::string& file)>&) {}
  // Returns the file that run() writes, for others to read later; "": none. No recipe has one: a resumed run would find
  // it there. written_key names the option that gives it; empty: no option does.
  virtual std::string written_file() const { return {}; }
  virtual std::string_view written_key() const { return {}; }
  // Returns how the help of `eval` words an option; empty: as `fields` does.
  virtual std::string help(std::string_view) const { return {}; }
  // Throws std::invalid_argument and std::runtime_error for files that cannot be used, options that do not fit the
  // model, and a model that cannot be compared with the other.
  virtual std::unique_ptr<Measurement> read(EvaluationSource& source) const = 0;
};

// Clones are alike for all: Options names the class itself.
template <typename Options>
class EvaluationOptionsOf : public EvaluationOptions {
 public:
  std::unique_ptr<EvaluationOptions> clone() const override {
    return std::make_unique<Options>(static_cast<const Options&>(*this));
  }
};

// Evaluations share an option of `eval` if they have a field of the same name. It has one help.
inline constexpr const char* kLimitHelp = "take the first N questions or documents, or all with 0";

// kv_bits and attention_bits of evaluations that decode.
void visit_bits(FieldVisitor& visit, AttentionBits& bits);

// A figure of comparisons with the reference that a recipe's `fail_if` may bound. Rows may share one.
struct Gate {
  std::string_view name;
  bool is_least = false;  // the figure must be at least that; else at most
  FieldLimits limits = {};
  std::string_view meaning;
};

enum class EvaluatedKind { decoder, encoder, either };
inline std::span<const EnumName<EvaluatedKind>> enum_names(EvaluatedKind) {
  static constexpr EnumName<EvaluatedKind> kNames[] = {{EvaluatedKind::decoder, "decoder"},
                                                       {EvaluatedKind::encoder, "encoder"},
                                                       {EvaluatedKind::either, "decoder or encoder"}};
  return kNames;
}

struct EvaluationRow {
  std::string_view key;       // in recipes
  std::string_view data_key;  // of EvaluationOptions::data among the fields
  std::string_view option;    // of `eval`, which gives the data and so asks for this evaluation
  EvaluatedKind kind = EvaluatedKind::decoder;
  std::string_view subject;  // "perplexity on a text": what `eval` measures; rows of a group have one in common
  std::string_view meaning;  // in whole sentences, to people who write recipes
  std::function<std::unique_ptr<EvaluationOptions>()> make_options;
  std::vector<Gate> gates = {};
  bool is_always_listed = false;  // report.json has its list of results even if there are none
  // "a task": what rows with the same fields are together. Empty: this one stands alone.
  std::string_view group = {};
};

// All evaluations, in the order in which they run and are reported. A row that is added stays for the life of the
// process. add_evaluation throws std::invalid_argument for a key or an option that another row has.
std::span<const EvaluationRow* const> evaluation_rows();
void add_evaluation(const EvaluationRow& row);

}  // namespace pare::runtime
