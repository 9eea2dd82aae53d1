#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "compress/predict/prediction.h"
#include "tests/expect_error.h"
#include "tests/temporary_folder.h"

namespace pare {
using namespace compress;
namespace {

namespace fs = std::filesystem;

// A quarter of it separates what is asked for from what is free, so that other programs may write meanwhile.
constexpr int64_t kHeld = int64_t{4} << 30;

TEST(DiskSpace, WhatAnUnfinishedRunHoldsIsPartOfTheNeed) {
  const TemporaryFolder folder;
  const fs::path output = folder.path() / "out";
  Prediction prediction;
  prediction.disk_bytes = static_cast<int64_t>(fs::space(folder.path()).available) + kHeld / 4;
  expect_error<std::runtime_error>([&] { check_disk_space(output, prediction); },
                                   {folder.path().string(), "free; this run needs", "choose another place"});
  fs::create_directories(output.string() + ".partial/parts");
  std::ofstream(output.string() + ".partial/parts/block") << "x";
  fs::resize_file(output.string() + ".partial/parts/block", kHeld);  // a hole
  EXPECT_NO_THROW(check_disk_space(output, prediction));
}

}  // namespace
}  // namespace pare
