#include "runtime/export/gguf_matrix.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <stdexcept>
#include <variant>
#include <vector>

#include "runtime/blocks/gguf_encode.h"
#include "runtime/export/gguf_codes.h"
#include "runtime/system/first_exception.h"

namespace pare::runtime {
namespace {

constexpr int64_t kChunkElements = int64_t{1} << 22;  // of a part that are encoded before they are written

GgufBlock block_of(GgufType type) {
  return gguf_block(static_cast<uint32_t>(type));
}

// Reads row r of a matrix as the file orders them.
using ReadRow = std::function<void(int64_t row, std::span<float> out)>;
// Writes row r of it.
using WriteRow = std::function<void(int64_t row, std::span<const float> x, std::span<std::byte> blocks)>;

class Encoder {
 public:
  Encoder(const std::string& name, GgufType type, const ByteSink& sink) : name_(name), type_(type), sink_(sink) {}
  GgufLoss loss;

  void encode(int64_t num_rows, int64_t width, const ReadRow& read, const WriteRow& write) {
    const auto size = static_cast<size_t>(gguf_row_bytes(type_, width));
    const int64_t chunk = std::max(kChunkElements / width, int64_t{1});
    std::vector<std::byte> bytes;
    for (int64_t first = 0; first < num_rows; first += chunk) {
      const int64_t count = std::min(chunk, num_rows - first);
      bytes.resize(static_cast<size_t>(count) * size);
      std::vector<GgufLoss> losses(static_cast<size_t>(count));
      FirstException error;
#pragma omp parallel
      {
        std::vector<float> x(static_cast<size_t>(width)), y(static_cast<size_t>(width));
#pragma omp for schedule(dynamic, 16)
        for (int64_t r = 0; r < count; ++r) {
          if (error.failed()) continue;
          error.capture([&] {
            const std::span<std::byte> blocks(bytes.data() + static_cast<size_t>(r) * size, size);
            read(first + r, x);
            write(first + r, x, blocks);
            decode_gguf_blocks(type_, blocks, y);
            losses[static_cast<size_t>(r)] = loss_of(x, y);
          });
        }
      }
      error.rethrow();
      for (const GgufLoss& one : losses) add(one);
      sink_(bytes);
    }
  }

  // Scales that underflow float16 make zeros of all that they scale.
  void refuse_zeros() const {
    constexpr double kNothingIsLeft = 0.9;
    if (loss.relative_error() < kNothingIsLeft) return;
    throw std::runtime_error(name_ + ": its numbers are too small for " + std::string(block_of(type_).name) +
                             ", which would make zeros of them: export another type, or bf16");
  }

 private:
  GgufLoss loss_of(std::span<const float> x, std::span<const float> y) const {
    GgufLoss row;
    for (size_t i = 0; i < x.size(); ++i) {
      const double difference = static_cast<double>(x[i]) - static_cast<double>(y[i]);
      row.is_lossless = row.is_lossless && x[i] == y[i];
      row.squared_error += difference * difference;
      row.squared_weight += static_cast<double>(x[i]) * static_cast<double>(x[i]);
    }
    if (!std::isfinite(row.squared_error)) {
      throw std::runtime_error(name_ + ": it has numbers that " + std::string(block_of(type_).name) +
                               " cannot hold: export another type, or bf16");
    }
    return row;
  }
  // Rows are added in their order, so that the sums are always the same.
  void add(const GgufLoss& row) {
    loss.is_lossless = loss.is_lossless && row.is_lossless;
    loss.squared_error += row.squared_error;
    loss.squared_weight += row.squared_weight;
  }

