#include "compress/record/unfinished_store.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <stdexcept>
#include <utility>

#include "compress/artifact/checked_file.h"
#include "compress/record/logit_store.h"
#include "compress/record/logit_writer.h"
#include "runtime/system/atomic_file.h"
#include "runtime/system/input_files.h"
#include "runtime/system/json_text.h"

namespace pare::compress {
namespace {

using Json = nlohmann::ordered_json;
namespace fs = std::filesystem;

constexpr const char* kCommand = "record";
constexpr const char* kRunFile = "record.json";
constexpr const char* kShards = "shards";

fs::path absolute_place(const fs::path& output) {
  return fs::absolute(runtime::output_place(output));
}

fs::path final_shards(const fs::path& output) {
  fs::path folder = output;
  folder += ".shards";
  return folder;
}

[[noreturn]] void fail_exists(const fs::path& path) {
  throw std::runtime_error("output '" + path.string() + "' exists: remove it or choose another");
}

// Returns whether the run may have been killed between its last two renames: the shards have their final name, the
// master does not.
bool may_have_moved_shards(const fs::path& folder, const fs::path& master, const fs::path& output) {
  return runtime::is_there(folder / kRunFile) && runtime::is_there(master) && !runtime::is_there(folder / kShards) &&
         runtime::is_there(final_shards(output)) && !runtime::is_there(output);
}

// Returns whether the folder holds the shards that the master names by their hashes, and nothing else. The run that was
// killed may have had other options than this one.
bool holds_shards_of(const fs::path& master, const fs::path& folder) {
  if (!fs::is_directory(fs::symlink_status(folder))) return false;
  int64_t num_files = 0;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.is_symlink() || !entry.is_regular_file()) return false;
    ++num_files;
  }
  try {
    return LogitStore::open_unpublished(master, folder).num_shards() == num_files;
  } catch (const std::runtime_error&) {
    return false;
  }
}

// Returns whether the name is NNNNN.h5.
bool is_shard_name(const std::string& name) {
  const std::string number = fs::path(name).stem().string();
  return name.ends_with(".h5") && !number.empty() && number.find_first_not_of("0123456789") == std::string::npos;
}

std::string plan_text(const LogitOrigin& origin, const std::vector<int64_t>& shard_sequences) {
  Json plan = runtime::parse_ordered_json(origin.to_json(), "the plan");
  plan["source"] = runtime::parse_ordered_json(origin.source, "the plan's source");
  plan["shard_sequences"] = shard_sequences;
  return runtime::json_text(plan, 1);
}

// Returns all differences as text, e.g. "top_k is 50 there and 20 here".
std::string differences(const Json& there, const Json& here) {
  std::string text;
  for (const auto& [key, value] : here.items()) {
    const Json other = there.value(key, Json());
    if (other == value) continue;
    if (value.is_object() && other.is_object()) {
      const std::string inner = differences(other, value);
      if (!inner.empty()) text += (text.empty() ? "" : ", ") + inner;
    } else if (key == "shard_sequences") {
      if (text.empty()) text = "the shards are cut in another way (--shard-tokens)";
    } else {
      text += (text.empty() ? "" : ", ") + key + " is " + runtime::json_text(other) + " there and " +
              runtime::json_text(value) + " here";
    }
  }
  return text;
}

}  // namespace

void UnfinishedStore::check_output_is_free(const fs::path& given, runtime::PartialOutput::Leftovers leftovers) {
  const fs::path output = absolute_place(given);
  if (runtime::is_there(output)) {
    // A run that was killed after its last rename leaves its folder.
    if (leftovers == runtime::PartialOutput::Leftovers::go) {
      if (std::optional<runtime::PartialOutput> remains = runtime::PartialOutput::take_remains(output, kCommand)) {
        if (!runtime::is_there(remains->result()) && !runtime::is_there(remains->folder() / kShards)) {
          fs::remove(remains->folder() / kRunFile);
          remains->discard();
        }
      }
    }
    runtime::PartialOutput::check_is_free(output, leftovers);
  }
  const fs::path folder = runtime::PartialOutput::folder_of(output);
  if (runtime::is_there(final_shards(output)) &&
      !may_have_moved_shards(folder, folder / runtime::PartialOutput::kResult, output)) {
    fail_exists(final_shards(output));
  }
}

