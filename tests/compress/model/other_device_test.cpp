// Blocks walk through a device that is not the CPU and whose memory LibTorch's copies alone can reach: its tensors have
// values, which operators compute on a CPU, but addresses that no program may read. Whatever reads or writes values by
// itself, or leaves the tensors' device, fails here.
#include <ATen/EmptyTensor.h>
#include <ATen/core/grad_mode.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/native/CPUFallback.h>
#include <ATen/ops/_reshape_alias_native.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/as_strided_native.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/view_native.h>
#include <c10/core/DeviceType.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/library.h>

#include <cstdlib>
#include <stdexcept>

#include "compress/model/decoder_functions.h"
#include "compress/walk/encoder_block.h"
#include "runtime/files/npy.h"
#include "tests/places.h"
#include "tests/runtime/engine/tiny_encoder.h"

namespace pare::test {
using namespace compress;
using namespace runtime;
namespace {

// What tensors of the device take for an address is so much higher than where their values are: beyond what a process
// can map.
constexpr uintptr_t kOffset = uintptr_t{1} << 56;

struct FarMemory : c10::Allocator {
  c10::DataPtr allocate(size_t num_bytes) override {
    void* const memory = std::malloc(num_bytes + 1);
    const auto free_memory = [](void* context) { std::free(context); };
    return {reinterpret_cast<void*>(reinterpret_cast<uintptr_t>(memory) + kOffset), memory, free_memory,
            at::Device(at::kPrivateUse1, 0)};
  }
  void copy_data(void*, const void*, size_t) const override { throw std::logic_error("far memory is not copied raw"); }
};
FarMemory far_memory;

// One device, on which everything is done when it has been asked for: events have nothing to wait for.
struct FarGuard : c10::impl::NoOpDeviceGuardImpl<at::kPrivateUse1> {
  c10::Device getDevice() const override { return {at::kPrivateUse1, 0}; }
  c10::Device exchangeDevice(c10::Device) const override { return getDevice(); }
  c10::Stream getStream(c10::Device) const noexcept override { return c10::Stream(c10::Stream::DEFAULT, getDevice()); }
  c10::Stream exchangeStream(c10::Stream stream) const noexcept override { return stream; }
  void record(void**, const c10::Stream&, c10::DeviceIndex, c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }
  void destroyEvent(void*, c10::DeviceIndex) const noexcept override {}
};
C10_REGISTER_GUARD_IMPL(PrivateUse1, FarGuard)

// Autograd asks whether the device is there.
struct FarHooks : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
};
FarHooks far_hooks;
const bool is_registered = [] {
  c10::register_privateuse1_backend("far");
  at::RegisterPrivateUse1HooksInterface(&far_hooks);
  return true;
}();

// The tensor's values as a CPU sees them; itself if it is on a CPU.
at::Tensor near(const at::Tensor& x) {
  if (x.is_cpu()) return x;
  const auto address = reinterpret_cast<uintptr_t>(x.const_data_ptr());
  return at::from_blob(reinterpret_cast<void*>(x.numel() == 0 ? 0 : address - kOffset), x.sizes(), x.strides(),
                       at::TensorOptions(at::kCPU).dtype(x.scalar_type()));
}

constexpr c10::DispatchKeySet kKeys(c10::DispatchKey::PrivateUse1);

at::Tensor empty(at::IntArrayRef size, std::optional<at::ScalarType> type, std::optional<at::Layout>,
                 std::optional<at::Device>, std::optional<bool>, std::optional<at::MemoryFormat> format) {
  return at::detail::empty_generic(size, &far_memory, kKeys, type.value_or(at::kFloat), format);
}

at::Tensor empty_strided(at::IntArrayRef size, at::IntArrayRef stride, std::optional<at::ScalarType> type,
                         std::optional<at::Layout>, std::optional<at::Device>, std::optional<bool>) {
  return at::detail::empty_strided_generic(size, stride, &far_memory, kKeys, type.value_or(at::kFloat));
}

at::Tensor copy_from(const at::Tensor& source, const at::Tensor& target, bool) {
  near(target).copy_(near(source));
  return target;
}

// Only of results that have no size yet.
const at::Tensor& resize(const at::Tensor& x, at::IntArrayRef size, std::optional<at::MemoryFormat>) {
  const at::Tensor resized = empty(size, x.scalar_type(), {}, {}, {}, {});
  x.unsafeGetTensorImpl()->set_storage_keep_dtype(resized.storage());
  x.unsafeGetTensorImpl()->set_sizes_contiguous(size);
  return x;
}

at::Tensor copy_from_and_resize(const at::Tensor& source, const at::Tensor& target) {
  if (target.sizes() != source.sizes()) resize(target, source.sizes(), {});
  return copy_from(source, target, false);
}

void by_cpu(const c10::OperatorHandle& operation, torch::jit::Stack* stack) {
  at::native::cpu_fallback(operation, stack);
}

TORCH_LIBRARY_IMPL(_, PrivateUse1, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&by_cpu>());
}

