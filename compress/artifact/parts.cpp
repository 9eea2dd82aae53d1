#include "compress/artifact/parts.h"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <stdexcept>
#include <utility>

#include "compress/artifact/checked_file.h"
#include "runtime/containers/stored_linear.h"
#include "runtime/system/atomic_file.h"
#include "runtime/system/interrupt.h"
#include "runtime/system/json_text.h"
#include "runtime/system/sha256.h"

namespace pare::compress {
namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

struct PartRecord {
  int64_t part = 0;
  std::string tensors_sha256;  // the hash of the file that holds its tensors
  std::vector<LayerRecord> layers;
};

std::string to_json(const PartRecord& record) {
  Json layers = Json::array();
  for (const LayerRecord& layer : record.layers)
    layers.push_back(runtime::parse_ordered_json(compress::to_json(layer), "a layer's record"));
  return runtime::json_text(Json{{"part", record.part}, {"sha256", record.tensors_sha256}, {"layers", layers}}, 1);
}

// Returns nullopt for text that to_json does not write.
std::optional<PartRecord> parse_part_record(const std::string& text) {
  try {
    const Json json = runtime::parse_ordered_json(text, "a part's record");
    PartRecord record{json.at("part").get<int64_t>(), json.at("sha256").get<std::string>(), {}};
    for (const Json& layer : json.at("layers")) record.layers.push_back(parse_record(runtime::json_text(layer)));
    return record;
  } catch (const runtime::BadJson&) {
    return std::nullopt;
  } catch (const Json::exception&) {
    return std::nullopt;
  } catch (const std::invalid_argument&) {
    return std::nullopt;
  }
}

std::string part_name(int64_t part) {
  char name[32];
  std::snprintf(name, sizeof(name), "%05lld", static_cast<long long>(part));
  return name;
}

Json parse_object(const std::string& text, const fs::path& path) {
  try {
    Json json = runtime::parse_ordered_json(text, path.string());
    return json.is_object() ? json : Json::object();
  } catch (const runtime::BadJson& error) {
    throw std::runtime_error(std::string(error.what()) + ": start over with --fresh");
  }
}

}  // namespace

std::string to_json(const Fingerprint& fingerprint) {
  return runtime::json_text(Json(fingerprint), 2);
}

void require_same_run(const std::string& stored_text, const Fingerprint& fingerprint, const Workplace& place) {
  const Json stored = parse_object(stored_text, place.run_file());
  const Json wanted = parse_object(to_json(fingerprint), place.run_file());
  std::set<std::string> names;
  for (const Json* const one : {&stored, &wanted}) {
    for (const auto& [name, value] : one->items()) names.insert(name);
  }
  std::vector<std::string> different;
  for (const std::string& name : names) {
    if (wanted.contains(name) && stored.contains(name) && stored.at(name) == wanted.at(name)) continue;
    different.push_back(name);
  }
  if (different.empty()) return;
  const std::string unfinished = "'" + place.claimed_folder().string() + "' is an unfinished run ";
  const auto number_of = [](const Json& entries) {
    const std::string number = entries.at(kThreadsEntry).get<std::string>();
    return number + (number == "1" ? " thread" : " threads");
  };
  if (different == std::vector<std::string>{kThreadsEntry} && stored.contains(kThreadsEntry) &&
      wanted.contains(kThreadsEntry) && stored.at(kThreadsEntry).is_string()) {
    throw std::runtime_error(unfinished + "on " + number_of(stored) + ", and this one is on " + number_of(wanted) +
                             ". Training gives other sums with another number of threads: continue with --threads " +
                             stored.at(kThreadsEntry).get<std::string>() + ", or start over with --fresh");
  }
  std::string list;
  for (const std::string& name : different) list += (list.empty() ? "" : ", ") + name;
  throw std::runtime_error(unfinished + "with another " + list +
                           ": start over with --fresh, or choose another output with --out");
}

Parts::Parts(const fs::path& output, const Fingerprint& fingerprint, bool fresh)
    : Parts(Workplace::hold(output, 1, fresh).front(), fingerprint, fresh) {}

Parts::Parts(Workplace place, const Fingerprint& fingerprint, bool fresh) : place_(std::move(place)) {
  claim(fingerprint, fresh);
  load();
}

void Parts::claim(const Fingerprint& fingerprint, bool fresh) {
  const fs::path run_file = place_.run_file();
  if (fresh) place_.start_anew();
  fs::create_directories(place_.progress());
  if (fs::exists(run_file)) return require_same_run(read_checked_file(run_file), fingerprint, place_);
  for (const fs::path& file : Workplace::files_in(place_.progress())) {
    // The run file is written first and removed last.
    if (Workplace::is_own(file) && !runtime::is_temporary_name(file.filename().string())) throw damaged_file(run_file);
  }
  write_checked_file(run_file, to_json(fingerprint) + "\n");
}

