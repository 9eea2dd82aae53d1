// Scores a text and continues it: score_and_generate MODEL TEXT
// Scores token ids of a model without a tokenizer: score_and_generate MODEL --ids ID ID ...
#include <pare.h>

#include <charconv>
#include <cmath>
#include <cstdio>
#include <exception>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

namespace {

int32_t parse_id(std::string_view word) {
  int32_t id = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), id);
  if (error != std::errc() || end != word.data() + word.size()) {
    throw std::invalid_argument("expected a token id, found '" + std::string(word) + "'");
  }
  return id;
}

// A line for each token but the first: its id and ln p(token | those before it).
void print_scores(pare::Model& model, const std::vector<int32_t>& ids) {
  const std::vector<float> scores = model.score(ids);
  double sum = 0.0;
  for (size_t t = 0; t < scores.size(); ++t) {
    std::printf("%d %.9g\n", ids[t + 1], static_cast<double>(scores[t]));
    sum += static_cast<double>(scores[t]);
  }
  std::printf("perplexity %.9g\n", std::exp(-sum / static_cast<double>(scores.size())));
}

void run(const std::vector<std::string_view>& words) {
  if (words.size() < 2) throw std::invalid_argument("usage: score_and_generate MODEL TEXT | MODEL --ids ID ID ...");
  pare::Model model = pare::Model::load(words[0]);
  if (words[1] == "--ids") {
    std::vector<int32_t> ids;
    for (size_t i = 2; i < words.size(); ++i) ids.push_back(parse_id(words[i]));
    print_scores(model, ids);
    return;
  }
  print_scores(model, model.tokenize(words[1]));
  model.generate(words[1], {.max_new_tokens = 32}, [](std::string_view piece) {
    std::fwrite(piece.data(), 1, piece.size(), stdout);
    std::fflush(stdout);
  });
  std::printf("\n");
}

}  // namespace

int main(int argc, char** argv) {
  try {
    run({argv + 1, argv + argc});
    return 0;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "score_and_generate: %s\n", error.what());
    return 1;
  }
}
