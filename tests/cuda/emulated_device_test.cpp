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

}  // namespace
}  // namespace pare
