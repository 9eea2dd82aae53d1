// A training run as a picture: validation perplexity and loss against tokens, as plain SVG.
#pragma once

#include <string>
#include <vector>

#include "compress/train/training_state.h"

namespace pare {

// An SVG document of 720 x 480; both curves on axes of their own, perplexity to the left on a logarithmic one. The same
// input gives the same bytes in every locale. Throws std::invalid_argument: no point, a perplexity that is not positive
// and finite.
std::string training_picture(const std::vector<TrainingPoint>& curve);

}  // namespace pare
