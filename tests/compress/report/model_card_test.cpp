// The card of every artifact: as huggingface_hub reads it, with pare.json's figures, and unharmed by what hostile
// cards, recipes and names hold.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "compress/recipe/hub_name.h"
#include "compress/report/card_file.h"
#include "compress/report/markdown_text.h"
#include "compress/report/model_card.h"
#include "compress/report/source_card.h"
#include "runtime/system/atomic_file.h"
#include "tests/compress/run_pare.h"
#include "tests/expect_error.h"
#include "tests/places.h"

namespace pare::test {
using namespace compress;
using namespace runtime;
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;
using Texts = std::vector<std::string>;

const std::string kHead =
    "---\nlicense: apache-2.0\nlanguage:\n- en\n- no\nlibrary_name: transformers\npipeline_tag: text-generation\n"
    "tags: [stories, \"a: b\"]\nbase_model: someone/else\nwidget:\n- text: hello\n---\n\n# Stories\n\nBy somebody.\n";

// What huggingface_hub reads of a card.
Json read_by_hub(const fs::path& card) {
  const char* python = std::getenv("PARE_PYTHON");
  if (python == nullptr) {
    ADD_FAILURE() << "PARE_PYTHON is not set (make test sets it up)";
    return {};
  }
  const std::string line = std::string("'") + python + "' '" + kSourceFolder +
                           "/tests/compress/report/read_card.py' '" + card.string() + "'";
  FILE* const pipe = ::popen(line.c_str(), "r");
  std::string text;
  std::array<char, 4096> buffer;
  while (const size_t size = std::fread(buffer.data(), 1, buffer.size(), pipe)) text.append(buffer.data(), size);
  EXPECT_EQ(::pclose(pipe), 0) << card;
  return Json::parse(text, nullptr, /*allow_exceptions=*/false);
}

TEST(CardHead, KnownFieldsAreTakenOver) {
  const CardHead head = read_card_head(kHead, "README.md");
  EXPECT_TRUE(head.problems.empty());
  EXPECT_EQ(head.values("license"), Texts{"apache-2.0"});
  EXPECT_EQ(head.values("language"), (Texts{"en", "no"}));
  EXPECT_EQ(head.values("tags"), (Texts{"stories", "a: b"}));
  EXPECT_EQ(head.fields.size(), 5u);  // and nothing else
  const CardHead windows = read_card_head("\xEF\xBB\xBF---\r\nlicense: mit\r\n---\r\n", "README.md");
  EXPECT_EQ(windows.values("license"), Texts{"mit"});
}

TEST(CardHead, NoHeadIsNoProblem) {
  for (const char* card : {"", "# Title\n", "{}", "---", "----\nlicense: mit\n---\n", "\n---\nlicense: mit\n---\n",
                           "---\n---\n", "---\nlicense:\ntags: []\n---\n"}) {
    const CardHead head = read_card_head(card, "README.md");
    EXPECT_TRUE(head.fields.empty()) << card;
    EXPECT_TRUE(head.problems.empty()) << card;
  }
}

TEST(CardHead, WhatCannotBeReadIsAProblemAndNothingElse) {
  std::string aliases = "a: &a [x, x]\n";
  for (char c = 'b'; c < 'z'; ++c) {
    aliases +=
        std::string(1, c) + ": &" + c + " [*" + static_cast<char>(c - 1) + ", *" + static_cast<char>(c - 1) + "]\n";
  }
  const Texts bodies = {"license: [mit\n",
                        "license: mit\n\tx: y\n",
                        "- a list\n",
                        "just a text\n",
                        std::string(100, '[') + "\n",
                        "license: \"a\\0b\"\n",
                        std::string("license: a\0b\n", 13),
                        "license: mit\n...\nlicense: gpl\n",
                        "? [a]\n: b\n",
                        "license: *nowhere\n"};
  for (const std::string& body : bodies) {
    const CardHead head = read_card_head("---\n" + body + "---\n", "README.md");
    EXPECT_TRUE(head.fields.empty()) << body;
    ASSERT_EQ(head.problems.size(), 1u) << body;
    EXPECT_NE(head.problems[0].find("'README.md': its YAML head cannot be read"), std::string::npos) << body;
  }
  const CardHead endless = read_card_head("---\nlicense: mit\n" + std::string(1 << 20, 'x') + "\n---\n", "README.md");
  EXPECT_TRUE(endless.fields.empty());
  ASSERT_EQ(endless.problems.size(), 1u);
  EXPECT_NE(endless.problems[0].find("has no end"), std::string::npos);
  // Values that no card needs are left out one by one.
  std::string many = "license: mit\ntags:\n";
  for (int i = 0; i < 1000; ++i) many += "- t" + std::to_string(i) + "\n";
  for (const std::string& body :
       {std::string("license: mit\nlanguage: {en: 1}\n"), std::string("license: mit\nlicense_name: \"a\\nb\"\n"),
        std::string("license: mit\nlicense_name: \"a\\x1bb\"\n"),
        std::string("license: mit\nlicense_name: \"\\u202eb\"\n"),
        "license: mit\nlicense_link: " + std::string(1000, 'x') + "\n", many,
        "license: mit\ntags: " + std::string("[a, [b]]\n")}) {
    const CardHead head = read_card_head("---\n" + body + "---\n", "README.md");
    EXPECT_EQ(head.values("license"), Texts{"mit"}) << body;
    EXPECT_EQ(head.problems.size(), 1u) << body;
  }
  EXPECT_EQ(read_card_head("---\n" + many + "---\n", "README.md").values("tags").size(), 100u);
  EXPECT_EQ(read_card_head("---\n" + aliases + "license: mit\n---\n", "README.md").values("license"), Texts{"mit"});
}

TEST(MarkdownText, ShowsTheCharactersAndNothingElse) {
  EXPECT_EQ(markdown_text("q_proj|<b>*x*</b>\n# [a](b) ![c] `d` &amp; ~~e~~"),
            "q\\_proj\\|\\<b\\>\\*x\\*\\</b\\>\\\\x0a\\# \\[a\\](b) \\!\\[c\\] \\`d\\` \\&amp; \\~\\~e\\~\\~");
  EXPECT_EQ(markdown_code("a\n```\nb\n````\nc\x1b", "yaml"), "`````yaml\na\n```\nb\n````\nc\\x1b\n`````\n");
}

TEST(HubName, IsTwoParts) {
  for (const char* name : {"a/b", "HuggingFaceTB/SmolLM2-135M", "0x/Y_z.1"}) EXPECT_TRUE(is_hub_name(name)) << name;
  for (const char* name : {"", "a", "/a", "a/", "a/b/c", "../b", "a/.b", "a b/c", "a/b\n", "-a/b", "a/b)"}) {
    EXPECT_FALSE(is_hub_name(name)) << name;
  }
}

class ModelCards : public testing::Test {
 protected:
  ModelCards() {
    fs::copy(std::string(kSourceFolder) + "/calibration_data/stories260k", model_, fs::copy_options::recursive);
  }
  Outcome run(const std::string& more, const std::string& out, const Texts& options = {}) {
    write_text(folder_ / "recipe.yaml",
               "model: " + model_.string() + "\npasses:\n  - rtn: {bits: 4, group_size: -1}\n" + more);
    Texts words = {"run", (folder_ / "recipe.yaml").string(), "--out", (folder_ / out).string(), "--quiet"};
    words.insert(words.end(), options.begin(), options.end());
    return run_pare(words);
  }
  std::string card_of(const std::string& out) const { return read_text_file(folder_ / out / "README.md"); }
  Json manifest_of(const std::string& out) const { return Json::parse(read_text_file(folder_ / out / "pare.json")); }
  void expect_whole(const std::string& out) const {
    const Outcome verified = run_pare({"verify", (folder_ / out).string(), "--quiet"});
    EXPECT_EQ(verified.status, 0) << verified.out << verified.err;
    const Outcome printed = run_pare({"card", (folder_ / out).string()});
    EXPECT_EQ(printed.status, 0) << printed.err;
    EXPECT_EQ(printed.out, card_of(out));
  }

