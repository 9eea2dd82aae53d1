// Every operation as plain loops over float32 storage with float64 arithmetic: the oracle of every kernel. Nothing here
// is tuned; only rows are independent of each other.
#include "tests/runtime/engine/reference_backend.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <string>

#include "runtime/engine/backend_checks.h"
#include "runtime/engine/host_backend.h"

namespace pare {
using namespace runtime;
namespace {

class ReferenceLinear final : public PackedLinear {
 public:
  explicit ReferenceLinear(std::span<const LinearWeights> parts) {
    check_parts(parts);
    num_in_ = parts.front().num_in();
    input_ = parts.front().input;
    for (const LinearWeights& part : parts) append(part);
  }

  int64_t num_out() const override { return num_out_; }
  int64_t num_in() const override { return num_in_; }
  int64_t resident_bytes() const override {
    return static_cast<int64_t>((weight_OI_.size() + bias_O_.size()) * sizeof(float));
  }
  std::string kernel_name() const override { return "matmul_f32_plain_loops"; }
  const InputFormat& input() const override { return input_; }
  bool multiplies_codes() const override { return false; }

  const float* row(int64_t out) const { return weight_OI_.data() + out * num_in_; }

  double output(const float* x_I, int64_t out) const {
    double sum = 0.0;
    for (int64_t i = 0; i < num_in_; ++i) sum += static_cast<double>(x_I[i]) * static_cast<double>(row(out)[i]);
    return sum + static_cast<double>(bias_O_[out]);
  }

 private:
  void append(const LinearWeights& part) {
    if (const auto* quantized = std::get_if<QuantizedWeight>(&part.weight)) validate(*quantized, part.name);
    weight_OI_.resize(static_cast<size_t>((num_out_ + part.num_out()) * num_in_));
    weight_rows(part, 0, part.num_out(), std::span(weight_OI_).subspan(static_cast<size_t>(num_out_ * num_in_)));
    // Outlier columns reach the product unrounded, whether they are multiplied by W's columns or by columns of their
    // own.
    const auto num_outliers = static_cast<int64_t>(part.input.outlier_columns.size());
    for (size_t i = 0; i < part.outlier_weight_OJ.size(); ++i) {
      const auto out = static_cast<int64_t>(i) / num_outliers, j = static_cast<int64_t>(i) % num_outliers;
      weight_OI_[(num_out_ + out) * num_in_ + part.input.outlier_columns[j]] = part.outlier_weight_OJ[i];
    }
    num_out_ += part.num_out();
    bias_O_.insert(bias_O_.end(), part.bias_O.begin(), part.bias_O.end());
    bias_O_.resize(static_cast<size_t>(num_out_), 0.0f);
  }

