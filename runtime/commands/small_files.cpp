#include "runtime/commands/small_files.h"

#include <fcntl.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <string_view>
#include <system_error>

#include "runtime/commands/artifact_files.h"
#include "runtime/import/model_directory.h"
#include "runtime/model/checkpoint_files.h"
#include "runtime/system/atomic_file.h"
#include "runtime/system/json_text.h"
#include "runtime/system/private_files.h"
#include "runtime/system/sha256.h"

namespace pare::runtime {
namespace {

namespace fs = std::filesystem;

constexpr const char* kPooling = "1_Pooling/config.json";  // says how an encoder's hidden states are pooled (pooling.h)
constexpr const char* kModules = "modules.json";
constexpr const char* kTemplates = "additional_chat_templates";  // NAME.jinja, beside chat_template.jinja
constexpr size_t kMostNamed = 12;                                // files in one line

// The files that pare itself reads of a model beside its weights.
constexpr std::array kRead = {kConfigName, "tokenizer.json", "tokenizer_config.json", "sentence_bert_config.json",
                              kPooling};

bool is_copied(const std::string& name) {
  static const std::set<std::string, std::less<>> kNames = {"generation_config.json",
                                                            "tokenizer_config.json",
                                                            "special_tokens_map.json",
                                                            "added_tokens.json",
                                                            "merges.txt",
                                                            "preprocessor_config.json",
                                                            "processor_config.json",
                                                            kModules,
                                                            "config_sentence_transformers.json",
                                                            "sentence_bert_config.json"};
  constexpr std::array<std::string_view, 5> kBeginnings = {"tokenizer.", "vocab.", "chat_template.", "README",
                                                           "LICENSE"};
  return kNames.contains(name) || std::any_of(kBeginnings.begin(), kBeginnings.end(),
                                              [&](std::string_view beginning) { return name.starts_with(beginning); });
}

[[noreturn]] void fail(const fs::path& path, const std::string& why) {
  throw std::runtime_error("cannot read '" + path.string() + "': " + why);
}

bool is_within(const fs::path& path, const fs::path& folder) {
  const auto [in_folder, in_path] = std::mismatch(folder.begin(), folder.end(), path.begin(), path.end());
  return in_folder == folder.end() && in_path != path.end();
}

// Returns the blobs of the hub cache whose snapshots/REV the folder is or lies in, or an empty path. Neither path has
// links.
fs::path blobs_beside(const fs::path& folder) {
  for (fs::path revision = folder; revision.has_relative_path(); revision = revision.parent_path()) {
    if (revision.parent_path().filename() != "snapshots") continue;
    const fs::path blobs = revision.parent_path().parent_path() / "blobs";
    return fs::is_directory(fs::symlink_status(blobs)) ? blobs : fs::path();
  }
  return {};
}

// A file with no link on the way to it from `folder`, which has none itself.
struct Place {
  fs::path folder;
  fs::path relative;
};

// Returns where a name of the model's folder leads, with an empty folder if it leads out of it. Throws where this
// cannot be found out.
Place place_of(const fs::path& directory, const std::string& name) {
  std::error_code error;
  const fs::path folder = fs::canonical(directory, error);
  if (error) fail(directory, error.message());
  const fs::path target = fs::canonical(directory / name, error);
  if (error) fail(directory / name, why_not_opened(directory / name, error.value()));
  if (is_within(target, folder)) return {folder, target.lexically_relative(folder)};
  const fs::path blobs = blobs_beside(folder);
  if (!blobs.empty() && target.parent_path() == blobs) return {blobs, target.filename()};
  return {};
}

// A link that cannot be followed is not left out: the reader that opens it says what is wrong with it.
bool leads_out(const fs::path& directory, const std::string& name) {
  if (ModelDirectory::is_import(directory)) return false;  // its names are links to files that this process holds open
  std::error_code error;
  return fs::exists(directory / name, error) && !error && place_of(directory, name).folder.empty();
}

// Returns the templates of conversations that have a folder of their own, sorted.
std::vector<std::string> template_names(const fs::path& directory) {
  std::vector<std::string> names;
  if (!fs::is_directory(directory / kTemplates)) return names;
  for (const auto& entry : fs::directory_iterator(directory / kTemplates)) {
    const fs::path name = entry.path().filename();
    if (name.extension() == ".jinja") names.push_back((fs::path(kTemplates) / name).string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

// Returns the folders of the modules behind the encoder, as sentence-transformers' modules.json names them ("2_Dense").
// A file that is not such a list names none: nothing of a run depends on it.
std::set<std::string> module_folders(const fs::path& directory) {
  std::set<std::string> folders = {fs::path(kPooling).parent_path().string()};
  if (!is_there(directory / kModules) || leads_out(directory, kModules)) return folders;
  nlohmann::json modules;
  try {
    modules = parse_json(read_text_file(directory / kModules), kModules);
  } catch (const std::runtime_error&) {
    return folders;
  }
  for (const nlohmann::json& module : modules) {
    const bool has_path = module.is_object() && module.contains("path") && module["path"].is_string();
    const std::string path = has_path ? module["path"].get<std::string>() : std::string();
    // The encoder itself lies beside the file, or in the folder of module 0 with weights that are not to be copied.
    const bool is_first = has_path && module.value("idx", nlohmann::json(1)) == 0;
    if (!path.empty() && !is_first && !path.starts_with('.') && path.find('/') == std::string::npos) {
      folders.insert(path);
    }
  }
  return folders;
}

// Returns whether a module's folder holds this file for it, and not for something else.
bool is_of_module(const std::string& name) {
  return name == "config.json" || name == "model.safetensors" || name == "pytorch_model.bin";
}

std::string named(const std::vector<std::string>& names) {
  std::string list;
  for (size_t i = 0; i < std::min(names.size(), kMostNamed); ++i) list += (i > 0 ? ", " : "") + names[i];
  if (names.size() > kMostNamed) list += " and " + std::to_string(names.size() - kMostNamed) + " more";
  return list;
}

}  // namespace

SmallFiles find_small_files(const fs::path& directory) {
  SmallFiles files;
  std::set<std::string> others;
  const auto sort_in = [&](const std::string& name) {
    (leads_out(directory, name) ? files.links : files.copied).push_back(name);
  };
  const std::set<std::string> modules = module_folders(directory);
  for (const auto& entry : fs::directory_iterator(directory)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with('.') || name == kConfigName || name == kManifestName || name == kReportName ||
        name == kReportPageName)
      continue;
    std::error_code error;  // set by a link that cannot be followed
    const fs::file_status status = entry.status(error);
    const bool is_folder = fs::is_directory(status);
    const bool is_file = fs::is_regular_file(status) || (error && entry.is_symlink());
    if (is_file && is_copied(name)) {
      sort_in(name);
    } else if (!is_folder || (!modules.contains(name) && name != kTemplates)) {
      others.insert(is_folder ? name + "/" : name);
    }
  }
  std::sort(files.copied.begin(), files.copied.end());
  std::sort(files.links.begin(), files.links.end());
  for (const std::string& folder : modules) {
    if (!fs::is_directory(directory / folder)) continue;
    std::set<std::string> names;
    for (const auto& entry : fs::directory_iterator(directory / folder)) {
      const fs::path name = entry.path().filename();
      if (name.string().starts_with('.')) continue;
      if (is_of_module(name.string()) && !entry.is_directory()) {
        names.insert((fs::path(folder) / name).string());
      } else if (!leads_out(directory, folder)) {  // else its names are those of another folder
        others.insert((fs::path(folder) / name).string());
      }
    }
    for (const std::string& name : names) sort_in(name);
  }
  for (const std::string& name : template_names(directory)) sort_in(name);
  files.others.assign(others.begin(), others.end());
  std::vector<std::string> links = files.links;
  if (leads_out(directory, kConfigName)) links.emplace_back(kConfigName);
  for (const char* read : kRead) {
    if (std::find(links.begin(), links.end(), read) == links.end()) continue;
    throw std::runtime_error("'" + (directory / read).string() +
                             "' is a link that leads out of the model's folder. Files outside that folder are not "
                             "copied, and without this one the output would be another model: put the file itself "
                             "there (cp -L)");
  }
  return files;
}

std::vector<fs::path> copied_files(const fs::path& directory) {
  std::vector<fs::path> paths;
  for (const std::string& name : find_small_files(directory).copied) paths.push_back(directory / name);
  return paths;
}

InputFile open_small_file(const fs::path& directory, const std::string& name) {
  const fs::path path = directory / name;
  if (ModelDirectory::is_import(directory)) return InputFile(path);
  const Place place = place_of(directory, name);
  if (place.folder.empty()) fail(path, "it has become a link that leads out of the model's folder");
  // It opens folder after folder, since none of the names may have become a link after they were checked.
  Descriptor folder(::open(place.folder.c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  for (const fs::path& part : place.relative.parent_path()) {
    if (folder.get() < 0) break;
    folder.go_to(::openat(folder.get(), part.c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  }
  if (folder.get() < 0) fail(path, std::generic_category().message(errno));
  const int descriptor =
      ::openat(folder.get(), place.relative.filename().c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
  if (descriptor < 0) fail(path, std::generic_category().message(errno));
  return InputFile(path, descriptor);
}

std::string hash_small_file(const fs::path& directory, const std::string& name) {
  const InputFile file = open_small_file(directory, name);
  Sha256 hash;
  read_in_pieces(file, [&hash](std::span<const std::byte> piece) { hash.update(piece); });
  return hash.hex();
}

void copy_small_file(const fs::path& directory, const std::string& name, const fs::path& copy) {
  copy_privately(open_small_file(directory, name), copy);
}

std::vector<std::string> events_of_links(const SmallFiles& files) {
  std::vector<std::string> events;
  for (const std::string& name : files.links) {
    events.push_back("'" + name +
                     "' is not copied: it is a link that leads out of the model's folder. If the result needs it, put "
                     "the file itself there");
  }
  return events;
}

std::string line_of_others(const SmallFiles& files, const Checkpoint& source) {
  std::set<std::string> weights = {kIndexName};
  for (const fs::path& path : source.weight_files()) weights.insert(path.filename().string());
  std::vector<std::string> names;
  std::copy_if(files.others.begin(), files.others.end(), std::back_inserter(names),
               [&](const std::string& name) { return !weights.contains(name); });
  return names.empty() ? "" : "plan: not copied from the model's folder: " + named(names);
}

}  // namespace pare::runtime
