#include "compress/record/record.h"

#include <ATen/Parallel.h>
#include <ATen/Version.h>
#include <ATen/core/grad_mode.h>
#include <omp.h>
#include <torch/version.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <numeric>
#include <stdexcept>

#include "compress/artifact/can_be_made.h"
#include "compress/artifact/model_hash.h"
#include "compress/hdf5/hdf5_reader.h"
#include "compress/predict/predict.h"
#include "compress/record/teacher.h"
#include "compress/record/unfinished_store.h"
#include "compress/walk/statistics.h"
#include "runtime/commands/artifact_files.h"
#include "runtime/device/make_backend.h"
#include "runtime/evaluate/document_windows.h"
#include "runtime/evaluate/perplexity.h"
#include "runtime/evaluate/prompts.h"
#include "runtime/evaluate/token_source.h"
#include "runtime/evaluate/windows_tokenizer.h"
#include "runtime/import/model_directory.h"
#include "runtime/system/input_files.h"
#include "runtime/system/interrupt.h"
#include "runtime/system/json_text.h"
#include "runtime/system/large_pieces_stay.h"
#include "runtime/system/memory_usage.h"
#include "runtime/system/partial_output.h"
#include "runtime/system/sha256.h"
#include "runtime/system/version.h"
#include "runtime/tokenizer/tokenizer.h"
#include "runtime/tokenizer/tokenizer_hash.h"

