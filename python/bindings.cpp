// pare._pare: runtime/api/pare.h for Python. The package around it (python/pare) checks types and keeps the names; here
// are the calls. std::invalid_argument becomes ValueError, std::runtime_error RuntimeError, std::bad_alloc MemoryError.
//
// The interpreter runs on while a call works: other threads go on, and handlers of signals are called, so that Ctrl-C
// ends the call with KeyboardInterrupt.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/filesystem.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>
#include <nanobind/stl/vector.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <filesystem>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>

#include "runtime/api/pare.h"

namespace pare {
namespace {

namespace nb = nanobind;
using namespace nb::literals;

using Ids = nb::ndarray<const int32_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
std::span<const int32_t> span_of(const Ids& ids) {
  return {ids.data(), ids.size()};
}

// Lets something happen a few times in a second at most.
class Seldom {
 public:
  bool is_due() {
    const auto now = std::chrono::steady_clock::now();
    if (now - last_ < std::chrono::milliseconds(50)) return false;
    last_ = now;
    return true;
  }

 private:
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

// Calls Python while a call of this thread works: handlers of signals, and what wants to know of progress.
class Watch {
 public:
  explicit Watch(nb::object progress = nb::none()) : progress_(std::move(progress)) {}
  OnProgress on_progress() {
    return [this](double share) {
      if (progress_.is_none() || !reports_.is_due()) return;
      const nb::gil_scoped_acquire interpreter;
      progress_(share);
    };
  }

 private:
  nb::object progress_;
  Seldom signals_, reports_;
  StopCheck stop_{[this] {
    if (!signals_.is_due()) return;
    const nb::gil_scoped_acquire interpreter;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
  }};
};

// The process in which OpenMP has started threads; 0: none yet. They are not there in a process that is forked later,
// and its first wait for them would never end.
std::atomic<pid_t> process_of_threads{0};
void refuse_fork() {
  const pid_t process = process_of_threads;
  if (process == 0 || process == getpid()) return;
  throw std::runtime_error(
      "pare cannot work in this process: it was forked from one that had loaded a model, whose threads it lacks. Start "
      "such processes by multiprocessing.get_context(\"spawn\"), or load no model before they are forked");
}

// The numbers of this process's threads.
std::set<std::string> thread_ids() {
  std::set<std::string> ids;
  for (const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) {
    ids.insert(entry.path().filename().string());
  }
  return ids;
}

// A model that several threads may call: one waits for another.
class SharedModel {
 public:
  explicit SharedModel(Model model) : model_(std::move(model)) {}

  // Calls `work` with the model, while other threads may use the interpreter.
  template <typename Work>
  auto use(const Work& work) {
    refuse_fork();
    const nb::gil_scoped_release others;
    if (worker_ == std::this_thread::get_id()) {
      throw std::runtime_error("the model is at work: a function that it calls cannot use it");
    }
    const std::lock_guard turn(mutex_);
    const Working working(worker_);
    return work(model_);
  }
  const Model& facts() const { return model_; }  // what does not change

