// The forward pass of an encoder in terms of a Backend: texts in, one embedding out for each.
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

namespace pare::runtime {

class Encoder {
 public:
  // The rows that layers work on at a time. Texts are never split, so a longer text has more.
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
  std::vector<std::string> kernel_names() const;  // the blocks' linears, sorted, each once

  // Computes the last hidden state of every token, texts one after another: host memory [R, D], where R is the sum of
  // their lengths. Throws std::invalid_argument for an empty text, one beyond the context, and an id outside the
  // vocabulary.
  void hidden(std::span<const std::vector<int32_t>> texts, float* hidden_RD);
  // Computes pooled hidden states, each divided by its length: host memory [N, D]. Throws as `hidden` does,
  // std::runtime_error if a pooled vector is not finite or is 0, and Interrupted between batches. `progress` (texts
  // done, texts) may be empty.
  void embed(std::span<const std::vector<int32_t>> texts, const Pooling& pooling, float* embeddings_ND,
             const std::function<void(int64_t, int64_t)>& progress = {});

 private:
  Encoder();
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace pare::runtime
