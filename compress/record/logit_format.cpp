#include "compress/record/logit_format.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <span>

#include "runtime/system/json_text.h"
#include "runtime/system/sha256.h"

namespace pare::compress {
namespace {

constexpr int64_t kMostOfUint16 = int64_t{1} << 16;  // vocabularies whose ids fit

std::array<TokenArray, 7> token_arrays(int64_t num_vocabulary, int64_t num_kept, int64_t num_temperatures) {
  const Hdf5Type ids = logit_id_type(num_vocabulary);
  return {{{"token_ids", ids, 0},
           {"label_mask", Hdf5Type::uint8, 0},
           {"label_log_probs", Hdf5Type::float16, 0},
           {"top_ids", ids, num_kept},
           {"top_log_probs", Hdf5Type::float16, num_kept},
           {"log_tails", Hdf5Type::float16, num_temperatures},
           {"starts", Hdf5Type::uint8, 0, /*is_of_first=*/false}}};
}

}  // namespace

const FileKind kLogitFile = {.name = "teacher logits",
                             .version = "2",
                             .maker = "pare record",
                             .also_read = {kFirstLogitVersion},
                             .remedy = "record the teacher again with pare record"};

Hdf5Type logit_id_type(int64_t num_vocabulary) {
  return num_vocabulary <= kMostOfUint16 ? Hdf5Type::uint16 : Hdf5Type::uint32;
}

std::vector<int64_t> TokenArray::shape(int64_t num_rows) const {
  return num_columns > 0 ? std::vector{num_rows, num_columns} : std::vector{num_rows};
}

std::array<TokenArray, 7> token_arrays(const LogitOrigin& origin) {
  return token_arrays(origin.num_vocabulary, origin.num_kept, static_cast<int64_t>(origin.temperatures.size()));
}

std::optional<LogitDifference> check_origin(const LogitOrigin& origin) {
  if (origin.num_vocabulary < 1 || origin.num_vocabulary > kMostLogitCount) {
    return LogitDifference{"attribute /vocabulary", "1 to " + std::to_string(kMostLogitCount),
                           std::to_string(origin.num_vocabulary)};
  }
  if (origin.num_kept < 1 || origin.num_kept > origin.num_vocabulary) {
    return LogitDifference{"attribute /top_k", "1 to the vocabulary's " + std::to_string(origin.num_vocabulary),
                           std::to_string(origin.num_kept)};
  }
  if (origin.temperatures.empty() || static_cast<int64_t>(origin.temperatures.size()) > kMostLogitCount) {
    return LogitDifference{"temperatures", "one at least", std::to_string(origin.temperatures.size())};
  }
  for (const double temperature : origin.temperatures) {
    if (!(temperature > 0.0 && std::isfinite(temperature))) {
      return LogitDifference{"temperatures", "positive numbers", std::to_string(temperature)};
    }
  }
  return std::nullopt;
}

std::optional<LogitDifference> check_sequence(const RecordedSequence& sequence, int64_t num_vocabulary) {
  for (const int32_t id : sequence.ids) {
    if (id < 0 || id >= num_vocabulary) {
      return LogitDifference{"token_ids", "0 to " + std::to_string(num_vocabulary - 1), std::to_string(id)};
    }
  }
  for (const uint8_t scored : sequence.label_mask) {
    if (scored > 1) return LogitDifference{"label_mask", "0 or 1", std::to_string(scored)};
  }
  if (sequence.label_mask.back() != 0) return LogitDifference{"label_mask", "0 for the last token of a sequence", "1"};
  int32_t before = 0;
  for (const int32_t start : sequence.starts) {
    if (start <= before || start >= static_cast<int64_t>(sequence.ids.size())) {
      return LogitDifference{"starts", "ascending positions within the sequence", std::to_string(start)};
    }
    before = start;
    if (sequence.label_mask[static_cast<size_t>(start) - 1] == 0) continue;
    return LogitDifference{"label_mask", "0 for the last token of a document", "1"};
  }
  return std::nullopt;
}

std::string LogitOrigin::to_json() const {
  const nlohmann::ordered_json json = {{"model", model},
                                       {"tokenizer", tokenizer},
                                       {"data", data},
                                       {"text", text},
                                       {"source", source},
                                       {"vocabulary", num_vocabulary},
                                       {"top_k", num_kept},
                                       {"temperatures", temperatures},
                                       {"pare", pare_version},
                                       {"libtorch", libtorch_version},
                                       {"instruction_set", instruction_set}};
  return runtime::json_text(json);
}

std::string LogitOrigin::hash() const {
  const std::string json = to_json();
  return runtime::sha256_hex(std::as_bytes(std::span(json)));
}

int64_t bytes_per_token(int64_t num_vocabulary, int64_t num_kept, int64_t num_temperatures) {
  int64_t num_bytes = 0;
  for (const TokenArray& kind : token_arrays(num_vocabulary, num_kept, num_temperatures)) {
    num_bytes += size_bytes(kind.type) * std::max<int64_t>(kind.num_columns, 1);
  }
  return num_bytes;
}

std::string shard_name(int64_t shard) {
  std::array<char, 32> name;
  std::snprintf(name.data(), name.size(), "%05lld.h5", static_cast<long long>(shard));
  return name.data();
}

}  // namespace pare::compress
