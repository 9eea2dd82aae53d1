// An embedding or head in few bits.
#pragma once

#include "compress/passes/compress_stage.h"

namespace pare::compress {

// Rounds the table to nearest by blocks of rows, so that it is never whole in float32.
CompressedLayer compress_table(const TablePlan& table, const runtime::LinearWeights& source);

}  // namespace pare::compress