fs::path Parts::part_file(int64_t part, const char* extension) const {
  return place_.progress() / (part_name(part) + extension);
}

bool Parts::has_progress() const {
  return num_committed() > 0 || fs::exists(survey_file()) || fs::exists(training_folder() / kTrainingState);
}

void Parts::load() {
  for (const fs::path& path : Workplace::files_in(place_.progress())) {
    if (runtime::is_temporary_name(path.filename().string())) {
      fs::remove(path);  // a file that was being written when the run was killed
      continue;
    }
    if (path == survey_file()) read_checked_file(path);  // later readers could not say what to do
    if (path.extension() != ".json" || path == place_.run_file()) continue;
    const std::string text = read_checked_file(path);
    std::optional<PartRecord> record = parse_part_record(text);
    if (!record || path.stem() != part_name(record->part)) throw damaged_file(path);
    const fs::path tensors = part_file(record->part, ".safetensors");
    if (!fs::exists(tensors) || runtime::sha256_file(tensors) != record->tensors_sha256) throw damaged_file(tensors);
    parts_[record->part] = std::move(record->layers);
  }
}

const std::vector<LayerRecord>* Parts::committed(int64_t part) const {
  const auto found = parts_.find(part);
  return found == parts_.end() ? nullptr : &found->second;
}

std::vector<int64_t> Parts::committed_parts() const {
  std::vector<int64_t> numbers;
  for (const auto& [part, records] : parts_) numbers.push_back(part);
  return numbers;
}

runtime::SafetensorsFile Parts::open_tensors(int64_t part) const {
  return runtime::SafetensorsFile::open(part_file(part, ".safetensors"));
}

runtime::StoredLinear Parts::read_layer(int64_t part, const LayerRecord& record) const {
  const runtime::SafetensorsFile file = open_tensors(part);
  const auto find = [&](const std::string& name) -> const runtime::TensorView* {
    const auto found = file.tensors().find(name);
    return found == file.tensors().end() ? nullptr : &found->second;
  };
  runtime::StoredLinear linear =
      runtime::unpack_linear(find, record.scheme, record.num_out, record.num_in, record.name);
  if (content_hash(linear) != record.sha256) {
    throw std::runtime_error("'" + part_file(part, ".safetensors").string() + "': " + record.name +
                             " is not what its record says: start over with --fresh");
  }
  return linear;
}

void Parts::append_packed(const runtime::StoredLinear& linear, const LayerRecord& record,
                          std::vector<runtime::StreamedTensor>& out) {
  for (runtime::OwnedTensor& tensor : runtime::pack_linear(linear, record.scheme, record.name))
    append(std::move(tensor), out);
}

void Parts::append(runtime::OwnedTensor tensor, std::vector<runtime::StreamedTensor>& out) {
  auto data = std::make_shared<std::vector<std::byte>>(std::move(tensor.data));
  out.push_back({std::move(tensor.name), tensor.dtype, std::move(tensor.shape),
                 [data](const runtime::ByteSink& sink) { sink(*data); }});
}

std::vector<runtime::OwnedTensor> Parts::read_changed(int64_t part, const runtime::Checkpoint& source) const {
  std::vector<runtime::OwnedTensor> changed;
  const runtime::SafetensorsFile file = open_tensors(part);
  const std::vector<LayerRecord>& records = parts_.at(part);
  for (const auto& entry : file.tensors()) {
    const std::string& name = entry.first;
    const runtime::TensorView& view = entry.second;
    const auto is_layer = [&](const LayerRecord& record) {
      return name == record.name + ".weight" && !record.scheme.has_own_tensor();
    };
    if (!source.has_tensor(name) || std::any_of(records.begin(), records.end(), is_layer)) continue;
    changed.push_back({name, view.dtype, view.shape, {view.data.begin(), view.data.end()}});
  }
  return changed;
}

void Parts::commit(int64_t part, std::vector<runtime::StreamedTensor> tensors, std::vector<LayerRecord> records) {
  const runtime::InterruptionLater whole;
  const fs::path file = part_file(part, ".safetensors");
  runtime::write_safetensors(file, std::move(tensors));
  const PartRecord record{part, runtime::sha256_file(file), std::move(records)};
  write_checked_file(part_file(part, ".json"), to_json(record) + "\n");
  parts_[part] = record.layers;
}

std::vector<LayerRecord> Parts::records() const {
  std::vector<LayerRecord> all;
  for (const auto& [part, records] : parts_) all.insert(all.end(), records.begin(), records.end());
  return all;
}

}  // namespace pare::compress
