// Checkpoints whose files or index name tensors otherwise than the model's description does.
#include <gtest/gtest.h>

#include <cstring>

#include "runtime/model/checkpoint.h"
#include "tests/expect_error.h"
#include "tests/runtime/model/checkpoint_draft.h"

namespace pare::test {
using namespace runtime;
namespace {

constexpr const char* kFirst = "model-00001-of-00002.safetensors";
constexpr const char* kSecond = "model-00002-of-00002.safetensors";

class StoredNamesTest : public CheckpointTest {
 protected:
  // Gives the tensors other names. "" takes one away.
  static Draft renamed(const Draft& draft, const std::function<std::string(const std::string&)>& name_of) {
    Draft result;
    result.config = draft.config;
    for (const auto& [name, tensor] : draft.tensors) {
      OwnedTensor copy = tensor;
      copy.name = name_of(name);
      if (!copy.name.empty()) result.add(std::move(copy));
    }
    return result;
  }
  static std::string with_base(const std::string& base, const std::string& name) {
    return name.starts_with("model.") ? base + name.substr(6) : name;
  }
  // Opens what `stored` holds, and compares each of the model's tensors with that of `draft`.
  void expect_reads(const Draft& stored, const Draft& draft) const {
    write(stored);
    expect_opens_as(draft);
  }
  void expect_chosen(Json index, const char* file, const Draft& draft) const {
    index["weight_map"]["model.norm.weight"] = file;
    write_index(index);
    expect_opens_as(draft);
  }
  void expect_opens_as(const Draft& draft) const {
    const Checkpoint checkpoint = Checkpoint::open(directory_);
    for (const auto& [name, tensor] : draft.tensors) {
      const TensorView& view = checkpoint.tensor(name);
      ASSERT_EQ(view.data.size(), tensor.data.size()) << name;
      EXPECT_EQ(std::memcmp(view.data.data(), tensor.data.data(), tensor.data.size()), 0) << name;
      EXPECT_EQ(checkpoint.written_name(name), name);
    }
    checkpoint.check_values();
  }
};

TEST_F(StoredNamesTest, AnyPrefixOfTheModulesIsRead) {
  for (const bool tied : {false, true}) {
    const Draft draft = tiny_llama(tied);
    for (const char* base : {"", "language_model.model.", "model.language_model.", "model.text_model."}) {
      SCOPED_TRACE(base);
      expect_reads(renamed(draft, [&](const std::string& name) { return with_base(base, name); }), draft);
    }
    expect_reads(renamed(draft,
                         [&](const std::string& name) {
                           return (name.starts_with("lm_head") ? "language_model." : "") +
                                  with_base("language_model.model.", name);
                         }),
                 draft);
  }
}

TEST_F(StoredNamesTest, OtherTensorsKeepTheirNames) {
  Draft draft = tiny_llama();
  draft.add_random("vision.layers.0.norm.weight", {8});
  draft.add_random("mtp.layers.0.input_layernorm.weight", {8});  // one more block, which has no embedding
  expect_reads(renamed(draft,
                       [&](const std::string& name) {
                         return name.starts_with("mtp") ? name : with_base("language_model.model.", name);
                       }),
               draft);
}

TEST_F(StoredNamesTest, MessagesNameTheTensorAsTheFileDoes) {
  Draft draft = renamed(tiny_llama(), [&](const std::string& name) { return with_base("", name); });
  draft.tensors.erase("layers.0.mlp.up_proj.weight");
  expect_all_in(refusal(draft), {"'layers.0.mlp.up_proj.weight' is missing"});
  draft.add_random("layers.0.mlp.up_proj.weight", {8, 8});
  expect_all_in(refusal(draft), {"'layers.0.mlp.up_proj.weight'", "expected shape [16, 8]", "found [8, 8]"});
}

TEST_F(StoredNamesTest, TwoModelsInOneFileAreRefused) {
  const Draft draft = tiny_llama();
  Draft both = renamed(draft, [&](const std::string& name) { return with_base("thinker.", name); });
  for (const auto& [name, tensor] :
       renamed(draft, [&](const std::string& n) { return with_base("talker.", n); }).tensors) {
    both.tensors[name] = tensor;
  }
  expect_all_in(refusal(both), {"model.layers.0.input_layernorm.weight", "'talker.layers.0.input_layernorm.weight'",
                                "'thinker.layers.0.input_layernorm.weight'", "save the language model by itself"});
}

TEST_F(StoredNamesTest, OneTensorUnderTwoNamesIsRefused) {
  Draft draft = renamed(tiny_llama(), [&](const std::string& name) { return with_base("", name); });
  draft.add_random("model.norm.weight", {8});
  expect_all_in(refusal(draft), {"model.norm.weight", "another name", "'norm.weight'"});
}

// As transformers does: it ties the one that is missing to the one that is there.
TEST_F(StoredNamesTest, ATiedPairIsReadUnderEitherName) {
  const Draft draft = tiny_llama(true);
  for (const char* base : {"model.", "", "language_model.model."}) {
    expect_reads(renamed(draft,
                         [&](const std::string& name) {
                           return name == "model.embed_tokens.weight" ? "lm_head.weight" : with_base(base, name);
                         }),
                 draft);
    EXPECT_EQ(Checkpoint::open(directory_).head().name, "model.embed_tokens");
  }
}

// --- The index: it says which files there are. What they hold, they say themselves, as in transformers. ---

TEST_F(StoredNamesTest, AnIndexThatIsOlderThanItsFilesIsRead) {
  const Draft draft = tiny_llama();
  const Json index = write_sharded(draft, "model.layers.0.mlp.up_proj.weight");

  Json stale = index;  // a tensor of a part that was cut off
  stale["weight_map"]["model.mtp.fc.weight"] = kSecond;
  write_index(stale);
  expect_opens_as(draft);

  for (const char* name : {"lm_head.weight", "model.norm.weight"}) {
    stale = index;  // a tensor that a shard holds, and of which the index does not know
    stale["weight_map"].erase(name);
    write_index(stale);
    expect_opens_as(draft);
    stale["weight_map"][name] = index["weight_map"][name] == kFirst ? kSecond : kFirst;  // or in the other shard
    write_index(stale);
    expect_opens_as(draft);
  }
}

TEST_F(StoredNamesTest, AMissingTensorThatTheIndexNamesIsToldSo) {
  Draft draft = tiny_llama();
  draft.tensors.erase("lm_head.weight");
  Json index = write_sharded(draft, "model.layers.0.mlp.up_proj.weight");
  index["weight_map"]["lm_head.weight"] = kSecond;
  write_index(index);
  const std::string message = refusal();
  expect_all_in(message, {"'lm_head.weight' is missing", kSecond, "model.safetensors.index.json", "same revision"});
  EXPECT_EQ(message.find("tie_word_embeddings"), std::string::npos) << message;
}

TEST_F(StoredNamesTest, AMissingTensorInAFileThatIsNotReadIsToldSo) {
  const Draft draft = tiny_llama();
  Draft without = draft;
  without.tensors.erase("lm_head.weight");
  write_sharded(without, "model.layers.0.mlp.up_proj.weight");
  write_tensors(directory_ / "model-00003-of-00003.safetensors",
                {{"lm_head.weight", draft.tensors.at("lm_head.weight")}});
  write_text(directory_ / "model-00004.safetensors", "not a file of tensors");
  expect_all_in(refusal(), {"'lm_head.weight' is missing", "'model-00003-of-00003.safetensors' holds it",
                            "model.safetensors.index.json does not name"});
  write(without);  // a single file is read alone
  expect_all_in(refusal(), {"'model-00003-of-00003.safetensors' holds it", "not read beside model.safetensors"});
}

TEST_F(StoredNamesTest, OfTwoFilesWithATensorTheIndexChooses) {
  const Draft draft = tiny_llama();
  const Json index = write_sharded(draft, "model.layers.0.mlp.up_proj.weight");
  Draft other = draft;
  other.tensors.at("model.norm.weight").data.back() ^= std::byte{1};
  write_tensors(directory_ / kFirst, draft.tensors);
  write_tensors(directory_ / kSecond, other.tensors);
  expect_chosen(index, kFirst, draft);
  expect_chosen(index, kSecond, other);
  Json silent = index;
  silent["weight_map"].erase("model.norm.weight");
  write_index(silent);
  expect_all_in(refusal(), {kFirst, kSecond, "different tensors 'model.norm.weight'", "same revision"});
}

}  // namespace
}  // namespace pare::test
