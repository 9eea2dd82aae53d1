#include "runtime/export/export_gguf.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <optional>
#include <stdexcept>
#include <utility>

#include "runtime/chat/chat_template.h"
#include "runtime/export/gguf_config_keys.h"
#include "runtime/export/gguf_matrix.h"
#include "runtime/export/gguf_plan.h"
#include "runtime/export/gguf_read_back.h"
#include "runtime/import/import_sources.h"
#include "runtime/import/model_directory.h"
#include "runtime/system/input_files.h"
#include "runtime/system/interrupt.h"
#include "runtime/system/partial_output.h"
#include "runtime/tokenizer/gguf_from_tokenizer.h"

namespace pare::runtime {
namespace {

namespace fs = std::filesystem;

std::string text_of(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.2e", value);
  return text;
}

std::string type_name(GgufType type) {
  return std::string(gguf_block(static_cast<uint32_t>(type)).name);
}

// A file of this checkpoint in the making.
struct Draft {
  const DecoderFamily* family = nullptr;
  GgufMetadata metadata;
  std::vector<StreamedGgufTensor> settings;
  GgufCopies copies;
  std::vector<PlannedGgufTensor> planned;
  std::vector<std::string> notes, obstacles;
};

// llama.cpp's number for the type that most bytes have.
int file_type_of(const Draft& draft, const GgufFormat& format) {
  if (format.type) return format.file_type;
  std::map<GgufType, int64_t> elements;
  for (const PlannedGgufTensor& tensor : draft.planned) {
    if (tensor.making != GgufMaking::vector) {
      elements[tensor.chosen.type] += StreamedGgufTensor{tensor.name, tensor.shape, GgufType::F32, {}}.num_elements();
    }
  }
  const auto most = std::ranges::max_element(elements, {}, &std::pair<const GgufType, int64_t>::second);
  if (most == elements.end()) return format.file_type;
  if (most->first == GgufType::MXFP4) return 38;
  for (const GgufFormat& known : gguf_formats()) {
    if (known.type == most->first) return known.file_type;
  }
  return draft.copies.file_type().value_or(format.file_type);  // of types that pare copies and does not make
}

void note_inputs(const Checkpoint& checkpoint, std::vector<std::string>& notes) {
  int64_t num_rounded = 0, num_sparse = 0;
  for (const LinearDescription& linear : block_linears(checkpoint.description())) {
    const std::optional<PackScheme> scheme = checkpoint.stored_scheme(linear);
    if (scheme && !scheme->input.is_plain()) ++num_rounded;
    if (checkpoint.sparsity_threshold(linear) > 0.0f) ++num_sparse;
  }
  if (num_rounded > 0) {
    notes.push_back("the inputs of " + std::to_string(num_rounded) +
                    " linears are rounded here; llama.cpp rounds inputs in its own way");
  }
  if (num_sparse > 0) {
    notes.push_back("the inputs of " + std::to_string(num_sparse) +
                    " linears are set to zero below thresholds here; llama.cpp uses all of them");
  }
}

// llama.cpp knows windows in families where some layers have them and others have none.
void note_windows(const ModelDescription& model, const DecoderFamily& family, std::vector<std::string>& notes) {
  const WindowLayers layers = family.windows.layers;
  if (layers != WindowLayers::all && layers != WindowLayers::from_a_layer_on) return;
  for (const BlockDescription& block : model.blocks) {
    if (block.sliding_window == 0 || block.sliding_window >= model.context_length) continue;
    notes.push_back("attention sees the last " + std::to_string(block.sliding_window) +
                    " tokens here; llama.cpp has no window for this family, so longer texts differ");
    return;
  }
}

// Returns what llama.cpp does not expect of the family. Import reads such files, so nothing else would say it.
std::vector<std::string> unloadable_facts(const ModelDescription& model, const LlamaCppTraits& traits) {
  std::vector<std::string> facts;
  bool has_dense = false, has_dense_behind = false, has_mixture = false, has_latent_bias = false;
  for (const BlockDescription& block : model.blocks) {
    has_dense |= !block.is_mixture();
    has_dense_behind |= has_mixture && !block.is_mixture();
    has_mixture |= block.is_mixture();
    has_latent_bias |= block.latent && (block.o.has_bias || block.latent->kv_a.has_bias);
  }
  if (traits.only_mixtures && has_dense) facts.emplace_back("a block that is no mixture");
  if (traits.only_leading_dense && has_dense_behind) facts.emplace_back("a dense block behind a mixture");
  if (traits.only_untied && model.tied_head) facts.emplace_back("a tied head");
  if (traits.has_no_latent_bias && has_latent_bias) facts.emplace_back("biases of attention");
  if (traits.needs_all_kv_heads && model.num_kv_heads != model.num_heads) {
    facts.emplace_back("fewer heads of keys than of queries");
  }
  if (traits.needs_wide_heads && model.num_heads * model.head_size != model.hidden_size) {
    facts.emplace_back("heads that together are not as wide as the model");
  }
  return facts;
}

void note_other_readings(const ModelDescription& model, const LlamaCppTraits& traits, std::vector<std::string>& notes) {
  const bool has_window = std::ranges::any_of(model.blocks, [&](const BlockDescription& block) {
    return block.sliding_window != 0 && block.sliding_window < model.context_length;
  });
  if (!has_window || traits.blocks_with_windows == 0 || model.blocks.size() == traits.blocks_with_windows) return;
  notes.push_back("attention has windows here; llama.cpp has them only for a " + model.family + " of " +
                  std::to_string(traits.blocks_with_windows) + " blocks, so longer texts differ");
}

void set_general_keys(const Checkpoint& checkpoint, const GgufFormat& format, Draft& draft) {
  GgufMetadata& metadata = draft.metadata;
  const fs::path folder = fs::weakly_canonical(checkpoint.directory());
  metadata.set_text("general.type", "model");
  if (!folder.filename().empty()) metadata.set_text("general.name", folder.filename().string());
  metadata.set_unsigned("general.file_type", file_type_of(draft, format));
  metadata.set_unsigned("general.quantization_version", 2);
  for (const auto& [name, text] : read_chat_templates(checkpoint.directory())) {
    metadata.set_text("tokenizer.chat_template" + (name == "default" ? "" : "." + name), text);
  }
}

// A model may stop at several tokens. A GGUF file names one eos, one that ends a turn (eot) and one that ends a message
// (eom), and llama.cpp stops at each of them.
void set_stop_tokens(const ModelDescription& model, GgufTokenizer& tokenizer, std::vector<std::string>& notes) {
  const auto id_of = [&](const char* role) {
    const auto found = std::ranges::find(tokenizer.roles, role, &std::pair<std::string, int64_t>::first);
    return found == tokenizer.roles.end() ? -1 : found->second;
  };
  if (id_of("bos") < 0 && model.bos_token) tokenizer.roles.emplace_back("bos", *model.bos_token);
  std::vector<int32_t> stops = model.stop_tokens;
  if (id_of("eos") < 0 && !stops.empty()) tokenizer.roles.emplace_back("eos", stops.front());
  std::erase(stops, static_cast<int32_t>(id_of("eos")));
  size_t num_named = 0;
  for (const char* role : {"eot", "eom"}) {
    if (num_named < stops.size()) tokenizer.roles.emplace_back(role, stops[num_named++]);
  }
  if (num_named == stops.size()) return;
  std::string ids;
  for (size_t i = num_named; i < stops.size(); ++i) ids += (i == num_named ? "" : ", ") + std::to_string(stops[i]);
  notes.push_back("texts end with more tokens than a GGUF file names: of the ids, " + ids + " are left out");
}

Draft make_draft(const Checkpoint& checkpoint, const GgufFormat& format, const fs::path& source) {
  Draft draft;
  draft.family = &gguf_family(checkpoint);
  const ModelDescription& model = checkpoint.description();
  const std::string where = (checkpoint.directory() / "config.json").string();
  set_config_keys(checkpoint.config_json(), where, *draft.family, model, draft.metadata);
  draft.settings = setting_tensors(checkpoint.config_json(), where, *draft.family, model);
  GgufTokenizer tokenizer = make_gguf_tokenizer(checkpoint.directory(), model.vocabulary_size);
  set_stop_tokens(model, tokenizer, draft.notes);
  set_tokenizer_keys(tokenizer, draft.metadata);
  draft.notes.insert(draft.notes.end(), tokenizer.notes.begin(), tokenizer.notes.end());
  if (!source.empty()) draft.copies = GgufCopies(source, *draft.family, model);
  draft.planned = plan_gguf_tensors(checkpoint, *draft.family, format, draft.copies);
  set_general_keys(checkpoint, format, draft);
  note_inputs(checkpoint, draft.notes);
  note_windows(model, *draft.family, draft.notes);
  draft.obstacles = llama_cpp_obstacles(model, *draft.family);
  for (const std::string& obstacle : draft.obstacles) draft.notes.push_back(obstacle + "; pare does");
  note_other_readings(model, draft.family->llama_cpp, draft.notes);
  if (model.is_text_part) draft.notes.push_back("the file holds the text part alone");
  return draft;
}

std::vector<StreamedGgufTensor> streamed(const Draft& draft) {
  std::vector<StreamedGgufTensor> tensors = draft.settings;
  for (const PlannedGgufTensor& planned : draft.planned) {
    tensors.push_back({.name = planned.name, .shape = planned.shape, .type = planned.chosen.type, .produce = {}});
  }
  return tensors;
}

// Returns what the import reads. The file is a draft, whose name means nothing to the user.
ModelDescription description_of(const Checkpoint& checkpoint, const fs::path& file) {
  try {
    const ImportedModel imported = read_gguf_model(file, std::nullopt);
    return describe_source(imported.text_files.front().second, file);
  } catch (const Interrupted&) {
    throw;
  } catch (const std::exception& error) {
    std::string what = error.what();
    for (size_t at = what.find(file.string()); at != std::string::npos; at = what.find(file.string())) {
      what.replace(at, file.string().size(), "its header");
    }
    throw std::invalid_argument("'" + checkpoint.directory().string() +
                                "': this model cannot be exported to GGUF, since no reader would take it: " + what);
  }
}

// Reads a file of the draft's header, with zeros for weights, and compares what it describes with the model. Of windows
// the draft has notes (note_windows).
void check_read_back(const Checkpoint& checkpoint, const fs::path& file, Draft& draft) {
  const size_t num_settings = draft.settings.size();
  const std::vector<StreamedGgufTensor> tensors = streamed(draft);
  write_gguf_draft(file, draft.metadata, tensors,
                   [&](const StreamedGgufTensor& tensor) { return &tensor < tensors.data() + num_settings; });
  const ModelDescription read = description_of(checkpoint, file);
  for (const DescriptionDifference& difference : differences(checkpoint.description(), read)) {
    const WindowLayers layers = draft.family->windows.layers;
    const bool is_noted = layers == WindowLayers::all || layers == WindowLayers::from_a_layer_on;
    if (difference.is_of_windows && is_noted) continue;
    const std::string text =
        difference.fact + " is " + difference.expected + ", but a GGUF file of it says " + difference.found;
    throw std::invalid_argument("'" + checkpoint.directory().string() + "': " + text +
                                ": this model cannot be exported to GGUF");
  }
}

GgufExport describe(const Draft& draft) {
  GgufExport result{.architecture = std::string(draft.family->gguf),
                    .tensors = {},
                    .notes = draft.notes,
                    .obstacles = draft.obstacles};
  const std::vector<StreamedGgufTensor> tensors = streamed(draft);
  for (size_t i = 0; i < tensors.size(); ++i) {
    const StreamedGgufTensor& tensor = tensors[i];
    const bool is_setting = i < draft.settings.size();
    result.tensors.push_back({.name = tensor.name,
                              .shape = tensor.shape,
                              .type = tensor.type,
                              .why = is_setting ? "" : draft.planned[i - draft.settings.size()].chosen.why,
                              .is_lossless = is_setting,
                              .num_bytes = tensor.num_bytes()});
    result.num_weight_bytes += tensor.num_bytes();
  }
  return result;
}

// The first tensor that would change is refused. Makes all of them, and writes none.
void refuse_losses(const Checkpoint& checkpoint, const Draft& draft) {
  for (const PlannedGgufTensor& tensor : draft.planned) {
    throw_if_interrupted();
    const GgufLoss loss = make_gguf_tensor(checkpoint, tensor, draft.copies, {}, [](std::span<const std::byte>) {});
    if (loss.is_lossless) continue;
    const std::string& name = tensor.parts.front().name;
    throw std::invalid_argument(
        "'" + checkpoint.directory().string() + "': '" + name + "' would change: " + type_name(tensor.chosen.type) +
        (loss.keeps_codes ? " holds its codes, but not its scales" : " does not hold it") + " (relative error " +
        text_of(loss.relative_error()) + "): take another format, such as f32, or leave --lossless out");
  }
}

}  // namespace

const DecoderFamily& gguf_family(const Checkpoint& checkpoint) {
  const std::string where = checkpoint.directory().string();
  if (checkpoint.is_encoder()) {
    throw std::invalid_argument("'" + where + "' is an encoder, and pare exports decoders alone to GGUF");
  }
  const std::string& name = checkpoint.description().family;
  const DecoderFamily* const family = decoder_families().find(&DecoderFamily::name, name);
  if (family == nullptr || family->gguf.empty()) {
    throw std::invalid_argument("'" + where + "' is a " + name + ", which has no GGUF files; families that have: " +
                                decoder_families().list(&DecoderFamily::name, &DecoderFamily::gguf));
  }
  return *family;
}

std::vector<std::string> llama_cpp_obstacles(const ModelDescription& model, const DecoderFamily& family) {
  std::vector<std::string> obstacles;
  for (const std::string& fact : unloadable_facts(model, family.llama_cpp)) {
    obstacles.push_back("llama.cpp does not load a " + model.family + " with " + fact);
  }
  return obstacles;
}

GgufExport plan_gguf_export(const Checkpoint& checkpoint, const GgufFormat& format, const fs::path& source) {
  Draft draft = make_draft(checkpoint, format, source);
  // In a folder of this process's own, which the next one removes if this is killed.
  const ModelDirectory folder(checkpoint.directory(), [&](const fs::path&, const fs::path& directory) {
    fs::create_directory(directory);
    check_read_back(checkpoint, directory / "draft.gguf", draft);
  });
  return describe(draft);
}

GgufExport export_gguf(const Checkpoint& checkpoint, const fs::path& out, const GgufFormat& format,
                       const GgufExportOptions& options) {
  const fs::path output = output_place(out);
  PartialOutput::check_is_free(output, PartialOutput::Leftovers::go);
  Draft draft = make_draft(checkpoint, format, options.source);
  PartialOutput partial(output, "export", PartialOutput::Remains::worthless);
  check_read_back(checkpoint, partial.result(), draft);
  if (options.lossless) refuse_losses(checkpoint, draft);
  if (!options.name.empty()) draft.metadata.set_text("general.name", options.name);
  if (!options.license.empty()) draft.metadata.set_text("general.license", options.license);
  GgufExport result = describe(draft);
  std::vector<StreamedGgufTensor> tensors = streamed(draft);
  const auto total = static_cast<int64_t>(tensors.size());
  int64_t done = 0;
  double squared_error = 0.0, squared_weight = 0.0;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const bool is_setting = i < draft.settings.size();
    tensors[i].produce = [&, i, is_setting](const ByteSink& sink) {
      throw_if_interrupted();
      if (is_setting) {
        draft.settings[i].produce(sink);
      } else {
        const PlannedGgufTensor& planned = draft.planned[i - draft.settings.size()];
        const GgufLoss loss = make_gguf_tensor(checkpoint, planned, draft.copies, options.importance, sink);
        result.tensors[i].keeps_codes = loss.keeps_codes;
        result.tensors[i].is_lossless = loss.is_lossless;
        result.tensors[i].relative_error = loss.relative_error();
        squared_error += loss.squared_error;
        squared_weight += loss.squared_weight;
      }
      if (options.progress) options.progress(++done, total);
    };
  }
  if (options.progress) options.progress(0, total);
  write_gguf(partial.result(), draft.metadata, tensors);
  checkpoint.check_unchanged();
  // A file that cannot be read back must not get the output's name.
  GgufFile::open(partial.result());
  result.num_bytes = static_cast<int64_t>(fs::file_size(partial.result()));
  result.relative_error = squared_weight > 0.0 ? std::sqrt(squared_error / squared_weight) : 0.0;
  partial.publish();
  return result;
}

}  // namespace pare::runtime
