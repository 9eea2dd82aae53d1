#include "runtime/engine/backend.h"

#include <algorithm>
#include <limits>
#include <numeric>
#include <stdexcept>
#include <string>

#include "runtime/machine/reserved_memory.h"
#include "runtime/system/progress.h"

namespace pare::runtime {
namespace {

const InputFormat kPlainFormat;

template <typename T>
Buffer<T> uploaded(Backend& backend, std::span<const T> host) {
  Buffer<T> buffer = backend.allocate<T>(static_cast<int64_t>(host.size()));
  backend.upload(host, buffer.get());
  return buffer;
}

}  // namespace

std::string zeros_text(const InputZeros& zeros) {
  const auto percent = [](double share) { return format_number(100.0 * share, 1) + " %"; };
  std::string text = percent(zeros.zero_share()) + " of the down projections' inputs were zero";
  if (zeros.num_columns > 0) text += ", decode skipped " + percent(zeros.skipped_share()) + " of their columns";
  return text;
}

int64_t Backend::checked_bytes(int64_t num_values, size_t value_bytes) {
  const int64_t most = (std::numeric_limits<int64_t>::max() - 64) / static_cast<int64_t>(value_bytes);
  if (num_values < 0 || num_values > most) {
    throw std::invalid_argument("allocate: expected a number of values between 0 and " + std::to_string(most) +
                                ", found " + std::to_string(num_values));
  }
  return num_values * static_cast<int64_t>(value_bytes);
}

void Backend::run_step(std::unique_ptr<RecordedStep>&, const std::function<void()>& step) {
  step();
}

void Backend::give_back_bytes(void* /*memory*/, int64_t /*num_bytes*/) {}

PackedNorm Backend::pack_norm(const Norm& norm) {
  return {uploaded<float>(*this, norm.gain), norm.epsilon, norm.centers, uploaded<float>(*this, norm.bias)};
}

PackedLayerNorm Backend::pack_layer_norm(const LayerNorm& norm) {
  return {uploaded<float>(*this, norm.gain), uploaded<float>(*this, norm.bias), norm.epsilon};
}

PackedRope Backend::pack_rope(const RopeTable& table) {
  return {table.num_positions, table.head_size, uploaded<float>(*this, table.cosine),
          uploaded<float>(*this, table.sine)};
}

Sequences bounded(std::span<const Sequence> host_N) {
  Sequences sequences{.table = host_N};
  for (const Sequence& sequence : host_N) {
    sequences.num_rows = std::max(sequences.num_rows, sequence.first_row + sequence.num_rows);
    sequences.max_rows = std::max(sequences.max_rows, sequence.num_rows);
    sequences.max_tokens = std::max(sequences.max_tokens, sequence.num_past + sequence.num_rows);
  }
  return sequences;
}

void Backend::add_norm(float* hidden_RD, const float* delta_RD, const PackedNorm* delta_norm, const PackedNorm* norm,
                       int64_t num_rows, int64_t width, float* x_RD) {
  LinearInput x(x_RD);
  add_norm(hidden_RD, delta_RD, delta_norm, norm, num_rows, width, x);
}

void Backend::linear(const PackedLinear& packed, const float* x_RI, int64_t num_rows, float* y_RO) {
  const LinearInput x(const_cast<float*>(x_RI));  // only read through this view
  linear(packed, x, num_rows, y_RO);
}

void Backend::attention(const float* q_RHK, const KvLayer& cache, const Sequences& sequences,
                        const AttentionShape& shape, float* x_RHK) {
  LinearInput x(x_RHK);
  attention(q_RHK, cache, sequences, shape, x);
}

void Backend::activate(const float* y_R2F, Activation activation, int64_t num_rows, int64_t width_F, float* z_RF) {
  LinearInput z(z_RF);
  activate(y_R2F, activation, num_rows, width_F, z);
}

LinearInput::LinearInput(Backend& backend, int64_t max_rows, int64_t max_width, bool has_codes)
    : x_(backend.allocate(max_rows * max_width)), x_RI_(x_.get()), format_(&kPlainFormat) {
  if (!has_codes) return;
  codes_ = backend.allocate<int8_t>(max_rows * code_stride(max_width));
  scales_ = backend.allocate(max_rows);
  zeros_ = backend.allocate<int32_t>(max_rows);
  codes_RS_ = codes_.get();
  scales_R_ = scales_.get();
  zeros_R_ = zeros_.get();
}

LinearInput::LinearInput(float* plain_RI) : x_RI_(plain_RI), format_(&kPlainFormat) {}

void LinearInput::prepare(const PackedLinear& consumer, const Sequences& sequences, int64_t batch_rows) {
  if (consumer.multiplies_codes() && codes_RS_ == nullptr) {
    throw std::invalid_argument("input of " + consumer.kernel_name() +
                                ": it multiplies codes, and there is no room "
                                "for them: allocate the input with codes");
  }
  consumer_ = &consumer;
  format_ = &consumer.input();
  as_codes_ = consumer.multiplies_codes();
  sequences_ = sequences;
  batch_rows_ = batch_rows;
}

KvStorage::KvStorage(Backend& backend, int bits, int64_t num_slots, int64_t num_kv_heads, int64_t head_size,
                     bool in_pages)
    : num_kv_heads_(num_kv_heads), head_size_(head_size) {
  const int64_t num_grids = num_slots * num_kv_heads, num_values = num_grids * head_size;
  const auto take = [&]<typename T>(Buffer<T>& buffer, int64_t size) {
    buffer = in_pages ? backend.reserve<T>(size) : backend.allocate<T>(size);
  };
  switch (bits) {
    case kKvFloatBits:
      take(keys_, num_values);
      take(values_, num_values);
      break;
    case kKvBf16Bits:
      take(key_bf16_, num_values);
      take(value_bf16_, num_values);
      break;
    case kKvCodeBits:
      take(key_codes_, num_values);
      take(value_codes_, num_values);
      take(key_grids_, num_grids);
      take(value_grids_, num_grids);
      break;
    default:
      throw std::invalid_argument("KV cache: expected 32, 16 or 8 bits, found " + std::to_string(bits));
  }
  layer_ = {.keys = keys_.get(),
            .values = values_.get(),
            .num_slots = num_slots,
            .key_codes = key_codes_.get(),
            .value_codes = value_codes_.get(),
            .key_grids = key_grids_.get(),
            .value_grids = value_grids_.get(),
            .key_bf16 = key_bf16_.get(),
            .value_bf16 = value_bf16_.get()};
}

void KvStorage::give_back(Backend& backend, int64_t first_slot, int64_t num_slots) const {
  const auto give = [&]<typename T>(const Buffer<T>& buffer, int64_t values_per_slot) {
    if (buffer.size() == 0) return;
    for (int64_t head = 0; head < num_kv_heads_; ++head) {
      backend.give_back_bytes(buffer.get() + layer_.place(first_slot, head) * values_per_slot,
                              num_slots * values_per_slot * static_cast<int64_t>(sizeof(T)));
    }
  };
  for (const Buffer<float>* floats : {&keys_, &values_}) give(*floats, head_size_);
  for (const Buffer<uint16_t>* bf16 : {&key_bf16_, &value_bf16_}) give(*bf16, head_size_);
  for (const Buffer<int8_t>* codes : {&key_codes_, &value_codes_}) give(*codes, head_size_);
  for (const Buffer<KvGrid>* grids : {&key_grids_, &value_grids_}) give(*grids, 1);
}

int64_t KvStorage::whole_page_slots(int bits, int64_t head_size) {
  const auto whole_pages_of = [](int64_t slot_bytes) { return page_bytes() / std::gcd(page_bytes(), slot_bytes); };
  // Both are powers of two, since pages are.
  const int64_t slots = whole_pages_of(head_size * bits / 8);
  return bits == kKvCodeBits ? std::max(slots, whole_pages_of(sizeof(KvGrid))) : slots;
}

int64_t KvStorage::bytes_per_token(int bits, int64_t num_kv_heads, int64_t head_size) {
  const int64_t grid_bytes = bits == kKvCodeBits ? static_cast<int64_t>(sizeof(KvGrid)) : 0;
  return 2 * num_kv_heads * (head_size * bits / 8 + grid_bytes);
}

}  // namespace pare::runtime
