#include "runtime/model/expert_stacks.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <utility>

#include "runtime/format/weight_code.h"
#include "runtime/system/json_text.h"

namespace pare::runtime {
namespace {

constexpr int64_t kBlockBytes = 16;  // of two codes each

// Rows first, first + step, ... of each expert's matrix, num_rows of them.
struct RowsOfStack {
  int64_t first = 0, step = 1, num_rows = 0;
};

// One stack: which linear of each expert lies in which of its rows.
struct StackOf {
  std::string_view name;
  std::vector<std::pair<LinearDescription FeedForwardDescription::*, RowsOfStack>> linears;
  int64_t num_in = 0, num_rows = 0;
};

std::vector<StackOf> stacks_of(const BlockDescription& block) {
  const FeedForwardDescription& expert = block.experts.front();
  const int64_t inner = expert.gate.num_out;
  return {{"gate_up_proj",
           {{&FeedForwardDescription::gate, {0, 2, inner}}, {&FeedForwardDescription::up, {1, 2, inner}}},
           expert.gate.num_in,
           2 * inner},
          {"down_proj", {{&FeedForwardDescription::down, {0, 1, expert.down.num_out}}}, inner, expert.down.num_out}};
}

const TensorView& require_shape(const FindTensor& find, const std::string& name, const std::vector<int64_t>& shape,
                                bool is_codes) {
  const TensorView* const view = find(name);
  if (view == nullptr)
    throw std::runtime_error("tensor '" + name + "' is missing, which stands beside stacked experts");
  const bool is_right_type = is_codes ? view->dtype == DType::U8 : is_float_dtype(view->dtype);
  if (is_right_type && view->shape == shape) return *view;
  throw std::runtime_error("tensor '" + name + "': expected " + (is_codes ? "U8 " : "F32, F16 or BF16 ") +
                           shape_text(shape) + ", found " + std::string(dtype_name(view->dtype)) + " " +
                           shape_text(view->shape));
}

std::span<const std::byte> expert_bytes(const TensorView& stack, int64_t expert) {
  const size_t size = stack.data.size() / static_cast<size_t>(stack.shape.front());
  return stack.data.subspan(static_cast<size_t>(expert) * size, size);
}

// Visits every element of some rows [O, I] that lie in a matrix [I, num_columns] as columns: (place in the rows, place
// in the matrix), tile by tile, so that both sides stay in the cache.
template <typename Visit>
void for_each_place(RowsOfStack rows, int64_t num_in, int64_t num_columns, const Visit& visit) {
  constexpr int64_t kTile = 32;
  const int64_t num_tiles = (rows.num_rows + kTile - 1) / kTile;
#pragma omp parallel for schedule(static) if (rows.num_rows * num_in > (1 << 16))
  for (int64_t tile = 0; tile < num_tiles; ++tile) {
    const int64_t end = std::min((tile + 1) * kTile, rows.num_rows);
    for (int64_t begin_i = 0; begin_i < num_in; begin_i += kTile) {
      for (int64_t o = tile * kTile; o < end; ++o) {
        for (int64_t i = begin_i; i < std::min(begin_i + kTile, num_in); ++i) {
          visit(static_cast<size_t>(o * num_in + i), static_cast<size_t>(i * num_columns + rows.first + o * rows.step));
        }
      }
    }
  }
}

std::vector<std::byte> turned_rows(std::span<const std::byte> matrix_IC, int64_t num_columns, int64_t num_in,
                                   RowsOfStack rows, size_t size) {
  std::vector<std::byte> bytes(static_cast<size_t>(rows.num_rows * num_in) * size);
  for_each_place(rows, num_in, num_columns, [&](size_t in_rows, size_t in_matrix) {
    std::memcpy(bytes.data() + in_rows * size, matrix_IC.data() + in_matrix * size, size);
  });
  return bytes;
}

// A bfloat16 that is the product of a code's value and a scale, which has no digits beside the value's.
uint16_t product_bf16(float value, uint8_t scale) {
  const float product = std::ldexp(value, static_cast<int>(scale) - 127);
  uint32_t word = 0;
  std::memcpy(&word, &product, sizeof(word));
  return static_cast<uint16_t>(word >> 16);
}

std::vector<std::byte> decoded_rows(std::span<const std::byte> blocks, std::span<const std::byte> scales,
                                    int64_t num_in, RowsOfStack rows) {
  const int64_t num_groups = num_in / kMxfp4Code.block;
  std::vector<std::byte> bytes(static_cast<size_t>(rows.num_rows * num_in) * sizeof(uint16_t));
#pragma omp parallel for schedule(static) if (rows.num_rows * num_in > (1 << 16))
  for (int64_t o = 0; o < rows.num_rows; ++o) {
    std::byte* out = bytes.data() + static_cast<size_t>(o * num_in) * sizeof(uint16_t);
    for (int64_t g = 0; g < num_groups; ++g) {
      const int64_t group = (rows.first + o * rows.step) * num_groups + g;
      uint16_t products[kTableValues];
      for (uint8_t code = 0; code < kTableValues; ++code) {
        products[code] = product_bf16(kMxfp4Code.value(code), static_cast<uint8_t>(scales[static_cast<size_t>(group)]));
      }
      for (int64_t b = 0; b < kBlockBytes; ++b) {
        const auto pair = static_cast<uint8_t>(blocks[static_cast<size_t>(group * kBlockBytes + b)]);
        const uint16_t values[] = {products[pair & 15], products[pair >> 4]};
        std::memcpy(out, values, sizeof(values));
        out += sizeof(values);
      }
    }
  }
  return bytes;
}

std::vector<std::byte> strided(std::span<const std::byte> row, RowsOfStack rows, size_t size) {
  std::vector<std::byte> bytes(static_cast<size_t>(rows.num_rows) * size);
  for (int64_t o = 0; o < rows.num_rows; ++o) {
    std::memcpy(bytes.data() + static_cast<size_t>(o) * size,
                row.data() + static_cast<size_t>(rows.first + o * rows.step) * size, size);
  }
  return bytes;
}

// Adds the weights of one linear of all experts.
void add_weights(const BlockDescription& block, const StackOf& stack, const std::string& name, const FindTensor& find,
                 std::vector<ExpertTensor>& tensors) {
  const int64_t num_experts = block.num_routed(), num_in = stack.num_in, num_rows = stack.num_rows;
  const bool is_packed = find(name) == nullptr;
  if (is_packed && num_in % kMxfp4Code.block != 0) {
    throw std::runtime_error("tensor '" + name + "_blocks': expected inputs in blocks of " +
                             std::to_string(kMxfp4Code.block) + ", found " + std::to_string(num_in) + " inputs");
  }
  const int64_t num_groups = num_in / kMxfp4Code.block;
  const TensorView weights =
      is_packed ? require_shape(find, name + "_blocks", {num_experts, num_rows, num_groups, kBlockBytes}, true)
                : require_shape(find, name, {num_experts, num_in, num_rows}, false);
  const TensorView scales =
      is_packed ? require_shape(find, name + "_scales", {num_experts, num_rows, num_groups}, true) : TensorView{};
  for (int64_t e = 0; e < num_experts; ++e) {
    const std::span<const std::byte> own = expert_bytes(weights, e);
    const std::span<const std::byte> own_scales = is_packed ? expert_bytes(scales, e) : std::span<const std::byte>();
    for (const auto& [which, rows] : stack.linears) {
      ExpertTensor& tensor = tensors.emplace_back();
      tensor.name = (block.experts[static_cast<size_t>(e)].*which).name + ".weight";
      tensor.shape = {rows.num_rows, num_in};
      if (is_packed) {
        tensor.stacks = {name + "_blocks", name + "_scales"};
        tensor.parts = {own, own_scales};
        tensor.make = [own, own_scales, num_in, rows = rows] { return decoded_rows(own, own_scales, num_in, rows); };
      } else {
        tensor.dtype = weights.dtype;
        tensor.stacks = {name};
        tensor.parts = {own};
        tensor.make = [own, num_rows, num_in, rows = rows, size = dtype_size_bytes(weights.dtype)] {
          return turned_rows(own, num_rows, num_in, rows, size);
        };
      }
    }
  }
}

void add_biases(const BlockDescription& block, const StackOf& stack, const std::string& name, const FindTensor& find,
                std::vector<ExpertTensor>& tensors) {
  const int64_t num_experts = block.num_routed();
  const TensorView biases = require_shape(find, name, {num_experts, stack.num_rows}, false);
  for (int64_t e = 0; e < num_experts; ++e) {
    const std::span<const std::byte> own = expert_bytes(biases, e);
    for (const auto& [which, rows] : stack.linears) {
      ExpertTensor& tensor = tensors.emplace_back();
      tensor.name = (block.experts[static_cast<size_t>(e)].*which).name + ".bias";
      tensor.dtype = biases.dtype;
      tensor.shape = {rows.num_rows};
      tensor.stacks = {name};
      tensor.parts = {own};
      tensor.make = [own, rows = rows, size = dtype_size_bytes(biases.dtype)] { return strided(own, rows, size); };
    }
  }
}

std::vector<std::byte> produced(const StreamedTensor& tensor) {
  std::vector<std::byte> bytes;
  tensor.produce([&](std::span<const std::byte> part) { bytes.insert(bytes.end(), part.begin(), part.end()); });
  return bytes;
}

// Makes one stack of the tensors of its linears, [E][linears of an expert]: weights [O, I] or biases [O].
StreamedTensor stack_of(const std::string& name, const StackOf& stack, std::vector<StreamedTensor> parts,
                        bool is_bias) {
  const auto num_linears = stack.linears.size();
  const auto num_experts = static_cast<int64_t>(parts.size() / num_linears);
  const int64_t num_in = is_bias ? 1 : stack.num_in;
  std::vector<int64_t> shape = {num_experts, num_in, stack.num_rows};
  if (is_bias) shape = {num_experts, stack.num_rows};
  const DType dtype = parts.front().dtype;
  auto held = std::make_shared<std::vector<StreamedTensor>>(std::move(parts));
  return {name, dtype, shape, [held, stack, num_in, num_linears, size = dtype_size_bytes(dtype)](const ByteSink& sink) {
            std::vector<std::byte> matrix_IC(static_cast<size_t>(num_in * stack.num_rows) * size);
            for (size_t p = 0; p < held->size(); ++p) {
              const std::vector<std::byte> bytes = produced((*held)[p]);
              const RowsOfStack& rows = stack.linears[p % num_linears].second;
              for_each_place(rows, num_in, stack.num_rows, [&](size_t in_rows, size_t in_matrix) {
                std::memcpy(matrix_IC.data() + in_matrix * size, bytes.data() + in_rows * size, size);
              });
              if (p % num_linears == num_linears - 1) sink(matrix_IC);
            }
          }};
}

}  // namespace

std::string experts_module(const BlockDescription& block) {
  const std::string& gate = block.experts.front().gate.name;  // ends in "experts.0.gate_proj"
  return gate.substr(0, gate.rfind('.', gate.rfind('.') - 1) + 1);
}

std::vector<ExpertTensor> experts_of_stacks(const BlockDescription& block, const FindTensor& find) {
  const std::string module = experts_module(block);
  const std::vector<StackOf> stacks = stacks_of(block);
  const bool has_stack = std::any_of(stacks.begin(), stacks.end(), [&](const StackOf& stack) {
    const std::string name = module + std::string(stack.name);
    return find(name) != nullptr || find(name + "_blocks") != nullptr || find(name + "_bias") != nullptr;
  });
  std::vector<ExpertTensor> tensors;
  if (!has_stack) return tensors;
  for (const StackOf& stack : stacks) {
    const std::string name = module + std::string(stack.name);
    add_weights(block, stack, name, find, tensors);
    add_biases(block, stack, name + "_bias", find, tensors);
  }
  return tensors;
}

void stack_experts(const BlockDescription& block, std::vector<StreamedTensor>& tensors) {
  const std::string module = experts_module(block);
  std::map<std::string_view, size_t> places;
  for (size_t t = 0; t < tensors.size(); ++t) places.emplace(tensors[t].name, t);
  std::vector<StreamedTensor> made;
  std::vector<size_t> taken;
  for (const StackOf& stack : stacks_of(block)) {
    for (const bool is_bias : {false, true}) {
      std::vector<StreamedTensor> parts;
      for (int64_t e = 0; e < block.num_routed(); ++e) {
        for (const auto& [which, rows] : stack.linears) {
          const std::string name =
              (block.experts[static_cast<size_t>(e)].*which).name + (is_bias ? ".bias" : ".weight");
          const auto place = places.find(name);
          if (place == places.end()) return;
          const StreamedTensor& tensor = tensors[place->second];
          if (!is_float_dtype(tensor.dtype) || (!parts.empty() && parts.front().dtype != tensor.dtype)) return;
          taken.push_back(place->second);
          parts.push_back(tensor);
        }
      }
      made.push_back(
          stack_of(module + std::string(stack.name) + (is_bias ? "_bias" : ""), stack, std::move(parts), is_bias));
    }
  }
  places.clear();
  std::ranges::sort(taken, std::greater<>());
  for (const size_t place : taken) tensors.erase(tensors.begin() + static_cast<int64_t>(place));
  for (StreamedTensor& tensor : made) tensors.push_back(std::move(tensor));
}

std::string without_mxfp4(const std::string& config_json, const std::string& where) {
  if (config_json.find("\"mxfp4\"") == std::string::npos) return config_json;
  nlohmann::ordered_json config = parse_ordered_json(config_json, where);
  const auto quantization = config.find("quantization_config");
  if (quantization == config.end() || !quantization->is_object()) return config_json;
  const auto method = quantization->find("quant_method");
  if (method == quantization->end() || *method != "mxfp4") return config_json;
  config.erase(quantization);
  return json_text(config, 2) + "\n";
}

}  // namespace pare::runtime
