// generation_config.json: how the makers of a model want texts to be drawn.
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

namespace pare::runtime {

inline constexpr const char* kGenerationConfigName = "generation_config.json";

struct GenerationConfig {
  // The tokens that end a text (eos_token_id), in place of config.json's. Empty if the file names none.
  std::vector<int32_t> eos_tokens;
  // True if tokens are drawn (do_sample) at a temperature above 0. The next four values count only then.
  bool samples = false;
  // The defaults are those that transformers takes where the file does not say.
  double temperature = 1.0;
  int64_t top_k = 50;  // 0: all
  double top_p = 1.0;
  double min_p = 0.0;
  // This one counts where the most probable token is taken, too.
  double repetition_penalty = 1.0;
  // The file asks for these and pare does not do them, as "no_repeat_ngram_size 3". What concerns drawing alone stands
  // here only where tokens are drawn.
  std::vector<std::string> not_applied;
  // This says what is wrong with a value that counts where tokens are drawn; empty: nothing. Nobody else needs it, so
  // a model with such a file can be used for all else.
  std::string complaint;
};

// Reads the file of a model's directory; without one, the result is as of an empty one. Throws std::invalid_argument
// with the file, the key, what was expected and what was found, and std::runtime_error if it cannot be read, but for
// what `complaint` says.
GenerationConfig read_generation_config(const std::filesystem::path& directory);

}  // namespace pare::runtime
