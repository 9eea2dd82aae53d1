// Activations of all calibration windows, [N, T, width] float32: in anonymous memory, or in a memory-mapped temporary
// file whose pages the kernel may write out and take back, so that they do not count against the memory budget. Layout
// and alignment are the same, and so are all results.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>

namespace pare::compress {

struct StoreShape {
  int64_t num_windows = 0, num_tokens = 0, max_width = 0;
  bool spilled = false;  // in a file

  int64_t size_bytes() const { return num_windows * num_tokens * max_width * static_cast<int64_t>(sizeof(float)); }
};

class HiddenStore {
 public:
  // A spilled one makes a file in spill_directory and unlinks it at once: nothing is left behind whatever happens. Its
  // blocks are reserved on the disk first, because a full disk would otherwise end the process with a bus error later.
  // Throws std::runtime_error (bytes needed, reason).
  explicit HiddenStore(const StoreShape& shape, const std::filesystem::path& spill_directory = {});
  HiddenStore(HiddenStore&& other) noexcept;
  HiddenStore& operator=(HiddenStore&& other) noexcept;
  ~HiddenStore();

  // Rows of windows [first, first + count) when every row holds `width` (<= max_width) floats: [count * T, width], a
  // view of the store. Widths may change between uses; contents do not survive that.
  at::Tensor windows(int64_t first, int64_t count, int64_t width) const;

  // Those windows will not be touched soon: spilled pages leave the resident set (memory ones stay).
  void release(int64_t first, int64_t count, int64_t width) const;

 private:
  float* data_ = nullptr;
  int64_t size_bytes_ = 0;
  int64_t num_tokens_ = 0;
  bool spilled_ = false;
};

}  // namespace pare::compress
