#include "runtime/cuda/cuda_backend.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

#include "runtime/cuda/cuda_experts.h"
#include "runtime/cuda/cuda_linear.h"
#include "runtime/cuda/kernels.h"
#include "runtime/engine/backend_checks.h"

namespace pare::runtime {
namespace {

void require(cudaError_t status, const std::string& what) {
  if (status == cudaSuccess) return;
  static_cast<void>(cudaGetLastError());
  throw std::runtime_error("CUDA: " + what + ": " + cuda_error_text(status));
}

// Checks a call whose status may also report what an earlier kernel did.
void require_call(cudaError_t status, const std::string& call) {
  require(status,
          (is_of_earlier_kernel(status) ? "an operation failed before the backend came to " : "cannot ") + call);
}

void require_argument(bool condition, const std::string& message) {
  if (!condition) throw std::invalid_argument(message);
}

const CudaLinear& cuda_linear(const PackedLinear& packed) {
  const auto* linear = dynamic_cast<const CudaLinear*>(&packed);
  require_argument(linear != nullptr,
                   "CUDA backend: expected a linear that it packed itself, found " + packed.kernel_name());
  return *linear;
}

NormView view_of(const PackedNorm* norm) {
  return norm == nullptr ? NormView{}
                         : NormView{norm->gain_D.get(), norm->bias_D.size() > 0 ? norm->bias_D.get() : nullptr,
                                    norm->epsilon, norm->centers};
}

RoundingTarget target_of(const LinearInput& x) {
  return x.consumer() != nullptr ? cuda_linear(*x.consumer()).rounding() : RoundingTarget{};
}

RoundedRows rows_of(LinearInput& x, int64_t width) {
  return {x.x(), x.codes(), LinearInput::code_stride(width), x.scales(), x.zeros()};
}

struct OutlierNotes final : RoundingNotes {
  Buffer<double> squares_R;
  Buffer<float> limits_N;
  Buffer<uint8_t> columns_NI;
};

// A step whose last run needed nothing of the host but launches, and from the next run on those launches as a graph.
// They name memory that the backend may replace when it allocates.
struct StepGraph final : RecordedStep {
  explicit StepGraph(int64_t allocations) : num_allocations(allocations) {}
  StepGraph(const StepGraph&) = delete;
  StepGraph& operator=(const StepGraph&) = delete;
  ~StepGraph() override {
    if (graph != nullptr) static_cast<void>(cudaGraphExecDestroy(graph));
  }

  int64_t num_allocations;  // those of the backend so far
  cudaGraphExec_t graph = nullptr;
};

class CudaBackend final : public Backend {
 public:
  explicit CudaBackend(bool records_steps) : records_steps_(records_steps) {
    require(cudaStreamCreate(&stream_), "cannot make a stream");
  }
  CudaBackend(const CudaBackend&) = delete;
  CudaBackend& operator=(const CudaBackend&) = delete;
  ~CudaBackend() override { static_cast<void>(cudaStreamDestroy(stream_)); }

  std::string name() const override { return "cuda"; }

  BufferMemory allocate_bytes(int64_t num_bytes) override {
    require_argument(num_bytes >= 0, "allocate: expected 0 bytes or more, found " + std::to_string(num_bytes));
    ++num_allocations_;
    void* memory = nullptr;
    const auto size = static_cast<size_t>(std::max<int64_t>(num_bytes, 1));
    const cudaError_t status = cudaMalloc(&memory, size);
    require_call(status, "allocate " + std::to_string(num_bytes) + " bytes of device memory" +
                             (status == cudaErrorMemoryAllocation ? "; use a smaller model, context or batch" : ""));
    BufferMemory owned(static_cast<std::byte*>(memory), [](std::byte* bytes) { static_cast<void>(cudaFree(bytes)); });
    require_call(cudaMemsetAsync(memory, 0, size, stream_), "clear memory");
    return owned;
  }

  std::optional<int64_t> free_bytes() const override {
    size_t free = 0, total = 0;
    require_call(cudaMemGetInfo(&free, &total), "ask the device for its memory");
    return static_cast<int64_t>(free);
  }

