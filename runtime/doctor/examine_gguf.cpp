#include "runtime/doctor/examine_gguf.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <optional>
#include <stdexcept>

#include "runtime/doctor/patient.h"
#include "runtime/files/gguf.h"
#include "runtime/import/gguf_config.h"
#include "runtime/import/import_sources.h"
#include "runtime/system/interrupt.h"

namespace pare::runtime {
namespace {

constexpr const char* kEmbedding = "token_embd.weight";
constexpr const char* kHead = "output.weight";
constexpr const char* kTokens = "tokenizer.ggml.tokens";
constexpr int64_t kPieceValues = int64_t{1} << 20;

struct Counts {
  int64_t num_not_finite = 0, num_zero = 0;
};

Counts count_values(const GgufTensor& tensor) {
  const GgufBlock block = gguf_block(static_cast<uint32_t>(tensor.type));
  const int64_t num_blocks = tensor.num_elements() / block.num_elements;
  const int64_t blocks_at_once = std::max<int64_t>(1, kPieceValues / block.num_elements);
  std::vector<float> values;
  Counts counts;
  for (int64_t first = 0; first < num_blocks; first += blocks_at_once) {
    const int64_t count = std::min(blocks_at_once, num_blocks - first);
    values.resize(static_cast<size_t>(count * block.num_elements));
    decode_gguf_blocks(tensor.type,
                       tensor.data.subspan(static_cast<size_t>(first * block.size_bytes),
                                           static_cast<size_t>(count * block.size_bytes)),
                       values);
    counts.num_not_finite += std::ranges::count_if(values, [](float value) { return !std::isfinite(value); });
    counts.num_zero += std::ranges::count(values, 0.0f);
  }
  return counts;
}

// True for the embedding, the head and matrices of blocks. Tables of positions that a model does not use may be zero.
bool is_multiplied(const GgufTensor& tensor) {
  const std::string& name = tensor.name;
  if (tensor.shape.size() < 2 || !name.ends_with(".weight")) return false;
  return name == kEmbedding || name == kHead || name.starts_with("blk.");
}

class GgufExam {
 public:
  GgufExam(const GgufFile& file, std::vector<Finding>& findings) : file_(file), findings_(findings) {}

  void look_at_values(const std::function<void(int64_t, int64_t)>& progress) {
    Finding finding{.illness = Illness::weight_not_finite};
    Finding zeros{.illness = Illness::weight_zero, .certainty = Certainty::likely};
    double number = 0.0, num_zero = 0.0;
    int64_t num_done = 0;
    const auto num_tensors = static_cast<int64_t>(file_.tensors().size());
    if (progress) progress(0, num_tensors);
    for (const auto& [name, tensor] : file_.tensors()) {
      throw_if_interrupted();
      const Counts found = count_values(tensor);
      file_.drop_pages(tensor);
      if (progress) progress(++num_done, num_tensors);
      if (is_multiplied(tensor) && found.num_zero == tensor.num_elements()) {
        zeros.concerned.push_back(name);
        num_zero += static_cast<double>(found.num_zero);
      }
      if (found.num_not_finite == 0) continue;
      finding.concerned.push_back(name);
      number += static_cast<double>(found.num_not_finite);
    }
    if (!zeros.concerned.empty()) {
      zeros.what = std::to_string(static_cast<int64_t>(num_zero)) + " values are 0, all that there are, in " +
                   count_text(zeros.concerned.size(), "tensor");
      zeros.figures = {{"values", num_zero}, {"tensors", static_cast<double>(zeros.concerned.size())}};
      zeros.advice = "fetch the file again: a layer of zeros gives nothing";
      findings_.push_back(std::move(zeros));
    }
    if (finding.concerned.empty()) return;
    finding.what = std::to_string(static_cast<int64_t>(number)) + " weights are NaN or infinite in " +
                   count_text(finding.concerned.size(), "tensor");
    finding.figures = {{"values", number}, {"tensors", static_cast<double>(finding.concerned.size())}};
    finding.advice = "convert the original again";
    findings_.push_back(std::move(finding));
  }

  void look_at_layers() {
    const std::optional<int64_t> said = integer(".block_count");
    if (!said) {
      findings_.push_back({.illness = Illness::refused_config,
                           .concerned = {file_.paths().front().filename().string()},
                           .what = "the metadata have no block_count of the architecture",
                           .advice = "convert the original again"});
      return;
    }
    int64_t last = -1;
    for (const auto& [name, tensor] : file_.tensors()) {
      if (!name.starts_with("blk.")) continue;
      size_t end = 4;
      while (end < name.size() && name[end] >= '0' && name[end] <= '9' && end < 10) ++end;
      if (end > 4) last = std::max<int64_t>(last, std::stoll(name.substr(4, end - 4)));
    }
    if (last + 1 == *said) return;
    const bool is_beyond = last + 1 > *said;
    findings_.push_back(
        {.illness = is_beyond ? Illness::layers_beyond_config : Illness::missing_tensors,
         .concerned = {file_.paths().front().filename().string()},
         .what = "block_count is " + std::to_string(*said) + ", and the tensors are those of " +
                 std::to_string(last + 1) + " layers",
         .figures = {{"layers_of_config", static_cast<double>(*said)},
                     {"layers_of_tensors", static_cast<double>(last + 1)}},
         .advice = is_beyond ? "convert the original again" : "fetch the whole file, and all its parts"});
  }

