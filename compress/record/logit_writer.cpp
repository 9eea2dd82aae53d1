#include "compress/record/logit_writer.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <optional>
#include <stdexcept>
#include <utility>

#include "compress/hdf5/hdf5_writer.h"

namespace pare::compress {
namespace {

namespace fs = std::filesystem;

void refuse_writing(const fs::path& path, const std::optional<LogitDifference>& difference) {
  if (!difference) return;
  throw std::invalid_argument("cannot write '" + path.string() + "': " + difference->object + ": expected " +
                              difference->expected + ", found " + difference->found);
}

std::span<const std::byte> bytes_of(const at::Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()};
}

template <typename Value>
std::vector<std::byte> narrowed(std::span<const int64_t> ids) {
  std::vector<Value> values(ids.begin(), ids.end());
  const auto bytes = std::as_bytes(std::span(values));
  return {bytes.begin(), bytes.end()};
}

std::vector<std::byte> id_bytes(std::span<const int64_t> ids, int64_t num_vocabulary) {
  return logit_id_type(num_vocabulary) == Hdf5Type::uint16 ? narrowed<uint16_t>(ids) : narrowed<uint32_t>(ids);
}

std::array<uint8_t, kShardHashBytes> bytes_of_hash(const std::string& hash) {
  std::array<uint8_t, kShardHashBytes> bytes;
  for (size_t i = 0; i < bytes.size(); ++i) {
    bytes[i] = static_cast<uint8_t>(std::stoi(hash.substr(2 * i, 2), nullptr, 16));
  }
  return bytes;
}

}  // namespace

struct LogitShardWriter::State {
  UnpublishedFile file;
  Hdf5Writer writer;
  int64_t num_vocabulary, num_kept;
  std::vector<double> temperatures;
  int64_t num_written = 0;
  LogitShard summary = {};
  State(const fs::path& path, const LogitOrigin& origin)
      : file(path, path),
        writer(file.temporary_path(), path, kUserBlockBytes),
        num_vocabulary(origin.num_vocabulary),
        num_kept(origin.num_kept),
        temperatures(origin.temperatures) {}
};

LogitShardWriter::LogitShardWriter(const fs::path& path, const LogitOrigin& origin, int64_t shard,
                                   int64_t first_sequence, const std::vector<RecordedSequence>& sequences) {
  refuse_writing(path, check_origin(origin));
  LogitShard summary{.num_sequences = static_cast<int64_t>(sequences.size()), .num_tokens = 0, .sha256 = ""};
  std::vector<uint32_t> lengths;
  std::vector<int64_t> ids;
  std::vector<uint8_t> mask, starts;
  for (const RecordedSequence& sequence : sequences) {
    if (sequence.ids.empty() || sequence.ids.size() != sequence.label_mask.size()) {
      refuse_writing(path, LogitDifference{"label_mask", "one for each of the tokens, and one token at least",
                                           std::to_string(sequence.label_mask.size()) + " for " +
                                               std::to_string(sequence.ids.size())});
    }
    refuse_writing(path, check_sequence(sequence, origin.num_vocabulary));
    lengths.push_back(static_cast<uint32_t>(sequence.ids.size()));
    ids.insert(ids.end(), sequence.ids.begin(), sequence.ids.end());
    mask.insert(mask.end(), sequence.label_mask.begin(), sequence.label_mask.end());
    const size_t first = starts.size();
    starts.resize(first + sequence.ids.size(), 0);
    starts[first] = 1;
    for (const int32_t start : sequence.starts) starts[first + static_cast<size_t>(start)] = 1;
  }
  if (sequences.empty()) refuse_writing(path, LogitDifference{"lengths", "one sequence at least", "none"});
  summary.num_tokens = static_cast<int64_t>(ids.size());
  state_ = std::make_unique<State>(path, origin);
  state_->summary = summary;
  Hdf5Writer& writer = state_->writer;
  writer.attribute("/", "store", origin.hash());
  writer.attribute("/", "shard", static_cast<uint64_t>(shard));
  writer.attribute("/", "first_sequence", static_cast<uint64_t>(first_sequence));
  writer.make_array("/", "lengths", Hdf5Type::uint32, std::span(&summary.num_sequences, 1));
  writer.write("/", "lengths", 0, std::as_bytes(std::span(lengths)));
  for (const TokenArray& kind : token_arrays(origin)) {
    writer.make_array("/", kind.name, kind.type, kind.shape(summary.num_tokens));
  }
  writer.write("/", "token_ids", 0, id_bytes(ids, origin.num_vocabulary));
  writer.write("/", "label_mask", 0, std::as_bytes(std::span(mask)));
  writer.write("/", "starts", 0, std::as_bytes(std::span(starts)));
}

LogitShardWriter::~LogitShardWriter() = default;

