// The runtime of pare as a library: loads a language model, scores tokens and generates text, on the CPU. The Python
// module `pare` is made of it (python/).
//
//   find_package(pare REQUIRED)
//   target_link_libraries(my_program PRIVATE pare::runtime)
//
//   #include <pare.h>
//   pare::Model model = pare::Model::load("models/smollm2-135m");
//   std::cout << model.generate("The capital of France is").text << '\n';
//
// Shape letters: T tokens of a sequence, V entries of the model's vocabulary. Probabilities are natural logarithms
// (nats). Results do not depend on the number of threads.
//
// Errors are exceptions with a message that says what was expected and what was found. std::invalid_argument reports a
// fault of the caller, std::runtime_error one of files or the machine, and std::bad_alloc that memory ran out. A call
// that throws has changed nothing. No function prints, ends the process or installs a handler of signals. A model's
// files are only read while it is loaded. If somebody cuts one short meanwhile, the process gets a SIGBUS.
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

// Called now and then while a call works, with the share of the work that is done, from 0 to 1. What it throws ends the
// call, and is passed on. The model works on afterwards.
using OnProgress = std::function<void(double share)>;

// While it lives, calls of the thread that made it call `check` again and again, before each block of a forward pass
// and each token at the latest. What the check throws ends the call, and is passed on. The model works on afterwards.
// The newest of several counts.
class StopCheck {
 public:
  explicit StopCheck(std::function<void()> check);
  ~StopCheck();
  StopCheck(const StopCheck&) = delete;
  StopCheck& operator=(const StopCheck&) = delete;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

// LoadOptions::max_tokens: as many as the model's context has.
inline constexpr int64_t kWholeContext = -1;

struct LoadOptions {
  // The threads to compute with, at least 1. 0: OMP_NUM_THREADS, or one for each CPU that the process may use, with a
  // control group's quota included. No more are used than one for each such CPU.
  int num_threads = 0;
  // The longest sequence that will be asked for, prompt and generated tokens together. 0: the model's context, but at
  // most 2048. kWholeContext: the model's context. Loading checks that there is memory for it.
  int64_t max_tokens = 0;
  // The bits of each key and value that generation caches: 32 (float32), 16 (bf16) or 8 (integers with a scale per head
  // and token).
  int kv_bits = 32;
  // True to compare the files with the checksums of a pare.json beside them, as `pare verify` does, before loading.
  bool check_files = false;
  OnProgress on_progress = {};  // of packing the weights
};

// The options for drawing the next token.
struct DrawOptions {
  int64_t max_new_tokens = 128;  // stop after this many, at least 1
  double temperature = 0.0;      // logits are divided by it; 0: always the most probable token
  int64_t top_k = 0;             // draw from the k most probable tokens; 0: all
  double top_p = 1.0;            // draw from the fewest of these whose probabilities sum to at least p, in (0, 1]
  uint64_t seed = 0;             // the same seed draws the same tokens
  double min_p = 0.0;  // of what is left, tokens at least p times as probable as the most probable one, in [0, 1]
  // Divides the logits above 0 of tokens that the prompt or the text already has, and multiplies those below; above 0.
  // Greedy choices are made of the result. 1: none.
  double repetition_penalty = 1.0;
  // The text ends before the first of these strings, none of which is empty. A special token of the tokenizer, such as
  // "<|im_end|>", is one of them where it is written so.
  std::vector<std::string> stop = {};
};

struct GeneratedText {
  std::string text;           // without the prompt; UTF-8 up to its last character, which may be cut
  std::vector<int32_t> ids;   // without the prompt, and without an end token; with the tokens of a stop string
  bool reached_end = false;   // true: the model ended the text with a token
  bool reached_stop = false;  // true: a string of DrawOptions::stop ended it. Neither: it has max_new_tokens tokens
};

// A text, and one that follows it.
struct TextPair {
  std::string context, continuation;
};
struct Likelihood {
  double sum = 0.0;        // ln of the continuation's probability
  int64_t num_tokens = 0;  // of the continuation
  bool is_greedy = false;  // each of its tokens is the most probable one
  int64_t num_cut = 0;     // tokens of the context that did not fit, from its beginning
};

// A decoder and its tokenizer. A model can be moved, but not copied. After a move it can only be assigned to or
// destroyed. One thread may use a model at a time. Different models may be used at once, each with threads of its own.
class Model {
 public:
  // `path` is a Hugging Face directory (config.json, safetensors, tokenizer.json) or a .gguf file. The directory is
  // dense or in one of the containers that pare writes. Packs the weights for this processor. Throws
  // std::invalid_argument for options out of range, a max_tokens beyond the model's context, and a config.json of an
  // unknown model or of an encoder. Throws std::runtime_error for damaged or missing files, a model that does not fit
  // the free memory, and a processor without AVX2.
  static Model load(const std::filesystem::path& path, const LoadOptions& options = {});

