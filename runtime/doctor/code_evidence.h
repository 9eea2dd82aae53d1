// What the codes of a linear tell of how they were made, without the weights that they came from. All functions take
// plain arrays.
//
// A cell is a row's codes in one group. A quantizer chooses a cell's scale so that its codes reach the ends of their
// range. And the larger a cell's scale is beside those of its neighbours, the more its codes crowd in the middle, since
// an outlier made the scale. So cells that are taken apart wrongly, or given the scales of others, can be told.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace pare::runtime {

// The codes of each cell. A code is at an end if it is the largest, or the smallest, or with 4 bits and more the next
// one to it: symmetric scales often leave the smallest out.
struct CellStatistics {
  int64_t num_out = 0, num_groups = 0;
  std::vector<int64_t> columns_G = {};   // of each group
  std::vector<float> mean_OG = {};       // of the codes
  std::vector<float> deviation_OG = {};  // their standard deviation
  std::vector<uint8_t> reaches_OG = {};  // 1: a code is at an end
  std::vector<int64_t> num_ends_O = {};  // codes of the row that are at an end
};

// group_of_I has a group in [0, num_groups) for each column. Empty groups have mean and deviation 0.
CellStatistics cell_statistics(std::span<const uint8_t> codes_OI, int64_t num_out, std::span<const int32_t> group_of_I,
                               int64_t num_groups, int bits);

// How many cells have a code at an end, of how many, and how many would if each row's columns were shuffled: the
// expected value of the hypergeometric distribution.
struct Reach {
  double num_cells = 0.0, num_reached = 0.0, num_if_shuffled = 0.0;
  void add(const Reach& other);
  double share() const { return num_cells > 0.0 ? num_reached / num_cells : 0.0; }
  double share_if_shuffled() const { return num_cells > 0.0 ? num_if_shuffled / num_cells : 0.0; }
  // Returns 0 for what chance gives, and 1 if all cells reach an end.
  double way_from_chance() const {
    return num_cells > num_if_shuffled ? (num_reached - num_if_shuffled) / (num_cells - num_if_shuffled) : 0.0;
  }
  // True if cells reach their ends as cells of their own scales do, and would not by chance.
  bool shows_groups() const;
  // True if cells reach their ends hardly more often than by chance, although there could be a difference.
  bool shows_chance() const;
};
Reach reach_of(const CellStatistics& cells);

// How far decoded rows lie off zero, in their own standard deviations: mean, and the variance between rows. Weights of
// a network have both signs, and what is off in one row is not in the next.
struct RowMeans {
  double num_rows = 0.0, sum = 0.0, sum_of_squares = 0.0;
  void add(const RowMeans& other);
  double mean() const { return num_rows > 0.0 ? sum / num_rows : 0.0; }
  double standard_error() const;
};
// scales_GO and zeros_GO have a value for each cell. Rows without spread, or with scales that are not finite, are left
// out.
RowMeans row_means(const CellStatistics& cells, std::span<const float> scales_GO, std::span<const uint8_t> zeros_GO);

// The correlation of the logarithms of a cell's scale and of its codes' deviation, each less the mean of its row and of
// its group. row_of_O says whose scales a row of codes is given.
struct Correlation {
  double num_cells = 0.0, xx = 0.0, yy = 0.0, xy = 0.0;
  void add(const Correlation& other);
  double value() const;
  double standard_error() const;  // of a correlation of 0
};
Correlation scale_correlation(const CellStatistics& cells, std::span<const float> scales_GO,
                              std::span<const int64_t> row_of_O);

// The mean distance of a cell's mean code from its zero, in deviations of its codes. row_of_O says whose zeros a row is
// given.
double distance_from_zeros(const CellStatistics& cells, std::span<const uint8_t> zeros_GO,
                           std::span<const int64_t> row_of_O);

// |a - b| / |b|, Frobenius norms; 0 for two zeros.
double relative_difference(std::span<const float> a, std::span<const float> b);

// W = scale * (code - zero), float32 [O, I].
std::vector<float> decoded(std::span<const uint8_t> codes_OI, int64_t num_out, std::span<const int32_t> group_of_I,
                           std::span<const float> scales_GO, std::span<const uint8_t> zeros_GO);

// --- g_idx ---

// This is what g_idx of one module says, beside what the configuration says of it.
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
