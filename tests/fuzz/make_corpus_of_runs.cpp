// Writes the corpora of the files that pare itself writes during a run, for fuzz_statistics, fuzz_logits, fuzz_parts
// and fuzz_survey. It uses pare's own writers and makes a small file for each feature, always with the same bytes.
//
// usage: build-fuzz/make_corpus_of_runs tests/fuzz/corpus
//
// Other files there stay. logits/one_shard_of_format_1 is what an earlier version wrote of the same store, and is read
// as well.
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>

#include <algorithm>
#include <cstdio>

#include "compress/artifact/artifact.h"
#include "compress/artifact/checked_file.h"
#include "compress/record/logit_writer.h"
#include "compress/survey/survey_record.h"
#include "compress/walk/statistics_file.h"
#include "runtime/containers/container_table.h"
#include "runtime/system/atomic_file.h"
#include "tests/fuzz/fuzz_files.h"
#include "tests/fuzz/fuzz_folder.h"
#include "tests/fuzz/hdf5_blocks.h"
#include "tests/fuzz/zero_linear.h"

extern "C" size_t LLVMFuzzerMutate(uint8_t*, size_t size, size_t) {
  return size;
}

namespace pare {
using namespace compress;
using namespace distill;
using namespace runtime;
namespace {

namespace fs = std::filesystem;

void make_statistics(const fs::path& corpus) {
  constexpr int64_t kWindows = 2, kTokens = 3;
  const StatisticsOrigin origin{"model", "data", "text.npy", kWindows, kTokens, 5, "pare 1", "torch 2", "avx"};
  for (const int64_t num_experts : {1, 2}) {
    const BlockDescription block = fuzz_block(num_experts);
    const fs::path path = corpus / "statistics" / (num_experts == 1 ? "dense.h5" : "mixture.h5");
    fs::remove(path);
    StatisticsWriter writer(path, origin);
    for (const Stage stage : block_stages(block)) {
      const int64_t width = stage_width(block, stage);
      const bool is_idle = stage.expert == 1;  // an expert that got no token
      LayerStatistics statistics;
      statistics.num_tokens = is_idle ? 0 : kWindows * kTokens;
      statistics.hessian_II = at::full({width, width}, 0.5f);
      statistics.hessian_II.diagonal().fill_(1.0f);
      statistics.hessian_diagonal_I = at::ones({width}, at::kFloat);
      statistics.min_I = at::full({width}, is_idle ? 0.0f : -2.0f);
      statistics.max_I = at::full({width}, is_idle ? 0.0f : 2.0f);
      statistics.mean_abs_I = at::full({width}, is_idle ? 0.0f : 0.75f);
      statistics.sample_RI = at::full({is_idle ? 0 : 2, width}, 0.25f);
      writer.write(block, stage, statistics);
    }
    writer.publish();
  }
}

// Stores have one or two shards, ids of 16 or 32 bits, and a teacher that keeps all its tokens or few.
void make_logits(const fs::path& corpus) {
  struct Kind {
    const char* name;
    int64_t num_vocabulary, num_kept, num_shards;
    std::vector<double> temperatures;
  };
  for (const Kind& kind : {Kind{"one_shard", 300, 3, 1, {1.0, 2.0}}, Kind{"two_shards_wide_ids", 70'000, 2, 2, {1.0}},
                           Kind{"whole", 4, 4, 1, {1.0}}}) {
    const LogitOrigin origin{.model = "model",
                             .tokenizer = "tokenizer",
                             .data = "data",
                             .text = "text",
                             .source = "{}",
                             .num_vocabulary = kind.num_vocabulary,
                             .num_kept = kind.num_kept,
                             .temperatures = kind.temperatures,
                             .pare_version = "pare 1",
                             .libtorch_version = "torch 2",
                             .instruction_set = "avx"};
    const fs::path folder = fuzz_folder() / kind.name;
    fs::create_directories(folder / "t.h5.shards");
    std::vector<LogitShard> shards;
    std::vector<FuzzFile> files;
    for (int64_t i = 0; i < kind.num_shards; ++i) {
      const std::vector<RecordedSequence> sequences = {{{1, 2, 3}, {1, 1, 0}}, {{0, 1}, {0, 0}}};
      const fs::path path = folder / "t.h5.shards" / shard_name(i);
      LogitShardWriter writer(path, origin, i, 2 * i, sequences);
      TruncatedLogits rows{.num_vocabulary = kind.num_vocabulary, .temperatures = kind.temperatures};
      rows.ids_TK = at::ones({5, kind.num_kept}, at::kLong).cumsum(1).sub(1);
      rows.log_probs_TK = at::full({5, kind.num_kept}, -2.0f);
      rows.log_tails_TN = at::full({5, static_cast<int64_t>(kind.temperatures.size())}, -1.0f);
      writer.append(rows, std::vector<float>(5, -0.5f));
      shards.push_back(writer.publish());
      files.push_back({static_cast<uint8_t>(i), read_text_file(path)});
    }
    write_master(folder / "t.h5", origin, "t.h5.shards", shards);
    files.push_back({2, read_text_file(folder / "t.h5")});
    write_file_atomically(corpus / "logits" / kind.name, join_files(files));
  }
}

// Makes a layer in each container that holds one, and a part with tensors that replace the source's.
void make_parts(const fs::path& corpus) {
  struct Kind {
    std::string name;
    PackScheme scheme;
  };
  std::vector<Kind> kinds;
  for (const int bits : {2, 3, 4, 8}) {
    kinds.push_back({"packed_" + std::to_string(bits), {.bits = bits, .group_size = 8}});
  }
  kinds.push_back({"asymmetric", {.bits = 4, .group_size = 8, .symmetric = false}});
  kinds.push_back({"act_order", {.bits = 4, .group_size = 8, .act_order = StoredActOrder::group}});
  kinds.push_back({"int8_inputs", {.bits = 8, .layout = CodeLayout::bytes}});
  kinds.back().scheme.input.type = InputType::int8;
  kinds.push_back({"fp8", {.code = &kFp8Code, .bits = 8}});
  kinds.back().scheme.input.type = InputType::fp8;
  kinds.push_back({"sparse", {.code = nullptr, .bits = kDenseBits}});
  kinds.back().scheme.pattern = kTwoOfFour;
  for (const OutlierRule rule : {OutlierRule::absolute, OutlierRule::relative, OutlierRule::columns}) {
    kinds.push_back({"outliers_" + std::string(name_of(rule)), {.bits = 8, .layout = CodeLayout::bytes}});
    InputFormat& input = kinds.back().scheme.input;
    input.type = InputType::int8;
    input.outliers = rule;
    if (rule != OutlierRule::columns) input.outlier_threshold = 6.0f;
  }
  for (const WeightCode* code : {&kNvfp4Code, &kMxfp4Code, &kNf4Code}) {
    const int64_t group_size = code->block == 0 ? 64 : code->block;
    kinds.push_back({std::string(code->name), {.code = code, .bits = code->width(), .group_size = group_size}});
  }
  for (const WeightCode& code : block_codes()) {
    kinds.push_back({std::string(code.name), {.code = &code, .bits = code.width(), .group_size = code.block}});
  }
  kinds.push_back({"nvfp4_inputs", {.code = &kNvfp4Code, .bits = 4, .group_size = kNvfp4Code.block}});
  kinds.back().scheme.input.type = InputType::nvfp4;
  const std::string module = "model.layers.0.mlp.down_proj";
  constexpr int64_t kOut = 8;
  const fs::path output = fuzz_folder() / "parts", progress = fuzz_folder() / "parts.partial/progress";
  for (const ContainerFormat* container : container_formats()) {
    for (const Kind& kind : kinds) {
      const bool is_blocks = !kind.scheme.is_dense() && kind.scheme.code->is_blocks();
      const int64_t num_in = is_blocks ? 256 : std::max<int64_t>(16, kind.scheme.group_size);
      const PackScheme scheme = container->adapted(kind.scheme);
      if (!container->accepts(scheme, kOut, num_in)) continue;
      Parts parts(output, {{"model", "x"}}, /*fresh=*/true);
      LayerRecord record{.name = module, .num_out = kOut, .num_in = num_in, .method = "gptq", .scheme = scheme};
      std::vector<StreamedTensor> tensors;
      try {
        StoredLinear linear = zero_linear(*container, scheme, kOut, num_in);
        if (scheme.input.outliers == OutlierRule::columns) {
          linear.input.outlier_columns = {1, 3};
          linear.outlier_weight_OJ.resize(2 * kOut);
        }
        record.sha256 = content_hash(linear);
        Parts::append_packed(linear, record, tensors);
      } catch (const std::invalid_argument& error) {
        std::fprintf(stderr, "%s_%s: %s\n", scheme.container.c_str(), kind.name.c_str(), error.what());
        continue;  // this container cannot hold such a weight of zeros
      }
      const OwnedTensor gain{"model.layers.0.input_layernorm.weight", DType::F32, {8}, std::vector<std::byte>(32)};
      Parts::append(gain, tensors);
      parts.commit(1, std::move(tensors), {record});
      write_checked_file(parts.survey_file(), "identity\n{}");
      write_file_atomically(corpus / "parts" / (std::string(scheme.container) + "_" + kind.name),
                            join_files({{0, read_checked_file(progress / "run.json")},
                                        {1, read_checked_file(progress / "survey")},
                                        {4, read_checked_file(progress / "00001.json")},
                                        {5, read_text_file(progress / "00001.safetensors")}}));
    }
  }
}

void make_surveys(const fs::path& corpus) {
  Survey survey{"gptq, context 8", 3.25, {}};
  survey.groups.push_back({"b: q, k",
                           {"b.q", "b.k"},
                           32,
                           RoundedPart::weights,
                           "gptq 3 bits g32",
                           0.125,
                           {0.5, 0.25},
                           {0.5, {}},
                           {{2, -1, 64, 1.0}, {4, 32, 128, 0.5}, {16, -1, 256, 0.0}}});
  write_file_atomically(corpus / "survey" / "budget.json", to_json(survey));
  survey.groups.back().candidates.clear();
  survey.groups.push_back({"softmax input", {}, 0, RoundedPart::activations, "a8", 0.0, {0.5, 0.25}, {0.5, 0.25}, {}});
  write_file_atomically(corpus / "survey" / "sites.json", to_json(survey));
}

}  // namespace
}  // namespace pare

int main(int argc, char** argv) {
  if (argc != 2) {
    std::fprintf(stderr, "usage: make_corpus_of_runs CORPUS\n");
    return 2;
  }
  const std::filesystem::path corpus = argv[1];
  for (const char* name : {"statistics", "logits", "parts", "survey"}) {
    std::filesystem::create_directories(corpus / name);
  }
  pare::make_statistics(corpus);
  pare::make_logits(corpus);
  pare::make_parts(corpus);
  pare::make_surveys(corpus);
}
