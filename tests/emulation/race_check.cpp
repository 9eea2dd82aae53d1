// The compiler calls one of our hooks before every load and store of a kernel (-fsanitize=thread without its library).
// Each byte of shared and of global memory has a cell. It says who wrote it last and who has read it since.
//
// Threads are named by stamps, numbers that a thread takes anew after each barrier that it has passed. A table
// describes the stamps of the running block. Smaller ones belong to blocks that ran before. Those below the launch's
// first belong to earlier launches, whose accesses all come before. So nothing has to be erased between blocks and
// launches. The order within a block comes from a later barrier of the block or, within a warp, from vector clocks
// (Mattern 1989) of its lanes, which __syncwarp joins. Shuffles and votes order nothing, as CUDA says.
#include "tests/emulation/race_check.h"

#include <sys/mman.h>

#include <algorithm>
#include <new>
#include <set>
#include <vector>

#include "tests/emulation/device_memory.h"
#include "tests/emulation/emulator.h"
#include "tests/emulation/shared_memory.h"
#include "tests/emulation/source_line.h"
#include "tests/emulation/thread_block.h"

namespace pare::emulation::race_check {
namespace {

using Stamp = uint32_t;  // 0: no thread
constexpr unsigned kWarpSize = 32;
constexpr unsigned kMaxThreads = 1024;
constexpr size_t kMaxReports = 4;

struct Reader {
  Stamp stamp;
};

// Two readers of different warps are enough, because the next writer is of another warp than one of them.
struct Cell {
  Stamp writer;
  Stamp reader[2];
  bool is_atomic : 1;       // the last write was atomic
  bool several_atomic : 1;  // other threads of the block have written atomically and unordered before it
  bool foreign_atomic : 1;  // ... and so have threads of other blocks of the launch
  bool several_readers[2];  // other lanes of the reader's warp have read unordered before it
};

// The meaning of a stamp of the running block.
struct Moment {
  uint16_t thread;
  uint32_t num_barriers;  // barriers of the block before it
  uint32_t clock;         // the lane's clock
};

struct BlockName {
  Stamp first;
  std::string name;
};

struct Checker {
  Cell* shared;
  Cell* global;
  Stamp launch_first = 1, block_first = 1, next = 1;
  std::vector<Moment> moments;
  std::vector<BlockName> blocks;  // the blocks of the launch
  Stamp stamp_of[kMaxThreads];    // 0: it has none since the last barrier
  uint32_t num_barriers = 0;
  // clock[w][a] is lane a's own time. known[w][b][a] is the last time of a that comes before what b does now.
  uint32_t clock[kMaxThreads / kWarpSize][kWarpSize];
  uint32_t known[kMaxThreads / kWarpSize][kWarpSize][kWarpSize];
  std::vector<std::string> reports;
  std::set<std::pair<std::string, const void*>> reported;

  Checker() : shared(reserve(shared_memory::kArenaBytes)), global(reserve(device_memory::kReservedBytes)) {}

  // Pages are taken when they are touched.
  static Cell* reserve(size_t num_bytes) {
    void* cells = mmap(nullptr, num_bytes * sizeof(Cell), PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (cells == MAP_FAILED) throw std::bad_alloc();
    return static_cast<Cell*>(cells);
  }
};

Checker& checker() {
  static Checker checker;
  return checker;
}

enum class Kind { read, write, atomic };

// One access of the running thread to one kind of memory.
class Access {
 public:
  Access(Kind kind, bool is_shared, const void* instruction)
      : c_(checker()), block_(*Block::current()), kind_(kind), is_shared_(is_shared), instruction_(instruction) {
    thread_ = block_.running().linear;
    Stamp& stamp = c_.stamp_of[thread_];
    if (stamp == 0) {
      stamp = c_.next++;
      c_.moments.push_back(
          {static_cast<uint16_t>(thread_), c_.num_barriers, c_.clock[thread_ / kWarpSize][thread_ % kWarpSize]});
    }
    mine_ = stamp;
    oldest_ = is_shared ? c_.block_first : c_.launch_first;
  }

  void touch(Cell& cell) {
    const bool was_written = cell.writer >= oldest_;
    if (is_shared_ && !was_written && kind_ != Kind::write) report("read of bytes that nothing has written", 0);
    check_writer(cell, was_written);
    if (kind_ == Kind::read) {
      add_reader(cell);
      return;
    }
    check_readers(cell);
    write(cell, was_written);
  }

