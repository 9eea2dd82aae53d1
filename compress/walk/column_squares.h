// The mean squares of every linear's inputs, from a file of statistics: how much an error in each column counts.
#pragma once

#include <filesystem>
#include <map>
#include <string>

#include "compress/walk/statistics_file.h"
#include "runtime/export/gguf_imatrix.h"
#include "runtime/model/checkpoint.h"

namespace pare::compress {

using SquaresByLinear = std::map<std::string, runtime::ColumnSquares>;

// Reads the diagonals of all stages of the model that the file was made of. Linears of one stage share theirs. Throws
// what StatisticsFile::read throws.
SquaresByLinear column_squares(const StatisticsFile& statistics, const runtime::Checkpoint& checkpoint);

// Writes llama.cpp's importance matrix of them. Throws also what write_imatrix throws (gguf_imatrix.h).
void write_imatrix_of(const StatisticsFile& statistics, const runtime::Checkpoint& checkpoint,
                      const std::filesystem::path& output);

}  // namespace pare::compress
