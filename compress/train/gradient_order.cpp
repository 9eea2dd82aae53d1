#include "compress/train/gradient_order.h"

namespace pare::compress {

void GradientOrder::add(int64_t micro_batch, int64_t place, const std::function<void()>& add) {
  int64_t& next = next_.at(static_cast<size_t>(place));
  {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return given_up_ || next == micro_batch; });
    if (given_up_) throw GivenUp();
  }
  add();  // the place is this micro-batch's until it counts on
  {
    const std::lock_guard lock(mutex_);
    ++next;
  }
  changed_.notify_all();
}

void GradientOrder::give_up() {
  {
    const std::lock_guard lock(mutex_);
    given_up_ = true;
  }
  changed_.notify_all();
}

}  // namespace pare::compress