namespace pare::compress {
namespace {

namespace fs = std::filesystem;
using Clock = std::chrono::steady_clock;
using Json = nlohmann::ordered_json;

constexpr int64_t kShardOverheadBytes = 8192;  // about the size of HDF5's own headers
constexpr int64_t kMostShards = 1'000'000;     // the most files in one folder

// The material to record: windows of a text, or prompts with the continuations to draw.
struct Material {  // NOLINT(bugprone-exception-escape): Json moves without throwing, which the check cannot see
  std::vector<std::vector<int32_t>> starts;     // windows, or prompts
  std::vector<std::vector<int32_t>> documents;  // for each window, where other documents begin; empty: nowhere
  int64_t num_samples = 1;                      // for each prompt
  int64_t max_new_tokens = 0;                   // 0: windows
  Json source;                                  // LogitOrigin::source
  int64_t num_left_out = 0;                     // prompts for which the context has no room
  bool has_prompts() const { return max_new_tokens > 0; }
  int64_t num_sequences() const { return static_cast<int64_t>(starts.size()) * num_samples; }
  const std::vector<int32_t>& start(int64_t sequence) const {
    return starts[static_cast<size_t>(sequence / num_samples)];
  }
  int64_t longest() const {
    int64_t longest = 0;
    for (const std::vector<int32_t>& ids : starts) longest = std::max(longest, static_cast<int64_t>(ids.size()));
    return longest + max_new_tokens;
  }
  // Returns the most tokens that all sequences can have. Throws std::invalid_argument for more than a store holds.
  int64_t num_tokens() const {
    int64_t sum = 0;
    for (const std::vector<int32_t>& ids : starts) {
      const int64_t length = static_cast<int64_t>(ids.size()) + max_new_tokens;
      if (length > (kMostTokens - sum) / num_samples) {
        throw std::invalid_argument(std::to_string(starts.size()) + " prompts or windows, recorded " +
                                    std::to_string(num_samples) + " times each, are more than the " +
                                    std::to_string(kMostTokens) + " tokens of a store: lower --samples");
      }
      sum += length * num_samples;
    }
    return sum;
  }
};

// Returns the number of tokens in the teacher's distributions. Rows of a head after the tokenizer's tokens fill it up
// to a round number. Their logits are noise that no student can learn, and another head of the same tokenizer may have
// fewer.
int64_t count_tokens(const runtime::Tokenizer& tokenizer, const runtime::ModelDescription& model) {
  return std::min(tokenizer.vocabulary_size(), model.vocabulary_size);
}

runtime::DocumentWindows read_all_windows(const RecordOptions& options, const runtime::Tokenizer& tokenizer,
                                          const runtime::Checkpoint& checkpoint) {
  const int64_t num_tokens = options.num_tokens.value_or(kRecordTokens);
  const int64_t num_vocabulary = count_tokens(tokenizer, checkpoint.description());
  if (runtime::holds_token_windows(options.text)) {
    if (!options.end_of_document.empty()) {
      throw std::invalid_argument("--end-of-document: '" + options.text.string() +
                                  "' holds windows, which are used as they are: leave it out");
    }
    return {runtime::read_token_windows(options.text, nullptr, num_tokens, /*num_windows=*/0,
                                        /*add_special_tokens=*/true, num_vocabulary),
            {}};
  }
  const int32_t end_token =
      runtime::end_of_document(options.end_of_document, tokenizer, checkpoint.directory(), checkpoint.description());
  return runtime::read_document_windows(options.text, {tokenizer, end_token, num_tokens, num_vocabulary},
                                        /*num_windows=*/0);
}

Material read_windows(const RecordOptions& options, const runtime::Tokenizer& tokenizer,
                      const runtime::Checkpoint& checkpoint) {
  const runtime::ModelDescription& model = checkpoint.description();
  const runtime::DocumentWindows read = read_all_windows(options, tokenizer, checkpoint);
  const runtime::TokenWindows& all = read.windows;
  const std::string what = options.text.string() + ": ";
  if (options.num_tokens && all.num_tokens != *options.num_tokens) {
    throw std::invalid_argument(what + "its windows are " + std::to_string(all.num_tokens) +
                                " tokens wide and are used as they are; " + std::to_string(*options.num_tokens) +
                                " were asked for: leave --tokens out");
  }
  if (all.num_tokens < 2) throw std::invalid_argument(what + "windows of one token leave nothing to predict");
  if (all.num_tokens > model.context_length) {
    throw std::invalid_argument(what + "windows of " + std::to_string(all.num_tokens) +
                                " tokens; the model's context is " + std::to_string(model.context_length));
  }
  const int64_t num_windows = options.num_windows.value_or(all.num_windows);
  if (num_windows > all.num_windows) {
    throw std::invalid_argument(what + std::to_string(num_windows) + " windows were asked for; it has " +
                                std::to_string(all.num_windows) + " of " + std::to_string(all.num_tokens) + " tokens");
  }
  Material material;
  const bool takes_first = runtime::holds_token_windows(options.text);
  for (int64_t i = 0; const int64_t window : draw_sorted(all.num_windows, num_windows, options.seed)) {
    const std::span<const int32_t> ids = all.window(takes_first ? i : window);
    material.starts.emplace_back(ids.begin(), ids.end());
    if (!read.starts_N.empty()) material.documents.push_back(read.starts_N[static_cast<size_t>(window)]);
    ++i;
  }
  material.source = {{"kind", "windows"}, {"tokens", all.num_tokens}, {"windows", num_windows}, {"seed", options.seed}};
  return material;
}

Material encode_prompts(const RecordOptions& options, const runtime::SamplingOptions& sampling,
                        const runtime::Tokenizer& tokenizer, const runtime::ModelDescription& model) {
  Material material;
  material.num_samples = options.num_samples;
  material.max_new_tokens = options.max_new_tokens;
  const runtime::SourceTexts prompts = runtime::read_prompts(options.prompts, &tokenizer);
  for (const std::string& prompt : prompts.texts) {
    runtime::throw_if_interrupted();
    std::vector<int32_t> ids = tokenizer.encode(prompt, /*add_special_tokens=*/!prompts.are_chats);
    const auto num_tokens = static_cast<int64_t>(ids.size());
    if (num_tokens < 1) throw std::invalid_argument(options.prompts.string() + ": a prompt has no tokens");
    if (num_tokens + options.max_new_tokens > model.context_length) {
      ++material.num_left_out;
    } else {
      material.starts.push_back(std::move(ids));
    }
  }
  if (material.starts.empty()) {
    throw std::invalid_argument(options.prompts.string() + ": none of its " + std::to_string(material.num_left_out) +
                                " prompts leaves room for --max-new-tokens, " + std::to_string(options.max_new_tokens) +
                                ", in the model's context of " + std::to_string(model.context_length) +
                                ": ask for fewer tokens or shorten the prompts");
  }
  material.source = Json{{"kind", "continuations"},
                         {"samples", options.num_samples},
                         {"max_new_tokens", options.max_new_tokens},
                         {"temperature", sampling.temperature},
                         {"top_p", sampling.top_p},
                         {"seed", options.seed}};
  if (sampling.top_k > 0) material.source["top_k"] = sampling.top_k;
  if (sampling.min_p > 0.0) material.source["min_p"] = sampling.min_p;
  if (sampling.repetition_penalty != 1.0) material.source["repetition_penalty"] = sampling.repetition_penalty;
  if (material.num_left_out > 0) material.source["prompts_left_out"] = material.num_left_out;
  return material;
}

std::string hash_of(const Material& material) {
  runtime::Sha256 hash;
  for (const auto* const sequences : {&material.starts, &material.documents}) {
    for (const std::vector<int32_t>& ids : *sequences) {
      const std::string size = std::to_string(ids.size()) + " ";
      hash.update(std::as_bytes(std::span(size)));
      hash.update(std::as_bytes(std::span(ids)));
    }
  }
  return hash.hex();
}

// Cuts consecutive sequences into shards that fit into shard_tokens. Each counts with its greatest possible length, so
// that the shards are known before anything is drawn.
std::vector<int64_t> cut_shards(const Material& material, int64_t shard_tokens) {
  std::vector<int64_t> shard_sequences;
  int64_t num_tokens = 0;
  for (const std::vector<int32_t>& start : material.starts) {
    runtime::throw_if_interrupted();
    const int64_t length = static_cast<int64_t>(start.size()) + material.max_new_tokens;
    for (int64_t left = material.num_samples; left > 0;) {  // samples of one prompt are equally long: takes all that
                                                            // fit
      if (shard_sequences.empty() || num_tokens + length > shard_tokens) {
        shard_sequences.push_back(0);
        num_tokens = 0;
      }
      const int64_t most = std::min((shard_tokens - num_tokens) / length, kMostLogitCount - shard_sequences.back());
      const int64_t count = std::clamp<int64_t>(most, 1, left);
      shard_sequences.back() += count;
      num_tokens += count * length;
      left -= count;
    }
    if (static_cast<int64_t>(shard_sequences.size()) > kMostShards) {
      throw std::invalid_argument("--shard-tokens " + std::to_string(shard_tokens) + ": more than " +
                                  std::to_string(kMostShards) + " shards: raise it or record less");
    }
  }
  return shard_sequences;
}

void check_options(const RecordOptions& options) {
  if (options.text.empty() == options.prompts.empty()) {
    throw std::invalid_argument("expected a text to record (--text) or prompts to continue (--prompts), found " +
                                std::string(options.text.empty() ? "neither" : "both"));
  }
  for (size_t i = 0; i < options.temperatures.size(); ++i) {
    const auto& all = options.temperatures;
    if (std::find(all.begin(), all.begin() + static_cast<int64_t>(i), all[i]) !=
        all.begin() + static_cast<int64_t>(i)) {
      throw std::invalid_argument("--temperatures lists " + runtime::json_text(Json(all[i])) + " twice");
    }
  }
  if (options.shard_tokens < 1) throw std::invalid_argument("--shard-tokens: expected 1 or more");
}

// One run's recording of a store.
class Recording {
 public:
  Recording(const RecordOptions& options, const runtime::SamplingOptions& sampling,
            const runtime::Checkpoint& checkpoint, const runtime::InputFiles& files, const Material& material,
            const LogitOrigin& origin)
      : options_(options),
        sampling_(sampling),
        checkpoint_(checkpoint),
        files_(files),
        material_(material),
        origin_(origin) {}

