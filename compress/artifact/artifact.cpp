#include "compress/artifact/artifact.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>

#include "runtime/format/stored_linear.h"
#include "runtime/system/atomic_file.h"
#include "runtime/system/sha256.h"

namespace pare {
namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

// One file up to here; more shards beyond, as other writers cut them.
constexpr int64_t kMaxShardBytes = int64_t{4} << 30;

std::span<const std::byte> bytes_of(const auto& values) {
  return std::as_bytes(std::span(values));
}

// Weights in other containers, and what describes them: not copied beside the new weights.
bool is_copied(const fs::path& file) {
  static const std::set<std::string> kLeftOut = {"config.json",
                                                 "pare.json",
                                                 "report.json",
                                                 "quantize_config.json",
                                                 "model.safetensors.index.json",
                                                 "pytorch_model.bin.index.json"};
  static const std::set<std::string> kWeightExtensions = {".safetensors", ".bin", ".pt",   ".pth",     ".gguf",
                                                          ".h5",          ".ot",  ".onnx", ".msgpack", ".npz"};
  const std::string name = file.filename().string();
  return !name.starts_with('.') && !kLeftOut.contains(name) && !kWeightExtensions.contains(file.extension().string());
}

int64_t tensor_bytes(const StreamedTensor& tensor) {
  int64_t num_elements = 1;
  for (const int64_t size : tensor.shape) num_elements *= size;
  return num_elements * static_cast<int64_t>(dtype_size_bytes(tensor.dtype));
}

std::vector<fs::path> files_in(const fs::path& directory) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(directory)) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

// The file's object; an empty one when it holds none.
Json parse_json_file(const fs::path& path) {
  Json json = Json::parse(read_text_file(path), nullptr, false);
  return json.is_object() ? json : Json::object();
}

// The fingerprint goes last: as long as any file is there, a run can tell whose it is.
void remove_partial(const fs::path& partial) {
  fs::remove_all(partial / "artifact");
  if (fs::exists(partial / "progress")) {
    for (const fs::path& file : files_in(partial / "progress")) {
      if (file.filename() != "run.json") fs::remove(file);
    }
    fs::remove(partial / "progress" / "run.json");
  }
  fs::remove_all(partial);
}

bool holds_no_files(const fs::path& directory) {
  if (!fs::is_directory(directory)) return false;
  const auto entries = fs::recursive_directory_iterator(directory);
  return std::all_of(begin(entries), end(entries), [](const auto& entry) { return entry.is_directory(); });
}

// Of the embedding, where it serves as the head as well.
bool is_second_copy(const Checkpoint& source, const std::string& tensor) {
  if (source.is_encoder()) return false;
  const ModelDescription& model = source.description();
  return model.tied_head && tensor == model.head.name + ".weight";
}

StreamedTensor view_tensor(const std::string& name, const TensorView& view) {
  return {name, view.dtype, view.shape, [data = view.data](const ByteSink& sink) { sink(data); }};
}

}  // namespace

std::vector<fs::path> Artifact::copied_files(const fs::path& directory) {
  std::vector<fs::path> files = files_in(directory);
  std::erase_if(files, [](const fs::path& path) { return !fs::is_regular_file(path) || !is_copied(path); });
  // How sentence-transformers pools an encoder's hidden states (encoder.h).
  if (const fs::path pooling = directory / "1_Pooling" / "config.json"; fs::is_regular_file(pooling)) {
    files.push_back(pooling);
  }
  return files;
}

fs::path Artifact::partial_path(const fs::path& output) {
  fs::path partial = output.lexically_normal();
  if (!partial.has_filename()) partial = partial.parent_path();
  partial += ".partial";
  return partial;
}

void Artifact::check_output_is_free(const fs::path& output) {
  if (!fs::exists(fs::symlink_status(output))) return;
  // A run that was killed after its last rename leaves the remains of its folder: they are known by the fingerprint.
  const fs::path partial = partial_path(output);
  const bool is_ours = fs::exists(partial / "progress" / "run.json") && fs::exists(output / "pare.json") &&
                       parse_json_file(output / "pare.json").value("fingerprint", Json()) ==
                           parse_json_file(partial / "progress" / "run.json");
  const bool finished = is_ours ? !fs::exists(partial / "artifact") : holds_no_files(partial);
  if (finished) remove_partial(partial);
  throw std::runtime_error("output '" + output.string() + "' exists" +
                           (finished ? " (the run that made it was complete)" : "") +
                           ": remove it or choose another with --out");
}

