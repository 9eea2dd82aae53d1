#include "runtime/commands/doctor_command.h"

#include <chrono>
#include <filesystem>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "runtime/commands/artifact_files.h"
#include "runtime/commands/command_parts.h"
#include "runtime/commands/small_files.h"
#include "runtime/doctor/examine.h"
#include "runtime/doctor/repair.h"
#include "runtime/model/checkpoint.h"
#include "runtime/system/partial_output.h"
#include "runtime/system/private_files.h"
#include "runtime/system/visible_text.h"

namespace pare::runtime {
namespace {

OriginalWeight weights_of(const std::shared_ptr<const Checkpoint>& original) {
  if (!original) return {};
  std::map<std::string, LinearDescription> linears;
  for (const LinearDescription& linear : stored_linears(*original)) linears.emplace(linear.name, linear);
  return [original, linears](const std::string& module, int64_t num_out, int64_t num_in) {
    std::vector<float> weight_OI;
    const auto found = linears.find(module);
    if (found == linears.end() || found->second.num_out != num_out || found->second.num_in != num_in) return weight_OI;
    weight_OI.resize(static_cast<size_t>(num_out * num_in));
    weight_rows(original->linear(found->second), 0, num_out, weight_OI);
    original->drop_pages(found->second);
    return weight_OI;
  };
}

// Makes the copy, examines it as the model was examined, and publishes it. Returns what the examination found.
Examination make_copy(const Examination& examination, const std::filesystem::path& output,
                      const ExamineOptions& options, Console& console) {
  require_repairable(examination);
  int64_t num_bytes = 0;
  for (const SafetensorsFile& file : examination.patient->files) {
    num_bytes += static_cast<int64_t>(file.file().bytes().size());
  }
  require_disk_space(output, num_bytes);
  PartialOutput place(output, "doctor", PartialOutput::Remains::worthless);
  const std::filesystem::path copy = place.result();
  std::filesystem::create_directories(copy);
  const auto progress = stage(console, "repair", "tensors");
  write_repaired(examination, copy, [&](int64_t done, int64_t total) { progress(static_cast<double>(done), total); });
  for (const std::string& name : find_small_files(examination.path).copied) {
    if (is_there(copy / name)) continue;  // a repair has written it
    std::filesystem::create_directories((copy / name).parent_path());
    copy_small_file(examination.path, name, copy / name);
  }
  Examination after = examine(copy, options);
  after.path = output;
  after.patient.reset();
  place.publish();
  return after;
}

void run_doctor(const Arguments& arguments, Console& console) {
  const std::filesystem::path path = arguments.positional(0);
  std::filesystem::path output, original_path;
  if (arguments.given("original")) original_path = arguments.text("original");
  if (arguments.given("repair")) {
    output = output_place(arguments.text("repair"));
    PartialOutput::check_is_free(output, PartialOutput::Leftovers::stay);
    refuse_output_inside(output, path);
    refuse_output_in_artifact(output);
    keep_as_private_as({path, original_path}, output);
  }
  std::shared_ptr<const Checkpoint> original;
  if (!original_path.empty()) original = std::make_shared<const Checkpoint>(Checkpoint::open(original_path));
  const auto progress = stage(console, "doctor", "items");
  const ExamineOptions options{.original = weights_of(original), .progress = [&](int64_t done, int64_t total) {
                                 progress(static_cast<double>(done), total);
                               }};

  const Examination examination = examine(path, options);
  nlohmann::ordered_json json = examination_json(examination);
  console.report() << to_text(examination);
  bool is_healthy = examination.is_healthy();
  if (!output.empty()) {
    json["repaired"] = nullptr;
    if (repairable(examination).empty()) {
      console.report() << (is_healthy ? "nothing is to be repaired" : "nothing of this can be repaired")
                       << "; no copy was written\n";
    } else {
      const Examination after = make_copy(examination, output, options, console);
      is_healthy = after.is_healthy();
      console.report() << "repaired copy of what can be repaired:\n" << to_text(after);
      json["repaired"] = examination_json(after);
    }
  }
  console.set_result(dump(json));
  if (!is_healthy) console.set_ill();
}

}  // namespace

Command doctor_command() {
  return {
      .name = "doctor",
      .summary =
          "Find what is wrong with a model's files, with the numbers that show it; the exit status is 1 if "
          "something is.",
      .positionals = {{"MODEL", "directory of a checkpoint, whole or not, or a .gguf file"}},
      .options = {{.name = "original",
                   .kind = OptionKind::text,
                   .value_name = "DIR",
                   .help = "the model before it was quantized: its weights tell which of two readings is right, and "
                           "which layers were exchanged"},
                  {.name = "repair",
                   .kind = OptionKind::text,
                   .value_name = "OUT",
                   .help = "write a copy in which all that can be repaired is, and examine it; a directory that "
                           "must not exist. The exit status is the copy's"}},
      .run = run_doctor};
}

}  // namespace pare::runtime
