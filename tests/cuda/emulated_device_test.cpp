// What the backend says of devices that it cannot use.
#include "tests/cuda/on_cuda.h"
#include "tests/expect_error.h"

namespace pare {
namespace {

class CudaDevices : public testing::Test {
 protected:
  ~CudaDevices() override { emulation::set_device({}); }
};

TEST_F(CudaDevices, WhatCannotBeUsedIsNamed) {
  emulation::set_device({.count = 0});
  expect_error<std::runtime_error>([] { make_cuda_backend(); }, {"no device", "--device cpu"});
  emulation::set_device({.major = 7, .minor = 5});
  expect_error<std::runtime_error>([] { make_cuda_backend(); }, {"7.5", "8.0"});
  emulation::set_device({.driver_version = 11040});
  expect_error<std::runtime_error>([] { make_cuda_backend(); }, {"driver", "11", "13", "update"});
  emulation::set_device({});
  EXPECT_EQ(find_cuda_device().name, "Emulated GPU");
  EXPECT_EQ(make_cuda_backend()->name(), "cuda");
}

}  // namespace
}  // namespace pare
