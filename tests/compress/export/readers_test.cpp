// What `pare export` writes, read by the libraries that define the formats: gptqmodel and bitsandbytes.
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <utility>
#include <vector>

#include "runtime/files/safetensors.h"
#include "runtime/model/checkpoint.h"
#include "tests/compress/export/export_fixture.h"
#include "tests/compress/run_pare.h"
#include "tests/places.h"

namespace pare::test {
using namespace runtime;
namespace {

class Readers : public Export {
 protected:
  // Has the libraries expand what the folders hold, all in one process.
  void read_by_others(const std::vector<std::string>& names) {
    const std::string log = at("readers.log").string();
    std::string line =
        std::string(std::getenv("PARE_READERS")) + " '" + kSourceFolder + "/tests/compress/export/read_by_others.py'";
    for (const std::string& name : names) line += " '" + at(name).string() + "'";
    ASSERT_EQ(std::system((line + " >'" + log + "' 2>&1").c_str()), 0) << read_text_file(log);
  }
  // Compares every quantized linear of the folder with what the library expands, which is `allowed` of each value off
  // after the rounding to its own type.
  void expect_read(const std::string& name, double allowed) {
    SCOPED_TRACE(name);
    const Checkpoint checkpoint = Checkpoint::open(at(name));
    const SafetensorsFile read = SafetensorsFile::open(at(name + ".read.safetensors"));
    size_t num_compared = 0;
    for (const LinearDescription& linear : stored_linears(checkpoint)) {
      if (!checkpoint.stored_scheme(linear)) continue;
      ++num_compared;
      const auto found = read.tensors().find(linear.name + ".weight");
      ASSERT_NE(found, read.tensors().end()) << linear.name;
      ASSERT_EQ(found->second.shape, (std::vector<int64_t>{linear.num_out, linear.num_in})) << linear.name;
      const std::vector<float> own = weight(checkpoint, linear);
      std::vector<float> theirs(own.size());
      convert_to_float(found->second.dtype, found->second.data, theirs);
      for (size_t i = 0; i < own.size(); ++i) {
        const float rounded = round_to(own[i], found->second.dtype);
        ASSERT_LE(std::abs(static_cast<double>(theirs[i]) - rounded), allowed * std::abs(rounded))
            << linear.name << ", value " << i;
      }
    }
    EXPECT_GT(num_compared, 0u);
    EXPECT_EQ(num_compared, read.tensors().size());
  }
  void SetUp() override {
    if (std::getenv("PARE_READERS") == nullptr) {
      GTEST_SKIP() << "PARE_READERS names no Python with gptqmodel and bitsandbytes (make test sets one up)";
    }
  }
};

// A scale in float16 has 11 binary digits and code - zero at most 9, so that float32 holds their product. gptqmodel
// rounds it once, to float16.
TEST_F(Readers, GptqmodelReadsGptqAndAwq) {
  make("llama_gqa_untied", "symmetric", "passes:\n  - rtn: {bits: 4, group_size: 32}\n");
  make("llama_gqa_untied", "asymmetric", "passes:\n  - rtn: {bits: 4, group_size: 32, symmetric: false}\n");
  make("llama_gqa_untied", "bytes", "passes:\n  - rtn: {bits: 8, group_size: -1}\n");
  std::vector<std::string> names;
  for (const auto& [source, format] : std::vector<std::pair<std::string, std::string>>{{"symmetric", "gptq"},
                                                                                       {"symmetric", "gptq-v2"},
                                                                                       {"symmetric", "awq-gemm"},
                                                                                       {"asymmetric", "gptq"},
                                                                                       {"asymmetric", "gptq-v2"},
                                                                                       {"asymmetric", "awq-gemm"},
                                                                                       {"bytes", "gptq"}}) {
    const std::string name = source + "-" + format;
    SCOPED_TRACE(name);
    EXPECT_EQ(count(export_to(source, name, format, "--lossless"), "codes and scales unchanged"), 14);
    names.push_back(name);
  }
  ASSERT_NO_FATAL_FAILURE(read_by_others(names));
  for (const std::string& name : names) expect_read(name, 0.0);
}

// int8: bitsandbytes multiplies a code by its row's absmax and by 1 / 127, and pare by the scale absmax / 127: the
// inverse, two products and a quotient and a product, each rounded to float32.
// NF4: both multiply a table's value by its block's absmax.
TEST_F(Readers, BitsandbytesReadsInt8AndNf4) {
  make("llama_gqa_untied", "w8a8", "passes:\n  - rtn: {bits: 8, group_size: -1, activations: int8}\n");
  export_to("w8a8", "int8", "bitsandbytes", "--lossless");
  make("llama_gqa_untied", "w4", "passes:\n  - rtn: {bits: 4, group_size: 32}\n");
  export_to("w4", "nf4", "bitsandbytes");
  ASSERT_NO_FATAL_FAILURE(read_by_others({"int8", "nf4"}));
  expect_read("int8", 5 * 0x1p-24);
  expect_read("nf4", 0x1p-24);
}

}  // namespace
}  // namespace pare::test
