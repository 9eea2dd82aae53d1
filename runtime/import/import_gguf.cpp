// GGUF -> Hugging Face. The import undoes what llama.cpp's converter changed. These are names, gains with a unit
// offset, which it stores with the 1 added, and the row order of q and k where its RoPE rotates neighbours:
// Hugging Face's rotates halves.
#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <memory>
#include <optional>
#include <stdexcept>

#include "runtime/files/gguf.h"
#include "runtime/import/import_sources.h"
#include "runtime/model/families.h"
#include "runtime/system/json_text.h"
#include "runtime/text/unicode.h"
#include "runtime/tokenizer/gguf_vocabulary.h"

namespace pare::runtime {
namespace {

using Json = nlohmann::ordered_json;

// Sets a key that the family has.
void set(std::string_view key, const Json& value, Json& config) {
  if (!key.empty()) config[std::string(key)] = value;
}

// The suffixes of blk.N.* and of model.layers.N.*.
constexpr std::pair<const char*, const char*> kBlockTensors[] = {
    {"attn_q.weight", "self_attn.q_proj.weight"},      {"attn_k.weight", "self_attn.k_proj.weight"},
    {"attn_v.weight", "self_attn.v_proj.weight"},      {"attn_output.weight", "self_attn.o_proj.weight"},
    {"attn_q.bias", "self_attn.q_proj.bias"},          {"attn_k.bias", "self_attn.k_proj.bias"},
    {"attn_v.bias", "self_attn.v_proj.bias"},          {"attn_output.bias", "self_attn.o_proj.bias"},
    {"attn_q_norm.weight", "self_attn.q_norm.weight"}, {"attn_k_norm.weight", "self_attn.k_norm.weight"},
    {"ffn_gate.weight", "mlp.gate_proj.weight"},       {"ffn_up.weight", "mlp.up_proj.weight"},
    {"ffn_down.weight", "mlp.down_proj.weight"},
};

const DecoderFamily& find_family(const GgufFile& file) {
  const std::string name = file.text("general.architecture");
  if (const DecoderFamily* family = decoder_families().find(&DecoderFamily::gguf, name)) return *family;
  throw std::invalid_argument(file.where() + ": architecture '" + name +
                              "' cannot be imported; known: " + decoder_families().list(&DecoderFamily::gguf));
}

// Returns float32 metadata (1e-5 stored as 9.99999975e-06) as the shortest decimal that is the same float32.
double shortest(double value) {
  char text[32];
  for (int digits = 1; digits <= 9; ++digits) {
    std::snprintf(text, sizeof text, "%.*g", digits, value);
    if (std::strtof(text, nullptr) == static_cast<float>(value)) break;
  }
  return std::strtod(text, nullptr);
}

int64_t size_at(const GgufFile& file, const std::string& key) {
  const int64_t value = file.integer(key);
  if (value <= 0 || value > (int64_t{1} << 31)) {
    throw std::runtime_error(file.where() + ": '" + key + "': expected a size, found " + std::to_string(value));
  }
  return value;
}

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

class GgufModel {
 public:
  GgufModel(const std::filesystem::path& path, std::optional<DType> dtype)
      : file_(std::make_shared<GgufFile>(GgufFile::open(path))), family_(find_family(*file_)), asked_dtype_(dtype) {
    matrix_dtype_ = read_matrix_dtype(*file_);
    num_blocks_ = integer("block_count");
    const size_t num_tensors = file_->tensors().size();
    if (static_cast<size_t>(num_blocks_) > num_tensors) {
      throw std::runtime_error(file_->where() + ": '" + key("block_count") + "' is " + std::to_string(num_blocks_) +
                               ", but the file holds " + std::to_string(num_tensors) +
                               " tensors, and each block has some: it is damaged");
    }
    num_heads_ = integer("attention.head_count");
    num_kv_heads_ = file_->has(key("attention.head_count_kv")) ? integer("attention.head_count_kv") : num_heads_;
    hidden_size_ = integer("embedding_length");
    head_size_ = read_head_size();
    const GgufTensor& embedding = file_->tensor("token_embd.weight");
    if (embedding.shape.size() != 2) {
      throw std::runtime_error(file_->where() + ": token_embd.weight: expected 2 dimensions, found the shape " +
                               shape_text(embedding.shape));
    }
    vocabulary_size_ = embedding.shape.front();
  }

