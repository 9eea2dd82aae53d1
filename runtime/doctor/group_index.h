// What g_idx of one module says, beside what the configuration says of it.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace pare::runtime {

struct GroupIndex {
  bool is_there = false;
  int64_t num_outside = 0;            // entries that name no group
  int64_t num_moved = 0;              // columns that are not in the group of their place
  int64_t num_uneven = 0;             // groups of another size than the others have
  int64_t smallest = 0, largest = 0;  // of the groups' sizes
  bool is_all_zero = false;           // although there are several groups

  bool is_usable() const { return num_outside == 0; }
};

// `group_of_I` is empty where there is no g_idx. Groups have group_size columns, which may be 0 where that is not
// known.
GroupIndex group_index(std::span<const int32_t> group_of_I, int64_t num_in, int64_t num_groups);

// Returns the group of each column where none is moved.
std::vector<int32_t> groups_in_place(int64_t num_in, int64_t num_groups);

}  // namespace pare::runtime