  int64_t num_out_ = 0;
  int64_t num_in_ = 0;
  InputFormat input_;
  std::vector<float> weight_OI_;
  std::vector<float> bias_O_;
};

const ReferenceLinear& reference_linear(const PackedLinear& packed) {
  const auto* linear = dynamic_cast<const ReferenceLinear*>(&packed);
  if (linear == nullptr) {
    throw std::invalid_argument("reference backend: expected a linear that it packed itself, found " +
                                packed.kernel_name());
  }
  return *linear;
}

// Rounds the rows that an operation has written, sequence by sequence.
void round_rows(LinearInput& x, int64_t num_rows, int64_t width) {
  const auto round = [&](int64_t first, int64_t num) {
    fake_quantize(x.format(), {x.x() + first * width, static_cast<size_t>(num * width)}, width);
  };
  if (x.format().is_rowwise()) return round(0, num_rows);
  check_sequences(x, num_rows);
  for (const Sequence& sequence : x.sequences().table) round(sequence.first_row, sequence.num_rows);
}

// The 8-bit form of one head's keys or values.
void store_int8(std::span<const float> values_K, int8_t* codes_K, KvGrid& grid) {
  const InputFormat format = {.type = InputType::int8, .symmetric = false};
  InputGrid row = input_grid(format, input_extremes(values_K));
  input_codes(values_K, row, {codes_K, values_K.size()});
  grid = {row.scale, static_cast<float>(row.zero)};
}

// Returns element k of the key or value at `place`, as attention multiplies it.
double cached(const KvLayer& cache, bool is_key, int64_t place, int64_t k, int64_t size) {
  const int64_t i = place * size + k;
  if (cache.is_bf16()) {
    return static_cast<double>(bf16_to_float((is_key ? cache.key_bf16 : cache.value_bf16)[i]));
  }
  if (!cache.is_int8()) return static_cast<double>((is_key ? cache.keys : cache.values)[i]);
  const KvGrid& grid = (is_key ? cache.key_grids : cache.value_grids)[place];
  const int8_t code = (is_key ? cache.key_codes : cache.value_codes)[i];
  return static_cast<double>((static_cast<float>(code) - grid.zero) * grid.scale);
}

// (v - c) / sqrt(mean((v - c)^2) + epsilon) * gain + bias, where c is the mean of v in a LayerNorm, else 0
std::vector<double> normalized(const float* v, const PackedNorm& norm) {
  const std::span<const float> gain_D = norm.gain_D.span(), bias_D = norm.bias_D.span();
  const auto count = static_cast<double>(gain_D.size());
  double sum = 0.0, squares = 0.0;
  for (size_t i = 0; norm.centers && i < gain_D.size(); ++i) sum += static_cast<double>(v[i]);
  std::vector<double> result(gain_D.size());
  for (size_t i = 0; i < result.size(); ++i) {
    result[i] = static_cast<double>(v[i]) - sum / count;
    squares += result[i] * result[i];
  }
  const double deviation = std::sqrt(squares / count + static_cast<double>(norm.epsilon));
  for (size_t i = 0; i < result.size(); ++i) {
    result[i] = result[i] / deviation * static_cast<double>(gain_D[i]) +
                (bias_D.empty() ? 0.0 : static_cast<double>(bias_D[i]));
  }
  return result;
}

// (v - mean) / sqrt(variance + epsilon) * gain + bias, in place
void layer_norm(std::vector<double>& v, const PackedLayerNorm& norm) {
  double sum = 0.0, squares = 0.0;
  for (const double x : v) sum += x;
  const double mean = sum / static_cast<double>(v.size());
  for (const double x : v) squares += (x - mean) * (x - mean);
  const double deviation = std::sqrt(squares / static_cast<double>(v.size()) + static_cast<double>(norm.epsilon));
  for (size_t i = 0; i < v.size(); ++i) {
    v[i] = (v[i] - mean) / deviation * static_cast<double>(norm.gain_D.get()[i]) +
           static_cast<double>(norm.bias_D.get()[i]);
  }
}

double capped(double value, float cap) {
  return cap > 0.0f ? cap * std::tanh(value / cap) : value;
}

double activated(double g, Activation activation) {
  switch (activation) {
    case Activation::silu:
      return g / (1.0 + std::exp(-g));
    case Activation::gelu:
      return 0.5 * g * (1.0 + std::erf(g * std::sqrt(0.5)));
    case Activation::gelu_tanh:
      return 0.5 * g * (1.0 + std::tanh(std::sqrt(2.0 / M_PI) * (g + 0.044715 * g * g * g)));
    case Activation::relu:
      return g < 0.0 ? 0.0 : g;
    case Activation::clamped_swiglu:
      break;
  }
  throw std::invalid_argument("activate: unknown activation " + std::to_string(static_cast<int>(activation)));
}

double gated(double gate, double up, Activation activation) {
  if (activation != Activation::clamped_swiglu) return activated(gate, activation) * up;
  const double g = std::min(gate, 7.0), u = std::max(-7.0, std::min(up, 7.0));
  return (u + 1.0) * g / (1.0 + std::exp(-1.702 * g));
}

// The logits of one row, the logarithm of the sum of their exponentials, and the lowest index of the largest.
struct LogitRow {
  std::vector<double> logits_V;
  double log_sum_exp = 0.0;
  int64_t arg_max = 0;

