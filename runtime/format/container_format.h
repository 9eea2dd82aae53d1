// The containers: whose files a quantized checkpoint looks like. One class holds all that is known of one container,
// and one table (container_format.cpp) lists them: a new container is one file and one row. Nothing outside of
// runtime/format tells containers apart.
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

namespace pare {

// The tensor of that name, or null.
using FindTensor = std::function<const TensorView*(const std::string& name)>;

// Yes; or no, and why: what the container expects, what was found and what would fit instead, in a few words without
// the layer's name ("AWQ GEMM holds 4 bits, found 8: use the container compressed-tensors").
struct Acceptance {
  std::string reason = {};  // empty: yes
  explicit operator bool() const { return reason.empty(); }
};

// What the size of a stored linear depends on beside its scheme and shape. Types that a container fixes are not read.
struct StoredExtent {
  DType scale_dtype = DType::BF16;        // of the weight's scales: QuantizedWeight::scale_dtype
  DType input_scale_dtype = DType::BF16;  // StoredLinear::input_scale_dtype
  int64_t num_outlier_columns = 0;        // of OutlierRule::columns: J, which calibration finds
  DType outlier_dtype = DType::BF16;      // the narrowest of BF16, F16 and F32 that holds the outlier columns' weights
  DType dense_dtype = DType::BF16;        // of dense weights whose pattern is packed: StoredLinear::dense_dtype
};

// Who else reads checkpoints. transformers has ways of its own for encoders and for the experts of a mixture.
enum class Engine { transformers, transformers_encoders, transformers_experts, vllm, llama_cpp };

// A quantization_config as read.
class ContainerConfig {
 public:
  virtual ~ContainerConfig() = default;
  // How the module is stored; nullopt: as it was, unquantized. class_name is the module's in PyTorch: "Linear" or
  // "Embedding". `find` looks into the checkpoint, for containers whose tensors say which modules are quantized.
  // Throws std::runtime_error where they contradict the configuration.
  virtual std::optional<PackScheme> scheme_of(const std::string& module, std::string_view class_name,
                                              const FindTensor& find) const = 0;
};

class ContainerFormat {
 public:
  virtual ~ContainerFormat() = default;

  // --- what it is called ---

  // In schemes, recipes and messages; unique and stable: "compressed-tensors", "awq-gemm", "bitsandbytes", "pare-int8",
  // "pare-sparse24".
  virtual std::string_view name() const = 0;
  // "quant_method" of its quantization_config: "compressed-tensors", "awq", "bitsandbytes", "pare-int8",
  // "pare-sparse24".
  virtual std::string_view method() const = 0;
  // The suffixes of all tensors that may hold parts of a linear: a tensor's name is the module's name + suffix.
  virtual std::span<const std::string_view> suffixes() const = 0;
  // Why that engine does not read modules of that scheme, a reason each; none: it does. By default nobody but pare
  // does.
  virtual std::vector<std::string> unread_by(Engine engine, const PackScheme& scheme) const;
  // The package that transformers reads it with, beside itself and compressed-tensors; empty: none.
  virtual std::string_view needed_package() const { return {}; }
  // Whether vLLM multiplies such weights by Marlin; others by its Humming kernels alone.
  virtual bool runs_on_marlin(const PackScheme&) const { return false; }

  // --- what it holds ---

  // The scheme as this container states it: what it does not record is dropped (AWQ: the order of columns), what it
  // always states is said (AWQ: zeros), and of formats that it tells apart the writer's one is chosen. Keeps what
  // accepts() refuses. `wanted.container` becomes name(). Idempotent.
  virtual PackScheme adapted(PackScheme wanted) const = 0;
  // Whether weights of that pattern are stored without what is not kept. By default none are: their zeros are stored
  // like other weights, by a scheme without a pattern, and no reader is promised any.
  virtual bool packs(const SparsePattern& pattern) const;
  // The linear as the container states it; to be called before a linear is hashed or stored. `scheme` is an adapted
  // one, and the values W are unchanged (a -0 of a packed dense weight becomes +0). By default the weight promises what
  // the scheme says: its pattern, or none.
  virtual void adapt(StoredLinear& linear, const PackScheme& scheme) const;
  // The type in which scales must be before codes are chosen: by default a model's own 16-bit type, and BF16, which
  // every engine takes, for float32 models.
  virtual DType scale_dtype(DType model_dtype) const;

