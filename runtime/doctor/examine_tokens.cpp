#include "runtime/doctor/examine_tokens.h"

#include <algorithm>
#include <set>
#include <string>

#include "runtime/model/generation_config.h"
#include "runtime/tokenizer/tokenizer.h"

namespace pare::runtime {
namespace {

// Says nothing where a vocabulary of another form stands for it.
void examine_missing_tokenizer(const Patient& patient, std::vector<Finding>& findings) {
  const auto has = [&](const char* name) { return is_there(patient.directory / name); };
  if (!has("tokenizer_config.json")) return;
  for (const char* const other : {"tokenizer.model", "spiece.model", "sentencepiece.bpe.model", "vocab.json",
                                  "vocab.txt", "tekken.json", "tiktoken.model", "qwen.tiktoken"}) {
    if (has(other)) return;
  }
  findings.push_back({.illness = Illness::tokenizer_refused,
                      .certainty = Certainty::likely,
                      .concerned = {"tokenizer.json"},
                      .what = "tokenizer_config.json is there, and no file holds the tokens: expected tokenizer.json",
                      .advice = "fetch the tokenizer's files again"});
}

void examine_tokenizer(const Patient& patient, int64_t num_rows, const std::vector<int32_t>& end_tokens,
                       std::vector<Finding>& findings) {
  if (!is_there(patient.directory / "tokenizer.json")) return examine_missing_tokenizer(patient, findings);
  std::optional<Tokenizer> tokenizer;
  const std::string failure = failure_of([&] { tokenizer = Tokenizer::open(patient.directory); });
  if (!failure.empty()) {
    findings.push_back({.illness = Illness::tokenizer_refused,
                        .certainty = Certainty::likely,
                        .concerned = {"tokenizer.json"},
                        .what = failure,
                        .advice = "fetch the tokenizer's files again"});
    return;
  }
  if (tokenizer->vocabulary_size() > num_rows) {
    findings.push_back({.illness = Illness::vocabulary_too_large,
                        .certainty = Certainty::likely,
                        .concerned = {"tokenizer.json"},
                        .what = "the tokenizer gives ids up to " + std::to_string(tokenizer->vocabulary_size() - 1) +
                                ", and the embedding has " + std::to_string(num_rows) + " rows",
                        .figures = {{"tokens", static_cast<double>(tokenizer->vocabulary_size())},
                                    {"rows", static_cast<double>(num_rows)}},
                        .advice = "take the tokenizer of this model, or take the tokens that were added out again"});
  }
  const auto& special = tokenizer->special_tokens();
  const auto end = std::ranges::find_if(special, [](const auto& token) { return token.first == "eos_token"; });
  if (end == special.end() || end_tokens.empty()) return;
  const std::optional<int32_t> id = tokenizer->token_id(end->second);
  if (!id || std::ranges::find(end_tokens, *id) != end_tokens.end()) return;
  findings.push_back(
      {.illness = Illness::end_token_not_listed,
       .certainty = Certainty::likely,
       .concerned = {"tokenizer_config.json"},
       .what = "the tokenizer's eos_token '" + end->second + "' has the id " + std::to_string(*id) +
               ", which is none of those that end a text: texts may go on without end",
       .figures = {{"eos_token", static_cast<double>(*id)}, {"eos_token_id", static_cast<double>(end_tokens.front())}},
       .advice = "add it to eos_token_id of generation_config.json"});
}

}  // namespace

void examine_tokens(const Patient& patient, std::vector<Finding>& findings) {
  if (!patient.model) return;
  const ModelDescription& model = *patient.model;
  // The embedding counts, where config.json contradicts it.
  const TensorView* const embedding = patient.find_described()(model.embedding_name + ".weight");
  const bool is_known = embedding != nullptr && is_float_dtype(embedding->dtype) && embedding->shape.size() == 2;
  const int64_t num_rows = is_known ? embedding->shape[0] : model.vocabulary_size;

  std::set<std::string> files;
  std::set<int32_t> outside;
  const auto look_at = [&](int32_t id, const std::string& file) {
    if (id < num_rows) return;
    files.insert(file);
    outside.insert(id);
  };
  if (model.bos_token) look_at(*model.bos_token, kConfigName);
  for (const int32_t id : model.eos_tokens) look_at(id, kConfigName);
  std::vector<int32_t> end_tokens = model.eos_tokens;
  const std::string failure = failure_of([&] {
    const GenerationConfig generation = read_generation_config(patient.directory);
    if (!generation.eos_tokens.empty()) end_tokens = generation.eos_tokens;
    for (const int32_t id : generation.eos_tokens) look_at(id, kGenerationConfigName);
    if (!generation.complaint.empty()) throw std::invalid_argument(generation.complaint);
  });
  if (!failure.empty()) {
    findings.push_back({.illness = Illness::unreadable_file,
                        .certainty = Certainty::likely,
                        .concerned = {kGenerationConfigName},
                        .what = failure,
                        .advice = "correct the key, or remove the file"});
  }
  if (!outside.empty()) {
    findings.push_back(
        {.illness = Illness::token_out_of_range,
         .concerned = {files.begin(), files.end()},
         .what = "the token " + std::to_string(*outside.rbegin()) +
                 " begins or ends texts, and the "
                 "embedding has " +
                 std::to_string(num_rows) + " rows",
         .figures = {{"token", static_cast<double>(*outside.rbegin())}, {"rows", static_cast<double>(num_rows)}},
         .advice = "correct bos_token_id and eos_token_id"});
  }
  examine_tokenizer(patient, num_rows, end_tokens, findings);
}

}  // namespace pare::runtime
