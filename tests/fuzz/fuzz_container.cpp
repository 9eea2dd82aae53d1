#include <fuzzer/FuzzedDataProvider.h>

#include <array>
#include <map>

#include "runtime/containers/container_table.h"
#include "runtime/containers/mlx.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/zero_linear.h"

namespace {

using pare::runtime::DType;

constexpr const char* kModule = "model.layers.0.mlp.down_proj";

// Tensors of any type and shape under the names that the container looks for.
struct Tensors {
  std::map<std::string, std::pair<pare::runtime::TensorView, std::unique_ptr<std::byte[]>>> by_name;

  void add(FuzzedDataProvider& input, const std::string& name, int64_t num_out, int64_t num_in) {
    constexpr std::array kTypes = {DType::F32, DType::F16, DType::BF16, DType::I32,     DType::I64, DType::I16,
                                   DType::I8,  DType::U8,  DType::BOOL, DType::F8_E4M3, DType::U32};
    pare::runtime::TensorView view;
    view.dtype = input.PickValueInArray(kTypes);
    const int num_dimensions = input.ConsumeIntegralInRange<int>(0, 3);
    for (int d = 0; d < num_dimensions; ++d) {
      const std::array<int64_t, 12> sizes = {num_out,    num_in,     num_out / 2, num_in / 2,
                                             num_in / 4, num_in / 8, num_out / 8, num_in / 16,
                                             1,          2,          0,           num_in / 32};
      view.shape.push_back(input.PickValueInArray(sizes));
    }
    const size_t num_bytes = static_cast<size_t>(view.num_elements()) * pare::runtime::dtype_size_bytes(view.dtype);
    std::unique_ptr<std::byte[]> data(new std::byte[num_bytes]());
    const auto bytes = input.ConsumeBytes<uint8_t>(num_bytes);
    if (!bytes.empty()) std::memcpy(data.get(), bytes.data(), bytes.size());
    view.data = {data.get(), num_bytes};
    by_name[name] = {view, std::move(data)};
  }

