#include "runtime/system/progress.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <limits>
#include <system_error>

#include "runtime/system/interrupt.h"
#include "runtime/system/memory_usage.h"
#include "runtime/system/visible_text.h"

namespace pare::runtime {
namespace {

constexpr int64_t kBarWidth = 24;
constexpr std::chrono::milliseconds kBarPeriod{100};
constexpr std::chrono::seconds kTickPeriod{1};
constexpr std::chrono::seconds kLinePeriod{5};

int64_t terminal_width(int descriptor) {
  winsize size = {};
  return ioctl(descriptor, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

double seconds_between(std::chrono::steady_clock::time_point from, std::chrono::steady_clock::time_point to) {
  return std::chrono::duration<double>(to - from).count();
}

}  // namespace

ProgressStyle progress_style(bool quiet) {
  if (quiet) return ProgressStyle::silent;
  return isatty(STDERR_FILENO) == 1 ? ProgressStyle::bar : ProgressStyle::lines;
}

Progress::Progress(ProgressStyle style, std::ostream& out, std::ostream* results, int results_descriptor)
    : style_(style), out_(out), results_(results), results_descriptor_(results_descriptor) {}

Progress::~Progress() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    erase_bar();
  }
  stop_signal_.notify_all();
  if (ticker_.joinable()) ticker_.join();
}

void Progress::begin(std::string stage, int64_t total, std::string unit, int64_t num_earlier) {
  const std::lock_guard lock(mutex_);
  end_stage();
  stage_ = visible_line(stage);
  unit_ = std::move(unit);
  note_.clear();
  total_ = total;
  num_earlier_ = num_earlier;
  done_ = static_cast<double>(num_earlier);
  in_stage_ = true;
  start_ = start_of_own_ = last_drawn_ = Clock::now();
  if (style_ != ProgressStyle::bar) return;
  draw(start_);
  if (ticker_.joinable()) return;
  try {
    ticker_ = thread_without_signals([this] { tick(); });
  } catch (const std::system_error&) {
    // There is no room for a thread, so the clock moves only with the work.
  }
}

void Progress::update(int64_t done, std::string note) {
  const std::lock_guard lock(mutex_);
  if (!note.empty()) note_ = std::move(note);
  set_done(static_cast<double>(done));
}

void Progress::update_within(double done) {
  const std::lock_guard lock(mutex_);
  set_done(done);
}

void Progress::set_done(double done) {
  if (!in_stage_) return;
  done_ = done;
  const Clock::time_point now = Clock::now();
  if (done <= static_cast<double>(num_earlier_)) start_of_own_ = now;
  const bool due = style_ == ProgressStyle::bar ? now - last_drawn_ >= kBarPeriod : now - last_drawn_ >= kLinePeriod;
  if (due && style_ != ProgressStyle::silent) draw(now);
}

void Progress::tick() {
  std::unique_lock lock(mutex_);
  while (!stop_signal_.wait_for(lock, kTickPeriod, [this] { return stop_; })) {
    try {
      const Clock::time_point now = Clock::now();
      if (in_stage_ && now - last_drawn_ >= kTickPeriod) draw(now);
    } catch (const std::exception&) {
      return;  // no memory or no files are left: the working threads report that
    }
  }
}

size_t Progress::num_columns() const {
  return style_ == ProgressStyle::bar ? static_cast<size_t>(terminal_width(STDERR_FILENO))
                                      : std::numeric_limits<size_t>::max();
}

size_t Progress::num_result_columns() const {
  if (results_ == nullptr) return num_columns();
  const bool is_terminal = results_descriptor_ >= 0 && isatty(results_descriptor_) == 1;
  return is_terminal ? static_cast<size_t>(terminal_width(results_descriptor_)) : std::numeric_limits<size_t>::max();
}

void Progress::finish() {
  const std::lock_guard lock(mutex_);
  end_stage();
}

void Progress::print(std::string_view line) {
  if (style_ != ProgressStyle::silent) print_shown(visible_line(line), out_);
}

void Progress::result(std::string_view line) {
  result_lines(visible_line(line));
}

void Progress::result_lines(std::string_view text) {
  if (results_ == nullptr && style_ == ProgressStyle::silent) return;
  print_shown(visible(text), results_ == nullptr ? out_ : *results_);
}

void Progress::print_shown(const std::string& text, std::ostream& stream) {
  const std::lock_guard lock(mutex_);
  const bool redraw = bar_drawn_;
  erase_bar();
  stream << text << '\n' << std::flush;
  if (redraw) draw(Clock::now());
}

void Progress::draw(Clock::time_point now) {
  last_drawn_ = now;
  const double elapsed = seconds_between(start_, now);
  std::string line = stage_ + " ";
  if (style_ == ProgressStyle::bar) {
    const double share = total_ > 0 ? std::clamp(done_ / static_cast<double>(total_), 0.0, 1.0) : 0.0;
    const auto filled = static_cast<int64_t>(static_cast<double>(kBarWidth) * share);
    line += "[" + std::string(static_cast<size_t>(filled), '#') +
            std::string(static_cast<size_t>(kBarWidth - filled), '.') + "] ";
  }
  line += std::to_string(num_done()) + "/" + std::to_string(total_) + " " + unit_;
  if (!note_.empty()) line += ", " + note_;
  line += ", " + format_duration(elapsed);
  const double of_own = done_ - static_cast<double>(num_earlier_), left = static_cast<double>(total_) - done_;
  if (of_own > 0.0 && left > 0.0) {
    line += ", " + format_duration(seconds_between(start_of_own_, now) / of_own * left) + " left";
  }
  line += ", " + format_bytes(read_memory_usage().held_bytes);
  if (style_ == ProgressStyle::bar) {
    // A bar wider than the terminal would wrap, and a return to the line's start would no longer erase it.
    line.resize(std::min(line.size(), static_cast<size_t>(terminal_width(STDERR_FILENO) - 1)));
    out_ << "\r\x1b[2K" << line << std::flush;
    bar_drawn_ = true;
  } else {
    out_ << line << '\n' << std::flush;
  }
}

void Progress::erase_bar() {
  if (bar_drawn_) out_ << "\r\x1b[2K" << std::flush;
  bar_drawn_ = false;
}

void Progress::end_stage() {
  if (!in_stage_) return;
  in_stage_ = false;
  erase_bar();
  if (style_ == ProgressStyle::silent) return;
  out_ << stage_ << ": " << num_done() << " " << unit_ << " in "
       << format_duration(seconds_between(start_, Clock::now())) << '\n'
       << std::flush;
}

std::function<void(double, int64_t)> stage_of(Progress& progress, std::string name, std::string unit) {
  return
      [&progress, name = std::move(name), unit = std::move(unit), begun = false](double done, int64_t total) mutable {
        throw_if_interrupted();
        if (!begun) progress.begin(name, total, unit);
        begun = done < static_cast<double>(total);
        progress.update_within(done);
        if (!begun) progress.finish();
      };
}

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

std::string format_duration(double seconds) {
  if (seconds < 59.95) return format_number(seconds, 1) + " s";
  const auto whole = static_cast<int64_t>(std::llround(seconds));
  std::array<char, 64> text;
  if (whole < 3600) {
    std::snprintf(text.data(), text.size(), "%d min %02d s", static_cast<int>(whole / 60),
                  static_cast<int>(whole % 60));
  } else {
    const int64_t minutes = (whole + 30) / 60;
    std::snprintf(text.data(), text.size(), "%lld h %02d min", static_cast<long long>(minutes / 60),
                  static_cast<int>(minutes % 60));
  }
  return text.data();
}

std::string format_bytes(int64_t num_bytes) {
  if (num_bytes < 1024) return std::to_string(num_bytes) + " B";
  static constexpr std::array<const char*, 5> kUnits = {"KiB", "MiB", "GiB", "TiB", "PiB"};
  double value = static_cast<double>(num_bytes) / 1024.0;
  size_t unit = 0;
  while (value >= 1023.5 && unit + 1 < kUnits.size()) {
    value /= 1024.0;
    ++unit;
  }
  const int num_decimals = value < 9.995 ? 2 : value < 99.95 ? 1 : 0;
  return format_number(value, num_decimals) + " " + kUnits[unit];
}

std::string format_number(double value, int num_decimals) {
  std::array<char, 400> text;  // a double has at most 309 digits before the point
  std::snprintf(text.data(), text.size(), "%.*f", num_decimals, value);
  return text.data();
}

}  // namespace pare::runtime
