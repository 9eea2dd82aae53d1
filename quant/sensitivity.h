// How much of the model's loss an error in one group of layers costs: what turns the trace errors of different layers
// into one currency for the bit budget. Measured by leaving one group out of the original: the model is evaluated with
// this group alone quantized (weights, or activations, apart).
#pragma once

#include <string>
#include <vector>

namespace pare {

// One group's evaluation. `output_error` is what the budget's predictions are made of: the summed trace error for
// weights, the sampled rows' squared output error for activations; `increase` (nats per token) and `standard_error` are
// of the paired difference to the original on the same windows.
struct SensitivityMeasurement {
  std::string name;  // used in messages
  double output_error = 0.0;
  double increase = 0.0;
  double standard_error = 0.0;
};

struct Sensitivity {
  double loss_per_error = 0.0;  // multiplies the group's output errors; >= 0
  double increase = 0.0;        // what it stands for at the measured error: the measured one, or the floor
  bool is_floor = false;        // the measured increase was within one standard error of 0 or below it
  bool is_pooled = false;       // output_error was 0: the slope of all other groups together
};

// loss_per_error = max(increase, standard_error) / output_error: the increase is taken as linear in the output error,
// and what noise hides is charged with one standard error, so that no group looks free (or useful) by chance. A group
// whose measured scheme left no output error at all (weights that lie on the grid) says nothing about coarser ones and
// gets sum of increases / sum of output errors over all others.
// Throws std::invalid_argument: no measurement, values that are not finite, negative errors, no output error anywhere.
std::vector<Sensitivity> loss_sensitivities(const std::vector<SensitivityMeasurement>& measurements);

}  // namespace pare
