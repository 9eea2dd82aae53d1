#include "runtime/evaluate/evaluation.h"

#include <algorithm>
#include <stdexcept>

#include "runtime/evaluate/token_source.h"

namespace pare::runtime {
namespace {

// Windows go through all layers with one cache, and answers keep one for each layer. Memory that either has taken is
// kept for the next measurement of its kind.
MemoryNeed need_of(const Checkpoint& checkpoint, std::span<const EvaluationExtent> extents, bool is_reference,
                   bool on_host) {
  MemoryNeed need, windows, answers;
  for (const EvaluationExtent& extent : extents) {
    if (is_reference && !extent.reference) continue;
    DeviceWorkload workload = extent.workload;
    workload.on_host = on_host;
    if (is_reference) workload.kv_bits = kKvFloatBits;
    need = checkpoint.is_encoder() ? encoder_memory_need(checkpoint, workload.num_rows)
                                   : memory_need(checkpoint, workload);
    MemoryNeed& most = workload.keeps_every_layer ? answers : windows;
    most.cache_bytes = std::max(most.cache_bytes, need.cache_bytes);
    most.work_bytes = std::max(most.work_bytes, need.work_bytes);
  }
  need.cache_bytes = windows.cache_bytes + answers.cache_bytes;
  need.work_bytes = windows.work_bytes + answers.work_bytes;
  return need;
}

}  // namespace

EvaluatedModels::EvaluatedModels(const Checkpoint& model, const Checkpoint* reference, Backend& backend,
                                 bool keeps_models, Progress* loading, ActivationMode activations)
    : model_(model),
      reference_(reference),
      backend_(backend),
      keeps_models_(keeps_models),
      loading_(loading),
      activations_(activations) {}

template <typename Model>
Model& EvaluatedModels::loaded(const Checkpoint* checkpoint, std::optional<Model>& model) {
  if (checkpoint == nullptr) throw std::logic_error("an evaluation asked for a reference that is not there");
  if (!model) {
    std::function<void(double, int64_t)> progress;
    if (loading_ != nullptr) progress = stage_of(*loading_, "load " + checkpoint->directory().string(), "blocks");
    if constexpr (std::is_same_v<Model, Transformer>) {
      model =
          load_in_mode(*checkpoint, backend_, progress, checkpoint == &model_ ? activations_ : ActivationMode::exact);
    } else {
      model = Model::load(*checkpoint, backend_, progress);
    }
  }
  return *model;
}

Transformer& EvaluatedModels::decoder() {
  return loaded(&model_, decoder_);
}
Transformer& EvaluatedModels::reference_decoder() {
  return loaded(reference_, reference_decoder_);
}
Encoder& EvaluatedModels::encoder() {
  return loaded(&model_, encoder_);
}
Encoder& EvaluatedModels::reference_encoder() {
  return loaded(reference_, reference_encoder_);
}

void EvaluatedModels::release_model() {
  if (keeps_models_) return;
  decoder_.reset();
  encoder_.reset();
}

std::vector<std::vector<MemoryNeed>> memory_needs(const Checkpoint& model, const Checkpoint* reference,
                                                  std::span<const EvaluationExtent> extents, bool keeps_models,
                                                  bool on_host) {
  const bool compares =
      std::any_of(extents.begin(), extents.end(), [](const auto& extent) { return extent.reference; });
  const bool in_turn = std::all_of(extents.begin(), extents.end(), [](const auto& extent) { return extent.in_turn; });
  std::vector<MemoryNeed> needs = {need_of(model, extents, /*is_reference=*/false, on_host)};
  if (!compares || reference == nullptr) return {needs};
  const MemoryNeed other = need_of(*reference, extents, /*is_reference=*/true, on_host);
  if (in_turn && !keeps_models) return {needs, {other}};
  needs.push_back(other);
  return {needs};
}

std::shared_ptr<const Tokenizer> EvaluationSource::tokenizer() {
  if (!tokenizer_) tokenizer_ = std::make_shared<const Tokenizer>(Tokenizer::open(model.directory()));
  return tokenizer_;
}

const Tokenizer* EvaluationSource::tokenizer_for(const std::filesystem::path& text) {
  return holds_token_windows(text) ? nullptr : tokenizer().get();
}

void visit_bits(FieldVisitor& visit, AttentionBits& bits) {
  visit("kv_bits", bits.kv, {.values = {8, 16, 32}},
        "The result's keys and values are kept in this many bits. 16 is bf16.");
  visit("attention_bits", bits.products, {.values = {8, 32}},
        "The result's attention multiplies numbers with this many bits. 8 includes `kv_bits: 8`.");
}

}  // namespace pare::runtime
