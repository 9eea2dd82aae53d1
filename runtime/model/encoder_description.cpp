#include "runtime/model/encoder_description.h"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "runtime/system/json_text.h"

namespace pare {
namespace {

using Json = nlohmann::json;

// Bounds far above any model, so that hostile sizes can neither overflow a product nor allocate much.
constexpr int64_t kMaxWidth = int64_t{1} << 17;
constexpr int64_t kMaxBlocks = 1024;
constexpr int64_t kMaxHeads = 4096;
constexpr int64_t kMaxHeadSize = 4096;
constexpr int64_t kMaxVocabulary = int64_t{1} << 24;
constexpr int64_t kMaxPositions = int64_t{1} << 24;

constexpr const char* kFamily = "bert";
constexpr const char* kArchitecture = "BertModel";

// The file's object with checked access. null counts as absent.
class Config {
 public:
  Config(const Json& object, const std::string& where) : object_(object), where_(where) {}

  [[noreturn]] void fail(const char* key, const std::string& expected) const {
    const Json* value = find(key);
    std::string found = value == nullptr     ? "nothing"
                        : value->is_array()  ? "an array"
                        : value->is_object() ? "an object"
                                             : json_text(*value);
    if (found.size() > 60) found = found.substr(0, 57) + "...";
    throw std::invalid_argument(where_ + ": key '" + key + "': expected " + expected + ", found " + found);
  }

  const Json* find(const char* key) const {
    const auto entry = object_.find(key);
    return entry == object_.end() || entry->is_null() ? nullptr : &*entry;
  }

  int64_t integer(const char* key, int64_t most) const {
    const Json* value = find(key);
    const bool fits = value != nullptr && value->is_number_unsigned() && value->get<uint64_t>() >= 1 &&
                      value->get<uint64_t>() <= static_cast<uint64_t>(most);
    if (!fits) fail(key, "an integer from 1 to " + std::to_string(most));
    return value->get<int64_t>();
  }

  float epsilon(const char* key, float otherwise) const {
    const Json* value = find(key);
    if (value == nullptr) return otherwise;
    if (!value->is_number() || !(value->get<double>() > 0.0 && value->get<double>() <= 1.0)) {
      fail(key, "a number above 0 and at most 1");
    }
    return value->get<float>();
  }

  std::string text(const char* key, const std::string& otherwise) const {
    const Json* value = find(key);
    if (value == nullptr) return otherwise;
    if (!value->is_string()) fail(key, "a string");
    return value->get<std::string>();
  }

  void require_false(const char* key, const std::string& why) const {
    const Json* value = find(key);
    if (value != nullptr && *value != false) fail(key, "false (" + why + ")");
  }

