// The containers: the file layouts of quantized checkpoints. One class holds all that is known of one container, and
// one table (runtime/containers/container_table.h) lists them, so that a new container is one file and one row. Outside
// of runtime/containers only passes that choose a layout of their own, and the checks of that, name a container.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/format/stored_scheme.h"
#include "runtime/format/tensor_view.h"
#include "runtime/system/json_text.h"

namespace pare::runtime {

// Returns the tensor with that name, or null.
using FindTensor = std::function<const TensorView*(const std::string& name)>;

// An answer: yes, or no with a reason. The reason says what the container expects, what was found and what would fit
// instead, in a few words without the layer's name. Example: "AWQ GEMM holds 4 bits, found 8: use the container
// compressed-tensors".
struct Acceptance {
  std::string reason = {};  // empty: yes
  explicit operator bool() const { return reason.empty(); }
};

// The facts besides scheme and shape on which the size of a stored linear depends. Types that a container fixes are not
// read.
struct StoredExtent {
  DType scale_dtype = DType::BF16;        // the weight's scales: QuantizedWeight::scale_dtype
  DType input_scale_dtype = DType::BF16;  // StoredLinear::input_scale_dtype
  int64_t num_outlier_columns = 0;        // for OutlierRule::columns: J, which calibration finds
  DType outlier_dtype = DType::BF16;      // the narrowest of BF16, F16 and F32 that holds the outlier columns' weights
  DType dense_dtype = DType::BF16;        // for dense weights whose pattern is packed: StoredLinear::dense_dtype
};

// The other programs that read checkpoints. transformers reads encoders and the experts of a mixture in its own ways.
enum class Engine { transformers, transformers_encoders, transformers_experts, vllm, llama_cpp };

// A quantization_config as read.
class ContainerConfig {
 public:
  virtual ~ContainerConfig() = default;
  // Returns how the module is stored; nullopt: unchanged, unquantized. class_name is the module's class in PyTorch:
  // "Linear" or "Embedding". `find` looks into the checkpoint, for containers whose tensors say which modules are
  // quantized. Throws std::runtime_error if the tensors contradict the configuration.
  virtual std::optional<PackScheme> scheme_of(const std::string& module, std::string_view class_name,
                                              const FindTensor& find) const = 0;
  // Returns the blocks that share a scale in stacks of fp8 experts; nullopt: it knows no such stacks.
  virtual std::optional<ScaleBlock> block_of_stacks() const { return std::nullopt; }
};

class ContainerFormat {
 public:
  virtual ~ContainerFormat() = default;

  // --- names ---

  // The name in schemes, recipes and messages, unique and stable: "awq-gemm".
  virtual std::string_view name() const = 0;
  // The "quant_method" in its quantization_config: "awq". Two containers may have the same.
  virtual std::string_view method() const = 0;
  // The suffixes of all tensors that may hold parts of a linear. A tensor's name is the module's name + suffix.
  virtual std::span<const std::string_view> suffixes() const = 0;
  // Returns the reasons why that engine does not read modules of that scheme; none: it does. By default only pare reads
  // them.
  virtual std::vector<std::string> unread_by(Engine engine, const PackScheme& scheme) const;
  // False for a container that no recipe may ask for: it is only read, or holds what no pass makes.
  virtual bool is_for_recipes() const { return true; }
  // Returns the packages that transformers needs beside itself, as pip names them.
  virtual std::span<const std::string_view> packages() const { return {}; }
  // Returns on which conditions that engine reads them: "only with the package gptqmodel installed".
  virtual std::vector<std::string> read_only(Engine, const PackScheme&) const { return {}; }
  // True if vLLM multiplies such weights by Marlin; it multiplies others by its Humming kernels alone.
  virtual bool runs_on_marlin(const PackScheme&) const { return false; }

  // --- what a container holds ---

  // Returns the scheme as this container states it. What the container does not record is dropped (AWQ: the order of
  // columns). What it always states is added (AWQ: zeros). Among formats that it distinguishes, the writer's one is
  // chosen. What accepts() refuses stays. `wanted.container` becomes name(). The function is idempotent.
  virtual PackScheme adapted(PackScheme wanted) const = 0;
  // True if weights of that pattern are stored without the values that are not kept. By default none are. Their zeros
  // are then stored like other weights, by a scheme without a pattern, which promises no pattern to readers.
  virtual bool packs(const SparsePattern& pattern) const;
  // Changes the linear to the form in which the container states it. Call it before a linear is hashed or stored.
  // `scheme` is an adapted one. The values W do not change (but a -0 of a packed dense weight becomes +0). By default
  // the weight's pattern becomes the scheme's, which may be none.
  virtual void adapt(StoredLinear& linear, const PackScheme& scheme) const;
  // The type to which scales must be rounded before codes are chosen. By default it is a model's own 16-bit type, and
  // for float32 models BF16, which every engine takes.
  virtual DType scale_dtype(DType model_dtype) const;

