#include "runtime/machine/limits.h"

#include <gtest/gtest.h>
#include <omp.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cstdlib>
#include <fstream>
#include <regex>

#include "tests/expect_error.h"
#include "tests/runtime/commands/pare_runtime.h"
#include "tests/temporary_folder.h"

namespace pare {
using namespace runtime;
namespace {

constexpr int64_t kMiB = 1 << 20;

// A machine that consists of files, with 1000 MiB available, 100 MiB of swap, and the control groups that a test adds.
class Limits : public testing::Test {
 protected:
  void SetUp() override {
    write("proc/meminfo", "MemTotal: 9999999 kB\nMemAvailable:   1024000 kB\nSwapFree:        102400 kB\n");
    write("proc/self/mountinfo", "");
    write("proc/self/cgroup", "");
  }
  void write(const std::string& name, const std::string& text) const {
    std::filesystem::create_directories((root() / name).parent_path());
    std::ofstream(root() / name) << text;
  }
  void use_version_2(const std::string& group, const std::string& seen = "/") const {
    write("proc/self/cgroup", "0::" + group + "\n");
    write("proc/self/mountinfo", "22 1 0:20 / /proc rw shared:2 - proc proc rw\n30 23 0:26 " + seen +
                                     " /sys/fs/cgroup rw,nosuid shared:4 master:1 - cgroup2 cgroup2 rw\n");
  }
  void use_version_1(const std::string& group, const std::string& seen = "/") const {
    write("proc/self/cgroup", "9:memory:" + group + "\n4:cpu,cpuacct:" + group + "\n1:name=systemd:/x\n0::/\n");
    write("proc/self/mountinfo", "35 31 0:32 " + seen +
                                     " /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n36 31 0:33 " + seen +
                                     " /sys/fs/cgroup/cpu\\040s rw - cgroup cgroup rw,cpu,cpuacct\n41 31 0:38 / "
                                     "/sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n");
  }
  const std::filesystem::path& root() const { return folder_.path(); }
  int64_t free_mib() const { return free_memory(root()).bytes / kMiB; }

