#include "runtime/model/mistaken_path.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/model/checkpoint_files.h"
#include "runtime/system/atomic_file.h"
#include "runtime/system/input_files.h"
#include "runtime/system/json_text.h"

namespace pare::runtime {
namespace {

namespace fs = std::filesystem;

constexpr const char* kAdapterName = "adapter_config.json";
constexpr const char* kSnapshots = "snapshots";
constexpr std::string_view kRepository = "models--";  // begins the name of a model's folder in the hub's cache

[[noreturn]] void refuse(const fs::path& path, const std::string& what) {
  throw std::runtime_error("'" + path.string() + "' " + what);
}

bool is_folder(const fs::path& path) {
  std::error_code error;
  return fs::is_directory(path, error);
}

// Returns the entries, sorted; none if the folder cannot be read.
std::vector<fs::path> entries_of(const fs::path& folder) {
  std::vector<fs::path> entries;
  std::error_code error;
  for (fs::directory_iterator entry(folder, error), end; !error && entry != end; entry.increment(error)) {
    entries.push_back(entry->path());
  }
  std::sort(entries.begin(), entries.end());
  return entries;
}

// Trainers leave other PyTorch files beside a model, which hold no weights.
bool holds_pytorch_weights(const fs::path& file) {
  const std::string name = file.filename().string();
  if (name.starts_with("pytorch_model")) return true;
  for (const char* other : {"training_args", "optimizer", "scheduler", "scaler", "rng_state"}) {
    if (name.starts_with(other)) return false;
  }
  const fs::path extension = file.extension();
  return (extension == ".bin" || extension == ".pt" || extension == ".pth" || extension == ".ckpt") &&
         is_pytorch_file(file);
}

// Returns one line for a shell; `model` is the expression with which transformers or peft open the folder.
std::string save_anew(const std::string& import, const std::string& model, const std::string& tokenizer) {
  return "python3 -c \"import transformers as t" + import + "; " + model +
         ".save_pretrained('NEW'); t.AutoTokenizer.from_pretrained('" + tokenizer + "').save_pretrained('NEW')\"";
}

std::string save_with_safetensors(const fs::path& folder) {
  return save_anew("", "t.AutoModelForCausalLM.from_pretrained('" + folder.string() + "')", folder.string()) +
         " (t.AutoModel for an encoder)";
}

// Returns "org/name", with at most these characters, from such a name or the address of its page; "" for anything else.
std::string hub_name(std::string text) {
  for (const std::string_view address :
       {"https://huggingface.co/", "http://huggingface.co/", "huggingface.co/", "https://hf.co/", "hf.co/", "hf://"}) {
    if (!text.starts_with(address)) continue;
    text = text.substr(address.size());
    const size_t slash = text.find('/');  // what follows the name leads into the page
    if (slash != std::string::npos) text = text.substr(0, text.find('/', slash + 1));
    break;
  }
  while (text.ends_with('/')) text.pop_back();
  const size_t slash = text.find('/');
  const auto is_part = [](std::string_view part) {
    return !part.empty() && part.front() != '.' && std::all_of(part.begin(), part.end(), [](unsigned char c) {
      return std::isalnum(c) != 0 || c == '-' || c == '_' || c == '.';
    });
  };
  if (slash == std::string::npos) return "";
  const std::string_view name = text;
  return is_part(name.substr(0, slash)) && is_part(name.substr(slash + 1)) ? text : "";
}

void refuse_hub_name(const fs::path& path) {
  for (const char* extension : {".gguf", ".safetensors", ".bin", ".json", ".yaml", ".npy", ".txt", ".jsonl"}) {
    if (path.extension() == extension) return;
  }
  const std::string name = hub_name(path.string());
  // If the first part is a folder of the user's, the second part is misspelt.
  if (name.empty() || is_folder(name.substr(0, name.find('/')))) return;
  refuse(path,
         "is not a file or folder here. It looks like a name on the Hugging Face hub, but pare opens no network "
         "connection: fetch the model (hf download " +
             name + " --local-dir " + name.substr(name.find('/') + 1) + ") and give that folder");
}

// Returns the snapshot of a model's folder in the hub's cache: that of the revision "main", or the only one; "" for
// none.
fs::path snapshot_of(const fs::path& repository) {
  const std::vector<fs::path> snapshots = entries_of(repository / kSnapshots);
  std::string revision;
  try {
    revision = read_text_file(repository / "refs" / "main", 200);
  } catch (const std::runtime_error&) {  // a cache may have none
  }
  while (!revision.empty() && std::isspace(static_cast<unsigned char>(revision.back()))) revision.pop_back();
  for (const fs::path& snapshot : snapshots) {
    if (snapshot.filename() == revision) return snapshot;
  }
  return snapshots.empty() ? fs::path() : snapshots.back();
}

void refuse_cache_folder(const fs::path& folder, const std::vector<fs::path>& entries) {
  const fs::path named = folder.has_filename() ? folder : folder.parent_path();  // without a last '/'
  const auto is_repository = [](const fs::path& path) {
    return path.filename().string().starts_with(kRepository) || is_folder(path / kSnapshots);
  };
  if (is_repository(named)) {
    const fs::path snapshot = snapshot_of(named);
    std::string name = named.filename().string();
    if (name.starts_with(kRepository)) name = name.substr(kRepository.size());
    if (const size_t dashes = name.find("--"); dashes != std::string::npos) name.replace(dashes, 2, "/");
    refuse(folder, "is a folder of the hub's cache: " +
                       (snapshot.empty() ? "it holds no model; fetch it (hf download " + name + ")"
                                         : "give the folder of a revision in it, '" + snapshot.string() + "'"));
  }
  if (named.filename() == kSnapshots && !entries.empty()) {
    refuse(folder, "is a folder of the hub's cache: give the folder of a revision in it, '" +
                       snapshot_of(named.parent_path()).string() + "'");
  }
  const auto found = std::find_if(entries.begin(), entries.end(), is_repository);
  if (found == entries.end()) return;
  const fs::path snapshot = snapshot_of(*found);
  refuse(folder, "is a cache of the hub with models in it: give the folder of a revision of one model" +
                     (snapshot.empty() ? std::string() : ", such as '" + snapshot.string() + "'"));
}

void refuse_adapter(const fs::path& folder) {
  std::string base;
  try {
    const nlohmann::json config = parse_json(read_text_file(folder / kAdapterName), kAdapterName);
    if (config.is_object() && config.contains("base_model_name_or_path") &&
        config["base_model_name_or_path"].is_string()) {
      base = config["base_model_name_or_path"].get<std::string>();
    }
  } catch (const std::runtime_error&) {  // the message then does not name the base model
  }
  refuse(folder,
         "holds an adapter (LoRA, " + std::string(kAdapterName) + ")" +
             (base.empty() ? "" : " of '" + base.substr(0, 200) + "'") +
             " and no model: merge it into its model first: " +
             save_anew(", peft as p",
                       "p.AutoPeftModelForCausalLM.from_pretrained('" + folder.string() + "').merge_and_unload()",
                       base.empty() ? folder.string() : base.substr(0, 200)));
}

void refuse_folder(const fs::path& folder) {
  const std::vector<fs::path> entries = entries_of(folder);
  const bool has_weights = is_there(folder / kSingleFileName) || is_there(folder / kIndexName);
  const bool has_config = is_there(folder / kConfigName);
  if (has_weights && has_config) return;
  if (is_there(folder / kAdapterName)) refuse_adapter(folder);
  if (!has_config) refuse_cache_folder(folder, entries);
  if (has_weights) return;
  const auto of_pytorch = std::find_if(entries.begin(), entries.end(), holds_pytorch_weights);
  if (of_pytorch != entries.end()) {
    refuse(folder, "holds its weights in PyTorch's own format (" + of_pytorch->filename().string() +
                       "), which can run code and is not read: save the model with safetensors: " +
                       save_with_safetensors(folder));
  }
  const auto gguf =
      std::find_if(entries.begin(), entries.end(), [](const fs::path& entry) { return entry.extension() == ".gguf"; });
  if (gguf != entries.end()) {
    refuse(folder, "holds no " + std::string(has_config ? kSingleFileName : kConfigName) + ", but a .gguf: give '" +
                       gguf->string() + "', or import it (pare import '" + gguf->string() + "' NEW)");
  }
}

}  // namespace

bool is_pytorch_file(const fs::path& path) {
  std::array<std::byte, 4> magic{};
  try {
    const InputFile file(path);
    if (file.size_bytes() < static_cast<int64_t>(magic.size())) return false;
    file.read(0, magic);
  } catch (const std::runtime_error&) {
    return false;
  }
  const auto is = [&](std::initializer_list<int> bytes) {
    return std::equal(bytes.begin(), bytes.end(), magic.begin(),
                      [](int a, std::byte b) { return a == std::to_integer<int>(b); });
  };
  // A zip archive, as torch.save writes it; before 1.6 a pickle of protocol 2.
  return is({'P', 'K', 3, 4}) || is({0x80, 2, 0x8a, 0x0a}) || is({0x80, 2, '}', 'q'});
}

void refuse_mistaken_model(const fs::path& path) {
  if (!is_there(path)) return refuse_hub_name(path);
  if (is_folder(path)) return refuse_folder(path);
  const fs::path folder = path.has_parent_path() ? path.parent_path() : fs::path(".");
  if (is_pytorch_file(path)) {
    refuse(path,
           "is a file of PyTorch's own format, which can run code and is not read: give a folder with "
           "config.json and safetensors files; transformers saves one: " +
               save_with_safetensors(folder));
  }
  if (path.extension() == ".safetensors") {
    refuse(path, "holds only weights: give the folder that contains it, '" + folder.string() + "'");
  }
}

}  // namespace pare::runtime
