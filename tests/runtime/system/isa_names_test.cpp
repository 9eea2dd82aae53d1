#include <gtest/gtest.h>

#include "tests/runtime/system/tested_isas.h"

namespace pare {
namespace {

// What users write in PARE_ISA and --isa, weakest first.
TEST(IsaNames, AreThoseOfTheDocuments) {
  const bool is_x86 = baseline_isa() == runtime::Isa::avx2;
  EXPECT_EQ(names_of_isas(), is_x86 ? "avx2, avxvnni, avx512, vnni, avx512bf16, amx" : "neon, dotprod, i8mm");
}

}  // namespace
}  // namespace pare
