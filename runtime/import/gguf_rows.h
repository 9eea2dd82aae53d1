// Rows of a linear's weight as a GGUF file has them, byte for byte.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>

#include "runtime/files/gguf.h"
#include "runtime/import/gguf_places.h"

namespace pare::runtime {

class GgufRows {
 public:
  // Returns nullopt where no rows of the file are those of the weight: in what makes keys and values of a latent, and
  // in a weight for which the file has a factor. It keeps the file open.
  static std::optional<GgufRows> find(const std::shared_ptr<const GgufFile>& file, const GgufPlace& place);

  GgufType type() const { return tensor_->type; }
  // Returns the bytes of row r of Hugging Face's weight [O, I].
  std::span<const std::byte> row(int64_t r) const;

 private:
  std::shared_ptr<const GgufFile> file_;
  const GgufTensor* tensor_ = nullptr;
  std::function<int64_t(int64_t)> row_of_;
  int64_t first_row_ = 0, row_bytes_ = 0;
};

}  // namespace pare::runtime
