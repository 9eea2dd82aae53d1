// The format of a teacher's recorded logits: the distribution after every token of a text, recorded once (pare record)
// for training students.
//
//   OUT.h5              the master: whose logits they are, the list of shards, and all arrays joined (virtual datasets)
//   OUT.h5.shards/      NNNNN.h5, each with the arrays of consecutive sequences
//
// Both are HDF5 after a line with the hash of all that follows (compress/hdf5/hashed_file.h). The pair can be moved,
// but not renamed. docs/formats.md ("Teacher logits") has every attribute and array.
//
// Row r of a sequence is about what follows its token r: the K most probable tokens in descending order, and for each
// temperature the logarithm of the mass of all others. Probabilities are stored as logarithms in float16 (IEEE
// binary16). It is the only 16-bit format with 11 significant bits where they matter. Between -1 and 0 its steps are at
// most 2^-11. At -30 nats they are 2^-6, a factor of 1.016 in a probability of 1e-13. It keeps 6e-8, and numpy knows
// it. bfloat16 would be off by 2^-9 and 2^-4 (rounded), for a range that no logarithm needs. Rounding keeps the order
// of a row. Ids are uint16 for vocabularies of up to 65,536 tokens, else uint32. No filters are used, because sorted
// values and ids are nearly incompressible.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "compress/hdf5/hashed_file.h"
#include "compress/hdf5/hdf5_type.h"

namespace pare::compress {

// The origin of the logits: the master's attributes.
struct LogitOrigin {
  std::string model;                 // model_hash of the teacher
  std::string tokenizer;             // tokenizer_hash of the teacher's tokenizer
  std::string data;                  // SHA-256 of the windows, or of the prompts
  std::string text;                  // name of the file that they came from
  std::string source;                // a JSON object that says how sequences were made from it
  int64_t num_vocabulary = 0;        // V: the tokenizer's tokens, without the head's padding
  int64_t num_kept = 0;              // K
  std::vector<double> temperatures;  // N
  std::string pare_version, libtorch_version, instruction_set;

  // Returns all of it as a JSON object, in this order.
  std::string to_json() const;
  // Returns the SHA-256 of that, which the shards of one store have in common.
  std::string hash() const;
};

// A sequence of tokens, with the tokens that the loss is about and the places where the teacher's attention began anew.
struct RecordedSequence {
  std::vector<int32_t> ids;
  // For token r: 1 where the prediction of token r + 1 counts. It is 0 for the last token and where token r + 1 belongs
  // to a prompt.
  std::vector<uint8_t> label_mask;
  // The tokens after the first one at which another document begins, ascending. For them the teacher has seen nothing
  // before. The token before each has no label.
  std::vector<int32_t> starts = {};
};

// Returns the bytes of one token in the arrays.
int64_t bytes_per_token(int64_t num_vocabulary, int64_t num_kept, int64_t num_temperatures);

struct LogitShard {
  int64_t num_sequences = 0;
  int64_t num_tokens = 0;
  std::string sha256;
};

// Returns a shard's file name, e.g. "00042.h5".
std::string shard_name(int64_t shard);

// --- Shared by writer and reader -------------------------------------------------------------------------------------

extern const FileKind kLogitFile;
inline constexpr int64_t kShardHashBytes = 32;
inline constexpr int64_t kMostTokens = int64_t{1} << 40;            // the most in a store: products of the number with
                                                                    // K must fit
inline constexpr int64_t kMostLogitCount = (int64_t{1} << 31) - 1;  // the most for any other count

// Returns the unsigned type that is as wide as ids of that vocabulary need.
Hdf5Type logit_id_type(int64_t num_vocabulary);

// An array with one value, or several columns, for each token.
struct TokenArray {
  const char* name;
  Hdf5Type type;
  int64_t num_columns;      // 0: one dimension
  bool is_of_first = true;  // files of version 1 have it as well

  std::vector<int64_t> shape(int64_t num_rows) const;
};
std::array<TokenArray, 7> token_arrays(const LogitOrigin& origin);
inline constexpr const char* kFirstLogitVersion = "1";  // has no `starts`: a sequence is one document

// A difference between what was expected and what was found.
struct LogitDifference {
  std::string object, expected, found;
};
// Returns nullopt where the origin can be written and read.
std::optional<LogitDifference> check_origin(const LogitOrigin& origin);
// Checks one sequence, and names the array that is wrong.
std::optional<LogitDifference> check_sequence(const RecordedSequence& sequence, int64_t num_vocabulary);

}  // namespace pare::compress
