// Tensors of a GGUF file, decoded while they are written.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/files/gguf.h"
#include "runtime/files/safetensors.h"
#include "runtime/format/dtype.h"

namespace pare::runtime {

// A tensor of the file, or a part of it, which becomes one tensor of Hugging Face's. A bias has one row.
struct GgufSource {
  std::string name = {};            // in the file
  int64_t part = 0, num_parts = 0;  // equal parts along the first axis: the experts of a mixture; 0: it is no part
  // Row r of the result is that row of the part, and so are entries of a bias. Empty: they stay in order.
  std::function<int64_t(int64_t)> row_of = {};
  int64_t num_stacked = 0;  // not 0: the part is a stack of so many rows,
  int64_t num_taken = 0;    // and the result has so many of them
  bool is_turned = false;   // the file's is [O, I], and the result [I, O]
  float factor = 1.0f;      // of each element
  float subtract = 0.0f;    // from each, after that
};

// Returns the tensor, which keeps the file open. Rows must fit: what is written is held against the model's
// description first. Throws std::runtime_error if the tensor has no num_parts parts (tensor, expected, found).
StreamedTensor stream_gguf(const std::shared_ptr<const GgufFile>& file, const GgufSource& source,
                           const std::string& name, DType dtype);

// Returns what makes keys and values of a latent of C channels, [H (N + V), C]: for each head the rows of k, then those
// of v. The file has k as [H, C, N] and v as [H, V, C]. Throws std::runtime_error for other shapes (tensor, expected,
// found).
StreamedTensor stream_gguf_latent(const std::shared_ptr<const GgufFile>& file, const std::string& k,
                                  const std::string& v, const std::string& name, DType dtype);

}  // namespace pare::runtime
