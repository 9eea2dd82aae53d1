// GGUF -> Hugging Face. The import undoes what llama.cpp's converter changed. These are names, gains with a unit
// offset, which it stores with the 1 added, and the row order of q and k where its RoPE rotates neighbours:
// Hugging Face's rotates halves.
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <stdexcept>

#include "runtime/files/gguf.h"
#include "runtime/import/gguf_config.h"
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

// The rows of a tensor of the file that become one tensor of Hugging Face's.
struct TensorSource {
  std::string gguf_name;
  int64_t part = 0, num_parts = 1;  // of equal numbers of rows: the experts of a mixture lie in one tensor
  bool rotates_neighbours = false;
  float subtract = 0.0f;
};

class GgufModel {
 public:
  GgufModel(const std::filesystem::path& path, std::optional<DType> dtype)
      : file_(std::make_shared<GgufFile>(GgufFile::open(path))),
        family_(find_gguf_family(*file_)),
        sizes_(read_gguf_sizes(*file_, family_)),
        asked_dtype_(dtype),
        matrix_dtype_(read_matrix_dtype(*file_)) {}

  std::string config() const { return make_gguf_config(*file_, family_, sizes_, written_dtype()); }
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
  StreamedTensor stream(const TensorSource& source, const std::string& name) const;

