#include "compress/report/model_card.h"

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>
#include <stdexcept>
#include <tuple>
#include <vector>

#include "compress/recipe/hub_name.h"
#include "compress/recipe/recipe.h"
#include "compress/recipe/recipe_guide.h"
#include "compress/report/markdown_text.h"
#include "compress/report/stored_as.h"
#include "runtime/commands/artifact_files.h"
#include "runtime/commands/option_table.h"
#include "runtime/commands/small_files.h"
#include "runtime/containers/container_table.h"
#include "runtime/model/checkpoint_files.h"
#include "runtime/system/atomic_file.h"
#include "runtime/system/json_text.h"
#include "runtime/system/private_files.h"
#include "runtime/system/progress.h"

namespace pare::compress {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;
using Texts = std::vector<std::string>;

constexpr const char* kFolder = "path/to/this/folder";

// What the card says of the result as a whole.
struct CardFacts {
  std::string base_model;  // ORG/NAME; empty: not known
  std::string family;      // model_type of config.json
  std::string container;   // quant_method or pare_method of config.json; empty: no weight is in codes
  bool is_decoder = false;
  std::string format;    // of `pare export --format`; empty: a run has made the model
  bool is_gguf = false;  // the weights are one .gguf file
  bool has_codes = false, is_pruned = false, is_trained = false;
  std::set<int64_t> bits;                  // of codes
  Texts methods;                           // keys of the passes that rounded or pruned, in their order in pare.json
  std::optional<Json> transformers, vllm;  // their verdicts
};

std::string text_of(const Json& json, const char* key) {
  return json.contains(key) && json[key].is_string() ? json[key].get<std::string>() : std::string();
}

bool loads(const std::optional<Json>& verdict) {
  return verdict && verdict->at("loads").get<bool>();
}

std::string counted(int64_t count, const std::string& one) {
  return std::to_string(count) + " " + one + (count == 1 ? "" : "s");
}

// Of a run, or of an export, whose layers have no method.
const Json& layers_of(const Json& manifest) {
  const bool is_export = manifest.contains(runtime::kExportMember);
  return (is_export ? manifest[runtime::kExportMember] : manifest).at("layers");
}

CardFacts facts_of(const Json& manifest, const Json& config) {
  CardFacts facts;
  facts.base_model = text_of(manifest, "base_model");
  if (!is_hub_name(facts.base_model)) facts.base_model.clear();
  facts.family = text_of(config, "model_type");
  constexpr std::string_view kOwn = "pare_";  // own_config.h
  if (facts.family.starts_with(kOwn)) facts.family.erase(0, kOwn.size());
  if (manifest.contains(runtime::kWrittenMember) && manifest[runtime::kWrittenMember].contains("architecture")) {
    facts.is_decoder = facts.is_gguf = true;
    facts.container = "gguf";
    facts.family = text_of(manifest[runtime::kWrittenMember], "architecture");
  }
  if (config.contains("quantization_config")) {
    const Json& quantization = config["quantization_config"];
    facts.container = text_of(quantization, "quant_method");
    if (facts.container.empty()) facts.container = text_of(quantization, "pare_method");
  }
  if (config.contains("architectures") && config["architectures"].is_array()) {
    for (const Json& name : config["architectures"]) {
      facts.is_decoder =
          facts.is_decoder || (name.is_string() && name.get<std::string>().find("ForCausalLM") != std::string::npos);
    }
  }
  if (manifest.contains(runtime::kExportMember)) facts.format = text_of(manifest[runtime::kExportMember], "format");
  for (const Json& layer : layers_of(manifest)) {
    const std::string method = text_of(layer, "method");
    const bool is_new = std::ranges::find(facts.methods, method) == facts.methods.end();
    if (is_new && !method.empty()) facts.methods.push_back(method);
    facts.has_codes = facts.has_codes || layer.contains("bits");
    facts.is_pruned = facts.is_pruned || layer.contains("zeros");
    if (layer.contains("bits")) facts.bits.insert(layer["bits"].get<int64_t>());
  }
  facts.is_trained = manifest.contains("training");
  for (const Json& verdict : manifest.at("engines")) {
    const std::string engine = verdict.at("engine").get<std::string>();
    if (engine.starts_with("transformers")) facts.transformers = verdict;
    if (engine.starts_with("vLLM")) facts.vllm = verdict;
  }
  return facts;
}

// --- the head ---

// A text of a YAML head: plain where it can be nothing else than that text, in double quotes as in JSON elsewhere.
std::string yaml_text(const std::string& text) {
  static const std::set<std::string, std::less<>> kWords = {"null", "true", "false", "yes", "no",
                                                            "on",   "off",  "y",     "n"};
  const bool is_plain = !text.empty() && text.front() >= 'a' && text.front() <= 'z' && !kWords.contains(text) &&
                        std::ranges::all_of(text, [](char c) {
                          return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '-' || c == '.';
                        });
  return is_plain ? text : runtime::json_text(Json(text));
}

void add_field(const std::string& key, const Texts& values, std::string& head) {
  if (values.size() == 1) {
    head += key + ": " + yaml_text(values.front()) + "\n";
    return;
  }
  head += key + ":\n";
  for (const std::string& value : values) head += "- " + yaml_text(value) + "\n";
}

// The Hub's word for what the model is to its base; empty where it has none that is true.
std::string relation(const CardFacts& facts) {
  if (facts.has_codes) return "quantized";
  return facts.is_trained ? "finetune" : "";
}

Texts tags(const CardFacts& facts, const CardHead& source) {
  Texts tags = source.values("tags");
  const auto add = [&](const std::string& tag) {
    if (!tag.empty() && std::ranges::find(tags, tag) == tags.end()) tags.push_back(tag);
  };
  add("pare");
  for (const std::string& method : facts.methods) add(method);
  for (const int64_t bits : facts.bits) add(std::to_string(bits) + "-bit");
  add(facts.container);
  return tags;
}

std::string head_of(const CardFacts& facts, const CardHead& source) {
  std::string head = "---\n";
  if (!facts.base_model.empty()) {
    head += "base_model: " + runtime::json_text(Json(facts.base_model)) + "\n";
    if (const std::string word = relation(facts); !word.empty()) head += "base_model_relation: " + word + "\n";
  }
  for (const char* key : {"license", "license_name", "license_link", "language", "datasets"}) {
    if (const Texts values = source.values(key); !values.empty()) add_field(key, values, head);
  }
  Texts library = source.values("library_name");
  if (library.empty() || !loads(facts.transformers)) library = {loads(facts.transformers) ? "transformers" : "pare"};
  add_field("library_name", library, head);
  Texts pipeline = source.values("pipeline_tag");
  if (pipeline.empty() && facts.is_decoder) pipeline = {"text-generation"};
  if (!pipeline.empty()) add_field("pipeline_tag", pipeline, head);
  add_field("tags", tags(facts, source), head);
  return head + "---\n\n";
}

// --- what was done ---

std::string title_of(const CardFacts& facts) {
  std::string title =
      facts.base_model.empty() ? facts.family + " model" : facts.base_model.substr(facts.base_model.find('/') + 1);
  Texts words;
  for (const int64_t bits : facts.bits) words.push_back(std::to_string(bits));
  if (facts.has_codes) title += ", " + runtime::listed(words, "and") + " bits";
  if (!facts.methods.empty()) title += " by " + runtime::listed(facts.methods, "and");
  if (!facts.format.empty()) title += (facts.has_codes ? " in " : ", ") + facts.format;
  return title;
}

// What the recipe's passes do, in words; nothing where this version cannot read the recipe.
std::string passes_in_words(const std::string& recipe_text, const std::string& name) {
  std::string list;
  try {
    const Recipe recipe = parse_recipe(recipe_text, name);
    if (recipe.student) list += "1. `student`: The model is first made smaller, from its own weights.\n";
    for (const PassRecipe& pass : recipe.passes) {
      list += "1. `" + std::string(pass.row->key) + "`: " + first_sentence(std::string(pass.options->meaning())) + "\n";
    }
    if (recipe.head) list += "1. `head`: Embedding and head are rounded to codes as well.\n";
  } catch (const std::invalid_argument&) {
    return {};
  }
  return list;
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  const size_t middle = values.size() / 2;
  return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2.0;
}

std::string layer_table(const Json& manifest) {
  struct Group {
    int64_t num_layers = 0;
    std::vector<double> errors;
  };
  std::vector<std::pair<std::pair<std::string, std::string>, Group>> groups;  // in the order of the layers
  const bool is_export = manifest.contains(runtime::kExportMember);
  for (const Json& layer : layers_of(manifest)) {
    const std::pair key(layer.at(is_export ? "passage" : "method").get<std::string>(), stored_as(layer));
    auto group = std::ranges::find(groups, key, &std::pair<std::pair<std::string, std::string>, Group>::first);
    if (group == groups.end()) group = groups.insert(groups.end(), {key, Group()});
    ++group->second.num_layers;
    if (layer.contains("relative_error") && layer["relative_error"].is_number()) {
      group->second.errors.push_back(layer["relative_error"].get<double>());
    }
  }
  if (groups.empty()) return {};
  std::string table = std::string("| layers | ") + (is_export ? "what passed" : "last pass") +
                      " | weights stored as | relative error, median | largest |\n|---|---|---|---|---|\n";
  for (const auto& [key, group] : groups) {
    table += "| " + std::to_string(group.num_layers) + " | " + markdown_text(key.first) + " | " +
             markdown_text(key.second) + " | ";
    table += group.errors.empty() ? "– | – |\n"
                                  : runtime::format_number(median(group.errors), 5) + " | " +
                                        runtime::format_number(std::ranges::max(group.errors), 5) + " |\n";
  }
  return table + "\n";
}

// Returns where the path ends that begins at `begin`. In a recipe, words that lead on to another folder belong to it.
size_t end_of_path(std::string_view text, size_t begin, bool is_recipe) {
  const char before = begin == 0 ? '\n' : text[begin - 1];
  if (before == '"' || before == '\'')
    return std::min(text.find_first_of(std::string{before, '\n'}, begin), text.size());
  const size_t limit = std::min(text.find_first_of(",}])'\"\n#", begin), text.size());
  size_t end = std::min(text.find_first_of(is_recipe ? " \t" : " \t:", begin), limit);
  for (size_t word = end; is_recipe && word < limit;) {
    const size_t first = std::min(text.find_first_not_of(" \t", word), limit);
    word = std::min(text.find_first_of(" \t", first), limit);
    if (first == limit || text[first] == '/') break;
    if (text.substr(first, word - first).find('/') != std::string_view::npos) end = word;
  }
  return end;
}

// Puts the last name in the place of each path from the root: a card is for others, to whom folders of this machine say
// nothing.
std::string with_names_for_paths(std::string_view text, bool is_recipe) {
  std::string result;
  for (size_t at = 0; at < text.size();) {
    const bool is_first = at == 0 || std::string_view(" \t\n'\"[{(,=").find(text[at - 1]) != std::string_view::npos;
    const bool is_path = text[at] == '/' && is_first && at + 1 < text.size() && text[at + 1] != '/';
    const size_t end = is_path ? end_of_path(text, at, is_recipe) : at + 1;
    std::string_view part = text.substr(at, end - at);
    if (is_path) {
      while (part.ends_with('/')) part.remove_suffix(1);
      part.remove_prefix(part.find_last_of('/') == std::string_view::npos ? 0 : part.find_last_of('/') + 1);
    }
    result += part;
    at = end;
  }
  return result;
}

std::string events_of(const Json& manifest) {
  const Json& events = manifest.at("events");
  if (events.empty()) return {};
  std::string lines;
  for (const Json& event : events) {
    lines += with_names_for_paths(event.get<std::string>(), /*is_recipe=*/false) + "\n";
  }
  return "What went other than planned:\n\n" + markdown_code(lines, "text") + "\n";
}

std::string what_was_done(const Json& manifest, const CardFacts& facts, const std::string& manifest_name) {
  if (!facts.format.empty()) {
    return "## What was done\n\nThe weights of a model were written in the format " + markdown_text(facts.format) +
           ", by `pare export`. Errors are relative to the weights of that model, which may have been compressed "
           "already.\n\n" +
           layer_table(manifest) + events_of(manifest);
  }
  const std::string recipe = text_of(manifest, "recipe");
  std::string text = "## What was done\n\n" + passes_in_words(recipe, manifest_name);
  if (!text.ends_with("\n\n")) text += "\n";
  text += layer_table(manifest);
  if (manifest.contains("calibration")) {
    const Json& calibration = manifest["calibration"];
    const bool is_windows = calibration.contains("windows");
    text += "Calibrated on " +
            counted(calibration.at(is_windows ? "windows" : "texts").get<int64_t>(), is_windows ? "window" : "text") +
            (is_windows ? " of " + counted(calibration.at("tokens").get<int64_t>(), "token") : "") + " of " +
            markdown_text(text_of(calibration, "text")) + ".\n\n";
  }
  if (manifest.contains("training")) {
    const Json& training = manifest["training"];
    text += "Trained for " + counted(training.at("steps").get<int64_t>(), "step") + " on " +
            counted(training.at("training_windows").get<int64_t>(), "window") + " of " +
            counted(training.at("tokens").get<int64_t>(), "token") + "; the values of step " +
            std::to_string(training.at("kept_step").get<int64_t>()) + " are kept.\n\n";
  }
  text += "The recipe:\n\n" + markdown_code(with_names_for_paths(recipe, /*is_recipe=*/true), "yaml") + "\n";
  return text + events_of(manifest);
}

// --- figures ---

std::string sizes_of(const Json& manifest) {
  if (!manifest.contains("sizes")) return {};
  const Json& sizes = manifest["sizes"];
  const auto bytes = [&](const char* key) { return runtime::format_bytes(sizes.at(key).get<int64_t>()); };
  const auto bits = [&](const char* key) { return runtime::format_number(sizes.at(key).get<double>(), 3); };
  return "## Size\n\n| | original | this model |\n|---|---|---|\n| weight files | " + bytes("source_bytes") + " | " +
         bytes("output_bytes") + " |\n| bits per weight of the blocks' linears | | " +
         bits("bits_per_weight_without_head") + " |\n| bits per weight with embedding and head | | " +
         bits("bits_per_weight") + " |\n\n";
}

std::string measured(const Json& manifest) {
  if (!manifest.contains("evaluations") || manifest["evaluations"].empty()) return {};
  std::string text = "## What was measured\n\n";
  for (const Json& evaluation : manifest["evaluations"]) {
    text +=
        markdown_text(evaluation.at("data").get<std::string>()) + ":\n\n| | original | this model |\n|---|---|---|\n";
    for (const Json& figure : evaluation.at("figures")) {
      const int decimals =
          figure.at("decimals").is_number_integer() ? std::clamp(figure["decimals"].get<int>(), 0, 10) : 0;
      const auto number = [&](const char* key) {
        return figure.contains(key) && figure[key].is_number()
                   ? runtime::format_number(figure[key].get<double>(), decimals)
                   : std::string();
      };
      const std::string error = number("standard_error");
      text += "| " + markdown_text(figure.at("meaning").get<std::string>()) + " | " + number("reference") + " | " +
              number("value") + (error.empty() ? "" : " ± " + error) + " |\n";
    }
    text += "\n";
  }
  return text + "± is the standard error over the windows or texts.\n\n";
}

// A manifest is the same on every machine and so has no speeds. Its recipe says whether the run measured them.
bool was_timed(const Json& manifest) {
  const std::string recipe = "\n" + text_of(manifest, "recipe");
  return recipe.find("\nbenchmark:") != std::string::npos;
}

std::string not_measured(const Json& manifest, const CardFacts& facts) {
  std::string text = "## What was not measured\n\n";
  const bool is_measured = manifest.contains("evaluations") && !manifest["evaluations"].empty();
  const std::string maker = facts.format.empty() ? "run that made it" : "export that wrote it";
  if (!is_measured) text += "- How good the model is: the " + maker + " measured nothing.\n";
  if (is_measured) text += "- Any task, language or text other than those above.\n";
  text += "- Bias and safety, which compression may change.\n";
  text += was_timed(manifest) ? "- Memory, and speed on other machines than the one that `report.json` names.\n"
                              : "- Speed and memory.\n";
  if (!manifest.at("engines").empty()) {
    text += "- Loading in other engines: what stands above follows from the rules of the releases named.\n";
  }
  return text + "\n";
}

// --- how to load it ---

std::string verdict_lines(const Json& engines) {
  std::string text = "| engine | loads it | |\n|---|---|---|\n";
  for (const Json& verdict : engines) {
    Texts reasons;
    for (const Json& reason : verdict.at("reasons")) reasons.push_back(markdown_text(reason.get<std::string>()));
    std::string all;
    for (const std::string& reason : reasons) all += (all.empty() ? "" : "; ") + reason;
    text += "| " + markdown_text(verdict.at("engine").get<std::string>()) + " | " +
            (verdict.at("loads").get<bool>() ? "yes" : "no") + " | " + all + " |\n";
  }
  return text + "\n";
}

std::string with_transformers(const CardFacts& facts) {
  std::string extra;
  if (const runtime::ContainerFormat* container = runtime::find_container(facts.container, "{}")) {
    for (const std::string_view package : container->packages()) extra += " " + std::string(package);
  }
  const std::string type = facts.is_decoder ? "AutoModelForCausalLM" : "AutoModel";
  std::string code = "# pip install transformers" + extra + "\nfrom transformers import " + type +
                     ", AutoTokenizer\n\n" + "tokenizer = AutoTokenizer.from_pretrained(\"" + kFolder +
                     "\")\nmodel = " + type + ".from_pretrained(\"" + kFolder + "\")\n";
  if (facts.is_decoder) {
    code +=
        "inputs = tokenizer(\"The capital of France is\", return_tensors=\"pt\")\n"
        "print(tokenizer.decode(model.generate(**inputs, max_new_tokens=20)[0]))\n";
  }
  return "### With transformers\n\n" + markdown_code(code, "python") + "\n";
}

std::string how_to_load(const Json& manifest, const CardFacts& facts) {
  std::string text = "## How to load it\n\n";
  if (!manifest.at("engines").empty()) text += verdict_lines(manifest["engines"]);
  if (loads(facts.transformers)) text += with_transformers(facts);
  if (loads(facts.vllm)) text += "### With vLLM\n\n" + markdown_code(std::string("vllm serve ") + kFolder, "sh") + "\n";
  if (facts.is_gguf) text += "### With llama.cpp\n\n" + markdown_code("llama-cli -m FILE.gguf", "sh") + "\n";
  const std::string folder = kFolder;
  return text + "### With pare\n\n" +
         markdown_code((facts.is_decoder ? "pare generate " + folder + " --prompt \"The capital of France is\"\n" +
                                               "pare eval " + folder + " --text FILE\n"
                                         : "pare eval " + folder + " --pairs FILE.tsv\n") +
                           "pare verify " + folder,
                       "sh") +
         "\n";
}

std::string origin(const CardFacts& facts, const CardInputs& inputs) {
  std::string text = "## Where it comes from\n\n";
  text += facts.base_model.empty() ? "`pare.json` has the checksums of the original model's files. It does not say its "
                                     "name.\n"
                                   : "The original is [" + markdown_text(facts.base_model) +
                                         "](https://huggingface.co/" + facts.base_model + ").\n";
  if (!inputs.source_card.empty()) {
    text += "Its own model card is [" + inputs.source_card + "](" + inputs.source_card + "), unchanged.\n";
  }
  const Texts licence = inputs.source.values("license");
  text += licence.empty() ? "No licence of it is known here. Whatever licence it has applies to this model as well.\n"
                          : "Its licence, " + markdown_text(licence.front()) + ", applies to this model as well.\n";
  return text;
}

}  // namespace

