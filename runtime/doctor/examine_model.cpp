#include "runtime/doctor/examine_model.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>

#include "runtime/containers/compressed_tensors.h"
#include "runtime/containers/gptq.h"
#include "runtime/doctor/examine_lists.h"
#include "runtime/doctor/packed_module.h"
#include "runtime/families/families.h"
#include "runtime/system/interrupt.h"

namespace pare::runtime {
namespace {

// Tensors that other programs store beside a model's own, and nobody needs: what can be computed, masks, and scales of
// caches.
constexpr std::array<std::string_view, 12> kBesides = {
    "rotary_emb.inv_freq", ".attn.bias",   ".attn.masked_bias", ".attention.bias", ".attention.masked_bias",
    "position_ids",        ".k_scale",     ".v_scale",          ".q_scale",        ".output_scale",
    ".k_zero_point",       ".v_zero_point"};

struct Mismatch {
  std::string tensor;  // by its name in the files
  std::string expected, found;
};

std::string type_and_shape(const TensorView& view) {
  return std::string(dtype_name(view.dtype)) + " " + shape_text(view.shape);
}

class ModelExam {
 public:
  ModelExam(const Patient& patient, const Needs& needs, const Claims& claims, const std::set<std::string>& explained)
      : patient_(patient), needs_(needs), claims_(claims), explained_(explained), find_(patient.find_described()) {}

  void look_at_floats() {
    for (const auto& [name, shape] : needs_.floats()) look_at(name, shape);
  }

  void look_at_layer(const LinearDescription& linear) {
    const std::string stored = patient_.stored_name(linear.name);
    if (linear.has_bias) look_at(linear.name + ".bias", {linear.num_out});
    look_at_other_bias(linear, stored);
    const ModuleForm form = form_of(patient_, linear.name);
    if (!form.is_there()) return missing_.push_back(stored + ".weight");
    if (look_at_shape(linear, form)) return;
    if (explained_.contains(stored)) return;
    std::optional<PackScheme> scheme;
    std::string failure = failure_of([&] {
      if (patient_.quantization) {
        scheme = stored_scheme(*patient_.quantization, patient_.table, linear.name,
                               needs_.is_embedding(linear.name) ? "Embedding" : "Linear");
      }
    });
    if (failure.empty() && scheme && !scheme->has_own_tensor()) {
      failure = failure_of(
          [&] { patient_.quantization->container->load(find_, *scheme, linear.num_out, linear.num_in, linear.name); });
    } else if (failure.empty() && !form.has_floats) {
      failure = "its tensors are codes (" + form.codes.front().substr(1) + "), which quantization_config does not say";
      if (!patient_.quantization) return;  // said of all together
    }
    if (!failure.empty()) note_refused(stored, linear.name, failure);
    drop(linear.name);
  }

  void conclude(std::vector<Finding>& findings) {
    conclude_shapes(findings);
    conclude_missing(findings);
    conclude_others(findings);
    for (auto& [what, names] : refused_) {
      findings.push_back({.illness = Illness::layer_refused,
                          .concerned = names,
                          .what = count_text(names.size(), "layer") + " cannot be read: " + what,
                          .figures = {{"layers", static_cast<double>(names.size())}},
                          .advice = "quantize the original again, or fetch the tensors of one revision"});
    }
  }

 private:
  void look_at(const std::string& name, const std::vector<int64_t>& shape) {
    const TensorView* const view = find_(name);
    if (view == nullptr) {
      missing_.push_back(patient_.stored_name(name));
    } else if (!is_float_dtype(view->dtype) || view->shape != shape) {
      // Vectors of experts may have a first axis of length 1.
      if (is_float_dtype(view->dtype) && view->shape.size() == 2 && view->shape[0] == 1 && shape.size() == 1 &&
          view->shape[1] == shape[0]) {
        return;
      }
      mismatches_.push_back({patient_.stored_name(name), shape_text(shape), type_and_shape(*view)});
    }
  }

  // A bias that config.json does not know would be left out. Zeros change nothing.
  void look_at_other_bias(const LinearDescription& linear, const std::string& stored) {
    const TensorView* const bias = linear.has_bias ? nullptr : find_(linear.name + ".bias");
    if (bias == nullptr || !is_float_dtype(bias->dtype)) return;
    std::vector<float> values(static_cast<size_t>(bias->num_elements()));
    convert_to_float(bias->dtype, bias->data, values);
    if (std::ranges::all_of(values, [](float value) { return value == 0.0f; })) return;
    mismatches_.push_back({stored + ".bias", "no bias", type_and_shape(*bias)});
  }

