#include "compress/run/written_form.h"

#include <algorithm>

#include "compress/export/export_model.h"
#include "compress/export/gguf_report.h"
#include "compress/report/source_card.h"
#include "runtime/commands/artifact_files.h"

namespace pare::compress {
namespace {

namespace fs = std::filesystem;

constexpr const char* kWritten = ".written";  // in the folder, until it takes the place of all else

WrittenForm write_gguf(const Recipe& recipe, const fs::path& directory, const fs::path& folder, const fs::path& output,
                       runtime::Progress& progress) {
  const runtime::Checkpoint assembled = runtime::Checkpoint::open(directory);
  WrittenForm form;
  const std::string name = output.filename().string();
  form.file = name + ".gguf";
  const auto bar = runtime::stage_of(progress, "export", "tensors");
  const runtime::GgufExport result = runtime::export_gguf(
      assembled, folder / form.file, *recipe.gguf_format,
      {.name = name, .license = licences_of(directory, form.events), .progress = [&](int64_t done, int64_t total) {
         bar(static_cast<double>(done), total);
       }});
  form.events.insert(form.events.end(), result.notes.begin(), result.notes.end());
  form.json = gguf_json(result, *recipe.gguf_format);
  form.lines = gguf_lines(result);
  form.sizes = gguf_sizes(result);
  return form;
}

WrittenForm write_dense(const Recipe& recipe, const fs::path& directory, const fs::path& folder,
                        runtime::Progress& progress) {
  const runtime::Checkpoint assembled = runtime::Checkpoint::open(directory);
  const ExportResult result =
      export_model(assembled, folder / "model", {.format = recipe.folder_format, .lossless = false}, progress);
  return {.file = {},
          .json = export_json(result, *recipe.folder_format),
          .lines = passage_lines(result, *recipe.folder_format),
          .events = result.events,
          .sizes = {}};
}

bool stays_beside_gguf(const fs::path& file) {
  const std::string name = file.filename().string();
  return name.starts_with("README") || name.starts_with("LICENSE");
}

std::vector<fs::path> entries_of(const fs::path& folder) {
  std::vector<fs::path> entries;
  for (const auto& entry : fs::directory_iterator(folder)) entries.push_back(entry.path());
  return entries;
}

}  // namespace

std::optional<runtime::GgufExport> plan_form(const Recipe& recipe, const runtime::Checkpoint& checkpoint) {
  if (recipe.gguf_format == nullptr) return std::nullopt;
  return runtime::plan_gguf_export(checkpoint, *recipe.gguf_format);
}

std::vector<EngineVerdict> judge_form(const RunPlan& plan, const std::optional<runtime::GgufExport>& file,
                                      const std::function<std::vector<EngineVerdict>(const RunPlan&)>& judge) {
  if (file) return runtime::judge_gguf(file->obstacles);
  RunPlan decoded = plan;
  decoded.tables.clear();
  for (auto& layers : decoded.blocks) {
    for (LayerPlan& layer : layers) {
      layer.scheme = runtime::dense_scheme();
      layer.is_taken_over = false;
    }
  }
  return judge(decoded);
}

int64_t form_bytes(const Recipe& recipe, const std::optional<runtime::GgufExport>& file,
                   const runtime::Checkpoint& checkpoint, int64_t folder_bytes) {
  // Without a type, matrices get the smallest that holds their codes, which are about as large as in the folder.
  if (file) return recipe.gguf_format->type ? file->num_weight_bytes : folder_bytes;
  int64_t bytes = 0;
  for (const fs::path& path : checkpoint.weight_files()) bytes += static_cast<int64_t>(fs::file_size(path));
  return std::max(bytes, folder_bytes);
}

int64_t decoded_bytes(const runtime::GgufExport& file) {
  int64_t bytes = 0;
  for (const runtime::GgufExportedTensor& tensor : file.tensors) {
    int64_t num_elements = 1;
    for (const int64_t size : tensor.shape) num_elements *= size;
    bytes += num_elements * (tensor.type == runtime::GgufType::F32 ? 4 : 2);  // codes become BF16
  }
  return bytes;
}

WrittenForm write_form(const Recipe& recipe, const fs::path& directory, const fs::path& output,
                       runtime::Progress& progress) {
  const fs::path folder = directory / kWritten;
  fs::create_directory(folder);
  const bool is_gguf = recipe.gguf_format != nullptr;
  WrittenForm form = is_gguf ? write_gguf(recipe, directory, folder, output, progress)
                             : write_dense(recipe, directory, folder, progress);
  for (const fs::path& entry : entries_of(directory)) {
    if (entry.filename() == kWritten || (is_gguf && stays_beside_gguf(entry))) continue;
    fs::remove_all(entry);
  }
  for (const fs::path& entry : entries_of(is_gguf ? folder : folder / "model")) {
    // The run writes its own.
    const bool is_replaced = entry.filename() == runtime::kManifestName ||
                             (entry.filename() == kCardName && is_own_card(entry.parent_path(), kCardName));
    if (!is_replaced) fs::rename(entry, directory / entry.filename());
  }
  fs::remove_all(folder);
  return form;
}

}  // namespace pare::compress
