// Standard output that does not lose anything without a word: what cannot be written is an exception where it is
// written, or at the latest in finish().
#pragma once

#include <memory>
#include <ostream>
#include <stdexcept>
#include <streambuf>
#include <string>

#include "runtime/system/visible_text.h"

namespace pare {

// "cannot write standard output: REASON".
class OutputFailed : public std::runtime_error {
 public:
  explicit OutputFailed(int error);  // errno
  // Nobody reads it any more.
  bool is_broken_pipe() const { return is_broken_pipe_; }

 private:
  bool is_broken_pipe_;
};

// A buffer of streams without a place of its own: all that is written arrives in xsputn.
class UnbufferedStream : public std::streambuf {
 protected:
  int_type overflow(int_type character) final;
};

// Writes to a file descriptor, buffered; after a failure every further write fails alike. Throws OutputFailed.
class DescriptorBuffer : public UnbufferedStream {
 public:
  explicit DescriptorBuffer(int descriptor);
  bool is_terminal() const;
  // Brings out what is buffered, and asks for errors that some file systems tell only when a file is closed.
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

// Takes anything and keeps nothing.
class SilentBuffer : public UnbufferedStream {
 protected:
  std::streamsize xsputn(const char*, std::streamsize size) override { return size; }
};

// Where the process was started with standard streams closed: no file that it opens gets their numbers, and so none of
// its text.
void hold_standard_descriptors();

// From here on a write to a pipe that nobody reads is an error (EPIPE) rather than the process's end, so that what
// the process leaves behind is removed first. False: it was so before.
bool keep_running_without_readers();
// What such a write does otherwise: ends the process by SIGPIPE.
[[noreturn]] void end_without_readers();

}  // namespace pare
