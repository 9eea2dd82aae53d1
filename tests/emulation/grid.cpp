// A launch: its limits, its blocks one after another, and the comparisons at their ends.
#include <algorithm>
#include <numeric>

#include "runtime/cuda/device.cuh"
#include "tests/emulation/device_memory.h"
#include "tests/emulation/emulator.h"
#include "tests/emulation/fault_guard.h"
#include "tests/emulation/host_functions.h"
#include "tests/emulation/race_check.h"
#include "tests/emulation/shared_memory.h"
#include "tests/emulation/thread_block.h"

namespace pare::emulation {
using namespace runtime;
namespace {

// The limits are those of the CUDA C++ Programming Guide, table "Technical Specifications per Compute Capability".
bool is_shape_possible(const dim3& grid, const dim3& block) {
  const auto is_within = [](unsigned size, unsigned limit) { return size >= 1 && size <= limit; };
  return is_within(grid.x, 0x7FFFFFFF) && is_within(grid.y, 65535) && is_within(grid.z, 65535) &&
         is_within(block.x, 1024) && is_within(block.y, 1024) && is_within(block.z, 64) &&
         size_t{block.x} * block.y * block.z <= 1024;
}

void refuse_host_pointers(const std::string& kernel, const PointerArgument* pointers, size_t num_pointers) {
  for (size_t i = 0; i < num_pointers; ++i) {
    if (pointers[i].index == 0 || pointers[i].pointer == nullptr) continue;
    if (device_memory::is_allocated(pointers[i].pointer, 0)) continue;
    throw Error(kernel + ": argument " + std::to_string(pointers[i].index) +
                " is a pointer, but not to memory that cudaMalloc gave and cudaFree has not taken back");
  }
}

void run_block(Launch& launch, const uint3& index, size_t dynamic_shared_bytes) {
  blockIdx = index;
  Block block(launch, index);
  race_check::begin_block(block.name(), launch.block.x * launch.block.y * launch.block.z);
  shared_memory::open(dynamic_shared_bytes);
  try {
    block.run();
  } catch (const Error&) {
    shared_memory::close();
    throw;
  }
  const std::string damage = shared_memory::close();
  if (!damage.empty()) throw Error(launch.kernel + ", " + block.name() + ": " + damage);
}

}  // namespace

cudaError_t launch_status(const Grid& grid) {
  if (const cudaError_t status = stream_status(grid.stream); status != cudaSuccess) return status;
  if (!is_shape_possible(grid.grid, grid.block)) return remember(cudaErrorInvalidConfiguration);
  const size_t limit = shared_limits(grid.kernel).dynamic_bytes;
  return grid.dynamic_shared_bytes > limit ? remember(cudaErrorInvalidValue) : cudaSuccess;
}

cudaError_t run_grid(const Grid& shape, const PointerArgument* pointers, size_t num_pointers,
                     void (*run)(void* context), void* context) {
  const std::string name = "kernel " + kernel_name(shape.kernel);
  const std::lock_guard lock(host_functions_mutex());
  if (const cudaError_t status = launch_status(shape); status != cudaSuccess) return status;
  const dim3 grid = shape.grid, block = shape.block;
  const SharedLimits limits = shared_limits(shape.kernel);
  count_launch();

  Launch launch{name,
                run,
                context,
                block,
                limits.total_bytes,
                options().schedule == Schedule::lockstep,
                std::mt19937_64(options().seed)};
  refuse_host_pointers(launch.kernel, pointers, num_pointers);
  blockDim = block;
  gridDim = grid;
  const size_t num_blocks = size_t{grid.x} * grid.y * grid.z;
  std::vector<size_t> order;
  if (options().order == Order::random) {
    order.resize(num_blocks);
    std::iota(order.begin(), order.end(), size_t{0});
    std::shuffle(order.begin(), order.end(), launch.random);
  }
  race_check::begin_launch();
  std::string failure;
  try {
    const device_memory::Access access;
    const FaultGuard guard;
    for (size_t i = 0; i < num_blocks; ++i) {
      const size_t b = options().order == Order::forward   ? i
                       : options().order == Order::reverse ? num_blocks - 1 - i
                                                           : order[i];
      run_block(launch,
                {static_cast<unsigned>(b % grid.x), static_cast<unsigned>(b / grid.x % grid.y),
                 static_cast<unsigned>(b / (size_t{grid.x} * grid.y))},
                shape.dynamic_shared_bytes);
    }
  } catch (const Error& error) {
    failure = error.what();
  }
  for (const std::string& found : {race_check::end_launch(), device_memory::repair()}) {
    if (!found.empty()) failure += (failure.empty() ? launch.kernel + ", " : "; besides, ") + found;
  }
  if (!failure.empty()) throw Error(failure);
  return cudaSuccess;
}

void* shared_array(const void* key, const char* name, size_t bytes, const Site& site) {
  Block& block = *Block::current();
  void* array = shared_memory::array(key, name, bytes);
  if (array == nullptr) {
    block.fail_at("SHARED_ARRAY", site,
                  "with " + std::string(name) + " (" + std::to_string(bytes) +
                      " bytes) the arrays of the block take more than 48 KiB");
  }
  const size_t limit = block.launch().shared_limit_bytes;
  if (shared_memory::static_bytes() + shared_memory::dynamic_bytes() > limit) {
    block.fail_at("SHARED_ARRAY", site,
                  "with " + std::string(name) + " and " + std::to_string(shared_memory::dynamic_bytes()) +
                      " bytes of dynamic shared memory the block takes more than the launch allows: " +
                      std::to_string(limit) + " bytes");
  }
  return array;
}

void* dynamic_shared() {
  return shared_memory::dynamic();
}

}  // namespace pare::emulation
