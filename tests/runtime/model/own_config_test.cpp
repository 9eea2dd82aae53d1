// config.json of checkpoints that only pare reads: other programs find no model in it, and pare finds the original one.
#include "runtime/model/own_config.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "runtime/model/checkpoint.h"
#include "runtime/system/atomic_file.h"
#include "runtime/system/sha256.h"
#include "tests/expect_error.h"
#include "tests/runtime/sparse_checkpoint.h"
#include "tests/temporary_folder.h"

namespace pare {
using namespace runtime;
namespace {

using Json = nlohmann::json;

const Json kConfig = {{"architectures", {"LlamaForCausalLM"}},
                      {"model_type", "llama"},
                      {"hidden_size", 64},
                      {"quantization_config", {{"quant_method", "pare-sparse24"}, {"ignore", {"lm_head"}}}}};

TEST(OwnConfig, HasNoNameThatOthersGoBy) {
  const Json own = Json::parse(config_for_pare_alone(kConfig.dump(), "config.json"));
  EXPECT_EQ(own, Json({{"architectures", {"PareLlamaForCausalLM"}},
                       {"model_type", "pare_llama"},
                       {"hidden_size", 64},
                       {"quantization_config", {{"pare_method", "pare-sparse24"}, {"ignore", {"lm_head"}}}}}));
}

TEST(OwnConfig, GivesTheNamesBack) {
  const std::string own = config_for_pare_alone(kConfig.dump(), "config.json");
  EXPECT_EQ(Json::parse(config_of_model(own, "config.json")), kConfig);
  EXPECT_EQ(config_for_pare_alone(own, "config.json"), own) << "once is enough";
  const std::string others = R"({"model_type":  "llama", "note": "pare_"})";
  EXPECT_EQ(config_of_model(others, "config.json"), others) << "byte for byte";
  EXPECT_EQ(config_of_model("{\"pare_", "config.json"), "{\"pare_") << "no JSON: for its readers to report";
  Json without = kConfig;
  without.erase("architectures");
  EXPECT_EQ(Json::parse(config_of_model(config_for_pare_alone(without.dump(), "c"), "c")), without);
  expect_error<std::invalid_argument>([] { config_for_pare_alone("[]", "config.json"); },
                                      {"config.json", "model_type"});
}

// Files of earlier versions had the model's own names.
TEST(OwnConfig, CheckpointsOfBothKindsAreRead) {
  const TemporaryFolder folder;
  const SparseCheckpoint written = write_sparse_checkpoint(folder.path());
  const std::filesystem::path config = written.packed / "config.json";
  const Checkpoint before = Checkpoint::open(written.packed);
  const std::string own = config_for_pare_alone(read_text_file(config), config.string());
  write_file_atomically(config, own);
  const Checkpoint after = Checkpoint::open(written.packed);
  EXPECT_EQ(Json::parse(after.config_json()), Json::parse(before.config_json()));
  EXPECT_EQ(after.description().family, before.description().family);
  EXPECT_EQ(after.file_hashes().at("config.json"), sha256_hex(std::as_bytes(std::span(own)))) << "of the file itself";
  for (const auto& [name, scheme] : written.schemes) {
    const StoredLinear& linear = written.linears.at(name);
    EXPECT_EQ(after.stored_scheme({name, linear.weight.num_out, linear.weight.num_in, false}), scheme) << name;
  }
}

}  // namespace
}  // namespace pare