  // Adds the tensor as it is, or with its first bytes taken from the input, or another one altogether.
  void add_changed(FuzzedDataProvider& input, const pare::runtime::OwnedTensor& tensor, int64_t num_out,
                   int64_t num_in) {
    const int change = input.ConsumeIntegralInRange<int>(0, 9);
    if (change == 9) return;
    if (change == 8) return add(input, tensor.name, num_out, num_in);
    std::unique_ptr<std::byte[]> data(new std::byte[tensor.data.size()]);
    if (!tensor.data.empty()) std::memcpy(data.get(), tensor.data.data(), tensor.data.size());
    if (change >= 3) {
      const auto bytes = input.ConsumeBytes<uint8_t>(tensor.data.size());
      if (!bytes.empty()) std::memcpy(data.get(), bytes.data(), bytes.size());
    }
    const pare::runtime::TensorView view = {tensor.dtype, tensor.shape, {data.get(), tensor.data.size()}};
    by_name[tensor.name] = {view, std::move(data)};
  }
};

// MLX's files are read alone, so that the container makes no tensors: here are those of a symmetric weight of zeros.
std::vector<pare::runtime::OwnedTensor> mlx_tensors(const pare::runtime::PackScheme& scheme, int64_t num_out,
                                                    int64_t num_in) {
  const int64_t num_groups = scheme.num_groups(num_in);
  const auto num_scales = static_cast<size_t>(num_out * num_groups);
  const std::vector<float> scales(num_scales, 1.0f), biases(num_scales, -static_cast<float>(1 << (scheme.bits - 1)));
  const auto floats = [&](std::string_view suffix, std::span<const float> values) {
    const std::span<const std::byte> bytes = std::as_bytes(values);
    return pare::runtime::OwnedTensor{
        kModule + std::string(suffix), DType::F32, {num_out, num_groups}, {bytes.begin(), bytes.end()}};
  };
  const int64_t num_words = num_in * scheme.bits / 32;
  std::vector<pare::runtime::OwnedTensor> tensors;
  tensors.push_back({kModule + std::string(pare::runtime::kMlxWeightSuffix),
                     DType::U32,
                     {num_out, num_words},
                     std::vector<std::byte>(static_cast<size_t>(4 * num_out * num_words))});
  tensors.push_back(floats(pare::runtime::kMlxScalesSuffix, scales));
  tensors.push_back(floats(pare::runtime::kMlxBiasesSuffix, biases));
  return tensors;
}

// Reads a module of MLX as its configuration says, and the floats of one whose biases are free.
void decode_mlx(FuzzedDataProvider& input, const pare::runtime::PackScheme& wanted, int64_t num_out, int64_t num_in) {
  if (wanted.bits < 2 || wanted.bits > 8 || wanted.group_size <= 0 || num_in % wanted.group_size != 0) return;
  Tensors tensors;
  for (const pare::runtime::OwnedTensor& tensor : mlx_tensors(wanted, num_out, num_in)) {
    tensors.add_changed(input, tensor, num_out, num_in);
  }
  const pare::runtime::FindTensor find = [&](const std::string& name) -> const pare::runtime::TensorView* {
    const auto found = tensors.by_name.find(name);
    return found == tensors.by_name.end() ? nullptr : &found->second.first;
  };
  const std::string bits = std::to_string(wanted.bits), group = std::to_string(wanted.group_size);
  const pare::runtime::MlxConfig config("{\"bits\": " + bits + ", \"group_size\": " + group + "}", "input");
  if (const auto floats = config.free_biases(kModule, find)) floats->make_f32();
  const std::optional<pare::runtime::PackScheme> scheme = config.scheme_of(kModule, "Linear", find);
  if (!scheme) return;
  pare::runtime::dequantize(pare::runtime::mlx_container().load(find, *scheme, num_out, num_in, kModule).weight);
}

// Decodes the tensors that the container itself makes from a weight, with bytes, types and shapes changed.
void decode(FuzzedDataProvider& input) {
  const auto containers = pare::runtime::container_formats();
  const pare::runtime::ContainerFormat& container =
      *containers[input.ConsumeIntegralInRange<size_t>(0, containers.size() - 1)];
  const auto num_out = input.PickValueInArray<int64_t>({1, 8, 16, 32, 48});
  const auto num_in = input.PickValueInArray<int64_t>({4, 8, 16, 32, 64, 128, 96, 256});
  pare::runtime::PackScheme wanted;
  wanted.bits = input.PickValueInArray({4, 8, 2, 3, 16, 0, 5, 6});
  wanted.group_size = input.PickValueInArray<int64_t>({pare::runtime::kPerChannel, 8, 16, 32, 64, 128});
  wanted.symmetric = input.ConsumeBool();
  const auto codes = pare::runtime::weight_codes();
  const auto place = input.ConsumeIntegralInRange<size_t>(0, codes.size());  // the last: no code
  wanted.code = place == codes.size() ? nullptr : codes[place];
  wanted.layout = input.PickValueInArray({pare::runtime::CodeLayout::packed, pare::runtime::CodeLayout::bytes});
  if (input.ConsumeBool()) wanted.pattern = pare::runtime::kTwoOfFour;
  if (input.ConsumeBool()) wanted.act_order = pare::runtime::StoredActOrder::group;
  wanted.per_tensor = input.ConsumeBool();
  wanted.input.type = input.PickValueInArray({pare::runtime::InputType::plain, pare::runtime::InputType::int8,
                                              pare::runtime::InputType::fp8, pare::runtime::InputType::nvfp4});
  wanted.input.symmetric = input.ConsumeBool();
  if (&container == &pare::runtime::mlx_container()) return decode_mlx(input, wanted, num_out, num_in);
  const pare::runtime::PackScheme scheme = container.adapted(wanted);
  if (!container.accepts(scheme, num_out, num_in)) return;
  Tensors tensors;
  for (const pare::runtime::OwnedTensor& tensor :
       container.store(pare::zero_linear(container, scheme, num_out, num_in), scheme, kModule)) {
    tensors.add_changed(input, tensor, num_out, num_in);
  }
  for (const std::string_view suffix : container.suffixes()) {
    if (input.ConsumeIntegralInRange<int>(0, 7) == 7)
      tensors.add(input, kModule + std::string(suffix), num_out, num_in);
  }
  const pare::runtime::FindTensor find = [&](const std::string& name) -> const pare::runtime::TensorView* {
    const auto found = tensors.by_name.find(name);
    return found == tensors.by_name.end() ? nullptr : &found->second.first;
  };
  container.check(find, scheme, num_out, num_in, kModule);
  const pare::runtime::StoredLinear linear = container.load(find, scheme, num_out, num_in, kModule);
  if (!scheme.is_dense()) pare::runtime::dequantize(linear.weight);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  return pare::fuzz(data, size, [](std::span<const std::byte> bytes) {
    FuzzedDataProvider input(reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size());
    decode(input);
  });
}
