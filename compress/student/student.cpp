#include "compress/student/student.h"

#include <ATen/ops/empty.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>

#include "compress/artifact/hugging_face.h"
#include "compress/student/measure.h"
#include "compress/student/student_channels.h"
#include "compress/student/student_config.h"
#include "runtime/commands/small_files.h"
#include "runtime/system/atomic_file.h"
#include "runtime/system/interrupt.h"
#include "runtime/system/mapped_file.h"

namespace pare::compress {
namespace {

namespace fs = std::filesystem;

// Makes one of the student's tensors from the teacher's float32 tensor.
using Change = std::function<at::Tensor(const at::Tensor&)>;

struct StudentTensor {
  std::vector<int64_t> shape;
  Change change;
};
using StudentTensors = std::map<std::string, StudentTensor>;  // keys are the teacher's names

Change matrix_change(std::function<distill::ChannelMap()> rows, std::function<distill::ChannelMap()> columns) {
  return [rows = std::move(rows), columns = std::move(columns)](const at::Tensor& weight_OI) {
    return distill::map_matrix(weight_OI, rows(), columns());
  };
}

// Builds the changes of all tensors whose heads or channels change. The maps are made when a tensor is. `channels` and
// `student` must outlive the result.
class TensorTable {
 public:
  TensorTable(const runtime::ModelDescription& teacher, const runtime::ModelDescription& student,
              const StudentChannels& channels)
      : teacher_(teacher), student_(student), channels_(channels) {
    for (size_t b = 0; b < channels.blocks.size(); ++b) add_block(channels.blocks[b], student.blocks[b]);
    if (student.hidden_size == teacher.hidden_size) return;
    const auto width = [&channels] { return distill::mean_of_groups(channels.hidden); };
    add_matrix({teacher.embedding_name, teacher.vocabulary_size, teacher.hidden_size, false}, student.hidden_size,
               teacher.vocabulary_size, rows_as_they_are(teacher.vocabulary_size),
               [width, factor = channels.embedding_factor] {
                 distill::ChannelMap map = width();
                 for (auto& terms : map.terms) {
                   for (distill::ChannelMap::Term& term : terms) term.factor *= factor;
                 }
                 return map;
               });
    if (!teacher.tied_head) {
      add_matrix(teacher.head, student.hidden_size, teacher.vocabulary_size, rows_as_they_are(teacher.vocabulary_size),
                 reader(channels.final_norm));
    }
    add_norm(teacher.final_norm, channels.final_norm);
  }
  StudentTensors take() { return std::move(tensors_); }

 private:
  using Map = std::function<distill::ChannelMap()>;

  static Map rows_as_they_are(int64_t num_rows) {
    return [num_rows] { return distill::sum_of_groups(distill::all_channels(num_rows)); };
  }
  Map reader(const StudentNorm& norm) const {
    return [&hidden = channels_.hidden, &norm] {
      // Gains are read only where the width changes.
      return norm.gain_D.empty() ? distill::sum_of_groups(hidden) : distill::sum_of_gained(hidden, norm.gain_D);
    };
  }

  void add_matrix(const runtime::LinearDescription& linear, int64_t num_in, int64_t num_out, Map rows, Map columns) {
    if (linear.has_bias) {
      tensors_[linear.name + ".bias"] = {
          {num_out}, [rows](const at::Tensor& bias_O) { return distill::map_vector(bias_O, rows()); }};
    }
    tensors_[linear.name + ".weight"] = {{num_out, num_in}, matrix_change(std::move(rows), std::move(columns))};
  }

  void add_norm(const runtime::NormDescription& norm, const StudentNorm& gains) {
    if (gains.gain_D.empty()) return;
    tensors_[norm.name + ".weight"] = {
        {static_cast<int64_t>(gains.student_gain.size())}, [&gains, has_offset = norm.unit_offset](const at::Tensor&) {
          const auto size = static_cast<int64_t>(gains.student_gain.size());
          at::Tensor stored = at::empty({size}, at::kFloat);
          std::copy(gains.student_gain.begin(), gains.student_gain.end(), stored.data_ptr<float>());
          return has_offset ? stored.sub(1.0) : stored;
        }};
  }

