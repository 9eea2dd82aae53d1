#include "compress/record/logit_store.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <limits>
#include <optional>
#include <span>
#include <stdexcept>
#include <utility>

#include "compress/hdf5/hashed_file.h"
#include "compress/hdf5/hdf5_reader.h"
#include "runtime/system/input_files.h"

namespace pare::compress {
namespace {

namespace fs = std::filesystem;

void refuse_reading(const Hdf5Reader& reader, const std::optional<LogitDifference>& difference) {
  if (difference) reader.refuse(difference->object, difference->expected, difference->found);
}

std::vector<int64_t> read_ids(const Hdf5Reader& reader, const Hdf5Array& array, int64_t first, int64_t count) {
  const auto read = [&](auto value) {
    std::vector<decltype(value)> values(static_cast<size_t>(count));
    reader.read(array, first, std::span(values));
    return std::vector<int64_t>(values.begin(), values.end());
  };
  return array.type == Hdf5Type::uint16 ? read(uint16_t{}) : read(uint32_t{});
}

at::Tensor read_halves(const Hdf5Reader& reader, const Hdf5Array& array, int64_t first, at::IntArrayRef shape) {
  const at::Tensor halves = at::empty(shape, at::kHalf);
  reader.read_bytes(array, first, {static_cast<std::byte*>(halves.mutable_data_ptr()), halves.nbytes()});
  return halves.to(at::kFloat);
}

std::string value_words(float value) {
  std::array<char, 32> text;
  std::snprintf(text.data(), text.size(), "%.6g", static_cast<double>(value));
  return text.data();
}

// Checks logarithms of probabilities: at most 0 and not NaN. -inf is a mass of 0.
std::optional<LogitDifference> check_logarithms(const char* name, const at::Tensor& logs) {
  const float* values = logs.const_data_ptr<float>();
  for (int64_t i = 0; i < logs.numel(); ++i) {
    if (!(values[i] <= 0.0f))
      return LogitDifference{name, "logarithms of probabilities, at most 0", value_words(values[i])};
  }
  return std::nullopt;
}

std::optional<LogitDifference> check_rows(const at::Tensor& ids_TK, const at::Tensor& log_probs_TK,
                                          int64_t num_vocabulary) {
  const int64_t num_kept = ids_TK.size(1);
  std::vector<int32_t> sorted;
  for (int64_t row = 0; row < ids_TK.size(0); ++row) {
    const int32_t* ids = ids_TK.const_data_ptr<int32_t>() + row * num_kept;
    const float* logs = log_probs_TK.const_data_ptr<float>() + row * num_kept;
    sorted.assign(ids, ids + num_kept);
    std::sort(sorted.begin(), sorted.end());
    if (sorted.front() < 0 || sorted.back() >= num_vocabulary) {
      return LogitDifference{"top_ids", "0 to " + std::to_string(num_vocabulary - 1),
                             std::to_string(sorted.front() < 0 ? sorted.front() : sorted.back())};
    }
    const auto twice = std::adjacent_find(sorted.begin(), sorted.end());
    if (twice != sorted.end())
      return LogitDifference{"top_ids", "different ids in a row", std::to_string(*twice) + " twice"};
    if (!std::isfinite(logs[0])) return LogitDifference{"top_log_probs", "a finite first value", value_words(logs[0])};
    const float* rising = std::adjacent_find(logs, logs + num_kept, [](float a, float b) { return !(a >= b); });
    if (rising != logs + num_kept) {
      return LogitDifference{"top_log_probs", "rows in descending order",
                             value_words(rising[1]) + " after " + value_words(rising[0])};
    }
  }
  return std::nullopt;
}

// An open shard, with the places of its arrays.
struct OpenShard {
  Hdf5Reader reader;
  std::vector<uint32_t> lengths;  // the lengths of its sequences
  std::array<Hdf5Array, 7> arrays;
  bool has_starts = true;
  LogitShard summary;
};

Hdf5Array find_array(const Hdf5Reader& reader, const Hdf5Object& root, const TokenArray& kind, int64_t num_rows) {
  Hdf5Array found = root.array(kind.name, kind.type);
  if (found.shape != kind.shape(num_rows)) {
    reader.refuse(found.path, shape_words(kind.shape(num_rows)), shape_words(found.shape));
  }
  return found;
}

template <typename Value>
std::vector<Value> read_all(const Hdf5Reader& reader, const Hdf5Array& array) {
  std::vector<Value> values(static_cast<size_t>(array.num_values));
  reader.read(array, 0, std::span(values));
  return values;
}

uint64_t checked_number(const Hdf5Reader& reader, const Hdf5Object& root, const char* name, uint64_t expected) {
  const uint64_t found = root.number(name);
  if (found != expected) {
    reader.refuse(std::string("attribute /") + name, std::to_string(expected), std::to_string(found));
  }
  return found;
}

// checks_hash is false for a file that was checked before.
OpenShard open_shard(const fs::path& path, const LogitOrigin& origin, int64_t shard, int64_t first_sequence,
                     bool checks_hash) {
  runtime::InputFile file(path);
  LogitShard summary;
  const bool is_first_version = stated_version(file, kLogitFile) == kFirstLogitVersion;
  if (checks_hash) summary.sha256 = check_hash(file, kLogitFile);
  Hdf5Reader reader(std::move(file), kUserBlockBytes, kLogitFile.remedy);
  const Hdf5Object root = reader.root();
  if (root.text("store") != origin.hash()) {
    reader.refuse("attribute /store", origin.hash() + " as the other files of the store have it", root.text("store"));
  }
  checked_number(reader, root, "shard", static_cast<uint64_t>(shard));
  checked_number(reader, root, "first_sequence", static_cast<uint64_t>(first_sequence));
  const Hdf5Array lengths_array = root.array("lengths", Hdf5Type::uint32);
  if (lengths_array.shape.size() != 1 || lengths_array.num_values < 1) {
    reader.refuse("/lengths", "one for each sequence", shape_words(lengths_array.shape));
  }
  std::vector<uint32_t> lengths = read_all<uint32_t>(reader, lengths_array);
  for (const uint32_t length : lengths) {
    if (length < 1 || length > kMostLogitCount)
      reader.refuse("/lengths", "1 to " + std::to_string(kMostLogitCount), std::to_string(length));
    summary.num_tokens += length;
  }
  summary.num_sequences = lengths_array.num_values;
  std::array<Hdf5Array, 7> arrays;
  const auto kinds = token_arrays(origin);
  for (size_t i = 0; i < kinds.size(); ++i) {
    if (is_first_version && !kinds[i].is_of_first) continue;
    arrays[i] = find_array(reader, root, kinds[i], summary.num_tokens);
  }
  return {std::move(reader), std::move(lengths), std::move(arrays), !is_first_version, std::move(summary)};
}

// Places in token_arrays.
enum Column : size_t { kTokenIds, kLabelMask, kLabelLogProbs, kTopIds, kTopLogProbs, kLogTails, kStarts };

std::string hash_of_bytes(std::span<const uint8_t> bytes) {
  std::string text;
  for (const uint8_t byte : bytes) {
    std::array<char, 3> digits;
    std::snprintf(digits.data(), digits.size(), "%02x", byte);
    text += digits.data();
  }
  return text;
}

// Returns whether the name is a single one, so that nothing outside the master's folder is ever read.
bool is_folder_name(const std::string& name) {
  return !name.empty() && name != "." && name != ".." && name.find('/') == std::string::npos;
}

}  // namespace

LogitShard check_shard(const fs::path& path, const LogitOrigin& origin, int64_t shard, int64_t first_sequence) {
  return open_shard(path, origin, shard, first_sequence, /*checks_hash=*/true).summary;
}

struct LogitStore::State {
  fs::path path;
  runtime::InputFiles files;  // the master and the shards
  LogitOrigin origin;
  std::string hash;
  fs::path folder;  // the folder of the shards
  std::vector<LogitShard> shards;
  std::vector<int64_t> first_sequences;  // one for each shard, and after them the number of all sequences
  std::vector<uint32_t> lengths;         // one for each sequence of the store
  int64_t num_tokens = 0;

