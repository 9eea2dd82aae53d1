#include "runtime/machine/limits.h"

#include <omp.h>
#include <sys/resource.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <functional>
#include <limits>
#include <sstream>
#include <stdexcept>
#include <string_view>
#include <vector>

#include "runtime/system/progress.h"

namespace pare::runtime {
namespace {

namespace fs = std::filesystem;

// Version 1 writes "no limit" as the largest multiple of a page.
constexpr int64_t kNoLimit = int64_t{1} << 60;

std::string file_text(const fs::path& path) {
  std::ifstream file(path);
  std::ostringstream text;
  text << file.rdbuf();
  return text.str();
}

// Returns the whole number at the beginning of a text; empty for "max" and for other texts.
std::optional<int64_t> leading_number(std::string_view text) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc()) return std::nullopt;
  return value;
}
std::optional<int64_t> number_in(const fs::path& path) {
  return leading_number(file_text(path));
}

// Returns the sum of these keys' values in lines "key value".
int64_t sum_of(const std::string& text, std::initializer_list<std::string_view> keys) {
  std::istringstream lines(text);
  int64_t sum = 0, value = 0;
  for (std::string key; lines >> key >> value;) {
    if (std::find(keys.begin(), keys.end(), key) != keys.end()) sum += value;
  }
  return sum;
}

// mountinfo writes a blank in a path as \040.
std::string without_escapes(const std::string& text) {
  std::string plain;
  for (size_t i = 0; i < text.size(); ++i) {
    int code = 0;
    const char* const digits = text.data() + i + 1;
    if (text[i] == '\\' && i + 3 < text.size() && std::from_chars(digits, digits + 3, code, 8).ptr == digits + 3) {
      plain += static_cast<char>(code);
      i += 3;
    } else {
      plain += text[i];
    }
  }
  return plain;
}

bool has_word(const std::string& list, std::string_view word) {
  std::istringstream words(list);
  for (std::string found; std::getline(words, found, ',');) {
    if (found == word) return true;
  }
  return false;
}

struct Mount {
  std::string root, point;  // the folder of the hierarchy that is seen, and its place
};

// Finds where the hierarchy with this controller is mounted; version 2 has one for all ("").
std::optional<Mount> find_mount(const fs::path& root, const std::string& controller) {
  std::istringstream lines(file_text(root / "proc/self/mountinfo"));
  for (std::string line; std::getline(lines, line);) {
    std::istringstream fields(line);
    std::string skipped, folder, point, type, source, options;
    fields >> skipped >> skipped >> skipped >> folder >> point;
    while (fields >> skipped && skipped != "-") {
    }
    fields >> type >> source >> options;
    const bool is_it = controller.empty() ? type == "cgroup2" : type == "cgroup" && has_word(options, controller);
    if (is_it) return Mount{without_escapes(folder), without_escapes(point)};
  }
  return std::nullopt;
}

// Returns this process's group in the hierarchy of the controller, from /proc/self/cgroup: "4:cpu,cpuacct:/a", "0::/a".
std::optional<std::string> find_group(const fs::path& root, const std::string& controller) {
  std::istringstream lines(file_text(root / "proc/self/cgroup"));
  for (std::string line; std::getline(lines, line);) {
    const size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    if (controller.empty() ? controllers.empty() && line.starts_with("0:") : has_word(controllers, controller)) {
      return line.substr(second + 1);
    }
  }
  return std::nullopt;
}

// Returns the folders of this process's group and of its ancestors, as far as they can be seen.
std::vector<fs::path> groups_of(const fs::path& root, const std::string& controller) {
  const std::optional<Mount> mount = find_mount(root, controller);
  std::optional<std::string> group = find_group(root, controller);
  if (!mount || !group) return {};
  // A container often sees only its own group, mounted as if it were the top.
  const std::string prefix = mount->root == "/" ? "" : mount->root;
  const bool is_below = group->starts_with(prefix) && group->find("..") == std::string::npos;
  fs::path relative = is_below ? fs::path(group->substr(prefix.size())).relative_path() : fs::path();
  const fs::path top = root / fs::path(mount->point).relative_path();
  std::vector<fs::path> folders;
  for (; !relative.empty(); relative = relative.parent_path()) folders.push_back(top / relative);
  folders.push_back(top);
  return folders;
}

