// A fixture for operations of the CPU backend that every instruction set implements. It has a backend with the
// parameter's set, and the reference backend.
#pragma once

#include <gtest/gtest.h>

#include <memory>

#include "runtime/engine/backend.h"
#include "runtime/system/isa.h"
#include "tests/runtime/engine/reference_backend.h"

namespace pare {
using namespace runtime;

class OnEachIsa : public testing::TestWithParam<Isa> {
 protected:
  void SetUp() override {
    if (!supports_isa(GetParam())) GTEST_SKIP() << "this CPU has no " << isa_name(GetParam());
    backend_ = make_cpu_backend(GetParam(), 2);
  }
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<Backend> reference_ = make_reference_backend();
};

}  // namespace pare
