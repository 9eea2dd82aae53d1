// Finds how much of the machine this process may take. Besides what is free, control groups (cgroups, versions 1 and 2)
// limit memory and processor time of containers and services, each also by its ancestors. `root` is where /proc and
// /sys are looked for (tests have their own).
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace pare::runtime {

struct FreeMemory {
  int64_t bytes = 0;       // can still be taken; includes cached files that the kernel gives back
  int64_t swap_bytes = 0;  // in addition, and slow
  std::string limit;       // names the limit that is reached first
};

// Returns the least that /proc/meminfo (MemAvailable) and the limits of control groups leave. Throws std::runtime_error
// if /proc/meminfo cannot be read.
FreeMemory free_memory(const std::filesystem::path& root = "/");

// Returns true if addresses count as memory before anything is written there: under a limit of the address space
// or of data (ulimit -v, ulimit -d), and where the kernel never promises more than it has (vm.overcommit_memory = 2).
bool limits_addresses(const std::filesystem::path& root = "/");

// Returns the CPUs' worth of time that control groups allow, e.g. 1.5 for one and a half; empty if there is no limit.
std::optional<double> cpu_quota(const std::filesystem::path& root = "/");

// Returns the number of threads to compute with. That is OMP_NUM_THREADS, if it is set. Otherwise it is one for each
// CPU that this process may run on (affinity), but no more than its quota keeps busy, rounded up.
int default_num_threads(const std::filesystem::path& root = "/");

// Returns how many of so many threads the kernels are given: at most one for each CPU that this process may use, as
// above. They meet hundreds of times a token. Three threads on two CPUs decode at less than half the speed of two,
// since each meeting waits for the scheduler. `asked` below 1 stands for what OpenMP was told.
int usable_threads(int asked, const std::filesystem::path& root = "/");

}  // namespace pare::runtime