std::string model_card(const CardInputs& inputs) {
  const Json manifest = runtime::parse_ordered_json(inputs.manifest, inputs.manifest_name);
  const Json config = runtime::parse_ordered_json(inputs.config, "config.json");
  try {
    const CardFacts facts = facts_of(manifest, config);
    std::string card = head_of(facts, inputs.source);
    card += std::string(kCardMark) + "\n\n";
    card += "# " + markdown_text(title_of(facts)) + "\n\n";
    card += (facts.base_model.empty()
                 ? "A model"
                 : "[" + markdown_text(facts.base_model) + "](https://huggingface.co/" + facts.base_model + ")") +
            std::string(!facts.format.empty() ? ", written in another format"
                        : facts.has_codes     ? ", quantized"
                        : facts.is_pruned     ? ", pruned"
                        : facts.is_trained    ? ", trained further"
                                              : ", changed") +
            " by pare.\n\n";
    return card + sizes_of(manifest) + measured(manifest) + how_to_load(manifest, facts) +
           what_was_done(manifest, facts, inputs.manifest_name) + not_measured(manifest, facts) + origin(facts, inputs);
  } catch (const nlohmann::json::exception& error) {
    throw std::runtime_error("'" + inputs.manifest_name + "' or config.json is not what pare writes: " + error.what());
  }
}