  // Records the next shard as a whole.
  LogitShard record_shard(runtime::Transformer& model, const fs::path& path, int64_t shard, int64_t first,
                          int64_t count, const std::function<void(int64_t)>& on_sequence) {
    const std::vector<RecordedSequence> sequences = make_sequences(model, first, count);
    RecordingTeacher teacher(model, origin_.num_vocabulary, origin_.num_kept, origin_.temperatures);
    LogitShardWriter writer(path, origin_, shard, first, sequences);
    for (size_t done = 0; done < sequences.size();) {
      runtime::throw_if_interrupted();
      const size_t length = sequences[done].ids.size();
      size_t end = done + 1;
      const auto most = static_cast<size_t>(RecordingTeacher::batch_sequences(static_cast<int64_t>(length)));
      while (end < sequences.size() && end - done < most && sequences[end].ids.size() == length) ++end;
      teacher.append(std::span(sequences).subspan(done, end - done), first + static_cast<int64_t>(done), writer);
      done = end;
      on_sequence(first + static_cast<int64_t>(done));
    }
    checkpoint_.check_unchanged();
    files_.check_unchanged();
    return writer.publish();
  }

 private:
  // Makes a shard's sequences. Which texts are drawn together follows from the data alone.
  std::vector<RecordedSequence> make_sequences(runtime::Transformer& model, int64_t first, int64_t count) const {
    std::vector<RecordedSequence> windows;
    std::vector<runtime::GenerationRequest> requests;
    for (int64_t sequence = first; sequence < first + count; ++sequence) {
      const std::vector<int32_t>& start = material_.start(sequence);
      if (!material_.has_prompts()) {
        windows.push_back(window_of_documents(start, material_.documents.empty()
                                                         ? std::vector<int32_t>()
                                                         : material_.documents[static_cast<size_t>(sequence)]));
        continue;
      }
      runtime::SamplingOptions sampling = sampling_;
      sampling.seed = runtime::text_seed(options_.seed, sequence);
      requests.push_back({.prompt = start,
                          .options = {.max_tokens = material_.max_new_tokens,
                                      .sampling = sampling,
                                      .vocabulary_size = origin_.num_vocabulary}});
    }
    return material_.has_prompts() ? continue_prompts(model, requests) : windows;
  }

