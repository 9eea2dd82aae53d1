// config.json -> ModelDescription. The meaning of every key, and its value when absent, is transformers 5's: its
// configuration_<family>.py, modeling_<family>.py and modeling_rope_utils.py. Keys of older releases (rope_theta,
// rope_scaling, rope_local_base_freq, sliding_window_pattern, torch_dtype) mean what they meant there.
#include "runtime/model/model_description.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string_view>

#include "runtime/model/rope_scaling.h"
#include "runtime/system/json_text.h"

namespace pare {
namespace {

using Json = nlohmann::json;

// Bounds far above any model, so that hostile sizes can neither overflow a product nor allocate much.
constexpr int64_t kMaxWidth = int64_t{1} << 17;
constexpr int64_t kMaxFeedForward = int64_t{1} << 20;
constexpr int64_t kMaxBlocks = 1024;
constexpr int64_t kMaxExperts = 1024;                   // per block
constexpr int64_t kMaxExpertsInAll = int64_t{1} << 17;  // over all blocks
constexpr int64_t kMaxHeads = 4096;
constexpr int64_t kMaxHeadSize = 4096;
constexpr int64_t kMaxVocabulary = int64_t{1} << 24;
constexpr int64_t kMaxTokens = std::numeric_limits<int32_t>::max();
constexpr double kMaxRopeTheta = 1e15;
constexpr double kMaxRopeFactor = 1e6;
constexpr size_t kMaxEosTokens = 1024;

// Returns the file's value, short enough for a message. Arrays and objects are only named: printing recurses.
std::string found(const Json& value) {
  if (value.is_array()) return "an array";
  if (value.is_object()) return "an object";
  std::string text = json_text(value);
  return text.size() <= 60 ? text : text.substr(0, 57) + "...";
}

std::string number_text(double value) {
  return json_text(Json(value));
}

// One object of the file, with checked access. A key whose value is null counts as absent.
class Section {
 public:
  Section(const Json& object, std::string where, std::string path)
      : object_(object), where_(std::move(where)), path_(std::move(path)) {}

  [[noreturn]] void fail(std::string_view key, std::string_view expected) const {
    const auto entry = object_.find(key);
    throw std::invalid_argument(where_ + ": key '" + path_ + std::string(key) + "': expected " + std::string(expected) +
                                ", found " + (entry == object_.end() ? "nothing" : found(*entry)));
  }

  const Json* find(std::string_view key) const {
    const auto entry = object_.find(key);
    return entry == object_.end() || entry->is_null() ? nullptr : &*entry;
  }
  bool has(std::string_view key) const { return find(key) != nullptr; }
  bool is_null(std::string_view key) const {
    const auto entry = object_.find(key);
    return entry != object_.end() && entry->is_null();
  }
  bool is_empty() const { return object_.empty(); }

  int64_t integer(std::string_view key, int64_t least, int64_t most) const {
    const Json* value = find(key);
    const bool fits = value != nullptr && value->is_number_integer() &&
                      (!value->is_number_unsigned() || value->get<uint64_t>() <= static_cast<uint64_t>(most)) &&
                      value->get<int64_t>() >= least && value->get<int64_t>() <= most;
    if (!fits) fail(key, "an integer from " + std::to_string(least) + " to " + std::to_string(most));
    return value->get<int64_t>();
  }
  int64_t integer_or(std::string_view key, int64_t otherwise, int64_t least, int64_t most) const {
    return has(key) ? integer(key, least, most) : otherwise;
  }

  // Returns a number in (above, most].
  double number(std::string_view key, double above, double most) const {
    const Json* value = find(key);
    const bool fits =
        value != nullptr && value->is_number() && value->get<double>() > above && value->get<double>() <= most;
    if (!fits) fail(key, "a number above " + number_text(above) + " and at most " + number_text(most));
    return value->get<double>();
  }
  double number_or(std::string_view key, double otherwise, double above, double most) const {
    return has(key) ? number(key, above, most) : otherwise;
  }

  bool boolean_or(std::string_view key, bool otherwise) const {
    if (!has(key)) return otherwise;
    if (!find(key)->is_boolean()) fail(key, "true or false");
    return find(key)->get<bool>();
  }

