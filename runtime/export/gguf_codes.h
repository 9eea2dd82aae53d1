// Codes of a checkpoint as blocks of GGUF, unchanged.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "runtime/blocks/gguf_parts.h"
#include "runtime/files/gguf.h"
#include "runtime/format/linear_weights.h"

namespace pare::runtime {

// A weight whose codes a type of blocks can hold. A block holds the numbers code - zero, so that Q4_0, Q5_0 and Q8_0
// take every weight whose numbers are in their range, symmetric or not. Q4_1 and Q5_1 hold the codes themselves, with
// the minimum -zero scale. MXFP4 holds the codes of that name, and weights in floating point that were made of such
// codes, as stacks of experts are.
class GgufTranscoder {
 public:
  // The weight must outlive it.
  GgufTranscoder(const LinearWeights& linear, GgufType type);

  // True if the type can hold the codes of every block. Scales may still be rounded to float16.
  bool holds_codes() const { return holds_codes_; }
  // Writes a row.
  void write_row(int64_t row, std::span<std::byte> blocks) const;

 private:
  void write_block(int64_t row, int64_t block, std::span<std::byte> out) const;
  int held_code(const GgufGrid& grid, int64_t row, int64_t column) const;
  bool fits() const;
  bool fits_dense() const;

  const QuantizedWeight* weight_ = nullptr;  // null: the weight is dense, or has columns of its own
  const LinearWeights* dense_ = nullptr;     // a dense weight, for MXFP4
  GgufType type_;
  bool holds_codes_ = false;
};

// The types that may hold codes, the smallest blocks first.
std::span<const GgufType> code_types();

}  // namespace pare::runtime
