// `pare record` stores a teacher's logits once for training students (logit_format.h). They are the logits at every
// token of a text, or of what the teacher writes itself after prompts.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "runtime/engine/chosen_sampling.h"
#include "runtime/system/isa.h"
#include "runtime/system/progress.h"

namespace pare::compress {

inline constexpr int64_t kRecordTokens = 512;

struct RecordOptions {
  // One of the two is given. A text is cut into windows of documents (document_windows.h). A .npy has windows of its
  // own.
  std::filesystem::path text, prompts;
  std::string end_of_document;         // the token that ends each document of a text; empty: the tokenizer's
  std::optional<int64_t> num_tokens;   // per window; empty: kRecordTokens, or what a .npy has
  std::optional<int64_t> num_windows;  // drawn at random, in order; from a .npy the first ones; empty: all

  int64_t num_samples = 1;  // continuations of each prompt
  int64_t max_new_tokens = 256;
  // How continuations are drawn, where generation_config.json does not say it (choose_sampling). Its top_k counts as
  // well.
  runtime::GivenSampling sampling;
  static constexpr runtime::SamplingOptions kSampling = {.temperature = 1.0};

  uint64_t seed = 0;
  int64_t num_kept = 50;                          // K
  std::vector<double> temperatures = {1.0, 2.0};  // at which the tail's mass is recorded
  int64_t shard_tokens = 65536;     // a shard holds as many sequences as fit into this many tokens, and at least one
  int num_threads = 0;              // 0: one for each core
  std::optional<runtime::Isa> isa;  // empty: the widest there is
  bool dry_run = false;
  bool fresh = false;  // discards what an interrupted run has left
};

// Runs `model` on the CPU, exactly (as pare eval does), over the sequences and writes OUTPUT and OUTPUT.shards. Shards
// are completed one by one under OUTPUT.partial. A run that finds shards of its own there goes on after them. It ends
// with the same bytes as a run that was never stopped, whatever the number of threads.
// It needs memory for the packed model, the hidden states of a few thousand tokens and the logits of a few tokens. It
// also needs keys and values of the texts that are drawn together (runtime/engine/lane_memory.h). Which texts these are
// decides the last bits of their logits, and shard_tokens has a part in it.
// Returns the report (with dry_run: the prediction) as one JSON object. Throws std::invalid_argument for options and
// for sequences beyond the model's context. Throws std::runtime_error when OUTPUT exists, when OUTPUT.partial is of
// another model, text or options (the message says which), and for damaged files and a full disk. Throws Interrupted.
std::string record(const std::filesystem::path& model, const std::filesystem::path& output,
                   const RecordOptions& options, runtime::Progress& progress);

}  // namespace pare::compress