std::string card_of_folder(const fs::path& artifact, const std::string& manifest) {
  // A folder with a .gguf has none.
  const bool has_config = runtime::is_there(artifact / "config.json");
  CardInputs inputs{.manifest = manifest,
                    .config = has_config ? runtime::read_text_file(artifact / "config.json") : "{}",
                    .source = {},
                    .source_card = {},
                    .manifest_name = (artifact / runtime::kManifestName).filename().string()};
  // Artifacts of before there were cards have the source's under its own name.
  if (const std::optional<std::string> name = source_card_name(artifact); name && !is_own_card(artifact, *name)) {
    inputs.source_card = *name == kCardName ? kSourceCardName : *name;  // the name that it gets
    inputs.source = card_head_of(artifact, *name);
  }
  return model_card(inputs);
}

std::string described_by(const fs::path& artifact) {
  for (const char* name : {kSourceCardName, "config.json"}) {
    if (runtime::is_there(artifact / name)) return name;
  }
  for (const auto& entry : fs::directory_iterator(artifact)) {
    if (entry.path().extension() == ".gguf") return entry.path().filename().string();
  }
  return runtime::kManifestName;
}

void write_card(const fs::path& artifact, const std::string& card) {
  runtime::write_privately(runtime::open_small_file(artifact, described_by(artifact)), artifact / kCardName, card);
}

}  // namespace pare::compress
