// Checks the kernels that measure the peak rates of a device.
#include "runtime/cuda/cuda_roof.h"

#include "runtime/engine/memory_need.h"
#include "tests/cuda/on_cuda.h"
#include "tests/expect_error.h"
#include "tests/runtime/engine/tiny_models.h"

namespace pare {
using namespace runtime;
namespace {

// The numbers depend on the device. Here the emulator checks that the kernels keep to their memory.
TEST(CudaRoof, IsMeasured) {
  EXPECT_GT(measure_cuda_fma_gflops(), 0.0);
  // The size is a multiple neither of what a block reads nor of 16 bytes.
  EXPECT_GT(measure_cuda_read_gbps(100 * 1000 + 5), 0.0);
}

// The measured model is in memory at the same time.
TEST(CudaRoof, OfALargeModelReadsAPartOfItsSize) {
  EXPECT_EQ(cuda_roof_bytes(1000), 1000);
  EXPECT_EQ(cuda_roof_bytes(int64_t{1} << 40), int64_t{2} << 30);
  const Checkpoint model = Checkpoint::open(family_path("llama_gqa_untied"));
  DeviceWorkload workload = {.num_rows = 8, .num_tokens = 8};
  const MemoryNeed alone = memory_need(model, workload);
  for (const int64_t most : {alone.weight_bytes / 2, 2 * alone.weight_bytes}) {
    workload.most_roof_bytes = most;
    EXPECT_EQ(memory_need(model, workload).total(), alone.total() + std::min(most, alone.weight_bytes));
  }
}

TEST(CudaRoof, RefusesWhatIsNoVector) {
  expect_error<std::invalid_argument>([] { measure_cuda_read_gbps(15); }, {"read roof", "16", "15"});
}

}  // namespace
}  // namespace pare