  LogitRow(const ReferenceLinear& head, const float* x_D, float cap) {
    for (int64_t v = 0; v < head.num_out(); ++v) logits_V.push_back(capped(head.output(x_D, v), cap));
    const auto largest = std::max_element(logits_V.begin(), logits_V.end());
    arg_max = largest - logits_V.begin();
    double sum = 0.0;
    for (const double logit : logits_V) sum += std::exp(logit - *largest);
    log_sum_exp = *largest + std::log(sum);
  }
  double log_probability(int64_t v) const { return logits_V[v] - log_sum_exp; }
};

std::vector<float> router_scores(const float* logits_E, int64_t num_experts, RouterScores kind) {
  std::vector<float> scores;
  double sum = 0.0;
  const double largest = *std::max_element(logits_E, logits_E + num_experts);
  for (int64_t e = 0; e < num_experts; ++e) sum += std::exp(logits_E[e] - largest);
  for (int64_t e = 0; e < num_experts; ++e) {
    const auto logit = static_cast<double>(logits_E[e]);
    scores.push_back(static_cast<float>(kind == RouterScores::sigmoid ? 1.0 / (1.0 + std::exp(-logit))
                                                                      : std::exp(logit - largest) / sum));
  }
  return scores;
}

// Which groups a row's experts may be of. order: all experts, the best one first.
std::vector<bool> open_groups(std::span<const int32_t> order, std::span<const float> corrected_E,
                              const RoutingDescription& routing) {
  const auto size = static_cast<int64_t>(order.size()) / routing.num_groups;
  std::vector<float> sums(static_cast<size_t>(routing.num_groups), 0.0f);
  std::vector<int> num_counted(sums.size(), 0);
  for (const int32_t e : order) {
    if (num_counted[e / size]++ < routing.num_group_scores) sums[e / size] += corrected_E[e];
  }
  std::vector<int64_t> groups(sums.size());
  std::iota(groups.begin(), groups.end(), 0);
  std::stable_sort(groups.begin(), groups.end(), [&](int64_t a, int64_t b) { return sums[a] > sums[b]; });
  std::vector<bool> is_open(sums.size(), false);
  for (int64_t k = 0; k < routing.groups_per_token; ++k) is_open[groups[k]] = true;
  return is_open;
}

class ReferenceBackend final : public HostBackend {
 public:
  std::string name() const override { return "reference"; }

  std::unique_ptr<PackedLinear> pack(std::span<const LinearWeights> parts) override {
    return std::make_unique<ReferenceLinear>(parts);
  }

  void embed(const PackedLinear& table_VD, std::span<const int32_t> ids_R, float scale, float* hidden_RD) override {
    const ReferenceLinear& table = reference_linear(table_VD);
    const int64_t width = table.num_in();
    check_ids(ids_R, table.num_out(), "embed");
    for (size_t r = 0; r < ids_R.size(); ++r) {
      for (int64_t i = 0; i < width; ++i) hidden_RD[r * width + i] = table.row(ids_R[r])[i] * scale;
    }
  }

  void add_norm(float* hidden_RD, const float* delta_RD, const PackedNorm* delta_norm, const PackedNorm* norm,
                int64_t num_rows, int64_t width, LinearInput& x_RD) override {
    check_norm(delta_norm, width, "add_norm");
    check_norm(norm, width, "add_norm");
    for (int64_t r = 0; r < num_rows; ++r) {
      float* hidden = hidden_RD + r * width;
      if (delta_RD != nullptr) {
        const float* delta = delta_RD + r * width;
        const std::vector<double> change =
            delta_norm != nullptr ? normalized(delta, *delta_norm) : std::vector<double>(delta, delta + width);
        for (int64_t i = 0; i < width; ++i) hidden[i] = static_cast<float>(hidden[i] + change[i]);
      }
      if (norm == nullptr) continue;
      const std::vector<double> x = normalized(hidden, *norm);
      for (int64_t i = 0; i < width; ++i) x_RD.x()[r * width + i] = static_cast<float>(x[i]);
    }
    if (norm != nullptr) round_rows(x_RD, num_rows, width);
  }

  void add_rows(float* hidden_RD, const float* delta_RD, const PackedNorm* delta_norm, int64_t num_rows, int64_t width,
                LinearInput& x_RD) override {
    add_norm(hidden_RD, delta_RD, delta_norm, nullptr, num_rows, width, x_RD);
    std::copy(hidden_RD, hidden_RD + num_rows * width, x_RD.x());
    round_rows(x_RD, num_rows, width);
  }

  void add_positions(const PackedLinear& table_PD, std::span<const int32_t> positions_R, int64_t first_position,
                     float* hidden_RD) override {
    const ReferenceLinear& table = reference_linear(table_PD);
    const int64_t width = table.num_in();
    check_positions(positions_R, first_position, table.num_out());
    for (size_t r = 0; r < positions_R.size(); ++r) {
      const float* const row = table.row(positions_R[r] + first_position);
      for (int64_t i = 0; i < width; ++i) hidden_RD[static_cast<int64_t>(r) * width + i] += row[i];
    }
  }