UnfinishedStore::UnfinishedStore(const fs::path& output, const LogitOrigin& origin,
                                 std::vector<int64_t> shard_sequences, bool fresh)
    : output_(absolute_place(output)),
      origin_(origin),
      shard_sequences_(std::move(shard_sequences)),
      partial_((check_output_is_free(output, runtime::PartialOutput::Leftovers::go), output_), kCommand,
               runtime::PartialOutput::Remains::resumable) {
  claim(fresh);
  int64_t first_sequence = 0;
  for (const int64_t num_sequences : shard_sequences_) {
    const fs::path path = next_shard_path();
    if (!runtime::is_there(path)) break;
    const LogitShard shard = check_shard(path, origin_, static_cast<int64_t>(shards_.size()), first_sequence);
    if (shard.num_sequences != num_sequences) throw damaged_file(path);
    shards_.push_back(shard);
    first_sequence += num_sequences;
  }
  remove_what_follows();
}

fs::path UnfinishedStore::run_file() const {
  return partial_.folder() / kRunFile;
}

fs::path UnfinishedStore::shards_folder() const {
  return partial_.folder() / kShards;
}

fs::path UnfinishedStore::next_shard_path() const {
  return shards_folder() / shard_name(static_cast<int64_t>(shards_.size()));
}

void UnfinishedStore::take_back_shards() {
  if (!may_have_moved_shards(partial_.folder(), partial_.result(), output_)) return;
  const fs::path folder = final_shards(output_);
  if (!holds_shards_of(partial_.result(), folder)) fail_exists(folder);
  fs::rename(folder, shards_folder());
}

// Removes the shard that a killed run was writing, and shards after the first missing one, which a killed discard()
// leaves.
void UnfinishedStore::remove_what_follows() const {
  std::set<std::string> complete;
  for (size_t i = 0; i < shards_.size(); ++i) complete.insert(shard_name(static_cast<int64_t>(i)));
  for (const auto& entry : fs::directory_iterator(shards_folder())) {
    const std::string name = entry.path().filename().string();
    if (!complete.contains(name) && (is_shard_name(name) || runtime::is_temporary_name(name))) fs::remove(entry.path());
  }
}

void UnfinishedStore::claim(bool fresh) {
  if (fs::is_symlink(fs::symlink_status(shards_folder()))) {
    throw std::runtime_error("'" + shards_folder().string() +
                             "' is a link that no run has made: remove it, or choose another output");
  }
  if (fresh) {
    take_back_shards();
    fs::remove_all(shards_folder());
    fs::remove(partial_.result());
    fs::remove(run_file());
  }
  const std::string plan = plan_text(origin_, shard_sequences_);
  if (runtime::is_there(run_file())) {
    const Json there = runtime::parse_ordered_json(read_checked_file(run_file()), run_file().string());
    if (!there.is_object()) throw damaged_file(run_file());
    const std::string found = differences(there, runtime::parse_ordered_json(plan, "the plan"));
    if (!found.empty()) {
      throw std::runtime_error(
          "'" + partial_.folder().string() + "' holds an unfinished recording of something else (" + found +
          "): continue it with the command that began it, discard it with --fresh, or choose another output");
    }
    take_back_shards();
  } else if (runtime::is_there(shards_folder()) && !fs::is_empty(shards_folder())) {
    throw damaged_file(run_file());
  }
  fs::create_directories(shards_folder());  // must exist before the file that says what it is for
  if (!runtime::is_there(run_file())) write_checked_file(run_file(), plan);
}

std::string UnfinishedStore::publish() {
  fs::remove(partial_.result());
  const fs::path folder = final_shards(output_);
  const std::string hash = write_master(partial_.result(), origin_, folder.filename().string(), shards_);
  if (runtime::is_there(folder)) fail_exists(folder);
  fs::rename(shards_folder(), folder);
  runtime::sync_directory(folder.parent_path());
  partial_.publish();
  discard();
  return hash;
}

void UnfinishedStore::discard() {
  fs::remove_all(shards_folder());
  fs::remove(run_file());
  partial_.discard();
}

}  // namespace pare::compress
