#include "compress/predict/prediction.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/ones.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "compress/model/matrix_products.h"
#include "quant/row_chunks.h"
#include "runtime/machine/limits.h"
#include "runtime/system/json_text.h"
#include "runtime/system/partial_output.h"
#include "runtime/system/progress.h"

namespace pare::compress {

int64_t Prediction::peak_memory_bytes() const {
  int64_t peak = 0;
  for (const PredictedStage& stage : stages) peak = std::max(peak, stage.memory_bytes);
  return peak;
}

double Prediction::seconds() const {
  double sum = 0.0;
  for (const PredictedStage& stage : stages) sum += stage.seconds;
  return sum;
}

double measure_matmul_rate(int num_threads) {
  constexpr int64_t kSide = 512;
  constexpr int kRepetitions = 12;
  const at::Tensor left = at::ones({kSide, kSide}, at::kFloat);
  const at::Tensor right = at::ones({kSide, kSide}, at::kFloat);
  const auto multiply_on_all = [&] {
    quant::for_row_chunks(num_threads, 1, [&](int64_t, int64_t) {
      at::Tensor out = at::empty({kSide, kSide}, at::kFloat);
      for (int i = 0; i < kRepetitions; ++i) matrix_product_to(left, right, out);
    });
  };
  multiply_on_all();  // starts the threads
  const auto start = std::chrono::steady_clock::now();
  multiply_on_all();
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  return 2.0 * static_cast<double>(kSide * kSide * kSide) * kRepetitions * num_threads / seconds;
}

int64_t default_memory_budget() {
  return runtime::free_memory().bytes / 10 * 8;
}

void check_disk_space(const std::filesystem::path& output, const Prediction& prediction) {
  runtime::require_disk_space(output, prediction.disk_bytes);
}

std::vector<std::string> to_lines(const Prediction& prediction) {
  std::vector<std::string> lines;
  for (const PredictedStage& stage : prediction.stages) {
    lines.push_back("plan: " + stage.name + ": " + runtime::format_duration(stage.seconds) + ", " +
                    runtime::format_bytes(stage.memory_bytes));
  }
  const char* spill = prediction.spill == Spill::none     ? "activations in memory"
                      : prediction.spill == Spill::inputs ? "layer inputs spilled to disk"
                                                          : "all activations spilled to disk";
  const std::string windows =
      prediction.has_few_workers ? ", " + std::to_string(prediction.walk_workers) + " windows at a time" : "";
  lines.push_back("plan: in all " + runtime::format_duration(prediction.seconds()) + ", peak memory " +
                  runtime::format_bytes(prediction.peak_memory_bytes()) + " (" + spill + windows + "), disk " +
                  runtime::format_bytes(prediction.disk_bytes) + ", output " +
                  runtime::format_bytes(prediction.output_bytes));
  return lines;
}

std::string to_json(const Prediction& prediction) {
  nlohmann::ordered_json stages = nlohmann::ordered_json::array();
  for (const PredictedStage& stage : prediction.stages) {
    stages.push_back({{"stage", stage.name}, {"seconds", stage.seconds}, {"memory_bytes", stage.memory_bytes}});
  }
  nlohmann::ordered_json json = {{"predicted_seconds", prediction.seconds()},
                                 {"predicted_peak_memory_bytes", prediction.peak_memory_bytes()},
                                 {"predicted_disk_bytes", prediction.disk_bytes},
                                 {"predicted_output_bytes", prediction.output_bytes},
                                 {"spill", prediction.spill == Spill::none     ? "none"
                                           : prediction.spill == Spill::inputs ? "inputs"
                                                                               : "all"},
                                 {"stages", stages}};
  if (prediction.walk_workers > 0) json["windows_at_a_time"] = prediction.walk_workers;
  return runtime::json_text(json);
}

}  // namespace pare::compress
