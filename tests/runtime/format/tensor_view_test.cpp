#include "runtime/format/tensor_view.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <numeric>

#include "tests/expect_error.h"

namespace pare {
using namespace runtime;
namespace {

// Sizes at the ends of a tile of 32 and beside them.
TEST(TensorView, TransposedHasEachElementInItsColumn) {
  for (const int64_t num_rows : {1, 31, 32, 33, 70}) {
    for (const int64_t num_columns : {1, 32, 65}) {
      std::vector<uint16_t> values(static_cast<size_t>(num_rows * num_columns));
      std::iota(values.begin(), values.end(), uint16_t{0});
      const std::vector<std::byte> bytes =
          transposed({DType::BF16, {num_rows, num_columns}, std::as_bytes(std::span(values))});
      ASSERT_EQ(bytes.size(), values.size() * 2);
      for (int64_t r = 0; r < num_rows; ++r) {
        for (int64_t c = 0; c < num_columns; ++c) {
          uint16_t found = 0;
          std::memcpy(&found, bytes.data() + (c * num_rows + r) * 2, 2);
          ASSERT_EQ(found, values[static_cast<size_t>(r * num_columns + c)]) << r << " " << c;
        }
      }
    }
  }
  expect_error<std::invalid_argument>([] { transposed({DType::F32, {2, 3, 4}, {}}); }, {"a matrix", "[2, 3, 4]"});
}

}  // namespace
}  // namespace pare
