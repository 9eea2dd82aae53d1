// Standard output that never loses output silently: a failed write throws where it is written, or at the latest in
// finish().
#pragma once

#include <memory>
#include <ostream>
#include <stdexcept>
#include <streambuf>
#include <string>

#include "runtime/system/visible_text.h"

namespace pare::runtime {

// The error "cannot write standard output: REASON".
class OutputFailed : public std::runtime_error {
 public:
  explicit OutputFailed(int error);  // errno
  // True if nobody reads the pipe any more.
  bool is_broken_pipe() const { return is_broken_pipe_; }

 private:
  bool is_broken_pipe_;
};

// A stream buffer without memory of its own: all output arrives in xsputn.
class UnbufferedStream : public std::streambuf {
 protected:
  int_type overflow(int_type character) final;
};

// Writes to a file descriptor, buffered. After a failure every further write fails in the same way. Throws
// OutputFailed.
class DescriptorBuffer : public UnbufferedStream {
 public:
  explicit DescriptorBuffer(int descriptor);
  bool is_terminal() const;
  // Writes what is buffered, and asks for errors that some file systems report only when a file is closed.
  void finish();

 protected:
  std::streamsize xsputn(const char* text, std::streamsize size) override;
  int sync() override;

 private:
  void write_buffered();
  int descriptor_;
  int error_ = 0;
  std::string buffered_;
};

// Passes text on with its control characters shown (visible_text.h).
class VisibleBuffer : public UnbufferedStream {
 public:
  explicit VisibleBuffer(std::streambuf& target) : target_(target) {}

 protected:
  std::streamsize xsputn(const char* text, std::streamsize size) override;
  int sync() override;

 private:
  std::streambuf& target_;
  VisibleText text_;
};

// Accepts everything and keeps nothing.
class SilentBuffer : public UnbufferedStream {
 protected:
  std::streamsize xsputn(const char*, std::streamsize size) override { return size; }
};

// If the process was started with standard streams closed, no file that it opens gets their numbers, and so none gets
// their text.
void hold_standard_descriptors();

// From here on a write to a pipe that nobody reads is an error (EPIPE) and no longer ends the process. So the process
// can first remove what it leaves behind. Returns false if it was so before.
bool keep_running_without_readers();
// Ends the process by SIGPIPE, as such a write does otherwise.
[[noreturn]] void end_without_readers();

}  // namespace pare::runtime
