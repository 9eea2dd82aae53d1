#include "runtime/containers/pare_sparse24.h"
#include "runtime/containers/container_table.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <functional>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>
#include <random>

#include "runtime/containers/stored_linear.h"
#include "tests/expect_error.h"

namespace pare {
using namespace runtime;
namespace {

using Json = nlohmann::json;

constexpr int64_t kNumOut = 5, kNumIn = 48;
const PackScheme kDense{
    .code = nullptr, .bits = kDenseBits, .container = std::string(kPareSparse24), .pattern = kTwoOfFour};

PackScheme codes_scheme(int bits, int64_t group_size, bool symmetric, bool per_tensor, SparsePattern pattern) {
  return {.bits = bits,
          .group_size = group_size,
          .symmetric = symmetric,
          .container = std::string(kPareSparse24),
          .per_tensor = per_tensor,
          .pattern = pattern};
}

std::vector<PackScheme> all_schemes() {
  std::vector<PackScheme> schemes = {kDense};
  for (const int bits : {2, 3, 4, 8}) {
    for (const bool symmetric : {true, false}) {
      for (const SparsePattern pattern : {kTwoOfFour, SparsePattern{}}) {
        schemes.push_back(codes_scheme(bits, 16, symmetric, false, pattern));
        schemes.push_back(codes_scheme(bits, 2, symmetric, false, pattern));  // some groups of four have two zeros
        schemes.push_back(codes_scheme(bits, kPerChannel, symmetric, false, pattern));
        schemes.push_back(codes_scheme(bits, kPerChannel, symmetric, true, pattern));
      }
    }
  }
  const size_t num_plain = schemes.size();
  for (size_t i = 0; i < num_plain; i += 3) {
    for (const InputRange range : {InputRange::token, InputRange::tensor, InputRange::static_}) {
      PackScheme scheme = schemes[i];
      scheme.input = {.type = InputType::int8, .range = range, .symmetric = i % 2 == 0};
      schemes.push_back(scheme);
    }
  }
  PackScheme unpruned = kDense;  // only its input is rounded
  unpruned.pattern = {};
  unpruned.input = {.type = InputType::fp8, .range = InputRange::static_};
  schemes.push_back(unpruned);
  return schemes;
}

// Returns whether a column is pruned. At most two of four are kept, and sometimes fewer.
bool is_pruned(const PackScheme& scheme, std::mt19937& random, int64_t column, std::array<bool, 4>& pruned) {
  if (scheme.pattern.is_dense()) return false;
  if (column % 4 == 0) {
    pruned.fill(false);
    const size_t first = random() % 4;
    pruned[first] = pruned[(first + 1 + random() % 3) % 4] = true;
    if (random() % 5 == 0) pruned[random() % 4] = true;
    if (random() % 9 == 0) pruned.fill(true);
  }
  return pruned[static_cast<size_t>(column % 4)];
}

StoredLinear random_linear(const PackScheme& scheme, DType dtype, uint32_t seed = 5) {
  std::mt19937 random(seed);
  StoredLinear linear;
  linear.input = scheme.input;
  linear.input_scale_dtype = DType::F16;
  if (!scheme.input.is_plain() && scheme.input.range == InputRange::static_) {
    linear.input.scale = 0.375f;
    linear.input.zero = scheme.input.symmetric ? 0 : 17;
  }
  QuantizedWeight& weight = linear.weight;
  weight.num_out = kNumOut;
  weight.num_in = kNumIn;
  weight.pattern = scheme.pattern;
  std::array<bool, 4> pruned = {};
  if (scheme.is_dense()) {
    if (scheme.has_own_tensor()) return linear;
    std::vector<float> values;
    for (int64_t i = 0; i < kNumOut * kNumIn; ++i) {
      const float value = round_to(static_cast<float>(random() % 2000) / 777.0f - 1.3f, dtype);
      values.push_back(is_pruned(scheme, random, i % kNumIn, pruned) ? 0.0f : value);
    }
    linear.dense_dtype = dtype;
    linear.dense_OI.resize(values.size() * dtype_size_bytes(dtype));
    convert_from_float(dtype, values, linear.dense_OI);
    return linear;
  }
  weight.bits = scheme.bits;
  weight.group_size = scheme.group_size;
  weight.symmetric = scheme.symmetric;
  weight.scale_dtype = dtype;
  const auto random_code = [&] { return static_cast<uint8_t>(random() & ((1u << scheme.bits) - 1)); };
  const uint8_t shared_zero = random_code();
  for (int64_t i = 0; i < kNumOut * weight.num_groups(); ++i) {
    weight.scales_OG.push_back(scheme.per_tensor ? 0.75f
                                                 : round_to(static_cast<float>(1 + random() % 1000) / 333.0f, dtype));
    if (!scheme.symmetric) weight.zeros_OG.push_back(scheme.per_tensor ? shared_zero : random_code());
  }
  for (int64_t row = 0; row < kNumOut; ++row) {
    for (int64_t column = 0; column < kNumIn; ++column) {
      const uint8_t code = random_code();
      const bool is_zero = is_pruned(scheme, random, column, pruned);
      weight.codes_OI.push_back(is_zero ? static_cast<uint8_t>(weight.zero(row, weight.group(column))) : code);
    }
  }
  return linear;
}

// Finds the tensors by name, as a reader does.
struct Found {
  std::vector<OwnedTensor> owned;
  std::map<std::string, TensorView> views;

