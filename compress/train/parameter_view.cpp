#include "compress/train/parameter_view.h"

#include <ATen/Parallel.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <ATen/ops/zeros_like.h>

#include <algorithm>
#include <atomic>
#include <stdexcept>
#include <utility>

#include "compress/model/stage_products.h"
#include "distill/rows.h"

namespace pare::compress {
namespace {

constexpr int64_t kElementsOfTask = 1 << 16;

template <typename T>
void add_kept(const T* gradient, const bool* kept, int64_t num_elements, float* sum) {
  at::parallel_for(0, num_elements, kElementsOfTask, [&](int64_t begin, int64_t end) {
    if (kept == nullptr) {
      for (int64_t i = begin; i < end; ++i) sum[i] += static_cast<float>(gradient[i]);
    } else {
      for (int64_t i = begin; i < end; ++i) sum[i] += kept[i] ? static_cast<float>(gradient[i]) : 0.0f;
    }
  });
}

// sum += gradient where `kept` is true or undefined, in one pass over memory. gradient: float32 or bfloat16.
void add_kept(const at::Tensor& gradient, const at::Tensor& kept, at::Tensor& sum) {
  if (!sum.is_cpu()) {
    sum.add_(kept.defined() ? gradient.mul(kept) : gradient);
    return;
  }
  const at::Tensor added = gradient.contiguous();
  const bool* const is_kept = kept.defined() ? kept.const_data_ptr<bool>() : nullptr;
  if (added.scalar_type() == at::kBFloat16) {
    add_kept(added.const_data_ptr<at::BFloat16>(), is_kept, added.numel(), sum.data_ptr<float>());
  } else {
    add_kept(added.const_data_ptr<float>(), is_kept, added.numel(), sum.data_ptr<float>());
  }
}

bool has_value_outside(const at::Tensor& kept, const at::Tensor& values) {
  if (!values.is_cpu()) return values.ne(0.0).logical_and_(kept.logical_not()).any().item<bool>();
  const bool* const is_kept = kept.const_data_ptr<bool>();
  const float* const value = values.const_data_ptr<float>();
  std::atomic<bool> found = false;
  at::parallel_for(0, values.numel(), kElementsOfTask, [&](int64_t begin, int64_t end) {
    uint32_t any = 0;
    for (int64_t i = begin; i < end; ++i) {
      any |= static_cast<uint32_t>(!is_kept[i]) & static_cast<uint32_t>(value[i] != 0.0f);
    }
    if (any != 0) found = true;
  });
  return found;
}

class FrozenView : public ParameterView {
 public:
  FrozenView(at::Tensor value, at::Tensor stored) : value_(std::move(value)), stored_(std::move(stored)) {}
  at::Tensor value(at::ScalarType compute) const override {
    return takes_stored(compute) ? stored_.to(compute) : value_;
  }
  at::Tensor held(at::ScalarType compute) const override {
    return takes_stored(compute) && stored_.is_cpu() ? stored_ : value(compute);
  }
  void add_gradient(const at::Tensor&) override { throw std::logic_error("a frozen weight was given a gradient"); }
  std::vector<Parameter*> parameters() override { return {}; }

 private:
  bool takes_stored(at::ScalarType compute) const { return stored_.defined() && compute == at::kFloat; }
  at::Tensor value_, stored_;
};

class FloatView : public ParameterView {
 public:
  FloatView(std::string name, ParameterKind kind, const at::Tensor& value, runtime::DType dtype, at::Tensor kept,
            bool unit_offset)
      : dtype_(dtype), kept_(kept.defined() ? kept.contiguous() : kept), unit_offset_(unit_offset) {
    parameter_.name = std::move(name);
    parameter_.kind = kind;
    parameter_.value = value.to(at::kFloat).contiguous().clone();
    parameter_.gradient = at::zeros_like(parameter_.value);
  }

