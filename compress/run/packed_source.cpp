#include "compress/run/packed_source.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "compress/artifact/hugging_face.h"
#include "compress/artifact/model_hash.h"
#include "prune/options.h"
#include "runtime/commands/artifact_files.h"
#include "runtime/commands/inspect.h"
#include "runtime/commands/layer_sparsity.h"
#include "runtime/commands/small_files.h"
#include "runtime/containers/awq_gemm.h"
#include "runtime/containers/bitsandbytes_int8.h"
#include "runtime/containers/bitsandbytes_nf4.h"
#include "runtime/containers/compressed_tensors.h"
#include "runtime/containers/container_table.h"
#include "runtime/containers/fp8.h"
#include "runtime/containers/gptq.h"
#include "runtime/containers/mlx.h"
#include "runtime/containers/pare_sparse24.h"
#include "runtime/model/checkpoint_files.h"
#include "runtime/system/atomic_file.h"
#include "runtime/system/input_files.h"
#include "runtime/system/interrupt.h"
#include "runtime/system/json_text.h"
#include "runtime/system/partial_output.h"

namespace pare::compress {
namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

// Whether a run of pare's own made it. Its original is known to be there, so a recipe is to start from that one.
bool is_own_result(const runtime::Checkpoint& checkpoint) {
  return runtime::is_there(checkpoint.directory() / runtime::kManifestName);
}

runtime::DType model_dtype(const runtime::Checkpoint& checkpoint) {
  return checkpoint.is_encoder() ? checkpoint.encoder().dtype : checkpoint.description().dtype;
}

// A weight of codes in the model's own type, decoded while it is written.
runtime::StreamedTensor decoded(const runtime::Checkpoint& checkpoint, const runtime::LinearDescription& linear) {
  const runtime::DType dtype = model_dtype(checkpoint);
  return {linear.name + ".weight", dtype, {linear.num_out, linear.num_in}, [=, &checkpoint](const auto& sink) {
            runtime::throw_if_interrupted();
            const runtime::LinearWeights weights = checkpoint.linear(linear);
            std::vector<float> row(static_cast<size_t>(linear.num_in));
            std::vector<std::byte> bytes(row.size() * runtime::dtype_size_bytes(dtype));
            for (int64_t o = 0; o < linear.num_out; ++o) {
              runtime::weight_rows(weights, o, 1, row);
              runtime::convert_from_float(dtype, row, bytes);
              sink(bytes);
            }
            checkpoint.drop_pages(linear);
          }};
}

// A packed weight with its zeros, decoded while it is written.
runtime::StreamedTensor unpacked(const runtime::Checkpoint& checkpoint, const runtime::LinearDescription& linear) {
  if (!checkpoint.stored_scheme(linear)->is_dense()) return decoded(checkpoint, linear);
  return {linear.name + ".weight",
          checkpoint.layout(linear.name + std::string(runtime::kSparseValuesSuffix)).dtype,
          {linear.num_out, linear.num_in},
          [&checkpoint, linear](const runtime::ByteSink& sink) {
            runtime::throw_if_interrupted();
            const runtime::LinearWeights weights = checkpoint.linear(linear);
            sink(std::get<runtime::DenseWeight>(weights.weight).data);
            checkpoint.drop_pages(linear);
          }};
}

// What the packed model says of its layers.
std::string claims_json(const runtime::Checkpoint& checkpoint) {
  Json layers = Json::array();
  for (const auto& [name, claim] : runtime::sparsity_claims(checkpoint)) {
    layers.push_back({{"name", name}, {"pattern", prune::pattern_text(claim.pattern)}, {"zeros", claim.zeros}});
  }
  return runtime::json_text(Json{{"layers", layers}, {"outputs", Json::object()}}, 2) + "\n";
}

// Where the tensors of the unpacked model come from.
struct Places {
  std::vector<runtime::LinearDescription> packed;  // decoded, or unpacked
  std::vector<std::string> others;                 // the names of tensors that are copied
};

// Throws std::invalid_argument if codes would be copied that no layer of the model reads. Nothing would say what they
// are, once the configuration of the codes is gone.
Places places_of(const runtime::Checkpoint& checkpoint) {
  Places places;
  std::set<std::string> packed, parts;
  bool is_compressed_tensors = false;
  std::vector<runtime::LinearDescription> linears = runtime::stored_linears(checkpoint);
  std::ranges::move(runtime::other_fp8_linears(checkpoint), std::back_inserter(linears));
  for (const runtime::LinearDescription& linear : linears) {
    const std::optional<runtime::PackScheme> scheme = checkpoint.stored_scheme(linear);
    if (!scheme) continue;
    is_compressed_tensors |= scheme->container == runtime::kCompressedTensors;
    packed.insert(linear.name);
    for (const std::string_view suffix : runtime::container_format(scheme->container).suffixes()) {
      parts.insert(linear.name + std::string(suffix));
    }
    if (scheme->has_own_tensor()) {  // only its inputs are rounded
      places.others.push_back(linear.name + ".weight");
    } else {
      places.packed.push_back(linear);
    }
  }
  for (const std::string& name : checkpoint.tensor_names()) {
    const bool is_of_packed = packed.contains(name.substr(0, name.rfind('.'))) && !name.ends_with(".bias");
    if (is_of_packed || parts.contains(name)) continue;
    if (is_compressed_tensors && runtime::is_of_rounded_cache(name)) continue;
    if (is_compressed_tensors && name.ends_with(runtime::kScaleSuffix)) {
      throw std::invalid_argument("'" + checkpoint.directory().string() + "': " + name +
                                  " belongs to codes that no layer of the model reads: expected none, since they "
                                  "would stay codes in a result that does not say so; leave that module out of the "
                                  "quantization, or start from the original checkpoint");
    }
    places.others.push_back(name);
  }
  return places;
}

std::optional<runtime::Checkpoint> open_packed(const fs::path& model) {
  if (model.extension() == ".gguf" || !runtime::is_there(model / "config.json"))
    return std::nullopt;  // or the model's reader tells
  runtime::Checkpoint checkpoint = runtime::Checkpoint::open(model);
  if (!checkpoint.is_quantized()) return std::nullopt;
  if (!is_packed_source(checkpoint) && published_codes(checkpoint).empty()) return std::nullopt;
  return checkpoint;
}

runtime::MakeDirectory unpacking(const fs::path& model, const PlainSource::Options& options,
                                 runtime::Progress& progress, std::vector<std::string>& events) {
  if (!options.unpacks) return {};
  const std::optional<runtime::Checkpoint> source = open_packed(model);
  if (!source) return {};
  const std::string codes = published_codes(*source);
  if (!codes.empty() && !options.decodes) return {};
  events = runtime::events_of_links(runtime::find_small_files(model));
  if (!codes.empty()) {
    const bool rounds_cache = !runtime::cache_note(*source).empty();
    events.push_back("source: its " + codes + " codes are decoded to " +
                     std::string(runtime::dtype_name(model_dtype(*source))) + ", and its inputs" +
                     (rounds_cache ? ", keys and values" : "") +
                     " are not rounded: what its own rounding has lost stays lost");
    progress.print("source: the " + codes + " codes of '" + model.string() + "' are decoded" +
                   (options.has_weights ? "" : " in the run"));
  } else {
    progress.print("source: the 2:4 weights of '" + model.string() + "' are unpacked" +
                   (options.has_weights ? "" : " in the run"));
  }
  return [has_weights = options.has_weights](const fs::path& packed, const fs::path& directory) {
    unpack_source(runtime::Checkpoint::open(packed), directory, has_weights);
  };
}

}  // namespace

