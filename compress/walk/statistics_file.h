// The statistics of a whole uncompressed model in one HDF5 file: what `pare calibrate` writes and a recipe may start
// from instead of a text.
//
//   bytes 0 .. 511        the user block, one line: "pare statistics 1 sha256 HASH", HASH of all bytes after it. It is
//                         checked before anything else is read, and names the file's content elsewhere.
//   /                     attributes: model, data, text, windows, tokens, seed, pare, libtorch, instruction_set
//   /BLOCK/STAGE          attributes: layers (who reads this input), num_tokens
//     hessian             [I (I + 1) / 2] float32: the upper triangle, row by row, as numpy.triu_indices counts it
//     hessian_diagonal, min, max, mean_abs    [I] float32
//     sample              [R, I] float32
//
// A hash protects from accidents, not from people, so nothing in the file is believed: it is read by hdf5_reader.h, and
// every number is checked against the model, the origin and the others.
//
// Written twice, a file has the same bytes: it holds no times. Floats are stored as they are: HDF5's deflate with
// shuffle would save 13 % and write 46 MB a second.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>

#include "compress/walk/statistics.h"
#include "runtime/model/model_description.h"
#include "runtime/model/stage.h"

namespace pare::compress {

// Where the statistics come from: the file's own attributes.
struct StatisticsOrigin {
  std::string model;  // model_hash of the checkpoint
  std::string data;   // windows_hash of the tokens
  std::string text;   // name of the file they were cut from
  int64_t num_windows = 0;
  int64_t num_tokens = 0;  // of a window
  uint64_t seed = 0;
  std::string pare_version, libtorch_version, instruction_set;
};

// Appears under its name when it is complete, or not at all; until then it is made in PATH.partial, which it holds
// (runtime/system/partial_output.h).
class StatisticsWriter {
 public:
  // Throws std::runtime_error (path, reason) and what PartialOutput throws, std::invalid_argument (an origin that could
  // not be read again).
  StatisticsWriter(const std::filesystem::path& path, const StatisticsOrigin& origin);
  StatisticsWriter(StatisticsWriter&&) = delete;
  ~StatisticsWriter();  // removes what is not published

  // Of one stage, H included; each once. Throws std::runtime_error (path, reason), std::invalid_argument without H or
  // for numbers that no input can have.
  void write(const runtime::BlockDescription& block, runtime::Stage stage, const LayerStatistics& statistics);

  // Hashes, syncs and renames the file. Returns the hash. Throws std::runtime_error (path, reason): also where a file
  // has appeared under that name meanwhile; it stays as it is, and so does the complete one, PATH.partial/artifact.
  std::string publish();

  // PATH.partial, for what else is to be gone with it.
  const std::filesystem::path& folder() const;

  static int64_t size_bytes(const runtime::ModelDescription& model, int64_t num_sample_rows);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

class StatisticsFile {
 public:
  // Reads the whole file once and checks its hash. Throws std::runtime_error: the path, and whether it is no file of
  // statistics, of another version, truncated or damaged, or which object is none that StatisticsWriter writes.
  static StatisticsFile open(const std::filesystem::path& path);
  StatisticsFile(StatisticsFile&&) noexcept;
  StatisticsFile& operator=(StatisticsFile&&) noexcept;
  ~StatisticsFile();

  const std::filesystem::path& path() const;
  const StatisticsOrigin& origin() const;
  const std::string& hash() const;  // what publish returned

  // One stage's record, without H unless `need` is hessian. Throws std::runtime_error: a stage that the file lacks, or
  // of another width or token count than the model and the other stages, or of numbers that no input can have: not
  // finite, min above max, a mean above the root of the mean square (path, stage, expected, found).
  LayerStatistics read(const runtime::BlockDescription& block, runtime::Stage stage, StatisticsNeed need) const;

 private:
  struct State;
  explicit StatisticsFile(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace pare::compress
