// Every call of the program that deletes, replaces or truncates something, with the reason why it can only affect
// pare's own files. A new call must be listed here, or the test fails. The tests beside each call cover what it does.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <map>
#include <regex>
#include <string>
#include <vector>

#include "tests/places.h"

namespace pare {
namespace {

namespace fs = std::filesystem;

struct DeletingCall {
  std::string file;
  std::string line;  // the beginning of the line
  std::string why;   // for the reader
};

const std::vector<DeletingCall>& allowed_calls() {
  static const std::string claimed = "names of pare's own in a claimed folder that is no link";
  static const std::string empty = "rmdir takes an empty folder alone, and no link";
  static const std::string temporary = "made by this object, under a name that no other process takes";
  static const std::vector<DeletingCall> calls = {
      // In OUT.partial, only while this process holds the lock of the mark in it.
      {"runtime/system/partial_output.cpp", "fs::remove_all(folder / PartialOutput::kResult);", claimed},
      {"runtime/system/partial_output.cpp", "if (is_temporary_name(entry.filename().string())) fs::remove(", claimed},
      {"runtime/system/partial_output.cpp", "::rmdir(folder.c_str());", empty},
      {"runtime/system/partial_output.cpp", "::pwrite(lock, text.data(), text.size(), 0) == size && ::ftruncate(",
       "the mark, whose text was read and is pare's or empty"},
      {"runtime/system/partial_output.cpp", "::unlink((folder_ / kMark).c_str());", "the mark, made just now"},
      {"runtime/system/partial_output.cpp", "::rmdir(folder_.c_str());", empty},
      {"runtime/system/partial_output.cpp", "::rmdir(folder_.c_str());", empty},
      {"runtime/system/partial_output.cpp", "fs::remove(folder_ / kMark);", "the mark, whose lock is held"},
      {"runtime/system/partial_output.cpp", "fs::remove(folder_ / kMark);", "the mark, whose lock is held"},
      {"runtime/system/partial_output.cpp", "if (::renameat2(AT_FDCWD, result().c_str(), AT_FDCWD, output_",
       "RENAME_NOREPLACE"},
      {"runtime/system/partial_output.cpp", "fs::rename(result(), output_);",
       "where the file system cannot refuse to replace; nothing was there just before"},
      // The phases of a run in OUT.partial. If one of their names is a link, the run is refused before any of this.
      {"compress/artifact/workplace.cpp", "fs::remove_all(phase / kArtifact);", claimed},
      {"compress/artifact/workplace.cpp", "fs::remove(phase / kMade / runtime::kManifestName);", claimed},
      {"compress/artifact/workplace.cpp", "fs::remove_all(phase / kMade);", claimed},
      {"compress/artifact/workplace.cpp", "if (Workplace::is_own(file) || file.filename() == Workplace::kTraining",
       claimed},
      {"compress/artifact/workplace.cpp", "::rmdir((phase / kTraining).c_str());", empty},
      {"compress/artifact/workplace.cpp", "if (Workplace::is_own(file) && file.filename() != kRunFile) fs::remove(",
       claimed},
      {"compress/artifact/workplace.cpp", "fs::remove(phase / kProgress / kRunFile);", claimed},
      {"compress/artifact/workplace.cpp", "::rmdir((phase / kProgress).c_str());", empty},
      {"compress/artifact/workplace.cpp", "::rmdir(phase.c_str());", empty},
      {"compress/artifact/workplace.cpp", "::rmdir(progress.c_str());", empty},
      {"compress/artifact/workplace.cpp", "fs::rename(artifact(), folder_ / kMade);",
       "both names in a claimed folder; a folder that holds something is not replaced"},
      {"compress/artifact/workplace.cpp", "::rmdir(folder_.c_str());", empty},
      {"compress/artifact/parts.cpp", "fs::remove(path);", "a temporary file in the claimed folder's progress"},
      {"compress/artifact/hugging_face.cpp", "fs::remove_all(directory);", "the artifact in the claimed folder"},
      {"compress/report/source_card.cpp", "fs::rename(artifact / kCardName, artifact / kSourceCardName);",
       "both names in a claimed folder, or in an artifact by 'card --write'; nothing has the new one"},
      {"compress/report/source_card.cpp", "fs::rename(artifact / kCardName, free);",
       "the same, and nothing has the new name"},
      {"compress/export/export_model.cpp", "fs::remove_all(directory / kLayers);", claimed},
      {"compress/export/export_model.cpp", "if (is_own_card(directory, kCardName)) fs::remove(directory / kCardName);",
       claimed},
      {"compress/run/written_form.cpp", "fs::remove_all(entry);", claimed},
      {"compress/run/written_form.cpp", "if (!is_replaced) fs::rename(entry, directory / entry.filename());",
       "both names in the artifact of a claimed folder, where nothing has the new one"},
      {"compress/run/written_form.cpp", "fs::remove_all(folder);", claimed},
      {"compress/run/derive_student.cpp", "std::filesystem::remove_all(artifact.artifact_directory());", claimed},
      {"compress/train/training_state.cpp", "if (path.extension() == \".safetensors\" || runtime::is_temporary_name(",
       claimed},
      {"compress/artifact/can_be_made.cpp", "::rmdir(name.c_str());", "mkdtemp has made it just now"},
      // A recording in OUT.partial.
      {"compress/record/unfinished_store.cpp", "fs::remove(remains->folder() / kRunFile);", claimed},
      {"compress/record/unfinished_store.cpp", "fs::rename(folder, shards_folder());",
       "OUT.shards, which holds the shards that the master in the claimed folder names by their hashes"},
      {"compress/record/unfinished_store.cpp", "if (!complete.contains(name) && (is_shard_name(name) ||", claimed},
      {"compress/record/unfinished_store.cpp", "fs::remove_all(shards_folder());", claimed},
      {"compress/record/unfinished_store.cpp", "fs::remove_all(shards_folder());", claimed},
      {"compress/record/unfinished_store.cpp", "fs::remove(partial_.result());", claimed},
      {"compress/record/unfinished_store.cpp", "fs::remove(partial_.result());", claimed},
      {"compress/record/unfinished_store.cpp", "fs::remove(run_file());", claimed},
      {"compress/record/unfinished_store.cpp", "fs::remove(run_file());", claimed},
      {"compress/record/unfinished_store.cpp", "fs::rename(shards_folder(), folder);",
       "nothing was there just before; a folder that holds something is not replaced"},
      // Temporary files of this process.
      {"compress/hdf5/unpublished_file.cpp", "unlink(temporary_.c_str());", temporary},
      {"compress/hdf5/unpublished_file.cpp", "if (error == 0) unlink(temporary_.c_str());", temporary},
      {"compress/hdf5/unpublished_file.cpp", "int error = renameat2(AT_FDCWD, temporary_", "RENAME_NOREPLACE"},
      {"compress/hdf5/hdf5_writer.cpp", "file_ = check(H5Fcreate(file.c_str(), H5F_ACC_TRUNC,",
       "callers give the empty file that an UnpublishedFile has made"},
      {"compress/walk/hidden_store.cpp", "unlink(name.c_str());", "mkstemp has made it just now"},
      {"runtime/system/atomic_file.cpp", "descriptor_(::open(temporary_.c_str(), O_WRONLY | O_CREAT | O_TRUNC |",
       "a temporary name with this process's number; no link is followed"},
      {"runtime/system/atomic_file.cpp", "if (!committed_) ::unlink(temporary_.c_str());", temporary},
      {"runtime/system/atomic_file.cpp", "if (::rename(temporary_.c_str(), path_.c_str()) != 0) fail(",
       "the file that a caller asks for: in a folder that pare has made, or where nothing was just before"},
      // Temporary imports in TMPDIR.
      {"runtime/import/model_directory.cpp", "fs::remove_all(entry->path(), ignored);",
       "a folder of this user, locked by this process, with pare's mark and name"},
      {"runtime/files/safetensors.cpp", "std::filesystem::resize_file(path, file_bytes);",
       "the file that it has just written grows"},
      {"runtime/files/gguf_writer.cpp", "std::ofstream file(path, std::ios::binary);",
       "in a folder of a ModelDirectory, or OUT.partial's own result"},
      {"runtime/files/gguf_writer.cpp", "std::filesystem::resize_file(path, offset, error);",
       "the file that it has just written"},
      {"runtime/import/model_directory.cpp", "::rmdir(entry->path().c_str());", empty},
      {"runtime/import/model_directory.cpp", "fs::remove(name);", "in the folder that this object has made"},
      {"runtime/import/model_directory.cpp", "if (!temporary_.empty()) fs::remove_all(temporary_, ignored);",
       "the folder that this object has made"},
  };
  return calls;
}

// Matches calls of the standard library and of the system. Streams and files that are opened for writing truncate
// first.
const std::regex& deleting_call() {
  static const std::regex call(
      R"((fs|filesystem)::(remove|remove_all|rename|resize_file|copy|copy_file)\s*\()"
      R"(|(^|[^A-Za-z0-9_.>])(unlink|unlinkat|rmdir|rename|renameat2?|ftruncate|creat|fopen|freopen)\s*\()"
      R"(|::truncate\s*\(|std::remove\s*\(|O_TRUNC|H5F_ACC_TRUNC|ofstream|FALLOC_FL_PUNCH_HOLE)");
  return call;
}

// Returns "FILE: LINE" of every such call in the sources.
std::vector<std::pair<std::string, std::string>> calls_in_sources() {
  std::vector<std::pair<std::string, std::string>> found;
  for (const char* folder : {"runtime", "quant", "prune", "distill", "compress"}) {
    for (const auto& entry : fs::recursive_directory_iterator(fs::path(kSourceFolder) / folder)) {
      const std::string extension = entry.path().extension().string();
      if (extension != ".cpp" && extension != ".h" && extension != ".cu" && extension != ".cuh") continue;
      const std::string name = entry.path().lexically_relative(kSourceFolder).string();
      std::ifstream file(entry.path());
      for (std::string line; std::getline(file, line);) {
        const std::string code = line.substr(0, line.find("//"));
        const size_t first = code.find_first_not_of(' ');
        if (first != std::string::npos && std::regex_search(code, deleting_call())) {
          found.emplace_back(name, code.substr(first));
        }
      }
    }
  }
  return found;
}

TEST(DeletingCalls, EachIsOfWhatIsParesOwn) {
  std::vector<DeletingCall> expected = allowed_calls();
  for (const auto& [file, line] : calls_in_sources()) {
    const auto known = std::find_if(
        expected.begin(), expected.end(),
        [&, &file = file, &line = line](const auto& call) { return call.file == file && line.starts_with(call.line); });
    EXPECT_NE(known, expected.end()) << file << ": " << line << "\nWhose is what it deletes? Enter it with the reason.";
    if (known != expected.end()) expected.erase(known);
  }
  for (const DeletingCall& call : expected) ADD_FAILURE() << call.file << " has no such call any more: " << call.line;
}

TEST(DeletingCalls, AreSeen) {
  for (const char* line :
       {"fs::remove(path);", "std::filesystem::remove_all(path)", "  ::unlink(name)", "if (unlink(name))",
        "fs::rename(a, b)", "std::ofstream(path)", "open(name, O_CREAT | O_TRUNC)", "std::remove(name)"}) {
    EXPECT_TRUE(std::regex_search(line, deleting_call())) << line;
  }
  for (const char* line : {"names.remove(3)", "ids->truncate(1)", "remove_what_follows();", "int unlinked(int)"}) {
    EXPECT_FALSE(std::regex_search(line, deleting_call())) << line;
  }
}

}  // namespace
}  // namespace pare
