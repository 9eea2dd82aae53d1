// Inputs that people give by mistake: each message says what the input is, and what helps.
#include <cstdio>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/files/npy.h"
#include "tests/places.h"
#include "tests/runtime/commands/pare_runtime.h"
#include "tests/small_disk.h"

namespace pare {
using namespace runtime;
namespace {

namespace fs = std::filesystem;
using Words = std::vector<std::string>;

const std::string kPointer =
    "version https://git-lfs.github.com/spec/v1\n"
    "oid sha256:4d7a214614ab2935c943f9e0ff69d22eadbb8f32b1258daaa5e2ca24d17e2393\nsize 269060552\n";

class MistakenInputs : public PareRuntime {
 protected:
  // Expects that every command that takes a model refuses `model` with a message that has these parts.
  void expect_all_refuse(const fs::path& model, std::initializer_list<std::string> parts) const {
    const std::string name = "'" + model.string() + "'";
    for (const std::string& words :
         Words{"eval " + name + " --text " + text_.string(), "generate " + name + " --prompt x",
               "eval " + name + " --instructions " + instructions_.string(), "bench " + name, "inspect " + name,
               "verify " + name, "tokenize " + name + " --text " + text_.string()}) {
      expect_failure(words, 1, parts);
    }
  }
  static void write(const fs::path& path, const std::string& content) {
    fs::create_directories(path.parent_path());
    std::ofstream(path) << content;
  }
  void SetUp() override {
    PareRuntime::SetUp();
    write(instructions_, R"([{"instruction": "a", "output": "b"}])");
  }

