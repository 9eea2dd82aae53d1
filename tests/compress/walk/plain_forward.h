// A decoder's forward pass in plain loops over one window, with one kind of activation rounded. It is the oracle of the
// survey's measurements, and of errors behind blocks. It is for models without biases, norms of heads, sliding windows
// and soft caps.
#pragma once

#include <cmath>
#include <optional>

#include "compress/walk/decoder_block.h"
#include "runtime/model/checkpoint.h"

namespace pare::test {
using namespace compress;
using namespace runtime;

class PlainForward {
 public:
  using Rows = std::vector<std::vector<float>>;

  explicit PlainForward(const Checkpoint& checkpoint) : checkpoint_(checkpoint), model_(checkpoint.description()) {}

  // Returns logits [T, V]. Activations at `site` are rounded to int8, asymmetric, each row by itself.
  // `behind_blocks` (may be null) gets the residual stream behind each block.
  Rows logits(std::span<const int32_t> ids_T, std::optional<ActivationSite> site,
              std::vector<Rows>* behind_blocks = nullptr) const {
    site_ = site;
    const Rows table = weight(checkpoint_.embedding());
    Rows hidden;
    for (const int32_t id : ids_T) hidden.push_back(table[static_cast<size_t>(id)]);
    round(ActivationSite::embedding_sum, hidden);
    for (const BlockDescription& block : model_.blocks) {
      Rows mixed = multiply(attention(block, normalize(hidden, block.attention_norm)), block.o);
      round(ActivationSite::attention_output, mixed);
      add(mixed, hidden);
      const Rows x = normalize(hidden, block.feed_forward_norm);
      Rows gate = multiply(x, block.experts[0].gate);
      const Rows up = multiply(x, block.experts[0].up);
      for (size_t t = 0; t < gate.size(); ++t) {
        for (size_t f = 0; f < gate[t].size(); ++f) gate[t][f] *= up[t][f] / (1.0f + std::exp(-gate[t][f]));
      }
      add(multiply(gate, block.experts[0].down), hidden);
      round(ActivationSite::residual_sum, hidden);
      if (behind_blocks != nullptr) behind_blocks->push_back(hidden);
    }
    return multiply(normalize(hidden, model_.final_norm), checkpoint_.head());
  }

 private:
  Rows weight(const LinearDescription& linear) const {
    const LinearWeights weights = checkpoint_.linear(linear);
    const auto& dense = std::get<DenseWeight>(weights.weight);
    std::vector<float> values(static_cast<size_t>(dense.num_out * dense.num_in));
    convert_to_float(dense.dtype, dense.data, values);
    Rows rows;
    for (int64_t o = 0; o < dense.num_out; ++o) {
      rows.emplace_back(values.begin() + o * dense.num_in, values.begin() + (o + 1) * dense.num_in);
    }
    return rows;
  }

  Rows multiply(const Rows& x, const LinearDescription& linear) const {
    const Rows w = weight(linear);
    Rows y(x.size(), std::vector<float>(w.size()));
    for (size_t t = 0; t < x.size(); ++t) {
      for (size_t o = 0; o < w.size(); ++o) {
        double sum = 0.0;
        for (size_t i = 0; i < w[o].size(); ++i) sum += static_cast<double>(x[t][i]) * static_cast<double>(w[o][i]);
        y[t][o] = static_cast<float>(sum);
      }
    }
    return y;
  }

  Rows normalize(Rows x, const NormDescription& norm) const {
    const std::vector<float> gain = checkpoint_.norm_gain(norm);
    for (std::vector<float>& row : x) {
      double squares = 0.0;
      for (const float value : row) squares += static_cast<double>(value) * static_cast<double>(value);
      const auto factor = static_cast<float>(1.0 / std::sqrt(squares / static_cast<double>(row.size()) + norm.epsilon));
      for (size_t i = 0; i < row.size(); ++i) row[i] *= factor * gain[i];
    }
    return x;
  }

  void rotate(const RopeDescription& rope, size_t token, float* head) const {
    const size_t half = rope.inverse_frequencies.size();
    for (size_t j = 0; j < half; ++j) {
      const double angle = static_cast<double>(token) * static_cast<double>(rope.inverse_frequencies[j]);
      const auto cosine = static_cast<float>(std::cos(angle)), sine = static_cast<float>(std::sin(angle));
      const float low = head[j], high = head[j + half];
      head[j] = low * cosine - high * sine;
      head[j + half] = high * cosine + low * sine;
    }
  }

  Rows attention(const BlockDescription& block, const Rows& x) const {
    Rows q = multiply(x, block.q), k = multiply(x, block.k);
    const Rows v = multiply(x, block.v);
    const auto size = static_cast<size_t>(model_.head_size), heads = static_cast<size_t>(model_.num_heads);
    const size_t group = heads / static_cast<size_t>(model_.num_kv_heads);
    for (size_t t = 0; t < x.size(); ++t) {
      for (size_t h = 0; h < heads; ++h) rotate(block.rope, t, q[t].data() + h * size);
      for (size_t h = 0; h < heads / group; ++h) rotate(block.rope, t, k[t].data() + h * size);
    }
    Rows mixed(x.size(), std::vector<float>(heads * size, 0.0f));
    for (size_t t = 0; t < x.size(); ++t) {
      for (size_t h = 0; h < heads; ++h) {
        const size_t kv = h / group * size;
        Rows scores(1);
        for (size_t u = 0; u <= t; ++u) {
          float score = 0.0f;
          for (size_t c = 0; c < size; ++c) score += q[t][h * size + c] * k[u][kv + c];
          scores[0].push_back(score * model_.attention_scale);
        }
        round(ActivationSite::softmax_input, scores);
        float largest = scores[0][0], sum = 0.0f;
        for (const float score : scores[0]) largest = std::max(largest, score);
        for (float& score : scores[0]) sum += score = std::exp(score - largest);
        for (float& score : scores[0]) score /= sum;
        round(ActivationSite::softmax_output, scores);
        for (size_t u = 0; u <= t; ++u) {
          for (size_t c = 0; c < size; ++c) mixed[t][h * size + c] += scores[0][u] * v[u][kv + c];
        }
      }
    }
    return mixed;
  }

  static void add(const Rows& delta, Rows& hidden) {
    for (size_t t = 0; t < hidden.size(); ++t) {
      for (size_t i = 0; i < hidden[t].size(); ++i) hidden[t][i] += delta[t][i];
    }
  }

  // Rounds with scale = (high - low) / 255 of a range that holds 0; zero and codes are rounded half to even.
  void round(ActivationSite site, Rows& rows) const {
    if (site_ != site) return;
    for (std::vector<float>& row : rows) {
      float low = 0.0f, high = 0.0f;
      for (const float value : row) {
        low = std::min(low, value);
        high = std::max(high, value);
      }
      if (low == high) continue;
      const float scale = (high - low) / 255.0f;
      const float zero = std::nearbyint(std::clamp(-128.0f - low / scale, -128.0f, 127.0f));
      for (float& value : row) {
        value = (std::nearbyint(std::clamp(value / scale + zero, -128.0f, 127.0f)) - zero) * scale;
      }
    }
  }

  const Checkpoint& checkpoint_;
  const ModelDescription& model_;
  mutable std::optional<ActivationSite> site_;
};

}  // namespace pare::test
