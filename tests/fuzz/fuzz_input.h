// The parts that fuzzers share: the input is copied into a heap block of exactly its size, so that one byte past it is
// caught. A reader may refuse it with one of two exceptions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>
#include <span>
#include <stdexcept>
#include <string>

namespace pare {

template <typename Read>
int fuzz(const uint8_t* data, size_t size, Read read) {
  const std::unique_ptr<std::byte[]> copy(new std::byte[size]);
  if (size > 0) std::memcpy(copy.get(), data, size);
  try {
    read(std::span<const std::byte>(copy.get(), size));
  } catch (const std::invalid_argument&) {
  } catch (const std::runtime_error&) {
  }  // anything else, std::bad_alloc and std::out_of_range included, is a finding
  return 0;
}

// A failure must not keep later readers from being tried.
template <typename Read>
void attempt(Read read) {
  fuzz(nullptr, 0, [&](std::span<const std::byte>) { read(); });
}

inline std::string as_text(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

}  // namespace pare
