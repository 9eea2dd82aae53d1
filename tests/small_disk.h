// A disk that is nearly full, for tests of what is written to it.
#pragma once

#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <optional>
#include <stdexcept>
#include <string>

namespace pare {

// Returns what `work` returns (0 to 99) in a child process that has a file system of `size` ("64k") at `folder`, which
// only it sees. Returns 100 where `work` throws, and nothing where this machine lets a test mount nothing.
template <typename Work>
std::optional<int> on_a_small_disk(const std::filesystem::path& folder, const std::string& size, Work&& work) {
  constexpr int kThrown = 100, kNotMounted = 101;
  const std::string user = std::to_string(::getuid()), group = std::to_string(::getgid());
  const auto mounts = [&] {
    if (::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return false;
    // A user or group that the new name space does not know could own no file.
    return std::ofstream("/proc/self/uid_map") << "0 " + user + " 1" << std::flush &&
           std::ofstream("/proc/self/setgroups") << "deny" << std::flush &&
           std::ofstream("/proc/self/gid_map") << "0 " + group + " 1" << std::flush &&
           ::mount("none", folder.c_str(), "tmpfs", 0, ("size=" + size).c_str()) == 0;
  };
  const pid_t child = ::fork();
  if (child < 0) throw std::runtime_error("fork failed");
  if (child == 0) {
    int status = kNotMounted;
    try {
      if (mounts()) status = work();
    } catch (const std::exception& error) {
      std::fprintf(stderr, "%s\n", error.what());
      status = kThrown;
    }
    ::_exit(status);
  }
  int status = 0;
  if (::waitpid(child, &status, 0) != child || !WIFEXITED(status)) throw std::runtime_error("the child was killed");
  return WEXITSTATUS(status) == kNotMounted ? std::nullopt : std::optional(WEXITSTATUS(status));
}

}  // namespace pare
