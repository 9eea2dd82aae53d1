// Memory of a backend. On a CPU it is plain memory; on a device the host cannot touch it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <utility>

namespace pare::runtime {

// The backend that allocated the memory frees it, and must live at least as long.
using BufferMemory = std::unique_ptr<std::byte[], std::function<void(std::byte*)>>;

// `size` values of type T in a backend's memory. Only the backend's operations may use what get() and span() return.
// The host reads and writes it through Backend::download and upload.
template <typename T>
class Buffer {
 public:
  Buffer() = default;
  Buffer(BufferMemory memory, int64_t size) : memory_(std::move(memory)), size_(size) {}

  T* get() const { return reinterpret_cast<T*>(memory_.get()); }
  int64_t size() const { return size_; }
  std::span<T> span() const { return {get(), static_cast<size_t>(size_)}; }
  std::span<T> first(int64_t num) const { return span().first(static_cast<size_t>(num)); }

 private:
  BufferMemory memory_;
  int64_t size_ = 0;
};

}  // namespace pare::runtime
