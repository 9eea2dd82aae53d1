// Makes students of the tiny checkpoints of every family. The runtime reads what is written and computes with it.
// Planted redundancy (layers that add nothing, channels that are zero or alike) must leave the function as it was.
#include "compress/student/student.h"

#include <gtest/gtest.h>
#include <omp.h>

#include <cstdlib>
#include <fstream>
#include <functional>
#include <sstream>

#include "compress/student/measure.h"
#include "runtime/files/safetensors.h"
#include "tests/expect_error.h"
#include "tests/places.h"
#include "tests/runtime/engine/tiny_models.h"
#include "tests/temporary_folder.h"

namespace pare {
using namespace compress;
using namespace runtime;
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

const std::vector<std::string> kDense = {"llama_gqa_untied",  "llama_mqa_biases", "mistral_window",
                                         "qwen2_biases_tied", "llama3_rope_tied", "gemma3_local_global"};
const fs::path kStories = fs::path(kSourceFolder) / "calibration_data/stories260k";

struct Weight {
  std::vector<int64_t> shape;
  std::vector<float> values;
  int64_t num_columns() const { return shape.size() == 2 ? shape[1] : 1; }
  float& at(int64_t row, int64_t column = 0) { return values[static_cast<size_t>(row * num_columns() + column)]; }
};
using Weights = std::map<std::string, Weight>;

class Student : public testing::Test {
 protected:
  // Makes a copy of the model in float32 with weights and config.json changed.
  fs::path edited(const fs::path& model, const std::function<void(Weights&, const ModelDescription&)>& edit,
                  const Json& config_changes = Json::object()) {
    const Checkpoint source = Checkpoint::open(model);
    Weights weights;
    for (const std::string& name : source.tensor_names()) {
      const TensorView& view = source.tensor(name);
      Weight weight{view.shape, std::vector<float>(static_cast<size_t>(view.num_elements()))};
      convert_to_float(view.dtype, view.data, weight.values);
      weights[name] = weight;
    }
    edit(weights, source.description());
    const fs::path directory = fresh("teacher");
    fs::create_directories(directory);
    std::vector<NamedTensor> tensors;
    for (const auto& [name, weight] : weights) {
      tensors.push_back({name, DType::F32, weight.shape, std::as_bytes(std::span(weight.values))});
    }
    write_safetensors(directory / "model.safetensors", tensors);
    Json config = Json::parse(source.config_json());
    config.erase("torch_dtype");
    config["dtype"] = "float32";
    config.update(config_changes);
    std::ofstream(directory / "config.json") << config.dump(1);
    return directory;
  }
  fs::path fresh(const std::string& name) { return folder_.path() / (name + std::to_string(number_++)); }

  fs::path make(const fs::path& teacher, const StudentOptions& options, const TokenWindows* calibration = nullptr) {
    const fs::path directory = fresh("student");
    std::ostringstream out;
    Progress progress(ProgressStyle::silent, out);
    make_student(Checkpoint::open(teacher), options, calibration, directory, progress);
    return directory;
  }

