// An unfinished store, which survives a kill:
//
//   OUT.partial/record.json      what is recorded, and how it is cut into shards: a run goes on only with its own
//   OUT.partial/shards/NNNNN.h5  complete shards (under a temporary name: the one that is being written)
//   OUT.partial/artifact         the master, when all shards are there
//
// At the end the folder of shards becomes OUT.shards, and then the master becomes OUT. So if OUT exists, the whole
// store does. A run that was killed in between takes OUT.shards back if it holds the master's shards and nothing else,
// because then the run made it.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "compress/record/logit_format.h"
#include "runtime/system/partial_output.h"

namespace pare::compress {

class UnfinishedStore {
 public:
  // Throws std::runtime_error when OUTPUT or OUTPUT.shards exists. It is called before any work.
  static void check_output_is_free(const std::filesystem::path& output, runtime::PartialOutput::Leftovers leftovers);

  // Claims OUTPUT.partial and checks the complete shards in it. shard_sequences has the number of sequences of each
  // shard of the whole store. Throws std::runtime_error when OUTPUT exists, another run is at work, the folder belongs
  // to somebody else or to another recording (the message says what differs), or a shard is damaged.
  UnfinishedStore(const std::filesystem::path& output, const LogitOrigin& origin, std::vector<int64_t> shard_sequences,
                  bool fresh);

  // Returns the complete shards, which are the first ones of the store.
  const std::vector<LogitShard>& shards() const { return shards_; }
  std::filesystem::path next_shard_path() const;
  void add(LogitShard shard) { shards_.push_back(std::move(shard)); }

  // Writes the master when all shards are there, and gives both their names. Returns the master's hash.
  std::string publish();
  // Removes all that this store has made.
  void discard();

  const std::filesystem::path& folder() const { return partial_.folder(); }

 private:
  void claim(bool fresh);
  void take_back_shards();
  void remove_what_follows() const;
  std::filesystem::path run_file() const;
  std::filesystem::path shards_folder() const;
  std::filesystem::path output_;
  LogitOrigin origin_;
  std::vector<int64_t> shard_sequences_;
  std::vector<LogitShard> shards_;
  runtime::PartialOutput partial_;
};

}  // namespace pare::compress
