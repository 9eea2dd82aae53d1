// An embedding or head in few bits.
#pragma once

#include "compress/passes/compress_stage.h"

namespace pare {

// Rounds the table to nearest by blocks of rows, so that it is never whole in float32.
CompressedLayer compress_table(const TablePlan& table, const LinearWeights& source);

}  // namespace pare
