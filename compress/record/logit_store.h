// What a teacher says of every token of a text, recorded once (pare record) for training a student:
//
//   OUT.h5              the master: whose logits they are, the list of shards, and all arrays joined (virtual datasets)
//   OUT.h5.shards/      NNNNN.h5, each with the arrays of consecutive sequences
//
// Both are HDF5 behind a line with the hash of all that follows (compress/hdf5/hashed_file.h); the pair can be moved,
// but not renamed. docs/formats.md ("Teacher logits") has every attribute and array.
//
// Row r of a sequence is about what follows its token r: the K most probable tokens in descending order, and for each
// temperature the logarithm of the mass of all others. Probabilities are stored as logarithms in float16 (IEEE
// binary16): of the 16-bit formats it alone has 11 significant bits where they matter. Between -1 and 0 its steps are
// at most 2^-11, at -30 nats 2^-6, a factor of 1.016 in a probability of 1e-13; it keeps 6e-8, and numpy knows it.
// bfloat16 would be off by 2^-9 and 2^-4 (rounded), for a range that no logarithm needs. Rounding keeps the order of a
// row. Ids are uint16 for vocabularies of up to 65,536 tokens, else uint32. Filters are not used: sorted values and ids
// are nearly incompressible.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "distill/teacher_logits.h"

namespace pare {

// Whose logits they are: the master's attributes.
struct LogitOrigin {
  std::string model;                 // model_hash of the teacher
  std::string tokenizer;             // tokenizer_hash of the teacher's
  std::string data;                  // SHA-256 of the windows, or of the prompts
  std::string text;                  // name of the file they came from
  std::string source;                // how sequences were made of it: a JSON object
  int64_t num_vocabulary = 0;        // V: of the teacher's logits, padding included
  int64_t num_kept = 0;              // K
  std::vector<double> temperatures;  // N
  std::string pare_version, libtorch_version, instruction_set;

  // All of it as a JSON object, in this order.
  std::string to_json() const;
  // SHA-256 of that: what the shards of one store have in common.
  std::string hash() const;
};

// Tokens, and which of them the loss is about.
struct RecordedSequence {
  std::vector<int32_t> ids;
  // Of token r: 1 where the prediction of token r + 1 counts. 0 for the last token and where token r + 1 belongs to a
  // prompt.
  std::vector<uint8_t> label_mask;
};

// Bytes of one token in the arrays.
int64_t bytes_per_token(int64_t num_vocabulary, int64_t num_kept, int64_t num_temperatures);

struct LogitShard {
  int64_t num_sequences = 0;
  int64_t num_tokens = 0;
  std::string sha256;
};

// "00042.h5".
std::string shard_name(int64_t shard);

// One shard, which appears under its name when it is complete, or not at all; PATH.partial until then.
class LogitShardWriter {
 public:
  // Throws std::invalid_argument (sequences or an origin that could not be read again) and std::runtime_error (path,
  // reason).
  LogitShardWriter(std::filesystem::path path, const LogitOrigin& origin, int64_t shard, int64_t first_sequence,
                   const std::vector<RecordedSequence>& sequences);
  LogitShardWriter(LogitShardWriter&&) = delete;
  ~LogitShardWriter();  // removes what is not published

  // The next rows, [T, K] and [T, N] of `rows`: temperatures as the origin has them. label_log_probs_T: of the token
  // that follows, 0 for the last of a sequence. Throws as the constructor does.
  void append(const TruncatedLogits& rows, std::span<const float> label_log_probs_T);

  // Throws std::logic_error unless all rows were appended, std::runtime_error (path, reason).
  LogitShard publish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Opens a shard and checks all but its rows: its hash, whose it is, its place, its shapes. Throws std::runtime_error.
LogitShard check_shard(const std::filesystem::path& path, const LogitOrigin& origin, int64_t shard,
                       int64_t first_sequence);

// The master of complete shards, which lie in the folder of that name beside it. Returns its hash. Throws
// std::runtime_error (path, reason).
std::string write_master(const std::filesystem::path& path, const LogitOrigin& origin, const std::string& shards_folder,
                         const std::vector<LogitShard>& shards);

// Reads a store. Nothing in the files is believed: they are read by compress/hdf5/hdf5_reader.h. Not for several
// threads at a time.
class LogitStore {
 public:
  // Reads all files once and checks their hashes, and that shards are of this master. Throws std::runtime_error: the
  // path, and whether a file is missing, is no file of teacher logits, of another version, truncated or damaged, of
  // another store, or which object is none that LogitShardWriter and write_master write.
  static LogitStore open(const std::filesystem::path& path);
  LogitStore(LogitStore&&) noexcept;
  LogitStore& operator=(LogitStore&&) noexcept;
  ~LogitStore();

  const std::filesystem::path& path() const;
  const LogitOrigin& origin() const;
  const std::string& hash() const;  // of the master, and with it of all
  int64_t num_sequences() const;
  int64_t num_tokens() const;  // of all sequences
  int64_t length(int64_t sequence) const;

  // Throw std::invalid_argument for a sequence or tokens that it has not, std::runtime_error for values that no
  // teacher can have: ids outside 0 .. V - 1 or twice in a row, logarithms above 0, not in order or NaN.
  RecordedSequence sequence(int64_t sequence) const;
  std::vector<float> label_log_probs(int64_t sequence) const;
  // Of tokens [first, first + count): ids int32, logarithms float32, ready for TeacherLogits.
  TruncatedLogits read(int64_t sequence, int64_t first, int64_t count) const;

 private:
  struct State;
  explicit LogitStore(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

}  // namespace pare