  const std::string& name_;
  GgufType type_;
  const ByteSink& sink_;
};

// Reads a row of the weight that the engine computes with: columns in floating point are in their places.
void read_weight_row(const LinearWeights& linear, int64_t row, std::span<float> out) {
  weight_rows(linear, row, 1, out);
  const std::vector<int32_t>& columns = linear.input.outlier_columns;
  if (linear.outlier_weight_OJ.empty()) return;
  for (size_t j = 0; j < columns.size(); ++j) {
    out[static_cast<size_t>(columns[j])] = linear.outlier_weight_OJ[static_cast<size_t>(row) * columns.size() + j];
  }
}

// Returns Hugging Face's row for each row of the file's; empty: the same.
std::vector<int64_t> stored_rows(const GgufSource& source, int64_t num_rows) {
  std::vector<int64_t> rows;
  if (!source.row_of) return rows;
  rows.resize(static_cast<size_t>(num_rows));
  for (int64_t r = 0; r < num_rows; ++r) rows[static_cast<size_t>(source.row_of(r))] = r;
  return rows;
}

std::vector<float> floats_of(const TensorView& tensor) {
  std::vector<float> values(static_cast<size_t>(tensor.num_elements()));
  convert_to_float(tensor.dtype, tensor.data, values);
  return values;
}

// Norms, biases and other tensors of few elements, and positions.
void make_vector(const Checkpoint& checkpoint, const PlannedGgufTensor& tensor, Encoder& encoder) {
  for (const GgufPlace& place : tensor.parts) {
    std::vector<float> values = floats_of(checkpoint.tensor(place.name));
    const std::vector<int64_t> rows = stored_rows(place.source, static_cast<int64_t>(values.size()));
    const bool is_bias = !rows.empty();
    std::vector<float> ordered(values.size());
    for (size_t i = 0; i < values.size(); ++i) {
      // A gain with a unit offset has the 1 added in the file.
      ordered[i] = values[is_bias ? static_cast<size_t>(rows[i]) : i] + place.source.subtract;
    }
    encoder.encode(
        1, static_cast<int64_t>(ordered.size()),
        [&](int64_t, std::span<float> out) { std::copy(ordered.begin(), ordered.end(), out.begin()); },
        [&](int64_t, std::span<const float> x, std::span<std::byte> blocks) {
          encode_gguf_row(GgufType::F32, x, {}, blocks);
        });
  }
}

// The linear makes keys and values, [H (N + V), C].
void make_latent(const Checkpoint& checkpoint, const PlannedGgufTensor& tensor, Encoder& encoder) {
  const LinearDescription& linear = *tensor.parts.front().linear;
  const LinearWeights weights = read_for_gguf(checkpoint, linear);
  const bool is_keys = tensor.making == GgufMaking::latent_keys;
  const ModelDescription& model = checkpoint.description();
  const int64_t num_k = model.head_size - model.blocks.front().latent->num_rotated, num_v = model.value_size;
  const int64_t latent = linear.num_in, in_head = num_k + num_v;
  std::vector<float> all(static_cast<size_t>(linear.num_out * latent));
  weight_rows(weights, 0, linear.num_out, all);
  const int64_t rows_of_head = is_keys ? latent : num_v, width = tensor.shape.back();
  const auto read = [&](int64_t row, std::span<float> out) {
    const int64_t head = row / rows_of_head, r = row % rows_of_head;
    for (int64_t i = 0; i < width; ++i) {
      const int64_t from = is_keys ? (head * in_head + i) * latent + r : (head * in_head + num_k + r) * latent + i;
      out[static_cast<size_t>(i)] = all[static_cast<size_t>(from)];
    }
  };
  encoder.encode(model.num_heads * rows_of_head, width, read,
                 [&](int64_t, std::span<const float> x, std::span<std::byte> blocks) {
                   encode_gguf_row(tensor.chosen.type, x, {}, blocks);
                 });
}

// True if no number of the weight leaves float16's range, whatever blocks are made of its codes: a minimum is a scale
// times a zero of 8 bits, and FP8 has numbers up to 448.
bool has_plain_scales(const LinearWeights& linear) {
  const auto* const weight = std::get_if<QuantizedWeight>(&linear.weight);
  if (weight == nullptr || weight->code->is_blocks()) return false;
  return std::ranges::all_of(weight->scales_OG, [](float scale) {
    const float size = std::abs(scale);
    return size == 0.0f || (size >= 0x1p-14f && size <= 0x1p+7f);
  });
}

}  // namespace

double GgufLoss::relative_error() const {
  return squared_weight > 0.0 ? std::sqrt(squared_error / squared_weight) : 0.0;
}

LinearWeights read_for_gguf(const Checkpoint& checkpoint, const LinearDescription& linear) {
  const ModelDescription& model = checkpoint.description();
  if (linear.name == model.embedding_name) return checkpoint.stored_linear(checkpoint.embedding());
  return checkpoint.stored_linear(linear);
}

GgufLoss make_gguf_tensor(const Checkpoint& checkpoint, const PlannedGgufTensor& tensor, const GgufCopies& copies,
                          const std::function<std::span<const float>(const LinearDescription&)>& importance,
                          const ByteSink& sink) {
  const GgufType type = tensor.chosen.type;
  Encoder encoder(tensor.name, type, sink);
  if (tensor.making == GgufMaking::vector) {
    make_vector(checkpoint, tensor, encoder);
    return encoder.loss;
  }
  if (tensor.making != GgufMaking::matrix) {
    make_latent(checkpoint, tensor, encoder);
    encoder.refuse_zeros();
    return encoder.loss;
  }
  encoder.loss.keeps_codes = true;
  for (const GgufPlace& place : tensor.parts) {
    const LinearDescription& linear = *place.linear;
    const LinearWeights weights = read_for_gguf(checkpoint, linear);
    const std::vector<int64_t> rows = stored_rows(place.source, linear.num_out);
    const auto stored = [&](int64_t row) { return rows.empty() ? row : rows[static_cast<size_t>(row)]; };
    const GgufTranscoder codes(weights, type);
    const auto* const stored_blocks = std::get_if<QuantizedWeight>(&weights.weight);
    const bool has_blocks = stored_blocks != nullptr && stored_blocks->code->is_blocks() &&
                            stored_blocks->code->gguf_type == static_cast<uint32_t>(type);
    const bool keeps_codes = tensor.is_copied || has_blocks || codes.holds_codes();
    const std::span<const float> columns = importance && !keeps_codes ? importance(linear) : std::span<const float>();
    encoder.encode(
        linear.num_out, linear.num_in,
        [&](int64_t row, std::span<float> out) { read_weight_row(weights, stored(row), out); },
        [&](int64_t row, std::span<const float> x, std::span<std::byte> blocks) {
          if (tensor.is_copied) {
            std::ranges::copy(copies.row(place, stored(row)), blocks.begin());
          } else if (has_blocks) {
            const std::span<const std::byte> all = std::as_bytes(std::span(stored_blocks->codes_OI));
            const std::span<const std::byte> own =
                all.subspan(static_cast<size_t>(stored(row)) * blocks.size(), blocks.size());
            std::ranges::copy(own, blocks.begin());
          } else if (codes.holds_codes()) {
            codes.write_row(stored(row), blocks);
          } else {
            encode_gguf_row(type, x, columns, blocks);
          }
        });
    encoder.loss.keeps_codes = encoder.loss.keeps_codes && keeps_codes;
    checkpoint.drop_pages(linear);
  }
  encoder.refuse_zeros();
  return encoder.loss;
}

bool holds_codes(const LinearWeights& linear, GgufType type) {
  return GgufTranscoder(linear, type).holds_codes();
}

bool holds_scales(const LinearWeights& linear, GgufType type) {
  constexpr double kSmallError = 0x1p-8;
  if (type == GgufType::MXFP4 || has_plain_scales(linear)) return true;
  const bool is_float = block_of(type).num_elements == 1;
  const GgufTranscoder codes(linear, type);
  double squared_error = 0.0, squared_weight = 0.0;
#pragma omp parallel
  {
    std::vector<float> x(static_cast<size_t>(linear.num_in())), y(x.size());
    std::vector<std::byte> blocks(static_cast<size_t>(gguf_row_bytes(type, linear.num_in())));
#pragma omp for schedule(dynamic, 16) reduction(+ : squared_error, squared_weight)
    for (int64_t r = 0; r < linear.num_out(); ++r) {
      read_weight_row(linear, r, x);
      is_float ? encode_gguf_row(type, x, {}, blocks) : codes.write_row(r, blocks);
      decode_gguf_blocks(type, blocks, y);
      for (size_t i = 0; i < x.size(); ++i) {
        const double error = static_cast<double>(x[i]) - static_cast<double>(y[i]);
        squared_error += error * error;
        squared_weight += static_cast<double>(x[i]) * static_cast<double>(x[i]);
      }
    }
  }
  return squared_error <= kSmallError * kSmallError * squared_weight;  // false for infinite ones and NaN
}

bool is_held_exactly(const LinearWeights& linear, GgufType type) {
  const GgufTranscoder codes(linear, type);
  if (!codes.holds_codes()) return false;
  bool is_exact = true;
#pragma omp parallel
  {
    std::vector<float> x(static_cast<size_t>(linear.num_in())), y(x.size());
    std::vector<std::byte> blocks(static_cast<size_t>(gguf_row_bytes(type, linear.num_in())));
#pragma omp for schedule(dynamic, 16) reduction(&& : is_exact)
    for (int64_t r = 0; r < linear.num_out(); ++r) {
      if (!is_exact) continue;
      read_weight_row(linear, r, x);
      codes.write_row(r, blocks);
      decode_gguf_blocks(type, blocks, y);
      is_exact = is_exact && std::equal(x.begin(), x.end(), y.begin());
    }
  }
  return is_exact;
}

}  // namespace pare::runtime
