#include "quant/sensitivity.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

namespace pare::quant {

std::vector<Sensitivity> loss_sensitivities(const std::vector<SensitivityMeasurement>& measurements) {
  std::vector<Sensitivity> sensitivities;
  double sum_increases = 0.0, sum_errors = 0.0;
  for (const SensitivityMeasurement& measured : measurements) {
    if (!std::isfinite(measured.increase) || !std::isfinite(measured.output_error) || measured.output_error < 0.0 ||
        !std::isfinite(measured.standard_error) || measured.standard_error < 0.0) {
      throw std::invalid_argument(
          "sensitivity: group '" + measured.name + "' has output error " + std::to_string(measured.output_error) +
          ", increase " + std::to_string(measured.increase) + " and standard error " +
          std::to_string(measured.standard_error) + "; expected finite values, and errors that are not negative");
    }
    Sensitivity sensitivity;
    if (measured.output_error > 0.0) {
      sensitivity.is_floor = measured.increase <= measured.standard_error;
      sensitivity.increase = std::max(measured.increase, measured.standard_error);
      sensitivity.loss_per_error = sensitivity.increase / measured.output_error;
      sum_increases += sensitivity.increase;
      sum_errors += measured.output_error;
    } else {
      sensitivity.is_pooled = true;
    }
    sensitivities.push_back(sensitivity);
  }
  if (sum_errors == 0.0) {
    throw std::invalid_argument("sensitivity: no group has an output error; measure with fewer bits");
  }
  for (Sensitivity& sensitivity : sensitivities) {
    if (sensitivity.is_pooled) sensitivity.loss_per_error = sum_increases / sum_errors;
  }
  return sensitivities;
}

}  // namespace pare::quant
