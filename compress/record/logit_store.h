// Reads the recorded logits of a teacher (logit_format.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "compress/record/logit_format.h"
#include "distill/teacher_logits.h"

namespace pare::compress {

// Opens a shard and checks everything but its rows: its hash, its store, its place and its shapes. Throws
// std::runtime_error.
LogitShard check_shard(const std::filesystem::path& path, const LogitOrigin& origin, int64_t shard,
                       int64_t first_sequence);

// Reads a store. Nothing in the files is trusted: compress/hdf5/hdf5_reader.h reads them. It must not be used by
// several threads at a time.
class LogitStore {
 public:
  // Reads all files once and checks their hashes, and that the shards belong to this master. Throws std::runtime_error
  // with the path. The message says whether a file is missing, holds no teacher logits, is of another version, is
  // truncated or damaged, or belongs to another store. Or it names the object that LogitShardWriter and write_master do
  // not write.
  static LogitStore open(const std::filesystem::path& path);
  // Does the same where the master does not have its final name yet, with the given folder of shards.
  static LogitStore open_unpublished(const std::filesystem::path& master, const std::filesystem::path& shards);
  LogitStore(LogitStore&&) noexcept;
  LogitStore& operator=(LogitStore&&) noexcept;
  ~LogitStore();

  const std::filesystem::path& path() const;
  const LogitOrigin& origin() const;
  const std::string& hash() const;  // the master's hash, and so that of the whole store
  int64_t num_shards() const;
  int64_t num_sequences() const;
  int64_t num_tokens() const;  // in all sequences
  int64_t length(int64_t sequence) const;

  // Throws std::runtime_error when one of the files has been changed or replaced since it was opened.
  void check_unchanged() const;

  // These throw std::invalid_argument for a sequence or tokens that the store does not have. They throw
  // std::runtime_error for values that no teacher can have: ids outside 0 .. V - 1 or twice in a row, and logarithms
  // that are above 0, not in order or NaN.
  RecordedSequence sequence(int64_t sequence) const;
  std::vector<float> label_log_probs(int64_t sequence) const;
  // Reads tokens [first, first + count): ids as int32 and logarithms as float32, ready for TeacherLogits.
  distill::TruncatedLogits read(int64_t sequence, int64_t first, int64_t count) const;

 private:
  struct State;
  explicit LogitStore(std::unique_ptr<State> state);
  static LogitStore open_with(const std::filesystem::path& path, const std::filesystem::path& shards);
  std::unique_ptr<State> state_;
};

}  // namespace pare::compress