void LogitShardWriter::append(const distill::TruncatedLogits& rows, std::span<const float> label_log_probs_T) {
  const auto num_rows = static_cast<int64_t>(label_log_probs_T.size());
  const bool fits = rows.ids_TK.defined() && rows.ids_TK.dim() == 2 && rows.ids_TK.size(0) == num_rows &&
                    rows.ids_TK.size(1) == state_->num_kept && rows.num_vocabulary == state_->num_vocabulary &&
                    rows.temperatures == state_->temperatures &&
                    num_rows <= state_->summary.num_tokens - state_->num_written;
  if (!fits) {
    throw std::invalid_argument("rows of a teacher: expected those of the next tokens with " +
                                std::to_string(state_->num_kept) + " of " + std::to_string(state_->num_vocabulary) +
                                " tokens each, and the store's temperatures");
  }
  const at::Tensor ids_TK = rows.ids_TK.to(at::kLong).contiguous();
  const std::span<const int64_t> ids(ids_TK.const_data_ptr<int64_t>(), static_cast<size_t>(ids_TK.numel()));
  const at::Tensor labels_T = at::empty({num_rows}, at::kFloat);
  std::copy(label_log_probs_T.begin(), label_log_probs_T.end(), labels_T.mutable_data_ptr<float>());
  const auto write_halves = [&](const char* name, const at::Tensor& values) {
    state_->writer.write("/", name, state_->num_written, bytes_of(values.to(at::kHalf).contiguous()));
  };
  state_->writer.write("/", "top_ids", state_->num_written, id_bytes(ids, state_->num_vocabulary));
  write_halves("label_log_probs", labels_T);
  write_halves("top_log_probs", rows.log_probs_TK);
  write_halves("log_tails", rows.log_tails_TN);
  state_->num_written += num_rows;
}

LogitShard LogitShardWriter::publish() {
  if (state_->num_written != state_->summary.num_tokens) throw std::logic_error("a shard without all of its rows");
  state_->writer.close();
  LogitShard summary = state_->summary;
  summary.sha256 = write_hash(state_->file, kLogitFile);
  state_->file.publish();
  return summary;
}

std::string write_master(const fs::path& path, const LogitOrigin& origin, const std::string& shards_folder,
                         const std::vector<LogitShard>& shards) {
  refuse_writing(path, check_origin(origin));
  UnpublishedFile file(path, path);
  Hdf5Writer writer(file.temporary_path(), path, kUserBlockBytes);
  for (const auto& [name, text] :
       {std::pair{"model", &origin.model}, std::pair{"tokenizer", &origin.tokenizer}, std::pair{"data", &origin.data},
        std::pair{"text", &origin.text}, std::pair{"source", &origin.source}, std::pair{"pare", &origin.pare_version},
        std::pair{"libtorch", &origin.libtorch_version}, std::pair{"instruction_set", &origin.instruction_set},
        std::pair{"shards", &shards_folder}}) {
    writer.attribute("/", name, *text);
  }
  writer.attribute("/", "store", origin.hash());
  writer.attribute("/", "vocabulary", static_cast<uint64_t>(origin.num_vocabulary));
  writer.attribute("/", "top_k", static_cast<uint64_t>(origin.num_kept));
  const auto write = [&](const char* name, Hdf5Type type, std::vector<int64_t> shape, std::span<const std::byte> rows) {
    writer.make_array("/", name, type, shape);
    writer.write("/", name, 0, rows);
  };
  std::vector<uint64_t> num_sequences, num_tokens;
  std::vector<uint8_t> hashes;
  std::vector<Hdf5Writer::Part> sequence_parts, token_parts;
  for (size_t i = 0; i < shards.size(); ++i) {
    const LogitShard& shard = shards[i];
    const std::string name = shards_folder + "/" + shard_name(static_cast<int64_t>(i));
    num_sequences.push_back(static_cast<uint64_t>(shard.num_sequences));
    num_tokens.push_back(static_cast<uint64_t>(shard.num_tokens));
    const auto hash = bytes_of_hash(shard.sha256);
    hashes.insert(hashes.end(), hash.begin(), hash.end());
    sequence_parts.push_back({name, shard.num_sequences});
    token_parts.push_back({name, shard.num_tokens});
  }
  const auto num_shards = static_cast<int64_t>(shards.size());
  write("temperatures", Hdf5Type::float64, {static_cast<int64_t>(origin.temperatures.size())},
        std::as_bytes(std::span(origin.temperatures)));
  write("shard_sequences", Hdf5Type::uint64, {num_shards}, std::as_bytes(std::span(num_sequences)));
  write("shard_tokens", Hdf5Type::uint64, {num_shards}, std::as_bytes(std::span(num_tokens)));
  write("shard_sha256", Hdf5Type::uint8, {num_shards, kShardHashBytes}, std::as_bytes(std::span(hashes)));
  writer.join("/", "lengths", Hdf5Type::uint32, sequence_parts, 0);
  for (const TokenArray& kind : token_arrays(origin)) {
    writer.join("/", kind.name, kind.type, token_parts, kind.num_columns);
  }
  writer.close();
  const std::string hash = write_hash(file, kLogitFile);
  file.publish();
  return hash;
}

}  // namespace pare::compress
