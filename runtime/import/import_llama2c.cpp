// llama2.c (version 0) -> Hugging Face. A checkpoint is seven int32 (D, F, blocks, heads, kv heads, V, context; a
// negative V says that the head is not tied) and float32 tensors, each for all blocks at once. A vocabulary is the
// longest token's length and, per token, a float32 score, an int32 length and the text. The RoPE rotates neighbours;
// run.c fixes base and epsilon.
#include <nlohmann/json.hpp>

#include <cstring>
#include <limits>
#include <memory>
#include <stdexcept>

#include "runtime/import/import_sources.h"
#include "runtime/system/json_text.h"
#include "runtime/system/mapped_file.h"
#include "runtime/tokenizer/gguf_vocabulary.h"

namespace pare::runtime {
namespace {

constexpr float kRopeBase = 10000.0f;
constexpr double kNormEpsilon = 1e-5;
constexpr int32_t kUnknownToken = 0, kBosToken = 1, kEosToken = 2, kFirstByteToken = 3;

constexpr int64_t kNormal = 1, kUnknown = 2, kControl = 3, kByte = 6;  // token types, by GGUF's numbers

struct Header {
  int32_t hidden_size, feed_forward_size, num_blocks, num_heads, num_kv_heads, vocabulary_size, context_length;
};

struct Shape {
  Header header;
  bool tied;
  int64_t head_size, kv_width;
};

Shape read_header(std::span<const std::byte> bytes, const std::string& where) {
  Shape shape{};
  if (bytes.size() < sizeof(Header))
    throw std::runtime_error(where + ": too short for a llama2.c checkpoint, and not a GGUF file");
  std::memcpy(&shape.header, bytes.data(), sizeof(Header));
  Header& h = shape.header;
  shape.tied = h.vocabulary_size > 0;
  constexpr int32_t kMaxSize = 1 << 20;  // larger fields mean that the file is something else
  if (h.vocabulary_size < 0 && h.vocabulary_size > -kMaxSize) h.vocabulary_size = -h.vocabulary_size;
  for (const int32_t field : {h.hidden_size, h.feed_forward_size, h.num_blocks, h.num_heads, h.num_kv_heads,
                              h.vocabulary_size, h.context_length}) {
    if (field <= 0 || field > kMaxSize) {
      throw std::runtime_error(where + ": neither GGUF nor a llama2.c checkpoint: a header field is " +
                               std::to_string(field));
    }
  }
  if (h.hidden_size % (2 * h.num_heads) != 0 || h.num_heads % h.num_kv_heads != 0) {
    throw std::runtime_error(where + ": " + std::to_string(h.num_heads) + " heads and " +
                             std::to_string(h.num_kv_heads) + " kv heads do not divide a width of " +
                             std::to_string(h.hidden_size));
  }
  shape.head_size = h.hidden_size / h.num_heads;
  shape.kv_width = shape.head_size * h.num_kv_heads;
  return shape;
}

// Returns the tensors of the file one after another.
class TensorReader {
 public:
  TensorReader(std::shared_ptr<MappedFile> file, std::string where, DType dtype)
      : file_(std::move(file)), where_(std::move(where)), dtype_(dtype), offset_(sizeof(Header)) {}

  std::span<const float> take(int64_t num_floats, const std::string& what) {
    const auto num_bytes = static_cast<size_t>(num_floats) * sizeof(float);
    if (num_bytes > file_->bytes().size() - offset_) {
      throw std::runtime_error(where_ + ": ends before " + what +
                               "; the file is truncated or not a llama2.c checkpoint");
    }
    const auto* data =
        reinterpret_cast<const float*>(file_->bytes().data() + offset_);  // mapped, and every size is a multiple of 4
    offset_ += num_bytes;
    return {data, static_cast<size_t>(num_floats)};
  }

