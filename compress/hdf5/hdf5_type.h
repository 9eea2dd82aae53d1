// The types of values that arrays in our HDF5 files have, all little-endian.
#pragma once

#include <cstdint>

namespace pare::compress {

enum class Hdf5Type { uint8, uint16, uint32, uint64, float16, float32, float64 };

constexpr int64_t size_bytes(Hdf5Type type) {
  switch (type) {
    case Hdf5Type::uint8:
      return 1;
    case Hdf5Type::uint16:
    case Hdf5Type::float16:
      return 2;
    case Hdf5Type::uint32:
    case Hdf5Type::float32:
      return 4;
    default:
      return 8;
  }
}

}  // namespace pare::compress