  void add_block(const StudentBlock& block, const runtime::BlockDescription& student) {
    const runtime::BlockDescription& teacher = teacher_.blocks[static_cast<size_t>(block.kept)];
    const int64_t head_size = teacher_.head_size;  // also the student's
    const auto heads = [&block, head_size] { return distill::channels_of_heads(block.heads.heads, head_size); };
    const auto kv_heads = [&block, head_size] { return distill::channels_of_heads(block.heads.kv_heads, head_size); };
    const Map written = [&hidden = channels_.hidden] { return distill::mean_of_groups(hidden); };
    const Map attention_reader = reader(block.attention_norm), feed_forward_reader = reader(block.feed_forward_norm);
    const auto add = [&](const runtime::LinearDescription& from, const runtime::LinearDescription& to, Map rows,
                         Map columns) { add_matrix(from, to.num_in, to.num_out, std::move(rows), std::move(columns)); };
    const bool has_width = student_.hidden_size != teacher_.hidden_size;
    if (has_width || student_.num_heads != teacher_.num_heads || student_.num_kv_heads != teacher_.num_kv_heads) {
      add(
          teacher.q, student.q, [heads] { return distill::mean_of_groups(heads()); }, attention_reader);
      add(
          teacher.k, student.k, [kv_heads] { return distill::mean_of_groups(kv_heads()); }, attention_reader);
      add(
          teacher.v, student.v, [kv_heads] { return distill::mean_of_groups(kv_heads()); }, attention_reader);
      add(teacher.o, student.o, written, [heads] { return distill::sum_of_groups(heads()); });
    }
    const runtime::FeedForwardDescription& from = teacher.experts.front();
    const runtime::FeedForwardDescription& to = student.experts.front();
    const Map made = [&block] { return distill::mean_of_groups(block.feed_forward); };
    if (has_width || student_.feed_forward_size != teacher_.feed_forward_size) {
      add(from.gate, to.gate, made, feed_forward_reader);
      add(from.up, to.up, made, feed_forward_reader);
      add(from.down, to.down, written, [&block] { return distill::sum_of_groups(block.feed_forward); });
    }
    add_norm(teacher.attention_norm, block.attention_norm);
    add_norm(teacher.feed_forward_norm, block.feed_forward_norm);
    if (teacher.post_attention_norm) add_norm(*teacher.post_attention_norm, block.post_attention_norm);
    if (teacher.post_feed_forward_norm) add_norm(*teacher.post_feed_forward_norm, block.post_feed_forward_norm);
  }

