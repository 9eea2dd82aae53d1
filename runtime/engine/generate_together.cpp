#include "runtime/engine/generate_together.h"

#include <algorithm>
#include <memory>
#include <optional>
#include <utility>

#include "runtime/system/first_exception.h"
#include "runtime/system/interrupt.h"

namespace pare::runtime {
namespace {

// The texts in the lanes, and the requests that wait for one.
class GrowingTexts {
 public:
  GrowingTexts(Transformer& model, std::span<const GenerationRequest> requests, int64_t num_lanes,
               const OnFinished& on_finished, const OnStep& on_step)
      : description_(model.description()),
        requests_(requests),
        on_finished_(on_finished),
        on_step_(on_step),
        generations_(requests.size()) {
    int64_t max_tokens = 0;
    for (const GenerationRequest& request : requests) {
      const auto num_prompt = static_cast<int64_t>(request.prompt.size());
      check_length(description_, num_prompt, request.options.max_tokens);
      const Continuation possible(description_, request.prompt, request.options);
      max_tokens = std::max(max_tokens, num_prompt + request.options.max_tokens - 1);  // the last token is never fed
    }
    const auto num_requests = static_cast<int64_t>(requests.size());
    lanes_ = model.start_lanes(std::min(num_lanes, num_requests), max_tokens);
    texts_.resize(static_cast<size_t>(std::min(num_lanes, num_requests)));
  }

  std::vector<Generation> run() {
    while (true) {
      for (size_t lane = 0; lane < texts_.size(); ++lane) fill(lane);
      step();
      if (!grow()) return std::move(generations_);
    }
  }

 private:
  struct Text {
    size_t request;
    Continuation continuation;
  };

  void step() const {
    throw_if_interrupted();
    if (on_step_) on_step_();
  }

  // Gives a free lane the next request. If a text ends with its first token, the lane takes another one.
  void fill(size_t lane) {
    while (!texts_[lane] && next_ < requests_.size()) {
      step();
      const GenerationRequest& request = requests_[next_];
      Text text{next_++, {description_, request.prompt, request.options}};
      const bool goes_on = text.continuation.draw(lanes_->begin(static_cast<int64_t>(lane), request.prompt));
      texts_[lane] = std::move(text);
      if (!goes_on) finish(lane);
    }
  }

  // Decodes one token of every text. Returns false if there is no text.
  bool grow() {
    std::vector<int64_t> lanes;
    std::vector<int32_t> ids;
    for (size_t lane = 0; lane < texts_.size(); ++lane) {
      if (!texts_[lane]) continue;
      lanes.push_back(static_cast<int64_t>(lane));
      ids.push_back(texts_[lane]->continuation.generation.ids.back());
    }
    if (lanes.empty()) return false;
    const std::span<const float> logits_NV = lanes_->feed_each(lanes, ids);
    const size_t num_vocabulary = logits_NV.size() / lanes.size();
    std::vector<uint8_t> goes_on(lanes.size());
    FirstException error;
#pragma omp parallel for schedule(static)
    for (size_t i = 0; i < lanes.size(); ++i) {
      error.capture([&] {
        Continuation& text = texts_[static_cast<size_t>(lanes[i])]->continuation;
        ++text.generation.decoded_tokens;
        goes_on[i] = text.draw(logits_NV.subspan(i * num_vocabulary, num_vocabulary));
      });
    }
    error.rethrow();
    for (size_t i = 0; i < lanes.size(); ++i) {
      if (goes_on[i] == 0) finish(static_cast<size_t>(lanes[i]));
    }
    return true;
  }

  void finish(size_t lane) {
    const size_t request = texts_[lane]->request;
    generations_[request] = std::move(texts_[lane]->continuation.generation);
    texts_[lane].reset();
    if (on_finished_) on_finished_(request, generations_[request]);
  }

  const ModelDescription& description_;
  std::span<const GenerationRequest> requests_;
  const OnFinished& on_finished_;
  const OnStep& on_step_;
  std::vector<Generation> generations_;
  std::unique_ptr<Transformer::Lanes> lanes_;
  std::vector<std::optional<Text>> texts_;  // one place per lane
  size_t next_ = 0;                         // the next waiting request
};

}  // namespace

int64_t lanes_at_once(const ModelDescription& model, int64_t num_texts, int64_t max_tokens) {
  const int64_t text_bytes = max_tokens * kv_bytes_per_token(model, kKvFloatBits);
  const int64_t most = std::min({kMostLanes, num_texts, kLaneCacheBytes / std::max<int64_t>(text_bytes, 1)});
  return std::max<int64_t>(most, 1);
}

std::vector<Generation> generate_together(Transformer& model, std::span<const GenerationRequest> requests,
                                          int64_t num_lanes, const OnFinished& on_finished, const OnStep& on_step) {
  if (requests.empty()) return {};
  return GrowingTexts(model, requests, num_lanes, on_finished, on_step).run();
}

}  // namespace pare::runtime
