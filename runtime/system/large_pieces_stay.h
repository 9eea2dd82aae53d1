// Memory of large and short-lived pieces, kept by the process.
#pragma once

namespace pare {

// Where the pieces of a step are large and alike from step to step, they need not be cleared and mapped anew each time
// (a third of the time that the kernel takes of a training). While it lives, the heap gives nothing back: what is held
// stays at its highest point, which predictions count anyway. One at a time, of the whole process.
class LargePiecesStay {
 public:
  LargePiecesStay();
  ~LargePiecesStay();
  LargePiecesStay(const LargePiecesStay&) = delete;
  LargePiecesStay& operator=(const LargePiecesStay&) = delete;
};

}  // namespace pare
