#include "runtime/system/large_pieces_stay.h"

#include <malloc.h>

#include <limits>

namespace pare::runtime {
namespace {

// The largest piece that stays: still larger ones would be cut up for the others.
constexpr int kLargestPiece = 1 << 24;
constexpr int kDefaultThreshold = 128 << 10;  // glibc's own

}  // namespace

LargePiecesStay::LargePiecesStay() {
  mallopt(M_MMAP_THRESHOLD, kLargestPiece);
  mallopt(M_TRIM_THRESHOLD, std::numeric_limits<int>::max());
}

LargePiecesStay::~LargePiecesStay() {
  mallopt(M_MMAP_THRESHOLD, kDefaultThreshold);
  mallopt(M_TRIM_THRESHOLD, kDefaultThreshold);
  malloc_trim(0);
}

void give_back_holes() {
  malloc_trim(0);
}

}  // namespace pare::runtime
