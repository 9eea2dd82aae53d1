#include "runtime/commands/bench.h"

#include <algorithm>
#include <chrono>
#include <limits>
#include <nlohmann/json.hpp>
#include <numeric>
#include <span>
#include <sstream>
#include <stdexcept>

#include "runtime/engine/generate.h"
#include "runtime/machine/thread_waiting.h"
#include "runtime/system/interrupt.h"
#include "runtime/system/json_text.h"
#include "runtime/system/memory_usage.h"
#include "runtime/system/progress.h"

namespace pare::runtime {
namespace {

using Clock = std::chrono::steady_clock;

// Returns tokens to run. Any will do, but equal ones would read a single row of the embedding.
std::vector<int32_t> arbitrary_tokens(const ModelDescription& model, int64_t num_tokens) {
  RandomNumbers random(0);
  std::vector<int32_t> ids;
  for (int64_t t = 0; t < num_tokens; ++t) {
    ids.push_back(static_cast<int32_t>(random.next() % static_cast<uint64_t>(model.vocabulary_size)));
  }
  return ids;
}

Speed summarize(std::vector<double> speeds) {
  std::sort(speeds.begin(), speeds.end());
  const size_t middle = speeds.size() / 2;
  const bool even = speeds.size() % 2 == 0;
  return {.best = speeds.back(), .median = even ? (speeds[middle - 1] + speeds[middle]) / 2.0 : speeds[middle]};
}

double prefill_speed(Transformer& model, std::span<const int32_t> ids) {
  const std::unique_ptr<Transformer::Session> session = model.start(static_cast<int64_t>(ids.size()));
  const Clock::time_point start = Clock::now();
  session->feed(ids);
  return static_cast<double>(ids.size()) / seconds_since(start);
}

// Returns the tokens per second of all texts. Each has the same tokens, begun in another place.
double decode_speed(Transformer& model, std::span<const int32_t> ids, int64_t batch) {
  const std::unique_ptr<Transformer::Lanes> lanes = model.start_lanes(batch, static_cast<int64_t>(ids.size()));
  std::vector<int64_t> each(static_cast<size_t>(batch));
  std::iota(each.begin(), each.end(), int64_t{0});
  for (const int64_t lane : each) lanes->begin(lane, ids.first(BenchOptions::kDecodePrompt));
  const std::span<const int32_t> decoded = ids.subspan(BenchOptions::kDecodePrompt);
  std::vector<int32_t> next(each.size());
  const Clock::time_point start = Clock::now();
  for (size_t t = 0; t < decoded.size(); ++t) {
    for (size_t lane = 0; lane < next.size(); ++lane) next[lane] = decoded[(t + lane) % decoded.size()];
    lanes->feed_each(each, next);
  }
  return static_cast<double>(batch) * static_cast<double>(decoded.size()) / seconds_since(start);
}

// Returns the parameters that one token is multiplied by: of a mixture's experts, only those that it goes to.
int64_t linear_parameters(const ModelDescription& model) {
  int64_t num = 0;
  const auto add = [&](const LinearDescription& linear) { num += linear.num_out * linear.num_in; };
  for (const BlockDescription& block : model.blocks) {
    for (const LinearDescription& linear : block.attention_readers()) add(linear);
    if (block.latent && block.latent->q_a) add(block.q);
    if (block.latent) add(block.latent->kv_b);
    add(block.o);
    for (const LinearDescription& router : block.routers()) add(router);
    const auto add_network = [&](const FeedForwardDescription& network) {
      for (const LinearDescription& linear : network.readers()) add(linear);
      add(network.down);
    };
    const int64_t num_routed = block.is_mixture() ? block.routing.routed_per_token() : 1;
    for (int64_t k = 0; k < num_routed; ++k) add_network(block.experts.front());  // all have one shape
    if (block.routing.has_shared) add_network(block.experts.back());
  }
  return num;
}

// Returns the pairs of a token and one that it sees, for num_tokens tokens from first_token on.
int64_t visible_pairs(int64_t first_token, int64_t num_tokens, int64_t window) {
  int64_t num = 0;
  for (int64_t t = first_token; t < first_token + num_tokens; ++t) num += window > 0 ? std::min(t + 1, window) : t + 1;
  return num;
}

}  // namespace

void check_bench(const ModelDescription& model, const BackendOptions& backend, const BenchOptions& options) {
  const int64_t num_threads = backend.device == ComputeDevice::cpu ? backend.num_threads : 1;
  const int64_t least =
      std::min({options.prefill_tokens, options.decode_tokens, options.batch, options.repetitions, num_threads});
  if (least < 1) {
    throw std::invalid_argument("bench: tokens, texts, repetitions and threads must be at least 1, found " +
                                std::to_string(least));
  }
  const auto check_fits = [&](const std::string& what, int64_t num_tokens, int64_t most) {
    if (num_tokens <= most) return;
    throw std::invalid_argument("bench: " + what + std::to_string(num_tokens) +
                                " tokens do not fit the model's context of " + std::to_string(model.context_length) +
                                ": ask for at most " + std::to_string(most));
  };
  check_fits("a prompt of ", options.prefill_tokens, model.context_length);
  const std::string prompt = std::to_string(BenchOptions::kDecodePrompt);
  check_fits("after a prompt of " + prompt + ", ", options.decode_tokens,
             model.context_length - BenchOptions::kDecodePrompt);
}

DeviceWorkload bench_workload(const ModelDescription& model, const BackendOptions& options_of_backend,
                              const BenchOptions& options, int kv_bits) {
  const int64_t context = model.context_length;
  const int64_t num_tokens = std::max(std::min(options.prefill_tokens, context),
                                      BenchOptions::kDecodePrompt + std::min(options.decode_tokens, context));
  return {.num_rows = std::max(num_tokens, options.batch),
          .num_tokens = num_tokens,
          .keeps_every_layer = true,
          .kv_bits = kv_bits,
          .num_texts = options.batch,
          .most_roof_bytes = roof_footprint_bytes(options_of_backend, std::numeric_limits<int64_t>::max())};
}

int64_t attention_flops(const ModelDescription& model, int64_t num_tokens) {
  int64_t num_pairs = 0;
  for (const BlockDescription& block : model.blocks) num_pairs += visible_pairs(0, num_tokens, block.sliding_window);
  return 4 * model.num_heads * model.head_size * num_pairs;
}

BenchResult bench(Transformer& model, const BackendOptions& options_of_backend, const BenchOptions& options,
                  const std::function<void(int64_t, int64_t)>& progress) {
  const ModelDescription& description = model.description();
  check_bench(description, options_of_backend, options);
  MemorySampler memory;
  BenchResult result;
  result.backend = model.backend().name();
  result.kernels = model.kernel_names();
  result.num_threads = options_of_backend.device == ComputeDevice::cpu ? options_of_backend.num_threads : 0;
  result.options = options;
  result.bytes_per_token = model.bytes_per_token();
  result.prefill_roof_name = name_of_prefill_roof(options_of_backend);
  result.roof_footprint_bytes = roof_footprint_bytes(options_of_backend, result.bytes_per_token);
  result.resident_bytes = model.resident_bytes();

  const std::vector<int32_t> prompt = arbitrary_tokens(description, options.prefill_tokens);
  const std::vector<int32_t> decoded =
      arbitrary_tokens(description, BenchOptions::kDecodePrompt + options.decode_tokens);
  std::vector<double> prefill, decode, decode_shares;
  const auto read_roof = [&] {
    const double gbps = measure_read_roof(options_of_backend, result.roof_footprint_bytes);
    result.read_roof_gbps = std::max(result.read_roof_gbps, gbps);
    result.lowest_read_roof_gbps = std::min(result.lowest_read_roof_gbps, gbps);
    return gbps;
  };
  if (progress) progress(0, options.repetitions);
  for (int64_t n = 0; n < options.repetitions; ++n) {
    throw_if_interrupted();
    result.prefill_roof_gflops = std::max(result.prefill_roof_gflops, measure_prefill_roof(options_of_backend));
    prefill.push_back(prefill_speed(model, prompt));
    throw_if_interrupted();
    const double roof_before = read_roof();
    decode.push_back(decode_speed(model, decoded, options.batch));
    decode_shares.push_back(decode.back() / std::max(roof_before, read_roof()));
    if (progress) progress(n + 1, options.repetitions);
  }

  result.prefill_tokens_per_second = summarize(prefill);
  result.decode_tokens_per_second = summarize(decode);
  result.linear_flops = 2 * linear_parameters(description) * options.prefill_tokens;
  result.attention_flops = attention_flops(description, options.prefill_tokens);
  result.head_flops = 2 * description.vocabulary_size * description.hidden_size;
  const double prefill_seconds = static_cast<double>(options.prefill_tokens) / result.prefill_tokens_per_second.best;
  result.prefill_gflops = static_cast<double>(result.linear_flops) / prefill_seconds / 1e9;
  result.prefill_share = result.prefill_gflops / result.prefill_roof_gflops;

  int64_t num_pairs = 0;
  for (const BlockDescription& block : description.blocks) {
    num_pairs += visible_pairs(BenchOptions::kDecodePrompt, options.decode_tokens, block.sliding_window);
  }
  const int64_t pair_bytes = model.kv_bytes_per_token() / static_cast<int64_t>(description.blocks.size());
  result.kv_bits = model.attention_bits().kv;
  result.attention_bits = model.attention_bits().products;
  result.kv_bytes_per_token = num_pairs * pair_bytes / options.decode_tokens;
  result.input_zeros = model.input_zeros();
  result.bytes_read_per_token = model.bytes_read_per_token();
  const double gigabytes_per_token =
      static_cast<double>(result.bytes_read_per_token) / static_cast<double>(options.batch) / 1e9;
  result.decode_gbps = gigabytes_per_token * result.decode_tokens_per_second.best;
  result.decode_share = gigabytes_per_token * summarize(decode_shares).median;
  result.reads_more = options.batch > 1 && description.has_mixture();
  result.peak_memory_bytes = memory.peak_bytes();
  return result;
}

std::string to_json(const BenchResult& result) {
  nlohmann::ordered_json json;
  json["backend"] = result.backend;
  json["kernels"] = result.kernels;
  json["activations"] = result.activations;
  json["threads"] = result.num_threads;
  if (result.num_threads > 0) json["thread_waiting"] = waiting_policy();
  json["repetitions"] = result.options.repetitions;
  json["prefill_tokens"] = result.options.prefill_tokens;
  json["prefill_tokens_per_second"] = result.prefill_tokens_per_second.best;
  json["prefill_tokens_per_second_median"] = result.prefill_tokens_per_second.median;
  json["prefill_linear_flops"] = result.linear_flops;
  json["prefill_attention_flops"] = result.attention_flops;
  json["prefill_head_flops"] = result.head_flops;
  json["prefill_gflops"] = result.prefill_gflops;
  json["prefill_roof"] = result.prefill_roof_name;
  json["prefill_roof_gflops"] = result.prefill_roof_gflops;
  json["prefill_share"] = result.prefill_share;
  json["batch"] = result.options.batch;
  json["decode_tokens"] = result.options.decode_tokens;
  json["decode_prompt_tokens"] = BenchOptions::kDecodePrompt;
  json["decode_tokens_per_second"] = result.decode_tokens_per_second.best;
  json["decode_tokens_per_second_median"] = result.decode_tokens_per_second.median;
  json["bytes_per_token"] = result.bytes_per_token;
  if (result.input_zeros.is_counted()) {
    json["bytes_read_per_token"] = result.bytes_read_per_token;
    json["zero_inputs"] = result.input_zeros.zero_share();
    json["skipped_columns"] = result.input_zeros.skipped_share();
  }
  json["kv_bits"] = result.kv_bits;
  json["attention_bits"] = result.attention_bits;
  json["kv_bytes_per_token"] = result.kv_bytes_per_token;
  if (result.reads_more) json["decode_gbps_is_a_lower_bound"] = true;
  json["decode_gbps"] = result.decode_gbps;
  json["decode_roof_gbps"] = result.read_roof_gbps;
  json["decode_lowest_roof_gbps"] = result.lowest_read_roof_gbps;
  json["decode_roof_footprint_bytes"] = result.roof_footprint_bytes;
  json["decode_share"] = result.decode_share;
  json["resident_bytes"] = result.resident_bytes;
  json["peak_memory_bytes"] = result.peak_memory_bytes;
  return json_text(json);
}

std::string to_text(const BenchResult& result) {
  std::ostringstream text;
  const auto percent = [](double share) { return format_number(100.0 * share, 1) + " %"; };
  const auto speed = [](const Speed& s) {
    return format_number(s.best, 1) + " tokens/s best, " + format_number(s.median, 1) + " median";
  };
  text << "backend     " << result.backend;
  if (result.num_threads > 0) text << ", " << result.num_threads << " threads";
  text << ", best of " << result.options.repetitions << '\n';
  text << "kernels    ";
  for (const std::string& kernel : result.kernels) text << ' ' << kernel;
  text << '\n';
  if (result.activations != "exact") {
    text << "activations " << result.activations << ": inputs of "
         << (result.activations == "bf16" ? "linears" : "weights of 4 and 8 bits")
         << " are rounded, which changes what the model says (pare eval --activations " << result.activations << ")\n";
  }
  text << "prefill     " << result.options.prefill_tokens << " tokens: " << speed(result.prefill_tokens_per_second)
       << '\n';
  text << "            " << format_number(result.prefill_gflops, 1)
       << " GFLOP/s in linears = " << percent(result.prefill_share) << " of the " << result.prefill_roof_name
       << " roof of " << format_number(result.prefill_roof_gflops, 1) << " GFLOP/s (attention, in "
       << result.attention_bits << " bits, not counted: "
       << percent(static_cast<double>(result.attention_flops) / static_cast<double>(result.linear_flops))
       << " of the linears' work)\n";
  text << "decode      " << result.options.decode_tokens << " tokens";
  if (result.options.batch > 1) text << " of each of " << result.options.batch << " texts together";
  text << ": " << speed(result.decode_tokens_per_second) << '\n';
  if (result.input_zeros.is_counted()) {
    text << "            " << zeros_text(result.input_zeros) << ": " << result.bytes_read_per_token << " of "
         << result.bytes_per_token << " bytes per token were read\n";
  }
  text << "            " << (result.reads_more ? "at least " : "") << result.bytes_read_per_token
       << (result.options.batch > 1 ? " bytes per step, " : " bytes per token, ")
       << format_number(result.decode_gbps, 2) << " GB/s; median " << percent(result.decode_share)
       << " of the read roof beside it, which was " << format_number(result.lowest_read_roof_gbps, 2) << " to "
       << format_number(result.read_roof_gbps, 2) << " GB/s over " << format_bytes(result.roof_footprint_bytes)
       << " (keys and values in " << result.kv_bits << " bits, not counted: " << result.kv_bytes_per_token
       << " bytes)\n";
  text << "memory      weights " << format_bytes(result.resident_bytes) << ", peak "
       << format_bytes(result.peak_memory_bytes) << '\n';
  return text.str();
}

}  // namespace pare::runtime
