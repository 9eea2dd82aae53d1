// What a device can do at most is measured by kernels too.
#include "runtime/cuda/cuda_roof.h"
#include "tests/cuda/on_cuda.h"
#include "tests/expect_error.h"

namespace pare {
namespace {

// How much is a matter of the device; that the kernels keep to their memory is the emulator's to find.
TEST(CudaRoof, IsMeasured) {
  EXPECT_GT(measure_cuda_fma_gflops(), 0.0);
  // Neither a multiple of what a block reads nor of 16 bytes.
  EXPECT_GT(measure_cuda_read_gbps(100 * 1000 + 5), 0.0);
}

TEST(CudaRoof, RefusesWhatIsNoVector) {
  expect_error<std::invalid_argument>([] { measure_cuda_read_gbps(15); }, {"read roof", "16", "15"});
}

}  // namespace
}  // namespace pare
