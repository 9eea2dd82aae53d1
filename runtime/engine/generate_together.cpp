#include "runtime/engine/generate_together.h"

#include <algorithm>
#include <memory>
#include <new>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

#include "runtime/system/first_exception.h"
#include "runtime/system/interrupt.h"

namespace pare::runtime {
namespace {

// A waiting text begins with room for this share of its tokens beside them: it would read them all again if it were put
// back before it has come to something.
constexpr int64_t kShareOfRoom = 8;

// The texts in the lanes, and the requests that wait for one.
class GrowingTexts {
 public:
  GrowingTexts(Transformer& model, std::span<const GenerationRequest> requests, const LaneLimits& limits,
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
    start_lanes(model, max_tokens, limits);
  }

  std::vector<Generation> run() {
    while (true) {
      fill();
      step();
      if (!grow()) return std::move(generations_);
    }
  }

  const LaneUse& use() const { return use_; }

 private:
  struct Text {
    size_t request;
    Continuation continuation;
    int64_t turn = 0;  // texts that began later have a greater one
  };

  void start_lanes(Transformer& model, int64_t max_tokens, const LaneLimits& limits) {
    const auto num_requests = static_cast<int64_t>(requests_.size());
    const int64_t num_lanes = std::min(limits.num_lanes, num_requests);
    if (model.backend().takes_pages()) {
      try {
        lanes_ = model.start_lanes(num_lanes, max_tokens, /*in_pages=*/true);
        pool_bytes_ = limits.pool_bytes;
        texts_.resize(static_cast<size_t>(num_lanes));
        return;
      } catch (const std::bad_alloc&) {  // so many addresses are refused
        if (limits.needs_pages) {
          throw std::runtime_error("the system refuses to reserve addresses for " + std::to_string(num_lanes) +
                                   " texts of " + std::to_string(max_tokens) + " tokens: ask for fewer new tokens");
        }
      }
    }
    const int64_t num_whole = whole_lanes(description_, num_requests, max_tokens, limits);
    lanes_ = model.start_lanes(num_whole, max_tokens);
    texts_.resize(static_cast<size_t>(num_whole));
  }

  void step() const {
    throw_if_interrupted();
    if (on_step_) on_step_();
  }

  // The tokens that a text has in its lane once its last one is fed.
  int64_t num_tokens(const Text& text) const {
    return static_cast<int64_t>(requests_[text.request].prompt.size() + text.continuation.generation.ids.size());
  }

  // Returns what the texts in the lanes take of the pool with their next token.
  int64_t pooled() const {
    int64_t bytes = 0;
    for (const std::optional<Text>& text : texts_) {
      if (text) bytes += pooled_bytes(description_, num_tokens(*text));
    }
    return bytes;
  }

  int64_t num_growing() const {
    return std::count_if(texts_.begin(), texts_.end(),
                         [](const std::optional<Text>& text) { return text.has_value(); });
  }

  bool fits(int64_t bytes) const { return !pool_bytes_ || bytes <= *pool_bytes_; }

  // Returns the tokens that the next waiting text must have room for: its own, and some that it may still get.
  int64_t room_to_begin() const {
    const Text* const text = put_back_.empty() ? nullptr : &put_back_.back();
    const GenerationRequest& request = requests_[text != nullptr ? text->request : next_];
    const auto num_prompt = static_cast<int64_t>(request.prompt.size());
    const int64_t own = text != nullptr ? num_tokens(*text) : num_prompt;
    const int64_t left = std::max<int64_t>(num_prompt + request.options.max_tokens - own, 1);
    return own + std::clamp<int64_t>(own / kShareOfRoom, 1, left);
  }

  // Begins waiting texts while there are free lanes and there is room for the next one. No text overtakes another.
  void fill() {
    while (next_ < requests_.size() || !put_back_.empty()) {
      const auto free = std::find(texts_.begin(), texts_.end(), std::nullopt);
      if (free == texts_.end()) return;
      if (num_growing() > 0 && !fits(pooled() + pooled_bytes(description_, room_to_begin()))) return;
      step();
      begin(*free, free - texts_.begin());
    }
  }

  // Begins the next waiting text, which has the lane until it ends or is put back. It may end with its first token.
  void begin(std::optional<Text>& place, int64_t lane) {
    if (put_back_.empty()) {
      const GenerationRequest& request = requests_[next_];
      place = Text{next_++, {description_, request.prompt, request.options}};
    } else {
      place = std::move(put_back_.back());
      put_back_.pop_back();
    }
    place->turn = num_turns_++;
    use_.most_texts = std::max(use_.most_texts, num_growing());
    Generation& text = place->continuation.generation;
    const std::span<const int32_t> prompt = requests_[place->request].prompt;
    if (!text.ids.empty()) ++text.decoded_tokens;  // the last one, which was not fed before
    if (!place->continuation.draw(lanes_->resume(lane, prompt, text.ids))) finish(static_cast<size_t>(lane));
  }

  // Puts texts back until the others have room for their next tokens.
  void make_room() {
    while (num_growing() > 1 && !fits(pooled())) {
      const auto last = std::max_element(texts_.begin(), texts_.end(), [](const auto& a, const auto& b) {
        return (a ? a->turn : -1) < (b ? b->turn : -1);
      });
      put_back_.push_back(std::move(**last));
      last->reset();
      lanes_->end(last - texts_.begin());
      ++use_.num_put_back;
    }
  }

  // Decodes one token of every text. Returns false if there is no text.
  bool grow() {
    make_room();
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
    lanes_->end(static_cast<int64_t>(lane));
    if (on_finished_) on_finished_(request, generations_[request]);
  }

  const ModelDescription& description_;
  std::span<const GenerationRequest> requests_;
  const OnFinished& on_finished_;
  const OnStep& on_step_;
  std::vector<Generation> generations_;
  std::unique_ptr<Transformer::Lanes> lanes_;
  std::optional<int64_t> pool_bytes_;       // none: every lane has memory of its own
  std::vector<std::optional<Text>> texts_;  // one place per lane
  std::vector<Text> put_back_;              // the next to begin is the last
  size_t next_ = 0;                         // the next request that waits and has not begun
  int64_t num_turns_ = 0;
  LaneUse use_;
};

}  // namespace

std::vector<Generation> generate_together(Transformer& model, std::span<const GenerationRequest> requests,
                                          const LaneLimits& limits, const OnFinished& on_finished,
                                          const OnStep& on_step, LaneUse* use) {
  if (requests.empty()) return {};
  GrowingTexts texts(model, requests, limits, on_finished, on_step);
  std::vector<Generation> generations = texts.run();
  if (use != nullptr) *use = texts.use();
  return generations;
}

}  // namespace pare::runtime
