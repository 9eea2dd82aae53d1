// What this process may take of the machine: beside what is free, control groups (cgroups, versions 1 and 2) limit memory
// and processor time, for containers and services, each also by its ancestors. `root` is where /proc and /sys are looked
// for (tests have their own).
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>

namespace pare {

struct FreeMemory {
  int64_t bytes = 0;       // that can still be taken, what the kernel holds of files and gives back included
  int64_t swap_bytes = 0;  // beside them, and slow
  std::string limit;       // what ends there, in words
};

// The least that /proc/meminfo (MemAvailable) and the limits of control groups leave. Throws std::runtime_error when
// /proc/meminfo cannot be read.
FreeMemory free_memory(const std::filesystem::path& root = "/");

// CPUs' worth of time that control groups allow, 1.5 for one and a half; empty for no limit.
std::optional<double> cpu_quota(const std::filesystem::path& root = "/");

// Threads to compute with: OMP_NUM_THREADS; else one for each CPU that this process may run on (affinity), and no more
// than its quota keeps busy, rounded up.
int default_num_threads(const std::filesystem::path& root = "/");

}  // namespace pare
