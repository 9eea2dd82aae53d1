#include "runtime/system/mapped_file.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <climits>
#include <csignal>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <stdexcept>
#include <string>
#include <system_error>
#include <utility>

#include "runtime/system/input_files.h"
#include "runtime/system/interrupt.h"
#include "runtime/system/sha256.h"
#include "runtime/system/visible_text.h"

namespace pare::runtime {
namespace {

constexpr size_t kHashedPieceBytes = size_t{16} << 20;

// --- Maps addresses to files, for a signal handler, which may neither lock nor allocate ---

// One mapping. A node stays in the list for good and serves the next mapping when its own is gone. `path` is written
// while `begin` is 0, when nobody looks at it.
struct Mapping {
  std::atomic<bool> is_taken{true};
  std::atomic<uintptr_t> begin{0};
  std::atomic<uintptr_t> end{0};
  std::array<char, PATH_MAX> path{};
  Mapping* next = nullptr;
};

std::atomic<Mapping*> first_mapping{nullptr};
static_assert(std::atomic<uintptr_t>::is_always_lock_free && std::atomic<Mapping*>::is_always_lock_free,
              "a signal handler may touch lock-free atomics only");

Mapping* take_mapping() {
  for (Mapping* mapping = first_mapping.load(); mapping != nullptr; mapping = mapping->next) {
    bool is_taken = false;
    if (mapping->is_taken.compare_exchange_strong(is_taken, true)) return mapping;
  }
  auto* const mapping = new Mapping;
  mapping->next = first_mapping.load();
  while (!first_mapping.compare_exchange_weak(mapping->next, mapping)) {
  }
  return mapping;
}

Mapping* register_mapping(const void* data, size_t size, const std::filesystem::path& path) {
  Mapping* const mapping = take_mapping();
  std::strncpy(mapping->path.data(), visible_line(path.string()).c_str(), mapping->path.size() - 1);
  mapping->end.store(reinterpret_cast<uintptr_t>(data) + size);
  mapping->begin.store(reinterpret_cast<uintptr_t>(data));
  return mapping;
}

void release_mapping(void* registration) {
  auto* const mapping = static_cast<Mapping*>(registration);
  mapping->begin.store(0);
  mapping->end.store(0);
  mapping->is_taken.store(false);
}

const Mapping* find_mapping(const void* address) {
  const auto wanted = reinterpret_cast<uintptr_t>(address);
  for (const Mapping* mapping = first_mapping.load(); mapping != nullptr; mapping = mapping->next) {
    const uintptr_t begin = mapping->begin.load();
    if (begin != 0 && begin <= wanted && wanted < mapping->end.load()) return mapping;
  }
  return nullptr;
}

std::array<char, 64> program_name{};
struct sigaction action_before = {};

void write_all(const char* text) {
  size_t left = std::strlen(text);
  while (left > 0) {
    const ssize_t written = ::write(STDERR_FILENO, text, left);
    if (written <= 0) return;
    text += written;
    left -= static_cast<size_t>(written);
  }
}

extern "C" void handle_bus_error(int signal, siginfo_t* info, void*) {
  const Mapping* const mapping = info->si_code == BUS_ADRERR ? find_mapping(info->si_addr) : nullptr;
  if (mapping != nullptr) {
    // Threads that read one file fault together; only one of them prints.
    static std::atomic_flag has_spoken = ATOMIC_FLAG_INIT;
    while (has_spoken.test_and_set()) ::pause();
    write_all(program_name.data());
    write_all(": '");
    write_all(mapping->path.data());
    write_all(
        "' became shorter while it was read, or its disk has failed: restore it, and do not change it during a run\n");
    ::_exit(EXIT_FAILURE);
  }
  // The address is not in a MappedFile. A faulting access runs again without this handler; a signal that was sent is
  // sent again.
  ::sigaction(SIGBUS, &action_before, nullptr);
  const bool is_fault = info->si_code == BUS_ADRALN || info->si_code == BUS_ADRERR || info->si_code == BUS_OBJERR;
  if (!is_fault) ::raise(signal);
}

}  // namespace

std::optional<std::string> mapped_file_at(const void* address) {
  const Mapping* const mapping = find_mapping(address);
  return mapping == nullptr ? std::nullopt : std::optional<std::string>(mapping->path.data());
}

void install_mapped_file_handler(const std::string& program) {
  program.copy(program_name.data(), program_name.size() - 1);
  struct sigaction action = {};
  action.sa_sigaction = handle_bus_error;
  sigemptyset(&action.sa_mask);
  action.sa_flags = SA_SIGINFO;
  struct sigaction before = {};
  ::sigaction(SIGBUS, &action, &before);
  const bool is_second_call = (before.sa_flags & SA_SIGINFO) != 0 && before.sa_sigaction == handle_bus_error;
  if (!is_second_call) action_before = before;
}

MappedFile MappedFile::open(const std::filesystem::path& path) {
  const InputFile opened(path);
  refuse_git_lfs_pointer(opened);
  MappedFile file;
  file.size_ = static_cast<size_t>(opened.size_bytes());
  if (file.size_ > 0) {
    void* memory = ::mmap(nullptr, file.size_, PROT_READ, MAP_PRIVATE, opened.descriptor(), 0);
    if (memory == MAP_FAILED) {
      const std::string reason = std::generic_category().message(errno);
      file.size_ = 0;
      throw std::runtime_error("cannot read '" + path.string() + "': mapping " + std::to_string(opened.size_bytes()) +
                               " bytes failed: " + reason);
    }
    file.data_ = static_cast<const std::byte*>(memory);
    file.registration_ = register_mapping(memory, file.size_, path);
  }
  return file;
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_(std::exchange(other.size_, 0)),
      registration_(std::exchange(other.registration_, nullptr)) {}

MappedFile& MappedFile::operator=(MappedFile&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(registration_, other.registration_);
  return *this;
}

MappedFile::~MappedFile() {
  if (data_ == nullptr) return;
  release_mapping(registration_);
  ::munmap(const_cast<std::byte*>(data_), size_);
}

std::string MappedFile::sha256() const {
  Sha256 hash;
  for (size_t begin = 0; begin < size_; begin += kHashedPieceBytes) {
    throw_if_interrupted();
    const std::span<const std::byte> piece = bytes().subspan(begin, std::min(kHashedPieceBytes, size_ - begin));
    hash.update(piece);
    drop(piece);
  }
  return hash.hex();
}

void MappedFile::drop(std::span<const std::byte> part) const {
  // Drops only pages that lie wholly inside, since a tensor's neighbours may be in use. The mapping is never written,
  // so a dropped page can always be read again. If the kernel refuses, that costs memory only and is no error.
  const uintptr_t page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const uintptr_t file_begin = reinterpret_cast<uintptr_t>(data_);
  const uintptr_t part_begin = reinterpret_cast<uintptr_t>(part.data());
  if (part.empty()) return;
  if (part_begin < file_begin || part_begin - file_begin > size_ || part.size() > size_ - (part_begin - file_begin)) {
    throw std::invalid_argument("MappedFile::drop: the bytes do not belong to this file");
  }
  const uintptr_t begin = (part_begin + page - 1) / page * page;
  const uintptr_t end = (part_begin + part.size()) / page * page;
  if (begin < end) ::madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED);
}

}  // namespace pare::runtime