  void upload_bytes(std::span<const std::byte> host, void* memory) override {
    if (host.empty()) return;
    ++num_copies_;
    require_call(cudaMemcpyAsync(memory, host.data(), host.size(), cudaMemcpyHostToDevice, stream_), "upload");
    require(cudaStreamSynchronize(stream_), "an operation before an upload failed");
  }

  void download_bytes(const void* memory, std::span<std::byte> host) override {
    if (host.empty()) return;
    ++num_copies_;
    require_call(cudaMemcpyAsync(host.data(), memory, host.size(), cudaMemcpyDeviceToHost, stream_), "download");
    require(cudaStreamSynchronize(stream_), "an operation before a download failed");
  }

  // The first runs go launch by launch: kernels are loaded then, and scratch memory grows. Neither may happen while a
  // step is recorded. A step that allocates or copies each time is never recorded.
  void run_step(std::unique_ptr<RecordedStep>& recorded, const std::function<void()>& step) override {
    if (!records_steps_) return step();
    auto* known = dynamic_cast<StepGraph*>(recorded.get());
    if (known == nullptr || known->num_allocations != num_allocations_) {
      recorded.reset();
      const std::pair before(num_allocations_, num_copies_);
      step();
      const bool is_steady = before == std::pair(num_allocations_, num_copies_);
      if (is_steady) recorded = std::make_unique<StepGraph>(num_allocations_);
      return;
    }
    if (known->graph == nullptr) known->graph = record(step);
    require_call(cudaGraphLaunch(known->graph, stream_), "launch the graph of a step");
  }

  std::unique_ptr<PackedLinear> pack(std::span<const LinearWeights> parts) override {
    return std::make_unique<CudaLinear>(*this, parts);
  }

  void embed(const PackedLinear& table_VD, std::span<const int32_t> ids_R, float scale, float* hidden_RD) override {
    const CudaLinear& table = cuda_linear(table_VD);
    require_argument(table.parts().size() == 1, "embed: expected one table, found a stack");
    launch_embed(stream_, table.views(), ids_R.data(), static_cast<int64_t>(ids_R.size()), table.num_in(), scale,
                 hidden_RD);
  }

  void add_norm(float* hidden_RD, const float* delta_RD, const PackedNorm* delta_norm, const PackedNorm* norm,
                int64_t num_rows, int64_t width, LinearInput& x_RD) override {
    check_norm(delta_norm, width, "add_norm");
    check_norm(norm, width, "add_norm");
    launch_add_norm(stream_, hidden_RD, delta_RD, view_of(delta_norm), view_of(norm), num_rows, width, target_of(x_RD),
                    rows_of(x_RD, width));
    if (norm != nullptr) round_beside_others(x_RD, num_rows, width);
  }

  void add_rows(float* hidden_RD, const float* delta_RD, const PackedNorm* delta_norm, int64_t num_rows, int64_t width,
                LinearInput& x_RD) override {
    check_norm(delta_norm, width, "add_rows");
    launch_add_rows(stream_, hidden_RD, delta_RD, view_of(delta_norm), num_rows, width, target_of(x_RD),
                    rows_of(x_RD, width));
    round_beside_others(x_RD, num_rows, width);
  }

  void add_positions(const PackedLinear& table_PD, std::span<const int32_t> positions_R, int64_t first_position,
                     float* hidden_RD) override {
    const CudaLinear& table = cuda_linear(table_PD);
    require_argument(table.parts().size() == 1, "add_positions: expected one table, found a stack");
    launch_add_positions(stream_, table.views(), positions_R.data(), static_cast<int64_t>(positions_R.size()),
                         table.num_in(), first_position, hidden_RD);
  }

  void scale(float* x, int64_t size, float factor) override { launch_scale(stream_, x, size, factor); }

  void norm_columns(float* x, int64_t row_width, int64_t first, const PackedNorm& norm, int64_t num_rows) override {
    check_columns(row_width, first, norm);
    launch_norm_columns(stream_, x, row_width, first, view_of(&norm), norm.gain_D.size(), num_rows);
  }

  void take_columns(const float* x, int64_t row_width, const ColumnParts& columns, int64_t num_rows,
                    LinearInput& y) override {
    check_parts_of_row(row_width, columns);
    const int64_t width = columns.num_columns();
    launch_take_columns(stream_, x, row_width, columns, num_rows, target_of(y), rows_of(y, width));
    round_beside_others(y, num_rows, width);
  }

