// Carries an exception out of an OpenMP region: one that leaves the region's body ends the process without a word.
//
//   FirstException error;
//   #pragma omp parallel for
//   for (...) error.capture([&] { work(i); });
//   error.rethrow();
//
// Every thread of a team must meet every worksharing loop: what a thread prepares before one is captured too, and the
// loop's body asks first whether anything failed.
#pragma once

#include <atomic>
#include <exception>

namespace pare {

class FirstException {
 public:
  // Runs work(); from any thread. Of exceptions thrown the first is kept, others are dropped.
  template <typename Work>
  void capture(const Work& work) noexcept {
    try {
      work();
    } catch (...) {
      if (!failed_.exchange(true)) error_ = std::current_exception();
    }
  }

  // Whether something was thrown, here or on another thread: what is left to do need not be done.
  bool failed() const { return failed_.load(std::memory_order_relaxed); }

  // After the region: throws what was kept, if anything was.
  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  std::atomic<bool> failed_{false};
  std::exception_ptr error_;  // written by one thread, read when the team has joined
};

}  // namespace pare
