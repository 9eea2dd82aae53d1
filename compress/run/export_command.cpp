#include "compress/run/export_command.h"

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "compress/export/export_model.h"
#include "compress/export/gguf_report.h"
#include "compress/run/pipeline.h"
#include "compress/run/run_data.h"
#include "compress/run/torch_errors.h"
#include "compress/walk/column_squares.h"
#include "runtime/commands/artifact_files.h"
#include "runtime/commands/command_parts.h"
#include "runtime/export/export_gguf.h"
#include "runtime/system/partial_output.h"
#include "runtime/system/private_files.h"
#include "runtime/system/visible_text.h"

namespace pare::compress {
namespace {

using Clock = std::chrono::steady_clock;

struct Written {
  std::string format;
  int64_t num_bytes = 0;
  std::vector<std::string> lines, events;
  nlohmann::ordered_json json;
};

Written write_folder(runtime::NamedModel& model, const std::filesystem::path& output,
                     const runtime::FolderFormat& format, bool lossless, runtime::Console& console) {
  const ExportOptions options{.format = &format, .lossless = lossless};
  plan_export(model.described(), format, lossless);  // what is refused is refused before the weights
  ExportResult result;
  with_own_errors([&] {
    result = export_model(model.whole(), output, options, console.progress());
    return std::string();
  });
  return {std::string(format.name), result.num_bytes, export_lines(result, format), result.events,
          runtime::parse_ordered_json(export_json(result, format), "the export")};
}

// A GGUF file rounds and drops no input.
void refuse_changed_inputs(const runtime::Checkpoint& checkpoint) {
  for (const runtime::LinearDescription& linear : runtime::stored_linears(checkpoint)) {
    if (checkpoint.sparsity_threshold(linear) > 0.0f) {
      throw std::invalid_argument("--lossless: layer '" + linear.name +
                                  "': its small inputs are dropped, which a GGUF file does not hold: take another "
                                  "format, or leave --lossless out");
    }
    const std::optional<runtime::PackScheme> scheme = checkpoint.stored_scheme(linear);
    if (!scheme || scheme->input.is_plain()) continue;
    throw std::invalid_argument("--lossless: layer '" + linear.name + "': its inputs are rounded (" +
                                runtime::input_format_name(scheme->input) +
                                "), which a GGUF file does not hold: take another format, or leave --lossless out");
  }
}

// source: as of GgufExportOptions.
Written write_gguf(runtime::NamedModel& model, const std::filesystem::path& source, const std::filesystem::path& output,
                   const runtime::GgufFormat& format, bool lossless, const std::filesystem::path& statistics,
                   runtime::Console& console) {
  if (lossless) refuse_changed_inputs(model.described());
  // What is refused is refused before the weights.
  const runtime::GgufExport planned = runtime::plan_gguf_export(model.described(), format, source);
  SquaresByLinear squares;
  if (!statistics.empty()) squares = column_squares(read_statistics(statistics, model.whole()), model.whole());
  const auto importance = [&](const runtime::LinearDescription& linear) {
    const auto found = squares.find(linear.name);
    return found == squares.end() ? std::span<const float>() : std::span<const float>(found->second.mean_I);
  };
  runtime::require_disk_space(output, planned.num_weight_bytes);
  const auto progress = runtime::stage(console, "export", "tensors");
  std::vector<std::string> card_notes;
  runtime::GgufExport result = runtime::export_gguf(
      model.whole(), output, format,
      {.source = source,
       .lossless = lossless,
       .importance = importance,
       .license = licences_of(model.described().directory(), card_notes),
       .progress = [&](int64_t done, int64_t total) { progress(static_cast<double>(done), total); }});
  result.notes.insert(result.notes.end(), card_notes.begin(), card_notes.end());
  return {std::string(format.name) + " in GGUF (" + result.architecture + ")", result.num_bytes, gguf_lines(result),
          result.notes, runtime::parse_ordered_json(gguf_json(result, format), "the export")};
}

void run_export(const runtime::Arguments& arguments, runtime::Console& console) {
  const Clock::time_point start = Clock::now();
  set_num_threads(arguments.given("threads") ? static_cast<int>(arguments.integer("threads")) : 0);
  const std::filesystem::path output = runtime::output_place(arguments.positional(1));
  const std::string& name = arguments.text("format");
  const bool lossless = arguments.flag("lossless");
  const runtime::FolderFormat* const folder = runtime::find_folder_format(name);
  const std::filesystem::path statistics = arguments.given("statistics") ? arguments.text("statistics") : "";
  const runtime::GgufFormat* const file = runtime::find_gguf_format(name);
  const bool rounds =
      file != nullptr && file->type && runtime::gguf_block(static_cast<uint32_t>(*file->type)).num_elements > 1;
  if (!rounds && !statistics.empty()) {
    throw runtime::WrongUsage(
        "--statistics belongs to the types of GGUF that round: leave it out, or take one, such as "
        "q4_0");
  }
  if (!statistics.empty()) StatisticsFile::open(statistics);
  if (folder == nullptr && output.extension() != ".gguf") {
    throw runtime::WrongUsage("OUT is a file of GGUF, whose name ends in .gguf: found '" + output.string() + "'");
  }
  if (folder != nullptr && output.extension() == ".gguf") {
    throw runtime::WrongUsage("OUT is a folder in the format " + name +
                              ", and a name that ends in .gguf is a file's: " + "found '" + output.string() + "'");
  }
  runtime::PartialOutput::check_is_free(output, runtime::PartialOutput::Leftovers::stay);
  runtime::refuse_output_inside(output, arguments.positional(0));
  runtime::refuse_output_in_artifact(output);
  runtime::keep_as_private_as({std::filesystem::path(arguments.positional(0)), statistics}, output);
  const bool is_dense = folder != nullptr && folder->container.empty();
  const runtime::GgufCodes codes = is_dense ? runtime::GgufCodes::decoded : runtime::GgufCodes::kept;
  runtime::NamedModel model(arguments.positional(0), true, "", console, codes);
  const std::filesystem::path named = runtime::stored_model(arguments.positional(0)),
                              source = named.extension() == ".gguf" ? named : "";
  Written written = folder != nullptr ? write_folder(model, output, *folder, lossless, console)
                                      : write_gguf(model, source, output, *file, lossless, statistics, console);
  console.report() << runtime::visible_line(output.string()) << ": " << written.format << ", "
                   << runtime::format_bytes(written.num_bytes) << '\n';
  for (const std::string& line : written.lines) console.report() << "  " << runtime::visible_line(line) << '\n';
  for (const std::string& event : written.events) console.progress().print("event: " + event);
  written.json["output"] = output.string();
  written.json["bytes"] = written.num_bytes;
  written.json["seconds"] = std::chrono::duration<double>(Clock::now() - start).count();
  console.set_result(runtime::dump(written.json));
}

runtime::OptionSpec threads_option() {
  const std::vector<runtime::OptionSpec> options = runtime::compute_options();
  return *std::ranges::find(options, "threads", &runtime::OptionSpec::name);
}

}  // namespace

runtime::Command export_command() {
  std::vector<std::string> formats;
  for (const runtime::FolderFormat& format : runtime::folder_formats()) formats.emplace_back(format.name);
  for (const runtime::GgufFormat& format : runtime::gguf_formats()) formats.emplace_back(format.name);
  return {
      .name = "export",
      .summary = "Write a compressed model in another engine's format; codes that the format holds pass unchanged.",
      .positionals = {{"MODEL", "directory of a checkpoint, dense or compressed, or a .gguf file"},
                      {"OUT", "directory to write, or a .gguf file for the types of GGUF; must not exist"}},
      .options = {{.name = "format",
                   .kind = runtime::OptionKind::text,
                   .value_name = "NAME",
                   .help =
                       "the format to write; gguf: a GGUF file with the smallest type that holds each layer's codes",
                   .required = true,
                   .choices = formats},
                  {.name = "statistics",
                   .kind = runtime::OptionKind::text,
                   .value_name = "FILE",
                   .help = "weigh the errors of GGUF's types by the inputs' mean squares: what 'pare calibrate' has "
                           "stored of this model"},
                  threads_option(),
                  {.name = "lossless",
                   .help = "refuse to change any value of a weight (default: round to the nearest codes of the format "
                           "and print the error)"}},
      .run = run_export};
}

}  // namespace pare::compress
