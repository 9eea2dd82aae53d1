// One block of threads: the order in which they run, the block's barrier, and the joint operations of the lanes of a
// warp.
#pragma once

#include <cstddef>
#include <cstdint>
#include <random>
#include <source_location>
#include <string>
#include <vector>

#include "tests/emulation/cuda_emulation.h"
#include "tests/emulation/fiber.h"

namespace pare::emulation {

// The data that the threads of a launch have in common.
struct Launch {
  std::string kernel;  // the kernel's name
  void (*run)(void* context);
  void* context;
  dim3 block;
  size_t shared_limit_bytes;  // for arrays with names and dynamic shared memory together
  bool is_lockstep;
  std::mt19937_64 random;
};

enum class State : uint8_t { ready, yielded, waits_for_warp, waits_for_block, done };

struct Thread {
  Fiber fiber;
  uint3 index;      // threadIdx
  unsigned linear;  // gives lane and warp
  State state = State::ready;
  const char* operation = "nothing";  // the operation that it last waited for, and the place
  std::source_location site;
  int num_atomics = 0;  // atomic operations since it last yielded

  unsigned lane() const { return linear % 32; }
  unsigned warp() const { return linear / 32; }
};

class Block {
 public:
  Block(Launch& launch, uint3 index);

  // Runs all threads to their end. Throws Error.
  void run();

  // The running thread calls these. The first one that fails ends the block. Error names kernel, block and thread.
  [[noreturn]] void fail(const std::string& what);
  [[noreturn]] void fail_at(const char* operation, const std::source_location& site, const std::string& what);
  void barrier(const char* operation, const std::source_location& site);
  void collective(const char* operation, uint32_t mask, void* argument, Execute execute,
                  const std::source_location& site);
  void yield();
  // Counts an atomic operation. A thread that does nothing else yields now and then, because it may wait for another.
  void count_atomic();

  bool is_running() const { return running_ != nullptr; }
  const Thread& running() const { return *running_; }
  const Launch& launch() const { return launch_; }
  // Returns "block (1,0,0)", and the same with a thread.
  std::string name() const;
  std::string name(const Thread& thread) const;

  static Block* current();

 private:
  // An operation that some lanes have reached and others of their mask have yet to reach.
  struct Collective {
    const char* operation;
    uint32_t mask;
    uint32_t arrived;
    void* arguments[32];
  };
  struct Warp {
    uint32_t lanes = 0;  // the lanes that exist and have not returned
    std::vector<Collective> pending;
  };

  bool pass_by_warps();
  bool pass_in_lockstep();
  bool resume(Thread& thread);
  void give_way(State state);
  void choose_order();
  void refuse_bad_mask(const char* operation, uint32_t mask, const std::source_location& site);
  std::string waiting() const;

  Launch& launch_;
  uint3 index_;
  std::vector<Thread> threads_;
  std::vector<unsigned> warp_order_;
  std::vector<unsigned> lane_order_;
  std::vector<unsigned> thread_order_;
  std::vector<Warp> warps_;
  Thread* running_ = nullptr;
  const Thread* first_at_barrier_ = nullptr;
  size_t num_at_barrier_ = 0;
  size_t num_done_ = 0;
  uint64_t num_barriers_ = 0;
  int num_yields_ = 0;  // yields since a thread last did something else
  std::string failure_;
};

}  // namespace pare::emulation
