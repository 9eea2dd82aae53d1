#include "runtime/files/npy.h"

#include <gtest/gtest.h>

#include <random>

#include "runtime/system/atomic_file.h"
#include "tests/expect_error.h"
#include "tests/places.h"
#include "tests/temporary_folder.h"

namespace pare {
using namespace runtime;
namespace {

const std::filesystem::path kGolden = std::filesystem::path(kSourceFolder) / "tests/golden/formats";

// Returns what make_formats.py wrote: arange(15).reshape(3, 5) * 1000.
TokenWindows golden_windows() {
  TokenWindows windows{.num_windows = 3, .num_tokens = 5, .ids_NT = {}};
  for (int i = 0; i < 15; ++i) windows.ids_NT.push_back(1000 * i);
  return windows;
}

TEST(Npy, ReadsWhatNumpyWrites) {
  for (const char* name : {"windows_int32.npy", "windows_int64.npy", "windows_version2.npy"}) {
    const TokenWindows windows = read_npy(kGolden / name);
    EXPECT_EQ(windows.num_windows, 3) << name;
    EXPECT_EQ(windows.num_tokens, 5) << name;
    EXPECT_EQ(windows.ids_NT, golden_windows().ids_NT) << name;
    EXPECT_EQ(windows.window(2)[1], 11000) << name;
  }
  const TokenWindows one = read_npy(kGolden / "windows_one_dimension.npy");
  EXPECT_EQ(one.num_windows, 1);
  EXPECT_EQ(one.ids_NT, (std::vector<int32_t>{5000, 6000, 7000, 8000, 9000}));
}

TEST(Npy, WritesTheBytesOfNumpy) {
  TemporaryFolder folder;
  write_npy(folder.path() / "a.npy", golden_windows());
  EXPECT_EQ(read_text_file(folder.path() / "a.npy"), read_text_file(kGolden / "windows_int32.npy"));
  TokenWindows wrong = golden_windows();
  wrong.num_windows = 2;
  expect_error<std::invalid_argument>([&] { write_npy(folder.path() / "b.npy", wrong); }, {"2 windows of 5", "15 ids"});
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "b.npy"));
}

TEST(Npy, RefusesWhatNumpyWritesButPareDoesNotRead) {
  const auto refused = [](const std::string& name, std::initializer_list<std::string> parts) {
    SCOPED_TRACE(name);
    expect_error<std::runtime_error>([&] { read_npy(kGolden / ("refused_" + name + ".npy")); }, parts);
  };
  refused("fortran_order", {"refused_fortran_order.npy", "Fortran order", "ascontiguousarray"});
  refused("big_endian", {"'<i4'", "found '>i4'"});
  refused("float32", {"found '<f4'"});
  refused("structured", {"structured type"});
  refused("three_dimensions", {"(1, 3, 5)"});
  refused("scalar", {"found ()"});
  refused("negative", {"-1000 at index 1"});
  refused("large_id", {"1000000000000 at index 1"});
}

std::vector<std::byte> npy_bytes(std::string header, std::string data, char major = 1) {
  std::string text = std::string("\x93NUMPY") + major + '\0';
  const uint32_t size = static_cast<uint32_t>(header.size());
  text.append(reinterpret_cast<const char*>(&size), major == 1 ? 2 : 4);
  text += header + data;
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

TEST(Npy, RefusesDamagedFiles) {
  const auto refused = [](const std::vector<std::byte>& bytes, std::initializer_list<std::string> parts) {
    expect_error<std::runtime_error>([&] { parse_npy(bytes, "some.npy"); }, parts);
  };
  const std::string good = "{'descr': '<i4', 'fortran_order': False, 'shape': (2, 1), }\n";
  const std::string data(8, '\1');
  EXPECT_EQ(parse_npy(npy_bytes(good, data), "").num_windows, 2);
  EXPECT_EQ(parse_npy(npy_bytes("{\"shape\":(1,2),'descr':'<i8','fortran_order':False}", std::string(16, '\0')), "")
                .num_tokens,
            2);
  refused({}, {"some.npy", "magic"});
  refused(std::vector<std::byte>(100), {"magic"});
  refused(npy_bytes(good, data, 3), {"found 3.0"});
  refused(npy_bytes(good, data.substr(1)), {"(2, 1)", "7 bytes"});
  refused(npy_bytes(good, data + "x"), {"(2, 1)", "9 bytes"});
  std::vector<std::byte> long_header = npy_bytes(good, data);
  long_header[9] = std::byte{0xff};
  refused(long_header, {"header claims", "truncated"});
  refused(npy_bytes("{'descr': '<i4'}", data), {"lacks"});
  refused(npy_bytes("{'descr': '<i4', 'descr': '<i4'}", data), {"repeated key 'descr'"});
  refused(npy_bytes("{'other': 3}", data), {"unknown or repeated key 'other'"});
  refused(npy_bytes(std::string("{'a\0b': 3}", 10), data), {"key 'a\\x00b'"});
  refused(npy_bytes("[]", data), {"expected '{'"});
  refused(npy_bytes("", data), {"malformed header"});
  refused(npy_bytes(good + "x", data), {"expected the end"});
  const auto with_shape = [&](const std::string& shape) {
    return npy_bytes("{'descr': '<i4', 'fortran_order': False, 'shape': " + shape + "}", data);
  };
  refused(with_shape("(4611686018427387904, 4)"), {"does not match"});
  refused(with_shape("(99999999999999999999,)"), {"expected a size"});
  refused(with_shape("(-2, 1)"), {"expected a size"});
  refused(with_shape("(2 1)"), {"expected ')'"});
  refused(with_shape("(2, 1"), {"malformed"});
  refused(with_shape("(1" + std::string(100, ',') + ")"), {"malformed"});
  refused(npy_bytes("{'descr': '<i4', 'fortran_order': False, 'shape': (0, 4)}", ""), {"no tokens"});
}

TEST(Npy, EveryTruncationAndRandomDamageIsAnErrorOrATable) {
  const std::string golden = read_text_file(kGolden / "windows_int64.npy");
  const auto bytes = std::as_bytes(std::span(golden));
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_THROW(parse_npy(bytes.first(size), "x"), std::runtime_error) << size;
  }
  std::mt19937 generator(2);
  for (int round = 0; round < 20000; ++round) {
    std::vector<std::byte> damaged(bytes.begin(), bytes.end());
    for (int i = 0; i < 3; ++i) damaged[generator() % 128] = static_cast<std::byte>(generator());
    try {
      const TokenWindows windows = parse_npy(damaged, "x");
      ASSERT_EQ(windows.ids_NT.size(), static_cast<size_t>(windows.num_windows * windows.num_tokens));
    } catch (const std::runtime_error&) {
    }
  }
}

}  // namespace
}  // namespace pare
