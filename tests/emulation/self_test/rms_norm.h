#pragma once

namespace pare {

// Normalizes rows. Device pointers to float32: x and y [num_rows, width], gain [width].
void launch_rms_norm(const float* x_RD, const float* gain_D, float* y_RD, int num_rows, int width, float epsilon);

}  // namespace pare
