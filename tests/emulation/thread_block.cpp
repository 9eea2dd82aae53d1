#include "tests/emulation/thread_block.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <numeric>

#include "tests/emulation/address_check.h"
#include "tests/emulation/emulator.h"
#include "tests/emulation/race_check.h"
#include "tests/emulation/source_line.h"

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace pare::emulation {
namespace {

constexpr unsigned kWarpSize = 32;
// A block whose threads yield this often and do nothing else is in an endless loop.
constexpr int kMaxYields = 100000;
constexpr int kAtomicsBetweenYields = 256;

Block* current_block = nullptr;

std::string coordinates(const uint3& index) {
  return "(" + std::to_string(index.x) + "," + std::to_string(index.y) + "," + std::to_string(index.z) + ")";
}

std::string at(const std::source_location& site) {
  const std::string file = site.file_name();
  return file.substr(file.rfind('/') + 1) + ":" + std::to_string(site.line());
}

// Returns a permutation of 0 .. size-1.
std::vector<unsigned> order_of(size_t size, std::mt19937_64& random) {
  std::vector<unsigned> order(size);
  std::iota(order.begin(), order.end(), 0u);
  if (options().order == Order::reverse) std::reverse(order.begin(), order.end());
  if (options().order == Order::random) std::shuffle(order.begin(), order.end(), random);
  return order;
}

}  // namespace

Block* Block::current() {
  return current_block;
}

Block::Block(Launch& launch, uint3 index)
    : launch_(launch), index_(index), threads_(size_t{launch.block.x} * launch.block.y * launch.block.z) {
  const dim3 size = launch.block;
  for (unsigned i = 0; i < threads_.size(); ++i) {
    threads_[i].linear = i;
    threads_[i].index = {i % size.x, i / size.x % size.y, i / (size.x * size.y)};
  }
  warps_.resize((threads_.size() + kWarpSize - 1) / kWarpSize);
  for (const Thread& thread : threads_) warps_[thread.warp()].lanes |= 1u << thread.lane();
}

std::string Block::name() const {
  return "block " + coordinates(index_);
}
std::string Block::name(const Thread& thread) const {
  return name() + ", thread " + coordinates(thread.index);
}

void Block::run() {
  current_block = this;
  choose_order();
  while (num_done_ < threads_.size()) {
    for (Thread& thread : threads_) {
      if (thread.state == State::yielded) thread.state = State::ready;
    }
    const bool has_run = launch_.is_lockstep ? pass_in_lockstep() : pass_by_warps();
    if (!has_run && failure_.empty()) failure_ = name() + ": deadlock: " + waiting();
    if (!failure_.empty()) break;
  }
  current_block = nullptr;
  if (!failure_.empty()) throw Error(launch_.kernel + ", " + failure_);
}

void Block::choose_order() {
  warp_order_ = order_of(warps_.size(), launch_.random);
  lane_order_ = order_of(kWarpSize, launch_.random);
  thread_order_ = order_of(threads_.size(), launch_.random);
}

// Returns true when a thread ran.
bool Block::pass_by_warps() {
  bool has_run = false;
  for (const unsigned warp : warp_order_) {
    const uint64_t num_barriers = num_barriers_;
    for (bool goes_on = true; goes_on;) {
      goes_on = false;
      for (const unsigned lane : lane_order_) {
        const size_t i = warp * kWarpSize + lane;
        if (i >= threads_.size() || !resume(threads_[i])) continue;
        // After a barrier the first warp comes again.
        if (!failure_.empty() || num_barriers != num_barriers_) return true;
        goes_on = has_run = true;
      }
    }
  }
  return has_run;
}

bool Block::pass_in_lockstep() {
  bool has_run = false;
  for (const unsigned i : thread_order_) {
    has_run |= resume(threads_[i]);
    if (!failure_.empty()) return true;
  }
  return has_run;
}

bool Block::resume(Thread& thread) {
  if (thread.state != State::ready) return false;
  running_ = &thread;
  threadIdx = thread.index;
  thread.num_atomics = 0;
  thread.fiber.resume([] {
    Block& block = *current_block;
    block.launch_.run(block.launch_.context);
    block.running_->state = State::done;
    block.running_->fiber.finish();
  });
  if (std::string report = address_check::take_report(); !report.empty() && failure_.empty()) {
    failure_ = name(thread) + ": " + report;
  }
  if (thread.state == State::done) {
    thread.fiber.release();
    warps_[thread.warp()].lanes &= ~(1u << thread.lane());
    ++num_done_;
    num_yields_ = 0;
    if (num_at_barrier_ > 0 && failure_.empty()) {
      failure_ = name(thread) + " has returned while others wait: " + waiting();
    }
  }
  running_ = nullptr;
  return true;
}

void Block::give_way(State state) {
  running_->state = state;
  running_->fiber.suspend();
}

void Block::fail(const std::string& what) {
  if (failure_.empty()) failure_ = name(*running_) + ": " + what;
  running_->fiber.finish();
}

void Block::fail_at(const char* operation, const std::source_location& site, const std::string& what) {
  fail(std::string(operation) + " at " + at(site) + ": " + what);
}

// Describes the first threads that wait, and what each waits for.
std::string Block::waiting() const {
  std::string text;
  int num_named = 0;
  for (const Thread& thread : threads_) {
    if (thread.state != State::waits_for_warp && thread.state != State::waits_for_block) continue;
    if (++num_named > 4) return text + " and others";
    text += (num_named > 1 ? ", " : "") + ("thread " + coordinates(thread.index)) + " in " + thread.operation + " at " +
            at(thread.site);
  }
  return text;
}

void Block::barrier(const char* operation, const std::source_location& site) {
  Thread& thread = *running_;
  if (num_done_ > 0) fail_at(operation, site, "other threads of the block have returned and will never come here");
  if (num_at_barrier_ == 0) first_at_barrier_ = running_;
  const Thread& first = *first_at_barrier_;
  if (num_at_barrier_ > 0 &&
      (first.site.line() != site.line() || std::strcmp(first.site.file_name(), site.file_name()) != 0)) {
    fail_at(operation, site,
            "divergent barrier: thread " + coordinates(first.index) + " waits in " + first.operation + " at " +
                at(first.site));
  }
  thread.operation = operation;
  thread.site = site;
  num_yields_ = 0;
  if (++num_at_barrier_ < threads_.size()) {
    give_way(State::waits_for_block);
    return;
  }
  for (Thread& other : threads_) other.state = State::ready;
  num_at_barrier_ = 0;
  ++num_barriers_;
  race_check::block_barrier();
  if (options().order == Order::random) choose_order();
  give_way(State::ready);  // the last thread to arrive does not start first
}

void Block::refuse_bad_mask(const char* operation, uint32_t mask, const std::source_location& site) {
  const Thread& thread = *running_;
  if ((mask >> thread.lane() & 1) == 0) {
    fail_at(operation, site, "the mask does not name the calling lane " + std::to_string(thread.lane()));
  }
  const uint32_t missing = mask & ~warps_[thread.warp()].lanes;
  if (missing == 0) return;
  const unsigned lane = static_cast<unsigned>(std::countr_zero(missing));
  fail_at(operation, site,
          "the mask names lane " + std::to_string(lane) +
              (thread.warp() * kWarpSize + lane < threads_.size() ? ", which has returned"
                                                                  : ", which the block does not have"));
}

void Block::collective(const char* operation, uint32_t mask, void* argument, Execute execute,
                       const std::source_location& site) {
  Thread& thread = *running_;
  refuse_bad_mask(operation, mask, site);
  thread.operation = operation;
  thread.site = site;
  num_yields_ = 0;
  std::vector<Collective>& pending = warps_[thread.warp()].pending;
  const auto is_mine = [&](const Collective& c) { return c.mask == mask && std::strcmp(c.operation, operation) == 0; };
  auto mine = std::find_if(pending.begin(), pending.end(), is_mine);
  if (mine == pending.end()) {
    // A lane may wait for others that first do something between themselves. Lanes that wait for each other in two
    // operations never go on.
    for (const Collective& other : pending) {
      if ((other.mask >> thread.lane() & 1) == 0 || (other.arrived & mask) == 0) continue;
      fail_at(operation, site,
              std::string("lanes of its mask wait for this one in ") + other.operation +
                  (other.mask != mask ? " with another mask" : "") + ": " + waiting());
    }
    mine = pending.insert(pending.end(), Collective{operation, mask, 0, {}});
  }
  mine->arrived |= 1u << thread.lane();
  mine->arguments[thread.lane()] = argument;
  if (mine->arrived != mask) {
    give_way(State::waits_for_warp);
    return;
  }
  const Collective complete = *mine;
  pending.erase(mine);
  execute(complete.arguments, mask);
  for (unsigned lane = 0; lane < kWarpSize; ++lane) {
    if (mask >> lane & 1) threads_[thread.warp() * kWarpSize + lane].state = State::ready;
  }
}

void Block::yield() {
  if (++num_yields_ > kMaxYields) fail("livelock: the block's threads only wait in loops for something to change");
  give_way(State::yielded);
}

void Block::count_atomic() {
  if (++running_->num_atomics > kAtomicsBetweenYields) yield();
}

// ---- The functions that kernels call
// ---------------------------------------------------------------------------------

void block_barrier(const Site& site) {
  current_block->barrier("__syncthreads", site);
}

void warp_collective(const char* operation, uint32_t mask, void* argument, Execute execute, const Site& site) {
  current_block->collective(operation, mask, argument, execute, site);
}

void warp_barrier(uint32_t mask, const Site& site) {
  warp_collective(
      "__syncwarp", mask, nullptr,
      [](void* const*, uint32_t lanes) { race_check::warp_barrier(current_block->running().warp(), lanes); }, site);
}

void give_way() {
  current_block->yield();
}

namespace {

struct Shuffle {
  uint64_t bits;
  unsigned source;  // the lane
  uint64_t result;
};

struct Vote {
  bool predicate;
  uint32_t result;
};

// CUDA C++ Programming Guide, "Warp Shuffle Functions": a source outside of the lane's group is the lane itself. But
// __shfl_sync takes the lane modulo the width.
unsigned source_lane(ShuffleMode mode, int lane, int operand, int width) {
  const int first = lane & ~(width - 1), end = first + width;
  int source = lane;
  switch (mode) {
    case ShuffleMode::index:
      source = first + (operand & (width - 1));
      break;
    case ShuffleMode::up:
      source = operand >= 0 && operand <= lane - first ? lane - operand : lane;
      break;
    case ShuffleMode::down:
      source = operand >= 0 && operand < end - lane ? lane + operand : lane;
      break;
    case ShuffleMode::exclusive_or:
      source = (lane ^ operand) >= 0 && (lane ^ operand) < end ? lane ^ operand : lane;
  }
  return static_cast<unsigned>(source);
}

const char* shuffle_name(ShuffleMode mode) {
  switch (mode) {
    case ShuffleMode::index:
      return "__shfl_sync";
    case ShuffleMode::up:
      return "__shfl_up_sync";
    case ShuffleMode::down:
      return "__shfl_down_sync";
    case ShuffleMode::exclusive_or:
      return "__shfl_xor_sync";
  }
  return "shuffle";
}

}  // namespace

uint64_t shuffle(ShuffleMode mode, uint32_t mask, uint64_t bits, int operand, int width, const Site& site) {
  const char* operation = shuffle_name(mode);
  if (width < 1 || width > 32 || (width & (width - 1)) != 0) {
    current_block->fail_at(operation, site, "the width is " + std::to_string(width) + ", not a power of two up to 32");
  }
  const unsigned source = source_lane(mode, static_cast<int>(current_block->running().lane()), operand, width);
  if ((mask >> source & 1) == 0) {
    current_block->fail_at(operation, site,
                           "lane " + std::to_string(source) + " is read, but the mask does not name it");
  }
  Shuffle mine{bits, source, 0};
  warp_collective(
      operation, mask, &mine,
      [](void* const* arguments, uint32_t lanes) {
        for (unsigned lane = 0; lane < kWarpSize; ++lane) {
          if ((lanes >> lane & 1) == 0) continue;
          auto& shuffle = *static_cast<Shuffle*>(arguments[lane]);
          shuffle.result = static_cast<Shuffle*>(arguments[shuffle.source])->bits;
        }
      },
      site);
  return mine.result;
}

uint32_t ballot(const char* operation, uint32_t mask, bool predicate, const Site& site) {
  Vote mine{predicate, 0};
  warp_collective(
      operation, mask, &mine,
      [](void* const* arguments, uint32_t lanes) {
        uint32_t votes = 0;
        for (unsigned lane = 0; lane < kWarpSize; ++lane) {
          if ((lanes >> lane & 1) != 0 && static_cast<Vote*>(arguments[lane])->predicate) votes |= 1u << lane;
        }
        for (unsigned lane = 0; lane < kWarpSize; ++lane) {
          if (lanes >> lane & 1) static_cast<Vote*>(arguments[lane])->result = votes;
        }
      },
      site);
  return mine.result;
}

void require_aligned(const void* address, size_t alignment, const Site& site) {
  if (reinterpret_cast<uintptr_t>(address) % alignment == 0) return;
  current_block->fail_at("__ldg", site, "misaligned address: not a multiple of " + std::to_string(alignment));
}

void note_atomic(const void* address, size_t bytes, const void* instruction) {
  if (reinterpret_cast<uintptr_t>(address) % bytes != 0) {
    current_block->fail("atomic operation at " + source_line(instruction) + ": misaligned address");
  }
  race_check::atomic(address, bytes, instruction);
  current_block->count_atomic();
}

}  // namespace pare::emulation
