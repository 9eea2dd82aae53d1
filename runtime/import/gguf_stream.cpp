#include "runtime/import/gguf_stream.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace pare::runtime {
namespace {

// Decodes rows of one part of a tensor.
class RowReader {
 public:
  RowReader(const GgufTensor& tensor, int64_t first_row, float factor = 1.0f)
      : tensor_(tensor), first_row_(first_row), width_(tensor.shape.back()), factor_(factor) {
    row_bytes_ = static_cast<int64_t>(tensor.data.size()) / (tensor.num_elements() / width_);
  }
  int64_t width() const { return width_; }
  void read(int64_t row, std::span<float> out) const {
    const auto begin = static_cast<size_t>((first_row_ + row) * row_bytes_);
    decode_gguf_blocks(tensor_.type, tensor_.data.subspan(begin, static_cast<size_t>(row_bytes_)), out);
    if (factor_ == 1.0f) return;
    for (float& value : out) value *= factor_;
  }

 private:
  const GgufTensor& tensor_;
  int64_t first_row_, width_, row_bytes_ = 0;
  float factor_;
};

// Rounds rows of floats to the type of the result.
class RowWriter {
 public:
  RowWriter(DType dtype, int64_t width, float subtract, const ByteSink& sink)
      : dtype_(dtype),
        subtract_(subtract),
        rounded_(static_cast<size_t>(width) * dtype_size_bytes(dtype)),
        sink_(sink) {}
  void write(std::span<float> row) {
    for (float& value : row) value -= subtract_;
    convert_from_float(dtype_, row, rounded_);
    sink_(rounded_);
  }

 private:
  DType dtype_;
  float subtract_;
  std::vector<std::byte> rounded_;
  const ByteSink& sink_;
};

}  // namespace

StreamedTensor stream_gguf(const std::shared_ptr<const GgufFile>& file, const GgufSource& source,
                           const std::string& name, DType dtype) {
  const GgufTensor& tensor = file->tensor(source.name);
  const bool is_bias = name.ends_with(".bias");
  std::vector<int64_t> shape = tensor.shape;
  if (source.num_parts > 0) {
    const size_t num_axes = is_bias ? 2 : 3;
    if (shape.size() != num_axes || shape.front() != source.num_parts) {
      throw std::runtime_error(file->where() + ": " + source.name + ": expected " + std::to_string(num_axes) +
                               " dimensions, the first of them " + std::to_string(source.num_parts) +
                               " experts, found the shape " + shape_text(shape));
    }
    shape.erase(shape.begin());
  }
  if (source.num_stacked > 0) {
    int64_t& num_outputs = shape.front();
    if (num_outputs != source.num_stacked || shape.size() != (is_bias ? 1 : 2)) {
      throw std::runtime_error(
          file->where() + ": " + source.name + ": expected a stack of " + std::to_string(source.num_stacked) + " rows" +
          (source.num_parts > 0 ? " an expert" : "") + ", found the shape " + shape_text(tensor.shape));
    }
    num_outputs = source.num_taken;
  }
  if (source.is_turned && shape.size() == 2) std::swap(shape[0], shape[1]);
  const int64_t num_parts = std::max(source.num_parts, int64_t{1});
  const int64_t num_rows = tensor.num_elements() / tensor.shape.back() / num_parts;
  const auto produce = [file, &tensor, source, dtype, num_rows, num_parts, is_bias](const ByteSink& sink) {
    const RowReader reader(tensor, source.part * num_rows, source.factor);
    const auto stored = [&](int64_t row) { return source.row_of ? source.row_of(row) : row; };
    const int64_t width = reader.width();
    const int64_t num_outputs = source.num_stacked > 0 ? source.num_taken : is_bias ? width : num_rows;
    std::vector<float> row(static_cast<size_t>(width));
    if (source.is_turned) {
      std::vector<float> matrix_IO(static_cast<size_t>(width * num_rows));
      for (int64_t o = 0; o < num_rows; ++o) {
        reader.read(stored(o), row);
        for (int64_t i = 0; i < width; ++i) {
          matrix_IO[static_cast<size_t>(i * num_rows + o)] = row[static_cast<size_t>(i)];
        }
      }
      RowWriter writer(dtype, num_rows, source.subtract, sink);
      for (int64_t i = 0; i < width; ++i) {
        writer.write(std::span(matrix_IO).subspan(static_cast<size_t>(i * num_rows), static_cast<size_t>(num_rows)));
      }
    } else if (is_bias) {
      reader.read(0, row);
      std::vector<float> ordered(static_cast<size_t>(num_outputs));
      for (size_t i = 0; i < ordered.size(); ++i) {
        ordered[i] = row[static_cast<size_t>(stored(static_cast<int64_t>(i)))];
      }
      RowWriter(dtype, static_cast<int64_t>(ordered.size()), source.subtract, sink).write(ordered);
    } else {
      RowWriter writer(dtype, width, source.subtract, sink);
      for (int64_t r = 0; r < num_outputs; ++r) {
        reader.read(stored(r), row);
        writer.write(row);
      }
    }
    if (source.part == num_parts - 1) file->drop_pages(tensor);
  };
  return {.name = name, .dtype = dtype, .shape = shape, .produce = produce};
}