  const runtime::ModelDescription &teacher_, &student_;
  const StudentChannels& channels_;
  StudentTensors tensors_;
};

// Returns the options without those that ask for the teacher's own sizes.
StudentOptions without_unchanged(StudentOptions options, const runtime::ModelDescription& model) {
  const auto drop = [](int64_t& asked, int64_t of_teacher) {
    if (asked == of_teacher) asked = StudentOptions::kOfTeacher;
  };
  drop(options.layers, static_cast<int64_t>(model.blocks.size()));
  drop(options.heads, model.num_heads);
  drop(options.kv_heads, model.num_kv_heads);
  drop(options.hidden_size, model.hidden_size);
  drop(options.feed_forward_size, model.feed_forward_size);
  return options;
}

// Returns whether heads and channels can be taken out of each tensor by itself.
bool has_widths_of_its_own(const runtime::ModelDescription& model) {
  const runtime::BlockDescription& block = model.blocks.front();
  const bool spans_heads = block.q_norm && block.q_norm->width != model.head_size;
  return !block.qkv && !block.experts.front().gate_up && !spans_heads && block.attention_norm.exists() &&
         block.feed_forward_norm.exists() && !block.attention_norm.centers && block.experts.front().is_gated() &&
         !block.is_parallel && !block.latent;
}

[[noreturn]] void refuse(const std::string& what) {
  throw std::invalid_argument("student: " + what);
}

void check_at_most(const std::string& key, int64_t given, int64_t of_teacher) {
  if (given == StudentOptions::kOfTeacher || (given >= 1 && given <= of_teacher)) return;
  refuse(key + ": expected from 1 to the teacher's " + std::to_string(of_teacher) + ", found " + std::to_string(given));
}

void check_heads(const runtime::ModelDescription& model, const StudentOptions& options) {
  const distill::HeadCounts teacher{model.num_heads, model.num_kv_heads};
  distill::HeadCounts student = teacher;
  if (options.heads != StudentOptions::kOfTeacher) student.heads = options.heads;
  if (options.kv_heads != StudentOptions::kOfTeacher) student.kv_heads = options.kv_heads;
  try {
    if (options.widths == WidthChoice::average) {
      distill::merge_heads(teacher, student);
    } else {
      distill::keep_heads(std::vector<double>(static_cast<size_t>(teacher.heads), 0.0), teacher, student);
    }
  } catch (const std::invalid_argument& error) {
    refuse(std::string(error.what()) + " (student's 'heads', 'kv_heads' and 'widths')");
  }
}

// Returns what stands before a layer's number: "model.layers.".
std::string before_layer(const runtime::ModelDescription& model) {
  const std::string& first = model.blocks.front().name;
  return first.substr(0, first.rfind('.') + 1);
}

// Returns the number of the teacher's layer in a tensor's name, or nullopt for a name outside the layers.
std::optional<int64_t> layer_of(const std::string& layers, const std::string& name) {
  if (!name.starts_with(layers)) return std::nullopt;
  const size_t end = name.find_first_not_of("0123456789", layers.size());
  if (end == layers.size() || end - layers.size() > 9 || end == std::string::npos || name[end] != '.') {
    return std::nullopt;
  }
  return std::stoll(name.substr(layers.size(), end - layers.size()));
}

void copy_small_files(const fs::path& source, const fs::path& directory) {
  for (const std::string& name : runtime::find_small_files(source).copied) {
    const fs::path copy = directory / name;
    fs::create_directories(copy.parent_path());
    runtime::copy_small_file(source, name, copy);
  }
}

// Returns the student's tensors in the order of the teacher's names. The arguments must live until the tensors are
// written.
std::vector<runtime::StreamedTensor> stream_tensors(const runtime::Checkpoint& teacher, const StudentChannels& channels,
                                                    const StudentTensors& changes,
                                                    const std::function<void()>& written) {
  const runtime::ModelDescription& model = teacher.description();
  const std::string layers = before_layer(model);
  std::vector<runtime::StreamedTensor> tensors;
  for (const std::string& name : teacher.tensor_names()) {
    if (is_left_out(teacher, name)) continue;
    std::string student_name = name, below_block;
    std::vector<int64_t> run;
    if (const std::optional<int64_t> layer = layer_of(layers, name)) {
      const auto block = std::find_if(channels.blocks.begin(), channels.blocks.end(),
                                      [&](const StudentBlock& b) { return b.kept == *layer; });
      // Blocks behind the last one stay behind all others.
      const bool is_behind = *layer >= static_cast<int64_t>(model.blocks.size());
      if (block == channels.blocks.end() && !(is_behind && channels.blocks.size() == model.blocks.size())) continue;
      if (!is_behind) {
        below_block = name.substr(model.blocks[static_cast<size_t>(*layer)].name.size() + 1);
        student_name = layers + std::to_string(block - channels.blocks.begin()) + "." + below_block;
        run = block->run;
      }
    }
    const runtime::TensorLayout view = teacher.layout(name);
    const auto change = changes.find(name);
    const bool is_averaged = run.size() > 1 && runtime::is_float_dtype(view.dtype);
    if (change == changes.end() && !is_averaged) {
      runtime::StreamedTensor tensor = source_tensor(teacher, name, student_name);
      tensor.produce = [&written, produce = std::move(tensor.produce)](const runtime::ByteSink& sink) {
        runtime::throw_if_interrupted();
        produce(sink);
        written();
      };
      tensors.push_back(std::move(tensor));
      continue;
    }
    const bool has_change = change != changes.end();
    tensors.push_back({student_name, view.dtype, has_change ? change->second.shape : view.shape,
                       [&teacher, &written, name, run, below_block, dtype = view.dtype,
                        apply = has_change ? change->second.change : Change()](const runtime::ByteSink& sink) {
                         runtime::throw_if_interrupted();
                         const TeacherWeights weights(teacher);
                         at::Tensor values = run.empty() ? weights.read(name) : weights.mean(run, below_block);
                         if (apply) values = apply(values);
                         const auto size = static_cast<size_t>(values.numel());
                         std::vector<std::byte> bytes(size * runtime::dtype_size_bytes(dtype));
                         runtime::convert_from_float(dtype, {values.const_data_ptr<float>(), size}, bytes);
                         sink(bytes);
                         written();
                       }});
  }
  return tensors;
}

}  // namespace

int64_t num_blocks_behind(const runtime::Checkpoint& teacher) {
  const std::string layers = before_layer(teacher.description());
  std::set<int64_t> behind;
  for (const std::string& name : teacher.tensor_names()) {
    const std::optional<int64_t> layer = layer_of(layers, name);
    if (layer && *layer >= static_cast<int64_t>(teacher.description().blocks.size())) behind.insert(*layer);
  }
  return static_cast<int64_t>(behind.size());
}

void check_student(const runtime::Checkpoint& teacher, const StudentOptions& options) {
  const std::string where = "'" + teacher.directory().string() + "'";
  if (teacher.is_encoder()) refuse("expected a decoder, found the encoder " + where);
  if (teacher.is_quantized()) {
    refuse("expected a teacher with plain weights, found " + where + ", which is compressed (" +
           teacher.quantization_method() + "): give the model that it was made of");
  }
  if (!teacher.sparsity_thresholds().empty()) {
    refuse("expected a teacher that keeps all inputs, found " + where +
           ", which drops small ones (activation_sparsity): give the model that it was made of");
  }
  const runtime::ModelDescription& model = teacher.description();
  if (model.is_text_part) {
    refuse("the teacher " + where +
           " is the text part of a model of images, whose other parts fit no other widths and layers: save the "
           "language model by itself, and give that");
  }
  if (model.has_mixture() && options.changes_widths()) {
    refuse("the teacher " + where +
           " is a mixture of experts, which can lose layers but no heads or channels: leave out 'heads', "
           "'kv_heads', 'hidden_size' and 'feed_forward_size'");
  }
  if (options.changes_widths() && !has_widths_of_its_own(model)) {
    refuse("the blocks of the teacher " + where +
           " hold several linears in one tensor, are parallel, have no gate, or have other norms than Llama; they can "
           "lose layers but no heads or channels: leave out 'heads', 'kv_heads', 'hidden_size' and "
           "'feed_forward_size'");
  }
  if (model.has_mixture() && options.merge == LayerMerge::average) {
    refuse("the teacher " + where +
           " is a mixture of experts, whose layers have no expert in common that could be averaged: use 'merge: copy'");
  }
  check_at_most("layers", options.layers, static_cast<int64_t>(model.blocks.size()));
  check_at_most("heads", options.heads, model.num_heads);
  check_at_most("kv_heads", options.kv_heads, model.num_kv_heads);
  check_at_most("hidden_size", options.hidden_size, model.hidden_size);
  check_at_most("feed_forward_size", options.feed_forward_size, model.feed_forward_size);
  if (options.heads != StudentOptions::kOfTeacher || options.kv_heads != StudentOptions::kOfTeacher) {
    check_heads(model, options);
  }
  if (options.hidden_size != StudentOptions::kOfTeacher && options.widths == WidthChoice::average &&
      model.hidden_size % options.hidden_size != 0) {
    refuse("hidden_size: averaged channels come in groups of one size: expected a divisor of the teacher's " +
           std::to_string(model.hidden_size) + ", found " + std::to_string(options.hidden_size) +
           ": choose one, or use 'widths: importance'");
  }
}

void make_student(const runtime::Checkpoint& teacher, const StudentOptions& asked,
                  const runtime::TokenWindows* calibration, const fs::path& directory, runtime::Progress& progress) {
  check_student(teacher, asked);
  const StudentOptions options = without_unchanged(asked, teacher.description());
  const bool measures = needs_measure(options, calibration != nullptr);
  if (measures && calibration == nullptr) {
    refuse("choose: block_error compares hidden states on a text: give a calibration, or use every");
  }
  fs::create_directories(directory);
  if (!fs::is_empty(directory)) {
    throw std::runtime_error("student: expected an empty folder, found files in '" + directory.string() +
                             "': remove them or choose another");
  }
  teacher.check_values();

  const runtime::ModelDescription& model = teacher.description();
  std::optional<TeacherMeasure> measure;
  if (measures) {
    const bool merges = options.widths == WidthChoice::average && options.hidden_size != StudentOptions::kOfTeacher;
    measure =
        measure_teacher(teacher, *calibration, merges ? std::optional(options.hidden_size) : std::nullopt, progress);
  }
  const TeacherMeasure* const measured = measure ? &*measure : nullptr;
  const std::vector<int64_t> kept = choose_layers(model, options, measured);
  const std::string config = student_config(teacher.config_json(), model, options, kept);
  const runtime::ModelDescription student = runtime::describe_model(config, "the student's config.json", model.dtype);
  const StudentChannels channels =
      choose_channels(teacher, options, measured,
                      static_cast<double>(model.embedding_scale) / static_cast<double>(student.embedding_scale));
  const StudentTensors changes =
      options.changes_widths() ? TensorTable(model, student, channels).take() : StudentTensors{};

  int64_t num_written = 0;
  const std::function<void()> written = [&] { progress.update(++num_written); };
  std::vector<runtime::StreamedTensor> tensors = stream_tensors(teacher, channels, changes, written);
  give_stored_form(teacher, tensors);
  progress.begin("student", static_cast<int64_t>(tensors.size()), "tensors");
  write_weight_files(std::move(tensors), directory);
  progress.finish();
  copy_small_files(teacher.directory(), directory);
  runtime::write_file_atomically(directory / "config.json", config);
  teacher.check_unchanged();
  // A sum may leave the range of a 16-bit type.
  runtime::Checkpoint::open(directory).check_values();
}

}  // namespace pare::compress
