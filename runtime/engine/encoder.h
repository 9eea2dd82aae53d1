// The forward pass of an encoder in terms of a Backend: texts in, one embedding each out.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/engine/backend.h"
#include "runtime/engine/pooling.h"
#include "runtime/model/checkpoint.h"
#include "runtime/tokenizer/tokenizer.h"

namespace pare {

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