  std::shared_ptr<GgufFile> file_;
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

// Decodes a tensor row by row to the output type, in Hugging Face's order of rows.
StreamedTensor GgufModel::stream(const TensorSource& source, const std::string& name) const {
  const GgufTensor& tensor = file_->tensor(source.gguf_name);
  const int64_t width = tensor.shape.back();
  const int64_t rows_in_file = tensor.num_elements() / width;
  const bool is_bias = name.ends_with(".bias");
  const int64_t outputs = is_bias ? width : rows_in_file;
  if (source.rotates_neighbours && outputs % sizes_.head_size != 0) {
    throw std::runtime_error(file_->where() + ": " + source.gguf_name + " has " + std::to_string(outputs) +
                             " rows, which is not a multiple of the head size " + std::to_string(sizes_.head_size));
  }
  std::vector<int64_t> shape = tensor.shape;
  if (source.num_parts > 1) {
    if (shape.size() != 3 || shape.front() != source.num_parts) {
      throw std::runtime_error(file_->where() + ": " + source.gguf_name +
                               ": expected 3 dimensions, the first of them " + std::to_string(source.num_parts) +
                               " experts, found the shape " + shape_text(shape));
    }
    shape.erase(shape.begin());
  }
  const int64_t num_rows = rows_in_file / source.num_parts;
  const auto stored_row = [head_size = sizes_.head_size, turned = source.rotates_neighbours](int64_t row) {
    return turned ? neighbour_rotated_row(row, head_size) : row;
  };
  const auto produce = [file = file_, dtype = written_dtype(tensor), &tensor, width, rows_in_file, num_rows, is_bias,
                        source, stored_row](const ByteSink& sink) {
    const int64_t row_bytes = static_cast<int64_t>(tensor.data.size()) / rows_in_file;
    std::vector<float> row(static_cast<size_t>(width));
    std::vector<float> ordered(static_cast<size_t>(width));
    std::vector<std::byte> rounded(static_cast<size_t>(width) * dtype_size_bytes(dtype));
    for (int64_t r = 0; r < num_rows; ++r) {
      const int64_t stored = source.part * num_rows + (is_bias ? 0 : stored_row(r));
      decode_gguf_blocks(tensor.type,
                         tensor.data.subspan(static_cast<size_t>(stored * row_bytes), static_cast<size_t>(row_bytes)),
                         row);
      for (int64_t i = 0; i < width; ++i) {
        ordered[static_cast<size_t>(i)] = row[static_cast<size_t>(is_bias ? stored_row(i) : i)] - source.subtract;
      }
      convert_from_float(dtype, ordered, rounded);
      sink(rounded);
    }
    if (source.part == source.num_parts - 1) file->drop_pages(tensor);
  };
  return {.name = name, .dtype = written_dtype(tensor), .shape = shape, .produce = produce};
}

std::vector<StreamedTensor> GgufModel::tensors(const ModelDescription& model) const {
  std::vector<StreamedTensor> tensors;
  std::set<std::string> known;
  // check_tensors() tells what the file lacks, in Hugging Face's words.
  const auto add = [&](const TensorSource& source, const std::string& name) {
    if (!file_->tensors().contains(source.gguf_name)) return;
    known.insert(source.gguf_name);
    tensors.push_back(stream(source, name));
  };
  const auto add_linear = [&](TensorSource source, const LinearDescription& linear) {
    const std::string stem = source.gguf_name;
    source.gguf_name = stem + ".weight";
    add(source, linear.name + ".weight");
    source.gguf_name = stem + ".bias";
    if (linear.has_bias) add(source, linear.name + ".bias");
  };
  const auto add_norm = [&](const std::string& stem, const std::optional<NormDescription>& norm) {
    if (!norm || !norm->exists()) return;
    const float offset = norm->unit_offset ? 1.0f : 0.0f;
    add({.gguf_name = stem + ".weight", .subtract = offset}, norm->name + ".weight");
  };

  add({.gguf_name = "token_embd.weight"}, model.embedding_name + ".weight");
  add_norm("output_norm", model.final_norm);
  add({.gguf_name = "output.weight"}, model.head.name + ".weight");
  for (size_t b = 0; b < model.blocks.size(); ++b) {
    const BlockDescription& block = model.blocks[b];
    const std::string from = "blk." + std::to_string(b) + ".";
    const bool turned = family_.gguf_rotates_neighbours;
    add_norm(from + "attn_norm", block.attention_norm);
    if (block.qkv) {
      add_linear({.gguf_name = from + "attn_qkv"}, *block.qkv);
    } else {
      add_linear({.gguf_name = from + "attn_q", .rotates_neighbours = turned}, block.q);
      add_linear({.gguf_name = from + "attn_k", .rotates_neighbours = turned}, block.k);
      add_linear({.gguf_name = from + "attn_v"}, block.v);
    }
    add_norm(from + "attn_q_norm", block.q_norm);
    add_norm(from + "attn_k_norm", block.k_norm);
    add_linear({.gguf_name = from + "attn_output"}, block.o);
    add_norm(from + "post_attention_norm", block.post_attention_norm);
    add_norm(from + std::string(family_.gguf_feed_forward_norm), block.feed_forward_norm);
    if (block.router) add_linear({.gguf_name = from + "ffn_gate_inp"}, *block.router);
    const auto num_experts = static_cast<int64_t>(block.experts.size());
    const std::string suffix = block.router ? "_exps" : "";
    for (int64_t e = 0; e < num_experts; ++e) {
      const FeedForwardDescription& expert = block.experts[static_cast<size_t>(e)];
      const auto part = [&](const char* stem) {
        return TensorSource{.gguf_name = from + stem + suffix, .part = e, .num_parts = num_experts};
      };
      if (expert.gate_up) {
        add_linear(part("ffn_up"), *expert.gate_up);
      } else {
        add_linear(part("ffn_gate"), expert.gate);
        add_linear(part("ffn_up"), expert.up);
      }
      add_linear(part("ffn_down"), expert.down);
    }
    add_norm(from + "post_ffw_norm", block.post_feed_forward_norm);
  }
  // A tensor that has no place would be lost silently.
  for (const auto& [name, tensor] : file_->tensors()) {
    if (known.contains(name) || is_gguf_setting(name)) continue;
    throw std::invalid_argument(file_->where() + ": tensor '" + name + "' does not belong to a " +
                                std::string(family_.model_type) + " model of " + std::to_string(model.blocks.size()) +
                                " blocks, as the metadata describe it");
  }
  return tensors;
}

}  // namespace

ImportedModel read_gguf_model(const std::filesystem::path& path, std::optional<DType> dtype) {
  const GgufModel model(path, dtype);
  const std::string config = model.config();
  const ModelDescription description = describe_source(config, path);
  ImportedModel imported;
  imported.tensors = model.tensors(description);
  check_tensors(imported.tensors, description, path);
  const std::string tokenizer = model.tokenizer();  // first, since it refuses tokens that are not text
  imported.text_files = {{"config.json", config},
                         {"generation_config.json", model.generation_config()},
                         {"tokenizer_config.json", model.tokenizer_config()},
                         {"tokenizer.json", tokenizer}};
  return imported;
}

}  // namespace pare::runtime