TORCH_LIBRARY_IMPL(aten, PrivateUse1, library) {
  library.impl("empty.memory_format", &empty);
  library.impl("empty_strided", &empty_strided);
  library.impl("_copy_from", &copy_from);
  library.impl("_copy_from_and_resize", &copy_from_and_resize);
  library.impl("as_strided", &at::native::as_strided_tensorimpl);
  library.impl("resize_", &resize);
  library.impl("view", &at::native::view);
  library.impl("_reshape_alias", &at::native::_reshape_alias);
}

const at::Device kFar(at::kPrivateUse1, 0);
const std::filesystem::path kFamilies = std::filesystem::path(kSourceFolder) / "tests" / "golden" / "families";

// Sums are in another order than those of our kernels for a CPU, as in decoder_block_test.cpp.
void expect_near(const at::Tensor& found, const at::Tensor& expected, const std::string& what) {
  ASSERT_TRUE(found.device() == kFar) << what;
  const at::Tensor difference = found.to(at::kCPU).sub(expected).abs();
  EXPECT_LE(difference.max().item<double>(), 1e-4 * std::max(1e-3, expected.abs().max().item<double>())) << what;
}

class FarDevice : public testing::TestWithParam<const char*> {};

TEST_P(FarDevice, DecodersWalkThroughIt) {
  const Checkpoint checkpoint = Checkpoint::open(kFamilies / GetParam());
  const ModelDescription& model = checkpoint.description();
  const TokenWindows windows = read_npy(kFamilies / GetParam() / "ids.npy");
  at::Tensor ids_BT = at::empty({windows.num_windows, windows.num_tokens}, at::kLong);
  std::copy(windows.ids_NT.begin(), windows.ids_NT.end(), ids_BT.data_ptr<int64_t>());
  const at::Tensor table_VD = read_table(checkpoint, checkpoint.embedding(), at::kFloat);
  for (const AttentionKernel kernel : {AttentionKernel::fused, AttentionKernel::by_query_blocks}) {
    std::vector<at::Tensor> of_cpu;
    for (const at::Device device : {at::Device(at::kCPU), kFar}) {
      const at::AutoGradMode with_gradients(true);
      const DecoderFunctions functions(model, windows.num_tokens, at::kFloat, device, kernel);
      std::vector<at::Tensor> leaves;
      std::vector<std::string> names;
      at::Tensor hidden_BTD = functions.embed(ids_BT.to(device), table_VD.to(device));
      for (size_t b = 0; b < model.blocks.size(); ++b) {
        NamedTensors weights = read_block(checkpoint, static_cast<int64_t>(b), at::kFloat);
        for (auto& [name, tensor] : weights) {
          leaves.push_back(tensor = tensor.to(device).requires_grad_(true));
          names.push_back(name);
        }
        hidden_BTD = functions.block(static_cast<int64_t>(b), weights, hidden_BTD);
      }
      std::vector<at::Tensor> results =
          torch::autograd::grad({hidden_BTD.square().mean()}, leaves, {}, false, false, /*allow_unused=*/true);
      results.push_back(hidden_BTD.detach());
      names.emplace_back("hidden states");
      if (device.is_cpu()) {
        of_cpu = results;
        continue;
      }
      for (size_t i = 0; i < results.size(); ++i) {
        ASSERT_EQ(results[i].defined(), of_cpu[i].defined()) << names[i];
        if (results[i].defined()) expect_near(results[i], of_cpu[i], names[i]);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, FarDevice,
                         testing::Values("llama_mqa_biases", "gemma3_local_global", "qwen3_norms_bf16",
                                         "mixtral_experts"));

// Rounding has steps, so that inputs must be the same to be compared.
TEST(FarDeviceOfRounding, GivesTheBitsOfTheCpu) {
  const at::Tensor x_BTI = at::arange(0, 2 * 3 * 8, at::kFloat).sin().view({2, 3, 8});
  const InputFormat format = {.type = InputType::int8};
  const at::Tensor rounded_BTI = round_input(x_BTI.to(kFar), &format);
  ASSERT_TRUE(rounded_BTI.device() == kFar);
  EXPECT_TRUE(rounded_BTI.to(at::kCPU).equal(round_input(x_BTI, &format)));
}

TEST(FarDeviceOfEncoders, WalkThroughIt) {
  const at::NoGradGuard no_grad;
  const Checkpoint checkpoint = Checkpoint::open(tiny_encoder_path());
  const EncoderBlock block(checkpoint, 0);
  NamedTensors weights;
  for (const auto& [name, tensor] : block.tensors()) weights[name] = tensor.to(kFar);
  const EncoderFunctions far(checkpoint.encoder(), block.description(), weights, block.input_formats());
  const EncoderFunctions near = block.functions();
  at::Tensor hidden_TD = at::empty({9, 64}, at::kFloat);
  EncoderEmbedding(checkpoint).embed(read_encoder_golden().ids[0], hidden_TD);
  const auto forward = [](const EncoderFunctions& functions, const at::Tensor& hidden) {
    const at::Tensor attended = functions.add_output(Stage::attention_output, functions.attention(hidden), hidden);
    return functions.add_output(Stage::feed_forward_output, functions.activation(attended), attended);
  };
  expect_near(forward(far, hidden_TD.to(kFar)), forward(near, hidden_TD), "hidden states");
}

}  // namespace
}  // namespace pare::test