Artifact::Artifact(fs::path output, const Fingerprint& fingerprint, bool fresh)
    : output_(std::move(output)), partial_(partial_path(output_)) {
  check_output_is_free(output_);
  try {
    claim(fingerprint, fresh);
    load_parts();
  } catch (...) {
    if (lock_ >= 0) close(lock_);
    throw;
  }
}

Artifact::~Artifact() {
  if (lock_ >= 0) close(lock_);
}

void Artifact::claim(const Fingerprint& fingerprint, bool fresh) {
  const fs::path progress = partial_ / "progress";
  const fs::path run_file = progress / "run.json";
  if (partial_.has_parent_path()) fs::create_directories(partial_.parent_path());
  const bool found = fs::exists(partial_);
  const bool found_run = fs::exists(run_file);
  if (found && !found_run) {
    for (const auto& entry : fs::recursive_directory_iterator(partial_)) {
      if (!entry.is_directory() && !entry.path().filename().string().starts_with('.')) {
        throw std::runtime_error("'" + partial_.string() + "' exists and is no unfinished run of pare (it holds '" +
                                 entry.path().filename().string() + "'): remove it or choose another output");
      }
    }
  }
  fs::create_directories(progress);
  lock_ = open(progress.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (lock_ < 0 || flock(lock_, LOCK_EX | LOCK_NB) != 0) {
    throw std::runtime_error("'" + partial_.string() + "' cannot be locked: " + std::strerror(errno) +
                             (errno == EWOULDBLOCK ? "; another run is writing it" : ""));
  }
  const Json wanted = fingerprint;
  if (found_run && fresh) {
    fs::remove_all(artifact_directory());
    for (const fs::path& file : files_in(progress)) {
      if (file != run_file) fs::remove(file);
    }
  } else if (found_run) {
    const Json stored = parse_json_file(run_file);
    if (stored != wanted) {
      std::string different;
      for (const auto& [key, value] : fingerprint) {
        if (stored.value(key, "") != value) different += (different.empty() ? "" : ", ") + key;
      }
      throw std::runtime_error("'" + partial_.string() + "' is an unfinished run with another " + different +
                               ": start anew with --fresh, or choose another output with --out");
    }
  }
  if (!found_run || fresh) write_file_atomically(run_file, wanted.dump(2) + "\n");
}

fs::path Artifact::part_file(int64_t part, const char* extension) const {
  char name[32];
  std::snprintf(name, sizeof(name), "%05lld.%s", static_cast<long long>(part), extension);
  return partial_ / "progress" / name;
}

void Artifact::load_parts() {
  for (const fs::path& path : files_in(partial_ / "progress")) {
    if (path.filename().string().starts_with('.')) {
      fs::remove(path);  // a file that was being written when the run was killed
      continue;
    }
    if (path.extension() != ".json" || path.filename() == "run.json") continue;
    const int64_t part = std::stoll(path.stem().string());
    const Json stored = parse_json_file(path);
    const fs::path tensors = part_file(part, "safetensors");
    if (!stored.contains("layers") || !fs::exists(tensors) || sha256_file(tensors) != stored.value("sha256", "")) {
      throw std::runtime_error("'" + path.string() + "' or its tensors are damaged: start anew with --fresh");
    }
    for (const Json& layer : stored.at("layers")) parts_[part].push_back(parse_record(layer.dump()));
  }
}

const std::vector<LayerRecord>* Artifact::committed(int64_t part) const {
  const auto found = parts_.find(part);
  return found == parts_.end() ? nullptr : &found->second;
}

StoredLinear Artifact::read_layer(int64_t part, const LayerRecord& record) const {
  const SafetensorsFile file = SafetensorsFile::open(part_file(part, "safetensors"));
  const auto find = [&](const std::string& name) -> const TensorView* {
    const auto found = file.tensors().find(name);
    return found == file.tensors().end() ? nullptr : &found->second;
  };
  StoredLinear linear = unpack_linear(find, record.scheme, record.num_out, record.num_in, record.name);
  if (content_hash(linear) != record.sha256) {
    throw std::runtime_error("'" + part_file(part, "safetensors").string() + "': " + record.name +
                             " is not what its record says: start anew with --fresh");
  }
  return linear;
}

void Artifact::append_packed(const StoredLinear& linear, const LayerRecord& record, std::vector<StreamedTensor>& out) {
  for (OwnedTensor& tensor : pack_linear(linear, record.scheme, record.name)) append(std::move(tensor), out);
}

void Artifact::append(OwnedTensor tensor, std::vector<StreamedTensor>& out) {
  auto data = std::make_shared<std::vector<std::byte>>(std::move(tensor.data));
  out.push_back(
      {std::move(tensor.name), tensor.dtype, std::move(tensor.shape), [data](const ByteSink& sink) { sink(*data); }});
}

std::vector<OwnedTensor> Artifact::read_changed(int64_t part, const Checkpoint& source) const {
  std::vector<OwnedTensor> changed;
  const SafetensorsFile file = SafetensorsFile::open(part_file(part, "safetensors"));
  const std::vector<LayerRecord>& records = parts_.at(part);
  for (const auto& [name, view] : file.tensors()) {
    const auto is_layer = [&](const LayerRecord& record) {
      return name == record.name + ".weight" && !record.scheme.is_dense();
    };
    if (!source.has_tensor(name) || std::any_of(records.begin(), records.end(), is_layer)) continue;
    changed.push_back({name, view.dtype, view.shape, {view.data.begin(), view.data.end()}});
  }
  return changed;
}

void Artifact::commit(int64_t part, std::vector<StreamedTensor> tensors, std::vector<LayerRecord> records) {
  const fs::path file = part_file(part, "safetensors");
  write_safetensors(file, std::move(tensors));
  Json layers = Json::array();
  for (const LayerRecord& record : records) layers.push_back(Json::parse(to_json(record)));
  const Json stored = {{"sha256", sha256_file(file)}, {"layers", layers}};
  write_file_atomically(part_file(part, "json"), stored.dump(1) + "\n");
  parts_[part] = std::move(records);
}

std::vector<LayerRecord> Artifact::records() const {
  std::vector<LayerRecord> all;
  for (const auto& [part, records] : parts_) all.insert(all.end(), records.begin(), records.end());
  return all;
}

void Artifact::write_file(const std::string& name, std::string_view text) const {
  write_file_atomically(artifact_directory() / name, text);
}

void Artifact::assemble(const Checkpoint& source, const std::vector<std::string>& unquantized) {
  fs::remove_all(artifact_directory());
  fs::create_directories(artifact_directory());

  std::vector<StoredModule> modules;
  std::set<std::string> replaced;
  for (const LayerRecord& record : records()) {
    if (record.is_plain()) continue;
    modules.push_back({record.name, record.scheme, record.is_linear});
    if (!record.scheme.is_dense()) replaced.insert(record.name + ".weight");
  }
  Json config = Json::parse(source.config_json());
  if (!modules.empty()) config["quantization_config"] = Json::parse(container_config_json(modules, unquantized));
  write_file("config.json", config.dump(2) + "\n");

  for (const fs::path& path : copied_files(source.directory())) {
    const fs::path copy = artifact_directory() / path.lexically_relative(source.directory());
    fs::create_directories(copy.parent_path());
    write_file_atomically(copy, MappedFile::open(path).bytes());
  }

  std::vector<SafetensorsFile> parts;
  for (const auto& [part, records] : parts_) {
    parts.push_back(SafetensorsFile::open(part_file(part, "safetensors")));
    for (const auto& [name, view] : parts.back().tensors()) replaced.insert(name);
  }

  // Tensors that the passes left alone come straight from the source; parts follow in order.
  std::vector<StreamedTensor> tensors;
  for (const std::string& name : source.tensor_names()) {
    if (replaced.contains(name) || is_second_copy(source, name)) continue;
    tensors.push_back(view_tensor(name, source.tensor(name)));
  }
  for (const SafetensorsFile& part : parts) {
    for (const auto& [name, view] : part.tensors()) tensors.push_back(view_tensor(name, view));
  }

  std::vector<std::vector<StreamedTensor>> shards(1);
  int64_t shard_bytes = 0;
  int64_t total_bytes = 0;
  for (StreamedTensor& tensor : tensors) {
    const int64_t size = tensor_bytes(tensor);
    if (shard_bytes > 0 && shard_bytes + size > kMaxShardBytes) {
      shards.emplace_back();
      shard_bytes = 0;
    }
    shard_bytes += size;
    total_bytes += size;
    shards.back().push_back(std::move(tensor));
  }
  if (shards.size() == 1) {
    write_safetensors(artifact_directory() / "model.safetensors", std::move(shards.front()));
    sync_directory(artifact_directory());
    return;
  }
  std::map<std::string, std::string> weight_map;
  for (size_t i = 0; i < shards.size(); ++i) {
    char name[64];
    std::snprintf(name, sizeof(name), "model-%05zu-of-%05zu.safetensors", i + 1, shards.size());
    for (const StreamedTensor& tensor : shards[i]) weight_map[tensor.name] = name;
    write_safetensors(artifact_directory() / name, std::move(shards[i]));
  }
  const Json index = {{"metadata", {{"total_size", total_bytes}}}, {"weight_map", weight_map}};
  write_file("model.safetensors.index.json", index.dump(2) + "\n");
}

void Artifact::verify(const Checkpoint& source) const {
  const Checkpoint written = Checkpoint::open(artifact_directory());
  std::set<std::string> replaced;
  for (const LayerRecord& record : records()) {
    if (record.is_plain()) continue;  // compared with the other tensors below
    const LinearDescription linear{record.name, record.num_out, record.num_in, false};
    LinearWeights weights = written.linear(linear);
    auto* quantized = std::get_if<QuantizedWeight>(&weights.weight);
    const bool is_dense = record.scheme.is_dense();
    QuantizedWeight unrounded;
    unrounded.num_out = record.num_out;
    unrounded.num_in = record.num_in;
    if (is_dense && quantized == nullptr) quantized = &unrounded;
    if (quantized == nullptr) {
      throw std::runtime_error("verification of '" + artifact_directory().string() + "': " + record.name +
                               " reads back as not quantized");
    }
    const StoredLinear stored{.weight = std::move(*quantized),
                              .input = std::move(weights.input),
                              .outlier_weight_OJ = std::move(weights.outlier_weight_OJ)};
    if (content_hash(stored) != record.sha256) {
      throw std::runtime_error("verification of '" + artifact_directory().string() + "': codes, scales or input of " +
                               record.name + " read back differently from what was computed");
    }
    written.drop_pages(linear);
    if (!is_dense) replaced.insert(record.name + ".weight");
  }
  const auto check_equal = [&](const std::string& name, DType dtype, std::span<const int64_t> shape,
                               std::span<const std::byte> data, const char* whose) {
    const TensorView& after = written.tensor(name);
    if (dtype == after.dtype && std::ranges::equal(shape, after.shape) && std::ranges::equal(data, after.data)) return;
    throw std::runtime_error("verification of '" + artifact_directory().string() + "': tensor '" + name +
                             "' differs from " + whose);
  };
  for (const auto& [part, records] : parts_) {
    for (const OwnedTensor& tensor : read_changed(part, source)) {
      check_equal(tensor.name, tensor.dtype, tensor.shape, tensor.data, "what its block's fold made it");
      replaced.insert(tensor.name);
    }
  }
  for (const std::string& name : source.tensor_names()) {
    if (replaced.contains(name) || is_second_copy(source, name)) continue;
    const TensorView& before = source.tensor(name);
    check_equal(name, before.dtype, before.shape, before.data, "the source's");
  }
}

std::map<std::string, std::string> Artifact::output_hashes() const {
  std::map<std::string, std::string> hashes;
  for (const auto& entry : fs::recursive_directory_iterator(artifact_directory())) {
    if (!entry.is_regular_file()) continue;
    hashes[entry.path().lexically_relative(artifact_directory()).string()] = sha256_file(entry.path());
  }
  return hashes;
}

void Artifact::publish() {
  sync_directory(artifact_directory());
  if (fs::exists(fs::symlink_status(output_))) {
    throw std::runtime_error("output '" + output_.string() + "' has appeared during the run; the result is in '" +
                             artifact_directory().string() + "'");
  }
  fs::rename(artifact_directory(), output_);
  sync_directory(fs::absolute(output_).lexically_normal().parent_path());
  discard();
}

void Artifact::discard() {
  remove_partial(partial_);
}

}  // namespace pare