  // Returns the shape [O, I] of a layer's weight, by its tensors; empty: they do not tell.
  std::vector<int64_t> shape_of(const LinearDescription& linear, const ModuleForm& form) const {
    if (form.has_floats) return find_(linear.name + ".weight")->shape;
    const std::string stored = patient_.stored_name(linear.name);
    if (form.codes.front() == kGptqWeightSuffix) {
      const std::optional<PackScheme> claim = claims_.scheme_of(linear.name);
      const PackedModule module = packed_module(stored, patient_.find_stored(), claim ? claim->bits : 4);
      return module.problem.empty() ? std::vector{module.num_out, module.num_in} : std::vector<int64_t>();
    }
    const TensorView* const plain = find_(linear.name + std::string(kPlainSuffix));
    const bool is_by_row = plain != nullptr && (plain->dtype == DType::I8 || plain->dtype == DType::F8_E4M3);
    if (is_by_row) return plain->shape;
    const TensorView* const said = find_(linear.name + std::string(kShapeSuffix));
    if (said == nullptr || said->dtype != DType::I64 || said->shape != std::vector<int64_t>{2}) return {};
    std::vector<int64_t> shape(2);
    std::memcpy(shape.data(), said->data.data(), 2 * sizeof(int64_t));
    return shape;
  }

  bool look_at_shape(const LinearDescription& linear, const ModuleForm& form) {
    const std::vector<int64_t> expected = {linear.num_out, linear.num_in}, found = shape_of(linear, form);
    if (found.empty() || found == expected) return false;
    const std::string suffix = form.has_floats ? ".weight" : form.codes.front();
    mismatches_.push_back({patient_.stored_name(linear.name) + suffix, shape_text(expected), shape_text(found)});
    shapes_[linear.name] = found;
    return true;
  }

  void note_refused(const std::string& stored, const std::string& described, std::string failure) {
    // Layers that fail for the same reason are one finding.
    for (const std::string& name : {patient_.directory.string(), stored, described}) {
      for (size_t at = failure.find(name); !name.empty() && at != std::string::npos; at = failure.find(name)) {
        failure.replace(at, name.size(), "...");
      }
    }
    if (failure.starts_with("'...': ")) failure.erase(0, 7);
    refused_[failure].push_back(stored);
  }

  void drop(const std::string& module) const {
    patient_.table.drop_pages(module + ".weight");
    if (!patient_.quantization) return;
    for (const std::string_view suffix : patient_.quantization->container->suffixes()) {
      patient_.table.drop_pages(module + std::string(suffix));
    }
  }

  // Adds what the tensors say of the sizes in config.json.
  void add_sizes(Finding& finding) const {
    if (!patient_.model) return;
    const ModelDescription& model = *patient_.model;
    const DecoderFamily* const family = decoder_families().find(&DecoderFamily::name, model.family);
    if (family == nullptr) return;
    std::string text;
    const auto say = [&](std::string_view key, int64_t said, int64_t found) {
      if (said == found || found <= 0) return;
      text += (text.empty() ? "" : ", ") + std::string(key) + " " + std::to_string(said) + ", where they are of " +
              std::to_string(found);
      finding.figures.push_back({std::string(key) + "_of_config", static_cast<double>(said)});
      finding.figures.push_back({std::string(key) + "_of_tensors", static_cast<double>(found)});
    };
    const auto side = [&](const std::string& module, size_t axis) {
      const auto found = shapes_.find(module);
      return found == shapes_.end() || found->second.size() != 2 ? int64_t{0} : found->second[axis];
    };
    say("vocab_size", model.vocabulary_size, side(model.embedding_name, 0));
    const int64_t width = side(model.embedding_name, 1);
    say(family->sizes.hidden, model.hidden_size, width);
    if (width == 0 || width == model.hidden_size) {
      const BlockDescription& block = model.blocks.front();
      if (!block.qkv && !block.latent) {
        const auto heads = [&](const std::string& module) {
          const int64_t rows = side(module, 0);
          return rows % model.head_size == 0 ? rows / model.head_size : 0;
        };
        say(family->sizes.heads, model.num_heads, heads(block.q.name));
        say("num_key_value_heads", model.num_kv_heads, heads(block.k.name));
      }
      if (!block.is_mixture()) {
        say(family->sizes.feed_forward, block.experts.front().down.num_in, side(block.experts.front().down.name, 1));
      }
    }
    if (!text.empty()) finding.what += ". config.json says " + text;
  }

