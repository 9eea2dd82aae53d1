// Corrects the leading hash and the stated size of changed HDF5 files, as in a hostile file.
#pragma once

#include <cstring>
#include <span>
#include <string>

#include "compress/hdf5/hashed_file.h"
#include "runtime/system/sha256.h"

namespace pare {
using namespace compress;
using namespace runtime;

// Returns the place of the 64 letters of HASH in the user block's "sha256 HASH", or npos if it states none.
inline size_t stated_hash_place(const std::string& file) {
  constexpr std::string_view kWord = " sha256 ";
  const size_t word = file.substr(0, kUserBlockBytes).find(kWord);
  const size_t place = word == std::string::npos ? word : word + kWord.size();
  return place < file.size() && place + 64 <= kUserBlockBytes && file.size() > kUserBlockBytes ? place
                                                                                               : std::string::npos;
}

// Does nothing for a file whose user block ends in another byte than 0, so that wrong hashes can be tried as well.
inline void sign(std::string& file) {
  const size_t place = stated_hash_place(file);
  constexpr size_t kSizePlace = kUserBlockBytes + 40;  // the place in the superblock
  const auto size = static_cast<uint64_t>(file.size());
  if (place == std::string::npos || file[kUserBlockBytes - 1] != 0 || size < kSizePlace + sizeof size) return;
  std::memcpy(file.data() + kSizePlace, &size, sizeof size);
  file.replace(place, 64, sha256_hex(std::as_bytes(std::span(file)).subspan(kUserBlockBytes)));
}

}  // namespace pare