  // head_size 0 leaves rows in their order.
  StreamedTensor stream(std::span<const float> values, const std::string& name, std::vector<int64_t> shape,
                        int64_t head_size) const {
    const auto produce = [file = file_, dtype = dtype_, values, width = shape.back(), head_size](const ByteSink& sink) {
      const int64_t num_rows = static_cast<int64_t>(values.size()) / width;
      std::vector<std::byte> rounded(static_cast<size_t>(width) * dtype_size_bytes(dtype));
      for (int64_t r = 0; r < num_rows; ++r) {
        const int64_t stored = head_size == 0 ? r : neighbour_rotated_row(r, head_size);
        convert_from_float(dtype, values.subspan(static_cast<size_t>(stored * width), static_cast<size_t>(width)),
                           rounded);
        sink(rounded);
      }
    };
    return {.name = name, .dtype = dtype_, .shape = std::move(shape), .produce = produce};
  }

  size_t num_bytes_left() const { return file_->bytes().size() - offset_; }

 private:
  std::shared_ptr<MappedFile> file_;
  std::string where_;
  DType dtype_;
  size_t offset_;
};

std::vector<StreamedTensor> read_tensors(TensorReader& reader, const Shape& shape) {
  const Header& h = shape.header;
  std::vector<StreamedTensor> tensors;
  const auto add = [&](const std::string& name, std::vector<int64_t> sizes, int64_t head_size = 0) {
    int64_t num_floats = 1;
    for (const int64_t size : sizes) num_floats *= size;
    tensors.push_back(reader.stream(reader.take(num_floats, name), name, std::move(sizes), head_size));
  };
  const auto add_to_each_block = [&](const std::string& suffix, const std::vector<int64_t>& sizes,
                                     int64_t head_size = 0) {
    for (int32_t i = 0; i < h.num_blocks; ++i)
      add("model.layers." + std::to_string(i) + "." + suffix, sizes, head_size);
  };
  add("model.embed_tokens.weight", {h.vocabulary_size, h.hidden_size});
  add_to_each_block("input_layernorm.weight", {h.hidden_size});
  add_to_each_block("self_attn.q_proj.weight", {h.hidden_size, h.hidden_size}, shape.head_size);
  add_to_each_block("self_attn.k_proj.weight", {shape.kv_width, h.hidden_size}, shape.head_size);
  add_to_each_block("self_attn.v_proj.weight", {shape.kv_width, h.hidden_size});
  add_to_each_block("self_attn.o_proj.weight", {h.hidden_size, h.hidden_size});
  add_to_each_block("post_attention_layernorm.weight", {h.hidden_size});
  add_to_each_block("mlp.gate_proj.weight", {h.feed_forward_size, h.hidden_size});
  add_to_each_block("mlp.down_proj.weight", {h.hidden_size, h.feed_forward_size});
  add_to_each_block("mlp.up_proj.weight", {h.feed_forward_size, h.hidden_size});
  add("model.norm.weight", {h.hidden_size});
  reader.take(shape.head_size * h.context_length, "the RoPE tables");  // cosines and sines, which run.c ignores as well
  if (!shape.tied) add("lm_head.weight", {h.vocabulary_size, h.hidden_size});
  return tensors;
}

std::string config_json(const Shape& shape, DType dtype) {
  const Header& h = shape.header;
  nlohmann::ordered_json config;
  config["architectures"] = {"LlamaForCausalLM"};
  config["model_type"] = "llama";
  config["vocab_size"] = h.vocabulary_size;
  config["hidden_size"] = h.hidden_size;
  config["intermediate_size"] = h.feed_forward_size;
  config["num_hidden_layers"] = h.num_blocks;
  config["num_attention_heads"] = h.num_heads;
  config["num_key_value_heads"] = h.num_kv_heads;
  config["head_dim"] = shape.head_size;
  config["hidden_act"] = "silu";
  config["max_position_embeddings"] = h.context_length;
  config["rms_norm_eps"] = kNormEpsilon;
  config["rope_theta"] = kRopeBase;
  config["attention_bias"] = false;
  config["mlp_bias"] = false;
  config["tie_word_embeddings"] = shape.tied;
  config["bos_token_id"] = kBosToken;
  config["eos_token_id"] = kEosToken;
  config["torch_dtype"] = torch_dtype_name(dtype);
  return json_text(config, 2) + "\n";
}

template <typename T>
T take_value(std::span<const std::byte>& bytes, const std::string& where) {
  if (bytes.size() < sizeof(T))
    throw std::runtime_error(where + ": ends in the middle of a token; not the vocabulary of this checkpoint?");
  T value;
  std::memcpy(&value, bytes.data(), sizeof value);
  bytes = bytes.subspan(sizeof value);
  return value;
}

// The exporter turned SentencePiece's U+2581 into blanks and framed <s> and </s> in newlines; both are undone.
GgufVocabulary read_vocabulary(const std::filesystem::path& path, int32_t vocabulary_size) {
  const MappedFile file = MappedFile::open(path);
  const std::string where = path.string();
  std::span<const std::byte> bytes = file.bytes();
  take_value<int32_t>(bytes, where);  // the longest token's length, which is not needed
  GgufVocabulary vocabulary;
  vocabulary.where = where;
  vocabulary.model = "llama";
  for (int32_t id = 0; id < vocabulary_size; ++id) {
    vocabulary.scores.push_back(take_value<float>(bytes, where));
    const auto length = take_value<int32_t>(bytes, where);
    if (length < 0 || static_cast<size_t>(length) > bytes.size()) {
      throw std::runtime_error(where + ": token " + std::to_string(id) + " of " + std::to_string(vocabulary_size) +
                               " claims " + std::to_string(length) + " bytes; not the vocabulary of this checkpoint?");
    }
    std::string token(reinterpret_cast<const char*>(bytes.data()), static_cast<size_t>(length));
    bytes = bytes.subspan(static_cast<size_t>(length));
    int64_t type = kNormal;
    if (id == kUnknownToken) {
      type = kUnknown;
    } else if (id == kBosToken || id == kEosToken) {
      type = kControl;
      token = id == kBosToken ? "<s>" : "</s>";
    } else if (id >= kFirstByteToken && id < kFirstByteToken + 256) {
      type = kByte;
    } else {
      token = with_marks_for_spaces(token);
    }
    vocabulary.tokens.push_back(std::move(token));
    vocabulary.token_types.push_back(type);
  }
  vocabulary.bos_token = kBosToken;
  vocabulary.eos_token = kEosToken;
  vocabulary.unknown_token = kUnknownToken;
  vocabulary.add_bos = true;
  vocabulary.add_space_prefix = true;
  return vocabulary;
}

}  // namespace

ImportedModel read_llama2c_model(const std::filesystem::path& path, const std::filesystem::path& tokenizer,
                                 DType dtype) {
  const auto file = std::make_shared<MappedFile>(MappedFile::open(path));
  const Shape shape = read_header(file->bytes(), path.string());
  const std::string config = config_json(shape, dtype);
  const ModelDescription description = describe_source(config, path);
  TensorReader reader(file, path.string(), dtype);
  ImportedModel imported;
  imported.tensors = read_tensors(reader, shape);
  check_tensors(imported.tensors, description, path);
  if (reader.num_bytes_left() != 0) {
    throw std::runtime_error(path.string() + ": " + std::to_string(reader.num_bytes_left()) +
                             " bytes follow the last tensor; not a llama2.c checkpoint of version 0");
  }
  const std::string vocabulary = make_tokenizer_json(read_vocabulary(tokenizer, shape.header.vocabulary_size));
  const std::string tokenizer_config =
      "{\n  \"tokenizer_class\": \"PreTrainedTokenizerFast\",\n  \"bos_token\": \"<s>\",\n  \"eos_token\": \"</s>\",\n "
      " \"unk_token\": \"<unk>\",\n"
      "  \"clean_up_tokenization_spaces\": false\n}\n";
  imported.text_files = {
      {"config.json", config}, {"tokenizer.json", vocabulary}, {"tokenizer_config.json", tokenizer_config}};
  return imported;
}

}  // namespace pare::runtime
