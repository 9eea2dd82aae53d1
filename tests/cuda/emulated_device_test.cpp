// Checks the backend's messages about devices that it cannot use, and its work on devices that have less than others.
#include "tests/cuda/on_cuda.h"
#include "tests/expect_error.h"

namespace pare {
using namespace runtime;
namespace {

class CudaDevices : public testing::Test {
 protected:
  ~CudaDevices() override { emulation::set_device({}); }
};

TEST_F(CudaDevices, WhatCannotBeUsedIsNamed) {
  emulation::set_device({.count = 0});
  expect_error<std::runtime_error>([] { make_cuda_backend(); }, {"no device", "--device cpu"});
  for (const auto& [major, minor] : {std::pair{7, 5}, {10, 0}, {12, 0}}) {
    emulation::set_device({.major = major, .minor = minor});
    expect_error<std::runtime_error>([] { make_cuda_backend(); },
                                     {"expected", "8.x", "9.0", std::to_string(major) + "." + std::to_string(minor)});
  }
  emulation::set_device({.major = 8, .minor = 9});
  EXPECT_EQ(make_cuda_backend()->name(), "cuda");
  emulation::set_device({.driver_version = 11040});
  expect_error<std::runtime_error>([] { make_cuda_backend(); }, {"driver", "11", "13", "update"});
  emulation::set_device({});
  EXPECT_EQ(find_cuda_device().name, "Emulated GPU");
  EXPECT_EQ(make_cuda_backend()->name(), "cuda");
}

// An error is blamed on memory only if memory is lacking.
TEST_F(CudaDevices, ErrorsOfEarlierKernelsAreNotALackOfMemory) {
  const std::unique_ptr<Backend> backend = make_cuda_backend();
  emulation::set_device({.sticky_error = 700});
  try {
    backend->allocate(4);
    ADD_FAILURE() << "no error";
  } catch (const std::runtime_error& error) {
    const std::string message = error.what();
    for (const char* part : {"an operation failed before", "allocate 16 bytes", "cudaErrorIllegalAddress"}) {
      EXPECT_NE(message.find(part), std::string::npos) << message;
    }
    EXPECT_EQ(message.find("smaller"), std::string::npos) << message;
  }
  expect_error<std::runtime_error>([&] { backend->free_bytes(); }, {"an operation failed before"});
  emulation::set_device({.memory_bytes = 1024});
  expect_error<std::runtime_error>([&] { backend->allocate(1024); },
                                   {"cannot allocate 4096 bytes", "smaller model", "cudaErrorMemoryAllocation"});
}

std::vector<float> attended(const AttentionShape& shape, const Sequence& sequence) {
  const std::unique_ptr<Backend> backend = make_cuda_backend();
  const int64_t num_slots = sequence.num_past + sequence.num_rows;
  const int64_t num_queries = sequence.num_rows * shape.num_heads * shape.head_size;
  const int64_t num_cached = num_slots * shape.num_kv_heads * shape.head_size;
  const Buffer<float> q = sent(*backend, random_values(num_queries, 1)),
                      keys = sent(*backend, random_values(num_cached, 2)),
                      values = sent(*backend, random_values(num_cached, 3)), x = backend->allocate(num_queries);
  const SentSequences sequences(*backend, {sequence});
  backend->attention(q.get(), {.keys = keys.get(), .values = values.get(), .num_slots = num_slots}, sequences.sequences,
                     shape, x.get());
  return received(*backend, x);
}

TEST_F(CudaDevices, AttentionFitsTheLeastSharedMemory) {
  for (const int64_t head_size : {64, 128, 256}) {
    SCOPED_TRACE(head_size);
    const AttentionShape shape = {.num_heads = 4, .num_kv_heads = 2, .head_size = head_size, .scale = 0.1f};
    for (const Sequence& sequence : {Sequence{0, 20, 0, 0}, Sequence{0, 1, 40, 0}}) {
      emulation::set_device({});
      const std::vector<float> expected = attended(shape, sequence);
      emulation::set_device({.major = 8, .minor = 6, .shared_optin_bytes = 99 * 1024});
      EXPECT_TRUE(same_bits(attended(shape, sequence), expected));
    }
  }
}

}  // namespace
}  // namespace pare