  // Tells if a linear of adapted(scheme) can be stored in the bits that the scheme states and read back equal. An
  // input's outlier rule counts. Its threshold does not, since it may still be open; but see accepts_together.
  Acceptance accepts(const PackScheme& scheme) const;
  // Tells the same for a weight [num_out, num_in].
  Acceptance accepts(const PackScheme& scheme, int64_t num_out, int64_t num_in) const;
  // Tells if one checkpoint can hold these modules, each of them accepted. Containers may need one group size (AWQ),
  // one threshold (bitsandbytes), or no embeddings (all but compressed-tensors). The reason names two modules that
  // differ. Modules of another container are refused.
  Acceptance accepts_together(std::span<const StoredModule> modules) const;
  // Returns the exact bytes of the tensors that store() makes of a linear with adapted(scheme). For a dense weight,
  // which is not among them, that is 0 unless its input has a stored scale. Throws std::invalid_argument for a scheme
  // that is not accepted.
  int64_t stored_bytes(const PackScheme& scheme, int64_t num_out, int64_t num_in,
                       const StoredExtent& extent = {}) const;

  // --- tensors ---

  // Returns the tensors of `module`, without a dense weight. Throws std::invalid_argument for a scheme that is not
  // accepted, and if linear and scheme disagree. Also throws what the container's writer throws (values that its types
  // do not hold).
  std::vector<OwnedTensor> store(const StoredLinear& linear, const PackScheme& scheme, const std::string& module) const;
  // Checks that the module's tensors are there with the dtypes and shapes of a weight [num_out, num_in]. Reads nothing
  // of the size of the weight. Throws std::runtime_error (tensor, expected, found).
  virtual void check(const FindTensor& find, const PackScheme& scheme, int64_t num_out, int64_t num_in,
                     const std::string& module) const = 0;
  // Does the inverse of store(), after the check above, and checks every value. Throws std::runtime_error.
  virtual StoredLinear load(const FindTensor& find, const PackScheme& scheme, int64_t num_out, int64_t num_in,
                            const std::string& module) const = 0;

  // --- config.json ---

  // Returns the JSON object for the key "quantization_config". `ignore` names the linears left unquantized. Throws
  // std::invalid_argument without modules, and for modules that are not accepted together.
  std::string config_json(std::span<const StoredModule> modules, std::span<const std::string> ignore) const;
  // True if a quantization_config is this container's. `json` is the object's text, for containers that share a
  // quant_method. By default it compares with method().
  virtual bool recognizes(std::string_view quant_method, const std::string& json) const;
  // `where` names the file. Throws std::invalid_argument for what this runtime does not support, and names it.
  virtual std::unique_ptr<ContainerConfig> read_config(const std::string& json, const std::string& where) const = 0;

 private:
  // The container's own part of the public functions of these names. They are called with adapted schemes, positive
  // shapes and groups that divide them. An empty text means that nothing is wrong.
  virtual std::string why_not(const PackScheme& scheme) const = 0;
  virtual std::string why_not_shape(const PackScheme& scheme, int64_t num_out, int64_t num_in) const;
  virtual std::string why_not_together(std::span<const StoredModule> modules) const;
  virtual int64_t size_bytes(const PackScheme& scheme, int64_t num_out, int64_t num_in,
                             const StoredExtent& extent) const = 0;
  virtual std::vector<OwnedTensor> pack(const StoredLinear& linear, const PackScheme& scheme,
                                        const std::string& module) const = 0;
  virtual std::string write_config(std::span<const StoredModule> modules,
                                   std::span<const std::string> ignore) const = 0;
};

// --- for implementations ---

inline bool is_transformers(Engine engine) {
  return engine == Engine::transformers || engine == Engine::transformers_encoders;
}
// Returns what read_only() says where transformers needs these packages besides itself and compressed-tensors.
std::vector<std::string> only_with(std::span<const std::string_view> packages, Engine engine);

// The formats from which transformers reads experts (integrations/compressed_tensors.py: DecompressExperts).
inline constexpr std::string_view kExpertFormats =
    "experts are read from pack-quantized and float-quantized files only";

// Parses the text of a quantization_config. Throws std::invalid_argument, with `where`, for what parse_json refuses.
nlohmann::json parse_config_text(const std::string& json, const std::string& where);

// Throws std::invalid_argument unless the linear is what the scheme describes: code type, bits, group size, symmetry,
// group_of_I, pattern, input. Throws std::runtime_error for an invalid weight (validate).
void require_agreement(const StoredLinear& linear, const PackScheme& scheme, const std::string& module);

// Serves configurations that say one thing of all modules. Returns the first module that is an embedding or is stored
// otherwise than the first module, in the words of accepts_together(), after `because` ("AWQ's configuration says
// ..."). Empty: there is none.
std::string difference_of(std::span<const StoredModule> modules, const std::string& because);

// Serves configurations that say one thing of all modules and whose tensors tell which modules are quantized. Returns
// true if the module has the tensor with that suffix. Throws std::runtime_error if it has one but is named as
// unquantized.
bool has_quantized_tensor(const FindTensor& find, const std::string& module, std::string_view suffix,
                          bool is_named_unquantized);

}  // namespace pare::runtime