  void report(const std::string& what, Stamp other) {
    if (c_.reports.size() >= kMaxReports || !c_.reported.insert({what, instruction_}).second) return;
    const auto* call = static_cast<const char*>(instruction_);
    std::string text = what + (is_shared_ ? " of shared memory" : " of global memory") + " at " +
                       source_line(call - 1) + " by " + block_.name(block_.running());
    if (other != 0) text += ", the other access by " + name_of(other);
    c_.reports.push_back(text);
  }

 private:
  bool is_mine(Stamp stamp) const { return is_of_block(stamp) && moment(stamp).thread == thread_; }
  bool is_of_block(Stamp stamp) const { return stamp >= c_.block_first; }
  const Moment& moment(Stamp stamp) const { return c_.moments[stamp - c_.block_first]; }

  // Returns whether what the stamp's thread did then comes before what the running thread does now.
  bool is_before(Stamp stamp) const {
    if (stamp < oldest_) return true;
    if (!is_of_block(stamp)) return false;
    const Moment& other = moment(stamp);
    if (other.thread == thread_ || other.num_barriers < c_.num_barriers) return true;
    const unsigned warp = thread_ / kWarpSize;
    return other.thread / kWarpSize == warp &&
           other.clock <= c_.known[warp][thread_ % kWarpSize][other.thread % kWarpSize];
  }

  void check_writer(const Cell& cell, bool was_written) {
    if (!was_written || (kind_ == Kind::atomic && cell.is_atomic)) return;
    bool is_race = !is_before(cell.writer);
    // The cell names the last of several atomic writes. The others came unordered and are as recent as it.
    if (cell.is_atomic && cell.foreign_atomic) is_race = true;
    if (cell.is_atomic && cell.several_atomic && is_of_block(cell.writer) &&
        moment(cell.writer).num_barriers == c_.num_barriers) {
      is_race = true;
    }
    if (is_race) report(kind_ == Kind::read ? "race, read after write," : "race, write after write,", cell.writer);
  }

  void check_readers(const Cell& cell) {
    for (int i = 0; i < 2; ++i) {
      const Stamp reader = cell.reader[i];
      if (!is_before(reader) || (reader == mine_ && cell.several_readers[i])) {
        report("race, write after read,", reader);
      }
    }
  }

  void add_reader(Cell& cell) {
    if (cell.reader[0] == mine_ || cell.reader[1] == mine_) return;
    int slot = -1;
    for (int i = 0; i < 2; ++i) {
      const Stamp reader = cell.reader[i];
      const bool is_same_warp = reader >= oldest_ && is_of_block(reader) &&
                                moment(reader).thread / kWarpSize == thread_ / kWarpSize &&
                                moment(reader).num_barriers == c_.num_barriers;
      if (is_same_warp) {
        cell.several_readers[i] = !is_before(reader) || (cell.several_readers[i] && is_mine(reader));
        cell.reader[i] = mine_;
        return;
      }
      // The reader is of another block of the launch, or of another warp and not yet ordered. Both slots may well hold
      // such readers.
      if (slot < 0 && is_before(reader)) slot = i;
    }
    if (slot < 0) return;
    cell.reader[slot] = mine_;
    cell.several_readers[slot] = false;
  }

  void write(Cell& cell, bool was_written) {
    const bool joins = kind_ == Kind::atomic && was_written && cell.is_atomic;
    const bool is_foreign = joins && (cell.foreign_atomic || !is_of_block(cell.writer));
    const bool is_several = joins && is_of_block(cell.writer) && moment(cell.writer).num_barriers == c_.num_barriers &&
                            (cell.several_atomic || !is_before(cell.writer));
    cell = Cell{};
    cell.writer = mine_;
    cell.is_atomic = kind_ == Kind::atomic;
    cell.foreign_atomic = is_foreign;
    cell.several_atomic = is_several;
  }

  std::string name_of(Stamp stamp) const {
    if (is_of_block(stamp)) {
      const unsigned thread = moment(stamp).thread;
      const dim3 size = block_.launch().block;
      return "thread (" + std::to_string(thread % size.x) + "," + std::to_string(thread / size.x % size.y) + "," +
             std::to_string(thread / (size.x * size.y)) + ")";
    }
    const auto behind = std::upper_bound(c_.blocks.begin(), c_.blocks.end(), stamp,
                                         [](Stamp s, const BlockName& block) { return s < block.first; });
    return behind == c_.blocks.begin() ? "another block" : std::prev(behind)->name;
  }

