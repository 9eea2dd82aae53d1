#include "runtime/cpu/roof.h"

#include <gtest/gtest.h>

#include <stdexcept>

#include "runtime/system/isa.h"
#include "tests/runtime/system/tested_isas.h"

namespace pare {
using namespace runtime;
namespace {

TEST(Roof, IsMeasuredAndRefusesNonsense) {
  for (Isa isa : float_isas()) {
    if (!supports_isa(isa)) continue;
    const double gflops = measure_fma_gflops(isa, 1);
    EXPECT_GT(gflops, 1.0);  // one scalar multiply-add a cycle at 0.5 GHz: any CPU with AVX2 is far above
    EXPECT_LT(gflops, 2000.0);
  }
  if (supports_isa(Isa::amx)) {
    EXPECT_GT(measure_prefill_gflops(Isa::amx, 1), 1.0);
    EXPECT_EQ(prefill_roof_name(Isa::amx), "AMX");
  }
  EXPECT_GT(measure_read_gbps(1 << 20, 1), 0.5);
  EXPECT_GT(measure_read_gbps(1 << 20, 2), 0.5);
  EXPECT_THROW(measure_fma_gflops(baseline_isa(), 0), std::invalid_argument);
  EXPECT_THROW(measure_read_gbps(1 << 20, 0), std::invalid_argument);
  EXPECT_THROW(measure_read_gbps(1000, 1), std::invalid_argument);
}

}  // namespace
}  // namespace pare
