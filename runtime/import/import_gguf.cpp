// GGUF -> Hugging Face. The import undoes what llama.cpp's converter changed. These are names, gains with a unit
// offset, which it stores with the 1 added, weights that Hugging Face's files hold as [I, O], and two orders of rows:
// that of q and k where its RoPE rotates neighbours and Hugging Face's rotates halves, and that of stacks which have q,
// k and v head by head.
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <stdexcept>
#include <string_view>
#include <utility>

#include "runtime/files/gguf.h"
#include "runtime/import/gguf_config.h"
#include "runtime/import/gguf_stream.h"
#include "runtime/import/import_sources.h"
#include "runtime/model/families.h"
#include "runtime/system/json_text.h"
#include "runtime/text/unicode.h"
#include "runtime/tokenizer/gguf_vocabulary.h"

namespace pare::runtime {
namespace {

using Json = nlohmann::ordered_json;

std::optional<DType> float_dtype(GgufType type) {
  if (type == GgufType::F32) return DType::F32;
  if (type == GgufType::F16) return DType::F16;
  if (type == GgufType::BF16) return DType::BF16;
  return std::nullopt;
}

// Returns the type of a file's matrices, or float32 if they have several; nullopt if any of them has codes.
std::optional<DType> read_matrix_dtype(const GgufFile& file) {
  std::optional<DType> common;
  for (const auto& [name, tensor] : file.tensors()) {
    if (tensor.shape.size() < 2) continue;
    const std::optional<DType> dtype = float_dtype(tensor.type);
    if (!dtype) return std::nullopt;
    common = common.value_or(*dtype) == *dtype ? *dtype : DType::F32;
  }
  return common;
}

// GGUF's names and Hugging Face's.
constexpr std::pair<std::string_view, std::string_view> kNextTokenModules[] = {
    {"eh_proj", "eh_proj"},
    {"enorm", "enorm"},
    {"hnorm", "hnorm"},
    {"embed_tokens", "embed_tokens"},
    {"shared_head_head", "shared_head.head"},
    {"shared_head_norm", "shared_head.norm"}};

// Returns the place of each row in a list of rows, which has each once.
std::vector<int32_t> inverse(const std::vector<int32_t>& rows) {
  std::vector<int32_t> places(rows.size());
  for (size_t i = 0; i < rows.size(); ++i) places[static_cast<size_t>(rows[i])] = static_cast<int32_t>(i);
  return places;
}

class GgufModel {
 public:
  GgufModel(const std::filesystem::path& path, std::optional<DType> dtype)
      : file_(std::make_shared<GgufFile>(GgufFile::open(path))),
        family_(find_gguf_family(*file_)),
        sizes_(read_gguf_sizes(*file_, family_)),
        asked_dtype_(dtype),
        matrix_dtype_(read_matrix_dtype(*file_)) {}

  std::string config() const { return make_gguf_config(*file_, family_, sizes_, written_dtype()); }
  // As if the blocks that predict later tokens were the model's: so their tensors have names.
  std::string config_of_all_blocks() const {
    GgufSizes sizes = sizes_;
    sizes.num_blocks += sizes.num_next_tokens;
    return make_gguf_config(*file_, family_, sizes, written_dtype());
  }
  std::string generation_config() const { return make_gguf_generation_config(*file_); }
  std::string tokenizer_config() const;
  std::string tokenizer() const { return make_tokenizer_json(read_gguf_vocabulary(*file_)); }
  std::vector<StreamedTensor> tensors(const ModelDescription& model) const;

 private:
  // The type that a tensor is written in, or the weights as a whole.
  DType written_dtype(const GgufTensor& tensor) const {
    return asked_dtype_ || !matrix_dtype_ ? written_dtype() : float_dtype(tensor.type).value_or(DType::F32);
  }
  DType written_dtype() const { return asked_dtype_.value_or(matrix_dtype_.value_or(DType::BF16)); }
  // Row r of a q or k in Hugging Face's order is that row of the file's.
  std::vector<int32_t> rotated_rows(const LinearDescription& linear) const;
  void refuse_what_is_left(const std::set<std::string>& known, const ModelDescription& model) const;