  void join_latents(const LatentRows& rows, const LatentShape& shape, const int32_t* channels_K, int64_t num_rows,
                    float* qkv_RC) override {
    check_latents(rows, shape);
    launch_join_latents(stream_, rows, shape, channels_K, num_rows, qkv_RC);
  }

  void linear(const PackedLinear& packed, const LinearInput& x_RI, int64_t num_rows, float* y_RO) override {
    const CudaLinear& weights = cuda_linear(packed);
    check_input(packed, x_RI);
    multiply(weights, x_RI, num_rows, y_RO);
  }

  void rope_store(const float* qkv_RC, const PackedRope& rope, const PackedNorm* q_norm, const PackedNorm* k_norm,
                  const AttentionShape& shape, std::span<const int32_t> positions_R, std::span<const int32_t> slots_R,
                  KvLayer& cache, float* q_RHK) override {
    check_head_size(shape, "rope_store");
    check_norm(q_norm, shape.head_size, "rope_store");
    check_norm(k_norm, shape.head_size, "rope_store");
    require_argument(rope.head_size == shape.head_size && positions_R.size() == slots_R.size(),
                     "rope_store: expected a rope table of head size " + std::to_string(shape.head_size) +
                         " and as many slots as positions, found " + std::to_string(rope.head_size) + ", " +
                         std::to_string(slots_R.size()) + " and " + std::to_string(positions_R.size()));
    launch_rope_store(stream_, qkv_RC, {rope.cosine.get(), rope.sine.get()}, view_of(q_norm), view_of(k_norm), shape,
                      positions_R.data(), slots_R.data(), static_cast<int64_t>(positions_R.size()), cache, q_RHK);
  }

  void attention(const float* q_RHK, const KvLayer& cache, const Sequences& sequences, const AttentionShape& shape,
                 LinearInput& x_RHK) override {
    check_head_size(shape, "attention");
    require_argument(!shape.products_in_8_bits || cache.is_int8(),
                     "attention: expected 8-bit keys and values for products in 8 bits, found floats");
    const int64_t num_floats = attention_scratch_floats(sequences, shape);
    if (attention_scratch_.size() < num_floats) attention_scratch_ = allocate(num_floats);
    launch_attention(stream_, q_RHK, cache, sequences, shape, attention_scratch_.get(), x_RHK.x());
    round(x_RHK, sequences.num_rows, shape.num_heads * shape.head_size);
  }

  void activate(const float* y_R2F, Activation activation, int64_t num_rows, int64_t width_F,
                LinearInput& z_RF) override {
    launch_activate(stream_, y_R2F, activation, true, num_rows, width_F, target_of(z_RF), rows_of(z_RF, width_F));
    round_beside_others(z_RF, num_rows, width_F);
  }

  void activate_ungated(const float* y_RF, Activation activation, int64_t num_rows, int64_t width_F,
                        LinearInput& z_RF) override {
    check_ungated(activation);
    launch_activate(stream_, y_RF, activation, false, num_rows, width_F, target_of(z_RF), rows_of(z_RF, width_F));
    round_beside_others(z_RF, num_rows, width_F);
  }

  void add_layer_norm(float* hidden_RD, const float* delta_RD, const PackedLayerNorm& norm, int64_t num_rows,
                      int64_t width, LinearInput* x_RD) override {
    check_layer_norm(norm, width);
    launch_add_layer_norm(stream_, hidden_RD, delta_RD, {norm.gain_D.get(), norm.bias_D.get(), norm.epsilon, true},
                          num_rows, width, x_RD != nullptr ? target_of(*x_RD) : RoundingTarget{},
                          x_RD != nullptr ? rows_of(*x_RD, width) : RoundedRows{});
    if (x_RD != nullptr) round_beside_others(*x_RD, num_rows, width);
  }

  void mean_rows(const float* hidden_RD, const Sequences& sequences, int64_t width, float* means_ND) override {
    launch_mean_rows(stream_, hidden_RD, sequences.table.data(), static_cast<int64_t>(sequences.table.size()), width,
                     means_ND);
  }

