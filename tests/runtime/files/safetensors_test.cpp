#include "runtime/files/safetensors.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <random>
#include <string>

#include "runtime/system/atomic_file.h"
#include "tests/expect_error.h"
#include "tests/places.h"
#include "tests/temporary_folder.h"

namespace pare {
using namespace runtime;
namespace {

const std::filesystem::path kGolden = std::filesystem::path(kSourceFolder) / "tests/golden/formats";

// The tensors of make_formats.py in closed form. Element i is i / 4 - 2 for floats and i - 3 for integers.
struct OwnTensor {
  DType dtype;
  std::vector<int64_t> shape;
  std::vector<std::byte> data;
};

template <typename T>
std::vector<std::byte> bytes_of(const std::vector<T>& values) {
  const auto bytes = std::as_bytes(std::span(values));
  return {bytes.begin(), bytes.end()};
}

std::vector<std::byte> counting_floats(DType dtype, int count) {
  std::vector<float> values;
  for (int i = 0; i < count; ++i) values.push_back(static_cast<float>(i) / 4 - 2);
  std::vector<std::byte> bytes(values.size() * dtype_size_bytes(dtype));
  convert_from_float(dtype, values, bytes);
  return bytes;
}

template <typename T>
std::vector<std::byte> counting(int count, int first = -3) {
  std::vector<T> values;
  for (int i = 0; i < count; ++i) values.push_back(static_cast<T>(i + first));
  return bytes_of(values);
}

std::map<std::string, OwnTensor> golden_tensors() {
  return {
      {"b.f32", {DType::F32, {2, 3}, counting_floats(DType::F32, 6)}},
      {"a.f32", {DType::F32, {5}, counting_floats(DType::F32, 5)}},
      {"f16", {DType::F16, {3, 2}, counting_floats(DType::F16, 6)}},
      {"bf16", {DType::BF16, {2, 2, 2}, counting_floats(DType::BF16, 8)}},
      {"f64", {DType::F64, {3}, bytes_of(std::vector<double>{-2, -1.75, -1.5})}},
      {"i8", {DType::I8, {7}, counting<int8_t>(7)}},
      {"u8", {DType::U8, {5}, counting<uint8_t>(5, 0)}},
      {"i16", {DType::I16, {3}, counting<int16_t>(3)}},
      {"i32", {DType::I32, {4}, counting<int32_t>(4)}},
      {"i64", {DType::I64, {2}, counting<int64_t>(2)}},
      {"bool", {DType::BOOL, {3}, bytes_of(std::vector<uint8_t>{1, 0, 1})}},
      {"scalar", {DType::F32, {}, bytes_of(std::vector<float>{1.5})}},
      {"empty", {DType::F32, {0, 4}, {}}},
      {"quote \" backslash \\ newline \n umlaut \xc3\xbc", {DType::F32, {1}, counting_floats(DType::F32, 1)}},
  };
}

TEST(Safetensors, ReadsWhatTheReferenceWriterWrites) {
  const SafetensorsFile file = SafetensorsFile::open(kGolden / "reference.safetensors");
  const std::map<std::string, OwnTensor> expected = golden_tensors();
  ASSERT_EQ(file.tensors().size(), expected.size());
  for (const auto& [name, tensor] : expected) {
    ASSERT_TRUE(file.tensors().contains(name)) << name;
    const TensorView& view = file.tensors().at(name);
    EXPECT_EQ(view.dtype, tensor.dtype) << name;
    EXPECT_EQ(view.shape, tensor.shape) << name;
    EXPECT_TRUE(std::equal(view.data.begin(), view.data.end(), tensor.data.begin(), tensor.data.end())) << name;
    EXPECT_EQ(static_cast<size_t>(view.num_elements()) * dtype_size_bytes(view.dtype), view.data.size()) << name;
  }
}

TEST(Safetensors, WritesTheBytesOfTheReferenceWriter) {
  TemporaryFolder folder;
  const std::map<std::string, OwnTensor> tensors = golden_tensors();
  std::vector<NamedTensor> named;
  for (const auto& [name, tensor] : tensors) named.push_back({name, tensor.dtype, tensor.shape, tensor.data});
  std::mt19937 generator(1);
  for (int round = 0; round < 5; ++round) {
    std::shuffle(named.begin(), named.end(), generator);
    write_safetensors(folder.path() / "a.safetensors", named);
    EXPECT_EQ(read_text_file(folder.path() / "a.safetensors"), read_text_file(kGolden / "reference.safetensors"));
  }
}

TEST(Safetensors, NoTensorsAtAllAreAFileToo) {
  TemporaryFolder folder;
  write_safetensors(folder.path() / "a", std::vector<NamedTensor>());
  EXPECT_TRUE(SafetensorsFile::open(folder.path() / "a").tensors().empty());
}

TEST(Safetensors, StreamedTensorsGiveTheSameBytesAndMustKeepTheirSize) {
  TemporaryFolder folder;
  const std::map<std::string, OwnTensor> tensors = golden_tensors();
  std::vector<StreamedTensor> streamed;
  for (const auto& [name, tensor] : tensors) {
    const auto produce = [&data = tensor.data](const ByteSink& sink) {
      for (const std::byte& byte : data) sink({&byte, 1});
    };
    streamed.push_back({name, tensor.dtype, tensor.shape, produce});
  }
  write_safetensors(folder.path() / "a", streamed);
  EXPECT_EQ(read_text_file(folder.path() / "a"), read_text_file(kGolden / "reference.safetensors"));
  const std::vector<std::byte> nine(9);
  const auto too_much = [&nine](const ByteSink& sink) { sink(nine); };
  expect_error<std::runtime_error>(
      [&] {
        write_safetensors(folder.path() / "b", std::vector<StreamedTensor>{{"x", DType::F32, {2}, too_much}});
      },
      {"'x'", "9 bytes", "ask for 8"});
  EXPECT_FALSE(std::filesystem::exists(folder.path() / "b"));
}

TEST(Safetensors, RefusesToWriteWhatItCouldNotRead) {
  TemporaryFolder folder;
  const std::vector<std::byte> data(8);
  const auto refused = [&](std::vector<NamedTensor> tensors, std::initializer_list<std::string> parts) {
    expect_error<std::invalid_argument>([&] { write_safetensors(folder.path() / "a", tensors); }, parts);
    EXPECT_TRUE(std::filesystem::is_empty(folder.path()));
  };
  refused({{"x", DType::F32, {2}, data}, {"x", DType::F32, {2}, data}}, {"'x'", "twice"});
  refused({{"x", DType::F32, {3}, data}}, {"'x'", "F32 [3]", "8 bytes"});
  refused({{"x", DType::F32, {-2}, data}}, {"[-2]"});
  refused({{"x", DType::F32, {int64_t{1} << 62, 4, 2}, data}}, {"impossible shape"});
  refused({{"__metadata__", DType::F32, {2}, data}}, {"reserved"});
  refused({{"\xff", DType::F32, {2}, data}}, {"UTF-8"});
  refused({{std::string("a\0b", 3), DType::F32, {2}, data}}, {"U+0000"});
}

std::vector<std::byte> file_bytes(const std::string& header, size_t num_data_bytes) {
  const uint64_t size = header.size();
  std::string text(reinterpret_cast<const char*>(&size), 8);
  text += header + std::string(num_data_bytes, '\0');
  const auto bytes = std::as_bytes(std::span(text));
  return {bytes.begin(), bytes.end()};
}

std::string entry(const std::string& name, const std::string& dtype, const std::string& shape,
                  const std::string& offsets) {
  return "\"" + name + R"(":{"dtype":")" + dtype + R"(","shape":)" + shape + R"(,"data_offsets":)" + offsets + "}";
}

void refused(const std::vector<std::byte>& bytes, std::initializer_list<std::string> parts) {
  expect_error<std::runtime_error>([&] { SafetensorsFile::parse(bytes, "m.safetensors"); }, parts);
}

void refused_header(const std::string& header, size_t num_data_bytes, std::initializer_list<std::string> parts) {
  SCOPED_TRACE(header.substr(0, 200));
  refused(file_bytes(header, num_data_bytes), parts);
}

TEST(Safetensors, RefusesDamagedLengths) {
  refused({}, {"m.safetensors", "at least 8 bytes, found 0"});
  refused(std::vector<std::byte>(7), {"found 7"});
  refused(std::vector<std::byte>(8), {"does not start with '{'"});
  std::vector<std::byte> bytes = file_bytes("{" + entry("x", "F32", "[2]", "[0,8]") + "}", 8);
  EXPECT_EQ(SafetensorsFile::parse(bytes, "").size(), 1u);
  const uint64_t huge = uint64_t{1} << 60;
  std::memcpy(bytes.data(), &huge, 8);
  refused(bytes, {"1152921504606846976", "at most 100000000"});
  const uint64_t beyond = 5000;
  std::memcpy(bytes.data(), &beyond, 8);
  refused(bytes, {"claims 5000 bytes", "truncated"});
  const uint64_t negative = ~uint64_t{0};
  std::memcpy(bytes.data(), &negative, 8);
  refused(bytes, {"at most 100000000"});
}

TEST(Safetensors, RefusesDamagedHeaders) {
  const std::string x = entry("x", "F32", "[2]", "[0,8]");
  refused_header("[" + x + "]", 8, {"does not start with '{'"});
  refused_header("{" + x, 8, {"not valid JSON"});
  refused_header("{" + x + "} x", 8, {"not valid JSON"});
  refused_header("{\"\xff\":1}", 8, {"not valid JSON"});
  refused_header("{" + x + "," + x + "}", 8, {"key 'x' twice"});
  refused_header(R"({"x":{"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8, {"key 'dtype' twice"});
  refused_header("{\"x\":" + std::string(100'000, '[') + std::string(100'000, ']') + "}", 8, {"nested too deeply"});
  refused_header("{\"x\":" + std::string(100'000, '['), 8, {"nested too deeply"});
  refused_header("{\"__metadata__\":{\"a\":1}," + x + "}", 8, {"__metadata__", "'a'"});
  refused_header("{\"__metadata__\":[]," + x + "}", 8, {"__metadata__"});
  refused_header(R"({"x":3})", 0, {"'x'", "expected an object"});
  refused_header(R"({"x":{"dtype":"F32","shape":[2]}})", 8, {"'x'", "missing key 'data_offsets'"});
  refused_header(R"({"x":{"dtype":"F32","shape":[2],"data_offsets":[0,8],"more":1}})", 8, {"'x'", "'more'"});
  refused_header(R"({"x":{"dtype":3,"shape":[2],"data_offsets":[0,8]}})", 8, {"dtype must be a string"});
  refused_header(R"({"x":{"dtype":"F32","shape":2,"data_offsets":[0,8]}})", 8, {"shape must be an array"});
  refused_header("{" + entry("x", "F31", "[2]", "[0,8]") + "}", 8, {"'x'", "'F31'"});
  refused_header("{" + entry("x", "F8_E5M2", "[8]", "[0,8]") + "}", 8, {"'x'", "F8_E5M2", "expected a checkpoint of"});
  refused_header("{" + entry("x", "U16", "[4]", "[0,8]") + "}", 8, {"'x'", "U16"});
  // A message does not end at a U+0000 in a name. A file's metadata may hold one.
  refused_header("{" + entry("a\\u0000b", "F32", "[2]", "[0,8]") + "}", 8, {"'a\\x00b'", "U+0000"});
  refused_header("{" + entry("x", "F\\u00003", "[2]", "[0,8]") + "}", 8, {"'F\\x003' is not supported"});
  const std::string note = R"({"__metadata__":{"note":"a\u0000b"},)" + x + "}";
  EXPECT_EQ(SafetensorsFile::parse(file_bytes(note, 8), "").size(), 1u);
}

// Going over all entries after each of them would take 10^10 steps.
TEST(Safetensors, ManyTensorsAreNoLongWork) {
  constexpr int kNumTensors = 100'000;
  std::string header = "{";
  for (int i = 0; i < kNumTensors; ++i) {
    const std::string offsets = "[" + std::to_string(4 * i) + "," + std::to_string(4 * i + 4) + "]";
    header += entry("layer." + std::to_string(i), "F32", "[1]", offsets) + ",";
  }
  header.back() = '}';
  const uint64_t header_bytes = header.size();
  std::string bytes(sizeof header_bytes, '\0');
  std::memcpy(bytes.data(), &header_bytes, sizeof header_bytes);
  bytes += header + std::string(4 * kNumTensors, '\0');
  const auto tensors = SafetensorsFile::parse(std::as_bytes(std::span(bytes)), "many");
  EXPECT_EQ(tensors.size(), kNumTensors);
  EXPECT_EQ(tensors.at("layer.77777").data.data() - tensors.at("layer.0").data.data(), 4 * 77777);
}

TEST(Safetensors, RefusesDamagedShapesAndOffsets) {
  const auto one = [](const std::string& shape, const std::string& offsets) {
    return "{" + entry("x", "F32", shape, offsets) + "}";
  };
  refused_header(one("[3]", "[0,8]"), 8, {"'x'", "F32 of shape [3] takes 12 bytes", "give 8"});
  refused_header(one("[-2]", "[0,8]"), 8, {"shape", "'-2'"});
  refused_header(one("[2.0]", "[0,8]"), 8, {"shape", "'2.0'"});
  refused_header(one("[\"2\"]", "[0,8]"), 8, {"shape"});
  refused_header(one("[[2]]", "[0,8]"), 8, {"shape", "'[2]'"});
  refused_header(one("[4294967296,4294967296]", "[0,8]"), 8, {"overflows"});
  refused_header(one("[4611686018427387904,4]", "[0,8]"), 8, {"overflows"});
  refused_header(one("[4611686018427387904]", "[0,8]"), 8, {"overflows"});
  refused_header(one("[18446744073709551615]", "[0,8]"), 8, {"shape"});
  refused_header(one("[1e99999]", "[0,8]"), 8, {"not valid JSON"});
  refused_header(one("[2]", "[0,8,8]"), 8, {"array of two"});
  refused_header(one("[2]", "[-8,0]"), 8, {"data_offsets", "'-8'"});
  refused_header(one("[2]", "[8,0]"), 8, {"data_offsets 8 to 0"});
  refused_header(one("[2]", "[0,8]"), 7, {"data_offsets 0 to 8", "7 bytes of data", "truncated"});
  refused_header(one("[2]", "[9223372036854775800,9223372036854775807]"), 8, {"do not lie"});
  refused_header(one("[2]", "[0,8]"), 9, {"last 1 bytes belong to no tensor"});
  refused_header(one("[2]", "[4,12]"), 12, {"4 bytes before tensor 'x'", "belong to no tensor"});
  const auto two = [](const std::string& first, const std::string& second) {
    return "{" + entry("x", "F32", "[2]", first) + "," + entry("y", "F32", "[2]", second) + "}";
  };
  EXPECT_EQ(SafetensorsFile::parse(file_bytes(two("[8,16]", "[0,8]"), 16), "").size(), 2u);
  refused_header(two("[0,8]", "[4,12]"), 12, {"'x' and 'y' overlap at offset 4"});
  refused_header(two("[0,8]", "[0,8]"), 8, {"overlap at offset 0"});
  refused_header(two("[0,8]", "[12,20]"), 20, {"4 bytes before tensor 'y' (offset 12)"});
  refused_header("{}", 4, {"last 4 bytes"});
}

TEST(Safetensors, EveryTruncationIsAnError) {
  const std::string golden = read_text_file(kGolden / "reference.safetensors");
  const auto bytes = std::as_bytes(std::span(golden));
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_THROW(SafetensorsFile::parse(bytes.first(size), "x"), std::runtime_error) << size;
  }
  TemporaryFolder folder;
  write_file_atomically(folder.path() / "short.safetensors", bytes.first(bytes.size() - 1));
  expect_error<std::runtime_error>([&] { SafetensorsFile::open(folder.path() / "short.safetensors"); },
                                   {"short.safetensors", "truncated"});
}

// Whatever the damage is, the result is an error, or tensors that lie inside the bytes.
TEST(Safetensors, RandomDamageNeverYieldsTensorsOutsideTheFile) {
  const std::string golden = read_text_file(kGolden / "reference.safetensors");
  std::mt19937 generator(4);
  for (int round = 0; round < 5000; ++round) {
    std::vector<std::byte> damaged(golden.size());
    std::memcpy(damaged.data(), golden.data(), golden.size());
    for (int i = 0; i < 2; ++i) damaged[8 + generator() % 800] = static_cast<std::byte>('0' + generator() % 75);
    try {
      for (const auto& [name, tensor] : SafetensorsFile::parse(damaged, "x")) {
        ASSERT_GE(tensor.data.data(), damaged.data());
        ASSERT_LE(tensor.data.data() + tensor.data.size(), damaged.data() + damaged.size());
      }
    } catch (const std::runtime_error&) {
    }
  }
}

}  // namespace
}  // namespace pare
