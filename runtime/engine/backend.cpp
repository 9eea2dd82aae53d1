#include "runtime/engine/backend.h"

#include <stdexcept>
#include <string>

namespace pare {
namespace {

const InputFormat kPlainFormat;

Backend::Buffer no_buffer() {
  return {nullptr, [](float*) {}};
}

// Room for num_bytes, in the floats that backends allocate.
Backend::Buffer allocate_bytes(Backend& backend, int64_t num_bytes) {
  return backend.allocate((num_bytes + 3) / 4);
}

}  // namespace

void Backend::add_norm(float* hidden_RD, const float* delta_RD, const Norm* delta_norm, const Norm* norm,
                       int64_t num_rows, int64_t width, float* x_RD) {
  LinearInput x(x_RD);
  add_norm(hidden_RD, delta_RD, delta_norm, norm, num_rows, width, x);
}

void Backend::linear(const PackedLinear& packed, const float* x_RI, int64_t num_rows, float* y_RO) {
  const LinearInput x(const_cast<float*>(x_RI));  // a view that is only read
  linear(packed, x, num_rows, y_RO);
}

void Backend::attention(const float* q_RHK, const KvLayer& cache, std::span<const Sequence> sequences,
                        const AttentionShape& shape, float* x_RHK) {
  LinearInput x(x_RHK);
  attention(q_RHK, cache, sequences, shape, x);
}

void Backend::activate(const float* y_R2F, Activation activation, int64_t num_rows, int64_t width_F, float* z_RF) {
  LinearInput z(z_RF);
  activate(y_R2F, activation, num_rows, width_F, z);
}

LinearInput::LinearInput(Backend& backend, int64_t max_rows, int64_t max_width, bool has_codes)
    : x_(backend.allocate(max_rows * max_width)),
      codes_(has_codes ? allocate_bytes(backend, max_rows * code_stride(max_width)) : no_buffer()),
      scales_(has_codes ? backend.allocate(max_rows) : no_buffer()),
      zeros_(has_codes ? backend.allocate(max_rows) : no_buffer()),
      x_RI_(x_.get()),
      codes_RS_(reinterpret_cast<int8_t*>(codes_.get())),
      scales_R_(scales_.get()),
      zeros_R_(reinterpret_cast<int32_t*>(zeros_.get())),
      format_(&kPlainFormat) {}

LinearInput::LinearInput(float* plain_RI)
    : x_(no_buffer()),
      codes_(no_buffer()),
      scales_(no_buffer()),
      zeros_(no_buffer()),
      x_RI_(plain_RI),
      format_(&kPlainFormat) {}

void LinearInput::prepare(const PackedLinear& consumer, std::span<const Sequence> sequences, int64_t batch_rows) {
  if (consumer.multiplies_codes() && codes_RS_ == nullptr) {
    throw std::invalid_argument("input of " + consumer.kernel_name() +
                                ": it multiplies codes, and there is no room "
                                "for them: allocate the input with codes");
  }
  format_ = &consumer.input();
  as_codes_ = consumer.multiplies_codes();
  sequences_ = sequences;
  batch_rows_ = batch_rows;
}

KvStorage::KvStorage(Backend& backend, int bits, int64_t num_slots, int64_t num_kv_heads, int64_t head_size) {
  if (bits != 8 && bits != kKvFloatBits) {
    throw std::invalid_argument("KV cache: expected 8 or " + std::to_string(kKvFloatBits) + " bits, found " +
                                std::to_string(bits));
  }
  const int64_t num_grids = num_slots * num_kv_heads, num_values = num_grids * head_size;
  layer_.num_slots = num_slots;
  const auto allocate = [&](int64_t num_bytes) {
    buffers_.push_back(allocate_bytes(backend, num_bytes));
    return buffers_.back().get();
  };
  if (bits == kKvFloatBits) {
    layer_.keys = allocate(4 * num_values);
    layer_.values = allocate(4 * num_values);
    return;
  }
  layer_.key_codes = reinterpret_cast<int8_t*>(allocate(num_values));
  layer_.value_codes = reinterpret_cast<int8_t*>(allocate(num_values));
  layer_.key_grids = reinterpret_cast<KvGrid*>(allocate(num_grids * static_cast<int64_t>(sizeof(KvGrid))));
  layer_.value_grids = reinterpret_cast<KvGrid*>(allocate(num_grids * static_cast<int64_t>(sizeof(KvGrid))));
}

int64_t KvStorage::bytes_per_token(int bits, int64_t num_kv_heads, int64_t head_size) {
  const int64_t head_bytes = bits == 8 ? head_size + static_cast<int64_t>(sizeof(KvGrid)) : 4 * head_size;
  return 2 * num_kv_heads * head_bytes;
}

}  // namespace pare
