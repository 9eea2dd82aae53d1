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

#include <atomic>
#include <chrono>
#include <memory>
#include <mutex>
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

// Calls Python while a call works: handlers of signals, and what wants to know of progress. It asks for the interpreter
// a few times in a second at most.
class Watch {
 public:
  explicit Watch(nb::object progress) : progress_(std::move(progress)) {}
  void operator()(double share) {
    const auto now = std::chrono::steady_clock::now();
    if (now - last_ < std::chrono::milliseconds(50)) return;
    last_ = now;
    const nb::gil_scoped_acquire interpreter;
    if (PyErr_CheckSignals() != 0) throw nb::python_error();
    if (!progress_.is_none()) progress_(share);
  }
  OnProgress on_progress() {
    return [this](double share) { (*this)(share); };
  }

 private:
  nb::object progress_;
  std::chrono::steady_clock::time_point last_ = std::chrono::steady_clock::now();
};

// The process that has loaded a model first. OpenMP's threads are not there in a process that is forked later, and its
// first wait for them would never end.
std::atomic<pid_t> first_process{0};
void refuse_fork() {
  pid_t expected = 0;
  if (first_process.compare_exchange_strong(expected, getpid()) || expected == getpid()) return;
  throw std::runtime_error(
      "this process was forked from one that had loaded a model, whose threads it lacks: start it anew "
      "(multiprocessing.get_context(\"spawn\"))");
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
  return std::make_unique<SharedModel>(Model::load(path, {.num_threads = num_threads,
                                                          .max_tokens = max_tokens,
                                                          .kv_bits = kv_bits,
                                                          .check_files = check_files,
                                                          .on_progress = watch.on_progress()}));
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
  Watch watch{nb::object(nb::none())};
  const GeneratedText text = shared.use([&](Model& model) {
    return model.generate(prompt, options, [&](std::string_view piece) {
      watch(0.0);
      const nb::gil_scoped_acquire interpreter;
      if (!on_text.is_none()) on_text(nb::bytes(piece.data(), piece.size()));
    });
  });
  return tuple_of(text);
}

std::vector<int32_t> generate_ids(SharedModel& shared, const Ids& prompt, const DrawOptions& options) {
  Watch watch{nb::object(nb::none())};
  return shared.use(
      [&](Model& model) { return model.generate_ids(span_of(prompt), options, [&](int32_t) { watch(0.0); }); });
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
             Watch watch{nb::object(nb::none())};
             std::vector<float> logits_TV =
                 shared.use([&](Model& model) { return model.logits(span_of(ids), watch.on_progress()); });
             return array_of(std::move(logits_TV), {ids.size(), static_cast<size_t>(shared.facts().vocabulary_size())});
           })
      .def("score",
           [](SharedModel& shared, const Ids& ids) {
             Watch watch{nb::object(nb::none())};
             std::vector<float> scores =
                 shared.use([&](Model& model) { return model.score(span_of(ids), watch.on_progress()); });
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