  void route(const RouterLogits& logits, int64_t num_rows, int64_t num_experts, const RoutingDescription& routing,
             int32_t* experts_RK, float* weights_RK) override {
    check_routing(num_experts, routing);
    launch_route(stream_, logits, num_rows, num_experts, routing, experts_RK, weights_RK);
  }

  void gather(const float* x_RD, std::span<const int32_t> rows_S, int64_t width, LinearInput& y_SD) override {
    const auto num_slots = static_cast<int64_t>(rows_S.size());
    launch_gather(stream_, x_RD, rows_S.data(), num_slots, width, target_of(y_SD), rows_of(y_SD, width));
    round_beside_others(y_SD, num_slots, width);
  }

  void mix(const float* x_SD, std::span<const int32_t> slots_RK, std::span<const float> weights_RK, int64_t num_rows,
           int64_t width, float* y_RD) override {
    check_mix(slots_RK, weights_RK, num_rows);
    const int64_t num_chosen = num_rows == 0 ? 0 : static_cast<int64_t>(slots_RK.size()) / num_rows;
    launch_mix(stream_, x_SD, slots_RK.data(), weights_RK.data(), num_rows, num_chosen, width, y_RD);
  }

  std::unique_ptr<ExpertWork> allocate_experts(const ExpertShape& shape) override {
    return std::make_unique<CudaExpertWork>(*this, shape);
  }

  void run_experts(std::span<const FeedForwardWeights> experts_E, const RoutingDescription& routing,
                   Activation activation, const RouterLogits& logits, const float* x_RD, const Sequences& sequences,
                   int64_t num_rows, ExpertWork& work, float* y_RD) override {
    check_routing(static_cast<int64_t>(experts_E.size()), routing);
    dynamic_cast<CudaExpertWork&>(work).run(stream_, experts_E, routing, activation, logits, x_RD, sequences, num_rows,
                                            y_RD);
  }

  void cross_entropy(const PackedLinear& head, const float* x_RD, std::span<const int32_t> targets_R,
                     float logit_softcap, float* nll_R, uint8_t* top1_R) override {
    const CudaLinear& weights = cuda_linear(head);
    check_head(head, "cross_entropy");
    check_ids(targets_R, weights.num_out(), "cross_entropy");
    const auto num_rows = static_cast<int64_t>(targets_R.size());
    const Buffer<int32_t> targets = uploaded(targets_R);
    const Buffer<float> nll = allocate(num_rows);
    const Buffer<uint8_t> top1 = allocate<uint8_t>(num_rows);
    const int64_t chunk = logit_rows(weights, num_rows);
    const Buffer<float> logits_RV = allocate(chunk * weights.num_out());
    for (int64_t first = 0; first < num_rows; first += chunk) {
      const int64_t num = std::min(chunk, num_rows - first);
      multiply_floats(weights, x_RD + first * weights.num_in(), num, logits_RV.get());
      launch_cross_entropy(stream_, logits_RV.get(), num, weights.num_out(), logit_softcap, targets.get() + first,
                           nll.get() + first, top1.get() + first);
    }
    download(nll.get(), std::span(nll_R, targets_R.size()));
    download(top1.get(), std::span(top1_R, targets_R.size()));
  }

