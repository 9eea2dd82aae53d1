#include "runtime/commands/standard_output.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <string_view>
#include <system_error>

namespace pare::runtime {
namespace {

constexpr size_t kBufferBytes = size_t{64} << 10;

std::string reason(int error) {
  std::string text = std::generic_category().message(error);
  if (error == ENOSPC || error == EDQUOT) text += ": free some space or write to another place, then run again";
  return text;
}

}  // namespace

OutputFailed::OutputFailed(int error)
    : std::runtime_error("cannot write standard output: " + reason(error)), is_broken_pipe_(error == EPIPE) {}

UnbufferedStream::int_type UnbufferedStream::overflow(int_type character) {
  if (traits_type::eq_int_type(character, traits_type::eof())) return traits_type::not_eof(character);
  const char byte = traits_type::to_char_type(character);
  xsputn(&byte, 1);
  return character;
}

DescriptorBuffer::DescriptorBuffer(int descriptor) : descriptor_(descriptor) {}

bool DescriptorBuffer::is_terminal() const {
  return ::isatty(descriptor_) == 1;
}

void DescriptorBuffer::write_buffered() {
  if (error_ != 0) throw OutputFailed(error_);
  for (std::string_view left = buffered_; !left.empty();) {
    const ssize_t written = ::write(descriptor_, left.data(), left.size());
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) {
      error_ = errno;
      throw OutputFailed(error_);
    }
    left.remove_prefix(static_cast<size_t>(written));
  }
  buffered_.clear();
}

std::streamsize DescriptorBuffer::xsputn(const char* text, std::streamsize size) {
  buffered_.append(text, static_cast<size_t>(size));
  if (buffered_.size() >= kBufferBytes || error_ != 0) write_buffered();
  return size;
}

int DescriptorBuffer::sync() {
  write_buffered();
  return 0;
}

void DescriptorBuffer::finish() {
  write_buffered();
  const int copy = ::dup(descriptor_);
  if (copy >= 0 && ::close(copy) != 0 && errno != EINTR) {
    error_ = errno;
    throw OutputFailed(error_);
  }
}

std::streamsize VisibleBuffer::xsputn(const char* text, std::streamsize size) {
  const std::string shown = text_.add({text, static_cast<size_t>(size)});
  target_.sputn(shown.data(), static_cast<std::streamsize>(shown.size()));
  return size;
}

int VisibleBuffer::sync() {
  return target_.pubsync();
}

void hold_standard_descriptors() {
  for (const int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
    if (::fcntl(descriptor, F_GETFD) >= 0 || errno != EBADF) continue;
    // The lowest free number is this one. Reading the first stream and writing the others goes on failing.
    ::open("/dev/null", descriptor == STDIN_FILENO ? O_WRONLY : O_RDONLY);
  }
}

bool keep_running_without_readers() {
  struct sigaction before = {};
  ::sigaction(SIGPIPE, nullptr, &before);
  if (before.sa_handler == SIG_IGN) return false;
  std::signal(SIGPIPE, SIG_IGN);
  return true;
}

void end_without_readers() {
  std::signal(SIGPIPE, SIG_DFL);
  ::raise(SIGPIPE);
  ::_exit(128 + SIGPIPE);
}

}  // namespace pare::runtime