  TemporaryFolder folder_{"model-cards"};
  fs::path model_ = folder_ / "model";
  const std::string evaluate_ = "evaluate:\n  - perplexity: {text: " + std::string(kSourceFolder) +
                                "/calibration_data/stories.txt, context: 64, windows: 2}\n";
};

TEST_F(ModelCards, TakesThePlaceOfTheSourcesCard) {
  write_text(model_ / "README.md", kHead);
  const Outcome outcome = run("base_model: karpathy/tiny-llamas\nstrict: true\n" + evaluate_, "out");
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_EQ(read_text_file(folder_ / "out" / "README.source.md"), kHead);
  expect_whole("out");
  const Json card = read_by_hub(folder_ / "out" / "README.md");
  EXPECT_EQ(card.at("data"), Json::parse(R"({"base_model": "karpathy/tiny-llamas", "base_model_relation": "quantized",
    "license": "apache-2.0", "language": ["en", "no"], "library_name": "transformers",
    "pipeline_tag": "text-generation",
    "tags": ["stories", "a: b", "pare", "rtn", "4-bit", "compressed-tensors"]})"));
  const std::string text = card.at("text");
  // Folders of this machine are nobody's business.
  for (const std::string& folder : {folder_.path().string(), std::string(kSourceFolder)}) {
    EXPECT_EQ(card_of("out").find(folder), std::string::npos) << text;
  }
  EXPECT_NE(text.find("model: model\n"), std::string::npos) << text;
  EXPECT_NE(text.find("{text: stories.txt, context: 64, windows: 2}"), std::string::npos) << text;
  for (const char* part : {"# tiny-llamas, 4 bits by rtn", "(https://huggingface.co/karpathy/tiny-llamas)",
                           "[README.source.md](README.source.md)", "apache-2.0", "- rtn: {bits: 4, group_size: -1}",
                           "vllm serve", "AutoModelForCausalLM", "pare generate", "What was not measured"}) {
    EXPECT_NE(text.find(part), std::string::npos) << part << "\n" << text;
  }
  // The figures are those that were measured.
  const Json report = Json::parse(read_text_file(folder_ / "out" / "report.json"));
  const Json& perplexity = report.at("perplexity").at(0);
  const Json manifest = manifest_of("out");
  for (const Json& figure : manifest.at("evaluations").at(0).at("figures")) {
    EXPECT_EQ(figure.at("value"), perplexity.at(figure.at("name").get<std::string>())) << figure;
    char shown[40];
    std::snprintf(shown, sizeof(shown), "%.*f", figure.at("decimals").get<int>(), figure.at("value").get<double>());
    EXPECT_NE(text.find(shown), std::string::npos) << figure;
  }
  char reference[40];
  std::snprintf(reference, sizeof(reference), "| perplexity | %.4f | ",
                perplexity.at("reference_perplexity").get<double>());
  EXPECT_NE(text.find(reference), std::string::npos);
  EXPECT_EQ(manifest_of("out").at("sizes").at("output_bytes"), report.at("output_bytes"));
  EXPECT_EQ(manifest_of("out").at("sizes").at("bits_per_weight"), report.at("bits_per_weight"));
}

TEST_F(ModelCards, ASpeedThatWasMeasuredIsNotSaidToBeMissing) {
  ASSERT_EQ(run("", "plain").status, 0);
  EXPECT_NE(card_of("plain").find("- Speed and memory.\n"), std::string::npos);
  ASSERT_EQ(run("benchmark: {}\n", "timed").status, 0);
  EXPECT_EQ(card_of("timed").find("- Speed and memory.\n"), std::string::npos);
  EXPECT_NE(card_of("timed").find("speed on other machines"), std::string::npos);
  expect_whole("timed");
}

TEST_F(ModelCards, AnyNumberOfThreadsGivesTheSameBytes) {
  ASSERT_EQ(run(evaluate_, "one", {"--threads", "1"}).status, 0);
  for (const char* threads : {"2", "3"}) {
    ASSERT_EQ(run(evaluate_, threads, {"--threads", threads}).status, 0);
    EXPECT_EQ(promised_files(folder_ / threads), promised_files(folder_ / "one"));
  }
}

TEST_F(ModelCards, AHeadThatCannotBeReadIsAnEvent) {
  const std::string broken = "---\nlicense: [mit\n---\n";
  write_text(model_ / "README.md", broken);
  const Outcome outcome = run("", "out");
  ASSERT_EQ(outcome.status, 0) << outcome.err;
  EXPECT_NE(manifest_of("out").at("events").dump().find("YAML head cannot be read"), std::string::npos);
  EXPECT_EQ(read_text_file(folder_ / "out" / "README.source.md"), broken);
  EXPECT_FALSE(read_by_hub(folder_ / "out" / "README.md").at("data").contains("license"));
  expect_whole("out");
  const Outcome strict = run("strict: true\n", "strict");
  EXPECT_EQ(strict.status, 1);
  EXPECT_NE(strict.err.find("YAML head cannot be read"), std::string::npos) << strict.err;
}

TEST_F(ModelCards, TheOriginalsCardGoesThroughSeveralRuns) {
  write_text(model_ / "README.md", kHead);
  write_text(folder_ / "prune.yaml", "model: " + model_.string() + "\noutput: " + (folder_ / "pruned").string() +
                                         "\nbase_model: karpathy/tiny-llamas\npasses:\n  - magnitude: {}\n");
  ASSERT_EQ(run_pare({"run", (folder_ / "prune.yaml").string(), "--quiet"}).status, 0);
  EXPECT_FALSE(read_by_hub(folder_ / "pruned" / "README.md").at("data").contains("base_model_relation"));
  model_ = folder_ / "pruned";
  ASSERT_EQ(run("", "out").status, 0);
  EXPECT_EQ(read_text_file(folder_ / "out" / "README.source.md"), kHead);
  EXPECT_EQ(read_by_hub(folder_ / "out" / "README.md").at("data").at("base_model"), "karpathy/tiny-llamas");
  EXPECT_FALSE(fs::exists(folder_ / "out" / "README.source.2.md"));
  expect_whole("out");
}

TEST_F(ModelCards, NoCardOfTheSourceIsLost) {
  write_text(model_ / "README.md", "one");
  write_text(model_ / "README.source.md", "two");
  ASSERT_EQ(run("", "out").status, 0);
  EXPECT_EQ(read_text_file(folder_ / "out" / "README.source.md"), "two");
  EXPECT_EQ(read_text_file(folder_ / "out" / "README.source.2.md"), "one");
  expect_whole("out");
}

TEST_F(ModelCards, ANameCanBeGivenLater) {
  write_text(model_ / "README.md", kHead);
  ASSERT_EQ(run("", "out").status, 0);
  EXPECT_FALSE(read_by_hub(folder_ / "out" / "README.md").at("data").contains("base_model"));
  const Texts command = {"card", (folder_ / "out").string(), "--base-model", "a/b", "--write"};
  for (int i = 0; i < 2; ++i) {  // the second changes nothing
    const Outcome outcome = run_pare(command);
    ASSERT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_EQ(read_by_hub(folder_ / "out" / "README.md").at("data").at("base_model"), "a/b");
    EXPECT_EQ(read_text_file(folder_ / "out" / "README.source.md"), kHead);
    expect_whole("out");
  }
  // Whatever somebody has written stays.
  write_text(folder_ / "out" / "README.md", card_of("out") + "My own words.\n");
  const Outcome refused = run_pare(command);
  EXPECT_EQ(refused.status, 1);
  EXPECT_NE(refused.err.find("changed or added by hand"), std::string::npos) << refused.err;
  EXPECT_NE(card_of("out").find("My own words"), std::string::npos);
}

// The card of the source's run would speak of another format.
TEST_F(ModelCards, AnExportHasACardOfItsOwn) {
  write_text(model_ / "README.md", kHead);
  ASSERT_EQ(run("base_model: karpathy/tiny-llamas\n", "out").status, 0);
  const auto exported = [&](const std::string& format) {
    const Outcome outcome =
        run_pare({"export", (folder_ / "out").string(), (folder_ / format).string(), "--format", format, "--quiet"});
    EXPECT_EQ(outcome.status, 0) << outcome.err;
    EXPECT_EQ(read_text_file(folder_ / format / "README.source.md"), kHead);
    expect_whole(format);
    return read_by_hub(folder_ / format / "README.md");
  };
  for (const char* format : {"compressed-tensors", "gptq", "gptq-v2", "awq-gemm", "bitsandbytes", "nvfp4", "mxfp4"}) {
    SCOPED_TRACE(format);
    const Json card = exported(format);
    EXPECT_EQ(card.at("data").at("base_model"), "karpathy/tiny-llamas");
    EXPECT_EQ(card.at("data").at("base_model_relation"), "quantized");
    EXPECT_EQ(card.at("data").at("license"), "apache-2.0");
    EXPECT_NE(card.at("data").at("tags").dump().find("\"4-bit\""), std::string::npos) << card.at("data");
    EXPECT_EQ(card.at("data").at("tags").dump().find("rtn"), std::string::npos) << card.at("data");
    EXPECT_NE(card.at("text").get<std::string>().find(std::string(" bits in ") + format), std::string::npos);
  }
  // Figures are those of pare.json, whose sizes are those of the files.
  const Json manifest = manifest_of("gptq");
  EXPECT_EQ(manifest.at("sizes").at("output_bytes"), fs::file_size(folder_ / "gptq" / "model.safetensors"));
  EXPECT_EQ(manifest.at("sizes").at("source_bytes"), fs::file_size(folder_ / "out" / "model.safetensors"));
  double largest = 0.0;
  const Json layers = manifest_of("nvfp4").at("export").at("layers");
  for (const Json& layer : layers) {
    if (layer.at("passage") == "rounded anew") largest = std::max(largest, layer.at("relative_error").get<double>());
  }
  char shown[40];
  std::snprintf(shown, sizeof(shown), " %.5f |\n", largest);
  EXPECT_GT(largest, 0.0);
  EXPECT_NE(card_of("nvfp4").find(shown), std::string::npos) << card_of("nvfp4");
  const Json dense = exported("dense");
  EXPECT_FALSE(dense.at("data").contains("base_model_relation"));
  EXPECT_NE(card_of("dense").find("# tiny-llamas, dense"), std::string::npos);
  const Outcome named = run_pare({"card", (folder_ / "dense").string(), "--base-model", "a/b", "--write"});
  ASSERT_EQ(named.status, 0) << named.err;
  expect_whole("dense");
}

TEST_F(ModelCards, WrongNamesAndFoldersAreRefused) {
  for (const char* name : {"model", "a/b/c", "'../x'"}) {
    const Outcome outcome = run("base_model: " + std::string(name) + "\n", "out");
    EXPECT_EQ(outcome.status, 1);
    EXPECT_NE(outcome.err.find("recipe.yaml:4: 'base_model': expected the model's name on the Hugging Face Hub"),
              std::string::npos)
        << outcome.err;
  }
  expect_error<std::invalid_argument>([&] { make_card(model_, {}); }, {"has no pare.json"});
  expect_error<std::invalid_argument>([&] { make_card(model_, {.base_model = "x"}); }, {"ORG/NAME", "'x'"});
  ASSERT_EQ(run("", "out").status, 0);
  const fs::path path = folder_ / "out" / "pare.json";
  std::string text = read_text_file(path);
  write_text(path, text.replace(text.find("rtn"), 3, "xyz"));
  expect_error<std::runtime_error>([&] { make_card(folder_ / "out", {}); }, {"pare.json", "damaged"});
}

TEST_F(ModelCards, AHubsCacheNamesTheModel) {
  const fs::path snapshot = folder_ / "models--org--name--x" / "snapshots" / "0123abc";
  fs::create_directories(snapshot.parent_path());
  fs::rename(model_, snapshot);
  fs::create_directory_symlink(snapshot, model_);
  EXPECT_EQ(name_in_hub_cache(model_), "org/name--x");
  ASSERT_EQ(run("", "out").status, 0);
  EXPECT_EQ(read_by_hub(folder_ / "out" / "README.md").at("data").at("base_model"), "org/name--x");
}

// Everything that a manifest may hold of other people's words, in a card.
TEST(ModelCard, NoTextLeavesItsPlace) {
  const std::string evil = "x\n---\n# y\n```\n<script>alert(1)</script> | [a](javascript:b) -->";
  const Json manifest = {
      {"pare", evil},
      {"base_model", "a/b](http://evil)"},
      {"recipe", evil},
      {"calibration", {{"text", evil}, {"windows", 1}, {"tokens", 1}}},
      {"layers",
       {{{"name", evil},
         {"method", evil},
         {"bits", 4},
         {"group_size", 32},
         {"symmetric", true},
         {"code", evil},
         {"pattern", evil},
         {"input", evil},
         {"relative_error", 0.5}}}},
      {"events", {evil}},
      {"evaluations", {{{"data", evil}, {"figures", {{{"meaning", evil}, {"value", 1.0}, {"decimals", 99}}}}}}},
      {"engines", {{{"engine", "transformers" + evil}, {"loads", true}, {"reasons", {evil}}}}}};
  const Json config = {
      {"model_type", evil}, {"architectures", {"XForCausalLM"}}, {"quantization_config", {{"quant_method", evil}}}};
  CardHead source;
  source.fields = {{"license", {"a\": |\n---"}}, {"tags", {evil}}};
  const std::string card = model_card({manifest.dump(), config.dump(), source, "README.source.md", "pare.json"});
  TemporaryFolder folder("evil-card");
  write_text(folder / "README.md", card);
  const Json read = read_by_hub(folder / "README.md");
  EXPECT_FALSE(read.at("data").contains("base_model"));
  EXPECT_EQ(read.at("data").at("license"), "a\": |\n---");
  EXPECT_EQ(read.at("data").at("tags").at(0), evil);
  // Outside of blocks of code no HTML begins, and no line has become a heading or a rule.
  std::string fence;
  for (size_t begin = card.find("\n---\n\n") + 6; begin < card.size();) {
    const size_t end = std::min(card.find('\n', begin), card.size());
    const std::string line = card.substr(begin, end - begin);
    begin = end + 1;
    if (line.starts_with("```") && (fence.empty() || line == fence)) {
      fence = fence.empty() ? line.substr(0, line.find_first_not_of('`')) : "";
      continue;
    }
    if (!fence.empty()) continue;
    for (const char* mark : {"<script", "](javascript"}) {  // escaped, wherever they stand
      for (size_t at = line.find(mark); at != std::string::npos; at = line.find(mark, at + 1)) {
        EXPECT_TRUE(at > 0 && line[at - 1] == '\\') << line;
      }
    }
    EXPECT_NE(line, "---");
    EXPECT_NE(line, "# y");
  }
  EXPECT_TRUE(fence.empty());
  expect_error<std::runtime_error>([&] { model_card({"{}", "{}", {}, "", "pare.json"}); }, {"pare.json", "not what"});
  expect_error<std::runtime_error>([&] { model_card({"[", "{}", {}, "", "pare.json"}); }, {"pare.json"});
}

}  // namespace
}  // namespace pare::test