  // Reads the file as the import does, without its weights: whatever no finding explains must be found by who opens it.
  void open_as_readers_do() {
    const std::filesystem::path path = file_.paths().front();
    bool is_known = false;
    try {
      find_gguf_family(file_);
      is_known = true;
      read_gguf_model(path, std::nullopt);
    } catch (const Interrupted&) {
      throw;
    } catch (const std::invalid_argument& error) {
      // Nothing speaks against a file whose architecture pare does not know.
      findings_.push_back({.illness = Illness::refused_config,
                           .certainty = is_known ? Certainty::likely : Certainty::information,
                           .concerned = {path.filename().string()},
                           .what = std::string("pare does not run this model: ") + error.what(),
                           .advice = "see the message"});
    } catch (const std::runtime_error& error) {
      findings_.push_back(
          {.illness = Illness::shape_contradicts_config,
           .concerned = {path.filename().string()},
           .what = std::string("the metadata and the tensors are not those of one model: ") + error.what(),
           .advice = "convert the original again"});
    }
  }

  void look_at_embedding() {
    const auto embedding = file_.tensors().find(kEmbedding);
    if (embedding == file_.tensors().end()) {
      findings_.push_back({.illness = Illness::missing_tensors,
                           .concerned = {kEmbedding},
                           .what = "the embedding is missing",
                           .advice = "fetch the whole file, and all its parts"});
      return;
    }
    const std::vector<int64_t>& shape = embedding->second.shape;
    if (shape.size() != 2) return;
    if (const std::optional<int64_t> width = integer(".embedding_length"); width && *width != shape[1]) {
      findings_.push_back({.illness = Illness::shape_contradicts_config,
                           .concerned = {kEmbedding},
                           .what = "embedding_length is " + std::to_string(*width) + ", and the embedding's width is " +
                                   std::to_string(shape[1]),
                           .figures = {{"width_of_config", static_cast<double>(*width)},
                                       {"width_of_tensors", static_cast<double>(shape[1])}},
                           .advice = "convert the original again"});
    }
    look_at_tokens(shape[0]);
    const auto head = file_.tensors().find(kHead);
    if (head == file_.tensors().end()) return;
    const bool is_equal = head->second.type == embedding->second.type && head->second.shape == shape &&
                          std::ranges::equal(head->second.data, embedding->second.data);
    if (!is_equal) return;
    findings_.push_back({.illness = Illness::head_equal,
                         .certainty = Certainty::information,
                         .concerned = {kHead},
                         .what = "the head has the bytes of the embedding, which would serve as one",
                         .figures = {{"bytes", static_cast<double>(head->second.data.size())}},
                         .advice = "a file without the second copy says the same"});
  }

 private:
  std::optional<int64_t> integer(const std::string& key_of_architecture) const {
    std::optional<int64_t> value;
    failure_of([&] { value = file_.integer(file_.text("general.architecture") + key_of_architecture); });
    return value;
  }

  void look_at_tokens(int64_t num_rows) {
    std::optional<int64_t> num_tokens;
    failure_of([&] { num_tokens = file_.count(kTokens); });
    if (num_tokens && *num_tokens > num_rows) {
      findings_.push_back(
          {.illness = Illness::vocabulary_too_large,
           .certainty = Certainty::likely,
           .concerned = {kTokens},
           .what = "the tokenizer has " + std::to_string(*num_tokens) + " tokens, and the embedding has " +
                   std::to_string(num_rows) + " rows",
           .figures = {{"tokens", static_cast<double>(*num_tokens)}, {"rows", static_cast<double>(num_rows)}},
           .advice = "convert the original again, with its own tokenizer"});
    }
    for (const char* const name : {"bos", "eos", "eot", "eom"}) {
      const std::string key = std::string("tokenizer.ggml.") + name + "_token_id";
      std::optional<int64_t> id;
      failure_of([&] { id = file_.integer(key); });
      if (!id || *id < num_rows) continue;
      findings_.push_back(
          {.illness = Illness::token_out_of_range,
           .concerned = {key},
           .what = key + " is " + std::to_string(*id) + ", and the embedding has " + std::to_string(num_rows) + " rows",
           .figures = {{"token", static_cast<double>(*id)}, {"rows", static_cast<double>(num_rows)}},
           .advice = "convert the original again, with its own tokenizer"});
    }
  }

  const GgufFile& file_;
  std::vector<Finding>& findings_;
};

}  // namespace

int64_t examine_gguf(const std::filesystem::path& path, std::vector<Finding>& findings,
                     const std::function<void(int64_t, int64_t)>& progress) {
  if (!std::filesystem::is_regular_file(path)) {
    throw std::runtime_error("'" + path.string() + "' is not a file: expected a .gguf file");
  }
  std::optional<GgufFile> file;
  const std::string failure = failure_of([&] { file = GgufFile::open(path); });
  if (!failure.empty()) {
    findings.push_back({.illness = Illness::unreadable_file,
                        .concerned = {path.filename().string()},
                        .what = failure,
                        .advice = "fetch the file again, with all its parts"});
    return 0;
  }
  GgufExam exam(*file, findings);
  exam.look_at_layers();
  exam.look_at_embedding();
  exam.look_at_values(progress);
  const bool is_healthy =
      std::ranges::none_of(findings, [](const Finding& finding) { return finding.certainty == Certainty::certain; });
  if (is_healthy) exam.open_as_readers_do();
  return static_cast<int64_t>(file->tensors().size());
}

}  // namespace pare::runtime
