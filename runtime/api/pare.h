// The runtime of pare as a library: loads a language model, scores tokens and generates text, on the CPU.
//
//   find_package(pare REQUIRED)
//   target_link_libraries(my_program PRIVATE pare::runtime)
//
//   #include <pare.h>
//   pare::Model model = pare::Model::load("models/smollm2-135m");
//   std::cout << model.generate("The capital of France is").text << '\n';
//
// Letters of shapes: T tokens of a sequence, V entries of the model's vocabulary. Probabilities are natural logarithms
// (nats). Results do not depend on the number of threads.
//
// Errors are exceptions with a message that says what was expected and found: std::invalid_argument for what the caller
// asked for, std::runtime_error for files and the machine, std::bad_alloc where memory runs out. A call that throws has
// changed nothing. Nothing here prints, ends the process or installs a handler of signals. A model's files are only
// read while it is loaded; whoever cuts one short meanwhile gets a SIGBUS.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace pare {

struct LoadOptions {
  // Threads to compute with, at least 1; 0: OMP_NUM_THREADS, or one for each CPU that the process may use, with a
  // control group's quota included.
  int num_threads = 0;
  // The longest sequence, prompt and generated tokens together, that will be asked for; 0: the model's context, but at
  // most 2048. Memory for it is checked when the model is loaded.
  int64_t max_tokens = 0;
  // Bits of each key and value that generation caches: 32 (float32) or 8 (integers with a scale per head and token).
  int kv_bits = 32;
  // Whether to compare the files with the checksums of a pare.json beside them first, as `pare verify` does.
  bool check_files = false;
};

// How the next token is drawn.
struct DrawOptions {
  int64_t max_new_tokens = 128;  // stop after so many, at least 1
  double temperature = 0.0;      // logits are divided by it; 0: always the most probable token
  int64_t top_k = 0;             // draw from the k most probable tokens; 0: all
  double top_p = 1.0;            // of those from the fewest whose probabilities sum to at least p, in (0, 1]
  uint64_t seed = 0;             // of the draws: the same seed, the same tokens
};

struct GeneratedText {
  std::string text;          // without the prompt, UTF-8 up to its last character, which may be cut
  std::vector<int32_t> ids;  // without the prompt, and without the token that ended the text
  bool reached_end = false;  // the model ended the text; otherwise it has max_new_tokens tokens
};

// A decoder and its tokenizer. Movable, not copyable; a model that was moved from can only be assigned to or destroyed.
// One thread may use a model at a time; different models may be used at once, each with threads of its own.
class Model {
 public:
  // `path`: a Hugging Face directory (config.json, safetensors, tokenizer.json), dense or in one of the containers that
  // pare writes, or a .gguf file. Packs the weights for this processor. Throws std::invalid_argument: options out of
  // range, a max_tokens beyond the model's context, a config.json of an unknown model or of an encoder;
  // std::runtime_error: damaged or missing files, a model that does not fit the memory that is free, a processor
  // without AVX2.
  static Model load(const std::filesystem::path& path, const LoadOptions& options = {});

  Model(Model&&) noexcept;
  Model& operator=(Model&&) noexcept;
  ~Model();

  int64_t vocabulary_size() const;  // V
  int64_t max_tokens() const;       // of a sequence (LoadOptions)

  // UTF-8 text to ids; add_special_tokens puts around it what the tokenizer puts around a text, such as a leading token
  // that begins one. Throws std::invalid_argument for a text that is not UTF-8, and as text_of does std::runtime_error
  // for a model without a tokenizer.
  std::vector<int32_t> tokenize(std::string_view text, bool add_special_tokens = true) const;
  // Ids to text, without special tokens. Throws std::invalid_argument for an id that the tokenizer does not have.
  std::string text_of(std::span<const int32_t> ids) const;

  // ln p(ids[t + 1] | ids[0], ..., ids[t]) for t = 0 .. T-2: T-1 values, each at most 0. The perplexity of the sequence
  // is exp(-mean). Throws std::invalid_argument: fewer than 2 ids, more than max_tokens(), an id outside [0, V);
  // std::runtime_error: a value that is not finite, as damaged weights give.
  std::vector<float> score(std::span<const int32_t> ids_T);

  // Continues a prompt, which gets its special tokens. `on_text` (may be empty) hears the text piece by piece as soon
  // as it is certain; what it throws ends the generation and passes through. Throws std::invalid_argument: a prompt
  // without tokens, a prompt and max_new_tokens that exceed max_tokens(), options out of range; and what tokenize
  // throws.
  GeneratedText generate(std::string_view prompt, const DrawOptions& options = {},
                         const std::function<void(std::string_view)>& on_text = {});
  // The same for a prompt in ids, also of a model without a tokenizer: the new ids. `on_id` hears each of them.
  std::vector<int32_t> generate_ids(std::span<const int32_t> prompt, const DrawOptions& options = {},
                                    const std::function<void(int32_t)>& on_id = {});

 private:
  struct State;
  explicit Model(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// The version of the library, such as "0.1.0".
std::string_view version();

}  // namespace pare