  TemporaryFolder folder_;
  int number_ = 0;
};

TokenWindows windows_of(const std::string& family) {
  return read_npy(family_path(family) / "ids.npy");
}

TokenWindows story_windows() {
  TokenWindows windows{.num_windows = 3, .num_tokens = 40, .ids_NT = {}};
  for (int i = 0; i < 120; ++i) windows.ids_NT.push_back(1 + i * 37 % 500);
  return windows;
}

std::vector<float> logits(const fs::path& directory, const TokenWindows& windows) {
  const std::unique_ptr<Backend> backend = backend_named("reference");
  Transformer model = Transformer::load(Checkpoint::open(directory), *backend);
  return prefill_logits(model, windows.ids_NT, windows.num_windows);
}

// Sums have fewer than 100 products in float32, through up to five blocks, as in DecoderBlock's comparison with
// transformers.
void expect_same_function(const fs::path& student, const fs::path& teacher, const TokenWindows& windows,
                          const std::string& what) {
  const std::vector<float> expected = logits(teacher, windows), found = logits(student, windows);
  ASSERT_EQ(found.size(), expected.size()) << what;
  float largest = 0.0f, difference = 0.0f;
  for (size_t i = 0; i < found.size(); ++i) {
    largest = std::max(largest, std::fabs(expected[i]));
    difference = std::max(difference, std::fabs(expected[i] - found[i]));
  }
  EXPECT_GT(largest, 0.1f) << what;
  EXPECT_LT(difference, 1e-4f * largest) << what;
}

bool same_bytes(const TensorView& a, const TensorView& b) {
  return a.dtype == b.dtype && a.shape == b.shape && std::ranges::equal(a.data, b.data);
}

Json config_of(const fs::path& directory) {
  return Json::parse(file_text(directory / "config.json"));
}

// Returns a name such as "model.layers.1.mlp.down_proj.weight".
std::string in_layer(int64_t layer, const std::string& below) {
  return "model.layers." + std::to_string(layer) + "." + below;
}

TEST_F(Student, WithAllLayersIsItsTeacherBitByBit) {
  std::vector<fs::path> models = {kStories};
  for (const std::string& family : families()) models.push_back(family_path(family));
  for (const fs::path& model : models) {
    const fs::path directory = make(model, {});
    const Checkpoint teacher = Checkpoint::open(model), student = Checkpoint::open(directory);
    for (const std::string& name : teacher.tensor_names()) {
      if (teacher.description().tied_head && name == "lm_head.weight") continue;
      EXPECT_TRUE(same_bytes(student.tensor(name), teacher.tensor(name))) << model << " " << name;
    }
    // A quantization_config of experts that are decoded is left out.
    EXPECT_EQ(config_of(directory), nlohmann::json::parse(teacher.config_json())) << model;
  }
}

TEST_F(Student, CopiesTheTokenizerAndReplacesTheWeights) {
  const fs::path directory = make(kStories, {.layers = 2});
  for (const char* name : {"tokenizer.json", "tokenizer_config.json"}) {
    EXPECT_EQ(file_text(directory / name), file_text(kStories / name));
  }
  const Checkpoint teacher = Checkpoint::open(kStories), student = Checkpoint::open(directory);
  ASSERT_EQ(student.description().blocks.size(), 2u);
  for (const auto& [to, from] : {std::pair{0, 0}, std::pair{1, 4}}) {
    EXPECT_TRUE(same_bytes(student.tensor(in_layer(to, "mlp.down_proj.weight")),
                           teacher.tensor(in_layer(from, "mlp.down_proj.weight"))));
  }
}

TEST_F(Student, AsWideAsItsTeacherIsItsTeacher) {
  for (const std::string& family : kDense) {
    const ModelDescription model = Checkpoint::open(family_path(family)).description();
    for (const WidthChoice widths : {WidthChoice::importance, WidthChoice::average}) {
      const fs::path directory = make(family_path(family), {.heads = model.num_heads,
                                                            .kv_heads = model.num_kv_heads,
                                                            .hidden_size = model.hidden_size,
                                                            .feed_forward_size = model.feed_forward_size,
                                                            .widths = widths});
      const Checkpoint teacher = Checkpoint::open(family_path(family)), student = Checkpoint::open(directory);
      for (const std::string& name : student.tensor_names()) {
        EXPECT_TRUE(same_bytes(student.tensor(name), teacher.tensor(name))) << family << " " << name;
      }
    }
  }
}

// transformers runs with the same layers taken out of its own model. The same weights in the same program must give
// equal results.
TEST_F(Student, TransformersComputesWhatItDoesWithoutThoseLayers) {
  const char* python = std::getenv("PARE_PYTHON");
  ASSERT_NE(python, nullptr) << "PARE_PYTHON is not set: it must name a Python with torch and transformers (make test "
                                "sets one up)";
  const std::vector<std::tuple<std::string, int64_t, LayerChoice, std::string>> cases = {
      {"gemma3_local_global", 2, LayerChoice::every, "0,2"},
      {"gemma3_local_global", 2, LayerChoice::first, "0,1"},
      {"llama_gqa_untied", 1, LayerChoice::every, "0"},
      {"qwen2_biases_tied", 1, LayerChoice::every, "0"},
      {"qwen3_norms_bf16", 1, LayerChoice::every, "0"},
      {"mistral_window", 1, LayerChoice::every, "0"},
      {"qwen3_moe_dense_block_bf16", 2, LayerChoice::first, "0,1"},
      {"mixtral_experts", 1, LayerChoice::every, "0"}};
  const fs::path log = folder_.path() / "log";
  std::string line =
      std::string("'") + python + "' '" + kSourceFolder + "/tests/compress/student/students_with_transformers.py'";
  for (const auto& [family, layers, choose, kept] : cases) {
    const fs::path directory = make(family_path(family), {.layers = layers, .choose = choose});
    line += " '" + family_path(family).string() + "' '" + directory.string() + "' '" +
            (family_path(family) / "ids.npy").string() + "' " + kept;
  }
  line += " >'" + log.string() + "' 2>&1";
  EXPECT_EQ(std::system(line.c_str()), 0) << file_text(log);
}

TEST_F(Student, DroppingZeroFeedForwardChannelsChangesNothing) {
  for (const std::string& family : kDense) {
    const fs::path teacher = edited(family_path(family), [](Weights& weights, const ModelDescription& model) {
      const int64_t num_kept = model.feed_forward_size - 24;
      for (auto& [name, weight] : weights) {
        if (name.find("gate_proj") == std::string::npos && name.find("up_proj") == std::string::npos) continue;
        for (int64_t f = num_kept; f < model.feed_forward_size; ++f) {
          for (int64_t d = 0; d < weight.num_columns(); ++d) weight.at(f, d) = 0.0f;
        }
      }
    });
    const TokenWindows windows = windows_of(family);
    const int64_t size = Checkpoint::open(teacher).description().feed_forward_size - 24;
    for (const TokenWindows* calibration : {static_cast<const TokenWindows*>(nullptr), &windows}) {
      const fs::path student = make(teacher, {.feed_forward_size = size}, calibration);
      EXPECT_EQ(config_of(student)["intermediate_size"], size);
      expect_same_function(student, teacher, windows, family);
    }
  }
}

TEST_F(Student, DroppingHeadsThatNobodyReadsChangesNothing) {
  const std::string family = "qwen3_norms_bf16";
  const fs::path teacher = edited(family_path(family), [](Weights& weights, const ModelDescription& model) {
    for (size_t b = 0; b < model.blocks.size(); ++b) {  // the first kv group in one layer, the second in the other
      Weight& o = weights.at(model.blocks[b].o.name + ".weight");
      for (int64_t d = 0; d < o.shape[0]; ++d) {
        for (int64_t i = 0; i < o.shape[1] / 2; ++i) o.at(d, i + static_cast<int64_t>(b) * o.shape[1] / 2) = 0.0f;
      }
    }
  });
  const TokenWindows windows = windows_of(family);
  for (const TokenWindows* calibration : {static_cast<const TokenWindows*>(nullptr), &windows}) {
    const fs::path student = make(teacher, {.heads = 2, .kv_heads = 1}, calibration);
    EXPECT_EQ(config_of(student)["num_attention_heads"], 2);
    EXPECT_EQ(config_of(student)["num_key_value_heads"], 1);
    EXPECT_EQ(config_of(student)["head_dim"], 32);
    expect_same_function(student, teacher, windows, "whole groups");
  }
}

// Nothing writes a zero channel of the model's width. The norms' mean squares grow by D / D', and the gains make up for
// that. epsilon is set so small that it has no effect.
TEST_F(Student, DroppingZeroChannelsOfTheWidthChangesNothing) {
  for (const std::string& family : kDense) {
    const fs::path teacher = edited(
        family_path(family),
        [](Weights& weights, const ModelDescription& model) {
          for (auto& [name, weight] : weights) {
            const bool is_written =
                name.find("o_proj") != std::string::npos || name.find("down_proj") != std::string::npos;
            const bool is_post_norm = model.family == "gemma3" && (name.find("post_attention") != std::string::npos ||
                                                                   name.find("post_feedforward") != std::string::npos);
            for (int64_t d = 0; d < model.hidden_size; d += 4) {
              if (is_post_norm) weight.at(d) = -1.0f;  // makes the gain 0
              for (int64_t i = 0; is_written && i < weight.num_columns(); ++i) weight.at(d, i) = 0.0f;
              for (int64_t v = 0; name == "model.embed_tokens.weight" && v < weight.shape[0]; ++v)
                weight.at(v, d) = 0.0f;
            }
          }
        },
        {{"rms_norm_eps", 1e-12}});
    const TokenWindows windows = windows_of(family);
    const int64_t width = Checkpoint::open(teacher).description().hidden_size * 3 / 4;
    for (const TokenWindows* calibration : {static_cast<const TokenWindows*>(nullptr), &windows}) {
      const fs::path student = make(teacher, {.hidden_size = width}, calibration);
      EXPECT_EQ(config_of(student)["hidden_size"], width);
      expect_same_function(student, teacher, windows, family + (calibration ? " measured" : ""));
    }
  }
}

// Alike heads have the same queries and read the same keys and values. So each makes the same mixture of values, and o
// adds (o_1 + o_2) of it. The mean of the heads with the sum of o's columns is the same function, whatever o is.
TEST_F(Student, AveragingAlikeHeadsChangesNothing) {
  for (const std::string family : {"llama_gqa_untied", "qwen2_biases_tied", "gemma3_local_global"}) {
    const TokenWindows windows = windows_of(family);
    const auto repeat = [](Weight& weight, int64_t head_size, int64_t from, int64_t to) {
      for (int64_t k = 0; k < head_size; ++k) {
        for (int64_t i = 0; i < weight.num_columns(); ++i)
          weight.at(to * head_size + k, i) = weight.at(from * head_size + k, i);
      }
    };
    const auto repeat_in = [&](const std::string& part, std::vector<std::pair<int64_t, int64_t>> pairs) {
      return [=](Weights& weights, const ModelDescription& model) {
        for (auto& [name, weight] : weights) {
          if (name.find(part + "_proj") == std::string::npos) continue;
          for (const auto& [from, to] : pairs) repeat(weight, model.head_size, from, to);
        }
      };
    };
    // Heads 0 and 2 are alike, and so are 1 and 3, in both groups.
    const auto both = [&](Weights& weights, const ModelDescription& model) {
      repeat_in("q", {{0, 2}, {1, 3}})(weights, model);
      repeat_in("k", {{0, 1}})(weights, model);
      repeat_in("v", {{0, 1}})(weights, model);
    };
    fs::path teacher = edited(family_path(family), repeat_in("q", {{0, 1}, {2, 3}}));
    expect_same_function(make(teacher, {.heads = 2, .widths = WidthChoice::average}), teacher, windows, family);
    teacher = edited(family_path(family), [&](Weights& weights, const ModelDescription& model) {
      repeat_in("k", {{0, 1}})(weights, model);
      repeat_in("v", {{0, 1}})(weights, model);
    });
    expect_same_function(make(teacher, {.kv_heads = 1, .widths = WidthChoice::average}), teacher, windows, family);
    teacher = edited(family_path(family), both);
    const fs::path student = make(teacher, {.heads = 2, .kv_heads = 1, .widths = WidthChoice::average});
    expect_same_function(student, teacher, windows, family);
    EXPECT_EQ(config_of(student)["head_dim"], 16);
  }
}

// Neighbouring channels of the feed-forward and of the width are alike. Gains before linears differ within a group.
// After a post norm they make the channels, so there they are alike too. The norms' mean squares stay, so epsilon has
// no effect.
TEST_F(Student, AveragingAlikeChannelsChangesNothing) {
  for (const std::string& family : kDense) {
    const fs::path teacher = edited(family_path(family), [](Weights& weights, const ModelDescription& model) {
      for (auto& [name, weight] : weights) {
        const auto has = [&, &name = name](const char* part) { return name.find(part) != std::string::npos; };
        const bool is_post_norm = model.family == "gemma3" && (has("post_attention") || has("post_feedforward"));
        const bool has_rows = has("gate_proj") || has("up_proj") || has("o_proj") || has("down_proj") || is_post_norm;
        for (int64_t row = 0; has_rows && row < weight.shape[0]; row += 2) {
          for (int64_t i = 0; i < weight.num_columns(); ++i) weight.at(row + 1, i) = weight.at(row, i);
        }
        for (int64_t v = 0; name == "model.embed_tokens.weight" && v < weight.shape[0]; ++v) {
          for (int64_t d = 0; d < weight.shape[1]; d += 2) weight.at(v, d + 1) = weight.at(v, d);
        }
      }
    });
    const TokenWindows windows = windows_of(family);
    const ModelDescription model = Checkpoint::open(teacher).description();
    for (const TokenWindows* calibration : {static_cast<const TokenWindows*>(nullptr), &windows}) {
      const fs::path student = make(teacher,
                                    {.hidden_size = model.hidden_size / 2,
                                     .feed_forward_size = model.feed_forward_size / 2,
                                     .widths = WidthChoice::average},
                                    calibration);
      expect_same_function(student, teacher, windows, family + (calibration ? " measured" : ""));
    }
  }
}

TEST_F(Student, ABlockThatAddsNothingHasNoInfluenceAndIsDroppedFirst) {
  for (const int64_t planted : {0, 2, 3}) {
    const fs::path teacher = edited(kStories, [&](Weights& weights, const ModelDescription&) {
      for (const char* name : {"self_attn.o_proj.weight", "mlp.down_proj.weight"}) {
        std::ranges::fill(weights.at(in_layer(planted, name)).values, 0.0f);
      }
    });
    const TokenWindows windows = story_windows();
    std::ostringstream out;
    Progress progress(ProgressStyle::silent, out);
    const TeacherMeasure measure = measure_teacher(Checkpoint::open(teacher), windows, std::nullopt, progress);
    for (int64_t b = 0; b < 5; ++b) {
      const double influence = measure.blocks[static_cast<size_t>(b)].influence;
      if (b == planted) {
        EXPECT_EQ(influence, 0.0);
      } else {
        EXPECT_GT(influence, 1e-3);
      }
    }
    const fs::path student = make(teacher, {.layers = 4, .choose = LayerChoice::block_error}, &windows);
    ASSERT_EQ(Checkpoint::open(student).description().blocks.size(), 4u);
    expect_same_function(student, teacher, windows, "planted " + std::to_string(planted));
  }
}

// The first norm reads the embedding's rows, whose shares plain loops give.
TEST_F(Student, SharesOfTheFirstNormAreThoseOfTheEmbedding) {
  const TokenWindows windows = story_windows();
  const Checkpoint teacher = Checkpoint::open(kStories);
  std::ostringstream out;
  Progress progress(ProgressStyle::silent, out);
  const int64_t width = teacher.description().hidden_size;
  const NormMeasure found = measure_teacher(teacher, windows, width / 2, progress).blocks.front().attention_norm;
  const TensorView& view = teacher.tensor("model.embed_tokens.weight");
  std::vector<float> table(static_cast<size_t>(view.num_elements()));
  convert_to_float(view.dtype, view.data, table);
  std::vector<double> shares(static_cast<size_t>(width), 0.0);
  double merged = 0.0;
  for (const int32_t id : windows.ids_NT) {
    const float* row = table.data() + id * width;
    double energy = 0.0, of_means = 0.0;
    for (int64_t d = 0; d < width; ++d) energy += static_cast<double>(row[d]) * row[d];
    for (int64_t d = 0; d < width; ++d) shares[static_cast<size_t>(d)] += static_cast<double>(row[d]) * row[d] / energy;
    for (int64_t d = 0; d < width; d += 2) of_means += std::pow((static_cast<double>(row[d]) + row[d + 1]) / 2.0, 2);
    merged += 2.0 * of_means / energy;
  }
  const auto num_tokens = static_cast<double>(windows.ids_NT.size());
  for (size_t d = 0; d < shares.size(); ++d) EXPECT_NEAR(found.share_D[d], shares[d] / num_tokens, 1e-12);
  EXPECT_NEAR(found.merged_ratio, merged / num_tokens, 1e-12);
}

TEST_F(Student, TheMeanOfAlikeLayersIsThatLayer) {
  const fs::path teacher = edited(kStories, [](Weights& weights, const ModelDescription&) {
    for (auto& [name, weight] : weights) {
      for (const auto& [from, to] : {std::pair{0, 1}, std::pair{4, 3}, std::pair{0, 2}}) {
        const std::string prefix = in_layer(to, "");
        if (name.starts_with(prefix)) weight = weights.at(in_layer(from, name.substr(prefix.size())));
      }
    }
  });
  // Layers 0 and 4 are kept. 0, 1 and 2 are one run, and 3 and 4 the other.
  const fs::path merged = make(teacher, {.layers = 2, .merge = LayerMerge::average});
  const fs::path copied = make(teacher, {.layers = 2});
  EXPECT_EQ(file_text(merged / "model.safetensors"), file_text(copied / "model.safetensors"));
  EXPECT_NE(file_text(make(kStories, {.layers = 2, .merge = LayerMerge::average}) / "model.safetensors"),
            file_text(make(kStories, {.layers = 2}) / "model.safetensors"));
}

// gemma3's layers 0 and 1 slide, and 2 does not. 0 and 2 are kept, and 1, a tie, goes with 0.
TEST_F(Student, LayersOfAnotherKindHaveNoPartInAMean) {
  const fs::path teacher = family_path("gemma3_local_global");
  const Checkpoint source = Checkpoint::open(teacher);
  const Checkpoint student = Checkpoint::open(make(teacher, {.layers = 1, .merge = LayerMerge::average}));
  const auto value = [](const Checkpoint& checkpoint, int64_t layer) {
    const TensorView& view = checkpoint.tensor(in_layer(layer, "mlp.up_proj.weight"));
    std::vector<float> values(static_cast<size_t>(view.num_elements()));
    convert_to_float(view.dtype, view.data, values);
    return values[5];
  };
  EXPECT_EQ(value(student, 0), static_cast<float>((static_cast<double>(value(source, 0)) + value(source, 1)) / 2.0));
}

TEST_F(Student, ConfigSaysOfTheKeptLayersWhatItSaidOfTheTeachers) {
  Json config = config_of(make(family_path("gemma3_local_global"), {.layers = 2}));
  EXPECT_EQ(config["layer_types"], Json({"sliding_attention", "full_attention"}));
  EXPECT_FALSE(config.contains("_sliding_window_pattern"));
  config = config_of(make(family_path("qwen2_biases_tied"), {.layers = 1}));
  EXPECT_EQ(config["layer_types"], Json({"full_attention"}));
  EXPECT_EQ(config["max_window_layers"], 1);
  config = config_of(make(family_path("qwen3_moe_dense_block_bf16"), {.layers = 2, .choose = LayerChoice::first}));
  EXPECT_EQ(config["mlp_only_layers"], Json({1}));
  config = config_of(make(family_path("qwen3_moe_dense_block_bf16"), {.layers = 2}));
  EXPECT_EQ(config["mlp_only_layers"], Json::array());
  config = config_of(make(family_path("qwen2_biases_tied"), {.hidden_size = 32}));
  EXPECT_EQ(config["head_dim"], 16);
  EXPECT_EQ(config["vocab_size"], 128);

  // Older files have no layer_types. With a period of 3, layers 2 and 5 see everything.
  copy_family("gemma3_local_global", folder_.path() / "old", {{"layer_types", nullptr}, {"sliding_window_pattern", 2}});
  config = config_of(make(folder_.path() / "old", {.layers = 2}));
  EXPECT_EQ(config["layer_types"], Json({"sliding_attention", "sliding_attention"}));
  EXPECT_FALSE(config.contains("sliding_window_pattern"));
}

TEST_F(Student, TheSameBytesOnAnyNumberOfThreads) {
  const TokenWindows windows = story_windows();
  const StudentOptions options{.layers = 3,
                               .choose = LayerChoice::block_error,
                               .merge = LayerMerge::average,
                               .heads = 4,
                               .hidden_size = 48,
                               .feed_forward_size = 100};
  std::string first;
  const int threads = omp_get_max_threads();
  for (const int num_threads : {1, 2, 5}) {
    omp_set_num_threads(num_threads);
    const std::string bytes = file_text(make(kStories, options, &windows) / "model.safetensors");
    if (first.empty()) first = bytes;
    EXPECT_EQ(bytes, first) << num_threads;
  }
  omp_set_num_threads(threads);
}

// Blocks behind the last one predict later tokens from what the teacher's last block makes.
TEST_F(Student, BlocksOfLaterTokensAreNotKept) {
  const fs::path teacher = edited(family_path("deepseek_v3_moe_groups"),
                                  [](Weights& weights, const ModelDescription& model) {
                                    const std::string last = model.blocks.back().name;
                                    Weights more;
                                    for (const auto& [name, weight] : weights) {
                                      if (name.starts_with(last + "."))
                                        more["model.layers.3" + name.substr(last.size())] = weight;
                                    }
                                    weights.merge(more);
                                  },
                                  {{"num_nextn_predict_layers", 1}});
  const fs::path student = make(teacher, {.layers = 2});
  EXPECT_EQ(config_of(student)["num_nextn_predict_layers"], 0);
  for (const std::string& name : Checkpoint::open(student).tensor_names()) {
    EXPECT_EQ(name.find("layers.2."), std::string::npos) << name;
    EXPECT_EQ(name.find("layers.3."), std::string::npos) << name;
  }
  EXPECT_EQ(num_blocks_behind(Checkpoint::open(teacher)), 1);
  EXPECT_EQ(num_blocks_behind(Checkpoint::open(student)), 0);
  const fs::path whole = make(teacher, {.layers = 3});  // as deep as its teacher
  EXPECT_EQ(config_of(whole)["num_nextn_predict_layers"], 1);
  EXPECT_EQ(num_blocks_behind(Checkpoint::open(whole)), 1);
}

TEST_F(Student, WhatCannotBeMadeIsRefusedBeforeAnyWork) {
  const auto refused = [&](const fs::path& teacher, const StudentOptions& options,
                           std::initializer_list<std::string> parts, const TokenWindows* calibration = nullptr) {
    expect_error<std::invalid_argument>([&] { make(teacher, options, calibration); }, parts);
  };
  const fs::path llama = family_path("llama_gqa_untied"), mixture = family_path("mixtral_experts");
  refused(fs::path(kSourceFolder) / "tests/golden/encoders/bert_tiny", {}, {"expected a decoder", "bert_tiny"});
  refused(mixture, {.heads = 2}, {"mixture of experts", "leave out 'heads'"});
  refused(mixture, {.layers = 1, .merge = LayerMerge::average}, {"mixture of experts", "merge: copy"});
  refused(llama, {.layers = 3}, {"layers", "from 1 to the teacher's 2", "found 3"});
  refused(llama, {.heads = 5}, {"heads", "the teacher's 4", "found 5"});
  refused(llama, {.kv_heads = 4}, {"kv_heads", "the teacher's 2"});
  refused(llama, {.hidden_size = 65}, {"hidden_size", "the teacher's 64"});
  refused(llama, {.feed_forward_size = 97}, {"feed_forward_size", "the teacher's 96"});
  refused(llama, {.heads = 3}, {"multiple of the kv heads", "3 heads and 2 kv heads", "'kv_heads'"});
  refused(llama, {.kv_heads = 1}, {"4 heads for a kv head", "averaging"});
  refused(llama, {.hidden_size = 48, .widths = WidthChoice::average}, {"divisor of the teacher's 64", "found 48"});
  refused(llama, {.layers = 1, .choose = LayerChoice::block_error}, {"block_error", "give a calibration"});
  const TokenWindows foreign{.num_windows = 1, .num_tokens = 2, .ids_NT = {1, 128}}, none;
  refused(llama, {.layers = 1, .choose = LayerChoice::block_error}, {"token id 128", "128"}, &foreign);
  refused(llama, {.layers = 1, .choose = LayerChoice::block_error}, {"at least one window"}, &none);

  fs::create_directories(folder_.path() / "full");
  std::ofstream(folder_.path() / "full" / "file") << "x";
  std::ostringstream out;
  Progress progress(ProgressStyle::silent, out);
  expect_error<std::runtime_error>(
      [&] { make_student(Checkpoint::open(llama), {}, nullptr, folder_.path() / "full", progress); },
      {"expected an empty folder", "full"});
  const fs::path damaged = edited(llama, [](Weights& weights, const ModelDescription&) {
    weights.at(in_layer(1, "mlp.up_proj.weight")).values[3] = std::nanf("");
  });
  expect_error<std::runtime_error>([&] { make(damaged, {.layers = 1}); }, {"layers.1.mlp.up_proj"});
}

}  // namespace
}  // namespace pare