  explicit Found(std::vector<OwnedTensor> tensors) : owned(std::move(tensors)) {
    for (const OwnedTensor& tensor : owned) views[tensor.name] = {tensor.dtype, tensor.shape, tensor.data};
  }
  FindTensor finder() const {
    return [this](const std::string& name) {
      const auto found = views.find(name);
      return found == views.end() ? nullptr : &found->second;
    };
  }
};

// --- The oracle: docs/formats.md in loops over single bits ---

// A stream of bits, lowest first, that is padded to whole words of 32.
struct Bits {
  std::vector<bool> bits;
  void add(uint32_t number, int width) {
    for (int b = 0; b < width; ++b) bits.push_back((number >> b & 1) != 0);
  }
  void end_word() {
    while (bits.size() % 32 != 0) bits.push_back(false);
  }
  std::vector<std::byte> bytes() const {
    std::vector<std::byte> result(bits.size() / 8);
    for (size_t i = 0; i < bits.size(); ++i) {
      if (bits[i]) result[i / 8] |= static_cast<std::byte>(1 << i % 8);
    }
    return result;
  }
};

std::map<std::string, std::vector<std::byte>> twin(const StoredLinear& linear, const PackScheme& scheme) {
  const QuantizedWeight& weight = linear.weight;
  const std::vector<float> effective = scheme.has_own_tensor() ? std::vector<float>() : effective_weight(linear);
  Bits codes, positions, zeros;
  std::vector<std::byte> dense;
  std::map<std::string, std::vector<std::byte>> tensors;
  const auto add_value = [&](int64_t row, int64_t column) {
    const int64_t index = row * kNumIn + column;
    if (scheme.is_dense()) {
      const size_t size = dtype_size_bytes(linear.dense_dtype);
      for (size_t b = 0; b < size; ++b) dense.push_back(linear.dense_OI[static_cast<size_t>(index) * size + b]);
    } else {
      codes.add(weight.codes_OI[static_cast<size_t>(index)], scheme.bits);
    }
  };
  for (int64_t row = 0; row < kNumOut && !scheme.has_own_tensor(); ++row) {
    for (int64_t column = 0; column < kNumIn; ++column) {
      if (scheme.pattern.is_dense()) {
        add_value(row, column);
        continue;
      }
      if (column % 4 != 0) continue;
      std::vector<int64_t> kept;  // the nonzero values, then the lowest others
      const auto is_zero = [&](int64_t p) {
        if (scheme.is_dense()) return effective[static_cast<size_t>(row * kNumIn + column + p)] == 0.0f;
        const int zero =
            scheme.symmetric
                ? 1 << (scheme.bits - 1)
                : weight.zeros_OG[static_cast<size_t>(row * weight.num_groups() + weight.group(column + p))];
        return weight.codes_OI[static_cast<size_t>(row * kNumIn + column + p)] == zero;
      };
      for (int64_t p = 0; p < 4; ++p) {
        if (!is_zero(p)) kept.push_back(p);
      }
      for (int64_t p = 0; p < 4; ++p) {
        if (kept.size() < 2 && is_zero(p)) kept.push_back(p);
      }
      std::sort(kept.begin(), kept.end());
      for (const int64_t p : kept) {
        positions.add(static_cast<uint32_t>(p), 2);
        add_value(row, column + p);
      }
    }
    codes.end_word();
    positions.end_word();
  }
  if (!scheme.has_own_tensor()) tensors["m.weight_values"] = scheme.is_dense() ? dense : codes.bytes();
  if (!scheme.pattern.is_dense()) tensors["m.weight_positions"] = positions.bytes();
  if (!scheme.is_dense()) {
    const size_t num_scales = scheme.per_tensor ? 1 : weight.scales_OG.size();
    std::vector<std::byte>& scales = tensors["m.weight_scale"];
    scales.resize(num_scales * dtype_size_bytes(weight.scale_dtype));
    convert_from_float(weight.scale_dtype, std::span(weight.scales_OG).first(num_scales), scales);
    for (size_t i = 0; !scheme.symmetric && i < num_scales; ++i) zeros.add(weight.zeros_OG[i], scheme.bits);
    zeros.end_word();
    if (!scheme.symmetric) tensors["m.weight_zero_point"] = zeros.bytes();
  }
  if (!scheme.input.is_plain() && scheme.input.range == InputRange::static_) {
    tensors["m.input_scale"].resize(2);
    convert_from_float(DType::F16, {&linear.input.scale, 1}, tensors["m.input_scale"]);
    if (!scheme.input.symmetric) tensors["m.input_zero_point"] = {static_cast<std::byte>(linear.input.zero)};
  }
  return tensors;
}

TEST(PareSparse24, BytesAreThoseOfTheTwinAndReadBack) {
  for (const PackScheme& scheme : all_schemes()) {
    for (const DType dtype : {DType::BF16, DType::F16, DType::F32}) {
      SCOPED_TRACE(describe_fields(scheme) + " " + std::string(dtype_name(dtype)));
      const StoredLinear linear = random_linear(scheme, dtype);
      Found found(pare_sparse24_container().store(linear, scheme, "m"));
      std::map<std::string, std::vector<std::byte>> bytes;
      for (const OwnedTensor& tensor : found.owned) bytes[tensor.name] = tensor.data;
      ASSERT_EQ(bytes, twin(linear, scheme));
      const std::vector<std::byte> as_it_was(kNumOut * kNumIn * 2);
      if (scheme.has_own_tensor()) found.views["m.weight"] = {DType::F16, {kNumOut, kNumIn}, as_it_was};

      const StoredLinear back = pare_sparse24_container().load(found.finder(), scheme, kNumOut, kNumIn, "m");
      ASSERT_EQ(back.weight.codes_OI, linear.weight.codes_OI);
      ASSERT_EQ(back.weight.scales_OG, linear.weight.scales_OG);
      ASSERT_EQ(back.weight.zeros_OG, linear.weight.zeros_OG);
      ASSERT_EQ(back.weight.scale_dtype, linear.weight.scale_dtype);
      ASSERT_EQ(back.weight.bits, linear.weight.bits);
      ASSERT_EQ(back.weight.group_size, linear.weight.group_size);
      ASSERT_EQ(back.weight.symmetric, linear.weight.symmetric);
      ASSERT_EQ(back.weight.pattern, scheme.pattern);
      ASSERT_EQ(back.dense_OI, linear.dense_OI);
      ASSERT_EQ(back.dense_dtype, linear.dense_dtype);
      ASSERT_EQ(back.input, linear.input);
    }
  }
}

// Computed by hand: each row is one group of four, in int4 with the zero 8.
TEST(PareSparse24, FewerThanTwoAreFilledFromTheLowest) {
  const PackScheme scheme = codes_scheme(4, kPerChannel, true, false, kTwoOfFour);
  StoredLinear linear;
  linear.weight.num_out = 5;
  linear.weight.num_in = 4;
  linear.weight.bits = 4;
  linear.weight.pattern = kTwoOfFour;
  linear.weight.codes_OI = {8, 8, 8, 8, 1, 8, 8, 8, 8, 8, 2, 8, 8, 8, 8, 3, 8, 5, 8, 6};
  linear.weight.scales_OG.assign(5, 1.0f);
  const Found found(pare_sparse24_container().store(linear, scheme, "m"));
  // The kept positions are 0 1, 0 1, 0 2, 0 3, 1 3, lowest bits first.
  const std::vector<uint32_t> positions = {0b0100, 0b0100, 0b1000, 0b1100, 0b1101},
                              values = {0x88, 0x81, 0x28, 0x38, 0x65};
  EXPECT_EQ(std::memcmp(found.views.at("m.weight_positions").data.data(), positions.data(), 20), 0);
  EXPECT_EQ(std::memcmp(found.views.at("m.weight_values").data.data(), values.data(), 20), 0);
}

// -0 is a zero, and it is stored as +0.
TEST(PareSparse24, NegativeZerosBecomePositive) {
  StoredLinear linear = random_linear(kDense, DType::BF16);
  const std::vector<float> before = effective_weight(linear);
  const std::vector<std::byte> positive = linear.dense_OI;
  int num_zeros = 0;
  for (size_t i = 0; i < before.size(); ++i) {
    if (before[i] == 0.0f && ++num_zeros % 2 == 0) linear.dense_OI[i * 2 + 1] = std::byte{0x80};
  }
  ASSERT_NE(linear.dense_OI, positive);
  const Found found(pare_sparse24_container().store(linear, kDense, "m"));
  EXPECT_EQ(pare_sparse24_container().load(found.finder(), kDense, kNumOut, kNumIn, "m").dense_OI, positive);
  pare_sparse24_container().adapt(linear, kDense);
  EXPECT_EQ(linear.dense_OI, positive);
}

// The linears of SmolLM2 and TinyLlama: 2 of 4 in int4 take 3.25 bits per weight, while all codes take 4.25.
TEST(PareSparse24, SizeOfKnownLayers) {
  const PackScheme sparse = codes_scheme(4, 64, true, false, kTwoOfFour);
  for (const auto& [num_out, num_in] :
       {std::pair<int64_t, int64_t>{576, 576}, {1536, 576}, {576, 1536}, {5632, 2048}}) {
    const int64_t weights = num_out * num_in;
    const int64_t bytes = pare_sparse24_container().stored_bytes(sparse, num_out, num_in);
    EXPECT_EQ(bytes * 32, weights * 13);
    const int64_t dense =
        container_format(kCompressedTensors).stored_bytes({.bits = 4, .group_size = 64}, num_out, num_in);
    EXPECT_LE(static_cast<double>(bytes), 0.77 * static_cast<double>(dense));
    EXPECT_EQ(pare_sparse24_container().stored_bytes(kDense, num_out, num_in) * 8, weights * 9);
    EXPECT_EQ(pare_sparse24_container().stored_bytes(kDense, num_out, num_in, {.dense_dtype = DType::F32}) * 8,
              weights * 17);
    EXPECT_EQ(
        pare_sparse24_container().stored_bytes(codes_scheme(8, kPerChannel, true, false, kTwoOfFour), num_out, num_in),
        weights * 5 / 8 + num_out * 2);
  }
}

TEST(PareSparse24, RefusesTensorsThatAreDamaged) {
  const PackScheme int4 = codes_scheme(4, 16, false, false, kTwoOfFour);
  const auto refused = [](const PackScheme& scheme, const std::string& name,
                          const std::function<void(TensorView&, std::vector<std::byte>&)>& change,
                          std::initializer_list<std::string> parts) {
    Found found(pare_sparse24_container().store(random_linear(scheme, DType::BF16), scheme, "m"));
    TensorView& view = found.views.at(name);
    std::vector<std::byte> data(view.data.begin(), view.data.end());
    view.data = data;
    change(view, data);
    expect_error<std::runtime_error>(
        [&] { pare_sparse24_container().load(found.finder(), scheme, kNumOut, kNumIn, "m"); }, parts);
  };
  const auto set_bits = [](size_t byte, uint8_t value) {
    return [byte, value](TensorView&, std::vector<std::byte>& data) { data.at(byte) = std::byte{value}; };
  };
  // A row has 24 positions, that is 48 bits in two words. Bytes 6 and 7 of a row are padding.
  for (const PackScheme& scheme : {kDense, int4}) {
    for (const uint8_t equal : {0b0000, 0b0101, 0b1010, 0b1111, 0b0001, 0b0110}) {
      refused(scheme, "m.weight_positions", set_bits(8 + 1, static_cast<uint8_t>(0x40 | equal)),
              {"m.weight_positions", "ascending", "[1, 8]", "damaged"});
    }
    refused(scheme, "m.weight_positions", set_bits(8 + 6, 1), {"m.weight_positions", "expected 0", "row 1"});
    refused(scheme, "m.weight_positions", [](auto& t, auto&) { t.shape = {kNumOut, 1}; }, {"[5, 2]", "[5, 1]"});
    refused(scheme, "m.weight_positions", [](auto& t, auto&) { t.dtype = DType::I64; }, {"I32", "I64"});
    refused(scheme, "m.weight_positions", [](auto& t, auto&) { t.data = t.data.first(4); }, {"weight_positions"});
    refused(scheme, "m.weight_values", [](auto& t, auto&) { t.shape[0] = 4; }, {"m.weight_values", "[5, "});
    refused(scheme, "m.weight_values", [](auto& t, auto&) { t.dtype = DType::I8; }, {"m.weight_values", "I8"});
  }
  const auto make_infinite = [](TensorView&, std::vector<std::byte>& data) {
    data.at(24 * 2) = std::byte{0x80};
    data.at(24 * 2 + 1) = std::byte{0x7F};
  };
  refused(kDense, "m.weight_values", make_infinite, {"m.weight_values", "finite", "infinity", "[1, 0]"});
  const auto make_scale_infinite = [](TensorView&, std::vector<std::byte>& data) {
    data.at(0) = std::byte{0x80};
    data.at(1) = std::byte{0x7F};
  };
  refused(int4, "m.weight_scale", make_scale_infinite, {"'m'", "scale", "not finite"});
  refused(int4, "m.weight_scale", [](auto& t, auto&) { t.shape = {kNumOut, 1}; }, {"m.weight_scale", "[5, 3]"});
  refused(int4, "m.weight_zero_point", [](auto& t, auto&) { t.shape = {kNumOut}; }, {"m.weight_zero_point", "[2]"});
  // 15 zeros of 4 bits are stored in two words.
  refused(int4, "m.weight_zero_point", set_bits(7, 0x10), {"m.weight_zero_point", "expected 0"});
  const PackScheme int3 = codes_scheme(3, 16, true, false, kTwoOfFour);  // 72 bits in three words
  refused(int3, "m.weight_values", set_bits(11, 0x80), {"m.weight_values", "expected 0", "row 0"});
}

TEST(PareSparse24, RefusesTensorsThatAreMissingOrTooMany) {
  PackScheme int4 = codes_scheme(4, 16, false, false, kTwoOfFour);
  int4.input = {.type = InputType::int8, .range = InputRange::static_, .symmetric = false};
  const Found whole(pare_sparse24_container().store(random_linear(int4, DType::BF16), int4, "m"));
  ASSERT_EQ(whole.owned.size(), 6u);
  const auto refused = [](const Found& found, const PackScheme& scheme, const std::string& name) {
    expect_error<std::runtime_error>(
        [&] { pare_sparse24_container().check(found.finder(), scheme, kNumOut, kNumIn, "m"); }, {"'" + name + "'"});
  };
  for (const OwnedTensor& tensor : whole.owned) {
    Found found(whole.owned);
    found.views.erase(tensor.name);
    refused(found, int4, tensor.name);
  }
  Found found(whole.owned);
  found.views["m.weight"] = {};
  refused(found, int4, "m.weight");
  PackScheme other = int4;
  other.pattern = {};
  refused(whole, other, "m.weight_values");
  other = int4;
  other.symmetric = true;
  refused(whole, other, "m.weight_zero_point");
  other = int4;
  other.input = {};
  refused(whole, other, "m.input_scale");
  const Found dense(pare_sparse24_container().store(random_linear(kDense, DType::BF16), kDense, "m"));
  refused(dense, int4, "m.input_scale");
  found = Found(dense.owned);
  found.views["m.weight_scale"] = {};
  refused(found, kDense, "m.weight_scale");
  expect_error<std::runtime_error>([&] { pare_sparse24_container().check(dense.finder(), kDense, kNumOut, 46, "m"); },
                                   {"'m'", "2:4", "46"});
}

TEST(PareSparse24, RefusesLinearsThatItCannotHold) {
  const PackScheme int4 = codes_scheme(4, 16, true, false, kTwoOfFour);
  const auto refused = [](PackScheme scheme, std::initializer_list<std::string> parts, int64_t num_in = kNumIn) {
    const Acceptance found = pare_sparse24_container().accepts(scheme, kNumOut, num_in);
    EXPECT_FALSE(found);
    for (const std::string& part : parts) EXPECT_NE(found.reason.find(part), std::string::npos) << found.reason;
  };
  const auto with = [&](const std::function<void(PackScheme&)>& change) {
    PackScheme scheme = int4;
    change(scheme);
    return scheme;
  };
  refused(with([](auto& s) { s.pattern = {4, 8}; }), {"4:8", "store its zeros as values"});
  refused(with([](auto& s) { s.pattern = {1, 4}; }), {"1:4"});
  refused(with([](auto& s) { s.act_order = StoredActOrder::group; }), {"act-order", "g_idx"});
  refused(with([](auto& s) { s.code = &kFp8Code, s.bits = 8; }), {"fp8 codes"});
  refused(with([](auto& s) { s.bits = 5; }), {"found 5"});
  refused(with([](auto& s) { s.per_tensor = true; }), {"per tensor"});
  refused(with([](auto& s) { s.input = {.type = InputType::fp8}; }), {"fp8"});
  refused(with([](auto& s) { s.input = {.type = InputType::int8, .outliers = OutlierRule::columns}; }), {"outlier"});
  refused(with([](auto& s) { s.group_size = 2; }), {"4 divides", "46"}, 46);
  refused({.code = nullptr, .bits = kDenseBits}, {"not compressed"});
  for (const ContainerFormat* other : container_formats()) {
    if (other == &pare_sparse24_container()) continue;
    const Acceptance found = other->accepts(int4);
    EXPECT_NE(found.reason.find("does not pack the pattern 2:4"), std::string::npos) << other->name();
    EXPECT_NE(found.reason.find("pare-sparse24"), std::string::npos) << found.reason;
  }

  StoredLinear linear = random_linear(int4, DType::BF16);
  const auto fails = [&](auto error, const PackScheme& scheme, std::initializer_list<std::string> parts) {
    expect_error<decltype(error)>([&] { pare_sparse24_container().store(linear, scheme, "m"); }, parts);
  };
  linear.weight.pattern = {};
  fails(std::invalid_argument(""), int4, {"'m'", "expected the pattern 2:4, found none"});
  linear.weight.pattern = kTwoOfFour;
  for (int64_t i = 0; i < 3; ++i) linear.weight.codes_OI[static_cast<size_t>(kNumIn + 4 + i)] = 1;
  fails(std::runtime_error(""), int4, {"'m'", "[1, 4]", "more than 2", "2:4"});
  linear = random_linear(kDense, DType::F16);
  fails(std::invalid_argument(""), int4, {"codes"});
  linear.dense_OI[3] = linear.dense_OI[5] = linear.dense_OI[7] = std::byte{0x3C};
  fails(std::runtime_error(""), kDense, {"'m'", "[0, 0]", "2:4"});
  linear.dense_OI.pop_back();
  fails(std::runtime_error(""), kDense, {"'m'", "[5, 48]", "479 bytes"});
}

// --- quantization_config ---

std::vector<StoredModule> some_modules() {
  std::vector<StoredModule> modules;
  for (const PackScheme& scheme : all_schemes()) {
    modules.push_back({"model.layers." + std::to_string(modules.size()), scheme});
  }
  modules.push_back({"again", modules.front().scheme});
  return modules;
}

TEST(PareSparse24Config, EverySchemeIsReadBack) {
  const std::vector<StoredModule> modules = some_modules();
  const std::vector<std::string> ignored = {"lm_head"};
  const std::string text = pare_sparse24_container().config_json(modules, ignored);
  EXPECT_EQ(find_container("pare-sparse24", text), &pare_sparse24_container());
  const Json json = Json::parse(text);
  EXPECT_EQ(json["groups"].size(), modules.size() - 1);
  EXPECT_EQ(
      json["groups"][0],
      (Json{{"pattern", "2:4"}, {"weights", nullptr}, {"inputs", nullptr}, {"modules", {"model.layers.0", "again"}}}));
  const auto config = PareSparse24Config::parse(text, "config.json");
  for (const StoredModule& module : modules) EXPECT_EQ(config.scheme_of(module.name, "Linear", {}), module.scheme);
  EXPECT_EQ(config.scheme_of("lm_head", "Linear", {}), std::nullopt);
}

TEST(PareSparse24Config, RefusesWhatItDoesNotKnow) {
  const Json group = {{"pattern", "2:4"},
                      {"weights", {{"bits", 4}, {"group_size", 64}, {"symmetric", true}, {"per_tensor", false}}},
                      {"inputs", {{"type", "int8"}, {"range", "token"}, {"symmetric", true}}},
                      {"modules", {"a", "b"}}};
  const Json good = {
      {"quant_method", "pare-sparse24"}, {"groups", Json::array({group})}, {"ignore", Json::array({"lm_head"})}};
  EXPECT_NO_THROW(PareSparse24Config::parse(good.dump(), "config.json"));
  const auto refused = [&](const std::string& path, const Json& value, std::initializer_list<std::string> parts) {
    Json bad = good;
    bad[Json::json_pointer(path)] = value;
    expect_error<std::invalid_argument>([&] { PareSparse24Config::parse(bad.dump(), "config.json"); }, parts);
  };
  refused("/quant_method", "awq", {"config.json", "quant_method", "awq"});
  refused("/version", 2, {"unknown key 'version'"});
  refused("/groups", Json::array(), {"groups", "at least one"});
  refused("/groups/0/pattern", "4:8", {"groups[0].pattern", "4:8"});
  refused("/groups/0/patern", nullptr, {"groups[0]", "unknown key 'patern'"});
  refused("/groups/0/weights/bits", 5, {"groups[0].weights.bits", "5"});
  refused("/groups/0/weights/bits", "4", {"groups[0].weights.bits"});
  refused("/groups/0/weights/group_size", 0, {"group_size", "positive"});
  refused("/groups/0/weights/group_size", 1e12, {"group_size", "positive"});
  refused("/groups/0/weights/symmetric", 1, {"symmetric", "true or false"});
  refused("/groups/0/weights/per_tensor", true, {"groups[0]", "per tensor"});
  refused("/groups/0/inputs/type", "none", {"inputs.type", "\"int8\", \"fp8\""});
  refused("/groups/0/inputs/type", "fp8", {"groups[0]", "fp8"});
  refused("/groups/0/inputs/range", "block", {"inputs.range", "block"});
  refused("/groups/0/modules", "a", {"modules", "array"});
  refused("/groups/0/modules", {"a", 1}, {"modules", "array of strings"});
  refused("/groups/0/modules", {"a", "a"}, {"'a' is named twice"});
  refused("/ignore", Json::array({"b"}), {"ignore", "'b'"});
  refused("/ignore", 3, {"ignore"});
  Json bad = good;
  bad["groups"][0].erase("weights");
  expect_error<std::invalid_argument>([&] { PareSparse24Config::parse(bad.dump(), "c"); }, {"expected the key"});
  for (const std::string text : {"", "[]", "{", "3"}) {
    expect_error<std::invalid_argument>([&] { PareSparse24Config::parse(text, "config.json"); }, {"config.json"});
  }
  const std::string deep = std::string(100, '[') + std::string(100, ']');
  expect_error<std::invalid_argument>([&] { PareSparse24Config::parse(deep, "c"); }, {"too deeply"});
}

TEST(PareSparse24Config, RefusesModulesNamedTwice) {
  const PackScheme int4 = codes_scheme(4, 16, true, false, kTwoOfFour);
  const std::vector<StoredModule> twice = {{"a", int4}, {"a", int4}};
  expect_error<std::invalid_argument>([&] { pare_sparse24_config_json(twice, {}); }, {"'a'", "twice"});
  const std::vector<StoredModule> once = {{"a", int4}};
  const std::vector<std::string> ignored = {"a"};
  expect_error<std::invalid_argument>([&] { pare_sparse24_config_json(once, ignored); }, {"'a'", "ignored"});
  expect_error<std::invalid_argument>([&] { pare_sparse24_config_json({}, {}); }, {"at least one"});
}

}  // namespace
}  // namespace pare