  void conclude_shapes(std::vector<Finding>& findings) const {
    if (mismatches_.empty()) return;
    Finding finding{.illness = Illness::shape_contradicts_config};
    for (const Mismatch& mismatch : mismatches_) finding.concerned.push_back(mismatch.tensor);
    const Mismatch& first = mismatches_.front();
    finding.what = count_text(mismatches_.size(), "tensor") + " of another shape or type than config.json says; of '" +
                   first.tensor + "' expected " + first.expected + ", found " + first.found;
    finding.figures = {{"tensors", static_cast<double>(mismatches_.size())}};
    add_sizes(finding);
    finding.advice = "take the config.json that belongs to these weights";
    findings.push_back(std::move(finding));
  }

  void conclude_missing(std::vector<Finding>& findings) {
    if (missing_.empty()) return;
    std::ranges::sort(missing_);
    std::set<size_t> whole;  // blocks of which nothing is there
    const std::vector<std::string> names = block_names();
    for (size_t b = 0; b < names.size(); ++b) {
      const std::string prefix = patient_.stored_name(names[b]) + ".";
      const auto first = patient_.tensors.lower_bound(prefix);
      if (first == patient_.tensors.end() || !first->first.starts_with(prefix)) whole.insert(b);
    }
    Finding finding{
        .illness = Illness::missing_tensors,
        .concerned = missing_,
        .what = "the model of config.json needs " + count_text(missing_.size(), "tensor") + " that no file holds",
        .figures = {{"tensors", static_cast<double>(missing_.size())}},
        .advice = "fetch the whole checkpoint"};
    // Other programs' blocks may have other names, which all are missing then.
    if (!whole.empty() && whole.size() < names.size()) {
      finding.what += ", those of " + count_text(whole.size(), "whole layer") + " among them, from layer " +
                      std::to_string(*whole.begin()) + " on";
      finding.figures.push_back({"whole_layers", static_cast<double>(whole.size())});
      finding.figures.push_back({"layers_of_config", static_cast<double>(names.size())});
      if (*whole.begin() + whole.size() == names.size()) {
        finding.advice = "fetch the whole checkpoint; if the model has " + std::to_string(*whole.begin()) +
                         " layers, config.json is another model's";
      }
    }
    findings.push_back(std::move(finding));
  }

  std::vector<std::string> block_names() const {
    std::vector<std::string> names;
    if (patient_.model) {
      for (const BlockDescription& block : patient_.model->blocks) names.push_back(block.name);
    } else {
      for (const EncoderBlockDescription& block : patient_.encoder->blocks) names.push_back(block.name);
    }
    return names;
  }

  // Returns the number of the block whose tensor this is; -1: it is none of a block.
  static int64_t block_of(const std::string& tensor, const std::string& first_block) {
    const std::string prefix = first_block.substr(0, first_block.size() - 1);  // without the 0
    if (!tensor.starts_with(prefix)) return -1;
    size_t end = prefix.size();
    while (end < tensor.size() && tensor[end] >= '0' && tensor[end] <= '9' && end < prefix.size() + 6) ++end;
    if (end == prefix.size() || end >= tensor.size() || tensor[end] != '.') return -1;
    return std::stoll(tensor.substr(prefix.size(), end - prefix.size()));
  }

  int64_t num_next_token_layers() const {
    int64_t number = 0;
    failure_of([&] {
      const nlohmann::json config = parse_json(patient_.config_json, kConfigName);
      const auto found = config.find("num_nextn_predict_layers");
      if (found != config.end() && found->is_number_unsigned()) number = found->get<int64_t>();
    });
    return number;
  }

