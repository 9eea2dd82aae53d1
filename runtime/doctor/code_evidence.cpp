#include "runtime/doctor/code_evidence.h"

#include <algorithm>
#include <cmath>

namespace pare::runtime {
namespace {

// The parts of the way from chance to all cells, from which groups are taken to be right, and below which to be wrong.
constexpr double kNearAll = 0.8, kNearChance = 0.25;
// So many cells that do not reach an end must be expected by chance: fewer tell nothing.
constexpr double kFewCells = 100.0;

int lowest_end(int bits) {
  return bits >= 4 ? 1 : 0;
}

// The probability that none of `taken` out of `all` things is one of `marked` ones.
double probability_of_none(int64_t all, int64_t marked, int64_t taken) {
  if (marked == 0) return 1.0;
  if (marked + taken > all) return 0.0;
  const auto log_factorial = [](int64_t n) { return std::lgamma(static_cast<double>(n) + 1.0); };
  return std::exp(log_factorial(all - marked) - log_factorial(all - marked - taken) - log_factorial(all) +
                  log_factorial(all - taken));
}

// Takes the mean of each row and each column off the matrix [R, C], where `counts` has a 1.
void take_means_off(std::vector<double>& values_RC, const std::vector<uint8_t>& counts_RC, int64_t num_rows,
                    int64_t num_columns) {
  const auto take_off = [&](int64_t lines, int64_t length, int64_t line_step, int64_t step) {
    for (int64_t line = 0; line < lines; ++line) {
      double sum = 0.0, number = 0.0;
      for (int64_t i = 0; i < length; ++i) {
        const int64_t at = line * line_step + i * step;
        if (counts_RC[at] == 0) continue;
        sum += values_RC[at];
        number += 1.0;
      }
      for (int64_t i = 0; i < length && number > 0.0; ++i) values_RC[line * line_step + i * step] -= sum / number;
    }
  };
  take_off(num_columns, num_rows, 1, num_columns);
  take_off(num_rows, num_columns, num_columns, 1);
}

}  // namespace

CellStatistics cell_statistics(std::span<const uint8_t> codes_OI, int64_t num_out, std::span<const int32_t> group_of_I,
                               int64_t num_groups, int bits) {
  CellStatistics cells{.num_out = num_out, .num_groups = num_groups};
  cells.columns_G.assign(static_cast<size_t>(num_groups), 0);
  for (const int32_t group : group_of_I) ++cells.columns_G[group];
  const auto num_cells = static_cast<size_t>(num_out * num_groups);
  cells.mean_OG.assign(num_cells, 0.0f);
  cells.deviation_OG.assign(num_cells, 0.0f);
  cells.reaches_OG.assign(num_cells, 0);
  cells.num_ends_O.assign(static_cast<size_t>(num_out), 0);
  const int low = lowest_end(bits), high = (1 << bits) - 1;
  const auto num_in = static_cast<int64_t>(group_of_I.size());
#pragma omp parallel for if (num_out * num_in > (int64_t{1} << 18))
  for (int64_t row = 0; row < num_out; ++row) {
    std::vector<int64_t> sums(static_cast<size_t>(num_groups), 0), squares(static_cast<size_t>(num_groups), 0);
    for (int64_t column = 0; column < num_in; ++column) {
      const int code = codes_OI[row * num_in + column];
      const int32_t group = group_of_I[column];
      sums[group] += code;
      squares[group] += code * code;
      if (code > low && code < high) continue;
      cells.reaches_OG[row * num_groups + group] = 1;
      ++cells.num_ends_O[row];
    }
    for (int64_t group = 0; group < num_groups; ++group) {
      const auto number = static_cast<double>(cells.columns_G[group]);
      if (number == 0.0) continue;
      const double mean = static_cast<double>(sums[group]) / number;
      const double variance = static_cast<double>(squares[group]) / number - mean * mean;
      cells.mean_OG[row * num_groups + group] = static_cast<float>(mean);
      cells.deviation_OG[row * num_groups + group] = static_cast<float>(std::sqrt(std::max(variance, 0.0)));
    }
  }
  return cells;
}

void Reach::add(const Reach& other) {
  num_cells += other.num_cells;
  num_reached += other.num_reached;
  num_if_shuffled += other.num_if_shuffled;
}

bool Reach::shows_groups() const {
  return num_cells - num_if_shuffled >= kFewCells && way_from_chance() >= kNearAll;
}

bool Reach::shows_chance() const {
  return num_cells - num_if_shuffled >= kFewCells && way_from_chance() <= kNearChance;
}

Reach reach_of(const CellStatistics& cells) {
  Reach reach;
  int64_t num_in = 0;
  for (const int64_t columns : cells.columns_G) num_in += columns;
  for (int64_t row = 0; row < cells.num_out; ++row) {
    if (cells.num_ends_O[row] == 0) continue;  // a row of one code, which a pruned or padded row is
    for (int64_t group = 0; group < cells.num_groups; ++group) {
      if (cells.columns_G[group] == 0) continue;
      reach.num_cells += 1.0;
      reach.num_reached += cells.reaches_OG[row * cells.num_groups + group];
      reach.num_if_shuffled += 1.0 - probability_of_none(num_in, cells.num_ends_O[row], cells.columns_G[group]);
    }
  }
  return reach;
}

void RowMeans::add(const RowMeans& other) {
  num_rows += other.num_rows;
  sum += other.sum;
  sum_of_squares += other.sum_of_squares;
}

double RowMeans::standard_error() const {
  if (num_rows < 2.0) return 0.0;
  const double variance = std::max(0.0, sum_of_squares / num_rows - mean() * mean());
  return std::sqrt(variance / num_rows);
}

RowMeans row_means(const CellStatistics& cells, std::span<const float> scales_GO, std::span<const uint8_t> zeros_GO) {
  RowMeans means;
  for (int64_t row = 0; row < cells.num_out; ++row) {
    double sum = 0.0, squares = 0.0, number = 0.0;
    for (int64_t group = 0; group < cells.num_groups; ++group) {
      const auto columns = static_cast<double>(cells.columns_G[group]);
      const int64_t cell = row * cells.num_groups + group, place = group * cells.num_out + row;
      const double scale = scales_GO[place], spread = cells.deviation_OG[cell];
      const double mean = scale * (static_cast<double>(cells.mean_OG[cell]) - zeros_GO[place]);
      sum += columns * mean;
      squares += columns * (scale * scale * spread * spread + mean * mean);
      number += columns;
    }
    if (number == 0.0) continue;
    const double mean = sum / number, variance = squares / number - mean * mean;
    if (!(variance > 0.0) || !std::isfinite(variance)) continue;
    const double off = mean / std::sqrt(variance);
    means.num_rows += 1.0;
    means.sum += off;
    means.sum_of_squares += off * off;
  }
  return means;
}

void Correlation::add(const Correlation& other) {
  num_cells += other.num_cells;
  xx += other.xx;
  yy += other.yy;
  xy += other.xy;
}

double Correlation::value() const {
  return xx > 0.0 && yy > 0.0 ? xy / std::sqrt(xx * yy) : 0.0;
}

double Correlation::standard_error() const {
  return num_cells > 0.0 ? 1.0 / std::sqrt(num_cells) : 1.0;
}

Correlation scale_correlation(const CellStatistics& cells, std::span<const float> scales_GO,
                              std::span<const int64_t> row_of_O) {
  const auto num_cells = static_cast<size_t>(cells.num_out * cells.num_groups);
  std::vector<double> scales(num_cells, 0.0), deviations(num_cells, 0.0);
  std::vector<uint8_t> counts(num_cells, 0);
  Correlation result;
  for (int64_t row = 0; row < cells.num_out; ++row) {
    for (int64_t group = 0; group < cells.num_groups; ++group) {
      const int64_t cell = row * cells.num_groups + group;
      const float scale = scales_GO[group * cells.num_out + row_of_O[row]], deviation = cells.deviation_OG[cell];
      if (!(scale > 0.0f) || !std::isfinite(scale) || !(deviation > 0.0f)) continue;
      scales[cell] = std::log(static_cast<double>(scale));
      deviations[cell] = std::log(static_cast<double>(deviation));
      counts[cell] = 1;
      result.num_cells += 1.0;
    }
  }
  if (cells.num_groups < 2) return {};
  take_means_off(scales, counts, cells.num_out, cells.num_groups);
  take_means_off(deviations, counts, cells.num_out, cells.num_groups);
  for (size_t cell = 0; cell < num_cells; ++cell) {
    if (counts[cell] == 0) continue;
    result.xx += scales[cell] * scales[cell];
    result.yy += deviations[cell] * deviations[cell];
    result.xy += scales[cell] * deviations[cell];
  }
  return result;
}

double distance_from_zeros(const CellStatistics& cells, std::span<const uint8_t> zeros_GO,
                           std::span<const int64_t> row_of_O) {
  double sum = 0.0, number = 0.0;
  for (int64_t row = 0; row < cells.num_out; ++row) {
    for (int64_t group = 0; group < cells.num_groups; ++group) {
      const int64_t cell = row * cells.num_groups + group;
      if (!(cells.deviation_OG[cell] > 0.0f)) continue;
      const double zero = zeros_GO[group * cells.num_out + row_of_O[row]];
      sum += std::abs(static_cast<double>(cells.mean_OG[cell]) - zero) / cells.deviation_OG[cell];
      number += 1.0;
    }
  }
  return number > 0.0 ? sum / number : 0.0;
}

double relative_difference(std::span<const float> a, std::span<const float> b) {
  double error = 0.0, norm = 0.0;
  for (size_t i = 0; i < b.size(); ++i) {
    const double difference = static_cast<double>(a[i]) - b[i];
    error += difference * difference;
    norm += static_cast<double>(b[i]) * b[i];
  }
  return error > 0.0 ? std::sqrt(error / norm) : 0.0;
}

std::vector<float> decoded(std::span<const uint8_t> codes_OI, int64_t num_out, std::span<const int32_t> group_of_I,
                           std::span<const float> scales_GO, std::span<const uint8_t> zeros_GO) {
  const auto num_in = static_cast<int64_t>(group_of_I.size());
  std::vector<float> weight_OI(codes_OI.size());
#pragma omp parallel for if (num_out * num_in > (int64_t{1} << 18))
  for (int64_t row = 0; row < num_out; ++row) {
    for (int64_t column = 0; column < num_in; ++column) {
      const int64_t cell = int64_t{group_of_I[column]} * num_out + row;
      const int offset = static_cast<int>(codes_OI[row * num_in + column]) - static_cast<int>(zeros_GO[cell]);
      weight_OI[row * num_in + column] = scales_GO[cell] * static_cast<float>(offset);
    }
  }
  return weight_OI;
}

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