  const RecordOptions& options_;
  const runtime::SamplingOptions& sampling_;
  const runtime::Checkpoint& checkpoint_;
  const runtime::InputFiles& files_;
  const Material& material_;
  const LogitOrigin& origin_;
};

Prediction predict(const runtime::Checkpoint& checkpoint, const Material& material, const LogitOrigin& origin,
                   int64_t num_shards, int64_t num_lanes, int num_threads) {
  RecordingExtent extent{
      .num_temperatures = static_cast<int64_t>(origin.temperatures.size()),
      .logit_bytes = RecordingTeacher::logit_bytes(checkpoint.description().vocabulary_size, num_threads),
      .num_threads = num_threads};
  extent.num_tokens = material.num_tokens();
  extent.longest_sequence = material.longest();
  extent.num_lanes = num_lanes;
  extent.num_sampled_tokens = material.num_sequences() * material.max_new_tokens;
  extent.file_bytes = extent.num_tokens * bytes_per_token(origin.num_vocabulary, origin.num_kept,
                                                          static_cast<int64_t>(origin.temperatures.size())) +
                      material.num_sequences() * 4 + (num_shards + 1) * kShardOverheadBytes;
  return predict_recording(checkpoint, extent, runtime::read_memory_usage().held_bytes,
                           measure_matmul_rate(num_threads));
}

int64_t bytes_of_store(const fs::path& output) {
  auto num_bytes = static_cast<int64_t>(fs::file_size(output));
  for (const auto& entry : fs::directory_iterator(fs::path(output.string() + ".shards"))) {
    num_bytes += static_cast<int64_t>(entry.file_size());
  }
  return num_bytes;
}

}  // namespace

std::string record(const fs::path& model_path, const fs::path& given_output, const RecordOptions& options,
                   runtime::Progress& progress) {
  const fs::path output = runtime::output_place(given_output);
  if (!is_plain_text(output.filename().string())) {
    throw std::invalid_argument("output '" + output.string() +
                                "': expected a name in UTF-8, because the file holds it to find its shards");
  }
  const auto start = Clock::now();
  runtime::MemorySampler memory;
  const at::NoGradGuard no_grad;
  check_options(options);
  check_can_be_made(output);
  runtime::refuse_output_in_artifact(output);
  UnfinishedStore::check_output_is_free(
      output, options.dry_run ? runtime::PartialOutput::Leftovers::stay : runtime::PartialOutput::Leftovers::go);
  const int num_threads = options.num_threads > 0 ? options.num_threads : omp_get_max_threads();
  at::set_num_threads(num_threads);
  omp_set_num_threads(num_threads);
  const runtime::Isa isa = options.isa.value_or(runtime::detect_isa());
  const std::unique_ptr<runtime::Backend> backend = runtime::make_backend({.isa = isa, .num_threads = num_threads});

  const runtime::ModelDirectory directory(model_path);
  const runtime::Checkpoint checkpoint = runtime::Checkpoint::open(directory.path());
  runtime::require_listed_files(directory.path());
  const runtime::ModelDescription& model = checkpoint.description();
  runtime::InputFiles files;
  for (const char* name : {"tokenizer.json", "tokenizer_config.json"}) files.add(checkpoint.directory() / name);
  const fs::path& data = options.text.empty() ? options.prompts : options.text;
  runtime::add_text(data, files);
  std::vector<std::string> events;
  runtime::check_windows_tokenizers({options.text}, checkpoint.directory(), events);
  const runtime::Tokenizer tokenizer = runtime::Tokenizer::open(checkpoint.directory());
  runtime::SamplingOptions sampling;
  if (options.text.empty()) {
    runtime::ChosenSampling chosen =
        runtime::choose_sampling(options.sampling, checkpoint.generation(), RecordOptions::kSampling);
    sampling = chosen.sampling;
    const runtime::Sampler possible(sampling);  // throws for options that it cannot draw with
    for (std::string& note : chosen.notes) events.push_back(std::move(note));
  }
  Material material = options.text.empty() ? encode_prompts(options, sampling, tokenizer, model)
                                           : read_windows(options, tokenizer, checkpoint);
  const int64_t num_vocabulary = count_tokens(tokenizer, model);
  if (options.num_kept < 1 || options.num_kept > num_vocabulary) {
    throw std::invalid_argument("--top-k " + std::to_string(options.num_kept) + ": expected 1 to the vocabulary's " +
                                std::to_string(num_vocabulary));
  }
  material.num_tokens();  // refuses what no store holds
  if (material.num_left_out > 0) {
    events.push_back(std::to_string(material.num_left_out) + " of " +
                     std::to_string(material.num_left_out + static_cast<int64_t>(material.starts.size())) +
                     " prompts are left out: with --max-new-tokens " + std::to_string(options.max_new_tokens) +
                     " they exceed the model's context of " + std::to_string(model.context_length) + " tokens");
  }
  for (const std::string& event : events) progress.print("event: " + event);
  const std::vector<int64_t> shard_sequences = cut_shards(material, options.shard_tokens);
  const auto num_shards = static_cast<int64_t>(shard_sequences.size());
  const int64_t num_lanes =
      std::min(runtime::kMostLanes, *std::max_element(shard_sequences.begin(), shard_sequences.end()));
  if (material.has_prompts()) {  // which texts go together decides the last bits of their logits
    material.source["drawn_together"] = num_lanes;
    material.source["keys_and_values"] = backend->takes_pages() ? "in pages" : "in whole lanes";
  }
  LogitOrigin origin{.model = "",
                     .tokenizer = runtime::tokenizer_hash(checkpoint.directory()),
                     .data = hash_of(material),
                     .text = plain_text(data.filename().string()),
                     .source = runtime::json_text(material.source),
                     .num_vocabulary = num_vocabulary,
                     .num_kept = options.num_kept,
                     .temperatures = options.temperatures,
                     .pare_version = std::string(runtime::version()),
                     .libtorch_version = TORCH_VERSION,
                     .instruction_set = std::string(runtime::isa_name(isa)) + ", " + at::get_cpu_capability()};
  const int64_t token_bytes =
      bytes_per_token(origin.num_vocabulary, origin.num_kept, static_cast<int64_t>(origin.temperatures.size()));
  const Prediction prediction = predict(checkpoint, material, origin, num_shards, num_lanes, num_threads);
  for (const std::string& line : to_lines(prediction)) progress.print(line);
  progress.print("plan: " + std::to_string(material.num_sequences()) + " sequences in " + std::to_string(num_shards) +
                 " shards, " + std::to_string(token_bytes) + " bytes per token");
  if (options.dry_run) {
    Json json = runtime::parse_ordered_json(to_json(prediction), "the prediction");
    json["sequences"] = material.num_sequences();
    json["prompts_left_out"] = material.num_left_out;
    json["events"] = events;
    json["shards"] = num_shards;
    json["bytes_per_token"] = token_bytes;
    return runtime::json_text(json, 2);
  }
  check_disk_space(output, prediction);
  checkpoint.check_values();
  origin.model = model_hash(checkpoint);
  runtime::throw_if_interrupted();

  UnfinishedStore store(output, origin, shard_sequences, options.fresh);
  const auto num_resumed = static_cast<int64_t>(store.shards().size());
  std::string result, report;
  try {
    if (num_resumed > 0) {
      progress.print("continuing after " + std::to_string(num_resumed) + " shards in '" + store.folder().string() +
                     "'");
    }
    std::optional<runtime::Transformer> teacher;
    if (num_resumed < num_shards) teacher = runtime::Transformer::load(checkpoint, *backend);
    const runtime::LargePiecesStay stay;
    Recording recording(options, sampling, checkpoint, files, material, origin);
    const int64_t num_recorded =
        std::accumulate(shard_sequences.begin(), shard_sequences.begin() + num_resumed, int64_t{0});
    progress.begin("record", material.num_sequences(), "sequences", num_recorded);
    for (int64_t shard = 0, first = 0; shard < num_shards; first += shard_sequences[static_cast<size_t>(shard++)]) {
      if (shard < num_resumed) continue;
      store.add(recording.record_shard(*teacher, store.next_shard_path(), shard, first,
                                       shard_sequences[static_cast<size_t>(shard)],
                                       [&](int64_t done) { progress.update(done); }));
    }
    progress.finish();
    runtime::throw_if_interrupted();
    const std::string hash = store.publish();
    int64_t num_tokens = 0;
    for (const LogitShard& shard : store.shards()) num_tokens += shard.num_tokens;
    const int64_t output_bytes = bytes_of_store(output);
    const double bytes_each = static_cast<double>(output_bytes) / static_cast<double>(num_tokens);
    result = output.string() + ": " + runtime::format_bytes(output_bytes) + ", the " +
             std::to_string(options.num_kept) + " most probable of " + std::to_string(num_vocabulary) +
             " tokens at each of " + std::to_string(num_tokens) + ", " + runtime::format_number(bytes_each, 1) +
             " bytes per token, " + runtime::format_duration(runtime::seconds_since(start)) + ", peak memory " +
             runtime::format_bytes(memory.peak_bytes());
    report = runtime::json_text(Json{{"output", output.string()},
                                     {"sha256", hash},
                                     {"sequences", material.num_sequences()},
                                     {"prompts_left_out", material.num_left_out},
                                     {"tokens", num_tokens},
                                     {"shards", num_shards},
                                     {"resumed_shards", num_resumed},
                                     {"events", events},
                                     {"output_bytes", output_bytes},
                                     {"bytes_per_token", bytes_each},
                                     {"seconds", runtime::seconds_since(start)},
                                     {"peak_memory_bytes", memory.peak_bytes()}},
                                2);
  } catch (...) {
    if (store.shards().empty()) {
      store.discard();
    } else {
      progress.print("'" + store.folder().string() + "' keeps " + std::to_string(store.shards().size()) + " of " +
                     std::to_string(num_shards) + " shards; the same command goes on from there");
    }
    throw;
  }
  // The published files stay, even where these cannot be printed.
  for (const std::string& event : events) progress.result("event: " + event);
  progress.result(result);
  return report;
}

}  // namespace pare::compress
