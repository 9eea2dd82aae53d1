#include "runtime/doctor/group_index.h"

#include <algorithm>

namespace pare::runtime {

std::vector<int32_t> groups_in_place(int64_t num_in, int64_t num_groups) {
  std::vector<int32_t> group_of_I(static_cast<size_t>(num_in), 0);
  const int64_t size = (num_in + num_groups - 1) / num_groups;
  for (int64_t column = 0; column < num_in; ++column) group_of_I[column] = static_cast<int32_t>(column / size);
  return group_of_I;
}

GroupIndex group_index(std::span<const int32_t> group_of_I, int64_t num_in, int64_t num_groups) {
  GroupIndex index;
  if (group_of_I.empty()) return index;
  index.is_there = true;
  const std::vector<int32_t> in_place = groups_in_place(num_in, num_groups);
  std::vector<int64_t> sizes(static_cast<size_t>(num_groups), 0);
  index.is_all_zero = num_groups > 1;
  for (int64_t column = 0; column < num_in; ++column) {
    const int32_t group = group_of_I[column];
    index.is_all_zero &= group == 0;
    index.num_moved += group != in_place[column];
    if (group < 0 || group >= num_groups) {
      ++index.num_outside;
    } else {
      ++sizes[group];
    }
  }
  const auto [smallest, largest] = std::ranges::minmax(sizes);
  index.smallest = smallest;
  index.largest = largest;
  const int64_t expected = num_in / num_groups;
  index.num_uneven = std::ranges::count_if(sizes, [&](int64_t size) { return size != expected; });
  return index;
}

}  // namespace pare::runtime