  void scale(float* x, int64_t size, float factor) override {
    for (int64_t i = 0; i < size; ++i) x[i] *= factor;
  }

  void norm_columns(float* x, int64_t row_width, int64_t first, const PackedNorm& norm, int64_t num_rows) override {
    check_columns(row_width, first, norm);
    for (int64_t r = 0; r < num_rows; ++r) {
      float* const columns = x + r * row_width + first;
      const std::vector<double> y = normalized(columns, norm);
      for (size_t i = 0; i < y.size(); ++i) columns[i] = static_cast<float>(y[i]);
    }
  }

  void take_columns(const float* x, int64_t row_width, const ColumnParts& columns, int64_t num_rows,
                    LinearInput& y) override {
    check_parts_of_row(row_width, columns);
    for (int64_t r = 0; r < num_rows; ++r) {
      for (int64_t i = 0; i < columns.num_columns(); ++i) {
        y.x()[r * columns.num_columns() + i] = x[r * row_width + columns.column(i)];
      }
    }
    round_rows(y, num_rows, columns.num_columns());
  }

  void join_latents(const LatentRows& rows, const LatentShape& shape, const int32_t* channels_K, int64_t num_rows,
                    float* qkv_RC) override {
    check_latents(rows, shape);
    const int64_t size = shape.head_size, num_kept = size - shape.num_rotated;
    for (int64_t r = 0; r < num_rows; ++r) {
      for (int64_t h = 0; h < shape.num_heads; ++h) {
        std::vector<float> key, value;
        const float* const kv = rows.kv_RHC + (r * shape.num_heads + h) * (num_kept + shape.value_size);
        key.assign(kv, kv + num_kept);
        for (int64_t j = 0; j < shape.num_rotated; ++j) key.push_back(rows.rotated_RJ[r * rows.rotated_stride + j]);
        value.assign(kv + num_kept, kv + num_kept + shape.value_size);
        value.resize(static_cast<size_t>(size), 0.0f);
        float* const head = qkv_RC + (r * 3 * shape.num_heads + h) * size;
        for (int64_t i = 0; i < size; ++i) {
          head[i] = rows.q_RHK[r * rows.q_stride + h * size + channels_K[i]];
          head[shape.num_heads * size + i] = key[channels_K[i]];
          head[2 * shape.num_heads * size + i] = value[i];
        }
      }
    }
  }

  void linear(const PackedLinear& packed, const LinearInput& x_RI, int64_t num_rows, float* y_RO) override {
    const ReferenceLinear& weight = reference_linear(packed);
    check_input(packed, x_RI);
    for (int64_t r = 0; r < num_rows; ++r) {
      for (int64_t o = 0; o < weight.num_out(); ++o) {
        y_RO[r * weight.num_out() + o] = static_cast<float>(weight.output(x_RI.x() + r * weight.num_in(), o));
      }
    }
  }

  void rope_store(const float* qkv_RC, const PackedRope& rope, const PackedNorm* q_norm, const PackedNorm* k_norm,
                  const AttentionShape& shape, std::span<const int32_t> positions_R, std::span<const int32_t> slots_R,
                  KvLayer& cache, float* q_RHK) override {
    check_rope_store(rope, q_norm, k_norm, shape, positions_R, slots_R, cache);
    const int64_t size = shape.head_size, half = size / 2;
    const int64_t q_width = shape.num_heads * size, kv_width = shape.num_kv_heads * size;
    for (size_t r = 0; r < positions_R.size(); ++r) {
      const float* q = qkv_RC + static_cast<int64_t>(r) * (q_width + 2 * kv_width);
      const float* k = q + q_width;
      const float* v = k + kv_width;
      const auto rotate = [&](const float* in, const PackedNorm* norm, float* out) {
        const std::vector<double> head = norm != nullptr ? normalized(in, *norm) : std::vector<double>(in, in + size);
        for (int64_t j = 0; j < half; ++j) {
          const double c = rope.cosine.get()[positions_R[r] * half + j], s = rope.sine.get()[positions_R[r] * half + j];
          out[j] = static_cast<float>(head[j] * c - head[half + j] * s);
          out[half + j] = static_cast<float>(head[half + j] * c + head[j] * s);
        }
      };
      for (int64_t h = 0; h < shape.num_heads; ++h) {
        float* query = q_RHK + static_cast<int64_t>(r) * q_width + h * size;
        rotate(q + h * size, q_norm, query);
        if (shape.products_in_8_bits) fake_quantize(kQueryFormat, {query, static_cast<size_t>(size)}, size);
      }
      for (int64_t h = 0; h < shape.num_kv_heads; ++h) {
        const int64_t head = cache.place(slots_R[r], h);
        std::vector<float> key(static_cast<size_t>(size));
        const std::span<const float> value(v + h * size, key.size());
        rotate(k + h * size, k_norm, key.data());
        if (cache.is_int8()) {
          store_int8(key, cache.key_codes + head * size, cache.key_grids[head]);
          store_int8(value, cache.value_codes + head * size, cache.value_grids[head]);
        } else if (cache.is_bf16()) {
          std::transform(key.begin(), key.end(), cache.key_bf16 + head * size, float_to_bf16);
          std::transform(value.begin(), value.end(), cache.value_bf16 + head * size, float_to_bf16);
        } else {
          std::copy(key.begin(), key.end(), cache.keys + head * size);
          std::copy(value.begin(), value.end(), cache.values + head * size);
        }
      }
    }
  }

