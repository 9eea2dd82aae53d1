#include "runtime/model/encoder_description.h"

#include <cmath>
#include <nlohmann/json.hpp>

#include "runtime/model/config_section.h"
#include "runtime/model/families.h"

namespace pare::runtime {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMaxPositions = int64_t{1} << 24;

// Returns null for a model that is of no family of encoders.
const EncoderFamily* find_family(const Json& config) {
  const auto type = config.find("model_type");
  return type == config.end() || !type->is_string()
             ? nullptr
             : encoder_families().find(&EncoderFamily::name, type->get_ref<const std::string&>());
}

void refuse_what_is_not_implemented(const ConfigSection& config, const EncoderFamily& family) {
  if (const Json* architectures = config.find("architectures")) {
    const bool is_plain =
        architectures->is_array() && architectures->size() == 1 && architectures->front() == family.architecture;
    if (!is_plain) {
      config.fail("architectures",
                  "[\"" + std::string(family.architecture) + "\"] (for a model with a head, save only its encoder)");
    }
  }
  if (config.string_or("position_embedding_type", "absolute") != "absolute") {
    config.fail("position_embedding_type", "absolute (relative positions are not computed)");
  }
  config.require_false("is_decoder", "only encoders of this family are run");
  config.require_false("add_cross_attention", "only encoders of this family are run");
}

EncoderBlockDescription describe_block(const EncoderDescription& model, const EncoderFamily& family, int64_t index,
                                       float epsilon) {
  const int64_t width = model.hidden_size, inner = model.feed_forward_size;
  EncoderBlockDescription block;
  block.name = std::string(family.block) + std::to_string(index);
  const auto named = [&](std::string_view name) { return block.name + "." + std::string(name); };
  block.q = {named(family.q), width, width, true};
  block.k = {named(family.k), width, width, true};
  block.v = {named(family.v), width, width, true};
  block.o = {named(family.o), width, width, true};
  block.attention_norm = {named(family.attention_norm), width, epsilon};
  block.up = {named(family.up), inner, width, true};
  block.down = {named(family.down), width, inner, true};
  block.feed_forward_norm = {named(family.feed_forward_norm), width, epsilon};
  return block;
}

}  // namespace

bool describes_encoder(const std::string& config_json, const std::string& where) {
  return find_family(parse_config(config_json, where)) != nullptr;
}

EncoderDescription describe_encoder(const std::string& config_json, const std::string& where, DType dtype_if_absent) {
  const Json parsed = parse_config(config_json, where);
  const ConfigSection config(parsed, where);
  const EncoderFamily* family = find_family(parsed);
  if (family == nullptr) config.fail("model_type", encoder_families().list(&EncoderFamily::name));
  refuse_what_is_not_implemented(config, *family);

  EncoderDescription model;
  model.family = family->name;
  model.hidden_size = config.integer(family->width_key, 1, kMaxWidth);
  model.feed_forward_size = config.integer(family->feed_forward_key, 1, kMaxFeedForward);
  model.num_heads = config.integer(family->heads_key, 1, kMaxHeads);
  model.vocabulary_size = config.integer("vocab_size", 1, kMaxVocabulary);
  const int64_t num_positions = config.integer("max_position_embeddings", 1, kMaxPositions);
  model.context_length = num_positions;
  if (family->positions_follow_padding) {
    const int64_t padding = config.integer_or("pad_token_id", family->default_padding, 0, num_positions - 2);
    model.padding_token = static_cast<int32_t>(padding);
    model.context_length = num_positions - padding - 1;
  }
  model.head_size = model.hidden_size / model.num_heads;
  if (model.hidden_size % model.num_heads != 0 || model.head_size % 2 != 0 || model.head_size > kMaxHeadSize) {
    config.fail(family->heads_key, "a divisor of " + std::string(family->width_key) + " (" +
                                       std::to_string(model.hidden_size) +
                                       ") that gives an even head size of at most " + std::to_string(kMaxHeadSize));
  }
  model.activation = config.activation_or(family->activation_key, family->default_activation);
  model.attention_scale = static_cast<float>(1.0 / std::sqrt(static_cast<double>(model.head_size)));
  model.dtype = config.dtype_or(dtype_if_absent);
  const auto table = [&](std::string_view name, int64_t num_rows) {
    return LinearDescription{std::string(name), num_rows, model.hidden_size, false};
  };
  model.word_embedding = table(family->word_embedding, model.vocabulary_size);
  if (!family->token_type_embedding.empty()) {
    model.token_type_embedding =
        table(family->token_type_embedding, config.integer("type_vocab_size", 1, kMaxVocabulary));
  }
  model.position_embedding = table(family->position_embedding, num_positions);
  const auto epsilon = static_cast<float>(
      family->epsilon_key.empty() ? family->default_epsilon
                                  : config.number_or(family->epsilon_key, family->default_epsilon, 0.0, 1.0));
  model.embedding_norm = {std::string(family->embedding_norm), model.hidden_size, epsilon};
  const int64_t num_blocks = config.integer(family->blocks_key, 1, kMaxBlocks);
  for (int64_t b = 0; b < num_blocks; ++b) model.blocks.push_back(describe_block(model, *family, b, epsilon));
  if (!family->unused_linear.empty()) model.unused_linears = {std::string(family->unused_linear)};
  return model;
}

std::vector<LinearDescription> embedding_tables(const EncoderDescription& model) {
  std::vector<LinearDescription> tables = {model.word_embedding};
  if (model.token_type_embedding) tables.push_back(*model.token_type_embedding);
  tables.push_back(model.position_embedding);
  return tables;
}

std::vector<int32_t> positions_of(const EncoderDescription& model, std::span<const int32_t> ids_T) {
  std::vector<int32_t> positions_T;
  int32_t next = model.padding_token ? *model.padding_token + 1 : 0;
  for (const int32_t id : ids_T) positions_T.push_back(id == model.padding_token ? id : next++);
  return positions_T;
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

}  // namespace pare::runtime