 private:
  TemporaryFolder folder_;
};

TEST_F(Limits, WithoutControlGroupsAreTheMachines) {
  const FreeMemory memory = free_memory(root());
  EXPECT_EQ(memory.bytes, 1000 * kMiB);
  EXPECT_EQ(memory.swap_bytes, 100 * kMiB);
  EXPECT_FALSE(cpu_quota(root()));
  write("proc/meminfo", "MemTotal: 9999999 kB\n");
  expect_error<std::runtime_error>([&] { free_memory(root()); }, {"proc/meminfo", "MemAvailable"});
}

TEST_F(Limits, OfVersion2AreThoseOfTheGroupAndItsAncestors) {
  use_version_2("/a/b");
  const std::string top = "sys/fs/cgroup/";
  write(top + "a/b/memory.max", "max\n");
  write(top + "a/b/memory.current", "104857600\n");
  write(top + "a/memory.max", std::to_string(300 * kMiB) + "\n");
  write(top + "a/memory.current", std::to_string(250 * kMiB) + "\n");
  // Cached files are freed before the limit is met.
  write(top + "a/memory.stat", "anon 1\ninactive_file 31457280\nactive_file 20971520\nfile_dirty 7\n");
  EXPECT_EQ(free_mib(), 300 - (250 - 30 - 20));
  const FreeMemory memory = free_memory(root());
  EXPECT_NE(memory.limit.find("a/memory.max"), std::string::npos) << memory.limit;
  EXPECT_NE(memory.limit.find("300 MiB"), std::string::npos) << memory.limit;
  EXPECT_EQ(memory.swap_bytes, 0);
  write(top + "a/b/memory.high", std::to_string(130 * kMiB) + "\n");
  EXPECT_EQ(free_mib(), 30);
  write(top + "a/b/memory.high", std::to_string(90 * kMiB) + "\n");  // the group holds more than that
  EXPECT_EQ(free_mib(), 0);

  EXPECT_FALSE(cpu_quota(root()));
  write(top + "a/b/cpu.max", "max 100000\n");
  EXPECT_FALSE(cpu_quota(root()));
  write(top + "a/cpu.max", "150000 100000\n");
  EXPECT_DOUBLE_EQ(cpu_quota(root()).value(), 1.5);
  write(top + "a/b/cpu.max", "50000 50000\n");
  EXPECT_DOUBLE_EQ(cpu_quota(root()).value(), 1.0);
}

TEST_F(Limits, OfVersion1AreThoseOfTheGroupAndItsAncestors) {
  use_version_1("/a/b");
  const std::string memory = "sys/fs/cgroup/memory/", cpu = "sys/fs/cgroup/cpu s/";
  write(memory + "a/b/memory.limit_in_bytes", "9223372036854771712\n");
  write(memory + "a/b/memory.usage_in_bytes", std::to_string(100 * kMiB));
  write(memory + "a/memory.limit_in_bytes", std::to_string(400 * kMiB));
  write(memory + "a/memory.usage_in_bytes", std::to_string(150 * kMiB));
  EXPECT_EQ(free_mib(), 250);
  // The statistics include the limit of an ancestor that the container does not see.
  write(memory + "a/b/memory.stat",
        "cache 5\nhierarchical_memory_limit 209715200\ntotal_inactive_file 10485760\ntotal_active_file 0\n");
  EXPECT_EQ(free_mib(), 200 - 90);
  write(cpu + "a/b/cpu.cfs_quota_us", "-1\n");
  write(cpu + "a/b/cpu.cfs_period_us", "100000\n");
  EXPECT_FALSE(cpu_quota(root()));
  write(cpu + "a/cpu.cfs_quota_us", "250000\n");
  write(cpu + "a/cpu.cfs_period_us", "100000\n");
  EXPECT_DOUBLE_EQ(cpu_quota(root()).value(), 2.5);
}

// In a container, the process's own group is at the mount point: it is the top, or the folder that is mounted.
TEST_F(Limits, OfAContainerAreAtTheMountPoint) {
  use_version_2("/");
  write("sys/fs/cgroup/memory.max", std::to_string(70 * kMiB));
  EXPECT_EQ(free_mib(), 70);
  use_version_2("/docker/abc", "/docker/abc");
  EXPECT_EQ(free_mib(), 70);
  use_version_2("/docker/abc/inner", "/docker/abc");
  write("sys/fs/cgroup/inner/memory.max", std::to_string(20 * kMiB));
  EXPECT_EQ(free_mib(), 20);
  use_version_2("/../elsewhere");  // a group outside this namespace
  EXPECT_EQ(free_mib(), 70);
  use_version_1("/docker/abc", "/docker/abc");
  write("sys/fs/cgroup/memory/memory.limit_in_bytes", std::to_string(60 * kMiB));
  EXPECT_EQ(free_mib(), 60);
}

// The kernel promises as much as is asked for, unless it is told not to, or the process has a limit.
TEST_F(Limits, AddressesCountWhereTheyArePromisedOrLimited) {
  rlimit before{};
  for (const auto resource : {RLIMIT_DATA, RLIMIT_AS}) {
    ASSERT_EQ(getrlimit(resource, &before), 0);
    if (before.rlim_cur != RLIM_INFINITY) GTEST_SKIP() << "there is a limit already";
  }
  EXPECT_FALSE(limits_addresses(root()));
  for (const char* mode : {"0\n", "1\n"}) {
    write("proc/sys/vm/overcommit_memory", mode);
    EXPECT_FALSE(limits_addresses(root()));
  }
  write("proc/sys/vm/overcommit_memory", "2\n");
  EXPECT_TRUE(limits_addresses(root()));
  write("proc/sys/vm/overcommit_memory", "0\n");
  rlimit limit = before;
  limit.rlim_cur = rlim_t{1} << 50;
  for (const auto resource : {RLIMIT_DATA, RLIMIT_AS}) {  // private pages count for the first as well
    ASSERT_EQ(setrlimit(resource, &limit), 0);
    EXPECT_TRUE(limits_addresses(root()));
    ASSERT_EQ(setrlimit(resource, &before), 0);
    EXPECT_FALSE(limits_addresses(root()));
  }
}

TEST_F(Limits, ThreadsAreNoMoreThanTheQuotaKeepsBusy) {
  if (std::getenv("OMP_NUM_THREADS") != nullptr) GTEST_SKIP() << "OMP_NUM_THREADS decides";
  const int threads = omp_get_max_threads();
  omp_set_num_threads(8);
  use_version_2("/");
  const auto with_quota = [&](const std::string& quota) {
    write("sys/fs/cgroup/cpu.max", quota + " 100000\n");
    return default_num_threads(root());
  };
  EXPECT_EQ(with_quota("max"), 8);
  EXPECT_EQ(with_quota("1600000"), 8);
  EXPECT_EQ(with_quota("300000"), 3);
  EXPECT_EQ(with_quota("150000"), 2);
  EXPECT_EQ(with_quota("1000"), 1);
  setenv("OMP_NUM_THREADS", "8", 1);
  EXPECT_EQ(with_quota("300000"), 8);
  unsetenv("OMP_NUM_THREADS");
  omp_set_num_threads(threads);
}

TEST_F(Limits, KernelsHaveAtMostOneThreadForEachCpu) {
  const int cpus = omp_get_num_procs();
  EXPECT_EQ(usable_threads(1, root()), 1);
  EXPECT_EQ(usable_threads(cpus, root()), cpus);
  EXPECT_EQ(usable_threads(cpus + 1, root()), cpus);
  EXPECT_EQ(usable_threads(0, root()), std::min(omp_get_max_threads(), cpus));
  use_version_2("/");
  write("sys/fs/cgroup/cpu.max", "50000 100000\n");
  EXPECT_EQ(usable_threads(cpus + 1, root()), 1);
}

// Runs the programs in a control group of the real machine, where one can be made.
class ControlGroup : public PareRuntime {
 protected:
  void TearDown() override {
    std::error_code ignored;
    for (const std::filesystem::path& group : made_) std::filesystem::remove(group, ignored);
  }
  // Makes a group, and returns the file by which a process enters it, or an empty text if no group can be made.
  // `limits` are files of the group and their contents.
  std::string make(const std::string& controller, const std::vector<std::pair<std::string, std::string>>& limits) {
    const std::filesystem::path version_1 = std::filesystem::path("/sys/fs/cgroup") / controller;
    const std::filesystem::path top =
        std::filesystem::is_directory(version_1) ? version_1 : std::filesystem::path("/sys/fs/cgroup");
    const std::filesystem::path group = top / ("pare-test-" + std::to_string(getpid()) + "-" + controller);
    std::error_code error;
    if (!std::filesystem::create_directory(group, error)) return "";
    made_.push_back(group);
    for (const auto& [name, value] : limits) {
      if (!std::filesystem::exists(group / name)) continue;  // a file of the other version
      std::ofstream file(group / name);
      if (!(file << value << std::flush)) return "";
      limited_ = true;
    }
    const std::string procs = (group / "cgroup.procs").string();
    return limited_ && std::ofstream(procs) ? procs : "";
  }
  // Runs the program in the group.
  Outcome run_in(const std::string& procs, const std::string& words) const {
    return run(words, "echo $$ > " + procs + "; env -u OMP_NUM_THREADS");
  }