  void attention(const float* q_RHK, const KvLayer& cache, const Sequences& sequences, const AttentionShape& shape,
                 LinearInput& x_RHK) override {
    check_attention(cache, sequences, shape);
    int64_t num_rows = 0;
    for (const Sequence& sequence : sequences.table) {
      num_rows = std::max(num_rows, sequence.first_row + sequence.num_rows);
      for (int64_t i = 0; i < sequence.num_rows; ++i) {
        for (int64_t h = 0; h < shape.num_heads; ++h) {
          const int64_t offset = ((sequence.first_row + i) * shape.num_heads + h) * shape.head_size;
          attend(q_RHK + offset, cache, sequence, sequence.num_past + i, h, shape, x_RHK.x() + offset);
        }
      }
    }
    if (!x_RHK.format().keeps_values()) round_rows(x_RHK, num_rows, shape.num_heads * shape.head_size);
  }

  void activate(const float* y_R2F, Activation activation, int64_t num_rows, int64_t width_F,
                LinearInput& z_RF) override {
    for (int64_t r = 0; r < num_rows; ++r) {
      const float* gate = y_R2F + r * 2 * width_F;
      for (int64_t f = 0; f < width_F; ++f) {
        z_RF.x()[r * width_F + f] = static_cast<float>(gated(gate[f], gate[width_F + f], activation));
      }
    }
    round_rows(z_RF, num_rows, width_F);
  }

  void activate_ungated(const float* y_RF, Activation activation, int64_t num_rows, int64_t width_F,
                        LinearInput& z_RF) override {
    check_ungated(activation);
    for (int64_t i = 0; i < num_rows * width_F; ++i) z_RF.x()[i] = static_cast<float>(activated(y_RF[i], activation));
    round_rows(z_RF, num_rows, width_F);
  }

  void add_layer_norm(float* hidden_RD, const float* delta_RD, const PackedLayerNorm& norm, int64_t num_rows,
                      int64_t width, LinearInput* x_RD) override {
    check_layer_norm(norm, width);
    for (int64_t r = 0; r < num_rows; ++r) {
      float* hidden = hidden_RD + r * width;
      std::vector<double> row;
      for (int64_t i = 0; i < width; ++i) {
        row.push_back(static_cast<double>(delta_RD != nullptr ? hidden[i] + delta_RD[r * width + i] : hidden[i]));
      }
      layer_norm(row, norm);
      for (int64_t i = 0; i < width; ++i) hidden[i] = static_cast<float>(row[static_cast<size_t>(i)]);
    }
    if (x_RD == nullptr) return;
    std::copy(hidden_RD, hidden_RD + num_rows * width, x_RD->x());
    round_rows(*x_RD, num_rows, width);
  }

  void mean_rows(const float* hidden_RD, const Sequences& sequences, int64_t width, float* means_ND) override {
    check_mean_rows(sequences);
    const std::span<const Sequence> table = sequences.table;
    for (size_t n = 0; n < table.size(); ++n) {
      for (int64_t i = 0; i < width; ++i) {
        double sum = 0.0;
        for (int64_t r = 0; r < table[n].num_rows; ++r) {
          sum += static_cast<double>(hidden_RD[(table[n].first_row + r) * width + i]);
        }
        means_ND[static_cast<int64_t>(n) * width + i] =
            static_cast<float>(sum / static_cast<double>(table[n].num_rows));
      }
    }
  }