void lower(FreeMemory& memory, std::optional<int64_t> limit, int64_t held, const fs::path& file) {
  if (!limit || *limit >= kNoLimit) return;
  const int64_t left = std::max<int64_t>(*limit - held, 0);
  if (left >= memory.bytes) return;
  memory = {.bytes = left,
            .limit = "the control group's limit of " + format_bytes(*limit) + " in '" + file.string() + "'"};
}

// Returns num_threads, but no more than the quota keeps busy.
int within_quota(int num_threads, const fs::path& root) {
  const std::optional<double> quota = cpu_quota(root);
  if (!quota || *quota >= num_threads) return num_threads;
  return std::max(static_cast<int>(std::ceil(*quota)), 1);
}

}  // namespace

FreeMemory free_memory(const fs::path& root) {
  const fs::path meminfo = root / "proc/meminfo";
  FreeMemory memory;
  std::ifstream file(meminfo);
  bool found = false;
  for (std::string key; file >> key;) {
    int64_t kibibytes = 0;
    if (key == "MemAvailable:" && file >> kibibytes) {
      memory.bytes = kibibytes * 1024;
      found = true;
    }
    if (key == "SwapFree:" && file >> kibibytes) memory.swap_bytes = kibibytes * 1024;
    file.ignore(std::numeric_limits<std::streamsize>::max(), '\n');
  }
  if (!found) throw std::runtime_error(meminfo.string() + ": expected a line MemAvailable; is /proc mounted?");
  memory.limit = "what the machine has free";

  // The kernel frees cached files before a limit ends the process, so they count as free, as in MemAvailable.
  for (const fs::path& group : groups_of(root, "")) {
    const std::string statistics = file_text(group / "memory.stat");
    const int64_t held = number_in(group / "memory.current").value_or(0) -
                         sum_of(statistics, {"inactive_file", "active_file", "slab_reclaimable"});
    for (const char* name : {"memory.max", "memory.high"}) lower(memory, number_in(group / name), held, group / name);
  }
  for (const fs::path& group : groups_of(root, "memory")) {
    const std::string statistics = file_text(group / "memory.stat");
    const int64_t held = number_in(group / "memory.usage_in_bytes").value_or(0) -
                         sum_of(statistics, {"total_inactive_file", "total_active_file"});
    lower(memory, number_in(group / "memory.limit_in_bytes"), held, group / "memory.limit_in_bytes");
    // Includes the limits of ancestors, even those that a container cannot see.
    const int64_t of_all = sum_of(statistics, {"hierarchical_memory_limit"});
    if (of_all > 0) lower(memory, of_all, held, group / "memory.stat");
  }
  return memory;
}

bool limits_addresses(const fs::path& root) {
  constexpr int64_t kNeverMore = 2;
  const auto is_limited = [](auto resource) {
    rlimit limit = {};
    return getrlimit(resource, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY;
  };
  return is_limited(RLIMIT_AS) || is_limited(RLIMIT_DATA) ||
         number_in(root / "proc/sys/vm/overcommit_memory") == kNeverMore;
}

std::optional<double> cpu_quota(const fs::path& root) {
  std::optional<double> least;
  const auto limit = [&](std::optional<int64_t> quota, std::optional<int64_t> period) {
    if (!quota || !period || *quota <= 0 || *period <= 0) return;
    const double cpus = static_cast<double>(*quota) / static_cast<double>(*period);
    if (!least || cpus < *least) least = cpus;
  };
  for (const fs::path& group : groups_of(root, "")) {  // "200000 100000", "max 100000"
    const std::string text = file_text(group / "cpu.max");
    const size_t blank = text.find(' ');
    if (blank != std::string::npos) limit(leading_number(text), leading_number(text.substr(blank + 1)));
  }
  for (const fs::path& group : groups_of(root, "cpu")) {
    limit(number_in(group / "cpu.cfs_quota_us"), number_in(group / "cpu.cfs_period_us"));
  }
  return least;
}

int default_num_threads(const fs::path& root) {
  const int num_threads = omp_get_max_threads();
  return std::getenv("OMP_NUM_THREADS") != nullptr ? num_threads : within_quota(num_threads, root);
}

int usable_threads(int asked, const fs::path& root) {
  return within_quota(std::min(asked > 0 ? asked : omp_get_max_threads(), omp_get_num_procs()), root);
}

}  // namespace pare::runtime