  void compare(const PackedLinear& head_p, const float* x_RD, float softcap_p, const PackedLinear& head_q,
               const float* z_RE, float softcap_q, std::span<const int32_t> targets_R, float* kl_R,
               uint8_t* same_top1_R, float* nll_p_R, float* nll_q_R) override {
    const CudaLinear &weights_p = cuda_linear(head_p), &weights_q = cuda_linear(head_q);
    check_vocabularies(head_p, head_q);
    check_head(head_p, "compare");
    check_head(head_q, "compare");
    check_ids(targets_R, weights_p.num_out(), "compare");
    const auto num_rows = static_cast<int64_t>(targets_R.size());
    const Buffer<int32_t> targets = uploaded(targets_R);
    const Buffer<float> kl = allocate(num_rows), nll_p = allocate(num_rows), nll_q = allocate(num_rows);
    const Buffer<uint8_t> same_top1 = allocate<uint8_t>(num_rows);
    const int64_t chunk = logit_rows(weights_p, num_rows), num_vocabulary = weights_p.num_out();
    const Buffer<float> logits_p_RV = allocate(chunk * num_vocabulary), logits_q_RV = allocate(chunk * num_vocabulary);
    for (int64_t first = 0; first < num_rows; first += chunk) {
      const int64_t num = std::min(chunk, num_rows - first);
      multiply_floats(weights_p, x_RD + first * weights_p.num_in(), num, logits_p_RV.get());
      multiply_floats(weights_q, z_RE + first * weights_q.num_in(), num, logits_q_RV.get());
      launch_compare(stream_, logits_p_RV.get(), softcap_p, logits_q_RV.get(), softcap_q, num, num_vocabulary,
                     targets.get() + first, kl.get() + first, same_top1.get() + first, nll_p.get() + first,
                     nll_q.get() + first);
    }
    for (const auto& [device, host] : {std::pair{kl.get(), kl_R}, {nll_p.get(), nll_p_R}, {nll_q.get(), nll_q_R}}) {
      download(device, std::span(host, targets_R.size()));
    }
    download(same_top1.get(), std::span(same_top1_R, targets_R.size()));
  }

 private:
  static void check_head_size(const AttentionShape& shape, const char* operation) {
    check_shape(shape, operation);
    require_argument(shape.head_size <= kMaxCudaHeadSize, std::string(operation) + ": expected heads of at most " +
                                                              std::to_string(kMaxCudaHeadSize) + " values, found " +
                                                              std::to_string(shape.head_size));
  }

  // Returns the launches of a step, none of which has run.
  cudaGraphExec_t record(const std::function<void()>& step) {
    require_call(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal), "begin to record a step");
    cudaGraph_t graph = nullptr;
    const auto drop = [&] {
      if (graph != nullptr) static_cast<void>(cudaGraphDestroy(graph));
    };
    try {
      step();
    } catch (...) {
      // The exception says what has failed. The stream must go on without the recording.
      static_cast<void>(cudaStreamEndCapture(stream_, &graph));
      static_cast<void>(cudaGetLastError());
      drop();
      throw;
    }
    require_call(cudaStreamEndCapture(stream_, &graph), "record a step");
    cudaGraphExec_t executable = nullptr;
    const cudaError_t status = cudaGraphInstantiate(&executable, graph, 0);
    drop();
    require_call(status, "make a graph of a step");
    return executable;
  }

  static int64_t logit_rows(const CudaLinear& head, int64_t num_rows) {
    return std::clamp<int64_t>(kLogitFloats / head.num_out(), 1, std::max<int64_t>(num_rows, 1));
  }

  Buffer<int32_t> uploaded(std::span<const int32_t> host) {
    Buffer<int32_t> buffer = allocate<int32_t>(static_cast<int64_t>(host.size()));
    upload(host, buffer.get());
    return buffer;
  }

  void multiply(const CudaLinear& weights, const LinearInput& x, int64_t num_rows, float* y_RO) {
    if (!weights.multiplies_codes()) return multiply_floats(weights, x.x(), num_rows, y_RO);
    const CodeRows codes = {x.codes(), LinearInput::code_stride(weights.num_in()), x.scales(), x.zeros()};
    for (const CudaLinear::Run& run : weights.runs()) {
      launch_code_linears(stream_, run.form, weights.views() + run.first, run.count, {}, codes, num_rows, y_RO,
                          weights.num_out());
    }
  }

  void multiply_floats(const CudaLinear& weights, const float* x_RI, int64_t num_rows, float* y_RO) {
    for (const CudaLinear::Run& run : weights.runs()) {
      launch_linears(stream_, run.form, weights.views() + run.first, run.count, {}, x_RI, num_rows, y_RO,
                     weights.num_out());
    }
  }

  // Rounds what a row operation could not round by itself: rows of a sequence together, and rows with outliers.
  void round_beside_others(LinearInput& x, int64_t num_rows, int64_t width) {
    if (!target_of(x).is_rowwise()) round(x, num_rows, width, /*drops_small=*/false);
  }

