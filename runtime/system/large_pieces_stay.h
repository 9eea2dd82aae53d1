// Keeps the memory of large and short-lived pieces in the process.
#pragma once

namespace pare::runtime {

// Some programs allocate large pieces that are alike from step to step. Clearing and mapping them again each time takes
// a third of the kernel's time in a training. While this object lives, the heap gives nothing back by itself. The
// memory held stays at its highest point, which predictions count anyway. It acts on the whole process, and only one
// may live at a time.
class LargePiecesStay {
 public:
  LargePiecesStay();
  ~LargePiecesStay();
  LargePiecesStay(const LargePiecesStay&) = delete;
  LargePiecesStay& operator=(const LargePiecesStay&) = delete;
};

// Gives back the unused pages of the heap, whoever keeps them. Call it when much is held and more will be: holes at
// that point are what the process takes beyond its need.
void give_back_holes();

}  // namespace pare::runtime
