// nvcc refuses to compile this kernel, so the emulator must not run it either.
#include "tests/emulation/self_test/micro_kernels.h"

namespace pare {
using namespace runtime;
namespace {

__global__ void too_much_shared_memory(int* memory) {
  SHARED_ARRAY(int, first, 8 * 1024);
  SHARED_ARRAY(int, second, 4 * 1024 + 1);
  first[threadIdx.x] = second[threadIdx.x] = 0;
  memory[threadIdx.x] = first[threadIdx.x] + second[threadIdx.x];
}

}  // namespace

void launch_too_much_shared_memory(int* memory) {
  launch(too_much_shared_memory, dim3(1), dim3(32), 0, nullptr, memory);
}

}  // namespace pare
