// Every file that is read as JSON, nested more deeply than recursion could bear: the program refuses it by name.
#include <gtest/gtest.h>

#include "runtime/commands/inspect.h"
#include "runtime/commands/verify.h"
#include "runtime/containers/awq_gemm.h"
#include "runtime/containers/bitsandbytes_int8.h"
#include "runtime/containers/compressed_tensors.h"
#include "runtime/containers/pare_int8.h"
#include "runtime/containers/pare_sparse24.h"
#include "runtime/engine/encoder.h"
#include "runtime/evaluate/instruction_data.h"
#include "runtime/evaluate/token_source.h"
#include "runtime/model/checkpoint.h"
#include "runtime/model/encoder_description.h"
#include "runtime/model/model_description.h"
#include "runtime/system/atomic_file.h"
#include "runtime/tokenizer/tokenizer.h"
#include "runtime/tokenizer/tokenizer_hash.h"
#include "tests/expect_error.h"
#include "tests/places.h"
#include "tests/temporary_folder.h"

namespace pare {
using namespace runtime;
namespace {

namespace fs = std::filesystem;

constexpr size_t kDepth = 80'000;

// The nesting is the value of the first key, so that readers that look at keys meet it too.
std::string deep_text() {
  return "{\"model\":" + std::string(kDepth - 1, '[') + std::string(kDepth - 1, ']') + "}";
}

class NestedJson : public testing::Test {
 protected:
  NestedJson() {
    fs::copy(fs::path(kSourceFolder) / "tests/golden/families/llama_gqa_untied", folder_.path(),
             fs::copy_options::recursive);
    write_file_atomically(folder_.path() / "tokenizer.json",
                          std::string_view(R"({"model":{"type":"BPE","vocab":{"a":0},"merges":[]}})"));
  }
  fs::path write(const std::string& name) {
    fs::create_directories((folder_.path() / name).parent_path());
    write_file_atomically(folder_.path() / name, deep_text());
    return folder_.path() / name;
  }
  template <typename Error, typename Read>
  void refused(const std::string& name, const Read& read) {
    expect_error<Error>(read, {name, "nested too deeply", std::to_string(kDepth), "at most 64"});
  }
  TemporaryFolder folder_;
};

TEST_F(NestedJson, InFilesOfACheckpoint) {
  EXPECT_NO_THROW(Checkpoint::open(folder_.path()));
  EXPECT_NO_THROW(Tokenizer::open(folder_.path()));
  const fs::path config = write("tokenizer_config.json");
  refused<std::runtime_error>("tokenizer_config.json", [&] { Tokenizer::open(folder_.path()); });
  fs::remove(config);
  write("tokenizer.json");
  refused<std::runtime_error>("tokenizer.json", [&] { Tokenizer::open(folder_.path()); });
  refused<std::runtime_error>("tokenizer.json", [&] { tokenizer_hash(folder_.path()); });
  write("pare.json");
  refused<std::runtime_error>("pare.json", [&] { verify(folder_.path(), {}); });
  refused<std::runtime_error>("pare.json", [&] { inspect(folder_.path()); });
  fs::rename(folder_.path() / "model.safetensors", folder_.path() / "elsewhere.safetensors");
  write("model.safetensors.index.json");
  refused<std::runtime_error>("model.safetensors.index.json", [&] { Checkpoint::open(folder_.path()); });
  write("config.json");
  refused<std::invalid_argument>("config.json", [&] { Checkpoint::open(folder_.path()); });
}

TEST_F(NestedJson, InPoolingSettings) {
  EncoderDescription model;
  model.context_length = 8;
  write("1_Pooling/config.json");
  refused<std::runtime_error>("1_Pooling/config.json", [&] { read_pooling(folder_.path(), model.context_length); });
  write("sentence_bert_config.json");
  refused<std::runtime_error>("sentence_bert_config.json", [&] { read_pooling(folder_.path(), model.context_length); });
}

TEST_F(NestedJson, InTexts) {
  const fs::path lines = write("text.jsonl"), list = write("examples.json");
  refused<std::runtime_error>("text.jsonl:1", [&] { read_texts(lines); });
  refused<std::runtime_error>("text.jsonl:1", [&] { read_instructions(lines, 1); });
  refused<std::runtime_error>("examples.json", [&] { read_instructions(list, 1); });
}

TEST_F(NestedJson, InDescriptionsAndContainers) {
  refused<std::invalid_argument>("c.json", [] { describe_model(deep_text(), "c.json"); });
  refused<std::invalid_argument>("c.json", [] { describe_encoder(deep_text(), "c.json"); });
  refused<std::invalid_argument>("c.json", [] { AwqConfig::parse(deep_text(), "c.json"); });
  refused<std::invalid_argument>("c.json", [] { BitsAndBytesConfig::parse(deep_text(), "c.json"); });
  refused<std::invalid_argument>("c.json", [] { PareInt8Config::parse(deep_text(), "c.json"); });
  refused<std::invalid_argument>("c.json", [] { PareSparse24Config::parse(deep_text(), "c.json"); });
  refused<std::invalid_argument>("c.json", [] { QuantizationConfig::parse(deep_text(), "c.json"); });
}

}  // namespace
}  // namespace pare