  // Whether a linear of adapted(scheme) can be stored such that it takes the bits which the scheme says and reads back
  // equal. An input's outlier rule counts, its threshold does not (it may still be open), but see accepts_together.
  Acceptance accepts(const PackScheme& scheme) const;
  // The same of a weight [num_out, num_in].
  Acceptance accepts(const PackScheme& scheme, int64_t num_out, int64_t num_in) const;
  // Whether one checkpoint can hold these modules, each of them accepted: one group size (AWQ), one threshold
  // (bitsandbytes), no embeddings (all but compressed-tensors). The reason names two modules that differ. Modules of
  // another container are refused.
  Acceptance accepts_together(std::span<const StoredModule> modules) const;
  // The bytes of the tensors that store() makes of a linear with adapted(scheme): exact. 0 for a dense weight, which is
  // not among them, unless its input has a stored scale. Throws std::invalid_argument for what is not accepted.
  int64_t stored_bytes(const PackScheme& scheme, int64_t num_out, int64_t num_in,
                       const StoredExtent& extent = {}) const;

  // --- tensors ---

  // The tensors of `module`, without a dense weight. Throws std::invalid_argument for what is not accepted and where
  // linear and scheme disagree, and what the container's writer throws (values that its types do not hold).
  std::vector<OwnedTensor> store(const StoredLinear& linear, const PackScheme& scheme, const std::string& module) const;
  // Checks that the module's tensors are there with the dtypes and shapes of a weight [num_out, num_in]; reads nothing
  // of the size of the weight. Throws std::runtime_error (tensor, expected, found).
  virtual void check(const FindTensor& find, const PackScheme& scheme, int64_t num_out, int64_t num_in,
                     const std::string& module) const = 0;
  // The inverse of store(), after the check above and with every value checked. Throws std::runtime_error.
  virtual StoredLinear load(const FindTensor& find, const PackScheme& scheme, int64_t num_out, int64_t num_in,
                            const std::string& module) const = 0;

  // --- config.json ---

  // The JSON object for the key "quantization_config". `ignore` names the linears left unquantized. Throws
  // std::invalid_argument for no modules and for those that are not accepted together.
  std::string config_json(std::span<const StoredModule> modules, std::span<const std::string> ignore) const;
  // Whether a quantization_config is this container's. `json` is the object's text, for containers that share a
  // quant_method. By default equality with method().
  virtual bool recognizes(std::string_view quant_method, const std::string& json) const;
  // `where` names the file. Throws std::invalid_argument for what this runtime does not support, by name.
  virtual std::unique_ptr<ContainerConfig> read_config(const std::string& json, const std::string& where) const = 0;

 private:
  // What the public functions of these names add to: schemes are adapted and shapes positive with groups that divide
  // them. An empty text: nothing is wrong.
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

// The table: those of this file's folder and those registered, in that order.
std::span<const ContainerFormat* const> container_formats();
// The one of that name. Throws std::invalid_argument with the known names.
const ContainerFormat& container_format(std::string_view name);
// The one whose quantization_config this is, or null.
const ContainerFormat* find_container(std::string_view quant_method, const std::string& json);
// Adds a row for this process; `format` must outlive its use. Twice the same object is once. To be called before other
// threads look at the table. Throws std::invalid_argument for a name that another container has.
void register_container(const ContainerFormat& format);

// --- for implementations ---

// What transformers reads experts from (integrations/compressed_tensors.py: DecompressExperts).
inline constexpr std::string_view kExpertFormats =
    "experts are read from pack-quantized and float-quantized files only";

// A quantization_config's text. Throws std::invalid_argument, with `where`, for what parse_json refuses.
nlohmann::json parse_config_text(const std::string& json, const std::string& where);

// Throws std::invalid_argument unless the linear is what the scheme describes: code type, bits, group size, symmetry,
// group_of_I, pattern, input; and std::runtime_error for an invalid weight (validate).
void require_agreement(const StoredLinear& linear, const PackScheme& scheme, const std::string& module);

// For configurations that say one thing of all modules: the first linear that is stored otherwise than the first
// module, or embedding, as accepts_together() reports it, after `because` ("AWQ's configuration says ..."). Empty:
// there is none.
std::string difference_of(std::span<const StoredModule> modules, const std::string& because);

// For configurations that say one thing of all modules and leave it to the tensors which are quantized: whether the
// module has the one of that suffix. Throws std::runtime_error when it has although it is named among the unquantized.
bool has_quantized_tensor(const FindTensor& find, const std::string& module, std::string_view suffix,
                          bool is_named_unquantized);

}  // namespace pare
