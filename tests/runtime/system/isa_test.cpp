#include "runtime/system/isa.h"

#include <gtest/gtest.h>

#include <stdexcept>
#include <string>

#include "tests/expect_error.h"

namespace pare {
using namespace runtime;
namespace {

TEST(Isa, NamesAreReadBack) {
  for (Isa isa : kIsas) EXPECT_EQ(parse_isa(isa_name(isa)), isa);
  EXPECT_THROW(parse_isa("avx"), std::invalid_argument);
  EXPECT_THROW(parse_isa(""), std::invalid_argument);
}

// A narrower set may be missing too: AVX-VNNI on most CPUs with AVX-512.
TEST(Isa, WhatIsMissingIsRefusedByName) {
  for (const Isa isa : kIsas) {
    const std::string name(isa_name(isa)), widest(isa_name(detect_isa()));
    if (supports_isa(isa)) {
      EXPECT_NO_THROW(require_isa(isa)) << name;
    } else {
      expect_error<std::invalid_argument>([&] { require_isa(isa); },
                                          {"instruction set " + name, widest + " is the widest"});
    }
    if (isa < detect_isa() && !supports_isa(isa)) {
      expect_error<std::invalid_argument>([&] { require_isa(isa); }, {"is the widest, without " + name});
    }
  }
}

// Kernels of floats are those of the baseline where a set adds integer products alone.
TEST(Isa, FloatKernelsAreNeverWiderThanTheSet) {
  for (const Isa isa : kIsas) {
    EXPECT_LE(float_isa(isa), isa) << isa_name(isa);
    EXPECT_EQ(float_isa(float_isa(isa)), float_isa(isa)) << isa_name(isa);
  }
  EXPECT_EQ(float_isa(Isa::avxvnni), Isa::avx2);
}

}  // namespace
}  // namespace pare