  Model(Model&&) noexcept;
  Model& operator=(Model&&) noexcept;
  ~Model();

  int64_t vocabulary_size() const;  // V
  int64_t max_tokens() const;       // the most tokens of a sequence (LoadOptions)
  int64_t context_length() const;   // the most tokens that the model can be loaded for
  int num_threads() const;

  // Converts UTF-8 text to ids. add_special_tokens adds the tokenizer's special tokens around the text, such as one
  // that begins it. Throws std::invalid_argument for a text that is not UTF-8. Throws std::runtime_error, as text_of
  // does, for a model without a tokenizer.
  std::vector<int32_t> tokenize(std::string_view text, bool add_special_tokens = true) const;
  // Converts ids to text, without special tokens. Throws std::invalid_argument for an id that the tokenizer does not
  // have.
  std::string text_of(std::span<const int32_t> ids) const;

  // Returns a conversation as the model's chat template writes it. It is a JSON object with `messages`, a list of
  // {"role", "content"}, and perhaps `tools` and `chat_template_kwargs`. is_to_be_answered: the text ends where the
  // assistant's turn begins. It holds the special tokens: tokenize it without adding any. Throws std::invalid_argument
  // for a model without a template, std::runtime_error for another object and where the template fails.
  std::string chat_text(std::string_view conversation, bool is_to_be_answered = true) const;
  // Returns that template; empty: the model has none.
  std::string chat_template() const;

  // Returns the logits [T, V] behind each id. Throws as score does, but for a single id, which will do.
  std::vector<float> logits(std::span<const int32_t> ids_T, const OnProgress& on_progress = {});

  // Returns ln p(ids[t + 1] | ids[0], ..., ids[t]) for t = 0 .. T-2: T-1 values, each at most 0. The perplexity of the
  // sequence is exp(-mean). Throws std::invalid_argument for fewer than 2 ids, more than max_tokens(), and an id
  // outside [0, V). Throws std::runtime_error for a value that is not finite, as damaged weights give.
  std::vector<float> score(std::span<const int32_t> ids_T, const OnProgress& on_progress = {});

  // Returns how probable each continuation is after its context, as lm-evaluation-harness 0.4.13 asks it of models of
  // Hugging Face. Both are tokenized together. A context is cut from the left where max_tokens() asks for it; an empty
  // one is the token that begins texts. Neighbours with one context cost little more than one of them. Throws
  // std::invalid_argument for a continuation without tokens or with more than max_tokens().
  std::vector<Likelihood> loglikelihoods(std::span<const TextPair> pairs, const OnProgress& on_progress = {});
  // Returns ln of each text's probability by the same program's rules: of all tokens that the tokenizer gives, behind
  // the one that begins texts. Long ones go through the model in windows of max_tokens() tokens.
  std::vector<double> text_loglikelihoods(std::span<const std::string> texts, const OnProgress& on_progress = {});

  // Continues a prompt, to which it adds the special tokens. `on_text` (may be empty) is called with the text piece by
  // piece, as soon as each is certain. An exception of `on_text` ends the generation and is passed on. Throws
  // std::invalid_argument for a prompt without tokens, a prompt and max_new_tokens that exceed max_tokens(), and
  // options out of range. Throws what tokenize throws.
  GeneratedText generate(std::string_view prompt, const DrawOptions& options = {},
                         const std::function<void(std::string_view)>& on_text = {});
  // Does the same for a prompt in ids, also with a model without a tokenizer. Returns the new ids; `on_id` is called
  // with each of them.
  std::vector<int32_t> generate_ids(std::span<const int32_t> prompt, const DrawOptions& options = {},
                                    const std::function<void(int32_t)>& on_id = {});
  // Continues several texts, up to 16 at a time, as lm-evaluation-harness 0.4.13 does (generate_until). No special
  // tokens are added to a prompt that begins with them. One that leaves no room for max_new_tokens is cut from the
  // left. A text is decoded from its ids alone, and cut at the stop strings. Each draws with a seed of its own. Throws
  // what generate throws.
  std::vector<GeneratedText> generate_until(std::span<const std::string> prompts, const DrawOptions& options = {},
                                            const OnProgress& on_progress = {});

 private:
  struct State;
  explicit Model(std::unique_ptr<State> state);
  std::unique_ptr<State> state_;
};

// The version of the library, such as "0.1.0".
std::string_view version();

}  // namespace pare
