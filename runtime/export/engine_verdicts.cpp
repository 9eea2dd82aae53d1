// The rules of engines, as read in the sources of the releases named below, which verdicts name. Each container says
// itself which engines read it.
#include "runtime/export/engine_verdicts.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <span>
#include <stdexcept>

#include "runtime/containers/container_table.h"
#include "runtime/containers/fp8.h"
#include "runtime/containers/gptq.h"
#include "runtime/export/export_gguf.h"
#include "runtime/import/model_directory.h"
#include "runtime/system/interrupt.h"
#include "runtime/system/json_text.h"

namespace pare::runtime {
namespace {

constexpr std::string_view kTransformersRelease = "transformers 5.17 with compressed-tensors 0.19";
constexpr std::string_view kVllmRelease = "vLLM 0.33";
constexpr std::string_view kConverterRelease = "llama.cpp converter (conversion/base.py of commit 00bd27a, 2026)";
// Whose loader and blocks the rows of runtime/families and docs/from-llama-cpp.md are read from.
constexpr std::string_view kLlamaCppCommit = "llama.cpp (commit 0c1e57098, 2026)";

// Returns whether the layers of a stage share a scheme, as engines need that fuse them into one (q, k and v; gate and
// up).
bool stage_is_uniform(const std::vector<JudgedLayer>& layers, Stage stage) {
  std::optional<std::optional<PackScheme>> first;
  for (const JudgedLayer& layer : layers) {
    if (layer.stage != stage) continue;
    if (!first) first = layer.scheme;
    if (*first != layer.scheme) return false;
  }
  return true;
}

// Returns whether vLLM makes one layer of those of a stage. A block with latents and without q_a has two.
bool is_fused(const BlockDescription& block, Stage stage) {
  return stage != Stage::attention_input || !block.latent || block.latent->q_a.has_value();
}

// Returns a layer that is fused with those after it, and whose rows its blocks of scales do not divide; null where
// there is none. The last of them may end within a block.
const JudgedLayer* find_undivided(const std::vector<JudgedLayer>& layers, Stage stage) {
  const JudgedLayer* before = nullptr;
  for (const JudgedLayer& layer : layers) {
    if (layer.stage != stage) continue;
    if (before != nullptr && before->scheme && !before->scheme->block.is_none() &&
        before->linear.num_out % before->scheme->block.num_rows != 0) {
      return before;
    }
    before = &layer;
  }
  return nullptr;
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

// vLLM 0.33 asserts in compressed_tensors_moe_w8a8_fp8.py that ranges of experts' weights and inputs are of one kind.
// Of the container fp8 it reads all (fp8.py: Fp8MoEMethod).
std::string unread_fp8_experts_of_vllm(const PackScheme& scheme) {
  if (scheme.container == kFp8Container) return "";
  const InputFormat& input = scheme.input;
  if (input.is_plain()) return "FP8 experts without rounded inputs are not read";
  const bool is_of_tensor = input.range == InputRange::tensor || input.range == InputRange::static_;
  if (!scheme.block.is_none() || is_of_tensor == scheme.per_tensor) return "";
  return "FP8 experts are read with a scale per channel and inputs of range token, or with one scale per tensor and "
         "inputs of range tensor or static";
}

// Follows get_moe_method of compressed_tensors_moe.py. An empty text means that the experts are read: so are all of
// nvfp4 and mxfp4.
std::string unread_experts_of_vllm(const PackScheme& scheme) {
  const InputFormat& input = scheme.input;
  const bool is_float = !scheme.is_dense() && !scheme.is_integer();
  if (is_float) return scheme.code->block != 0 ? "" : unread_fp8_experts_of_vllm(scheme);
  if (input.is_plain()) return scheme.bits == 4 || scheme.bits == 8 ? "" : "experts are read only with 4 or 8 bits";
  const bool is_w8 = scheme.bits == 8 && scheme.group_size == kPerChannel;
  if (input.range == InputRange::token && scheme.symmetric && (is_w8 || scheme.bits == 4)) return "";
  return "rounded inputs of experts are read only as int8 per token, with symmetric weights of 4 bits, or of 8 per "
         "channel";
}

// vLLM 0.33 computes otherwise with FP8 experts that have one scale per tensor: its kernels take one scale for gate and
// up, and one for all inputs of a block. For the scales: utils/fp8_utils.py (process_fp8_weight_tensor_strategy_moe,
// process_fp8_input_tensor_strategy_moe). For dynamic ranges: the keys that compressed_tensors_moe_w8a8_fp8.py and
// fp8.py ask for, and the kernels in fused_moe/experts whose _supports_quant_scheme has them.
std::vector<std::string> experts_read_otherwise_by_vllm(const PackScheme& scheme) {
  std::vector<std::string> restrictions;
  if (scheme.code != &kFp8Code || !scheme.per_tensor || scheme.input.is_plain()) return restrictions;
  restrictions.emplace_back("one scale per tensor: gate and up of an expert are rounded again to the larger of theirs");
  if (scheme.input.range == InputRange::static_) {
    restrictions.emplace_back("static ranges of experts' inputs: all experts of a block get the largest");
  } else if (scheme.container == kFp8Container) {
    restrictions.emplace_back("inputs of experts get one range for all tokens of a batch, not one for each token");
  } else {
    restrictions.emplace_back(
        "a dynamic range of experts' inputs per tensor: only its Marlin kernels, which round no input, and its Humming "
        "kernels take it");
  }
  return restrictions;
}

// Engines look for the scales of the container fp8 by their names, of which files have two: weight_scale_inv and
// activation_scale, or the early weight_scale and input_scale. vLLM 0.33 (fp8.py, create_weights) registers
// weight_scale_inv for blocks, weight_scale and input_scale for whole tensors; only its class for Mistral 3 renames
// (models/mistral3.py). The converter (dequant_model) takes what ends in _scale_inv, and drops activation_scale. It
// stops at any other tensor that it has no name for.
void judge_fp8_names(const JudgedModel& stored, const PackScheme& scheme, Reasons& vllm, Reasons& converter) {
  if (scheme.container != kFp8Container) return;
  const JudgedModel::Fp8Names& names = stored.fp8_names;
  const std::string found_early = "found weight_scale or input_scale";
  if (names.are_early) {
    converter.add("scales of FP8 are read under the names weight_scale_inv and activation_scale, " + found_early);
  }
  if (!scheme.block.is_none() && names.are_early) {
    vllm.add("scales of FP8 blocks are read under the name weight_scale_inv, " + found_early);
  }
  if (scheme.block.is_none() && names.are_late && !names.are_renamed) {
    vllm.add(
        "one FP8 scale per tensor is read under the names weight_scale and input_scale, found weight_scale_inv or "
        "activation_scale");
  }
}

// vLLM 0.33 puts the scale blocks of fused layers one after the other. Where a block crosses from one layer to the
// next, compressed-tensors and all experts are refused (fp8_utils.py: validate_fp8_block_shape and its twin for
// experts). The container fp8 may have such linears (linear.py: _maybe_allow_fp8_block_shape_mismatch), and scales
// overwrite those before them or find no room (adjust_block_scale_shard).
void judge_fused_blocks(const std::vector<JudgedLayer>& layers, const BlockDescription& block, Reasons& vllm) {
  for (const Stage stage : block_stages(block)) {
    if (!is_fused(block, stage)) continue;
    const JudgedLayer* const layer = find_undivided(layers, stage);
    if (layer == nullptr) continue;
    const std::string& name = layer->linear.name;
    const bool is_routed = stage.expert != Stage::kNoExpert && stage.expert < block.num_routed();
    const bool is_allowed = layer->scheme->container == kFp8Container && !is_routed;
    vllm.add(
        "FP8 blocks of " + std::to_string(layer->scheme->block.num_rows) + " rows do not divide the " +
        std::to_string(layer->linear.num_out) + " of " + name.substr(name.rfind('.') + 1) +
        ", which it fuses with others: " + (is_allowed ? "it puts their scales in wrong places" : "it refuses them"));
  }
}

// transformers 5.17 reads the experts of a model in compressed-tensors through DecompressExperts, which takes packed
// weights alone, and plain ones only where the experts' config group has FP8. Others keep their random first values.
bool loses_plain_experts(const ModelDescription& model, const std::vector<PackScheme>& schemes) {
  const auto is_fp8 = [](const PackScheme& scheme) {
    return !scheme.is_dense() && !scheme.is_integer() && scheme.code->block == 0;
  };
  const auto is_in_container = [](const PackScheme& scheme) { return scheme.container == kCompressedTensors; };
  return !model.stacks_experts && std::ranges::any_of(schemes, is_in_container) &&
         !std::ranges::all_of(schemes, is_fp8);
}

// compressed-tensors 0.19 finds a range for each place in the first two dimensions of an input (quantization/utils/
// helpers.py: compute_dynamic_scales_and_zp). That is a token's only where sequences, tokens and channels are three.
void judge_ranges_of_tokens(const JudgedModel& stored, const ModelDescription& model, Reasons& restrictions) {
  for (size_t b = 0; b < stored.blocks.size(); ++b) {
    for (const JudgedLayer& layer : stored.blocks[b]) {
      if (!layer.scheme) continue;
      const InputFormat& input = layer.scheme->input;
      if (input.is_plain() || input.range != InputRange::token) continue;
      if (layer.scheme->container != kCompressedTensors) continue;
      const bool is_of_network =
          layer.stage.kind == Stage::feed_forward_input || layer.stage.kind == Stage::feed_forward_output;
      const bool is_shared =
          layer.stage.expert != Stage::kNoExpert && layer.stage.expert >= model.blocks[b].num_routed();
      if (layer.stage.kind == Stage::key_value_latent) {
        restrictions.add("inputs of '*.kv_b_proj' get one range for a whole sequence, not one for each token");
      } else if (is_shared && model.shared_expert_gets_rows) {
        restrictions.add("inputs of shared experts get one range for all tokens, not one for each token");
      } else if (is_of_network && model.network_gets_rows) {
        restrictions.add("inputs of the feed-forward layers get one range for all tokens, not one for each token");
      }
    }
  }
}

// optimum 2.3 makes every layer with the bits of the whole file (gptq/quantizer.py, _replace_by_quant_layers): it reads
// no "dynamic".
bool has_gptq_of_several_widths(const std::vector<PackScheme>& schemes) {
  std::set<int> widths;
  for (const PackScheme& scheme : schemes) {
    if (scheme.container == kGptq || scheme.container == kGptqV2) widths.insert(scheme.bits);
  }
  return widths.size() > 1;
}

// transformers holds all experts of a block as one tensor, and reads them with one config group for the whole model
// (integrations/compressed_tensors.py: DecompressExperts). vLLM runs them as one.
void judge_experts(const JudgedModel& stored, const ModelDescription& model, const std::vector<PackScheme>& schemes,
                   Reasons& transformers, Reasons& vllm, Reasons& vllm_restrictions) {
  for (size_t b = 0; b < stored.blocks.size(); ++b) {
    const JudgedLayer* first = nullptr;
    for (const JudgedLayer& layer : stored.blocks[b]) {
      // A shared expert is a network by itself.
      if (layer.stage.expert == Stage::kNoExpert || layer.stage.expert >= model.blocks[b].num_routed()) continue;
      if (first == nullptr) first = &layer;
      if (layer.scheme.has_value() != first->scheme.has_value()) {
        for (Reasons* reasons : {&transformers, &vllm}) reasons->add("only some experts of a block are compressed");
      } else if (layer.scheme && layer.scheme != first->scheme) {
        for (Reasons* reasons : {&transformers, &vllm}) reasons->add("the experts of a block have different schemes");
      }
      if (!layer.scheme) {
        if (loses_plain_experts(model, schemes)) {
          transformers.add("experts without codes are not read in a model with codes: they would be random numbers");
        }
        continue;
      }
      if (schemes.size() > 1) transformers.add("experts are read with only one scheme, and there are several");
      if (!layer.scheme->symmetric) transformers.add("zero points of experts are not read");
      const ContainerFormat& container = container_format(layer.scheme->container);
      for (const std::string& reason : container.unread_by(Engine::transformers_experts, *layer.scheme)) {
        transformers.add(reason);
      }
      vllm.add(unread_experts_of_vllm(*layer.scheme));
      for (const std::string& text : experts_read_otherwise_by_vllm(*layer.scheme)) vllm_restrictions.add(text);
      if (!layer.scheme->input.is_plain()) transformers.add("inputs of experts would not be rounded");
    }
  }
}

// transformers 5.17 decodes experts to the type of their scales, bfloat16 for a float32 model, and only its grouped
// product multiplies them with inputs of another type. Found by running it on the small models of tests/golden. Where
// experts are mxfp4, all of the model works in bfloat16 alone, which the container says.
void judge_experts_of_float32(const JudgedModel& stored, const ModelDescription& model, Reasons& restrictions) {
  if (model.dtype != DType::F32 || model.stacks_experts) return;
  for (size_t b = 0; b < stored.blocks.size(); ++b) {
    for (const JudgedLayer& layer : stored.blocks[b]) {
      const bool is_routed =
          layer.stage.expert != Stage::kNoExpert && layer.stage.expert < model.blocks[b].num_routed();
      if (!is_routed || !layer.scheme || layer.scheme->is_dense()) continue;
      if (layer.scheme->container != kCompressedTensors || layer.scheme->code->block != 0) continue;
      restrictions.add(
          "experts of a float32 model are rounded to bfloat16, and experts_implementation='eager' stops with an error");
    }
  }
}

bool has_experts_in_codes(const JudgedModel& stored) {
  return std::ranges::any_of(stored.blocks, [](const std::vector<JudgedLayer>& layers) {
    return std::ranges::any_of(layers, [](const JudgedLayer& layer) {
      return layer.stage.expert != Stage::kNoExpert && layer.scheme.has_value();
    });
  });
}

// Groups of blocks follow from each layer's width, and no configuration says them: layers that differ in them alone
// have one scheme.
JudgedModel with_alike_blocks(JudgedModel stored) {
  for (auto& layers : stored.blocks) {
    for (JudgedLayer& layer : layers) {
      if (layer.scheme && !layer.scheme->block.is_none()) layer.scheme->group_size = layer.scheme->block.num_columns;
    }
  }
  return stored;
}

// The verdict on one engine while the layers are visited.
struct Judgement {
  std::string_view release;
  Engine engine = Engine::transformers;
  Reasons against = {}, restrictions = {};

  void add(const ContainerFormat& container, const PackScheme& scheme) {
    for (const std::string& reason : container.unread_by(engine, scheme)) against.add(reason);
    const bool rounds_inputs = !scheme.input.is_plain();
    if (engine == Engine::llama_cpp && rounds_inputs) restrictions.add("only weights are read: no input is rounded");
    for (const std::string& reason : container.read_only(engine, scheme)) restrictions.add(reason);
    // See vLLM's kernels/linear: W8A8 and FP8 have kernels of their own.
    if (engine != Engine::vllm || !scheme.is_integer() || scheme.layout != CodeLayout::packed) return;
    if (!container.runs_on_marlin(scheme)) {
      restrictions.add(std::to_string(scheme.bits) + " bits" + (scheme.symmetric ? "" : " asymmetric") +
                       ": only by its Humming kernels, on NVIDIA's GPUs");
    } else if (rounds_inputs) {
      restrictions.add("inputs with packed weights: rounded only by its Humming kernels");
    }
  }
  EngineVerdict verdict() {
    const bool loads = against.empty();
    return {std::string(release), loads, loads ? restrictions.take() : against.take()};
  }
};

// Returns how a linear is stored; nullopt: as a tensor like any other.
std::optional<PackScheme> scheme_of(const Checkpoint& checkpoint, const LinearDescription& linear) {
  std::optional<PackScheme> scheme = checkpoint.stored_scheme(linear);
  return scheme && scheme->is_plain() ? std::nullopt : scheme;
}

template <typename Block>
std::vector<JudgedLayer> judged_block(const Checkpoint& checkpoint, const Block& block, std::span<const Stage> stages) {
  std::vector<JudgedLayer> layers;
  for (const Stage stage : stages) {
    for (const LinearDescription& linear : stage_layers(block, stage)) {
      layers.push_back({linear, stage, scheme_of(checkpoint, linear)});
    }
  }
  return layers;
}

// AutoRound's own format has the tensors of other containers, and is read by its package. No rule of that is known
// here.
bool is_of_auto_round(const Checkpoint& checkpoint) {
  const nlohmann::json config = parse_json(checkpoint.config_json(), "config.json");
  if (!config.contains("quantization_config") || !config["quantization_config"].is_object()) return false;
  const nlohmann::json& quantization = config["quantization_config"];
  if (!quantization.contains("quant_method") || !quantization["quant_method"].is_string()) return false;
  return quantization["quant_method"].get<std::string>().ends_with("auto-round");
}

JudgedModel::Fp8Names fp8_names(const Checkpoint& checkpoint) {
  JudgedModel::Fp8Names names;
  if (checkpoint.quantization_method() != kFp8Container) return names;
  for (const LinearDescription& linear : stored_linears(checkpoint)) {
    const auto has = [&](std::string_view suffix) { return checkpoint.has_tensor(linear.name + std::string(suffix)); };
    names.are_early |= has(kFp8OldScaleSuffix) || has(kFp8OldInputSuffix);
    names.are_late |= has(kFp8ScaleSuffix) || has(kFp8InputSuffix);
  }
  const nlohmann::json config = parse_json(checkpoint.config_json(), "config.json");
  const nlohmann::json classes = config.value("architectures", nlohmann::json());
  names.are_renamed = classes == nlohmann::json::array({"Mistral3ForConditionalGeneration"});
  return names;
}

}  // namespace

std::vector<EngineVerdict> judge_checkpoint(const Checkpoint& checkpoint) {
  if (is_of_auto_round(checkpoint)) return {{"pare", true, {}}};
  JudgedModel stored;
  stored.drops_inputs = !checkpoint.sparsity_thresholds().empty();
  stored.fp8_names = fp8_names(checkpoint);
  if (checkpoint.is_encoder()) {
    for (const auto& block : checkpoint.encoder().blocks) {
      stored.blocks.push_back(judged_block(checkpoint, block, kStages));
    }
    return judge_encoder_engines(stored, checkpoint.encoder());
  }
  for (const BlockDescription& block : checkpoint.description().blocks) {
    stored.blocks.push_back(judged_block(checkpoint, block, block_stages(block)));
  }
  stored.has_coded_tables = scheme_of(checkpoint, checkpoint.embedding()).has_value();
  if (!checkpoint.description().tied_head && scheme_of(checkpoint, checkpoint.head())) stored.has_coded_tables = true;
  return judge_engines(stored, checkpoint.description());
}

std::vector<EngineVerdict> judge_file(const std::filesystem::path& gguf) {
  try {
    const ModelDirectory header(gguf, {}, /*has_weights=*/false);
    const Checkpoint checkpoint = Checkpoint::open(header.path());
    return judge_gguf(llama_cpp_obstacles(checkpoint.description(), gguf_family(checkpoint)));
  } catch (const Interrupted&) {
    throw;
  } catch (const std::invalid_argument& error) {
    return {{"pare", false, {error.what()}}};
  } catch (const std::runtime_error& error) {
    return {{"pare", false, {error.what()}}};
  }
}

std::string verdict_line(const EngineVerdict& verdict) {
  std::string line = verdict.engine + (verdict.loads ? ": loads it" : ": does not load it");
  for (size_t i = 0; i < verdict.reasons.size(); ++i) line += (i == 0 ? ": " : "; ") + verdict.reasons[i];
  return line;
}

std::vector<EngineVerdict> judge_engines(const JudgedModel& judged, const ModelDescription& model) {
  const JudgedModel stored = with_alike_blocks(judged);
  Judgement transformers{kTransformersRelease, Engine::transformers};
  Judgement vllm{kVllmRelease, Engine::vllm}, converter{kConverterRelease, Engine::llama_cpp};
  std::vector<PackScheme> schemes;  // each becomes a config group
  for (size_t b = 0; b < stored.blocks.size(); ++b) {
    const std::vector<JudgedLayer>& layers = stored.blocks[b];
    for (const Stage stage : block_stages(model.blocks[b])) {
      if (stage_is_uniform(layers, stage) || !is_fused(model.blocks[b], stage)) continue;
      vllm.against.add(std::string(stage != Stage::attention_input      ? "gate, up"
                                   : model.blocks[b].latent.has_value() ? "q_a, kv_a"
                                                                        : "q, k, v") +
                       " have different schemes, but are fused");
    }
    judge_fused_blocks(layers, model.blocks[b], vllm.against);
    for (const JudgedLayer& layer : layers) {
      if (!layer.scheme) continue;
      if (std::find(schemes.begin(), schemes.end(), *layer.scheme) == schemes.end()) schemes.push_back(*layer.scheme);
      const ContainerFormat& container = container_format(layer.scheme->container);
      for (Judgement* const engine : {&transformers, &vllm, &converter}) engine->add(container, *layer.scheme);
    }
  }
  if (has_gptq_of_several_widths(schemes)) {
    transformers.against.add("several widths of GPTQ: it reads one, and computes wrong numbers without a message");
  }
  if (stored.drops_inputs) {
    for (Judgement* const engine : {&transformers, &vllm, &converter}) {
      engine->restrictions.add("activation sparsity is ignored: no input is dropped");
    }
  }
  for (const PackScheme& scheme : schemes) judge_fp8_names(stored, scheme, vllm.against, converter.against);
  judge_experts(stored, model, schemes, transformers.against, vllm.against, vllm.restrictions);
  judge_ranges_of_tokens(stored, model, transformers.restrictions);
  judge_experts_of_float32(stored, model, transformers.restrictions);
  if (!model.is_in_llama_cpp) converter.against.add("it does not know the family " + model.family);
  if (schemes.size() > 1) converter.against.add("more than one scheme: only one config group is read");
  if (stored.has_coded_tables) {
    const std::string reason =
        "a quantized embedding: transformers would put random numbers in its place, so config.json names no model "
        "that other programs know";
    for (Judgement* const engine : {&transformers, &vllm, &converter}) engine->against.add(reason);
  }
  if (model.stores_transposed && !schemes.empty()) {
    const std::string reason =
        "its own files hold weights transposed, where other programs have no place for codes, so config.json names no "
        "model that they know";
    for (Judgement* const engine : {&transformers, &vllm, &converter}) engine->against.add(reason);
  }
  if (model.stacks_experts && has_experts_in_codes(stored)) {
    // transformers 5.17 has no conversion of single experts for the family (conversion_mapping.py). Loaders of vLLM
    // narrow and turn the stacks (models/gpt_oss.py, of a snapshot before that release).
    const std::string reason =
        "its own files hold experts in stacks, where other programs have no place for codes, so config.json names no "
        "model that they know: leave '*.experts.*' as it is for them";
    for (Judgement* const engine : {&transformers, &vllm, &converter}) engine->against.add(reason);
  }
  return {{"pare", true, {}}, transformers.verdict(), vllm.verdict(), converter.verdict()};
}

std::vector<EngineVerdict> judge_gguf(const std::vector<std::string>& obstacles) {
  return {{"pare", true, {}}, {std::string(kLlamaCppCommit), obstacles.empty(), obstacles}};
}

std::vector<EngineVerdict> judge_encoder_engines(const JudgedModel& stored, const EncoderDescription& model) {
  Judgement transformers{kTransformersRelease, Engine::transformers_encoders};
  for (const auto& layers : stored.blocks) {
    for (const JudgedLayer& layer : layers) {
      if (!layer.scheme) continue;
      transformers.add(container_format(layer.scheme->container), *layer.scheme);
      // modeling_modernbert.py, _init_weights: an AttributeError, found by loading.
      const bool is_packed = layer.scheme->layout == CodeLayout::packed &&
                             layer.scheme->bits < (layer.scheme->is_integer() ? kDenseBits : 8);
      if (model.needs_plain_weights && is_packed) {
        transformers.against.add("its class for " + model.family +
                                 " fails on linears without a plain weight, as packed ones are: 8 bits of weights and "
                                 "inputs are stored plain");
      }
    }
  }
  return {{"pare", true, {}}, transformers.verdict()};
}

}  // namespace pare::runtime
