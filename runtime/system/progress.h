// Shows a person what a program does while it works. On a terminal it draws one bar per stage with the time left and
// the memory held; when piped, plain lines; with --quiet nothing. This goes to one stream, standard error in the
// programs. Results go to another, which --quiet does not concern.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <ostream>
#include <string>
#include <string_view>
#include <thread>

namespace pare::runtime {

enum class ProgressStyle { bar, lines, silent };

// Returns bar if standard error is a terminal, otherwise lines; silent if quiet.
ProgressStyle progress_style(bool quiet);

// Calls may come from any thread. Destruction removes an unfinished bar.
class Progress {
 public:
  // `results` is the stream of results. If null, results go to `out` with everything else, and none if silent.
  // `results_descriptor` is that of the terminal that shows them; negative for a file, or anything without a width.
  Progress(ProgressStyle style, std::ostream& out, std::ostream* results = nullptr, int results_descriptor = -1);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Starts a stage of `total` units ("windows", "blocks") and ends an unfinished one. An earlier process did the first
  // `num_earlier` units, which therefore do not count for the time left.
  void begin(std::string stage, int64_t total, std::string unit, int64_t num_earlier = 0);
  // `done` units of the stage are finished. `note` is further text for the moment ("loss 2.31"); an empty one keeps the
  // last. A bar is redrawn at most ten times a second, and once a second without a call, for the clock. In plain lines,
  // a line is printed every five seconds.
  void update(int64_t done, std::string note = {});
  // The same with a fraction of a unit under way, which moves the bar and its time left.
  void update_within(double done);
  // Ends the stage: replaces the bar by one line "stage: total units in 12.3 s".
  void finish();
  // Prints a line that stays (a table row, an event) above the bar (visible_line in visible_text.h). Not shown if
  // silent.
  void print(std::string_view line);
  // The columns that a line of print(), and one of result(), may have: the terminal's, or no limit elsewhere.
  size_t num_columns() const;
  size_t num_result_columns() const;
  // Prints a result: one line, or several lines in which names are visible already.
  void result(std::string_view line);
  void result_lines(std::string_view text);

 private:
  using Clock = std::chrono::steady_clock;
  void set_done(double done);
  void draw(Clock::time_point now);
  int64_t num_done() const { return static_cast<int64_t>(done_); }  // whole units
  void erase_bar();
  void end_stage();
  void print_shown(const std::string& text, std::ostream& stream);
  void tick();
  ProgressStyle style_;
  std::ostream& out_;
  std::ostream* const results_;
  const int results_descriptor_;
  std::mutex mutex_;
  std::string stage_, unit_, note_;
  int64_t total_ = 0;
  double done_ = 0.0;
  int64_t num_earlier_ = 0;
  bool in_stage_ = false;
  bool bar_drawn_ = false;
  Clock::time_point start_, last_drawn_;
  Clock::time_point start_of_own_;  // when the units after num_earlier_ began
  std::condition_variable stop_signal_;
  bool stop_ = false;
  std::thread ticker_;  // from the first bar on
};

// Returns the bar of one stage, as the callback that long functions take. It is also a place to stop on request: it
// throws Interrupted. The stage begins with the first call (0 units done), which such functions make before any work,
// and again with the first call after its end.
std::function<void(double, int64_t)> stage_of(Progress& progress, std::string name, std::string unit);

double seconds_since(std::chrono::steady_clock::time_point start);

// Returns "12.3 s", "4 min 05 s", "3 h 07 min".
std::string format_duration(double seconds);
// Returns "512 B", "1.50 KiB", "700 MiB", "1.25 GiB": three digits, binary units.
std::string format_bytes(int64_t num_bytes);
// Returns a number with num_decimals decimals, like printf("%.*f").
std::string format_number(double value, int num_decimals);

}  // namespace pare::runtime