StreamedTensor stream_gguf_latent(const std::shared_ptr<const GgufFile>& file, const std::string& k,
                                  const std::string& v, const std::string& name, DType dtype) {
  const GgufTensor &k_HCN = file->tensor(k), &v_HVC = file->tensor(v);
  if (k_HCN.shape.size() != 3) {
    throw std::runtime_error(file->where() + ": " + k +
                             ": expected 3 dimensions (heads, latent, channels), found the "
                             "shape " +
                             shape_text(k_HCN.shape));
  }
  const int64_t num_heads = k_HCN.shape[0], latent = k_HCN.shape[1], num_k = k_HCN.shape[2];
  if (v_HVC.shape.size() != 3 || v_HVC.shape[0] != num_heads || v_HVC.shape[2] != latent) {
    throw std::runtime_error(file->where() + ": " + v + ": expected 3 dimensions, the first " +
                             std::to_string(num_heads) + " and the last " + std::to_string(latent) + " as in " + k +
                             ", found the shape " + shape_text(v_HVC.shape));
  }
  const int64_t num_v = v_HVC.shape[1];
  const auto produce = [file, &k_HCN, &v_HVC, num_heads, latent, num_k, num_v, dtype](const ByteSink& sink) {
    RowWriter writer(dtype, latent, 0.0f, sink);
    std::vector<float> row(static_cast<size_t>(latent)), channels(static_cast<size_t>(num_k));
    std::vector<float> k_NC(static_cast<size_t>(num_k * latent));
    for (int64_t h = 0; h < num_heads; ++h) {
      const RowReader k_rows(k_HCN, h * latent), v_rows(v_HVC, h * num_v);
      for (int64_t c = 0; c < latent; ++c) {
        k_rows.read(c, channels);
        for (int64_t n = 0; n < num_k; ++n)
          k_NC[static_cast<size_t>(n * latent + c)] = channels[static_cast<size_t>(n)];
      }
      for (int64_t n = 0; n < num_k; ++n) {
        writer.write(std::span(k_NC).subspan(static_cast<size_t>(n * latent), static_cast<size_t>(latent)));
      }
      for (int64_t r = 0; r < num_v; ++r) {
        v_rows.read(r, row);
        writer.write(row);
      }
    }
    file->drop_pages(k_HCN);
    file->drop_pages(v_HVC);
  };
  return {.name = name, .dtype = dtype, .shape = {num_heads * (num_k + num_v), latent}, .produce = produce};
}

}  // namespace pare::runtime