 private:
  const Json& object_;
  const std::string& where_;
};

Activation parse_activation(const Config& config) {
  const std::string name = config.text("hidden_act", "gelu");
  if (name == "gelu" || name == "gelu_python") return Activation::gelu;
  if (name == "gelu_new" || name == "gelu_pytorch_tanh") return Activation::gelu_tanh;
  if (name == "silu" || name == "swish") return Activation::silu;
  config.fail("hidden_act", "gelu, gelu_new or silu");
}

DType parse_dtype(const Config& config, DType otherwise) {
  const char* key = config.find("dtype") != nullptr ? "dtype" : "torch_dtype";
  if (config.find(key) == nullptr) return otherwise;
  std::string name = config.text(key, "");
  if (name.starts_with("torch.")) name = name.substr(6);
  if (name == "float32") return DType::F32;
  if (name == "float16") return DType::F16;
  if (name == "bfloat16") return DType::BF16;
  config.fail(key, "float32, float16 or bfloat16");
}

void refuse_what_is_not_implemented(const Config& config) {
  if (const Json* architectures = config.find("architectures")) {
    const bool is_plain =
        architectures->is_array() && architectures->size() == 1 && architectures->front() == kArchitecture;
    if (!is_plain) {
      config.fail("architectures",
                  std::string("[\"") + kArchitecture + "\"] (for a model with a head, save only its encoder)");
    }
  }
  if (config.text("position_embedding_type", "absolute") != "absolute") {
    config.fail("position_embedding_type", "absolute (relative positions are not computed)");
  }
  config.require_false("is_decoder", "only encoders of this family are run");
  config.require_false("add_cross_attention", "only encoders of this family are run");
}

EncoderBlockDescription describe_block(const EncoderDescription& model, int64_t index, float epsilon) {
  const int64_t width = model.hidden_size, inner = model.feed_forward_size;
  EncoderBlockDescription block;
  block.name = "encoder.layer." + std::to_string(index);
  const std::string attention = block.name + ".attention.";
  block.q = {attention + "self.query", width, width, true};
  block.k = {attention + "self.key", width, width, true};
  block.v = {attention + "self.value", width, width, true};
  block.o = {attention + "output.dense", width, width, true};
  block.attention_norm = {attention + "output.LayerNorm", width, epsilon};
  block.up = {block.name + ".intermediate.dense", inner, width, true};
  block.down = {block.name + ".output.dense", width, inner, true};
  block.feed_forward_norm = {block.name + ".output.LayerNorm", width, epsilon};
  return block;
}

Json parse_config(const std::string& text, const std::string& where) {
  try {
    return parse_json(text, where);
  } catch (const BadJson& error) {
    throw std::invalid_argument(error.what());
  }
}

}  // namespace

bool describes_encoder(const std::string& config_json, const std::string& where) {
  const Json config = parse_config(config_json, where);
  return config.is_object() && config.contains("model_type") && config["model_type"] == kFamily;
}

EncoderDescription describe_encoder(const std::string& config_json, const std::string& where, DType dtype_if_absent) {
  const Json parsed = parse_config(config_json, where);
  if (!parsed.is_object()) throw std::invalid_argument(where + ": expected a JSON object");
  const Config config(parsed, where);
  if (config.text("model_type", "") != kFamily) config.fail("model_type", kFamily);
  refuse_what_is_not_implemented(config);

  EncoderDescription model;
  model.family = kFamily;
  model.hidden_size = config.integer("hidden_size", kMaxWidth);
  model.feed_forward_size = config.integer("intermediate_size", int64_t{1} << 20);
  model.num_heads = config.integer("num_attention_heads", kMaxHeads);
  model.vocabulary_size = config.integer("vocab_size", kMaxVocabulary);
  model.context_length = config.integer("max_position_embeddings", kMaxPositions);
  model.num_token_types = config.integer("type_vocab_size", kMaxVocabulary);
  model.head_size = model.hidden_size / model.num_heads;
  if (model.hidden_size % model.num_heads != 0 || model.head_size % 2 != 0 || model.head_size > kMaxHeadSize) {
    config.fail("num_attention_heads", "a divisor of hidden_size (" + std::to_string(model.hidden_size) +
                                           ") that gives an even head size of at most " + std::to_string(kMaxHeadSize));
  }
  model.activation = parse_activation(config);
  model.attention_scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(model.head_size)));
  model.dtype = parse_dtype(config, dtype_if_absent);
  model.word_embedding = {"embeddings.word_embeddings", model.vocabulary_size, model.hidden_size, false};
  model.token_type_embedding = {"embeddings.token_type_embeddings", model.num_token_types, model.hidden_size, false};
  model.position_embedding = {"embeddings.position_embeddings", model.context_length, model.hidden_size, false};
  const float epsilon = config.epsilon("layer_norm_eps", 1e-12f);
  model.embedding_norm = {"embeddings.LayerNorm", model.hidden_size, epsilon};
  const int64_t num_blocks = config.integer("num_hidden_layers", kMaxBlocks);
  for (int64_t b = 0; b < num_blocks; ++b) model.blocks.push_back(describe_block(model, b, epsilon));
  model.unused_linears = {"pooler.dense"};
  return model;
}

std::vector<LinearDescription> block_linears(const EncoderDescription& model) {
  std::vector<LinearDescription> linears;
  for (const EncoderBlockDescription& block : model.blocks) {
    linears.insert(linears.end(), {block.q, block.k, block.v, block.o, block.up, block.down});
  }
  return linears;
}

std::vector<LayerNormDescription> all_norms(const EncoderDescription& model) {
  std::vector<LayerNormDescription> norms = {model.embedding_norm};
  for (const EncoderBlockDescription& block : model.blocks) {
    norms.insert(norms.end(), {block.attention_norm, block.feed_forward_norm});
  }
  return norms;
}

}  // namespace pare
