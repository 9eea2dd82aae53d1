#include "compress/export/export_command.h"

#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "compress/export/export_model.h"
#include "compress/run/torch_errors.h"
#include "runtime/commands/command_parts.h"
#include "runtime/system/partial_output.h"
#include "runtime/system/private_files.h"
#include "runtime/system/visible_text.h"

namespace pare::compress {
namespace {

using Clock = std::chrono::steady_clock;

void run_export(const runtime::Arguments& arguments, runtime::Console& console) {
  const Clock::time_point start = Clock::now();
  const std::filesystem::path output = runtime::output_place(arguments.positional(1));
  ExportOptions options{.format = find_folder_format(arguments.text("format")), .lossless = arguments.flag("lossless")};
  runtime::PartialOutput::check_is_free(output, runtime::PartialOutput::Leftovers::stay);
  runtime::keep_as_private_as({std::filesystem::path(arguments.positional(0))}, output);
  runtime::NamedModel model(arguments.positional(0), true, "", console);
  plan_export(model.described(), *options.format, options.lossless);  // what is refused is refused before the weights
  ExportResult result;
  with_own_errors([&] {
    result = export_model(model.whole(), output, options, console.progress());
    return std::string();
  });
  console.report() << runtime::visible_line(output.string()) << ": " << options.format->name << ", "
                   << runtime::format_bytes(result.num_bytes) << '\n';
  for (const std::string& line : export_lines(result, *options.format))
    console.report() << "  " << runtime::visible_line(line) << '\n';
  for (const std::string& event : result.events) console.progress().print("event: " + event);
  nlohmann::ordered_json json = runtime::parse_ordered_json(export_json(result, *options.format), "the export");
  json["output"] = output.string();
  json["bytes"] = result.num_bytes;
  json["seconds"] = std::chrono::duration<double>(Clock::now() - start).count();
  console.set_result(runtime::dump(json));
}

}  // namespace

runtime::Command export_command() {
  std::vector<std::string> formats;
  for (const ExportFormat& format : folder_formats()) formats.emplace_back(format.name);
  return {
      .name = "export",
      .summary = "Write a compressed model in another engine's format; codes that the format holds pass unchanged.",
      .positionals = {{"MODEL", "directory of a checkpoint, dense or compressed, or a .gguf file"},
                      {"OUT", "directory to write; must not exist"}},
      .options = {{.name = "format",
                   .kind = runtime::OptionKind::text,
                   .value_name = "NAME",
                   .help = "the format to write",
                   .required = true,
                   .choices = formats},
                  {.name = "lossless",
                   .help = "refuse to change any value of a weight (default: round to the nearest codes of the format "
                           "and print the error)"}},
      .run = run_export};
}

}  // namespace pare::compress
