// Checks Backend::run_step on the device: what is recorded, when it is recorded anew, and what fails.
#include "tests/cuda/on_cuda.h"
#include "tests/expect_error.h"

namespace pare {
using namespace runtime;
namespace {

class CudaSteps : public testing::Test {
 protected:
  // Runs a step that doubles x after `more`, and counts the steps that the backend called.
  void run(Backend& backend, const std::function<void()>& more = {}) {
    backend.run_step(recorded_, [&] {
      ++num_calls_;
      if (more) more();
      backend.scale(x_.get(), x_.size(), 2.0f);
    });
  }
  std::vector<float> x() const { return received(*cuda_, x_); }
  static std::vector<float> powers(int exponent) { return {std::ldexp(1.0f, exponent), std::ldexp(3.0f, exponent)}; }

  std::unique_ptr<Backend> cuda_ = make_cuda_backend();
  Buffer<float> x_ = sent<float>(*cuda_, {1.0f, 3.0f});
  std::unique_ptr<RecordedStep> recorded_;
  int num_calls_ = 0;
};

// The first step runs, the second one is recorded, and all others repeat it.
TEST_F(CudaSteps, CallsAreRepeated) {
  for (int step = 1; step <= 6; ++step) {
    run(*cuda_);
    EXPECT_EQ(x(), powers(step));
    EXPECT_EQ(num_calls_, std::min(step, 2));
  }
}

TEST_F(CudaSteps, ABackendThatRecordsNothingCallsEveryStep) {
  cuda_ = nullptr;
  x_ = {};
  cuda_ = make_cuda_backend(false);
  x_ = sent<float>(*cuda_, {1.0f, 3.0f});
  for (int step = 1; step <= 6; ++step) run(*cuda_);
  EXPECT_EQ(x(), powers(6));
  EXPECT_EQ(num_calls_, 6);
}

// What a step reads comes from memory, so that it may change between steps.
TEST_F(CudaSteps, MemoryMayChangeBetweenSteps) {
  for (int step = 0; step < 6; ++step) {
    const auto value = static_cast<float>(step);
    cuda_->upload<float>(std::vector<float>{value, -value}, x_.get());
    run(*cuda_);
    EXPECT_EQ(x(), (std::vector<float>{2.0f * value, -2.0f * value}));
  }
}

// An allocation may have replaced what the recorded calls read.
TEST_F(CudaSteps, AnAllocationBeginsAnew) {
  for (int step = 1; step <= 4; ++step) run(*cuda_);
  EXPECT_EQ(num_calls_, 2);
  Buffer<float> moved = sent<float>(*cuda_, powers(10));
  std::swap(moved, x_);
  for (int step = 1; step <= 4; ++step) run(*cuda_);
  EXPECT_EQ(x(), powers(14));
  EXPECT_EQ(received(*cuda_, moved), powers(4));
  EXPECT_EQ(num_calls_, 4);
}

// Steps that need the host each time run each time.
TEST_F(CudaSteps, StepsThatAllocateOrCopyAreNotRecorded) {
  std::vector<float> seen;
  for (int step = 1; step <= 4; ++step) {
    run(*cuda_, [&] { seen = x(); });
    EXPECT_EQ(seen, powers(step - 1));
  }
  EXPECT_EQ(num_calls_, 4);
  recorded_.reset();
  for (int step = 5; step <= 8; ++step) run(*cuda_, [&] { cuda_->allocate(4); });
  EXPECT_EQ(x(), powers(8));
  EXPECT_EQ(num_calls_, 8);
}

TEST_F(CudaSteps, AnErrorWhileAStepIsRecordedLeavesTheBackendUsable) {
  run(*cuda_);
  expect_error<std::runtime_error>([&] { run(*cuda_, [] { throw std::runtime_error("interrupted here"); }); },
                                   {"interrupted here"});
  EXPECT_EQ(x(), powers(1));
  for (int step = 2; step <= 5; ++step) run(*cuda_);
  EXPECT_EQ(x(), powers(5));
}

// A step that breaks its promise and asks for memory when it is recorded must not lose what it asked for silently.
TEST_F(CudaSteps, WhatMayNotBeRecordedIsNamed) {
  run(*cuda_);
  expect_error<std::runtime_error>([&] { run(*cuda_, [&] { cuda_->allocate(4); }); },
                                   {"cannot allocate 16 bytes", "cudaErrorStreamCaptureUnsupported"});
  for (int step = 2; step <= 5; ++step) run(*cuda_);
  EXPECT_EQ(x(), powers(5));
}

}  // namespace
}  // namespace pare
