// The forward pass of an encoder in terms of a Backend: texts in, one embedding each out.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/engine/backend.h"
#include "runtime/model/checkpoint.h"
#include "runtime/tokenizer/tokenizer.h"

namespace pare {

// How the tokens of a text become one vector, and how much of a text is read: what sentence-transformers keeps in
// 1_Pooling/config.json and sentence_bert_config.json beside the model.
struct Pooling {
  enum class Kind { mean, first_token };
  Kind kind = Kind::mean;
  bool is_stated = false;     // false: there is no such file, and the mean is taken
  int64_t max_tokens = 0;     // of a text, special tokens included
  std::string label() const;  // "mean over tokens", ...
};
// Throws std::runtime_error for a file that is none, and for other kinds of pooling (maximum, ...), by name.
Pooling read_pooling(const std::filesystem::path& directory, const EncoderDescription& model);

class Encoder {
 public:
  // Rows that layers work on at a time, unless one text is longer: whole texts always.
  static constexpr int64_t kBatchRows = 1024;

  // Packs the weights of a checkpoint that holds an encoder. `progress` (blocks done, blocks) may be empty.
  static Encoder load(const Checkpoint& checkpoint, Backend& backend,
                      const std::function<void(int64_t, int64_t)>& progress = {});
  Encoder(Encoder&&) noexcept;
  Encoder& operator=(Encoder&&) noexcept;
  ~Encoder();

  const EncoderDescription& description() const;
  Backend& backend() const;
  int64_t resident_bytes() const;
  std::vector<std::string> kernel_names() const;  // of the blocks' linears, sorted, each once

  // The last hidden state of every token, texts one after another: host memory [R, D], R the sum of their lengths.
  // Throws std::invalid_argument for an empty text, one beyond the context, and an id outside the vocabulary.
  void hidden(std::span<const std::vector<int32_t>> texts, float* hidden_RD);
  // Pooled and divided by their lengths: host memory [N, D]. Throws as above, std::runtime_error when one is not finite
  // or 0, and Interrupted between batches. `progress` (texts done, texts) may be empty.
  void embed(std::span<const std::vector<int32_t>> texts, const Pooling& pooling, float* embeddings_ND,
             const std::function<void(int64_t, int64_t)>& progress = {});

 private:
  Encoder();
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace pare