  void route(const RouterLogits& logits, int64_t num_rows, int64_t num_experts, const RoutingDescription& routing,
             int32_t* experts_RK, float* weights_RK) override {
    check_routing(num_experts, routing);
    const int64_t num_chosen = routing.experts_per_token, num_logits = routing.num_logits(num_experts);
    const int64_t num_routed = routing.num_routed(num_experts);
    for (int64_t r = 0; r < num_rows; ++r) {
      const float* row = logits.logits_RL + r * num_logits;
      const std::vector<float> scores = router_scores(row, num_routed, routing.scores);
      std::vector<float> corrected = scores;
      for (int64_t e = 0; e < num_routed && logits.correction_E != nullptr; ++e) corrected[e] += logits.correction_E[e];
      std::vector<int32_t> order(static_cast<size_t>(num_routed));
      std::iota(order.begin(), order.end(), 0);
      std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) { return corrected[a] > corrected[b]; });
      const std::vector<bool> is_open = open_groups(order, corrected, routing);
      std::erase_if(order, [&](int32_t e) { return !is_open[e / (num_routed / routing.num_groups)]; });
      order.resize(static_cast<size_t>(routing.routed_per_token()));
      double chosen_sum = 0.0;
      for (const int32_t e : order) chosen_sum += scores[e];
      chosen_sum = std::max(chosen_sum, static_cast<double>(routing.smallest_sum));
      std::sort(order.begin(), order.end());
      for (size_t k = 0; k < order.size(); ++k) {
        experts_RK[r * num_chosen + static_cast<int64_t>(k)] = order[k];
        weights_RK[r * num_chosen + static_cast<int64_t>(k)] = static_cast<float>(
            routing.weight_factor * scores[order[k]] / (routing.normalizes_top_weights ? chosen_sum : 1.0));
      }
      if (!routing.has_shared) continue;
      experts_RK[(r + 1) * num_chosen - 1] = static_cast<int32_t>(num_routed);
      weights_RK[(r + 1) * num_chosen - 1] =
          routing.weighs_shared ? static_cast<float>(1.0 / (1.0 + std::exp(-static_cast<double>(row[num_routed])))) : 1;
    }
  }

  void gather(const float* x_RD, std::span<const int32_t> rows_S, int64_t width, LinearInput& y_SD) override {
    for (size_t s = 0; s < rows_S.size(); ++s) {
      std::copy_n(x_RD + rows_S[s] * width, width, y_SD.x() + static_cast<int64_t>(s) * width);
    }
    round_rows(y_SD, static_cast<int64_t>(rows_S.size()), width);
  }

  void mix(const float* x_SD, std::span<const int32_t> slots_RK, std::span<const float> weights_RK, int64_t num_rows,
           int64_t width, float* y_RD) override {
    check_mix(slots_RK, weights_RK, num_rows);
    const int64_t num_chosen = num_rows == 0 ? 0 : static_cast<int64_t>(slots_RK.size()) / num_rows;
    for (int64_t r = 0; r < num_rows; ++r) {
      for (int64_t i = 0; i < width; ++i) {
        double sum = 0.0;
        for (int64_t k = r * num_chosen; k < (r + 1) * num_chosen; ++k) {
          sum += static_cast<double>(weights_RK[k]) * static_cast<double>(x_SD[slots_RK[k] * width + i]);
        }
        y_RD[r * width + i] = static_cast<float>(sum);
      }
    }
  }

  void cross_entropy(const PackedLinear& head, const float* x_RD, std::span<const int32_t> targets_R,
                     float logit_softcap, float* nll_R, uint8_t* top1_R) override {
    const ReferenceLinear& weight = reference_linear(head);
    check_head(head, "cross_entropy");
    check_ids(targets_R, weight.num_out(), "cross_entropy");
    for (size_t r = 0; r < targets_R.size(); ++r) {
      const LogitRow row(weight, x_RD + static_cast<int64_t>(r) * weight.num_in(), logit_softcap);
      nll_R[r] = static_cast<float>(-row.log_probability(targets_R[r]));
      top1_R[r] = row.arg_max == targets_R[r];
    }
  }