  at::Tensor value(at::ScalarType compute) const override {
    if (parameter_.kind == ParameterKind::gain) compute = at::kFloat;
    if (compute == at::kBFloat16 && dtype_ == runtime::DType::BF16 && !unit_offset_)
      return parameter_.value.to(compute);
    return unit_offset_ ? stored().add_(1.0).to(compute) : stored().to(compute);
  }

  at::Tensor held(at::ScalarType compute) const override {
    const at::ScalarType held = held_type(dtype_, compute, parameter_.value.device());
    if (held == compute || parameter_.kind != ParameterKind::weight) return value(compute);
    return parameter_.value.to(held);
  }

  void add_gradient(const at::Tensor& gradient) override { add_kept(gradient, kept_, parameter_.gradient); }

  at::Tensor stored() const override {
    return rounded_to(unit_offset_ ? parameter_.value.sub(1.0) : parameter_.value, dtype_);
  }

  std::vector<Parameter*> parameters() override { return {&parameter_}; }

  bool keeps_zeros() const override { return kept_.defined(); }

  void check_zeros() const override {
    if (kept_.defined() && has_value_outside(kept_, parameter_.value)) {
      throw std::logic_error(parameter_.name + ": a step gave a pruned weight a value");
    }
  }

 private:
  Parameter parameter_;
  runtime::DType dtype_;
  at::Tensor kept_;
  bool unit_offset_;
};

}  // namespace

at::Tensor rounded_to(const at::Tensor& x, runtime::DType dtype) {
  switch (dtype) {
    case runtime::DType::F32:
      return x.clone();
    case runtime::DType::F16:
      return x.to(at::kHalf).to(at::kFloat);
    case runtime::DType::BF16:
      return x.to(at::kBFloat16).to(at::kFloat);
    default:
      throw std::invalid_argument("rounded_to: expected F32, F16 or BF16, found " +
                                  std::string(runtime::dtype_name(dtype)));
  }
}

std::unique_ptr<ParameterView> frozen_view(at::Tensor value, at::Tensor stored) {
  return std::make_unique<FrozenView>(std::move(value), std::move(stored));
}

std::unique_ptr<ParameterView> float_view(std::string name, ParameterKind kind, const at::Tensor& value,
                                          runtime::DType dtype, at::Tensor kept, bool unit_offset) {
  return std::make_unique<FloatView>(std::move(name), kind, value, dtype, std::move(kept), unit_offset);
}

GridView::GridView(const std::string& name, const runtime::QuantizedWeight& weight, const GridTraining& training,
                   at::Device device)
    : trains_offsets_(training.offsets), trains_scales_(training.scales) {
  if (!weight.code->is_integer()) {
    throw std::invalid_argument(name + ": expected integer codes, found " + std::string(weight.code->name) +
                                ", which cannot be trained");
  }
  start_ = weight;
  start_.codes_OI.clear();
  start_.scales_OG.clear();
  const int64_t num_groups = weight.num_groups();
  grid_.bits = weight.bits;
  grid_.start_OI = at::empty({weight.num_out, weight.num_in}, at::kByte);
  std::copy(weight.codes_OI.begin(), weight.codes_OI.end(), grid_.start_OI.data_ptr<uint8_t>());
  grid_.zeros_OG = at::full({weight.num_out, num_groups}, static_cast<double>(1 << (weight.bits - 1)), at::kFloat);
  if (!weight.symmetric) {
    std::copy(weight.zeros_OG.begin(), weight.zeros_OG.end(), grid_.zeros_OG.data_ptr<float>());
  }
  grid_.group_I = at::empty({weight.num_in}, at::kLong);
  for (int64_t i = 0; i < weight.num_in; ++i) grid_.group_I.data_ptr<int64_t>()[i] = weight.group(i);
  unit_OG_ = at::empty({weight.num_out, num_groups}, at::kFloat);
  std::copy(weight.scales_OG.begin(), weight.scales_OG.end(), unit_OG_.data_ptr<float>());
  if (training.kept_OI.defined()) {
    grid_.kept_OI = training.kept_OI;
  } else if (training.keeps_zeros || !weight.pattern.is_dense()) {
    grid_.kept_OI = grid_.start_OI.to(at::kFloat).ne(grid_.zeros_OG.index_select(1, grid_.group_I));
  }
  offsets_.name = name + ".weight.offset";
  offsets_.kind = ParameterKind::offset;
  for (at::Tensor* tensor : {&grid_.start_OI, &grid_.zeros_OG, &grid_.group_I, &grid_.kept_OI, &unit_OG_}) {
    if (tensor->defined()) *tensor = tensor->to(device).contiguous();
  }
  const at::TensorOptions options = at::TensorOptions(device).dtype(at::kFloat);
  offsets_.value = at::zeros({weight.num_out, weight.num_in}, options);
  if (trains_offsets_ || trains_scales_) sum_OI_ = at::zeros_like(offsets_.value);
  if (trains_offsets_) offsets_.gradient = sum_OI_;
  scales_.name = name + ".weight.scale";
  scales_.kind = ParameterKind::scale;
  scales_.value = at::ones({training.one_scale ? 1 : weight.num_out, training.one_scale ? 1 : num_groups}, options);
  if (trains_scales_) scales_.gradient = at::zeros_like(scales_.value);
}

at::Tensor GridView::stored_scales() const {
  if (!trains_scales_) return unit_OG_;
  // A scale that training would turn negative stays at the smallest that its type tells from 0.
  return rounded_to(unit_OG_.mul(scales_.value.clamp_min(1e-3)), start_.scale_dtype);
}

at::Tensor GridView::value(at::ScalarType compute) const {
  return distill::weight_of(grid_, offsets_.value, stored_scales()).to(compute);
}

void GridView::add_gradient(const at::Tensor& gradient) {
  add_kept(gradient, grid_.kept_OI, sum_OI_);
}

void GridView::finish_gradients() {
  if (!sum_OI_.defined()) return;
  const at::Tensor by_scale_OG =
      distill::grid_gradients(grid_, offsets_.value, stored_scales().contiguous(), sum_OI_).mul_(unit_OG_);
  if (!trains_offsets_) sum_OI_.zero_();
  if (!trains_scales_) return;
  const bool is_shared = scales_.value.sizes() != unit_OG_.sizes();
  scales_.gradient.copy_(is_shared ? distill::row_sums(by_scale_OG.view({1, -1})).view({1, 1}) : by_scale_OG);
}

std::vector<Parameter*> GridView::parameters() {
  std::vector<Parameter*> parameters;
  if (trains_offsets_) parameters.push_back(&offsets_);
  if (trains_scales_) parameters.push_back(&scales_);
  return parameters;
}

void GridView::check_zeros() const {
  if (!grid_.kept_OI.defined()) return;
  const at::Tensor is_zero_OI =
      distill::codes_of(grid_, offsets_.value).to(at::kFloat).eq(grid_.zeros_OG.index_select(1, grid_.group_I));
  if (is_zero_OI.logical_or_(grid_.kept_OI).logical_not().any().item<bool>()) {
    throw std::logic_error(offsets_.name + ": a step gave a pruned weight a value");
  }
}

runtime::QuantizedWeight GridView::weight() const {
  runtime::QuantizedWeight weight = start_;
  const at::Tensor codes_OI = distill::codes_of(grid_, offsets_.value).to(at::kCPU).contiguous();
  const at::Tensor scales_OG = stored_scales().to(at::kCPU).contiguous();
  weight.codes_OI.assign(codes_OI.const_data_ptr<uint8_t>(), codes_OI.const_data_ptr<uint8_t>() + codes_OI.numel());
  weight.scales_OG.assign(scales_OG.const_data_ptr<float>(), scales_OG.const_data_ptr<float>() + scales_OG.numel());
  return weight;
}

}  // namespace pare::compress