  fs::path instructions_ = folder_.path() / "instructions.json";
};

// A clone without Git LFS leaves such pointers. Their first bytes once gave "claims 2336927755350992246 bytes".
TEST_F(MistakenInputs, GitLfsPointersAreToldApart) {
  const std::initializer_list<std::string> parts = {"Git LFS pointer to a file of 269060552 bytes", "git lfs pull"};
  const fs::path gguf = folder_.path() / "x.gguf";
  write(gguf, kPointer);
  for (const std::string& words : Words{"inspect", "verify", "generate --prompt x", "bench"}) {
    write(model_ / "model.safetensors", kPointer);
    expect_failure(words + " " + model_.string(), 1, parts);
    if (words != "verify") expect_failure(words + " " + gguf.string(), 1, parts);
  }
  expect_failure("inspect " + (model_ / "model.safetensors").string(), 1, parts);
  expect_failure("eval " + model_.string() + " --text " + text_.string(), 1, parts);
  expect_failure("import " + gguf.string() + " " + (folder_.path() / "made").string(), 1, parts);
  write(model_ / "tokenizer.json", kPointer);
  expect_failure("tokenize " + model_.string() + " --text " + text_.string(), 1, parts);
  write(model_ / "config.json", kPointer);
  expect_failure("inspect " + model_.string(), 1, parts);
  fs::remove_all(model_);
  SetUp();
  write(folder_.path() / "lfs.txt", kPointer);
  write(folder_.path() / "lfs.npy", kPointer);
  for (const std::string& text : Words{"lfs.txt", "lfs.npy"}) {
    expect_failure("eval " + model_.string() + " --text " + (folder_.path() / text).string(), 1, parts);
  }
  // A longer file that begins in the same way is an ordinary text.
  write(folder_.path() / "about.txt", kPointer + std::string(1200, 'x'));
  EXPECT_EQ(run("tokenize " + model_.string() + " --text " + (folder_.path() / "about.txt").string()).status, 0);
}

TEST_F(MistakenInputs, PyTorchFilesAreNamedWithTheCommandThatSavesAnew) {
  fs::rename(model_ / "model.safetensors", model_ / "pytorch_model.bin");
  for (const std::string& words : Words{"eval", "generate --prompt x", "inspect", "verify", "bench"}) {
    const std::string text = words == "eval" ? " --text " + text_.string() : "";
    expect_failure(words + " " + model_.string() + text, 1,
                   {"in PyTorch's own format (pytorch_model.bin)", "from_pretrained('" + model_.string() + "')"});
  }
  const std::string zip = std::string("PK\3\4") + std::string(60, '\0');
  const std::string pickle = std::string("\x80\2\x8a\x0alFc", 7) + std::string(60, '\0');
  const fs::path others = folder_.path() / "of-pytorch";
  write(others / "model.bin", zip);
  expect_all_refuse(others / "model.bin", {"is a file of PyTorch's own format", "save_pretrained"});
  fs::remove(others / "model.bin");
  for (const std::string& name : Words{"model.pt", "consolidated.00.pth"}) {
    for (const std::string& content : Words{zip, pickle}) {
      write(others / name, content);
      expect_failure("inspect " + (others / name).string(), 1, {"is a file of PyTorch's own format"});
      expect_failure("import " + (others / name).string() + " " + (folder_.path() / "made").string(), 1,
                     {"is a file of PyTorch's own format"});
      expect_failure("inspect " + others.string(), 1, {"in PyTorch's own format (" + name});
    }
    fs::remove(others / name);
  }
  // Files that a trainer leaves are no weights.
  EXPECT_EQ(run("tokenize " + model_.string() + " --text " + text_.string()).status, 0) << "needs no weights";
  fs::remove(model_ / "pytorch_model.bin");
  write(model_ / "training_args.bin", zip);
  expect_failure("inspect " + model_.string(), 1, {"no weights in"});
}

TEST_F(MistakenInputs, AFileOfWeightsAloneIsNoModel) {
  const fs::path file = model_ / "model.safetensors";
  expect_failure("generate --prompt x " + file.string(), 1, {"give the folder that contains it, '" + model_.string()});
  EXPECT_EQ(run("inspect " + file.string()).status, 0);
}

TEST_F(MistakenInputs, AnAdapterIsToBeMergedFirst) {
  const fs::path adapter = folder_.path() / "adapter";
  write(adapter / "adapter_config.json", R"({"peft_type": "LORA", "base_model_name_or_path": "org/base"})");
  write(adapter / "adapter_model.safetensors", "x");
  expect_all_refuse(adapter, {"holds an adapter (LoRA, adapter_config.json) of 'org/base'", "merge_and_unload()",
                              "from_pretrained('" + adapter.string() + "')"});
  write(adapter / "adapter_config.json", "[");
  expect_failure("inspect " + adapter.string(), 1, {"holds an adapter (LoRA, adapter_config.json) and no model"});
}

TEST_F(MistakenInputs, NamesOfTheHubAreNoPaths) {
  for (const std::string& name :
       Words{"HuggingFaceTB/SmolLM2-135M", "https://huggingface.co/HuggingFaceTB/SmolLM2-135M",
             "hf.co/HuggingFaceTB/SmolLM2-135M/tree/main"}) {
    expect_all_refuse(
        name, {"name on the Hugging Face hub", "hf download HuggingFaceTB/SmolLM2-135M --local-dir SmolLM2-135M"});
    expect_failure("import " + name + " " + (folder_.path() / "made").string(), 1, {"name on the Hugging Face hub"});
  }
  // A path in an existing folder of the user's is taken as misspelt.
  const Outcome outcome = run("inspect m/nodel", "cd " + folder_.path().string() + " &&");
  EXPECT_EQ(outcome.status, 1);
  EXPECT_NE(outcome.err.find("m/nodel: no such file"), std::string::npos) << outcome.err;
}

TEST_F(MistakenInputs, OfTheHubsCacheTheFolderOfARevisionIsNamed) {
  const fs::path hub = folder_.path() / "hub", repository = hub / "models--org--name";
  fs::create_directories(repository / "snapshots" / "zzz");
  fs::create_directories(repository / "snapshots");
  fs::rename(model_, repository / "snapshots" / "abc");
  write(repository / "refs" / "main", "abc");
  const std::string model = (repository / "snapshots" / "abc").string();
  for (const fs::path& folder : {repository, repository / "", repository / "snapshots", hub}) {
    expect_all_refuse(folder, {"hub", "'" + model + "'"});
  }
  EXPECT_EQ(run("inspect " + model).status, 0);
  fs::remove_all(repository / "snapshots");
  expect_all_refuse(repository, {"it holds no model", "hf download org/name"});
}

TEST_F(MistakenInputs, ATokenizerOfAnotherFormIsNamed) {
  fs::remove(model_ / "tokenizer.json");
  const std::vector<std::vector<std::string>> forms = {
      {"tokenizer.model"}, {"vocab.json", "merges.txt"}, {"vocab.txt"}};
  for (const std::vector<std::string>& files : forms) {
    for (const std::string& file : files) write(model_ / file, "x");
    const std::string found = "holds no tokenizer.json, but " + files[0] + (files.size() > 1 ? " and merges.txt" : "");
    for (const std::string& words : Words{"eval --text " + text_.string(), "tokenize --text " + text_.string(),
                                          std::string("generate --prompt x")}) {
      expect_failure(words + " " + model_.string(), 1,
                     {found, "AutoTokenizer.from_pretrained('" + model_.string() + "').save_pretrained("});
    }
    for (const std::string& file : files) fs::remove(model_ / file);
  }
  expect_failure("tokenize " + model_.string() + " --text " + text_.string(), 1, {"no such file"});
}

TEST_F(MistakenInputs, AFolderIsNoText) {
  const fs::path texts = folder_.path() / "texts";
  for (const char* name : {"b.txt", "a.txt", "c.json", "d.tsv"}) write(texts / name, "x");
  fs::create_directory(folder_.path() / "empty");
  const std::string model = model_.string() + " ";
  for (const std::string& words : Words{"tokenize --text ", "eval --text "}) {
    expect_failure(words + texts.string() + " " + model, 1,
                   {"is a folder; expected a text", "give one of its 2, such as '" + (texts / "a.txt").string() + "'"});
    expect_failure(words + (folder_.path() / "empty").string() + " " + model, 1, {"is a folder", "it holds none"});
    expect_failure(words + model + " " + model, 1, {"is a folder", "looks like a model's"});
  }
  expect_failure("eval --instructions " + texts.string() + " " + model, 1,
                 {"is a folder; expected instructions (.json or .jsonl): give '" + (texts / "c.json").string() + "'"});
}

TEST_F(MistakenInputs, TwoThingsToMeasureAreOneTooMany) {
  const std::string rest = " " + model_.string();
  expect_failure("eval --text t.txt --instructions i.json" + rest, 2,
                 {"--text measures perplexity on a text (decoders), and --instructions measures answers to "
                  "instructions (decoders): "
                  "give one"});
  expect_failure("eval --pairs p.tsv --text t.txt" + rest, 2,
                 {"--text measures perplexity on a text (decoders), and --pairs measures embeddings of pairs of "
                  "texts: give one"});
}

// The header of a .gguf is enough to read data for its model. On this disk there is room for the header's import alone.
TEST_F(MistakenInputs, BadDataAreToldBeforeAGgufIsImported) {
  const std::string gguf = std::string(kSourceFolder) + "/tests/golden/gguf/llama_gqa_untied.gguf";
  const fs::path disk = folder_.path() / "disk";
  fs::create_directory(disk);
  write(folder_.path() / "short.txt", "few");
  write(folder_.path() / "broken.jsonl", "{");
  write(folder_.path() / "broken.json", "[{}]");
  write_npy(folder_.path() / "ids.npy", {.num_windows = 1, .num_tokens = 2, .ids_NT = {1, 1 << 20}});
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"eval --text missing.txt", "cannot read"},
      {"eval --text short.txt", "less than one window"},
      {"eval --text broken.jsonl", "broken.jsonl:1"},
      {"eval --text ids.npy", "outside the model's vocabulary"},
      {"eval --instructions broken.json", "instruction"},
      {"eval --text ids.npy --reference " + model_.string(), "outside the model's vocabulary"},
      {"generate --prompt x --max-tokens 1000000", "tokens"},
      {"eval --text text.txt --context 8", "free some, or set TMPDIR to a folder with more"}};
  const std::optional<int> failed = on_a_small_disk(disk, "64k", [&] {
    for (const auto& [words, part] : cases) {
      const std::string before = "cd " + folder_.path().string() + " && env TMPDIR=" + disk.string();
      const size_t command = words.find(' ');
      const Outcome result = run(words.substr(0, command) + " " + gguf + words.substr(command), before);
      if (result.status == 1 && result.err.find(part) != std::string::npos && fs::is_empty(disk)) continue;
      std::fprintf(stderr, "%s: %s\n", words.c_str(), result.err.c_str());
      return 1;
    }
    return 0;
  });
  if (!failed) GTEST_SKIP() << "a test may mount nothing here";
  EXPECT_EQ(*failed, 0);
}

}  // namespace
}  // namespace pare
