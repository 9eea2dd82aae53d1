#include "compress/run/torch_errors.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/mm.h>
#include <gtest/gtest.h>

#include <new>
#include <stdexcept>

#include "tests/expect_error.h"

namespace pare {
using namespace compress;
namespace {

TEST(TorchErrors, NoMemoryIsWhatItIsElsewhere) {
  EXPECT_THROW(with_own_errors([] { return at::empty({int64_t{1} << 60}, at::kByte).toString(); }), std::bad_alloc);
}

TEST(TorchErrors, OthersComeWithoutAStack) {
  try {
    with_own_errors([] { return at::mm(at::empty({2, 3}), at::empty({2, 3})).toString(); });
    FAIL() << "expected an error";
  } catch (const std::logic_error& error) {
    const std::string what = error.what();
    EXPECT_NE(what.find("mat1 and mat2"), std::string::npos) << what;
    EXPECT_EQ(what.find("frame #"), std::string::npos) << what;
    EXPECT_EQ(what.find("Exception raised from"), std::string::npos) << what;
  }
}

TEST(TorchErrors, OurOwnStayAsTheyAre) {
  EXPECT_EQ(with_own_errors([] { return std::string("made"); }), "made");
  expect_error<std::runtime_error>(
      [] { with_own_errors([]() -> std::string { throw std::runtime_error("the disk"); }); }, {"the disk"});
}

}  // namespace
}  // namespace pare
