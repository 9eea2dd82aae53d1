// Writes the files of teacher logits (logit_format.h).
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "compress/record/logit_format.h"
#include "distill/teacher_logits.h"

namespace pare::compress {

// Writes one shard, which appears under its name when it is complete, or not at all. Until then it is PATH.partial.
class LogitShardWriter {
 public:
  // Throws std::invalid_argument for sequences or an origin that could not be read again, and std::runtime_error (path,
  // reason).
  LogitShardWriter(const std::filesystem::path& path, const LogitOrigin& origin, int64_t shard, int64_t first_sequence,
                   const std::vector<RecordedSequence>& sequences);
  LogitShardWriter(LogitShardWriter&&) = delete;
  ~LogitShardWriter();  // removes the file unless it is published

  // Appends the next rows, [T, K] and [T, N] of `rows`, with the origin's temperatures. label_log_probs_T are those of
  // the token that follows, 0 for the last token of a sequence. Throws as the constructor does.
  void append(const distill::TruncatedLogits& rows, std::span<const float> label_log_probs_T);

  // Throws std::logic_error unless all rows were appended, and std::runtime_error (path, reason).
  LogitShard publish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// Writes the master of complete shards, which lie in the folder of that name beside it. Returns its hash. Throws
// std::runtime_error (path, reason).
std::string write_master(const std::filesystem::path& path, const LogitOrigin& origin, const std::string& shards_folder,
                         const std::vector<LogitShard>& shards);

}  // namespace pare::compress
