// Reads what a teacher says of every token of a text (logit_format.h).
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "compress/record/logit_format.h"
#include "distill/teacher_logits.h"

namespace pare {

// Opens a shard and checks all but its rows: its hash, whose it is, its place, its shapes. Throws std::runtime_error.
LogitShard check_shard(const std::filesystem::path& path, const LogitOrigin& origin, int64_t shard,
                       int64_t first_sequence);

// Reads a store. Nothing in the files is believed: they are read by compress/hdf5/hdf5_reader.h. Not for several
// threads at a time.
class LogitStore {
 public:
  // Reads all files once and checks their hashes, and that shards are of this master. Throws std::runtime_error: the
  // path, and whether a file is missing, is no file of teacher logits, of another version, truncated or damaged, of
  // another store, or which object is none that LogitShardWriter and write_master write.
  static LogitStore open(const std::filesystem::path& path);
  // The same where the master has not its name yet, and the shards' folder is that one.
  static LogitStore open_unpublished(const std::filesystem::path& master, const std::filesystem::path& shards);
  LogitStore(LogitStore&&) noexcept;
  LogitStore& operator=(LogitStore&&) noexcept;
  ~LogitStore();

  const std::filesystem::path& path() const;
  const LogitOrigin& origin() const;
  const std::string& hash() const;  // of the master, and with it of all
  int64_t num_shards() const;
  int64_t num_sequences() const;
  int64_t num_tokens() const;  // of all sequences
  int64_t length(int64_t sequence) const;

  // Throws std::runtime_error when one of the files has been changed or replaced since it was opened.
  void check_unchanged() const;

  // Throw std::invalid_argument for a sequence or tokens that it has not, std::runtime_error for values that no
  // teacher can have: ids outside 0 .. V - 1 or twice in a row, logarithms above 0, not in order or NaN.
  RecordedSequence sequence(int64_t sequence) const;
  std::vector<float> label_log_probs(int64_t sequence) const;
  // Of tokens [first, first + count): ids int32, logarithms float32, ready for TeacherLogits.
  TruncatedLogits read(int64_t sequence, int64_t first, int64_t count) const;

 private:
  struct State;
  explicit LogitStore(std::unique_ptr<State> state);
  static LogitStore open_with(const std::filesystem::path& path, const std::filesystem::path& shards);
  std::unique_ptr<State> state_;
};

}  // namespace pare
