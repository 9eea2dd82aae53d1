// A training run as pictures: validation perplexity, and losses, against tokens.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "compress/train/training_point.h"
#include "quant/pictures/plot.h"

namespace pare::compress {

// Returns a plot of the validation perplexity on a logarithmic axis. Behind it is one of the trained loss and of what
// was measured of held-out windows beside their perplexity, if there is any. A dashed line marks kept_step, whose
// values the result has. The plots' ids begin with `id`, a word of ours. Throws std::invalid_argument: no point, none
// at kept_step, a perplexity that is not positive and finite.
std::vector<quant::Plot> training_plots(const std::vector<TrainingPoint>& curve, int64_t kept_step,
                                        const std::string& id);

}  // namespace pare::compress