  // The shard that was read last. Only one is open, because a store may have more shards than a process may open files.
  std::optional<OpenShard> open;
  int64_t open_index = -1;
  std::vector<int64_t> open_rows;  // the first row of each of its sequences

  void load(int64_t shard, bool checks_hash);
  // Loads the sequence's shard and returns the sequence's first row in it.
  int64_t find(int64_t sequence);
};

void LogitStore::State::load(int64_t shard, bool checks_hash) {
  const int64_t first = first_sequences[static_cast<size_t>(shard)];
  open.reset();
  if (checks_hash) files.add(folder / shard_name(shard));  // only once: later reads must find what was checked
  OpenShard loaded = open_shard(folder / shard_name(shard), origin, shard, first, checks_hash);
  const LogitShard& expected = shards[static_cast<size_t>(shard)];
  const LogitShard& found = loaded.summary;
  const auto expect = [&](const char* what, const std::string& wanted, const std::string& is) {
    if (wanted != is) loaded.reader.refuse(what, wanted + " as '" + path.filename().string() + "' has it", is);
  };
  if (checks_hash) expect("SHA-256", expected.sha256, found.sha256);
  expect("sequences", std::to_string(expected.num_sequences), std::to_string(found.num_sequences));
  expect("tokens", std::to_string(expected.num_tokens), std::to_string(found.num_tokens));
  open_rows.clear();
  int64_t row = 0;
  for (const uint32_t length : loaded.lengths) open_rows.push_back(std::exchange(row, row + length));
  open = std::move(loaded);
  open_index = shard;
}

int64_t LogitStore::State::find(int64_t sequence) {
  if (sequence < 0 || sequence >= static_cast<int64_t>(lengths.size())) {
    throw std::invalid_argument("sequence " + std::to_string(sequence) + " of '" + path.string() + "': it has " +
                                std::to_string(lengths.size()));
  }
  const auto behind = std::upper_bound(first_sequences.begin(), first_sequences.end(), sequence);
  const int64_t shard = behind - first_sequences.begin() - 1;
  if (!open || open_index != shard) load(shard, /*checks_hash=*/false);
  const auto index = static_cast<size_t>(sequence - first_sequences[static_cast<size_t>(shard)]);
  if (open->lengths[index] != lengths[static_cast<size_t>(sequence)]) {
    open->reader.refuse("/lengths", std::to_string(lengths[static_cast<size_t>(sequence)]) + " as when it was opened",
                        std::to_string(open->lengths[index]));
  }
  return open_rows[index];
}

LogitStore::LogitStore(std::unique_ptr<State> state) : state_(std::move(state)) {}
LogitStore::LogitStore(LogitStore&&) noexcept = default;
LogitStore& LogitStore::operator=(LogitStore&&) noexcept = default;
LogitStore::~LogitStore() = default;

const fs::path& LogitStore::path() const {
  return state_->path;
}
const LogitOrigin& LogitStore::origin() const {
  return state_->origin;
}
const std::string& LogitStore::hash() const {
  return state_->hash;
}
void LogitStore::check_unchanged() const {
  state_->files.check_unchanged();
}
int64_t LogitStore::num_shards() const {
  return static_cast<int64_t>(state_->shards.size());
}
int64_t LogitStore::num_sequences() const {
  return static_cast<int64_t>(state_->lengths.size());
}
int64_t LogitStore::num_tokens() const {
  return state_->num_tokens;
}
int64_t LogitStore::length(int64_t sequence) const {
  if (sequence < 0 || sequence >= num_sequences()) state_->find(sequence);  // refuses it
  return state_->lengths[static_cast<size_t>(sequence)];
}

LogitStore LogitStore::open(const fs::path& path) {
  return open_with(path, "");
}

LogitStore LogitStore::open_unpublished(const fs::path& master, const fs::path& shards) {
  return open_with(master, shards);
}

// If `shards` is empty, the shards are in the folder that the master names.
LogitStore LogitStore::open_with(const fs::path& path, const fs::path& shards) {
  auto state = std::make_unique<State>();
  state->path = path;
  state->files.add(path);
  runtime::InputFile file(path);
  state->hash = check_hash(file, kLogitFile);
  const Hdf5Reader reader(std::move(file), kUserBlockBytes, kLogitFile.remedy);
  const Hdf5Object root = reader.root();
  const auto count = [&](const char* name) {  // a number that does not fit is out of every range
    return static_cast<int64_t>(std::min<uint64_t>(root.number(name), INT64_MAX));
  };
  const Hdf5Array temperatures = root.array("temperatures", Hdf5Type::float64);
  state->origin = {.model = root.text("model"),
                   .tokenizer = root.text("tokenizer"),
                   .data = root.text("data"),
                   .text = root.text("text"),
                   .source = root.text("source"),
                   .num_vocabulary = count("vocabulary"),
                   .num_kept = count("top_k"),
                   .temperatures = read_all<double>(reader, temperatures),
                   .pare_version = root.text("pare"),
                   .libtorch_version = root.text("libtorch"),
                   .instruction_set = root.text("instruction_set")};
  refuse_reading(reader, check_origin(state->origin));
  if (root.text("store") != state->origin.hash()) {
    reader.refuse("attribute /store", state->origin.hash() + ", the hash of the other attributes", root.text("store"));
  }
  const std::string folder = root.text("shards");
  if (!is_folder_name(folder)) reader.refuse("attribute /shards", "the name of a folder beside the file", folder);
  state->folder = shards.empty() ? path.parent_path() / folder : shards;

  const Hdf5Array sequences = root.array("shard_sequences", Hdf5Type::uint64);
  const int64_t num_shards = sequences.num_values;
  const std::vector<int64_t> one_each = {num_shards};
  if (num_shards < 1 || sequences.shape != one_each) {
    reader.refuse(sequences.path, "one for each shard", shape_words(sequences.shape));
  }
  const Hdf5Array tokens = find_array(reader, root, {"shard_tokens", Hdf5Type::uint64, 0}, num_shards);
  const Hdf5Array hashes = find_array(reader, root, {"shard_sha256", Hdf5Type::uint8, kShardHashBytes}, num_shards);
  const std::vector<uint64_t> num_sequences = read_all<uint64_t>(reader, sequences);
  const std::vector<uint64_t> num_tokens = read_all<uint64_t>(reader, tokens);
  const std::vector<uint8_t> hash_bytes = read_all<uint8_t>(reader, hashes);
  int64_t first_sequence = 0;
  for (size_t i = 0; i < num_sequences.size(); ++i) {
    if (num_sequences[i] < 1 || num_sequences[i] > kMostLogitCount) {
      reader.refuse(sequences.path, "1 to " + std::to_string(kMostLogitCount), std::to_string(num_sequences[i]));
    }
    if (num_tokens[i] < num_sequences[i] || num_tokens[i] > kMostTokens) {
      reader.refuse(tokens.path, std::to_string(num_sequences[i]) + " to " + std::to_string(kMostTokens),
                    std::to_string(num_tokens[i]));
    }
    state->shards.push_back(
        {.num_sequences = static_cast<int64_t>(num_sequences[i]),
         .num_tokens = static_cast<int64_t>(num_tokens[i]),
         .sha256 = hash_of_bytes(std::span(hash_bytes).subspan(i * kShardHashBytes, kShardHashBytes))});
    state->first_sequences.push_back(first_sequence);
    first_sequence += static_cast<int64_t>(num_sequences[i]);
  }
  state->first_sequences.push_back(first_sequence);
  for (int64_t shard = 0; shard < num_shards; ++shard) {
    state->load(shard, /*checks_hash=*/true);
    state->lengths.insert(state->lengths.end(), state->open->lengths.begin(), state->open->lengths.end());
    state->num_tokens += state->open->summary.num_tokens;
  }
  return LogitStore(std::move(state));
}

RecordedSequence LogitStore::sequence(int64_t sequence) const {
  const int64_t row = state_->find(sequence), count = length(sequence);
  const OpenShard& shard = *state_->open;
  const std::vector<int64_t> ids = read_ids(shard.reader, shard.arrays[kTokenIds], row, count);
  // Ids are checked before they are narrowed.
  const int64_t largest = *std::max_element(ids.begin(), ids.end());
  if (largest >= state_->origin.num_vocabulary) {
    refuse_reading(shard.reader,
                   LogitDifference{"token_ids", "0 to " + std::to_string(state_->origin.num_vocabulary - 1),
                                   std::to_string(largest)});
  }
  RecordedSequence read{.ids = {ids.begin(), ids.end()}, .label_mask = std::vector<uint8_t>(ids.size())};
  shard.reader.read(shard.arrays[kLabelMask], row, std::span(read.label_mask));
  if (shard.has_starts) {
    std::vector<uint8_t> starts(ids.size());
    shard.reader.read(shard.arrays[kStarts], row, std::span(starts));
    for (size_t t = 0; t < starts.size(); ++t) {
      if (starts[t] > 1 || (t == 0 && starts[t] != 1)) {
        refuse_reading(shard.reader, LogitDifference{"starts", t == 0 ? "1 at the first token of a sequence" : "0 or 1",
                                                     std::to_string(starts[t])});
      }
      if (t > 0 && starts[t] == 1) read.starts.push_back(static_cast<int32_t>(t));
    }
  }
  refuse_reading(shard.reader, check_sequence(read, state_->origin.num_vocabulary));
  return read;
}

std::vector<float> LogitStore::label_log_probs(int64_t sequence) const {
  const int64_t row = state_->find(sequence), count = length(sequence);
  const OpenShard& shard = *state_->open;
  const at::Tensor values = read_halves(shard.reader, shard.arrays[kLabelLogProbs], row, {count});
  refuse_reading(shard.reader, check_logarithms("label_log_probs", values));
  return {values.const_data_ptr<float>(), values.const_data_ptr<float>() + count};
}

distill::TruncatedLogits LogitStore::read(int64_t sequence, int64_t first, int64_t count) const {
  const int64_t row = state_->find(sequence) + first, num_tokens = length(sequence);
  if (first < 0 || count < 1 || count > num_tokens || first > num_tokens - count) {
    throw std::invalid_argument("tokens " + std::to_string(first) + " to " + std::to_string(first + count) +
                                " of sequence " + std::to_string(sequence) + " of '" + path().string() + "': it has " +
                                std::to_string(num_tokens));
  }
  const OpenShard& shard = *state_->open;
  const LogitOrigin& origin = state_->origin;
  const int64_t num_kept = origin.num_kept, num_temperatures = static_cast<int64_t>(origin.temperatures.size());
  distill::TruncatedLogits rows{.num_vocabulary = origin.num_vocabulary, .temperatures = origin.temperatures};
  const std::vector<int64_t> ids = read_ids(shard.reader, shard.arrays[kTopIds], row * num_kept, count * num_kept);
  rows.ids_TK = at::empty({count, num_kept}, at::kInt);
  std::transform(ids.begin(), ids.end(), rows.ids_TK.mutable_data_ptr<int32_t>(), [](int64_t id) {
    return static_cast<int32_t>(std::min<int64_t>(id, std::numeric_limits<int32_t>::max()));
  });
  rows.log_probs_TK = read_halves(shard.reader, shard.arrays[kTopLogProbs], row * num_kept, {count, num_kept});
  rows.log_tails_TN =
      read_halves(shard.reader, shard.arrays[kLogTails], row * num_temperatures, {count, num_temperatures});
  refuse_reading(shard.reader, check_rows(rows.ids_TK, rows.log_probs_TK, origin.num_vocabulary));
  refuse_reading(shard.reader, check_logarithms("top_log_probs", rows.log_probs_TK));
  refuse_reading(shard.reader, check_logarithms("log_tails", rows.log_tails_TN));
  return rows;
}

}  // namespace pare::compress
