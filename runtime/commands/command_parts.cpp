#include "runtime/commands/command_parts.h"
#include "runtime/device/make_backend.h"

#include <omp.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "runtime/commands/artifact_files.h"
#include "runtime/commands/inspect.h"
#include "runtime/machine/limits.h"
#include "runtime/system/json_text.h"
#include "runtime/system/visible_text.h"

namespace pare::runtime {

const PositionalSpec kModel = {"MODEL",
                               "directory of a Hugging Face checkpoint, dense or compressed by pare, or a .gguf file "
                               "(imported into a temporary folder)"};

std::vector<OptionSpec> joined(std::vector<OptionSpec> first, const std::vector<OptionSpec>& second) {
  first.insert(first.end(), second.begin(), second.end());
  return first;
}

OptionSpec count(const std::string& name, const std::string& default_value, const std::string& help, double minimum) {
  return {.name = name,
          .kind = OptionKind::integer,
          .value_name = "N",
          .default_value = default_value,
          .help = help,
          .minimum = minimum};
}

OptionSpec number(const std::string& name, const std::string& default_value, const std::string& help) {
  return {.name = name,
          .kind = OptionKind::number,
          .value_name = "X",
          .default_value = default_value,
          .help = help,
          .minimum = 0.0};
}

OptionSpec share(const std::string& name, const std::string& default_value, const std::string& help) {
  OptionSpec option = number(name, default_value, help);
  option.above_minimum = true;
  option.maximum = 1.0;
  return option;
}

std::vector<OptionSpec> sampling_options(const SamplingOptions& otherwise, bool has_top_k) {
  const auto by_default = [](const char* file, const std::string& value) {
    return std::string(" (default: that of ") + file + ", otherwise " + value + ")";
  };
  const char* drawing_file = "a generation_config.json with do_sample";
  std::vector<OptionSpec> options = {
      number("temperature", "",
             "divide the logits by X before drawing; 0 always takes the most probable token" +
                 by_default(drawing_file, format_number(otherwise.temperature, 0)))};
  if (has_top_k) {
    options.push_back(count("top-k", "",
                            "draw from the N most probable tokens; 0 draws from all" +
                                by_default(drawing_file, std::to_string(otherwise.top_k)),
                            0));
  }
  options.push_back(share("top-p", "",
                          "draw from the fewest tokens whose probabilities sum to at least X, in (0, 1]" +
                              by_default(drawing_file, format_number(otherwise.top_p, 0))));
  OptionSpec min_p =
      share("min-p", "",
            "of these, draw from tokens at least X times as probable as the most probable one, in [0, 1]" +
                by_default(drawing_file, format_number(otherwise.min_p, 0)));
  min_p.above_minimum = false;
  options.push_back(min_p);
  OptionSpec penalty =
      number("repetition-penalty", "",
             "divide by X the logits above 0 of tokens that came before, and multiply those below; also with "
             "temperature 0" +
                 by_default("a generation_config.json", format_number(otherwise.repetition_penalty, 0)));
  penalty.above_minimum = true;
  options.push_back(penalty);
  return options;
}

GivenSampling given_sampling(const Arguments& arguments, bool has_top_k) {
  const auto number = [&](const char* option) {
    return arguments.given(option) ? std::optional(arguments.number(option)) : std::nullopt;
  };
  GivenSampling given = {.temperature = number("temperature"),
                         .top_k = {},
                         .top_p = number("top-p"),
                         .min_p = number("min-p"),
                         .repetition_penalty = number("repetition-penalty")};
  if (has_top_k && arguments.given("top-k")) given.top_k = arguments.integer("top-k");
  return given;
}

OptionSpec words(const std::string& name, const std::string& value_name, const std::string& help) {
  return {.name = name, .kind = OptionKind::text, .value_name = value_name, .help = help, .is_path = false};
}

OptionSpec required_text(const std::string& name, const std::string& value_name, const std::string& help) {
  return {.name = name, .kind = OptionKind::text, .value_name = value_name, .help = help, .required = true};
}

std::vector<OptionSpec> compute_options() {
  std::vector<std::string> isas;
  for (const Isa isa : kIsas) isas.emplace_back(isa_name(isa));
  OptionSpec threads = count("threads", "",
                             std::string("CPU threads, of which no more are used than CPUs (default: ") +
                                 kDefaultThreads + "); results do not depend on it",
                             1);
  threads.maximum = kMaxThreads;
  return {threads,
          {.name = "isa",
           .kind = OptionKind::text,
           .value_name = "NAME",
           .help = "instruction set of the kernels (default: the widest that this CPU has and PARE_ISA allows)",
           .choices = std::move(isas)}};
}

OptionSpec device_option(const std::string& help) {
  return {.name = "device",
          .kind = OptionKind::text,
          .value_name = "NAME",
          .default_value = "cpu",
          .help = help,
          .choices = {"cpu", "cuda"}};
}
ComputeDevice device_of(const Arguments& arguments) {
  return arguments.text("device") == "cuda" ? ComputeDevice::cuda : ComputeDevice::cpu;
}

OptionSpec kv_bits_option(KvBitsDefault otherwise) {
  const bool follows = otherwise == KvBitsDefault::of_dtype;
  OptionSpec option = {.name = "kv-bits",
                       .kind = OptionKind::text,
                       .value_name = "N",
                       .default_value = follows ? "" : std::to_string(kKvFloatBits),
                       .help = std::string("bits of the model's keys and values: 32 is float32, 16 is bf16, and 8 "
                                           "stores integers with a scale and a zero per head and token") +
                               (follows ? " (default: 16 if config.json's dtype has 16 bits, otherwise 32)" : "")};
  for (const int bits : kKvBits) option.choices.push_back(std::to_string(bits));
  return option;
}
OptionSpec attention_bits_option() {
  return {.name = "attention-bits",
          .kind = OptionKind::text,
          .value_name = "N",
          .default_value = std::to_string(kKvFloatBits),
          .help =
              "bits of attention's own matrix products; 8 rounds queries and softmax's output too, and includes "
              "--kv-bits 8",
          .choices = {std::to_string(kKvFloatBits), "8"}};
}
namespace {
AttentionBits attention_bits(const Arguments& arguments, const ModelDescription& model) {
  const int otherwise = dtype_size_bytes(model.dtype) == 2 ? kKvBf16Bits : kKvFloatBits;
  return {.kv = arguments.given("kv-bits") ? std::stoi(arguments.text("kv-bits")) : otherwise,
          .products = std::stoi(arguments.text("attention-bits"))};
}
}  // namespace
void use_bits(const Arguments& arguments, Transformer& model) {
  model.use_attention_bits(attention_bits(arguments, model.description()));
}
int kv_bits(const Arguments& arguments, const ModelDescription& model) {
  const AttentionBits bits = attention_bits(arguments, model);
  return std::min(bits.kv, bits.products);
}

OptionSpec activations_option() {
  return {.name = "activations",
          .kind = OptionKind::text,
          .value_name = "NAME",
          .default_value = std::string(activation_mode_name(ActivationMode::exact)),
          .help =
              "exact: inputs stay as the model's files say; int8: rounds those of weights of 4 and 8 bits to 8 bits as "
              "they come, with a scale for each token and group of weights; bf16: rounds inputs to bfloat16, as "
              "frameworks do; both are less exact, and faster where the processor has instructions for them (cpu only)",
          .choices = {std::begin(kActivationModes), std::end(kActivationModes)}};
}
ActivationMode activations_of(const Arguments& arguments) {
  const ActivationMode mode = parse_activation_mode(arguments.text("activations"));
  if (mode != ActivationMode::exact && device_of(arguments) != ComputeDevice::cpu) {
    throw WrongUsage("--activations " + std::string(activation_mode_name(mode)) +
                     " needs --device cpu: the kernels of other devices do not round inputs so");
  }
  return mode;
}
std::string event_of(ActivationMode mode) {
  const char* const inputs = mode == ActivationMode::bf16 ? "inputs of linears" : "inputs of weights of 4 and 8 bits";
  return std::string(inputs) + " were rounded while the model ran: --activations " +
         std::string(activation_mode_name(mode));
}

std::string dump(const nlohmann::ordered_json& json) {
  return json_text(json);
}

namespace {
InputFiles noted(const std::filesystem::path& path) {
  InputFiles files;
  files.add(path);
  return files;
}
}  // namespace

std::function<void(double, int64_t)> stage(Console& console, const std::string& name, const std::string& unit) {
  return stage_of(console.progress(), name, unit);
}

void refuse_output_inside(const std::filesystem::path& output, const std::filesystem::path& model) {
  const std::filesystem::path inner = std::filesystem::weakly_canonical(output);
  const std::filesystem::path outer = std::filesystem::weakly_canonical(model);
  if (std::mismatch(outer.begin(), outer.end(), inner.begin(), inner.end()).first != outer.end()) return;
  throw std::invalid_argument("'" + output.string() + "' lies in the model's own folder '" + model.string() +
                              "', which would not be whole then: choose another");
}

NamedModel::NamedModel(const std::string& path, bool is_checked, const std::string& instead, Console& console,
                       GgufCodes codes)
    : path_(path),
      source_(noted(stored_model(path))),
      directory_(std::in_place, path, MakeDirectory(), /*has_weights=*/false, codes),
      is_checked_(is_checked),
      codes_(codes),
      instead_(instead),
      console_(console),
      checkpoint_(is_checked ? open_described(directory(), instead, progress()) : Checkpoint::open(directory())) {
  for (const std::string& note : {decoding_note(checkpoint_), cache_note(checkpoint_)}) {
    if (note.empty()) continue;
    console_.progress().print("note: " + visible_line(path_.string()) + ": " + note);
  }
}

const Checkpoint& NamedModel::whole() {
  if (directory_->is_temporary()) {
    if (is_checked_ && std::filesystem::is_directory(path_)) require_whole_files(path_, instead_, progress());
    directory_.emplace(path_, MakeDirectory(), /*has_weights=*/true, codes_);
    source_.check_unchanged();
    checkpoint_ = Checkpoint::open(directory());
  }
  if (!is_checked_) return checkpoint_;
  require_whole_files(directory(), instead_, progress());
  checkpoint_.check_unchanged();  // the files that were opened must also be those that were hashed
  return checkpoint_;
}

std::function<void(int64_t, int64_t)> NamedModel::progress() const {
  return stage(console_, "check " + path_.string(), "files");
}

ModelLoader::ModelLoader(const Arguments& arguments, Console& console)
    : options_{.device = device_of(arguments),
               .isa = arguments.given("isa") ? parse_isa(arguments.text("isa")) : detect_isa(),
               .num_threads =
                   usable_threads(arguments.given("threads") ? static_cast<int>(arguments.integer("threads")) : 0)},
      activations_(activations_of(arguments)),
      backend_(make_backend(options_)) {
  // Loops beside the kernels, such as the drawing of tokens, must have teams of the same size (runtime/cpu/team.h).
  omp_set_num_threads(options_.num_threads);
  if (options_.device != ComputeDevice::cpu || !arguments.given("threads")) return;
  if (arguments.integer("threads") > options_.num_threads) {
    console.progress().print("--threads " + std::to_string(arguments.integer("threads")) + ": " +
                             std::to_string(options_.num_threads) +
                             " used, one for each CPU that this process may use; more would wait for one another");
  }
}

void ModelLoader::check_workload(const Checkpoint& checkpoint, const DeviceWorkload& workload) const {
  require_activations(checkpoint, activations_);
  DeviceWorkload here = workload;
  here.on_host = options_.device == ComputeDevice::cpu;
  const MemoryNeed need = memory_need(checkpoint, here);
  require({&need, 1});
}

void ModelLoader::require(std::span<const MemoryNeed> needs) const {
  if (options_.device == ComputeDevice::cpu) {
    require_host_memory(*backend_, needs, free_memory());
  } else {
    require_memory(*backend_, needs);
  }
}

Transformer ModelLoader::load(const Checkpoint& checkpoint, Console& console) const {
  const auto progress = stage(console, "load " + checkpoint.directory().string(), "blocks");
  return load_in_mode(checkpoint, *backend_, progress, activations_);
}

}  // namespace pare::runtime
