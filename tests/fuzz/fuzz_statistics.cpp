#include <malloc.h>

#include "compress/walk/statistics_file.h"
#include "tests/fuzz/fuzz_folder.h"
#include "tests/fuzz/fuzz_hdf5.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/hdf5_blocks.h"

// Reads a file of statistics, as calibrate writes it and a recipe reads it, of a dense block or of a mixture of two
// experts.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::string file(reinterpret_cast<const char*>(data), size);
  pare::sign(file);
  const auto path = pare::write_fuzz_file("statistics.h5", file);
  pare::attempt([&] {
    const pare::compress::StatisticsFile statistics = pare::compress::StatisticsFile::open(path);
    for (const int64_t num_experts : {1, 2}) {
      const pare::runtime::BlockDescription block = pare::fuzz_block(num_experts);
      for (const pare::runtime::Stage stage : pare::runtime::block_stages(block)) {
        pare::attempt([&] { statistics.read(block, stage, pare::compress::StatisticsNeed::hessian); });
      }
    }
  });
  return 0;
}
