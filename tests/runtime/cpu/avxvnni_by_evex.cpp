// Lets the program that it is linked into act as on a CPU with AVX-VNNI, by the instruction of evex_dot.h. These
// definitions and that of avxvnni_digits_by_evex.cpp take precedence over the library's. Everything above the product
// of bytes is the real code.
#include <gtest/gtest.h>

#include "runtime/cpu/kernel_choice.h"
#include "runtime/cpu/kernels/int8_avxvnni_kernels.h"
#include "runtime/system/isa.h"
#include "runtime/system/isa_avxvnni.h"
#include "tests/runtime/cpu/evex_dot.h"

namespace pare {
namespace runtime {

bool has_avxvnni() {
  return EvexVnni::is_there();
}

const Int8Kernels& int8_kernels_avxvnni() {
  static const Int8Kernels kernels = make_avxvnni_kernels<EvexVnni>();
  return kernels;
}

}  // namespace runtime

using namespace runtime;
namespace {

TEST(AvxVnniByEvex, IsWhatThisProgramMultipliesWith) {
  if (!EvexVnni::is_there()) GTEST_SKIP() << "needs AVX-512 with VNNI";
  if (detect_isa() == Isa::avx2) GTEST_SKIP() << kIsaVariable << " takes the set away";
  EXPECT_TRUE(supports_isa(Isa::avxvnni)) << "has_avxvnni() is not this program's";
  static const Int8Kernels expected = make_avxvnni_kernels<EvexVnni>();
  EXPECT_EQ(int8_kernels(Isa::avxvnni).gemv_int8[0], expected.gemv_int8[0]);
  EXPECT_EQ(digit_kernels(Isa::avxvnni), &digit_kernels_avxvnni());
}

}  // namespace
}  // namespace pare