  std::string string(std::string_view key) const {
    const Json* value = find(key);
    if (value == nullptr || !value->is_string()) fail(key, "a string");
    return value->get<std::string>();
  }
  std::string string_or(std::string_view key, std::string_view otherwise) const {
    return has(key) ? string(key) : std::string(otherwise);
  }

  // Returns the object under `key`; nothing if absent.
  std::optional<Section> section(std::string_view key) const {
    const Json* value = find(key);
    if (value == nullptr) return std::nullopt;
    if (!value->is_object()) fail(key, "an object");
    return Section(*value, where_, path_ + std::string(key) + ".");
  }

  const std::string& where() const { return where_; }

 private:
  const Json& object_;
  std::string where_, path_;
};

struct Family {
  std::string_view name, model_type, architecture;
  bool tied_by_default;
};

constexpr std::array kFamilies{
    Family{"llama", "llama", "LlamaForCausalLM", false},
    Family{"mistral", "mistral", "MistralForCausalLM", false},
    Family{"mixtral", "mixtral", "MixtralForCausalLM", false},
    Family{"qwen2", "qwen2", "Qwen2ForCausalLM", false},
    Family{"qwen3", "qwen3", "Qwen3ForCausalLM", false},
    Family{"qwen3_moe", "qwen3_moe", "Qwen3MoeForCausalLM", false},
    Family{"gemma3", "gemma3_text", "Gemma3ForCausalLM", true},
};

const Family& find_family(const Section& config) {
  const std::string model_type = config.string("model_type");
  std::string known;
  for (const Family& family : kFamilies) known += (known.empty() ? "" : ", ") + std::string(family.model_type);

  const auto family =
      std::find_if(kFamilies.begin(), kFamilies.end(), [&](const Family& f) { return f.model_type == model_type; });
  if (family == kFamilies.end()) {
    std::string reason = "is not an architecture that pare knows";
    if (model_type.ends_with("_moe")) {
      reason = "is a mixture of experts of a family that pare does not know";
    } else if (model_type == "gemma3") {
      reason = "is the vision-language model; pare reads only its text model (model_type gemma3_text)";
    }
    config.fail("model_type", "one of " + known + " (" + found(Json(model_type)) + " " + reason + ")");
  }

  if (const Json* architectures = config.find("architectures"); architectures != nullptr) {
    const bool is_causal_model =
        architectures->is_array() && std::any_of(architectures->begin(), architectures->end(),
                                                 [&](const Json& name) { return name == family->architecture; });
    if (!is_causal_model) {
      const bool has_name = architectures->is_array() && !architectures->empty();
      config.fail("architectures", "a list with " + std::string(family->architecture) +
                                       (has_name ? " (it names " + found(architectures->front()) + ")" : ""));
    }
  }
  return *family;
}

Activation parse_activation(const Section& config, std::string_view key, std::string_view otherwise) {
  const std::string name = config.string_or(key, otherwise);
  if (name == "silu" || name == "swish") return Activation::silu;
  if (name == "gelu" || name == "gelu_python") return Activation::gelu;
  // Three spellings of 0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))).
  if (name == "gelu_pytorch_tanh" || name == "gelu_new" || name == "gelu_python_tanh") return Activation::gelu_tanh;
  config.fail(key, "silu, gelu or gelu_pytorch_tanh");
}

DType parse_config_dtype(const Section& config, DType otherwise) {
  const std::string_view key = config.has("dtype") ? "dtype" : "torch_dtype";
  if (!config.has(key)) return otherwise;
  std::string name = config.string(key);
  if (name.starts_with("torch.")) name = name.substr(6);
  if (name == "float32") return DType::F32;
  if (name == "float16") return DType::F16;
  if (name == "bfloat16") return DType::BF16;
  config.fail(key, "float32, float16 or bfloat16");
}

// --- Rotary embeddings ---------------------------------------------------------------------------------------------

RopeDescription describe_llama3_rope(const Section& rope, double theta, int64_t head_size, double original_context) {
  Llama3Scaling scaling{.factor = rope.number("factor", 0.0, kMaxRopeFactor),
                        .low_freq_factor = rope.number("low_freq_factor", 0.0, kMaxRopeFactor),
                        .high_freq_factor = rope.number("high_freq_factor", 0.0, kMaxRopeFactor),
                        .original_context = original_context};
  if (scaling.low_freq_factor >= scaling.high_freq_factor) {
    rope.fail("high_freq_factor", "a number above low_freq_factor, " + number_text(scaling.low_freq_factor));
  }
  return llama3_rope(theta, head_size, scaling);
}

RopeDescription describe_yarn_rope(const Section& rope, double theta, int64_t head_size, int64_t context_length,
                                   double original_context) {
  YarnScaling scaling;
  scaling.factor =
      rope.number_or("factor", static_cast<double>(context_length) / original_context, 0.0, kMaxRopeFactor);
  scaling.attention_factor = yarn_temperature(scaling.factor, 1.0);
  if (rope.has("mscale") && rope.has("mscale_all_dim")) {
    scaling.attention_factor = yarn_temperature(scaling.factor, rope.number("mscale", 0.0, kMaxRopeFactor)) /
                               yarn_temperature(scaling.factor, rope.number("mscale_all_dim", 0.0, kMaxRopeFactor));
  }
  scaling.attention_factor = rope.number_or("attention_factor", scaling.attention_factor, 0.0, kMaxRopeFactor);
  scaling.beta_fast = rope.number_or("beta_fast", scaling.beta_fast, 0.0, kMaxRopeFactor);
  scaling.beta_slow = rope.number_or("beta_slow", scaling.beta_slow, 0.0, kMaxRopeFactor);
  scaling.truncates = rope.boolean_or("truncate", true);
  scaling.original_context = original_context;
  return yarn_rope(theta, head_size, scaling);
}

// `rope` holds rope_type and its options: rope_parameters, or rope_scaling of older files. `theta` applies if `rope`
// has no rope_theta itself.
RopeDescription describe_rope(const Section& rope, const Section& config, double theta, int64_t head_size,
                              int64_t context_length) {
  theta = rope.number_or("rope_theta", theta, 1.0, kMaxRopeTheta);
  for (const Section* section : {&rope, &config}) {
    if (section->number_or("partial_rotary_factor", 1.0, 0.0, 1.0) != 1.0) {
      section->fail("partial_rotary_factor", "1 (the whole head is rotated)");
    }
  }
  const std::string_view type_key = rope.has("rope_type") ? "rope_type" : "type";
  const std::string type = rope.string_or(type_key, "default");
  const int64_t original_tokens = config.integer_or(
      "original_max_position_embeddings",
      rope.integer_or("original_max_position_embeddings", context_length, 1, kMaxTokens), 1, kMaxTokens);
  const auto original_context = static_cast<double>(original_tokens);

  if (type == "llama3") return describe_llama3_rope(rope, theta, head_size, original_context);
  if (type == "yarn") return describe_yarn_rope(rope, theta, head_size, context_length, original_context);
  float divisor = 1.0f;
  if (type == "linear") {
    divisor = static_cast<float>(rope.number("factor", 0.0, kMaxRopeFactor));
  } else if (type != "default") {
    rope.fail(type_key, "default, linear, llama3 or yarn (pare knows no other rotary scaling)");
  }
  return linear_rope(theta, head_size, divisor);
}

struct RopePair {
  RopeDescription global, local;  // local: gemma3's sliding-window blocks; the same in other families
};

RopePair describe_ropes(const Section& config, const Family& family, int64_t head_size, int64_t context_length) {
  const bool is_gemma = family.name == "gemma3";
  const Json empty_object = Json::object();
  const Section nothing(empty_object, config.where(), "");
  const std::optional<Section> parameters = config.section("rope_parameters");
  const std::optional<Section> scaling = config.section("rope_scaling");
  const bool is_nested = parameters && (parameters->has("full_attention") || parameters->has("sliding_attention"));
  const double theta =
      config.number_or("rope_theta", is_gemma || family.name == "mixtral" ? 1e6 : 1e4, 1.0, kMaxRopeTheta);

  if (!is_gemma) {
    if (is_nested) config.fail("rope_parameters", "one set of parameters (only gemma3 has a set per layer type)");
    const bool use_scaling = scaling && !scaling->is_empty();
    const Section& rope = use_scaling ? *scaling : parameters ? *parameters : nothing;
    const RopeDescription global = describe_rope(rope, config, theta, head_size, context_length);
    return {global, global};
  }

  if (parameters && !parameters->is_empty() && !is_nested) {
    config.fail("rope_parameters", "objects full_attention and sliding_attention");
  }
  const std::optional<Section> full = is_nested ? parameters->section("full_attention") : std::nullopt;
  const std::optional<Section> sliding = is_nested ? parameters->section("sliding_attention") : std::nullopt;
  const double local_theta = config.number_or("rope_local_base_freq", 1e4, 1.0, kMaxRopeTheta);
  const Section& global_rope = scaling ? *scaling : full ? *full : nothing;
  return {describe_rope(global_rope, config, theta, head_size, context_length),
          describe_rope(sliding ? *sliding : nothing, config, local_theta, head_size, context_length)};
}

// --- Sliding windows -----------------------------------------------------------------------------------------------

// Returns layer_types of the file, true for "sliding_attention"; empty if absent.
std::vector<bool> parse_layer_types(const Section& config, int64_t num_blocks) {
  const Json* types = config.find("layer_types");
  if (types == nullptr) return {};
  if (!types->is_array() || types->size() != static_cast<size_t>(num_blocks)) {
    config.fail("layer_types", "a list of num_hidden_layers (" + std::to_string(num_blocks) + ") strings");
  }
  std::vector<bool> is_sliding;
  for (const Json& type : *types) {
    if (type != "sliding_attention" && type != "full_attention") {
      config.fail("layer_types", "each entry sliding_attention or full_attention (one is " + found(type) + ")");
    }
    is_sliding.push_back(type == "sliding_attention");
  }
  return is_sliding;
}

// Returns the window of every block, 0 for full attention.
std::vector<int64_t> sliding_windows(const Section& config, const Family& family, int64_t num_blocks) {
  std::vector<int64_t> windows(static_cast<size_t>(num_blocks), 0);
  if (family.name == "llama") return windows;

  // transformers gives an absent sliding_window 4096 in all these families except mixtral; null means none.
  const bool has_none = family.name == "mixtral" ? !config.has("sliding_window") : config.is_null("sliding_window");
  int64_t window = has_none ? 0 : config.integer_or("sliding_window", 4096, 1, kMaxTokens);
  if (family.name == "qwen3_moe" && !config.boolean_or("use_sliding_window", false)) window = 0;
  std::vector<bool> is_sliding(windows.size(), window > 0);
  const std::vector<bool> layer_types = parse_layer_types(config, num_blocks);
  if (family.name == "mistral" || family.name == "mixtral" || family.name == "qwen3_moe") {
    if (!layer_types.empty() && layer_types != is_sliding) {
      config.fail("layer_types",
                  "what sliding_window says for every layer (" + std::string(family.name) + " does not mix them)");
    }
  } else if (family.name == "gemma3") {
    const int64_t pattern = config.integer_or("sliding_window_pattern", 6, 1, kMaxBlocks);
    for (size_t b = 0; b < is_sliding.size(); ++b) is_sliding[b] = (b + 1) % static_cast<size_t>(pattern) != 0;
  } else {  // qwen2, qwen3
    if (!config.boolean_or("use_sliding_window", false)) window = 0;
    const int64_t num_full = config.integer_or("max_window_layers", 28, 0, kMaxTokens);
    for (size_t b = 0; b < is_sliding.size(); ++b) is_sliding[b] = window > 0 && static_cast<int64_t>(b) >= num_full;
  }
  if (!layer_types.empty()) is_sliding = layer_types;

  for (size_t b = 0; b < windows.size(); ++b) {
    if (is_sliding[b] && window == 0) {
      config.fail("sliding_window", "a window (layer " + std::to_string(b) + " is a sliding_attention layer)");
    }
    if (is_sliding[b]) windows[b] = window;
  }
  return windows;
}

// --- The model -----------------------------------------------------------------------------------------------------

void read_sizes(const Section& config, const Family& family, ModelDescription& model) {
  model.hidden_size = config.integer("hidden_size", 1, kMaxWidth);
  model.feed_forward_size = config.integer("intermediate_size", 1, kMaxFeedForward);
  model.num_heads = config.integer("num_attention_heads", 1, kMaxHeads);
  // Only llama has files older than the key. In other families its absence would silently mean another number.
  const bool may_lack_kv_heads = family.name == "llama" || config.is_null("num_key_value_heads");
  model.num_kv_heads = may_lack_kv_heads ? config.integer_or("num_key_value_heads", model.num_heads, 1, kMaxHeads)
                                         : config.integer("num_key_value_heads", 1, kMaxHeads);
  if (model.num_heads % model.num_kv_heads != 0) {
    config.fail("num_key_value_heads", "a divisor of num_attention_heads (" + std::to_string(model.num_heads) + ")");
  }
  const bool needs_head_size = family.name == "qwen3" || family.name == "gemma3";
  if (config.has("head_dim") || needs_head_size) {
    model.head_size = config.integer("head_dim", 2, kMaxHeadSize);
  } else {
    if (model.hidden_size % model.num_heads != 0) {
      config.fail("num_attention_heads",
                  "a divisor of hidden_size (" + std::to_string(model.hidden_size) + "), or a key head_dim");
    }
    model.head_size = model.hidden_size / model.num_heads;
  }
  if (model.head_size % 2 != 0 || model.head_size > kMaxHeadSize) {
    config.fail(config.has("head_dim") ? "head_dim" : "num_attention_heads",
                "an even head size of at most " + std::to_string(kMaxHeadSize) + " (it is " +
                    std::to_string(model.head_size) + "), since rotary embeddings turn pairs");
  }
  model.vocabulary_size = config.integer("vocab_size", 1, kMaxVocabulary);
  model.context_length = config.integer("max_position_embeddings", 1, kMaxTokens);
}

void read_token_ids(const Section& config, ModelDescription& model) {
  if (config.has("bos_token_id")) {
    model.bos_token = static_cast<int32_t>(config.integer("bos_token_id", 0, kMaxTokens));
  }
  const Json* eos = config.find("eos_token_id");
  if (eos == nullptr) return;
  if (!eos->is_array()) {
    model.eos_tokens = {static_cast<int32_t>(config.integer("eos_token_id", 0, kMaxTokens))};
    return;
  }
  for (const Json& id : *eos) {
    const bool is_id = id.is_number_unsigned() && id.get<uint64_t>() <= static_cast<uint64_t>(kMaxTokens);
    if (!is_id || eos->size() > kMaxEosTokens) config.fail("eos_token_id", "a token id or a short list of them");
    model.eos_tokens.push_back(id.get<int32_t>());
  }
}

void refuse_what_is_not_implemented(const Section& config, bool is_gemma) {
  if (!is_gemma) return;
  if (config.boolean_or("use_bidirectional_attention", false)) {
    config.fail("use_bidirectional_attention", "false (pare runs causal decoders)");
  }
  // transformers reads the key and leaves the scores alone; no published gemma3 sets it.
  if (config.has("attn_logit_softcapping")) config.fail("attn_logit_softcapping", "null (gemma3 has none)");
}

struct BlockOptions {
  bool qkv_bias = false, output_bias = false, feed_forward_bias = false;
  bool head_norms = false;  // q_norm and k_norm
  bool post_norms = false;
  NormDescription norm;  // epsilon and unit_offset of all norms
};

// The mixtures among the blocks.
struct MixtureOptions {
  int64_t num_experts = 0;
  int64_t feed_forward_size = 0;  // per expert
  RoutingDescription routing;
  std::vector<bool> is_mixture;  // by block
  std::string module = ".mlp.";  // under the block: its gate is the router
  std::array<const char*, 3> linears{"gate_proj", "up_proj", "down_proj"};
};

std::vector<bool> sparse_blocks(const Section& config, int64_t num_blocks) {
  const int64_t step = config.integer_or("decoder_sparse_step", 1, 1, kMaxTokens);
  std::vector<bool> is_mixture;
  for (int64_t b = 0; b < num_blocks; ++b) is_mixture.push_back((b + 1) % step == 0);
  const Json* dense = config.find("mlp_only_layers");
  if (dense == nullptr) return is_mixture;
  if (!dense->is_array()) config.fail("mlp_only_layers", "a list of layer numbers");
  for (const Json& layer : *dense) {
    // transformers tolerates numbers of layers that do not exist.
    if (!layer.is_number_unsigned()) config.fail("mlp_only_layers", "a list of layer numbers");
    const auto index = layer.get<uint64_t>();
    if (index < is_mixture.size()) is_mixture[static_cast<size_t>(index)] = false;
  }
  return is_mixture;
}

std::optional<MixtureOptions> describe_mixtures(const Section& config, const Family& family, int64_t num_blocks) {
  const bool is_mixtral = family.name == "mixtral";
  if (!is_mixtral && family.name != "qwen3_moe") return std::nullopt;
  MixtureOptions mixture;
  // qwen3_moe wrote num_experts before transformers 5.
  const char* count = is_mixtral || config.has("num_local_experts") ? "num_local_experts" : "num_experts";
  mixture.num_experts = config.integer(count, 1, std::min(kMaxExperts, kMaxExpertsInAll / num_blocks));
  mixture.feed_forward_size =
      config.integer(is_mixtral ? "intermediate_size" : "moe_intermediate_size", 1, kMaxFeedForward);
  mixture.routing.experts_per_token = config.integer("num_experts_per_tok", 1, mixture.num_experts);
  mixture.routing.normalizes_top_weights = is_mixtral || config.boolean_or("norm_topk_prob", false);
  if (is_mixtral) {
    mixture.is_mixture.assign(static_cast<size_t>(num_blocks), true);
    mixture.module = ".block_sparse_moe.";
    mixture.linears = {"w1", "w3", "w2"};
  } else {
    mixture.is_mixture = sparse_blocks(config, num_blocks);
  }
  return mixture;
}

// Replaces the block's dense network.
void set_mixture(const MixtureOptions& mixture, int64_t width, BlockDescription& block) {
  const std::string module = block.name + mixture.module;
  const int64_t inner = mixture.feed_forward_size;
  block.router = LinearDescription{module + "gate", mixture.num_experts, width, false};
  block.routing = mixture.routing;
  block.experts.clear();
  for (int64_t e = 0; e < mixture.num_experts; ++e) {
    const std::string expert = module + "experts." + std::to_string(e) + ".";
    block.experts.push_back({{expert + mixture.linears[0], inner, width, false},
                             {expert + mixture.linears[1], inner, width, false},
                             {expert + mixture.linears[2], width, inner, false}});
  }
}

BlockDescription describe_block(const ModelDescription& model, const BlockOptions& options, int64_t index) {
  BlockDescription block;
  block.name = "model.layers." + std::to_string(index);
  const std::string attention = block.name + ".self_attn.";
  const std::string feed_forward = block.name + ".mlp.";
  const int64_t width = model.hidden_size;
  const int64_t q_width = model.num_heads * model.head_size;
  const int64_t kv_width = model.num_kv_heads * model.head_size;
  const auto norm = [&](const std::string& name, int64_t norm_width) {
    return NormDescription{name, norm_width, options.norm.epsilon, options.norm.unit_offset};
  };

  block.attention_norm = norm(block.name + ".input_layernorm", width);
  block.q = {attention + "q_proj", q_width, width, options.qkv_bias};
  block.k = {attention + "k_proj", kv_width, width, options.qkv_bias};
  block.v = {attention + "v_proj", kv_width, width, options.qkv_bias};
  block.o = {attention + "o_proj", width, q_width, options.output_bias};
  if (options.head_norms) {
    block.q_norm = norm(attention + "q_norm", model.head_size);
    block.k_norm = norm(attention + "k_norm", model.head_size);
  }
  // Without norms after the half blocks, post_attention_layernorm is, in spite of its name, the one before the
  // feed-forward.
  if (options.post_norms) {
    block.post_attention_norm = norm(block.name + ".post_attention_layernorm", width);
    block.feed_forward_norm = norm(block.name + ".pre_feedforward_layernorm", width);
    block.post_feed_forward_norm = norm(block.name + ".post_feedforward_layernorm", width);
  } else {
    block.feed_forward_norm = norm(block.name + ".post_attention_layernorm", width);
  }
  const int64_t inner = model.feed_forward_size;
  block.experts = {FeedForwardDescription{{feed_forward + "gate_proj", inner, width, options.feed_forward_bias},
                                          {feed_forward + "up_proj", inner, width, options.feed_forward_bias},
                                          {feed_forward + "down_proj", width, inner, options.feed_forward_bias}}};
  return block;
}

}  // namespace

ModelDescription describe_model(const std::string& config_json, const std::string& where, DType dtype_if_absent) {
  Json parsed;
  try {
    parsed = parse_json(config_json, where);
  } catch (const BadJson& error) {
    throw std::invalid_argument(error.what());
  }
  if (!parsed.is_object()) throw std::invalid_argument(where + ": expected a JSON object, found " + found(parsed));
  const Section config(parsed, where, "");
  const Family& family = find_family(config);
  const bool is_gemma = family.name == "gemma3";
  refuse_what_is_not_implemented(config, is_gemma);

  ModelDescription model;
  model.family = family.name;
  read_sizes(config, family, model);
  read_token_ids(config, model);
  model.dtype = parse_config_dtype(config, dtype_if_absent);
  model.activation = is_gemma ? parse_activation(config, "hidden_activation", "gelu_pytorch_tanh")
                              : parse_activation(config, "hidden_act", "silu");
  model.tied_head = config.boolean_or("tie_word_embeddings", family.tied_by_default);
  model.embedding_name = "model.embed_tokens";
  model.head = {"lm_head", model.vocabulary_size, model.hidden_size, false};
  const double score_divisor =
      is_gemma ? config.number("query_pre_attn_scalar", 0.0, kMaxRopeFactor) : static_cast<double>(model.head_size);
  model.attention_scale = static_cast<float>(1.0 / std::sqrt(score_divisor));
  if (is_gemma) {
    model.embedding_scale =
        round_to(static_cast<float>(std::sqrt(static_cast<double>(model.hidden_size))), model.dtype);
    model.logit_softcap = static_cast<float>(config.number_or("final_logit_softcapping", 0.0, 0.0, kMaxRopeFactor));
  }

  const bool has_attention_bias =
      (family.name == "llama" || family.name == "qwen3" || family.name == "qwen3_moe" || is_gemma) &&
      config.boolean_or("attention_bias", false);
  BlockOptions options;
  options.qkv_bias = has_attention_bias || family.name == "qwen2";
  options.output_bias = has_attention_bias;
  options.feed_forward_bias = family.name == "llama" && config.boolean_or("mlp_bias", false);
  options.head_norms = family.name == "qwen3" || family.name == "qwen3_moe" || is_gemma;
  options.post_norms = is_gemma;
  options.norm.epsilon =
      static_cast<float>(config.number_or("rms_norm_eps", family.name == "mixtral" ? 1e-5 : 1e-6, 0.0, 1.0));
  options.norm.unit_offset = is_gemma;
  model.final_norm = {"model.norm", model.hidden_size, options.norm.epsilon, options.norm.unit_offset};

  const int64_t num_blocks = config.integer("num_hidden_layers", 1, kMaxBlocks);
  const std::vector<int64_t> windows = sliding_windows(config, family, num_blocks);
  const std::optional<MixtureOptions> mixtures = describe_mixtures(config, family, num_blocks);
  const RopePair ropes = describe_ropes(config, family, model.head_size, model.context_length);
  for (int64_t b = 0; b < num_blocks; ++b) {
    BlockDescription block = describe_block(model, options, b);
    if (mixtures && mixtures->is_mixture[static_cast<size_t>(b)]) set_mixture(*mixtures, model.hidden_size, block);
    block.sliding_window = windows[static_cast<size_t>(b)];
    block.rope = block.sliding_window > 0 ? ropes.local : ropes.global;
    model.blocks.push_back(std::move(block));
  }
  model.feed_forward_size = 0;
  for (const BlockDescription& block : model.blocks) {
    model.feed_forward_size = std::max(model.feed_forward_size, block.experts.front().down.num_in);
  }
  return model;
}

bool ModelDescription::has_mixture() const {
  return std::any_of(blocks.begin(), blocks.end(), [](const BlockDescription& block) { return block.is_mixture(); });
}

std::vector<LinearDescription> block_linears(const ModelDescription& model) {
  std::vector<LinearDescription> linears;
  for (const BlockDescription& block : model.blocks) {
    linears.insert(linears.end(), {block.q, block.k, block.v, block.o});
    if (block.router) linears.push_back(*block.router);
    for (const FeedForwardDescription& expert : block.experts) {
      linears.insert(linears.end(), {expert.gate, expert.up, expert.down});
    }
  }
  return linears;
}

std::vector<NormDescription> all_norms(const ModelDescription& model) {
  std::vector<NormDescription> norms = {model.final_norm};
  for (const BlockDescription& block : model.blocks) {
    norms.push_back(block.attention_norm);
    norms.push_back(block.feed_forward_norm);
    for (const auto* norm : {&block.q_norm, &block.k_norm, &block.post_attention_norm, &block.post_feed_forward_norm}) {
      if (*norm) norms.push_back(**norm);
    }
  }
  return norms;
}

}  // namespace pare
