// What a person sees while a program works: on a terminal one bar per stage with the time left and the memory held;
// when piped, plain lines; with --quiet nothing. It goes to one stream, standard error in the programs; what the work
// came to goes to another, which quiet does not concern.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <ostream>
#include <string>
#include <string_view>
#include <thread>

namespace pare {

enum class ProgressStyle { bar, lines, silent };

// bar when standard error is a terminal, else lines; silent when quiet.
ProgressStyle progress_style(bool quiet);

// Calls may come from any thread. Destruction removes an unfinished bar.
class Progress {
 public:
  // `results`: where results go; null: to `out` with all else, none when silent. results_descriptor: of the terminal
  // that shows them; negative: a file, or whatever has no width.
  Progress(ProgressStyle style, std::ostream& out, std::ostream* results = nullptr, int results_descriptor = -1);
  ~Progress();
  Progress(const Progress&) = delete;
  Progress& operator=(const Progress&) = delete;

  // Starts a stage of `total` units ("windows", "blocks"), ending an unfinished one. The first `num_earlier` of them were
  // done by an earlier process and say nothing of the time that others take.
  void begin(std::string stage, int64_t total, std::string unit, int64_t num_earlier = 0);
  // `done` units of the stage are finished. note: what else is to be said by now ("loss 2.31"); an empty one leaves the
  // last. Drawn at most ten times a second on a terminal, and once a second without being called, for the clock; every
  // five seconds in lines.
  void update(int64_t done, std::string note = {});
  // The same with a share of the units under way, which moves the bar and its time left.
  void update_within(double done);
  // Ends the stage: the bar makes room for one line "stage: total units in 12.3 s".
  void finish();
  // A line of its own that stays (a table row, an event), above the bar (visible_line in visible_text.h). Not shown when
  // silent.
  void print(std::string_view line);
  // Columns that a line of print() has, and one of result(): the terminal's, or any number where it goes elsewhere.
  size_t num_columns() const;
  size_t num_result_columns() const;
  // What was asked for: a line, and several lines in which names are visible already.
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
  Clock::time_point start_of_own_;  // of the units behind num_earlier_
  std::condition_variable stop_signal_;
  bool stop_ = false;
  std::thread ticker_;  // from the first bar on
};

double seconds_since(std::chrono::steady_clock::time_point start);

// "12.3 s", "4 min 05 s", "3 h 07 min".
std::string format_duration(double seconds);
// "512 B", "1.50 KiB", "700 MiB", "1.25 GiB": three digits, binary units.
std::string format_bytes(int64_t num_bytes);
// Like printf("%.*f"): a number with so many decimals.
std::string format_number(double value, int num_decimals);

}  // namespace pare
