// Carries an exception out of an OpenMP region. An exception that leaves the region's body ends the process without a
// message.
//
//   FirstException error;
//   #pragma omp parallel for
//   for (...) error.capture([&] { work(i); });
//   error.rethrow();
//
// Every thread of a team must reach every worksharing loop. So the work that a thread does before one is captured too,
// and the loop's body asks first whether anything failed.
#pragma once

#include <atomic>
#include <exception>

namespace pare::runtime {

class FirstException {
 public:
  // Runs work(), from any thread. Keeps the first exception that is thrown and drops others.
  template <typename Work>
  void capture(const Work& work) noexcept {
    try {
      work();
    } catch (...) {
      if (!failed_.exchange(true)) error_ = std::current_exception();
    }
  }

  // True if something was thrown, on this or another thread. The remaining work need not be done then.
  bool failed() const { return failed_.load(std::memory_order_relaxed); }

  // Throws the kept exception, if there is one. Call it after the region.
  void rethrow() const {
    if (error_) std::rethrow_exception(error_);
  }

 private:
  std::atomic<bool> failed_{false};
  std::exception_ptr error_;  // written by one thread, read when the team has joined
};

}  // namespace pare::runtime
