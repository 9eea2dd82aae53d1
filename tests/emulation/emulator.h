// A test's interface to the emulated device, and the device's error when a kernel is wrong. Kernels are compiled
// against cuda_emulation.h instead. docs/gpu.md, "Kernels without a GPU", says what each build and option is for.
//
// The process has one device, and everything runs on the calling thread. A launch has ended, and a copy has arrived,
// when the call returns. So streams are in order. A captured stream records work instead, which runs with its graph.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace pare::emulation {

// Says how the kernels that are linked into this program were compiled.
enum class Build {
  plain,  // without instrumentation, as fast as possible
  asan,   // with AddressSanitizer and UndefinedBehaviorSanitizer
  race,   // every access is recorded in a shadow of the memory
};
Build build();

// The order of a block's threads and of a grid's blocks.
enum class Order { forward, reverse, random };
// The schedule of threads. run_ahead: each warp runs to the block's barrier before the next one starts. This shows what
// one warp overwrites while another still reads. lockstep: every thread in turn goes on to the next point where it has
// to wait.
enum class Schedule { run_ahead, lockstep };

struct Options {
  Order order = Order::forward;
  Schedule schedule = Schedule::run_ahead;
  uint64_t seed = 1;  // for Order::random
  // If set, a host that touches the device's memory between launches ends with a fault. Each launch then pays for all
  // memory that has ever been in use, some 0.1 ms for a MiB. Tests of whole models may do without it.
  bool hides_memory = true;
};
const Options& options();
void set_options(const Options& options);

struct Device {
  int count = 1;  // 0: a machine without a GPU
  std::string name = "Emulated GPU";
  int major = 9;  // the compute capability's major number
  int minor = 0;
  int num_multiprocessors = 4;
  size_t memory_bytes = size_t{1} << 30;   // at most 4 GiB
  size_t shared_optin_bytes = 227 * 1024;  // per block; sm_80 has 163 KiB, sm_86 and sm_89 99 KiB
  int driver_version = 13000;              // 1000 * major + 10 * minor, as cudaDriverGetVersion returns it
  int runtime_version = 13000;
  int sticky_error = 0;  // a cudaError of an earlier kernel: every later call that reaches the device returns it
};
const Device& device();
// Throws std::invalid_argument while memory is allocated, and for more than 4 GiB.
void set_device(const Device& device);

// Return the number and the bytes of the allocations that were not freed.
size_t num_allocations();
size_t allocated_bytes();

// Return the number of kernels that have run, those of graphs among them, and of graphs that were launched.
size_t num_launches();
size_t num_graph_launches();

// A fault of a kernel: its name, block, thread, action and source line, as far as they are known. The launch ends at
// once, and what the kernel has written stays.
class Error : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

}  // namespace pare::emulation