 private:
  struct Working {
    explicit Working(std::atomic<std::thread::id>& worker) : worker_(worker) { worker_ = std::this_thread::get_id(); }
    ~Working() { worker_ = std::thread::id(); }
    Working(const Working&) = delete;
    Working& operator=(const Working&) = delete;
    std::atomic<std::thread::id>& worker_;
  };
  Model model_;
  std::mutex mutex_;
  std::atomic<std::thread::id> worker_{};
};

std::unique_ptr<SharedModel> load(const std::filesystem::path& path, int num_threads, int64_t max_tokens, int kv_bits,
                                  bool check_files, nb::object progress) {
  refuse_fork();
  Watch watch(std::move(progress));
  const nb::gil_scoped_release others;
  const std::set<std::string> before = thread_ids();
  try {
    auto shared = std::make_unique<SharedModel>(Model::load(path, {.num_threads = num_threads,
                                                                   .max_tokens = max_tokens,
                                                                   .kv_bits = kv_bits,
                                                                   .check_files = check_files,
                                                                   .on_progress = watch.on_progress()}));
    process_of_threads = getpid();
    return shared;
  } catch (...) {
    // What is refused early has started none. Nobody can tell those that others have started meanwhile.
    const std::set<std::string> after = thread_ids();
    if (!std::includes(before.begin(), before.end(), after.begin(), after.end())) process_of_threads = getpid();
    throw;
  }
}

nb::object array_of(std::vector<float> values, std::initializer_list<size_t> shape) {
  auto owned = std::make_unique<std::vector<float>>(std::move(values));
  const nb::capsule owner(owned.get(),
                          [](void* pointer) noexcept { delete static_cast<std::vector<float>*>(pointer); });
  float* const data = owned.release()->data();
  return nb::cast(nb::ndarray<nb::numpy, float>(data, shape, owner));
}

// The text in bytes: its last character may be cut.
nb::tuple tuple_of(const GeneratedText& text) {
  return nb::make_tuple(nb::bytes(text.text.data(), text.text.size()), text.ids, text.reached_end, text.reached_stop);
}

nb::tuple generate(SharedModel& shared, const std::string& prompt, const DrawOptions& options, nb::object on_text) {
  const Watch watch;
  const GeneratedText text = shared.use([&](Model& model) {
    return model.generate(prompt, options, [&](std::string_view piece) {
      const nb::gil_scoped_acquire interpreter;
      if (!on_text.is_none()) on_text(nb::bytes(piece.data(), piece.size()));
    });
  });
  return tuple_of(text);
}

std::vector<int32_t> generate_ids(SharedModel& shared, const Ids& prompt, const DrawOptions& options) {
  const Watch watch;
  return shared.use([&](Model& model) { return model.generate_ids(span_of(prompt), options); });
}

nb::list generate_until(SharedModel& shared, const std::vector<std::string>& prompts, const DrawOptions& options,
                        nb::object progress) {
  Watch watch(std::move(progress));
  const std::vector<GeneratedText> texts =
      shared.use([&](Model& model) { return model.generate_until(prompts, options, watch.on_progress()); });
  nb::list list;
  for (const GeneratedText& text : texts) list.append(tuple_of(text));
  return list;
}

nb::list loglikelihoods(SharedModel& shared, const std::vector<std::pair<std::string, std::string>>& pairs,
                        nb::object progress) {
  Watch watch(std::move(progress));
  std::vector<TextPair> texts;
  for (const auto& [context, continuation] : pairs) texts.push_back({context, continuation});
  const std::vector<Likelihood> found =
      shared.use([&](Model& model) { return model.loglikelihoods(texts, watch.on_progress()); });
  nb::list list;
  for (const Likelihood& one : found) {
    list.append(nb::make_tuple(one.sum, one.is_greedy, one.num_tokens, one.num_cut));
  }
  return list;
}

void bind_options(nb::module_& module) {
  nb::class_<DrawOptions>(module, "DrawOptions")
      .def(nb::init<>())
      .def_rw("max_new_tokens", &DrawOptions::max_new_tokens)
      .def_rw("temperature", &DrawOptions::temperature)
      .def_rw("top_k", &DrawOptions::top_k)
      .def_rw("top_p", &DrawOptions::top_p)
      .def_rw("min_p", &DrawOptions::min_p)
      .def_rw("seed", &DrawOptions::seed)
      .def_rw("repetition_penalty", &DrawOptions::repetition_penalty)
      .def_rw("stop", &DrawOptions::stop);
}

}  // namespace

NB_MODULE(_pare, module) {
  module.attr("version") = std::string(version());
  module.attr("whole_context") = kWholeContext;
  bind_options(module);
  module.def("load", &load, "path"_a, "num_threads"_a, "max_tokens"_a, "kv_bits"_a, "check_files"_a,
             "progress"_a.none());
  nb::class_<SharedModel>(module, "Model")
      .def_prop_ro("vocabulary_size", [](const SharedModel& shared) { return shared.facts().vocabulary_size(); })
      .def_prop_ro("max_tokens", [](const SharedModel& shared) { return shared.facts().max_tokens(); })
      .def_prop_ro("context_length", [](const SharedModel& shared) { return shared.facts().context_length(); })
      .def_prop_ro("num_threads", [](const SharedModel& shared) { return shared.facts().num_threads(); })
      .def_prop_ro("chat_template", [](const SharedModel& shared) { return shared.facts().chat_template(); })
      .def("tokenize",
           [](SharedModel& shared, const std::string& text, bool add_special_tokens) {
             return shared.use([&](Model& model) { return model.tokenize(text, add_special_tokens); });
           })
      .def("text_of",
           [](SharedModel& shared, const Ids& ids) {
             const std::string text = shared.use([&](Model& model) { return model.text_of(span_of(ids)); });
             return nb::bytes(text.data(), text.size());
           })
      .def("chat_text",
           [](SharedModel& shared, const std::string& conversation, bool is_to_be_answered) {
             return shared.use([&](Model& model) { return model.chat_text(conversation, is_to_be_answered); });
           })
      .def("logits",
           [](SharedModel& shared, const Ids& ids) {
             const Watch watch;
             std::vector<float> logits_TV = shared.use([&](Model& model) { return model.logits(span_of(ids)); });
             return array_of(std::move(logits_TV), {ids.size(), static_cast<size_t>(shared.facts().vocabulary_size())});
           })
      .def("score",
           [](SharedModel& shared, const Ids& ids) {
             const Watch watch;
             std::vector<float> scores = shared.use([&](Model& model) { return model.score(span_of(ids)); });
             const size_t count = scores.size();
             return array_of(std::move(scores), {count});
           })
      .def("loglikelihoods", &loglikelihoods, "pairs"_a, "progress"_a.none())
      .def(
          "text_loglikelihoods",
          [](SharedModel& shared, const std::vector<std::string>& texts, nb::object progress) {
            Watch watch(std::move(progress));
            return shared.use([&](Model& model) { return model.text_loglikelihoods(texts, watch.on_progress()); });
          },
          "texts"_a, "progress"_a.none())
      .def("generate", &generate, "prompt"_a, "options"_a, "on_text"_a.none())
      .def("generate_ids", &generate_ids)
      .def("generate_until", &generate_until, "prompts"_a, "options"_a, "progress"_a.none());
}

}  // namespace pare
