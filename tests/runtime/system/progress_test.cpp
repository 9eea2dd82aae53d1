#include "runtime/system/progress.h"

#include <gtest/gtest.h>

#include <chrono>
#include <mutex>
#include <sstream>
#include <thread>

namespace pare {
using namespace runtime;
namespace {

// A buffer that one thread writes and another reads.
class SharedBuffer : public std::streambuf {
 public:
  std::string text() const {
    const std::lock_guard lock(mutex_);
    return text_;
  }

 protected:
  int_type overflow(int_type letter) override {
    const std::lock_guard lock(mutex_);
    text_ += traits_type::to_char_type(letter);
    return letter;
  }

 private:
  mutable std::mutex mutex_;
  std::string text_;
};

std::string without_digits(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (c < '0' || c > '9') result += c;
  }
  return result;
}

TEST(Progress, LinesAreOnePerQuickStage) {
  std::ostringstream out;
  Progress progress(ProgressStyle::lines, out);
  progress.begin("load", 3, "blocks");
  for (int i = 0; i <= 3; ++i) progress.update(i);
  progress.print("layer 0  error 1e-3");
  progress.begin("evaluate", 2, "windows");  // ends the stage before it
  progress.update(2);
  progress.finish();
  progress.finish();
  // The times differ from run to run.
  EXPECT_EQ(without_digits(out.str()),
            without_digits("layer 0  error 1e-3\nload: 3 blocks in 0.0 s\nevaluate: 2 windows in 0.0 s\n"));
}

TEST(Progress, BarIsErasedBeforeAnythingElseIsPrinted) {
  std::ostringstream out;
  {
    Progress progress(ProgressStyle::bar, out);
    progress.begin("load", 4, "blocks");
    EXPECT_NE(out.str().find("[........................] 0/4 blocks"), std::string::npos) << out.str();
    EXPECT_EQ(out.str().find('\n'), std::string::npos);
    progress.print("an event");
    EXPECT_NE(out.str().find("\r\x1b[2Kan event\n\r\x1b[2Kload ["), std::string::npos) << out.str();
  }
  EXPECT_TRUE(out.str().ends_with("\r\x1b[2K"));  // an unfinished bar does not stay
}

// Work that reports nothing for minutes still looks alive.
TEST(Progress, TheClockOfABarTicks) {
  SharedBuffer buffer;
  std::ostream out(&buffer);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  {
    Progress progress(ProgressStyle::bar, out);
    progress.begin("evaluate", 4, "windows");
    const auto num_drawn = [&] {
      const std::string text = buffer.text();
      size_t num = 0;
      for (size_t at = text.find("evaluate ["); at != std::string::npos; at = text.find("evaluate [", at + 1)) ++num;
      return num;
    };
    while (num_drawn() < 3 && std::chrono::steady_clock::now() < deadline) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    EXPECT_GE(num_drawn(), 3u);
    progress.finish();
    const size_t num_finished = num_drawn();
    std::this_thread::sleep_for(std::chrono::milliseconds(1500));
    EXPECT_EQ(num_drawn(), num_finished);  // between stages nothing is shown
  }
  EXPECT_NE(buffer.text().find("0/4 windows, 2."), std::string::npos) << buffer.text();
}

TEST(Progress, ResultsGoToTheirOwnStreamWhateverTheStyle) {
  for (const ProgressStyle style : {ProgressStyle::bar, ProgressStyle::lines, ProgressStyle::silent}) {
    std::ostringstream out, results;
    Progress progress(style, out, &results);
    progress.begin("load", 4, "blocks");
    progress.print("on the way");
    progress.result("perplexity 3\n");
    progress.result_lines("two\nlines");
    EXPECT_EQ(results.str(), "perplexity 3\\x0a\ntwo\nlines\n");
    EXPECT_EQ(out.str().find("perplexity"), std::string::npos);
    EXPECT_EQ(out.str().empty(), style == ProgressStyle::silent);
    if (style == ProgressStyle::bar) {  // both may be one terminal: the bar makes room
      EXPECT_TRUE(out.str().find("\x1b[2K\r\x1b[2Kload [") != std::string::npos) << out.str();
    }
  }
  std::ostringstream all;
  Progress(ProgressStyle::lines, all).result("perplexity 3");
  EXPECT_EQ(all.str(), "perplexity 3\n");
}

// Work of an earlier process takes no time in this one. The remaining time is estimated from the work of this process.
TEST(Progress, TheTimeLeftIsThatOfUnitsDoneHere) {
  std::ostringstream out;
  Progress progress(ProgressStyle::bar, out);
  progress.begin("train", 1000, "steps", 990);
  EXPECT_NE(out.str().find("990/1000 steps"), std::string::npos) << out.str();
  EXPECT_EQ(out.str().find("left"), std::string::npos) << out.str();
  out.str("");
  std::this_thread::sleep_for(std::chrono::milliseconds(300));  // no unit is done in this time
  progress.update(990);
  EXPECT_EQ(out.str().find("left"), std::string::npos) << out.str();
  out.str("");
  std::this_thread::sleep_for(std::chrono::milliseconds(300));
  progress.update(991);
  // The only unit took 0.3 s, or more on a slow machine.
  const size_t left = out.str().find(" s left");
  ASSERT_NE(left, std::string::npos) << out.str();
  const size_t begin = out.str().rfind(' ', left - 1) + 1;
  EXPECT_GE(std::stod(out.str().substr(begin, left - begin)), 9 * 0.3 - 0.051) << out.str();
}

TEST(Progress, AShareOfTheUnitsUnderWayMovesTheBarAndItsTime) {
  std::ostringstream out;
  Progress progress(ProgressStyle::bar, out);
  progress.begin("evaluate", 4, "windows");
  std::this_thread::sleep_for(std::chrono::milliseconds(150));
  progress.update_within(1.5);
  EXPECT_NE(out.str().find("[#########...............] 1/4 windows, "), std::string::npos) << out.str();
  EXPECT_NE(out.str().find(" s left"), std::string::npos) << out.str();
  std::this_thread::sleep_for(std::chrono::milliseconds(150));
  progress.update(2, "loss 2.31");
  EXPECT_NE(out.str().find("[############............] 2/4 windows, loss 2.31, "), std::string::npos) << out.str();
  progress.finish();
  EXPECT_NE(out.str().find("evaluate: 2 windows in "), std::string::npos) << out.str();
}

TEST(Progress, SilentPrintsNothing) {
  std::ostringstream out;
  {
    Progress progress(ProgressStyle::silent, out);
    progress.begin("load", 4, "blocks");
    progress.update(4);
    progress.print("an event");
    progress.finish();
  }
  EXPECT_EQ(out.str(), "");
  EXPECT_EQ(progress_style(true), ProgressStyle::silent);
}

TEST(Format, Durations) {
  EXPECT_EQ(format_duration(0.0), "0.0 s");
  EXPECT_EQ(format_duration(12.34), "12.3 s");
  EXPECT_EQ(format_duration(59.96), "1 min 00 s");
  EXPECT_EQ(format_duration(245.4), "4 min 05 s");
  EXPECT_EQ(format_duration(3599.6), "1 h 00 min");
  EXPECT_EQ(format_duration(3 * 3600 + 7 * 60), "3 h 07 min");
}

TEST(Format, Bytes) {
  EXPECT_EQ(format_bytes(0), "0 B");
  EXPECT_EQ(format_bytes(1023), "1023 B");
  EXPECT_EQ(format_bytes(1536), "1.50 KiB");
  EXPECT_EQ(format_bytes(700LL << 20), "700 MiB");
  EXPECT_EQ(format_bytes((1LL << 30) - 1), "1.00 GiB");
  EXPECT_EQ(format_bytes(5LL << 28), "1.25 GiB");
  EXPECT_EQ(format_bytes(48LL << 30), "48.0 GiB");
}

TEST(Format, Numbers) {
  EXPECT_EQ(format_number(2.0 / 3.0, 3), "0.667");
  EXPECT_EQ(format_number(-1.5, 0), "-2");
  EXPECT_EQ(format_number(1e300, 0).size(), 301u);
}

}  // namespace
}  // namespace pare