  void conclude_others(std::vector<Finding>& findings) const {
    const std::vector<std::string> blocks = block_names();
    const int64_t num_blocks = static_cast<int64_t>(blocks.size()) + num_next_token_layers();
    std::vector<std::string> beyond, unread;
    int64_t last = 0;
    const bool is_part = patient_.encoder || (patient_.model && patient_.model->is_text_part);
    for (const std::string& name : patient_.table.names()) {
      if (needs_.knows(name)) continue;
      const int64_t block = block_of(name, blocks.front());
      if (block >= num_blocks) {
        last = std::max(last, block);
        beyond.push_back(patient_.stored_name(name));
        continue;
      }
      if (is_part || block >= static_cast<int64_t>(blocks.size())) continue;
      const bool is_beside =
          std::ranges::any_of(kBesides, [&](std::string_view beside) { return name.ends_with(beside); });
      if (!is_beside) unread.push_back(patient_.stored_name(name));
    }
    if (!beyond.empty()) {
      findings.push_back({.illness = Illness::layers_beyond_config,
                          .certainty = Certainty::likely,
                          .concerned = beyond,
                          .what = "config.json says " + std::to_string(blocks.size()) + " layers, and files hold " +
                                  std::to_string(last + 1),
                          .figures = {{"layers_of_config", static_cast<double>(blocks.size())},
                                      {"layers_of_tensors", static_cast<double>(last + 1)},
                                      {"tensors", static_cast<double>(beyond.size())}},
                          .advice = "take the config.json that belongs to these weights"});
    }
    if (unread.empty()) return;
    findings.push_back({.illness = Illness::unread_tensors,
                        .certainty = Certainty::information,
                        .concerned = unread,
                        .what = "the model of config.json does not need " + count_text(unread.size(), "tensor"),
                        .figures = {{"tensors", static_cast<double>(unread.size())}},
                        .advice = "they may belong to a part that pare does not read"});
  }

  const Patient& patient_;
  const Needs& needs_;
  const Claims& claims_;
  const std::set<std::string>& explained_;
  FindTensor find_;
  std::vector<std::string> missing_;
  std::vector<Mismatch> mismatches_;
  std::map<std::string, std::vector<int64_t>> shapes_;  // those that differ, by the description's names of modules
  std::map<std::string, std::vector<std::string>> refused_;
};

}  // namespace

Needs::Needs(const Patient& patient) {
  if (patient.model) add_decoder(*patient.model);
  if (patient.model && !patient.model->tied_head && form_of(patient, patient.model->head.name).is_there()) {
    linears_.push_back(patient.model->head);
  }
  if (patient.encoder) add_encoder(*patient.encoder);
  for (const auto& [name, shape] : floats_) needed_.insert(name);
  for (const LinearDescription& linear : linears_) {
    modules_.insert(linear.name);
    needed_.insert(linear.name + ".weight");
    if (linear.has_bias) needed_.insert(linear.name + ".bias");
  }
}

void Needs::add_decoder(const ModelDescription& model) {
  linears_.push_back({model.embedding_name, model.vocabulary_size, model.hidden_size, false});
  tables_.insert(model.embedding_name);
  if (model.has_learned_positions()) {
    linears_.push_back(model.position_table);
    tables_.insert(model.position_table.name);
  }
  for (const LinearDescription& linear : block_linears(model)) linears_.push_back(linear);
  modules_.insert(model.head.name);  // its presence is a matter of its own (examine_head.h)
  for (const NormDescription& norm : all_norms(model)) {
    floats_.push_back({norm.name + ".weight", {norm.width}});
    if (norm.has_bias) floats_.push_back({norm.name + ".bias", {norm.width}});
  }
  for (const BlockDescription& block : model.blocks) {
    for (const VectorDescription& vector : block.vectors()) floats_.push_back({vector.name, {vector.size}});
  }
}

void Needs::add_encoder(const EncoderDescription& model) {
  for (const LinearDescription& table : embedding_tables(model)) {
    floats_.push_back({table.name + ".weight", {table.num_out, table.num_in}});
  }
  linears_ = block_linears(model);
  for (const LayerNormDescription& norm : all_norms(model)) {
    floats_.push_back({norm.name + ".weight", {norm.width}});
    if (norm.has_bias) floats_.push_back({norm.name + ".bias", {norm.width}});
  }
  if (model.distances) {
    const LinearDescription& table = model.distances->table;
    floats_.push_back({table.name + ".weight", {table.num_out, table.num_in}});
  }
}

bool Needs::needs(const std::string& tensor) const {
  return needed_.contains(tensor);
}

bool Needs::knows(const std::string& tensor) const {
  if (needed_.contains(tensor)) return true;
  for (size_t dot = tensor.rfind('.'); dot != std::string::npos && dot > 0; dot = tensor.rfind('.', dot - 1)) {
    if (modules_.contains(tensor.substr(0, dot))) return true;
  }
  return false;
}

void examine_model(const Patient& patient, const Needs& needs, const Claims& claims, std::vector<Finding>& findings,
                   const std::set<std::string>& explained, const std::function<void()>& step) {
  ModelExam exam(patient, needs, claims, explained);
  exam.look_at_floats();
  for (const LinearDescription& linear : needs.linears()) {
    throw_if_interrupted();
    exam.look_at_layer(linear);
    step();
  }
  exam.conclude(findings);
}

}  // namespace pare::runtime