  std::string config() const;
  std::string generation_config() const;
  std::string tokenizer_config() const;
  std::string tokenizer() const;
  std::vector<StreamedTensor> tensors() const;

 private:
  std::string key(const std::string& suffix) const { return std::string(family_.gguf) + "." + suffix; }
  int64_t integer(const std::string& suffix) const { return size_at(*file_, key(suffix)); }
  int64_t read_head_size() const;
  void describe_rope(Json& config) const;
  void describe_attention(Json& config) const;
  std::optional<Json> llama3_scaling() const;
  std::optional<int64_t> token(const char* which) const {
    const std::string name = std::string("tokenizer.ggml.") + which + "_token_id";
    if (!file_->has(name)) return std::nullopt;
    return file_->integer(name);
  }
  bool tied() const { return !file_->tensors().contains("output.weight"); }
  // The type that a tensor is written in, or the weights as a whole.
  DType written_dtype(const GgufTensor& tensor) const {
    return asked_dtype_ || !matrix_dtype_ ? written_dtype() : float_dtype(tensor.type).value_or(DType::F32);
  }
  DType written_dtype() const { return asked_dtype_.value_or(matrix_dtype_.value_or(DType::BF16)); }
  StreamedTensor stream(const std::string& gguf_name, const std::string& name) const;