  void compare(const PackedLinear& head_p, const float* x_RD, float softcap_p, const PackedLinear& head_q,
               const float* z_RE, float softcap_q, std::span<const int32_t> targets_R, float* kl_R,
               uint8_t* same_top1_R, float* nll_p_R, float* nll_q_R) override {
    const ReferenceLinear &weight_p = reference_linear(head_p), &weight_q = reference_linear(head_q);
    check_vocabularies(head_p, head_q);
    check_head(head_p, "compare");
    check_head(head_q, "compare");
    check_ids(targets_R, weight_p.num_out(), "compare");
    for (size_t r = 0; r < targets_R.size(); ++r) {
      const LogitRow p(weight_p, x_RD + static_cast<int64_t>(r) * weight_p.num_in(), softcap_p);
      const LogitRow q(weight_q, z_RE + static_cast<int64_t>(r) * weight_q.num_in(), softcap_q);
      double kl = 0.0;
      for (int64_t v = 0; v < weight_p.num_out(); ++v) {
        kl += std::exp(p.log_probability(v)) * (p.log_probability(v) - q.log_probability(v));
      }
      kl_R[r] = static_cast<float>(kl);
      same_top1_R[r] = p.arg_max == q.arg_max;
      nll_p_R[r] = static_cast<float>(-p.log_probability(targets_R[r]));
      nll_q_R[r] = static_cast<float>(-q.log_probability(targets_R[r]));
    }
  }

 private:
  // Attends with one query, at `position` of its sequence, to every key that it sees.
  static void attend(const float* q_K, const KvLayer& cache, const Sequence& sequence, int64_t position, int64_t head,
                     const AttentionShape& shape, float* x_K) {
    const int64_t size = shape.head_size, kv_head = head / (shape.num_heads / shape.num_kv_heads);
    const auto place = [&](int64_t t) { return cache.place(sequence.first_slot + t, kv_head); };
    const int64_t begin =
        shape.sliding_window > 0 ? std::max<int64_t>(0, position - shape.sliding_window + 1) : int64_t{0};
    int64_t last = shape.causal ? position : sequence.num_past + sequence.num_rows - 1;
    if (!shape.causal && shape.sliding_window > 0) last = std::min(last, position + shape.sliding_window - 1);
    const auto score_of_distance = [&](int64_t n) {
      if (shape.distances_HN == nullptr) return 0.0;
      return static_cast<double>(
          shape.distances_HN[head * (2 * shape.reach + 1) + shape.reach + std::clamp(n, -shape.reach, shape.reach)]);
    };
    std::vector<double> scores;
    for (int64_t t = begin; t <= last; ++t) {
      double dot = 0.0;
      for (int64_t k = 0; k < size; ++k) {
        dot += static_cast<double>(q_K[k]) * cached(cache, true, place(t), k, size);
      }
      const double slope = shape.slopes_H != nullptr ? static_cast<double>(shape.slopes_H[head]) : 0.0;
      scores.push_back(capped(dot * shape.scale, shape.softcap) - slope * static_cast<double>(position - t) +
                       score_of_distance(t - position));
    }
    const double largest = *std::max_element(scores.begin(), scores.end());
    double sum = 0.0;
    // Weights in units of the largest have the same codes as probabilities in units of theirs.
    std::vector<float> rounded;
    for (double& score : scores) {
      score = std::exp(score - largest);
      sum += score;
      rounded.push_back(static_cast<float>(score));
    }
    if (shape.products_in_8_bits) {
      fake_quantize(kProbabilityFormat, rounded, static_cast<int64_t>(rounded.size()));
      scores.assign(rounded.begin(), rounded.end());
    }
    if (shape.sinks_H != nullptr) sum += std::exp(static_cast<double>(shape.sinks_H[head]) - largest);
    std::vector<double> weighted(static_cast<size_t>(size), 0.0);
    for (int64_t t = begin; t <= last; ++t) {
      const double weight = scores[t - begin];
      for (int64_t k = 0; k < size; ++k) {
        weighted[k] += weight * cached(cache, false, place(t), k, size);
      }
    }
    for (int64_t k = 0; k < size; ++k) x_K[k] = static_cast<float>(weighted[k] / sum);
  }
};

}  // namespace

std::unique_ptr<Backend> make_reference_backend() {
  return std::make_unique<ReferenceBackend>();
}

}  // namespace pare
