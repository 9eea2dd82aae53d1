// A training run as a picture: validation perplexity and loss against tokens, as plain SVG.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "compress/train/training_state.h"

namespace pare::compress {

// An SVG document of 720 x 480: validation perplexity on a logarithmic axis to the left; the trained loss, and what was
// measured of held-out windows beside their perplexity, on one to the right. A dashed line marks kept_step, whose
// values the result has. The same input gives the same bytes in every locale. Throws std::invalid_argument: no point,
// none at kept_step, a perplexity that is not positive and finite.
std::string training_picture(const std::vector<TrainingPoint>& curve, int64_t kept_step);

}  // namespace pare::compress