  std::shared_ptr<GgufFile> file_;
  const DecoderFamily& family_;
  std::optional<DType> asked_dtype_, matrix_dtype_;
  int64_t num_blocks_, num_heads_, num_kv_heads_, hidden_size_, head_size_, vocabulary_size_;
};

// The key is left out if the head size is the width divided by the number of heads.
int64_t GgufModel::read_head_size() const {
  const bool is_stated = file_->has(key("attention.key_length"));
  if (!is_stated && hidden_size_ % num_heads_ != 0) {
    throw std::runtime_error(file_->where() + ": '" + key("attention.head_count") + "' is " +
                             std::to_string(num_heads_) + ": expected a divisor of '" + key("embedding_length") +
                             "' (" + std::to_string(hidden_size_) + "), or a key '" + key("attention.key_length") +
                             "'");
  }
  const int64_t head_size = is_stated ? integer("attention.key_length") : hidden_size_ / num_heads_;
  if (head_size % 2 != 0) {
    throw std::runtime_error(file_->where() + ": a head size of " + std::to_string(head_size) +
                             " is odd; RoPE rotates pairs");
  }
  return head_size;
}

std::string GgufModel::config() const {
  Json config;
  config["architectures"] = {family_.architecture};
  config["model_type"] = family_.model_type;
  config["vocab_size"] = vocabulary_size_;
  config["hidden_size"] = hidden_size_;
  config["intermediate_size"] = integer("feed_forward_length");
  config["num_hidden_layers"] = num_blocks_;
  config["num_attention_heads"] = num_heads_;
  config["num_key_value_heads"] = num_kv_heads_;
  config["head_dim"] = head_size_;
  config["max_position_embeddings"] = integer("context_length");
  config["rms_norm_eps"] = shortest(file_->number(key("attention.layer_norm_rms_epsilon")));
  config["tie_word_embeddings"] = tied();
  set(family_.activation_key, family_.default_activation, config);
  describe_attention(config);
  set(family_.attention_bias_key, file_->tensors().contains("blk.0.attn_q.bias"), config);
  set(family_.feed_forward_bias_key, false, config);
  describe_rope(config);
  for (const char* which : {"bos", "eos"}) {
    if (const auto id = token(which)) config[std::string(which) + "_token_id"] = *id;
  }
  if (const auto id = token("padding")) config["pad_token_id"] = *id;
  config["torch_dtype"] = torch_dtype_name(written_dtype());
  return json_text(config, 2) + "\n";
}

void GgufModel::describe_rope(Json& config) const {
  const bool has_base = file_->has(key("rope.freq_base"));
  config["rope_theta"] = has_base ? shortest(file_->number(key("rope.freq_base"))) : 10000.0;
  if (file_->has(key("rope.dimension_count")) && integer("rope.dimension_count") != head_size_) {
    throw std::invalid_argument(file_->where() + ": partial rotary embeddings (" +
                                std::to_string(integer("rope.dimension_count")) + " of " + std::to_string(head_size_) +
                                " dimensions) are not supported");
  }
  if (const auto scaling = llama3_scaling()) {
    config["rope_scaling"] = *scaling;
    return;
  }
  const std::string type = file_->has(key("rope.scaling.type")) ? file_->text(key("rope.scaling.type")) : "none";
  if (type == "none") return;
  if (type != "linear") {
    throw std::invalid_argument(file_->where() + ": RoPE scaling '" + type +
                                "' cannot be imported; known: none, linear, llama3");
  }
  config["rope_scaling"] = {{"rope_type", "linear"}, {"factor", shortest(file_->number(key("rope.scaling.factor")))}};
}

// Llama 3.x: the converter stores one divisor per frequency. The published models differ only in `factor`, which is the
// largest divisor. The parameters are accepted only if they give the stored divisors back.
std::optional<Json> GgufModel::llama3_scaling() const {
  constexpr double kLowFactor = 1.0, kHighFactor = 4.0, kOriginalContext = 8192.0;
  if (!file_->tensors().contains("rope_freqs.weight")) return std::nullopt;
  const GgufTensor& tensor = file_->tensor("rope_freqs.weight");
  std::vector<float> divisors(static_cast<size_t>(tensor.num_elements()));
  decode_gguf_blocks(tensor.type, tensor.data, divisors);
  if (divisors.empty() || static_cast<int64_t>(divisors.size()) != head_size_ / 2) {
    throw std::runtime_error(file_->where() + ": rope_freqs.weight has " + std::to_string(divisors.size()) +
                             " entries, expected " + std::to_string(head_size_ / 2));
  }
  const double factor = *std::max_element(divisors.begin(), divisors.end());
  const double base = file_->number(key("rope.freq_base"));
  for (size_t j = 0; j < divisors.size(); ++j) {
    const double wavelength =
        2.0 * M_PI * std::pow(base, 2.0 * static_cast<double>(j) / static_cast<double>(head_size_));
    double expected = 1.0;
    if (wavelength > kOriginalContext / kLowFactor) {
      expected = factor;
    } else if (wavelength > kOriginalContext / kHighFactor) {
      const double smooth = (kOriginalContext / wavelength - kLowFactor) / (kHighFactor - kLowFactor);
      expected = 1.0 / ((1.0 - smooth) / factor + smooth);
    }
    if (std::abs(divisors[j] - expected) > 1e-4 * expected) {
      throw std::invalid_argument(file_->where() + ": rope_freqs.weight is not a Llama 3 scaling (entry " +
                                  std::to_string(j) + ": " + std::to_string(divisors[j]) + ", expected " +
                                  std::to_string(expected) + ")");
    }
  }
  return Json{{"rope_type", "llama3"},
              {"factor", factor},
              {"low_freq_factor", kLowFactor},
              {"high_freq_factor", kHighFactor},
              {"original_max_position_embeddings", static_cast<int64_t>(kOriginalContext)}};
}

// The family fixes what GGUF leaves out: which layers slide, the base of their rotation, and what divides the scores.
void GgufModel::describe_attention(Json& config) const {
  const bool slides = family_.windows.layers == WindowLayers::but_every_nth;
  if (slides) {
    config["sliding_window"] = integer("attention.sliding_window");
    config["sliding_window_pattern"] = family_.windows.default_layer;
  }
  set(family_.local_rope_key, family_.default_local_rope_theta, config);
  const bool divides_by_width = num_blocks_ == family_.gguf_blocks_divided_by_width;
  set(family_.score_divisor_key, divides_by_width ? hidden_size_ / num_heads_ : head_size_, config);
  set(family_.null_softcap_key, nullptr, config);
  const std::string cap_key = key("final_logit_softcapping");
  const double cap = file_->has(cap_key) ? file_->number(cap_key) : 0.0;  // 0: none
  set(family_.logit_softcap_key, cap != 0.0 ? Json(shortest(cap)) : Json(), config);
  if (!slides) return;
  Json types = Json::array();
  for (int64_t i = 1; i <= num_blocks_; ++i) {
    types.push_back(i % family_.windows.default_layer == 0 ? "full_attention" : "sliding_attention");
  }
  config["layer_types"] = types;
}

std::string GgufModel::generation_config() const {
  Json config = Json::object();
  for (const char* which : {"bos", "eos"}) {
    if (const auto id = token(which)) config[std::string(which) + "_token_id"] = *id;
  }
  return json_text(config, 2) + "\n";
}

std::string GgufModel::tokenizer_config() const {
  Json config;
  config["tokenizer_class"] = "PreTrainedTokenizerFast";
  const std::vector<std::string> tokens = file_->texts("tokenizer.ggml.tokens");
  const std::pair<const char*, const char*> roles[] = {
      {"bos", "bos_token"}, {"eos", "eos_token"}, {"unknown", "unk_token"}, {"padding", "pad_token"}};
  for (const auto& [which, role] : roles) {
    const auto id = token(which);
    if (id && *id >= 0 && *id < static_cast<int64_t>(tokens.size())) config[role] = tokens[static_cast<size_t>(*id)];
  }
  if (file_->has("tokenizer.chat_template")) {
    const std::string text = file_->text("tokenizer.chat_template");
    if (const auto offset = find_invalid_utf8(text)) {
      throw std::runtime_error(file_->where() + ": 'tokenizer.chat_template': not UTF-8: byte " +
                               std::to_string(*offset) + " of " + std::to_string(text.size()) +
                               " does not start a valid character; the file is damaged");
    }
    config["chat_template"] = text;
  }
  config["model_max_length"] = integer("context_length");
  config["clean_up_tokenization_spaces"] = false;
  return json_text(config, 2) + "\n";
}

// Decodes a tensor row by row to the output type, in Hugging Face's order of rows.
StreamedTensor GgufModel::stream(const std::string& gguf_name, const std::string& name) const {
  const GgufTensor& tensor = file_->tensor(gguf_name);
  const int64_t width = tensor.shape.back();
  const int64_t num_rows = tensor.num_elements() / width;
  const bool is_bias = name.ends_with(".bias");
  const bool interleaved = family_.gguf_rotates_neighbours &&
                           (name.find(".q_proj.") != std::string::npos || name.find(".k_proj.") != std::string::npos);
  const float subtract = family_.has_unit_offset && gguf_name.ends_with("norm.weight") ? 1.0f : 0.0f;
  const auto stored_row = [head_size = head_size_, interleaved](int64_t row) {
    return interleaved ? neighbour_rotated_row(row, head_size) : row;
  };
  const int64_t outputs = is_bias ? width : num_rows;
  if (interleaved && outputs % head_size_ != 0) {
    throw std::runtime_error(file_->where() + ": " + gguf_name + " has " + std::to_string(outputs) +
                             " rows, which is not a multiple of the head size " + std::to_string(head_size_));
  }
  const auto produce = [file = file_, dtype = written_dtype(tensor), &tensor, width, num_rows, is_bias, subtract,
                        stored_row](const ByteSink& sink) {
    const int64_t row_bytes = static_cast<int64_t>(tensor.data.size()) / num_rows;
    std::vector<float> row(static_cast<size_t>(width));
    std::vector<float> ordered(static_cast<size_t>(width));
    std::vector<std::byte> rounded(static_cast<size_t>(width) * dtype_size_bytes(dtype));
    for (int64_t r = 0; r < num_rows; ++r) {
      const int64_t stored = is_bias ? 0 : stored_row(r);
      decode_gguf_blocks(tensor.type,
                         tensor.data.subspan(static_cast<size_t>(stored * row_bytes), static_cast<size_t>(row_bytes)),
                         row);
      for (int64_t i = 0; i < width; ++i) {
        ordered[static_cast<size_t>(i)] = row[static_cast<size_t>(is_bias ? stored_row(i) : i)] - subtract;
      }
      convert_from_float(dtype, ordered, rounded);
      sink(rounded);
    }
    file->drop_pages(tensor);
  };
  return {.name = name, .dtype = written_dtype(tensor), .shape = tensor.shape, .produce = produce};
}

std::vector<StreamedTensor> GgufModel::tensors() const {
  std::vector<StreamedTensor> tensors;
  std::size_t num_known = 0;
  const auto add = [&](const std::string& gguf_name, const std::string& name) {
    if (!file_->tensors().contains(gguf_name)) return;
    ++num_known;
    tensors.push_back(stream(gguf_name, name));
  };
  add("token_embd.weight", "model.embed_tokens.weight");
  add("output_norm.weight", "model.norm.weight");
  add("output.weight", "lm_head.weight");
  const NormNames& norms = family_.norms;
  for (int64_t i = 0; i < num_blocks_; ++i) {
    const std::string from = "blk." + std::to_string(i) + ".";
    const std::string to = "model.layers." + std::to_string(i) + ".";
    const auto add_norm = [&](const std::string& gguf_name, std::string_view name) {
      if (!name.empty()) add(from + gguf_name + ".weight", to + std::string(name) + ".weight");
    };
    add_norm("attn_norm", norms.attention);
    for (const auto& [gguf_suffix, suffix] : kBlockTensors) add(from + gguf_suffix, to + suffix);
    add_norm("post_attention_norm", norms.attention_output);
    add_norm("ffn_norm", norms.feed_forward);
    add_norm("post_ffw_norm", norms.feed_forward_output);
  }
  if (file_->tensors().contains("rope_freqs.weight")) ++num_known;  // went into config.json
  if (num_known == file_->tensors().size()) return tensors;
  // A tensor that has no place would be lost silently.
  for (const auto& [name, tensor] : file_->tensors()) {
    const bool mapped = name == "rope_freqs.weight" || name == "token_embd.weight" || name == "output_norm.weight" ||
                        name == "output.weight";
    const bool in_block =
        std::any_of(std::begin(kBlockTensors), std::end(kBlockTensors),
                    [&whole = name](const auto& known) { return whole.ends_with(std::string(".") + known.first); });
    if (!mapped && !in_block && !name.ends_with("norm.weight")) {
      throw std::invalid_argument(file_->where() + ": tensor '" + name + "' does not belong to a " +
                                  std::string(family_.model_type) + " model");
    }
  }
  throw std::invalid_argument(file_->where() + ": holds " + std::to_string(file_->tensors().size()) +
                              " tensors, of which " + std::to_string(num_known) + " belong to the " +
                              std::to_string(num_blocks_) + " blocks of its metadata");
}

std::string GgufModel::tokenizer() const {
  return make_tokenizer_json(read_gguf_vocabulary(*file_));
}

}  // namespace

ImportedModel read_gguf_model(const std::filesystem::path& path, std::optional<DType> dtype) {
  const GgufModel model(path, dtype);
  const std::string config = model.config();
  const ModelDescription description = describe_source(config, path);
  ImportedModel imported;
  imported.tensors = model.tensors();
  check_tensors(imported.tensors, description, path);
  const std::string tokenizer = model.tokenizer();  // first, since it refuses tokens that are not text
  imported.text_files = {{"config.json", config},
                         {"generation_config.json", model.generation_config()},
                         {"tokenizer_config.json", model.tokenizer_config()},
                         {"tokenizer.json", tokenizer}};
  return imported;
}

}  // namespace pare::runtime