bool is_packed_source(const runtime::Checkpoint& checkpoint) {
  bool has_packed = false;
  for (const runtime::LinearDescription& linear : runtime::stored_linears(checkpoint)) {
    const std::optional<runtime::PackScheme> scheme = checkpoint.stored_scheme(linear);
    if (!scheme) continue;
    if (!scheme->is_dense() || scheme->pattern.is_dense() || !scheme->input.is_plain()) return false;
    has_packed = true;
  }
  return has_packed;
}

std::string published_codes(const runtime::Checkpoint& checkpoint) {
  constexpr std::array kPublished = {
      runtime::kFp8Container,    runtime::kGptq, runtime::kGptqV2,           runtime::kAwqGemm, runtime::kBitsAndBytes,
      runtime::kBitsAndBytesNf4, runtime::kMlx,  runtime::kCompressedTensors};
  std::string name;
  for (const runtime::LinearDescription& linear : runtime::stored_linears(checkpoint)) {
    const std::optional<runtime::PackScheme> scheme = checkpoint.stored_scheme(linear);
    if (!scheme) continue;
    if (std::ranges::find(kPublished, scheme->container) == kPublished.end()) return {};
    if (scheme->container == runtime::kCompressedTensors && is_own_result(checkpoint)) return {};
    if (!scheme->is_dense()) name = scheme->container;
  }
  // Its weights may all be such that no codes are read (mlx.h).
  return name.empty() && checkpoint.quantization_method() == runtime::kMlx ? std::string(runtime::kMlx) : name;
}

