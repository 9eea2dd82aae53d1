#include "runtime/model/generation_config.h"

#include <array>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "runtime/model/config_section.h"
#include "runtime/system/atomic_file.h"
#include "runtime/system/input_files.h"

namespace pare::runtime {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMostTokenId = (int64_t{1} << 31) - 1;
constexpr size_t kMostEndTokens = 1024;

// An option of transformers that pare has not, with the value that asks for nothing.
struct OtherOption {
  const char* key;
  double nothing;
  bool draws;  // counts only where tokens are drawn
};
constexpr std::array kOtherOptions = {OtherOption{"encoder_repetition_penalty", 1.0, false},
                                      OtherOption{"no_repeat_ngram_size", 0.0, false},
                                      OtherOption{"min_length", 0.0, false},
                                      OtherOption{"min_new_tokens", 0.0, false},
                                      OtherOption{"num_beams", 1.0, false},
                                      OtherOption{"penalty_alpha", 0.0, false},
                                      OtherOption{"guidance_scale", 1.0, false},
                                      OtherOption{"bad_words_ids", 0.0, false},
                                      OtherOption{"suppress_tokens", 0.0, false},
                                      OtherOption{"begin_suppress_tokens", 0.0, false},
                                      OtherOption{"sequence_bias", 0.0, false},
                                      OtherOption{"forced_bos_token_id", -1.0, false},
                                      OtherOption{"forced_eos_token_id", -1.0, false},
                                      OtherOption{"exponential_decay_length_penalty", 0.0, false},
                                      OtherOption{"stop_strings", 0.0, false},
                                      OtherOption{"top_h", 0.0, true},
                                      OtherOption{"typical_p", 1.0, true},
                                      OtherOption{"epsilon_cutoff", 0.0, true},
                                      OtherOption{"eta_cutoff", 0.0, true}};

// A number below 0 is no token's, and ends no text.
std::vector<int32_t> end_tokens(const ConfigSection& file) {
  const Json* eos = file.find("eos_token_id");
  if (eos == nullptr) return {};
  const auto is_id = [](const Json& id) {
    return id.is_number_unsigned() && id.get<uint64_t>() <= static_cast<uint64_t>(kMostTokenId);
  };
  if (is_id(*eos)) return {eos->get<int32_t>()};
  if (eos->is_number_integer() && !eos->is_number_unsigned()) return {};
  if (!eos->is_array() || eos->size() > kMostEndTokens) {
    file.fail("eos_token_id", "a token id or a short list of them");
  }
  std::vector<int32_t> tokens;
  for (const Json& id : *eos) {
    if (!is_id(id)) file.fail("eos_token_id", "a token id or a short list of them");
    tokens.push_back(id.get<int32_t>());
  }
  return tokens;
}

bool asks_for_something(const Json& value, const OtherOption& option) {
  if (value.is_number()) return value.get<double>() != option.nothing;
  if (value.is_boolean()) return value.get<bool>();
  return !value.empty();
}

// transformers takes whatever stands here where no tokens are drawn, but for the penalty.
void read_sampling(const ConfigSection& file, GenerationConfig& config) {
  constexpr double kMostTemperature = 1e6, kMostPenalty = 1e6;
  config.repetition_penalty = file.number_or("repetition_penalty", config.repetition_penalty, 0.0, kMostPenalty);
  config.samples = file.boolean_or("do_sample", false);
  if (!config.samples) return;
  const Json* temperature = file.find("temperature");
  const bool is_greedy = temperature != nullptr && temperature->is_number() && temperature->get<double>() == 0.0;
  config.samples = !is_greedy;
  if (is_greedy) return;
  config.temperature = file.number_or("temperature", config.temperature, 0.0, kMostTemperature);
  config.top_k = file.integer_or("top_k", config.top_k, 0, kMaxVocabulary);
  config.top_p = file.number_or("top_p", config.top_p, 0.0, 1.0);
  const Json* min_p = file.find("min_p");
  const bool cuts = min_p != nullptr && !(min_p->is_number() && min_p->get<double>() == 0.0);
  if (cuts) config.min_p = file.number("min_p", 0.0, 1.0);
}

}  // namespace

GenerationConfig read_generation_config(const std::filesystem::path& directory) {
  GenerationConfig config;
  const std::filesystem::path path = directory / kGenerationConfigName;
  if (!is_there(path)) return config;
  const Json json = parse_config(read_text_file(path), path.string());
  const ConfigSection file(json, path.string());
  config.eos_tokens = end_tokens(file);
  try {
    read_sampling(file, config);
  } catch (const std::invalid_argument& error) {
    config.complaint = error.what();
  }
  for (const OtherOption& option : kOtherOptions) {
    const Json* value = file.find(option.key);
    if (value == nullptr || (option.draws && !config.samples) || !asks_for_something(*value, option)) continue;
    config.not_applied.push_back(option.key + (value->is_number() ? " " + value_text(*value) : std::string()));
  }
  return config;
}

}  // namespace pare::runtime
