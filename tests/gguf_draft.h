// A GGUF file that is put together key by key and tensor by tensor, flaws included. What a test or a fuzzer changes is
// a member.
#pragma once

#include <cstdint>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

namespace pare {

struct GgufDraft {
  struct Tensor {
    std::string name;
    std::vector<int64_t> shape;  // row-major
    uint32_t type = 0;           // F32
    std::string data;
    int64_t offset = -1;  // -1: after the tensor before
  };
  std::vector<std::pair<std::string, std::string>> metadata;  // key, type and value as the file has them
  std::vector<Tensor> tensors;

  template <typename T>
  static std::string bytes_of(T value) {
    std::string bytes(sizeof value, '\0');
    std::memcpy(bytes.data(), &value, sizeof value);
    return bytes;
  }
  static std::string string_of(const std::string& text) { return bytes_of<uint64_t>(text.size()) + text; }

  void set(const std::string& key, const std::string& value) {
    for (auto& [known, old] : metadata) {
      if (known == key) {
        old = value;
        return;
      }
    }
    metadata.emplace_back(key, value);
  }
  void set_integer(const std::string& key, int64_t value) { set(key, bytes_of<uint32_t>(11) + bytes_of(value)); }
  void set_number(const std::string& key, float value) { set(key, bytes_of<uint32_t>(6) + bytes_of(value)); }
  void set_text(const std::string& key, const std::string& text) { set(key, bytes_of<uint32_t>(8) + string_of(text)); }
  void set_texts(const std::string& key, const std::vector<std::string>& texts) {
    std::string value = bytes_of<uint32_t>(9) + bytes_of<uint32_t>(8) + bytes_of<uint64_t>(texts.size());
    for (const std::string& text : texts) value += string_of(text);
    set(key, value);
  }
  void set_numbers(const std::string& key, const std::vector<float>& numbers) {
    std::string value = bytes_of<uint32_t>(9) + bytes_of<uint32_t>(6) + bytes_of<uint64_t>(numbers.size());
    for (const float number : numbers) value += bytes_of(number);
    set(key, value);
  }
  void set_integers(const std::string& key, const std::vector<int32_t>& integers) {
    std::string value = bytes_of<uint32_t>(9) + bytes_of<uint32_t>(5) + bytes_of<uint64_t>(integers.size());
    for (const int32_t integer : integers) value += bytes_of(integer);
    set(key, value);
  }

  // Adds a float32 tensor of zeros.
  void add(const std::string& name, const std::vector<int64_t>& shape) {
    size_t num_elements = 1;
    for (const int64_t size : shape) num_elements *= static_cast<size_t>(size);
    tensors.push_back({name, shape, 0, std::string(num_elements * sizeof(float), '\0'), -1});
  }
  Tensor& tensor(const std::string& name) {
    for (Tensor& tensor : tensors) {
      if (tensor.name == name) return tensor;
    }
    throw std::logic_error("no tensor '" + name + "'");
  }

  std::string file() const {
    constexpr size_t kAlignment = 32;
    const auto padded = [](size_t size) { return (size + kAlignment - 1) / kAlignment * kAlignment; };
    std::string head = "GGUF" + bytes_of<uint32_t>(3) + bytes_of<uint64_t>(tensors.size());
    head += bytes_of<uint64_t>(metadata.size());
    for (const auto& [key, value] : metadata) head += string_of(key) + value;
    std::string data;
    for (const Tensor& tensor : tensors) {
      head += string_of(tensor.name) + bytes_of(static_cast<uint32_t>(tensor.shape.size()));
      for (auto size = tensor.shape.rbegin(); size != tensor.shape.rend(); ++size) head += bytes_of(*size);
      head += bytes_of(tensor.type) + bytes_of<uint64_t>(tensor.offset < 0 ? data.size() : tensor.offset);
      data += tensor.data;
      data.resize(padded(data.size()));
    }
    head.resize(padded(head.size()));
    return head + data;
  }
};

// Returns a llama of one block: V = 4, D = 8, F = 6, 2 heads of 4, tied. Its vocabulary is SentencePiece's.
inline GgufDraft small_gguf() {
  GgufDraft draft;
  draft.set_text("general.architecture", "llama");
  for (const auto& [key, value] : {std::pair{"block_count", 1},
                                   {"attention.head_count", 2},
                                   {"embedding_length", 8},
                                   {"feed_forward_length", 6},
                                   {"context_length", 16}}) {
    draft.set_integer(std::string("llama.") + key, value);
  }
  draft.set_number("llama.attention.layer_norm_rms_epsilon", 1e-5f);
  draft.set_text("tokenizer.ggml.model", "llama");
  draft.set_texts("tokenizer.ggml.tokens", {"<unk>", "a", "\u2581", "\u2581a"});
  draft.set_integers("tokenizer.ggml.token_type", {2, 1, 1, 1});
  draft.set_numbers("tokenizer.ggml.scores", {0, -2, -3, -1});
  draft.set_integer("tokenizer.ggml.unknown_token_id", 0);
  draft.set_integer("tokenizer.ggml.bos_token_id", 1);
  draft.add("token_embd.weight", {4, 8});
  draft.add("output_norm.weight", {8});
  for (const char* name : {"attn_q", "attn_k", "attn_v", "attn_output"}) {
    draft.add("blk.0." + std::string(name) + ".weight", {8, 8});
  }
  draft.add("blk.0.attn_norm.weight", {8});
  draft.add("blk.0.ffn_norm.weight", {8});
  draft.add("blk.0.ffn_gate.weight", {6, 8});
  draft.add("blk.0.ffn_up.weight", {6, 8});
  draft.add("blk.0.ffn_down.weight", {8, 6});
  return draft;
}

}  // namespace pare
