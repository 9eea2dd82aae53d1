#include "compress/walk/hidden_store.h"

#include <ATen/ops/from_blob.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <stdexcept>
#include <string>
#include <utility>

#include "runtime/system/progress.h"

namespace pare::compress {
namespace {

// A mapping of an unlinked file of `size` bytes in `directory`, with its disk blocks reserved.
float* map_spill_file(const std::filesystem::path& directory, int64_t size) {
  std::string name = (directory / ".spill.partial-XXXXXX").string();  // one of is_temporary_name
  const int file = mkstemp(name.data());
  if (file < 0) {
    throw std::runtime_error(name + ": cannot create the spill file: " + std::strerror(errno));
  }
  unlink(name.c_str());
  const int reserve_error = posix_fallocate(file, 0, size);
  void* const data = reserve_error == 0
                         ? mmap(nullptr, static_cast<size_t>(size), PROT_READ | PROT_WRITE, MAP_SHARED, file, 0)
                         : MAP_FAILED;
  const int error = reserve_error != 0 ? reserve_error : errno;
  close(file);
  if (data == MAP_FAILED) {
    throw std::runtime_error(directory.string() + ": cannot spill " + runtime::format_bytes(size) +
                             " of activations: " + std::strerror(error) + "; free disk space or raise --max-memory");
  }
  return static_cast<float*>(data);
}

}  // namespace

HiddenStore::HiddenStore(const StoreShape& shape, const std::filesystem::path& spill_directory)
    : size_bytes_(shape.size_bytes()), num_tokens_(shape.num_tokens), spilled_(shape.spilled) {
  if (spilled_) {
    data_ = map_spill_file(spill_directory, size_bytes_);
    return;
  }
  void* const data = mmap(nullptr, static_cast<size_t>(size_bytes_), PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) {
    throw std::runtime_error("cannot allocate " + runtime::format_bytes(size_bytes_) + " for activations: " +
                             std::strerror(errno) + "; lower --max-memory, so that they go to disk");
  }
  data_ = static_cast<float*>(data);
}

HiddenStore::HiddenStore(HiddenStore&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_bytes_(other.size_bytes_),
      num_tokens_(other.num_tokens_),
      spilled_(other.spilled_) {}

HiddenStore& HiddenStore::operator=(HiddenStore&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_bytes_, other.size_bytes_);
  std::swap(num_tokens_, other.num_tokens_);
  std::swap(spilled_, other.spilled_);
  return *this;
}

HiddenStore::~HiddenStore() {
  if (data_ != nullptr) munmap(data_, static_cast<size_t>(size_bytes_));
}

at::Tensor HiddenStore::windows(int64_t first, int64_t count, int64_t width) const {
  if (first < 0 || count < 0 ||
      (first + count) * num_tokens_ * width * static_cast<int64_t>(sizeof(float)) > size_bytes_) {
    throw std::invalid_argument("HiddenStore: windows " + std::to_string(first) + " to " +
                                std::to_string(first + count) + " of width " + std::to_string(width) +
                                " do not fit into " + runtime::format_bytes(size_bytes_));
  }
  return at::from_blob(data_ + first * num_tokens_ * width, {count * num_tokens_, width}, at::kFloat);
}

void HiddenStore::release(int64_t first, int64_t count, int64_t width) const {
  if (!spilled_) return;
  // Whole pages only: a page shared with a neighbouring window stays until that one is released too, or not at all. The
  // mapping begins with a page.
  const int64_t page = sysconf(_SC_PAGESIZE), window_bytes = num_tokens_ * width * static_cast<int64_t>(sizeof(float));
  const int64_t first_page = first * window_bytes / page * page;
  const int64_t last_page = (first + count) * window_bytes / page * page;
  if (last_page <= first_page) return;
  // Of a shared mapping this drops the mapping of the pages, not what they hold.
  madvise(reinterpret_cast<std::byte*>(data_) + first_page, static_cast<size_t>(last_page - first_page), MADV_DONTNEED);
}

}  // namespace pare::compress