  std::shared_ptr<const GgufFile> file_;
  const DecoderFamily& family_;
  GgufSizes sizes_;
  std::optional<DType> asked_dtype_, matrix_dtype_;
};

std::string GgufModel::tokenizer_config() const {
  Json config;
  config["tokenizer_class"] = "PreTrainedTokenizerFast";
  for (const auto& [role, token] : gguf_special_tokens(*file_)) config[role] = token;
  const auto templates = gguf_chat_templates(*file_);
  if (templates.size() == 1 && templates.front().first == "default") {
    config["chat_template"] = templates.front().second;
  } else {
    for (const auto& [name, text] : templates) config["chat_template"].push_back({{"name", name}, {"template", text}});
  }
  config["model_max_length"] = file_->integer(std::string(family_.gguf) + ".context_length");
  config["clean_up_tokenization_spaces"] = false;
  return json_text(config, 2) + "\n";
}

std::vector<int32_t> GgufModel::rotated_rows(const LinearDescription& linear) const {
  if (!family_.gguf_rotates_neighbours) return {};
  std::vector<int32_t> rows;
  for (int64_t row = 0; row < linear.num_out; ++row) {
    rows.push_back(static_cast<int32_t>(neighbour_rotated_row(row, sizes_.head_size)));
  }
  return rows;
}

std::vector<StreamedTensor> GgufModel::tensors(const ModelDescription& model) const {
  std::vector<StreamedTensor> tensors;
  std::set<std::string> known;
  // check_tensors() tells what the file lacks, in Hugging Face's words.
  const auto add = [&](const GgufSource& source, const std::string& name) {
    if (!file_->tensors().contains(source.name)) return;
    known.insert(source.name);
    tensors.push_back(stream_gguf(file_, source, name, written_dtype(file_->tensor(source.name))));
  };
  const auto add_linear = [&](GgufSource source, const LinearDescription& linear) {
    const std::string stem = source.name;
    source.name = stem + ".weight";
    add(source, linear.name + ".weight");
    source.name = stem + ".bias";
    source.is_turned = false;
    if (linear.has_bias) add(source, linear.name + ".bias");
    // A matrix of one row, which the file has as a vector.
    const bool is_vector = linear.num_out == 1 && !tensors.empty() && tensors.back().name == linear.name + ".weight" &&
                           tensors.back().shape == std::vector{linear.num_in};
    if (is_vector) tensors.back().shape = {1, linear.num_in};
  };
  const auto add_norm = [&](const std::string& stem, const std::optional<NormDescription>& norm) {
    if (!norm || !norm->exists()) return;
    const float offset = norm->unit_offset ? 1.0f : 0.0f;
    add({.name = stem + ".weight", .subtract = offset}, norm->name + ".weight");
    if (norm->has_bias) add({.name = stem + ".bias"}, norm->name + ".bias");
  };

  add({.name = "token_embd.weight"}, model.embedding_name + ".weight");
  add_norm("token_embd_norm", model.embedding_norm);
  if (model.has_learned_positions()) add({.name = "position_embd.weight"}, model.position_table.name + ".weight");
  add_norm("output_norm", model.final_norm);
  add({.name = "output.weight"}, model.head.name + ".weight");
  for (size_t b = 0; b < model.blocks.size(); ++b) {
    const BlockDescription& block = model.blocks[b];
    const std::string from = "blk." + std::to_string(b) + ".";
    const bool is_turned = model.stores_transposed;
    add_norm(from + "attn_norm", block.attention_norm);
    if (block.qkv) {
      add_linear({.name = from + "attn_qkv", .rows = inverse(block.qkv_rows), .is_turned = is_turned}, *block.qkv);
    } else {
      add_linear({.name = from + "attn_q", .rows = rotated_rows(block.q), .is_turned = is_turned}, block.q);
      add_linear({.name = from + "attn_k", .rows = rotated_rows(block.k), .is_turned = is_turned}, block.k);
      add_linear({.name = from + "attn_v", .is_turned = is_turned}, block.v);
    }
    add_norm(from + "attn_q_norm", block.q_norm);
    add_norm(from + "attn_k_norm", block.k_norm);
    add_linear({.name = from + "attn_output", .is_turned = is_turned}, block.o);
    add_norm(from + "post_attention_norm", block.post_attention_norm);
    if (block.feed_forward_norm != block.attention_norm) {
      add_norm(from + std::string(family_.gguf_feed_forward_norm), block.feed_forward_norm);
    }
    if (block.router) add_linear({.name = from + "ffn_gate_inp"}, *block.router);
    if (block.shared_gate) add_linear({.name = from + "ffn_gate_inp_shexp"}, *block.shared_gate);
    if (block.correction) add({.name = from + "exp_probs_b.bias"}, block.correction->name);
    const int64_t num_routed = block.router ? block.num_routed() : 0;
    for (size_t e = 0; e < block.experts.size(); ++e) {
      const FeedForwardDescription& expert = block.experts[e];
      const bool is_routed = static_cast<int64_t>(e) < num_routed;
      const auto part = [&](const std::string& stem) {
        if (!is_routed) return GgufSource{.name = from + stem + (block.router ? "_shexp" : ""), .is_turned = is_turned};
        return GgufSource{.name = from + stem + "_exps", .part = static_cast<int64_t>(e), .num_parts = num_routed};
      };
      if (expert.gate_up) {
        add_linear(part("ffn_up"), *expert.gate_up);
      } else {
        if (expert.is_gated()) add_linear(part("ffn_gate"), expert.gate);
        add_linear(part("ffn_up"), expert.up);
      }
      add_linear(part("ffn_down"), expert.down);
    }
    add_norm(from + "post_ffw_norm", block.post_feed_forward_norm);
    // A block behind the model's has these, and predicts a later token.
    for (const auto& [stem, module] : kNextTokenModules) {
      add({.name = from + "nextn." + std::string(stem) + ".weight"},
          block.name + "." + std::string(module) + ".weight");
    }
  }
  refuse_what_is_left(known, model);
  return tensors;
}

// A tensor that has no place would be lost silently.
void GgufModel::refuse_what_is_left(const std::set<std::string>& known, const ModelDescription& model) const {
  for (const auto& [name, tensor] : file_->tensors()) {
    if (known.contains(name) || is_gguf_setting(name)) continue;
    throw std::invalid_argument(file_->where() + ": tensor '" + name + "' does not belong to a " +
                                std::string(family_.model_type) + " model of " + std::to_string(model.blocks.size()) +
                                " blocks, as the metadata describe it");
  }
}

}  // namespace

ImportedModel read_gguf_model(const std::filesystem::path& path, std::optional<DType> dtype) {
  const GgufModel model(path, dtype);
  const std::string config = model.config();
  const ModelDescription description = describe_source(config, path);
  ImportedModel imported;
  imported.tensors = model.tensors(describe_source(model.config_of_all_blocks(), path));
  check_tensors(imported.tensors, description, path);
  const std::string tokenizer = model.tokenizer();  // first, since it refuses tokens that are not text
  imported.text_files = {{"config.json", config},
                         {"generation_config.json", model.generation_config()},
                         {"tokenizer_config.json", model.tokenizer_config()},
                         {"tokenizer.json", tokenizer}};
  return imported;
}

}  // namespace pare::runtime
