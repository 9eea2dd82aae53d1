// Measures decode on the device with recorded steps beside decode launch by launch, and prints one JSON object.
//
//   decode_steps MODEL [TOKENS [PROMPT]]     tokens to decode (default 64) after a prompt of so many (default 8)
//
// Both take turns, kRepetitions times each, and each speed is the best. same_bits says whether all logits agree.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <memory>
#include <vector>

#include "runtime/cuda/cuda_backend.h"
#include "runtime/engine/transformer.h"
#include "runtime/model/checkpoint.h"
#include "tests/cuda/step_logits.h"

namespace pare {
using namespace runtime;
namespace {

constexpr int kRepetitions = 5;

// A model on a backend of its own.
struct Decoder {
  Decoder(const Checkpoint& checkpoint, bool records_steps)
      : backend(make_cuda_backend(records_steps)), model(Transformer::load(checkpoint, *backend)) {}

  void run(std::span<const int32_t> ids, size_t num_prompt) {
    const auto session = model.start(static_cast<int64_t>(ids.size()));
    session->feed(ids.first(num_prompt));
    logits.clear();
    const auto start = std::chrono::steady_clock::now();
    for (const int32_t& id : ids.subspan(num_prompt)) {
      const std::span<const float> row = session->feed({&id, 1});
      logits.insert(logits.end(), row.begin(), row.end());
    }
    const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - start;
    best = std::max(best, static_cast<double>(ids.size() - num_prompt) / seconds.count());
  }

  std::unique_ptr<Backend> backend;
  Transformer model;
  std::vector<float> logits;
  double best = 0.0;  // tokens/s
};

int measured(const char* path, int64_t num_tokens, int64_t num_prompt) {
  const Checkpoint checkpoint = Checkpoint::open(path);
  const std::vector<int32_t> ids = some_ids(num_prompt + num_tokens, checkpoint.description().vocabulary_size);
  Decoder recorded(checkpoint, true), plain(checkpoint, false);
  for (int n = 0; n < kRepetitions; ++n) {
    for (Decoder* decoder : {&recorded, &plain}) decoder->run(ids, static_cast<size_t>(num_prompt));
  }
  const bool same =
      std::equal(recorded.logits.begin(), recorded.logits.end(), plain.logits.begin(), plain.logits.end());
  std::printf(
      "{\"prompt\": %lld, \"tokens\": %lld, \"recorded_tokens_per_second\": %.1f, "
      "\"plain_tokens_per_second\": %.1f, \"same_bits\": %s}\n",
      static_cast<long long>(num_prompt), static_cast<long long>(num_tokens), recorded.best, plain.best,
      same ? "true" : "false");
  return same ? EXIT_SUCCESS : EXIT_FAILURE;
}

}  // namespace
}  // namespace pare

int main(int argc, char** argv) {
  const auto number = [&](int place, int64_t otherwise) {
    return place < argc ? std::strtoll(argv[place], nullptr, 10) : otherwise;
  };
  const int64_t num_tokens = number(2, 64), num_prompt = number(3, 8);
  if (argc < 2 || argc > 4 || num_tokens < 1 || num_prompt < 1) {
    std::fprintf(stderr, "usage: decode_steps MODEL [TOKENS [PROMPT]]\n");
    return 2;
  }
  try {
    return pare::measured(argv[1], num_tokens, num_prompt);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "decode_steps: %s\n", error.what());
    return EXIT_FAILURE;
  }
}
