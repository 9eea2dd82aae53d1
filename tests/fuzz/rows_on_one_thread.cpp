// quant/row_chunks.h for the fuzzers, which have no OpenMP.
#include "quant/row_chunks.h"

#include <algorithm>

namespace pare::quant {

void for_row_chunks(int64_t num_rows, int64_t chunk_rows, const std::function<void(int64_t, int64_t)>& body, int) {
  for (int64_t first = 0; first < num_rows; first += chunk_rows) body(first, std::min(chunk_rows, num_rows - first));
}

}  // namespace pare::quant