 private:
  std::vector<std::filesystem::path> made_;
  bool limited_ = false;
};

TEST_F(ControlGroup, MemoryIsAskedForBeforeAModelIsLoaded) {
#ifdef __SANITIZE_ADDRESS__
  GTEST_SKIP() << "the sanitizer needs memory of its own";
#endif
  const std::string limit = std::to_string(96 * kMiB);
  const std::string procs = make("memory", {{"memory.limit_in_bytes", limit}, {"memory.max", limit}});
  if (procs.empty()) GTEST_SKIP() << "no control group can be made here";
  const std::string generate = "generate " + model_.string() + " --prompt x --max-tokens ";
  EXPECT_EQ(run_in(procs, generate + "8").status, 0);
  EXPECT_EQ(run(generate + "8").status, 0);
  // The model has a million positions, so its tables and caches do not fit.
  nlohmann::json changed = {{"max_position_embeddings", 1 << 20}};
  const std::filesystem::path large = folder_.path() / "large";
  copy_family("llama_gqa_untied", large, changed);
  std::ofstream(large / "tokenizer.json") << ascii_tokenizer_json();
  for (const std::string& words :
       {"generate " + large.string() + " --prompt x --max-tokens 1000000",
        "bench " + large.string() + " --prefill-tokens 1000000 --decode-tokens 4 --repetitions 1",
        "eval " + large.string() + " --context 1000000 --text " + text_.string()}) {
    if (words.starts_with("eval")) std::ofstream(text_) << std::string(1'000'001, 'x');
    const Outcome result = run_in(procs, words);
    EXPECT_EQ(result.status, 1) << words;
    for (const char* part : {"of memory are needed", "96.0 MiB", "memory.", "large", "fewer tokens"}) {
      EXPECT_NE(result.err.find(part), std::string::npos) << words << ": " << result.err;
    }
  }
  // The reference keeps keys and values as floats, whatever the model's bits: more of them are needed than for it.
  const Outcome compared = run_in(procs, "eval " + large.string() + " --context 1000000 --kv-bits 8 --text " +
                                             text_.string() + " --reference " + large.string());
  static const std::regex kCache("of weights, ([^;]*) of keys and values");
  std::vector<std::string> caches;
  for (std::sregex_iterator found(compared.err.begin(), compared.err.end(), kCache), end; found != end; ++found) {
    caches.push_back((*found)[1]);
  }
  ASSERT_EQ(caches.size(), 2u) << compared.err;
  EXPECT_NE(caches[0], caches[1]) << compared.err;
}

TEST_F(ControlGroup, ThreadsFollowTheQuota) {
  const std::string procs =
      make("cpu", {{"cpu.cfs_period_us", "100000"}, {"cpu.cfs_quota_us", "100000"}, {"cpu.max", "100000 100000"}});
  if (procs.empty()) GTEST_SKIP() << "no control group can be made here";
  const std::string words = "bench " + model_.string() + " --prefill-tokens 8 --decode-tokens 4 --repetitions 1 --json";
  const Outcome result = run_in(procs, words);
  ASSERT_EQ(result.status, 0) << result.err;
  EXPECT_EQ(nlohmann::json::parse(result.out).at("threads"), 1);
}

// omp_get_max_threads follows the affinity.
TEST_F(ControlGroup, ThreadsFollowAffinity) {
  if (omp_get_num_procs() < 2) GTEST_SKIP() << "one CPU";
  const std::string words = "bench " + model_.string() + " --prefill-tokens 8 --decode-tokens 4 --repetitions 1 --json";
  const Outcome result = run(words, "env -u OMP_NUM_THREADS taskset -c 0");
  ASSERT_EQ(result.status, 0) << result.err;
  EXPECT_EQ(nlohmann::json::parse(result.out).at("threads"), 1);
}

}  // namespace
}  // namespace pare
