// How a tensor of the forward pass follows from what an optimizer changes. The forward pass always sees what would be
// stored: values rounded to the file's type, codes on their grid, zeros in pruned places; gradients pass straight
// through the rounding. So what is measured in training is what the artifact gives.
#pragma once

#include <ATen/core/Tensor.h>

#include <memory>
#include <string>
#include <vector>

#include "distill/straight_through.h"
#include "runtime/format/linear_weights.h"

namespace pare::compress {

// Of what a parameter is, which decides its learning rate: a weight in floating point, a gain or a bias; the scales of
// a grid, whose steps are relative to their size; offsets on it, in steps of the grid.
enum class ParameterKind { weight, gain, bias, scale, offset };

// By a step, of each kind; gains and biases have that of weights.
struct LearningRates {
  double weight, scale, offset;
  double of(ParameterKind kind) const {
    return kind == ParameterKind::scale ? scale : kind == ParameterKind::offset ? offset : weight;
  }
};

struct Parameter {
  std::string name;  // unique: the tensor's, with ".offset" or ".scale" for a grid's
  ParameterKind kind = ParameterKind::weight;
  at::Tensor value;     // float32
  at::Tensor gradient;  // likewise; zero between steps
};

class ParameterView {
 public:
  virtual ~ParameterView() = default;
  // What the forward pass multiplies with, in the type `compute` (gains in float32, frozen tensors as they were given),
  // of its own memory or shared and never changed.
  virtual at::Tensor value(at::ScalarType compute) const = 0;
  // The same values in the type that takes the least memory, of those that stage_products multiplies in `compute`: what
  // a step holds of a linear's weight.
  virtual at::Tensor held(at::ScalarType compute) const { return value(compute); }
  // float32, what a file holds: value() but for unit offsets.
  virtual at::Tensor stored() const { return value(at::kFloat); }
  // Adds the gradient of a loss by value().
  virtual void add_gradient(const at::Tensor& gradient) = 0;
  // Behind the last of a step: the parameters' gradients are then what follows from the sum.
  virtual void finish_gradients() {}
  virtual std::vector<Parameter*> parameters() = 0;
  bool is_trained() { return !parameters().empty(); }
  // Whether places that were 0 at the start stay so.
  virtual bool keeps_zeros() const { return false; }
  // After a step: throws std::logic_error where a pruned weight has a value.
  virtual void check_zeros() const {}
};

// Never changes; in the type that the forward pass takes. stored: the values that a file holds, where the forward pass
// takes others in bfloat16: then `value` is what is multiplied in bfloat16, and `stored` what is multiplied in float32.
std::unique_ptr<ParameterView> frozen_view(at::Tensor value, at::Tensor stored = {});

// A float tensor, on whose device all is that follows from it, that is stored as `dtype` (F32, F16, BF16). kept: bool,
// of its shape; undefined: all. unit_offset: what is stored is the value less 1 (gemma's gains).
std::unique_ptr<ParameterView> float_view(std::string name, ParameterKind kind, const at::Tensor& value,
                                          runtime::DType dtype, at::Tensor kept = {}, bool unit_offset = false);

// What of a grid is trained, and what its container has no place for.
struct GridTraining {
  bool offsets = false, scales = false;
  bool one_scale = false;    // the file holds one for the whole tensor
  bool keeps_zeros = false;  // as they are where the weight promises a pattern
  // bool: all others have the code of their zero and keep it. Undefined: as keeps_zeros says.
  at::Tensor kept_OI = {};
};

// On `device`: codes and scales of integers in groups; scales are stored as weight.scale_dtype.
// Throws std::invalid_argument for FP8 codes, which have no grid of equal steps.
class GridView : public ParameterView {
 public:
  GridView(const std::string& name, const runtime::QuantizedWeight& weight, const GridTraining& training,
           at::Device device = at::kCPU);
  at::Tensor value(at::ScalarType compute) const override;
  void add_gradient(const at::Tensor& gradient) override;
  void finish_gradients() override;
  std::vector<Parameter*> parameters() override;
  bool keeps_zeros() const override { return grid_.kept_OI.defined(); }
  void check_zeros() const override;
  // As it is to be stored.
  runtime::QuantizedWeight weight() const;

 private:
  at::Tensor stored_scales() const;
  runtime::QuantizedWeight start_;  // without codes and scales
  distill::TrainedGrid grid_;
  bool trains_offsets_, trains_scales_;
  Parameter offsets_, scales_;  // of scales [O, G], or [1, 1]
  at::Tensor sum_OI_;           // of gradients by value(); the offsets' gradient where they are trained
  at::Tensor unit_OG_;          // what a scale parameter of 1 stands for: the scales that training starts from
};

// The type's values of x, as float32.
at::Tensor rounded_to(const at::Tensor& x, runtime::DType dtype);

}  // namespace pare::compress
