// Micro-batches of one step on several threads, each on one, add their gradients to the same sums: in the order of the
// micro-batches, whoever is ready first, so that a step's bits do not depend on which thread was faster.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <stdexcept>
#include <vector>

namespace pare::compress {

// Thrown where a micro-batch would wait for one that has failed, whose own exception is the cause.
class GivenUp : public std::runtime_error {
 public:
  GivenUp() : std::runtime_error("another micro-batch of the step was given up") {}
};

class GradientOrder {
 public:
  explicit GradientOrder(int64_t num_places) : next_(static_cast<size_t>(num_places), 0) {}

  // Waits until every micro-batch before this one has added at `place`, then calls add(). Every micro-batch must do so
  // once at each place, the places in one order, and micro-batches must begin in their order. Throws GivenUp where
  // one of them was given up.
  void add(int64_t micro_batch, int64_t place, const std::function<void()>& add);
  // A micro-batch has failed and will add nothing more: others stop waiting.
  void give_up();

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<int64_t> next_;  // of each place: the micro-batch that may add
  bool given_up_ = false;
};

// One micro-batch's part in it; without an order gradients are added at once.
struct GradientTurn {
  GradientOrder* order = nullptr;
  int64_t micro_batch = 0;
  void add(int64_t place, const std::function<void()>& add) const {
    if (order != nullptr) {
      order->add(micro_batch, place, add);
    } else {
      add();
    }
  }
};

}  // namespace pare::compress
