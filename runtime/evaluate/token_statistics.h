// What a figure of tokens is over all of them: the percentiles that llama.cpp's perplexity tool prints (llama.cpp,
// tools/perplexity/perplexity.cpp: kl_divergence).
#pragma once

#include <array>
#include <string>
#include <vector>

namespace pare::runtime {

inline constexpr std::array<double, 11> kPercentiles = {0.1, 1.0, 5.0, 10.0, 25.0, 50.0, 75.0, 90.0, 95.0, 99.0, 99.9};

struct TokenStatistics {
  double mean = 0.0;
  double root_mean_square = 0.0;
  double least = 0.0, most = 0.0;
  std::array<double, kPercentiles.size()> percentiles = {};  // interpolated linearly between order statistics
  // Returns one of kPercentiles.
  double percentile(double percent) const;
};
// `values` has at least one.
TokenStatistics token_statistics(std::vector<float> values);

// "0.1", "50", "99.9"
std::string percent_name(double percent);
// Returns "0.1: 1.20, 1: 3.40, ...", each times `factor`.
std::string percentiles_text(const TokenStatistics& statistics, double factor, int num_decimals);

// Sums over pairs of values, of which Pearson's correlation is made.
class PairSums {
 public:
  void add(double x, double y);
  double correlation() const;  // 0 if one of them is constant

 private:
  double num_ = 0.0, x_ = 0.0, y_ = 0.0, xx_ = 0.0, yy_ = 0.0, xy_ = 0.0;
};

}  // namespace pare::runtime
