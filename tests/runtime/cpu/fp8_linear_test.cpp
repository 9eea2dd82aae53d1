// Every FP8 code through the kernels of packed linears, bit for bit, compared with fp8_to_float.
#include <gtest/gtest.h>

#include <bit>
#include <cstdint>
#include <string>
#include <vector>

#include "runtime/cpu/kernel_choice.h"
#include "runtime/format/dtype.h"
#include "runtime/system/aligned_memory.h"
#include "tests/runtime/system/tested_isas.h"

namespace pare {
using namespace runtime;
namespace {

constexpr int kFormat = static_cast<int>(WeightFormat::fp8);
constexpr UnitShape kUnit = unit_shape(WeightFormat::fp8);
constexpr int64_t kNumUnits = 256;
constexpr int64_t kPanels = panels_of_column(WeightFormat::fp8);

// Packing refuses NaN, so no kernel looks for it: those codes read as the number that their bits would be.
float value_of(uint8_t code) {
  if ((code & 0x7F) == 0x7F) return code == 0x7F ? 480.0f : -480.0f;
  return fp8_to_float(code);
}

// Each byte of a unit takes every code in turn.
uint8_t code_at(int64_t unit, int64_t lane, int64_t j) {
  return static_cast<uint8_t>(unit + lane * kUnit.num_k + j);
}

// Units of those codes with a scale of one: a panel with kUnit.num_k positions a unit, or a column panel with one.
class EveryCode {
 public:
  EveryCode() : lines_(allocate_aligned(kNumUnits * kUnit.num_bytes + kLineSlack)), scales_(kPanels * kPanel, 1.0f) {
    for (int64_t unit = 0; unit < kNumUnits; ++unit) {
      for (int64_t lane = 0; lane < kPanel; ++lane) {
        for (int64_t j = 0; j < kUnit.num_k; ++j) {
          lines_[unit * kUnit.num_bytes + lane * kUnit.num_k + j] = std::byte{code_at(unit, lane, j)};
        }
      }
    }
  }

  // num_units of them from `unit` on, as one group of num_k positions.
  PanelRun run(int64_t unit, int64_t num_k, int64_t num_outs) const {
    PanelRun run{};
    run.lines = reinterpret_cast<const uint8_t*>(lines_.get()) + unit * kUnit.num_bytes;
    run.scales = reinterpret_cast<const uint8_t*>(scales_.data());
    run.num_groups = 1;
    run.group_len = num_k;
    run.num_outs = num_outs;
    run.scale_format = ScaleFormat::f32;
    return run;
  }

 private:
  AlignedBytes lines_;
  std::vector<float> scales_;
};

std::vector<Isa> isas_of_this_cpu() {
  std::vector<Isa> isas = float_isas();
  std::erase_if(isas, [](Isa isa) { return !supports_isa(isa); });
  return isas;
}

std::string named(uint8_t code, Isa isa) {
  return "code " + std::to_string(code) + " " + std::string(isa_name(isa));
}

uint32_t bits_of(float value) {
  return std::bit_cast<uint32_t>(value);
}

TEST(Fp8Linear, PrefillExpandsEveryCodeToItsValue) {
  const EveryCode codes;
  std::vector<float> values(kNumUnits * kUnit.num_k * kPanel);
  for (const Isa isa : isas_of_this_cpu()) {
    const PanelRun run = codes.run(0, kNumUnits * kUnit.num_k, kPanel);
    linear_kernels(isa).expand[kFormat](run, 0, run.group_len, values.data(), kPanel);
    for (int64_t k = 0; k < run.group_len; ++k) {
      for (int64_t lane = 0; lane < kPanel; ++lane) {
        const uint8_t code = code_at(k / kUnit.num_k, lane, k % kUnit.num_k);
        ASSERT_EQ(bits_of(values[k * kPanel + lane]), bits_of(value_of(code))) << named(code, isa);
      }
    }
  }
}

// One input is 1 and the others are 0, so that a sum is one weight. A sum that begins at 0 loses the sign of -0.
void expect_single_weights(GemvKernel kernel, int64_t num_rows, const EveryCode& codes, Isa isa) {
  for (int64_t unit = 0; unit < kNumUnits; ++unit) {
    const PanelRun run = codes.run(unit, kUnit.num_k, kPanel);
    for (int64_t first_j = 0; first_j < kUnit.num_k; ++first_j) {
      std::vector<float> x(num_rows * kUnit.num_k), y(num_rows * kPanel);
      for (int64_t r = 0; r < num_rows; ++r) x[r * kUnit.num_k + (first_j + r) % kUnit.num_k] = 1.0f;
      kernel(run, x.data(), kUnit.num_k, nullptr, 0, y.data(), kPanel);
      for (int64_t r = 0; r < num_rows; ++r) {
        for (int64_t lane = 0; lane < kPanel; ++lane) {
          const uint8_t code = code_at(unit, lane, (first_j + r) % kUnit.num_k);
          ASSERT_EQ(bits_of(y[r * kPanel + lane]), bits_of(value_of(code) + 0.0f))
              << named(code, isa) << " R " << num_rows;
        }
      }
    }
  }
}

TEST(Fp8Linear, DecodeMultipliesEveryCodeExactly) {
  const EveryCode codes;
  for (const Isa isa : isas_of_this_cpu()) {
    const LinearKernels& kernels = linear_kernels(isa);
    for (int64_t num_rows = 1; num_rows <= kMaxGemvRows; ++num_rows) {
      for (const GemvKernel kernel : {kernels.gemv[kFormat][num_rows - 1], kernels.few[kFormat][num_rows - 1]}) {
        if (kernel != nullptr) expect_single_weights(kernel, num_rows, codes, isa);
      }
    }
    EXPECT_NE(kernels.gemv[kFormat][0], nullptr);
  }
}

TEST(Fp8Linear, ColumnPanelsHaveEveryCodesValue) {
  const EveryCode codes;
  for (const Isa isa : isas_of_this_cpu()) {
    const ColumnKernels& kernels = column_kernels(isa);
    std::vector<float> values(kNumUnits * kPanel);
    for (int64_t panel = 0; panel < kPanels; ++panel) {
      kernels.expand[kFormat](codes.run(0, kNumUnits, kPanels * kPanel), panel, 0, kNumUnits, values.data(), kPanel);
      for (int64_t k = 0; k < kNumUnits; ++k) {
        for (int64_t lane = 0; lane < kPanel; ++lane) {
          const uint8_t code = code_at(k, lane, panel);
          ASSERT_EQ(bits_of(values[k * kPanel + lane]), bits_of(value_of(code))) << named(code, isa);
        }
      }
    }
    for (int64_t k = 0; k < kNumUnits; ++k) {
      const float one = 1.0f;
      std::vector<float> y(kPanels * kPanel);
      kernels.gemv[kFormat][0](codes.run(k, 1, kPanels * kPanel), {.x = &one, .x_stride = 1}, y.data(),
                               kPanels * kPanel);
      for (int64_t out = 0; out < kPanels * kPanel; ++out) {
        const uint8_t code = code_at(k, out % kPanel, out / kPanel);
        ASSERT_EQ(bits_of(y[out]), bits_of(value_of(code) + 0.0f)) << named(code, isa);
      }
    }
  }
}

}  // namespace
}  // namespace pare
