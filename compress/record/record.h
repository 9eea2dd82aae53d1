// `pare record`: what a teacher says of every token of a text, or of what it writes itself behind prompts, stored once
// (logit_format.h) for training students.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "runtime/system/isa.h"
#include "runtime/system/progress.h"

namespace pare {

inline constexpr int64_t kRecordTokens = 512;

struct RecordOptions {
  // One of the two. A text is cut into windows of documents (document_windows.h); a .npy has windows of its own.
  std::filesystem::path text, prompts;
  std::string end_of_document;         // the token that ends each document of a text; empty: the tokenizer's
  std::optional<int64_t> num_tokens;   // of a window; empty: kRecordTokens, or what a .npy has
  std::optional<int64_t> num_windows;  // drawn at random, in order; of a .npy the first; empty: all

  int64_t num_samples = 1;  // continuations of each prompt
  int64_t max_new_tokens = 256;
  double sampling_temperature = 1.0;  // 0: the most probable token always
  double top_p = 1.0;

  uint64_t seed = 0;
  int64_t num_kept = 50;                          // K
  std::vector<double> temperatures = {1.0, 2.0};  // of which the tail's mass is recorded
  int64_t shard_tokens = 65536;  // a shard holds as many sequences as fit into so many tokens, one at least
  int num_threads = 0;           // 0: one for each core
  std::optional<Isa> isa;        // empty: the widest there is
  bool dry_run = false;
  bool fresh = false;  // discards what an interrupted run has left
};

// Runs `model` on the CPU, exactly (as pare eval does), over the sequences and writes OUTPUT and OUTPUT.shards. Shards
// are complete, one by one, under OUTPUT.partial; a run that finds some of its own there goes on behind them and ends
// with the same bytes as one that was never stopped, whatever the number of threads. Memory: the packed model, a few
// thousand tokens' hidden states, logits of a few tokens, and keys and values of the texts that are drawn together
// (lanes_at_once, of the largest shard's). How many these are decides the last bits of their logits, and shard_tokens
// has a part in it.
// Returns the report (with dry_run: the prediction) as one JSON object. Throws std::invalid_argument (options,
// sequences beyond the model's context), std::runtime_error (OUTPUT exists; OUTPUT.partial is of another model, text or
// options: which; damaged files; a full disk) and Interrupted.
std::string record(const std::filesystem::path& model, const std::filesystem::path& output,
                   const RecordOptions& options, Progress& progress);

}  // namespace pare