  Checker& c_;
  Block& block_;
  Kind kind_;
  bool is_shared_;
  const void* instruction_;
  unsigned thread_;
  Stamp mine_;
  Stamp oldest_;
};

void touch(Kind kind, const void* address, size_t bytes, const void* instruction) {
  if (Block* block = Block::current(); block == nullptr || !block->is_running()) return;
  const auto* byte = static_cast<const char*>(address);
  const bool is_shared = shared_memory::is_shared(byte);
  if (!is_shared && !device_memory::is_device(byte)) return;  // the thread's own variables, and tables of constants
  Access access(kind, is_shared, instruction);
  if (is_shared ? !shared_memory::is_in_array(byte, bytes) : !device_memory::is_allocated(byte, bytes)) {
    access.report(kind == Kind::read ? "read out of bounds" : "write out of bounds", 0);
    return;
  }
  const size_t alignment = std::min<size_t>(bytes, 8);
  if (reinterpret_cast<uintptr_t>(address) % alignment != 0) access.report("misaligned access", 0);
  Cell* cells =
      is_shared ? checker().shared + (byte - shared_memory::base()) : checker().global + (byte - device_memory::base());
  for (size_t i = 0; i < bytes; ++i) access.touch(cells[i]);
}

}  // namespace

bool is_on() {
  return true;
}

void begin_launch() {
  Checker& c = checker();
  c.reports.clear();
  c.reported.clear();
  c.blocks.clear();
  // A launch does not take half of all stamps. Before they run out, all threads are forgotten.
  if (c.next > Stamp{1} << 31) {
    madvise(c.shared, shared_memory::kArenaBytes * sizeof(Cell), MADV_DONTNEED);
    madvise(c.global, device_memory::kReservedBytes * sizeof(Cell), MADV_DONTNEED);
    c.next = 1;
  }
  c.launch_first = c.block_first = c.next;
}

std::string end_launch() {
  std::string all;
  for (const std::string& report : checker().reports) all += (all.empty() ? "" : "; ") + report;
  return all;
}

void begin_block(const std::string& name, unsigned num_threads) {
  Checker& c = checker();
  c.block_first = c.next;
  c.blocks.push_back({c.next, name});
  c.moments.clear();
  c.num_barriers = 0;
  std::fill_n(c.stamp_of, num_threads, 0);
  const size_t num_warps = (num_threads + kWarpSize - 1) / kWarpSize;
  std::fill_n(&c.clock[0][0], num_warps * kWarpSize, 1);
  std::fill_n(&c.known[0][0][0], num_warps * kWarpSize * kWarpSize, 0);
}

void block_barrier() {
  Checker& c = checker();
  ++c.num_barriers;
  std::fill_n(c.stamp_of, kMaxThreads, 0);
}

void warp_barrier(unsigned warp, uint32_t mask) {
  Checker& c = checker();
  uint32_t joined[kWarpSize] = {};
  for (unsigned lane = 0; lane < kWarpSize; ++lane) {
    if ((mask >> lane & 1) == 0) continue;
    c.known[warp][lane][lane] = c.clock[warp][lane]++;
    for (unsigned other = 0; other < kWarpSize; ++other) {
      joined[other] = std::max(joined[other], c.known[warp][lane][other]);
    }
  }
  for (unsigned lane = 0; lane < kWarpSize; ++lane) {
    if ((mask >> lane & 1) == 0) continue;
    std::copy_n(joined, kWarpSize, c.known[warp][lane]);
    c.stamp_of[warp * kWarpSize + lane] = 0;
  }
}

void atomic(const void* address, size_t bytes, const void* instruction) {
  touch(Kind::atomic, address, bytes, instruction);
}

void forget(const void* begin, size_t bytes) {
  constexpr size_t kPageBytes = 4096;
  const size_t first = static_cast<size_t>(static_cast<const char*>(begin) - device_memory::base()) * sizeof(Cell);
  const size_t first_page = (first + kPageBytes - 1) / kPageBytes;
  const size_t end_page = (first + bytes * sizeof(Cell)) / kPageBytes;
  if (first_page >= end_page) return;
  madvise(reinterpret_cast<char*>(checker().global) + first_page * kPageBytes, (end_page - first_page) * kPageBytes,
          MADV_DONTNEED);
}

// Instrumented code calls these. The operations on std::atomic in inline functions of the standard library are the
// host's; kernels have CUDA's.
#define PARE_ACCESS_HOOKS(bytes)                                     \
  extern "C" void __tsan_read##bytes(void* address) {                \
    touch(Kind::read, address, bytes, __builtin_return_address(0));  \
  }                                                                  \
  extern "C" void __tsan_write##bytes(void* address) {               \
    touch(Kind::write, address, bytes, __builtin_return_address(0)); \
  }
