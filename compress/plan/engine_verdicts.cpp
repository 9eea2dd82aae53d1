// Rules of engines, as read in their sources: transformers 5.17, vLLM 0.19 to 0.24 (marlin_utils.py), llama.cpp's
// convert_hf_to_gguf.py of 2026. What they read of one container is said by that container.
#include "compress/plan/engine_verdicts.h"

#include <algorithm>
#include <set>

#include "runtime/format/container_format.h"

namespace pare {
namespace {

constexpr int64_t kMarlinColumns = 128;  // I must be a multiple of it ...
constexpr int64_t kMarlinRows = 64;      // ... and O of this one
constexpr int64_t kOtherKernels = 32;    // vLLM's slower kernels: both of this one

// Layers that engines fuse into one must share a scheme: q, k, v and gate, up.
bool stage_is_uniform(const std::vector<LayerPlan>& layers, Stage stage) {
  std::optional<std::optional<PackScheme>> first;
  for (const LayerPlan& layer : layers) {
    if (layer.stage != stage) continue;
    const std::optional<PackScheme> scheme = layer.is_compressed() ? std::optional(layer.scheme) : std::nullopt;
    if (!first) first = scheme;
    if (*first != scheme) return false;
  }
  return true;
}

std::string joined(const std::set<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : ", ") + word;
  return text;
}

class Reasons {
 public:
  void add(const std::string& reason) {  // an empty one is none
    if (reason.empty()) return;
    if (seen_.insert(reason).second) reasons_.push_back(reason);
  }
  std::vector<std::string> take() { return std::move(reasons_); }
  bool empty() const { return reasons_.empty(); }

 private:
  std::set<std::string> seen_;
  std::vector<std::string> reasons_;
};

// transformers 5.17 holds all experts of a block as one tensor, and reads them by one config group for the whole model
// (integrations/compressed_tensors.py: DecompressExperts). vLLM runs them as one.
void judge_experts(const RunPlan& plan, const std::vector<PackScheme>& schemes, Reasons& transformers, Reasons& vllm) {
  for (const auto& layers : plan.blocks) {
    const LayerPlan* first = nullptr;
    for (const LayerPlan& layer : layers) {
      if (layer.stage.expert == Stage::kNoExpert) continue;
      if (first == nullptr) first = &layer;
      if (layer.is_compressed() != first->is_compressed()) {
        for (Reasons* reasons : {&transformers, &vllm}) reasons->add("some experts of a block are left alone");
      } else if (layer.is_compressed() && layer.scheme != first->scheme) {
        for (Reasons* reasons : {&transformers, &vllm}) reasons->add("the experts of a block have different schemes");
      }
      if (!layer.is_compressed()) continue;
      if (schemes.size() > 1) transformers.add("experts are read by one scheme only, of several");
      if (!layer.scheme.symmetric) transformers.add("zero points of experts are not read");
      const ContainerFormat& container = container_format(layer.scheme.container);
      for (const std::string& reason : container.unread_by(Engine::transformers_experts, layer.scheme)) {
        transformers.add(reason);
      }
      if (!layer.scheme.input.is_plain()) transformers.add("inputs of experts would not be rounded");
    }
  }
}

}  // namespace

std::vector<EngineVerdict> judge_engines(const RunPlan& plan, const ModelDescription& model) {
  Reasons transformers, vllm, converter;
  std::vector<PackScheme> schemes;
  std::set<std::string> packages;               // that transformers needs beside itself
  std::set<std::string> unfit, without_marlin;  // shapes that no kernel takes, and that only slower ones take
  for (size_t b = 0; b < plan.blocks.size(); ++b) {
    const std::vector<LayerPlan>& layers = plan.blocks[b];
    for (const Stage stage : block_stages(model.blocks[b])) {
      if (!stage_is_uniform(layers, stage)) {
        vllm.add(std::string(stage == Stage::attention_input ? "q, k, v" : "gate, up") +
                 " have different schemes, but are fused");
      }
    }
    for (const LayerPlan& layer : layers) {
      if (!layer.is_compressed()) continue;
      const PackScheme& scheme = layer.scheme;
      if (std::find(schemes.begin(), schemes.end(), scheme) == schemes.end()) schemes.push_back(scheme);
      if (scheme.is_plain()) continue;  // as any other weight
      const ContainerFormat& container = container_format(scheme.container);
      for (auto& [engine, reasons] : {std::pair{Engine::transformers, &transformers}, std::pair{Engine::vllm, &vllm},
                                      std::pair{Engine::llama_cpp, &converter}}) {
        for (const std::string& reason : container.unread_by(engine, scheme)) reasons->add(reason);
      }
      if (!container.needed_package().empty()) packages.emplace(container.needed_package());
      if (!container.runs_on_marlin(scheme)) continue;
      if (layer.linear.num_in % kMarlinColumns != 0 || layer.linear.num_out % kMarlinRows != 0) {
        const std::string role = layer.linear.name.substr(layer.linear.name.rfind('.') + 1);
        const std::string shape =
            role + " [" + std::to_string(layer.linear.num_out) + ", " + std::to_string(layer.linear.num_in) + "]";
        const bool fits_others = layer.linear.num_in % kOtherKernels == 0 && layer.linear.num_out % kOtherKernels == 0;
        (fits_others ? without_marlin : unfit).insert(shape);
      }
    }
  }
  judge_experts(plan, schemes, transformers, vllm);
  if (!unfit.empty()) {
    vllm.add("no kernel for " + joined(unfit) + ": inputs and outputs must be multiples of " +
             std::to_string(kOtherKernels));
  }
  if (schemes.size() > 1) converter.add("more than one scheme: only one config group is read");
  if (!plan.tables.empty()) {
    const std::string what = model.tied_head ? "a quantized embedding" : "a quantized head and embedding";
    transformers.add("a quantized embedding: transformers 5.17 tries to initialize its missing weight, and fails");
    vllm.add(what + " is not read");
    converter.add(what + " is not read");
  }
  std::vector<EngineVerdict> verdicts;
  verdicts.push_back({"pare", true, {}});
  for (auto& [name, reasons] : {std::pair<std::string, Reasons*>{"transformers with compressed-tensors", &transformers},
                                {"vLLM", &vllm},
                                {"llama.cpp converter", &converter}}) {
    const bool loads = reasons->empty();
    verdicts.push_back({name, loads, reasons->take()});
    if (reasons == &transformers && loads) {
      for (const std::string& package : packages) {
        verdicts.back().reasons.push_back("only with the package " + package + " beside it");
      }
    }
    if (name == "vLLM" && !without_marlin.empty()) {
      verdicts.back().reasons.push_back("slower kernels than Marlin for " + joined(without_marlin) +
                                        ": Marlin takes inputs in multiples of " + std::to_string(kMarlinColumns) +
                                        " and outputs of " + std::to_string(kMarlinRows));
    }
  }
  return verdicts;
}

std::vector<EngineVerdict> judge_encoder_engines(const RunPlan& plan) {
  Reasons transformers;
  for (const auto& layers : plan.blocks) {
    for (const LayerPlan& layer : layers) {
      if (!layer.is_compressed() || layer.scheme.is_plain()) continue;
      const ContainerFormat& container = container_format(layer.scheme.container);
      for (const std::string& reason : container.unread_by(Engine::transformers_encoders, layer.scheme)) {
        transformers.add(reason);
      }
    }
  }
  const bool loads = transformers.empty();
  return {{"pare", true, {}}, {"transformers with compressed-tensors", loads, transformers.take()}};
}

}  // namespace pare
