// What a reference model gave on windows, so that it need not run again: its hidden states behind the final norm, and
// its head. The two make its logits, exactly and in far less room: a hidden state of 4,096 floats takes 16 KiB, and
// logits over 128,256 tokens in 16 bits take 250 KiB.
//
// The file is a safetensors file:
//   hidden        F32 [N, S, E]             of the S scored positions of each window
//   head          F32, F16 or BF16 [V, E]   the head's weight, as the checkpoint stores it, or expanded to F32
//   head_bias     F32 [V]                   if the head has one
//   ids           I32 [N, T]                the windows
//   first_scored  I64 [1]
//   softcap       F32 [1]                   of the logits; 0: none
//   sha256        U8 [64]                   the digits of the SHA-256 of lines, one for each other tensor in the order
//                                           of names: "hidden F32 [2, 3, 4] SHA-256 of its bytes"
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>

#include "runtime/engine/backend.h"
#include "runtime/files/npy.h"
#include "runtime/files/safetensors.h"
#include "runtime/model/checkpoint.h"

namespace pare::runtime {

class StoredReference {
 public:
  // Reads all of it. Throws std::runtime_error (path, tensor, expected, found) for anything but such a file, also for
  // one that was damaged; Interrupted.
  static StoredReference open(const std::filesystem::path& path);

  // Throws std::invalid_argument unless the file was made for these windows and this vocabulary.
  void check(const TokenWindows& windows, int64_t first_scored, int64_t vocabulary_size) const;
  int64_t hidden_size() const { return hidden_size_; }
  float softcap() const { return softcap_; }
  int64_t head_bytes() const { return static_cast<int64_t>(tensor("head").data.size()); }
  std::unique_ptr<PackedLinear> pack_head(Backend& backend) const;
  // Copies a window's hidden states [S, E] to the backend's memory.
  void upload(Backend& backend, int64_t window, float* hidden_SE) const;

 private:
  StoredReference(std::filesystem::path path, SafetensorsFile file) : path_(std::move(path)), file_(std::move(file)) {}
  const TensorView& tensor(const char* name) const;

  std::filesystem::path path_;
  SafetensorsFile file_;
  int64_t num_windows_ = 0, num_scored_ = 0, hidden_size_ = 0, vocabulary_size_ = 0, first_scored_ = 0;
  float softcap_ = 0.0f;
};

// Throws std::invalid_argument if the file exists, or if its folder does not.
void check_can_store(const std::filesystem::path& path);

// Writes such a file. `score` runs the model on all windows, one after the other, and calls what it is given with each
// window's hidden states [S, E] in host memory. Nothing is left if it throws.
void store_reference(const std::filesystem::path& path, const Checkpoint& model, const TokenWindows& windows,
                     int64_t first_scored,
                     const std::function<void(const std::function<void(std::span<const float>)>&)>& score);

}  // namespace pare::runtime
