// Checks states on disk that are damaged, or that no run can have written.
#include "compress/train/training_state.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <nlohmann/json.hpp>
#include <span>
#include <utility>
#include <vector>

#include "compress/artifact/checked_file.h"
#include "runtime/files/safetensors.h"
#include "runtime/system/atomic_file.h"
#include "runtime/system/sha256.h"
#include "tests/compress/train/trainer_fixture.h"
#include "tests/expect_error.h"

namespace pare {
using namespace compress;
using namespace runtime;
namespace {

class TrainingStates : public Trainer {};

TEST_F(TrainingStates, DamagedStatesAreRefused) {
  const auto student = make_student();
  train_in("run", *student);
  const auto refuse_damage = [&](const std::string& prefix) {
    const fs::path path = file("run", prefix);
    const std::string text = read_text_file(path);
    for (const size_t place : {text.size() / 2, text.size() - 1}) {
      std::string damaged = text;
      damaged[place] = static_cast<char>(damaged[place] ^ 4);
      write_file_atomically(path, damaged);
      expect_error<std::runtime_error>([&] { train_in("run", *make_student()); }, {path.filename().string()});
    }
    write_file_atomically(path, text.substr(0, text.size() / 2));
    expect_error<std::runtime_error>([&] { train_in("run", *make_student()); }, {path.filename().string()});
    if (prefix != "state") {
      fs::remove(path);
      expect_error<std::runtime_error>([&] { train_in("run", *make_student()); }, {path.filename().string()});
    }
    write_file_atomically(path, text);
  };
  refuse_damage("state");
  refuse_damage("step-");
  refuse_damage("best-");
  train_in("run", *make_student());
}

// These states have the right hashes, but no run can have written them. Each is refused for what is wrong with it.
TEST_F(TrainingStates, ForgedStatesAreRefused) {
  options_.patience = 3;
  train_in("run", *make_student());
  const fs::path path = file("run", "state");
  const std::string text = read_checked_file(path);
  using Json = nlohmann::ordered_json;
  const Json honest = Json::parse(text);
  ASSERT_EQ(honest.at("step"), 12);
  const auto refused = [&](const std::string& name, const std::function<void(Json&)>& forge) {
    Json forged = honest;
    forge(forged);
    write_checked_file(path, forged.dump(1) + "\n");
    expect_error<std::runtime_error>([&] { train_in("run", *make_student()); },
                                     {"state", "is damaged", "--fresh", name});
  };
  const std::vector<Json> no_counts = {
      -1, int64_t{1} << 62, 1.5, 13, std::numeric_limits<uint64_t>::max(), 1e30, "12", true, Json(), Json::array()};
  for (const Json& value : no_counts) {
    refused("step", [&](Json& json) { json["step"] = value; });
    refused("kept_step", [&](Json& json) { json["kept_step"] = value; });
    refused("step", [&](Json& json) { json["curve"][1][0] = value; });
    refused("tokens", [&](Json& json) { json["curve"][1][1] = value; });
  }
  for (const Json& value : {Json(-1), Json(1.5), Json(uint64_t{1} << 63), Json("0"), Json()}) {
    refused("loss_labels", [&](Json& json) { json["loss_labels"] = value; });
  }
  for (const Json& value : {Json("1"), Json(), Json(true)}) {
    refused("loss_sum", [&](Json& json) { json["loss_sum"] = value; });
    for (const size_t column : {2, 3, 4, 6}) refused("", [&](Json& json) { json["curve"][1][column] = value; });
  }
  refused("validation_perplexity", [](Json& json) { json["curve"][1][3] = 0.0; });
  refused("validation_perplexity", [](Json& json) { json["curve"][1][3] = -3.0; });
  refused("learning_rate", [](Json& json) { json["curve"][1][6] = -1e-4; });
  refused("loss", [](Json& json) { json["curve"][0][2] = 0.0; });
  refused("validation_kl", [](Json& json) { json["curve"][0][5] = 0.1; });
  refused("curve", [](Json& json) { json["curve"] = Json::array(); });
  refused("curve", [](Json& json) { json["curve"] = 3; });
  refused("curve", [](Json& json) { json["curve"][1].push_back(0); });
  refused("curve", [](Json& json) { json["curve"].erase(1); });
  refused("curve", [](Json& json) { std::swap(json["curve"][1], json["curve"][2]); });
  refused("curve", [](Json& json) { json["curve"].push_back(json["curve"][1]); });
  refused("kept_step", [](Json& json) { json["kept_step"] = json["kept_step"] == 0 ? 3 : 0; });
  refused("is_stopped", [](Json& json) { json["is_stopped"] = !json["is_stopped"].get<bool>(); });
  refused("", [](Json& json) { json["is_stopped"] = 1; });
  refused("", [](Json& json) { json.erase("best_sha256"); });
  refused("", [](Json& json) { json["more"] = 1; });
  refused("", [](Json& json) { json = Json::array(); });
  write_checked_file(path, text);
  train_in("run", *make_student());
}

// These files of tensors have the right hashes, but belong to another model, or hold what no training has.
TEST_F(TrainingStates, ForgedTensorsAreRefused) {
  train_in("run", *make_student());
  const fs::path state = file("run", "state");
  for (const std::string which : {"step", "best"}) {
    const fs::path path = file("run", which + "-");
    const std::string bytes = read_text_file(path), honest = read_checked_file(state);
    const auto refused = [&](const std::string& what, const std::function<void(std::vector<NamedTensor>&)>& forge) {
      std::vector<std::vector<std::byte>> held;
      std::vector<NamedTensor> tensors;
      const SafetensorsFile opened = SafetensorsFile::open(path);
      for (const auto& [name, view] : opened.tensors()) {
        held.emplace_back(view.data.begin(), view.data.end());
        tensors.push_back({name, view.dtype, view.shape, held.back()});
      }
      forge(tensors);
      const fs::path made = folder_.path() / "forged.safetensors";
      write_safetensors(made, tensors);
      fs::rename(made, path);
      auto json = nlohmann::ordered_json::parse(honest);
      json[which + "_sha256"] = sha256_file(path);
      write_checked_file(state, json.dump(1) + "\n");
      expect_error<std::runtime_error>([&] { train_in("run", *make_student()); },
                                       {path.filename().string(), "is damaged", "--fresh", what});
      write_file_atomically(path, bytes);
      write_checked_file(state, honest);
    };
    std::vector<float> values;
    const auto with_value = [&](float value) {
      return [&values, value](std::vector<NamedTensor>& tensors) {
        values.assign(tensors.front().data.size() / sizeof(float), 0.0f);
        values.back() = value;
        tensors.front().data = std::as_bytes(std::span(values));
      };
    };
    refused("no training has", with_value(std::numeric_limits<float>::infinity()));
    refused("no training has", with_value(std::numeric_limits<float>::quiet_NaN()));
    refused("shape", [](std::vector<NamedTensor>& tensors) {
      const auto matrix = std::find_if(tensors.begin(), tensors.end(),
                                       [](const auto& t) { return t.shape.size() == 2 && t.shape[0] != t.shape[1]; });
      std::swap(matrix->shape[0], matrix->shape[1]);
    });
    refused("float32", [](std::vector<NamedTensor>& tensors) { tensors.front().dtype = DType::I32; });
    refused("tensors", [](std::vector<NamedTensor>& tensors) { tensors.pop_back(); });
    refused("no tensor", [](std::vector<NamedTensor>& tensors) { tensors.front().name = "another"; });
    if (which == "step") {
      refused("no training has", [&](std::vector<NamedTensor>& tensors) {
        const auto square =
            std::find_if(tensors.begin(), tensors.end(), [](const auto& t) { return t.name.ends_with(".second"); });
        values.assign(square->data.size() / sizeof(float), -1.0f);
        square->data = std::as_bytes(std::span(values));
      });
    }
  }
  train_in("run", *make_student());
}

}  // namespace
}  // namespace pare
