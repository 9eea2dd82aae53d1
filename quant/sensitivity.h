// The sensitivity of a group of layers is how much of the model's loss an error in the group costs. It turns the trace
// errors of different layers into one currency for the bit budget. It is measured on the original model with one group
// alone quantized, its weights and its activations apart.
#pragma once

#include <string>
#include <vector>

namespace pare::quant {

// One group's evaluation. `output_error` is the quantity from which the budget's predictions are computed: the summed
// trace error for weights, or the sampled rows' squared output error for activations. `increase` (nats per token) and
// `standard_error` are those of the paired difference to the original on the same windows.
struct SensitivityMeasurement {
  std::string name;  // used in messages
  double output_error = 0.0;
  double increase = 0.0;
  double standard_error = 0.0;
};

struct Sensitivity {
  double loss_per_error = 0.0;  // multiplies the group's output errors; >= 0
  double increase = 0.0;        // the increase at the measured error: the measured one, or the floor
  bool is_floor = false;        // the measured increase was within one standard error of 0 or below it
  bool is_pooled = false;       // output_error was 0, and the slope is that of all other groups together
};

// Returns loss_per_error = max(increase, standard_error) / output_error for each group. The increase is taken as linear
// in the output error. What noise hides is charged with one standard error, so that no group looks free (or useful) by
// chance. A group whose measured scheme left no output error at all (weights that lie on the grid) says nothing about
// coarser schemes. It gets the sum of increases / the sum of output errors over all others.
// Throws std::invalid_argument for values that are not finite, negative errors, and where no group has an output error,
// as with no measurement.
std::vector<Sensitivity> loss_sensitivities(const std::vector<SensitivityMeasurement>& measurements);

}  // namespace pare::quant
