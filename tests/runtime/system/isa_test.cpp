#include "runtime/system/isa.h"

#include <gtest/gtest.h>

#include <stdexcept>

namespace pare {
using namespace runtime;
namespace {

TEST(Isa, NamesAreReadBack) {
  for (Isa isa : kIsas) EXPECT_EQ(parse_isa(isa_name(isa)), isa);
  EXPECT_THROW(parse_isa("avx"), std::invalid_argument);
  EXPECT_THROW(parse_isa(""), std::invalid_argument);
}

}  // namespace
}  // namespace pare
