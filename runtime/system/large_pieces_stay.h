// Memory of large and short-lived pieces, kept by the process.
#pragma once

namespace pare {

// Where the pieces of a step are large and alike from step to step, they need not be cleared and mapped anew each time
// (a third of the time that the kernel takes of a training). While it lives, the heap gives nothing back by itself: what
// is held stays at its highest point, which predictions count anyway. One at a time, of the whole process.
class LargePiecesStay {
 public:
  LargePiecesStay();
  ~LargePiecesStay();
  LargePiecesStay(const LargePiecesStay&) = delete;
  LargePiecesStay& operator=(const LargePiecesStay&) = delete;
};

// Gives back the pages of the heap that nothing lies in, whoever keeps them. To be called where much is held and more
// will be: holes at that point are what the process takes beyond what it needs.
void give_back_holes();

}  // namespace pare