  // Rounds the floats that an operation has written, as their consumer asks.
  void round(LinearInput& x, int64_t num_rows, int64_t width, bool drops_small = true) {
    const RoundingTarget target = target_of(x);
    RoundingKinds kinds;
    kinds.add(target);
    kinds.has_thresholds = kinds.has_thresholds && drops_small;
    if (!kinds.is_any()) return;
    RowsToRound rows = {.rows = rows_of(x, width), .sequences_N = nullptr, .target = target};
    if (!kinds.has_of_sequence && !kinds.has_limits) {
      return launch_round(stream_, rows, kinds, 1, num_rows, width, {});
    }
    rows.sequences_N = x.sequences().table.data();
    launch_round(stream_, rows, kinds, static_cast<int64_t>(x.sequences().table.size()), x.sequences().max_rows, width,
                 kinds.has_limits ? outlier_scratch(x, num_rows, width) : OutlierScratch{});
  }

  // Returns scratch memory that is kept with the rows and grows as needed.
  OutlierScratch outlier_scratch(LinearInput& x, int64_t num_rows, int64_t width) {
    if (dynamic_cast<OutlierNotes*>(x.notes().get()) == nullptr) x.notes() = std::make_unique<OutlierNotes>();
    auto& notes = static_cast<OutlierNotes&>(*x.notes());
    const auto num_sequences = static_cast<int64_t>(x.sequences().table.size());
    if (notes.squares_R.size() < num_rows) notes.squares_R = allocate<double>(num_rows);
    if (notes.limits_N.size() < num_sequences) notes.limits_N = allocate(num_sequences);
    if (notes.columns_NI.size() < num_sequences * width) notes.columns_NI = allocate<uint8_t>(num_sequences * width);
    return {notes.squares_R.get(), notes.limits_N.get(), notes.columns_NI.get()};
  }

  bool records_steps_;
  cudaStream_t stream_ = nullptr;
  int64_t num_allocations_ = 0, num_copies_ = 0;  // so far; copies are those to and from the host
  Buffer<float> attention_scratch_;               // grows as needed
};

}  // namespace

CudaDevice find_cuda_device() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  int driver = 0, runtime = 0;
  if (status == cudaErrorInsufficientDriver) {
    static_cast<void>(cudaGetLastError());
    require(cudaDriverGetVersion(&driver), "cannot ask for the driver's version");
    require(cudaRuntimeGetVersion(&runtime), "cannot ask for the runtime's version");
    throw std::runtime_error(driver == 0 ? "CUDA: no driver is installed: install one, or run with --device cpu"
                                         : "CUDA: the driver supports version " + std::to_string(driver / 1000) +
                                               ", this program needs " + std::to_string(runtime / 1000) +
                                               ": update the driver, or run with --device cpu");
  }
  if (status != cudaSuccess || count == 0) {
    static_cast<void>(cudaGetLastError());
    throw std::runtime_error(std::string("CUDA: no device was found") +
                             (status == cudaSuccess ? "" : std::string(" (") + cudaGetErrorString(status) + ")") +
                             ": run with --device cpu");
  }
  require(cudaSetDevice(0), "cannot use device 0");
  cudaDeviceProp properties;
  require(cudaGetDeviceProperties(&properties, 0), "cannot ask device 0 for its properties");
  size_t free_bytes = 0, total_bytes = 0;
  require(cudaMemGetInfo(&free_bytes, &total_bytes), "cannot ask device 0 for its memory");
  return {.name = properties.name,
          .major = properties.major,
          .minor = properties.minor,
          .num_multiprocessors = properties.multiProcessorCount,
          .total_bytes = static_cast<int64_t>(total_bytes),
          .free_bytes = static_cast<int64_t>(free_bytes)};
}

std::unique_ptr<Backend> make_cuda_backend(bool records_steps) {
  const CudaDevice device = find_cuda_device();
  // Kernels compiled for 8.0 run on every 8.x, those for 9.0a on 9.0 alone. There is no PTX for others
  // (CMakeLists.txt).
  if (device.major != 8 && !(device.major == 9 && device.minor == 0)) {
    throw std::runtime_error(
        "CUDA: this program has kernels for compute capability 8.x and 9.0; expected one of them, "
        "found " +
        device.name + " of " + std::to_string(device.major) + "." + std::to_string(device.minor) +
        ": run with --device cpu");
  }
  return std::make_unique<CudaBackend>(records_steps);
}

}  // namespace pare::runtime