#define PARE_UNALIGNED_HOOKS(bytes)                                  \
  extern "C" void __tsan_unaligned_read##bytes(void* address) {      \
    touch(Kind::read, address, bytes, __builtin_return_address(0));  \
  }                                                                  \
  extern "C" void __tsan_unaligned_write##bytes(void* address) {     \
    touch(Kind::write, address, bytes, __builtin_return_address(0)); \
  }
#define PARE_FETCH_HOOK(bits, type, operation)                                             \
  extern "C" type __tsan_atomic##bits##_fetch_##operation(volatile type* a, type v, int) { \
    return __atomic_fetch_##operation(a, v, __ATOMIC_SEQ_CST);                             \
  }
#define PARE_ATOMIC_HOOKS(bits, type)                                                                         \
  PARE_FETCH_HOOK(bits, type, add)                                                                            \
  PARE_FETCH_HOOK(bits, type, sub)                                                                            \
  PARE_FETCH_HOOK(bits, type, and)                                                                            \
  PARE_FETCH_HOOK(bits, type, or)                                                                             \
  PARE_FETCH_HOOK(bits, type, xor)                                                                            \
  extern "C" type __tsan_atomic##bits##_load(const volatile type* a, int) {                                   \
    return __atomic_load_n(a, __ATOMIC_SEQ_CST);                                                              \
  }                                                                                                           \
  extern "C" void __tsan_atomic##bits##_store(volatile type* a, type v, int) {                                \
    __atomic_store_n(a, v, __ATOMIC_SEQ_CST);                                                                 \
  }                                                                                                           \
  extern "C" type __tsan_atomic##bits##_exchange(volatile type* a, type v, int) {                             \
    return __atomic_exchange_n(a, v, __ATOMIC_SEQ_CST);                                                       \
  }                                                                                                           \
  extern "C" int __tsan_atomic##bits##_compare_exchange_strong(volatile type* a, type* e, type v, int, int) { \
    return __atomic_compare_exchange_n(a, e, v, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);                   \
  }                                                                                                           \
  extern "C" int __tsan_atomic##bits##_compare_exchange_weak(volatile type* a, type* e, type v, int, int) {   \
    return __atomic_compare_exchange_n(a, e, v, true, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);                    \
  }
PARE_ACCESS_HOOKS(1)
PARE_ACCESS_HOOKS(2)
PARE_ACCESS_HOOKS(4)
PARE_ACCESS_HOOKS(8)
PARE_ACCESS_HOOKS(16)
PARE_UNALIGNED_HOOKS(2)
PARE_UNALIGNED_HOOKS(4)
PARE_UNALIGNED_HOOKS(8)
PARE_UNALIGNED_HOOKS(16)
PARE_ATOMIC_HOOKS(8, uint8_t)
PARE_ATOMIC_HOOKS(16, uint16_t)
PARE_ATOMIC_HOOKS(32, uint32_t)
PARE_ATOMIC_HOOKS(64, uint64_t)
#undef PARE_ACCESS_HOOKS
#undef PARE_UNALIGNED_HOOKS
#undef PARE_FETCH_HOOK
#undef PARE_ATOMIC_HOOKS

extern "C" {
void __tsan_init() {}
void __tsan_func_entry(void*) {}
void __tsan_func_exit() {}
void __tsan_read_range(void* address, size_t bytes) {
  touch(Kind::read, address, bytes, __builtin_return_address(0));
}
void __tsan_write_range(void* address, size_t bytes) {
  touch(Kind::write, address, bytes, __builtin_return_address(0));
}
void __tsan_atomic_thread_fence(int) {
  __atomic_thread_fence(__ATOMIC_SEQ_CST);
}
void __tsan_atomic_signal_fence(int) {
  __atomic_signal_fence(__ATOMIC_SEQ_CST);
}
void __tsan_vptr_update(void**, void*) {}
void __tsan_vptr_read(void**) {}
}

}  // namespace pare::emulation::race_check