void unpack_source(const runtime::Checkpoint& checkpoint, const fs::path& directory, bool has_weights) {
  const Places places = places_of(checkpoint);
  if (has_weights) {
    runtime::require_listed_hashes(checkpoint.directory(), input_hashes(checkpoint));
  } else {
    runtime::require_listed_files(checkpoint.directory());
  }
  fs::create_directories(directory);
  Json config =
      runtime::parse_ordered_json(checkpoint.config_json(), (checkpoint.directory() / "config.json").string());
  config.erase("quantization_config");
  config.erase("quantization");  // mlx-lm's copy of the same
  runtime::write_file_atomically(directory / "config.json", runtime::json_text(config, 2) + "\n");
  runtime::write_file_atomically(directory / runtime::kManifestName, claims_json(checkpoint));
  for (const std::string& name : runtime::find_small_files(checkpoint.directory()).copied) {
    fs::create_directories((directory / name).parent_path());
    runtime::copy_small_file(checkpoint.directory(), name, directory / name);
  }
  std::vector<runtime::StreamedTensor> tensors;
  for (const runtime::LinearDescription& linear : places.packed) tensors.push_back(unpacked(checkpoint, linear));
  for (const std::string& name : places.others) tensors.push_back(source_tensor(checkpoint, name, name));
  give_stored_form(checkpoint, tensors);
  if (!has_weights) {
    runtime::write_safetensors_header(directory / runtime::kSingleFileName, std::move(tensors));
    checkpoint.check_unchanged();
    return;
  }
  int64_t num_bytes = 0;
  for (const runtime::StreamedTensor& tensor : tensors) {
    num_bytes += runtime::TensorLayout{tensor.dtype, tensor.shape}.num_bytes();
  }
  runtime::require_disk_space(directory, num_bytes);
  write_weight_files(std::move(tensors), directory);
  checkpoint.check_unchanged();
}

PlainSource::PlainSource(const fs::path& model, const Options& options, runtime::Progress& progress)
    : directory_(model, unpacking(model, options, progress, events_), options.has_weights),
      has_weights_(options.has_weights || !directory_.is_temporary()) {
  if (has_weights_) return;
  // The run will need the room: its plan asks for it as well.
  int64_t num_bytes = 0;
  for (const fs::path& file : runtime::Checkpoint::open(path()).weight_files()) {
    num_bytes += static_cast<int64_t>(fs::file_size(file));
  }
  runtime::require_temporary_space(model, num_bytes);
}

}  // namespace pare::compress
