// Checks `pare calibrate` and runs that start from its file: against float64 sums over plain forward passes, against
// h5dump, and against runs that calibrate themselves.
#include "compress/walk/statistics_file.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/eye.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

#include "compress/walk/decoder_block.h"
#include "runtime/commands/verify.h"
#include "runtime/files/npy.h"
#include "tests/compress/run_pare.h"
#include "tests/expect_error.h"

namespace pare::test {
using namespace compress;
using namespace runtime;
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

const std::string kFamily = "llama_gqa_untied";
const std::string kGptq = "  - gptq: {bits: 4, group_size: 32}\n";

std::string bytes_of(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(file), {}};
}

class FromStatistics : public testing::Test {
 protected:
  fs::path text_recipe(const std::string& name, const std::string& passes) {
    write_text(folder_ / "text.yaml", "model: " + family(name).string() +
                                          "\ncalibration: {text: " + (family(name) / "ids.npy").string() + "}\n" +
                                          (passes.empty() ? "" : "passes:\n" + passes));
    return folder_ / "text.yaml";
  }
  fs::path statistics_recipe(const std::string& name, const std::string& passes, const std::string& file = "s.h5") {
    write_text(folder_ / "file.yaml", "model: " + family(name).string() + "\ncalibration: {statistics: " +
                                          (folder_ / file).string() + "}\npasses:\n" + passes);
    return folder_ / "file.yaml";
  }
  Outcome calibrate(const std::string& name, const std::string& file = "s.h5",
                    const std::vector<std::string>& more = {}) {
    std::vector<std::string> words = {"calibrate", text_recipe(name, "").string(), (folder_ / file).string()};
    words.insert(words.end(), more.begin(), more.end());
    return run_pare(words);
  }
  Outcome run(const fs::path& recipe, const std::string& out, const std::vector<std::string>& more = {}) {
    std::vector<std::string> words = {"run", recipe.string(), "--out", (folder_ / out).string(), "--json"};
    words.insert(words.end(), more.begin(), more.end());
    return run_pare(words);
  }
  Json manifest(const std::string& out) { return Json::parse(bytes_of(folder_ / out / "pare.json")); }
  TemporaryFolder folder_{"statistics"};
};

// The twin passes whole windows through DecoderBlock and sums x x^T in float64.
TEST_F(FromStatistics, AreThoseOfTheUncompressedModel) {
  for (const std::string name : {"llama_gqa_untied", "gemma3_local_global"}) {
    const Outcome outcome = calibrate(name, name + ".h5", {"--json"});
    ASSERT_EQ(outcome.status, 0) << outcome.err;
    const Json report = Json::parse(outcome.out);
    const StatisticsFile file = StatisticsFile::open(folder_ / (name + ".h5"));
    EXPECT_EQ(report.at("sha256"), file.hash());
    const Checkpoint checkpoint = Checkpoint::open(family(name));
    const ModelDescription& model = checkpoint.description();
    const TokenWindows windows = read_npy(family(name) / "ids.npy");
    EXPECT_EQ(file.origin().num_windows, windows.num_windows);
    EXPECT_EQ(file.origin().num_tokens, windows.num_tokens);
    EXPECT_EQ(file.origin().text, "ids.npy");
    const int64_t num_tokens = windows.num_tokens;
    std::vector<at::Tensor> hidden;
    for (int64_t n = 0; n < windows.num_windows; ++n) {
      hidden.push_back(at::empty({num_tokens, model.hidden_size}, at::kFloat));
      embed(checkpoint.linear(checkpoint.embedding()), model.embedding_scale, windows.window(n),
            hidden.back().data_ptr<float>());
    }
    for (size_t b = 0; b < model.blocks.size(); ++b) {
      const DecoderBlock block(checkpoint, static_cast<int64_t>(b), num_tokens);
      std::array<at::Tensor, 4> sums;
      std::array<at::Tensor, 4> inputs;
      for (const Stage stage : kStages) {
        const int64_t width = stage_width(block.description(), stage);
        sums[static_cast<size_t>(stage)] = at::zeros({width, width}, at::kDouble);
      }
      for (at::Tensor& hidden_TD : hidden) {
        const BlockFunctions functions = block.functions();
        const auto add = [&](Stage stage, const at::Tensor& x_TI) {
          block.add_output(stage, functions.output(stage, StageInput::plain(x_TI)), hidden_TD);
        };
        inputs[0] = functions.normalized(Stage::attention_input, hidden_TD).value();
        inputs[1] = functions.attention(hidden_TD);
        add(Stage::attention_output, inputs[1]);
        const StageInput x_TD = functions.normalized(Stage::feed_forward_input, hidden_TD);
        inputs[2] = x_TD.value();
        inputs[3] = functions.activation(Stage::kNoExpert, x_TD).value();
        add(Stage::feed_forward_output, inputs[3]);
        for (size_t s = 0; s < 4; ++s) {
          const at::Tensor wide = inputs[s].to(at::kDouble);
          sums[s].add_(wide.t().mm(wide));
        }
      }
      for (const Stage stage : kStages) {
        const LayerStatistics found = file.read(block.description(), stage, StatisticsNeed::hessian);
        EXPECT_EQ(found.num_tokens, windows.num_windows * num_tokens);
        const at::Tensor expected =
            sums[static_cast<size_t>(stage)].div(static_cast<double>(windows.num_windows * num_tokens));
        EXPECT_LE(found.hessian_II.to(at::kDouble).sub(expected).norm().item<double>(),
                  1e-5 * expected.norm().item<double>())
            << name << " block " << b << ", " << stage_name(stage);
        EXPECT_TRUE(found.hessian_II.equal(found.hessian_II.t()));
        EXPECT_TRUE(found.hessian_diagonal_I.equal(found.hessian_II.diagonal()));
        EXPECT_EQ(found.sample_RI.size(0), std::min(kNumSampleRows, windows.num_windows * num_tokens));
        EXPECT_LE(found.sample_RI.max().item<float>(), found.max_I.max().item<float>());
        EXPECT_GE(found.sample_RI.min().item<float>(), found.min_I.min().item<float>());
      }
    }
  }
}

// The stage is wider than one buffer, so that triangles are written and read in several pieces. h5dump knows nothing of
// pare.
TEST_F(FromStatistics, H5dumpReadsWhatWasWritten) {
  const Checkpoint checkpoint = Checkpoint::open(family(kFamily));
  BlockDescription block = checkpoint.description().blocks[0];
  constexpr int64_t kWidth = 1700;
  block.q.num_in = block.k.num_in = block.v.num_in = kWidth;
  ASSERT_EQ(stage_width(block, Stage::attention_input), kWidth);
  const at::Tensor x_RI = at::randn({77, kWidth}, at::make_generator<at::CPUGeneratorImpl>(1));
  LayerStatistics written;
  written.num_tokens = 77;
  written.hessian_II = x_RI.t().mm(x_RI).div(77.0);
  written.hessian_II = written.hessian_II.add(written.hessian_II.t()).div(2.0);
  written.hessian_diagonal_I = written.hessian_II.diagonal().contiguous();
  written.min_I = x_RI.amin(0);
  written.max_I = x_RI.amax(0);
  written.mean_abs_I = x_RI.abs().mean(0);
  written.sample_RI = x_RI.narrow(0, 3, 5).contiguous();
  const StatisticsOrigin origin{"m", "d", "text.npy", 7, 11, 5, "pare 1", "torch 2", "avx"};
  const fs::path path = folder_ / "wide.h5";
  {
    StatisticsWriter writer(path, origin);
    writer.write(block, Stage::attention_input, written);
    EXPECT_FALSE(fs::exists(path)) << "visible before it is complete";
    writer.publish();
  }
  const StatisticsFile file = StatisticsFile::open(path);
  const LayerStatistics read = file.read(block, Stage::attention_input, StatisticsNeed::hessian);
  EXPECT_EQ(read.num_tokens, 77);
  EXPECT_TRUE(read.hessian_II.equal(written.hessian_II));
  EXPECT_TRUE(read.hessian_diagonal_I.equal(written.hessian_diagonal_I));
  EXPECT_TRUE(read.min_I.equal(written.min_I));
  EXPECT_TRUE(read.max_I.equal(written.max_I));
  EXPECT_TRUE(read.mean_abs_I.equal(written.mean_abs_I));
  EXPECT_TRUE(read.sample_RI.equal(written.sample_RI));
  EXPECT_FALSE(file.read(block, Stage::attention_input, StatisticsNeed::hessian_diagonal).hessian_II.defined());
  EXPECT_EQ(file.origin().libtorch_version, "torch 2");
  expect_error<std::runtime_error>([&] { file.read(block, Stage::attention_output, StatisticsNeed::hessian); },
                                   {"wide.h5", "attention_output", "another model"});
  block.q.num_in = 12;
  expect_error<std::runtime_error>([&] { file.read(block, Stage::attention_input, StatisticsNeed::hessian); },
                                   {"wide.h5", "attention_input", "[12]", "[1700]"});

  const auto dump = [&](const std::string& arguments) {
    const std::string line = "h5dump " + arguments + " '" + path.string() + "' >'" + (folder_ / "log").string() + "'";
    EXPECT_EQ(std::system(line.c_str()), 0) << line << " (Debian package hdf5-tools; make test installs it)";
    return bytes_of(folder_ / "log");
  };
  const std::string group = "/" + block.name + "/attention_input/";
  dump("-d '" + group + "hessian' -b LE -o '" + (folder_ / "hessian.bin").string() + "'");
  const std::string dumped = bytes_of(folder_ / "hessian.bin");
  ASSERT_EQ(dumped.size(), kWidth * (kWidth + 1) / 2 * sizeof(float));
  const float* element = reinterpret_cast<const float*>(dumped.data());
  int64_t num_different = 0;
  for (int64_t i = 0; i < kWidth; ++i) {
    for (int64_t j = i; j < kWidth; ++j) {
      num_different += *element++ != written.hessian_II.const_data_ptr<float>()[i * kWidth + j];
    }
  }
  EXPECT_EQ(num_different, 0);
  dump("-d '" + group + "sample' -b LE -o '" + (folder_ / "sample.bin").string() + "'");
  EXPECT_EQ(bytes_of(folder_ / "sample.bin"),
            std::string(reinterpret_cast<const char*>(written.sample_RI.const_data_ptr<float>()),
                        static_cast<size_t>(written.sample_RI.numel()) * sizeof(float)));
  const std::string attributes = dump("-A");
  for (const std::string word : {"text.npy", "torch 2", "num_tokens", "self_attn.q_proj", "self_attn.v_proj"}) {
    EXPECT_NE(attributes.find(word), std::string::npos) << word;
  }
}

TEST_F(FromStatistics, ThreadsMemoryAndRepetitionDoNotChangeAByte) {
  ASSERT_EQ(calibrate(kFamily, "s.h5").status, 0);
  const std::string expected = bytes_of(folder_ / "s.h5");
  for (const std::string threads : {"1", "2", "3"}) {
    ASSERT_EQ(calibrate(kFamily, "t" + threads, {"--threads", threads}).status, 0);
    EXPECT_TRUE(bytes_of(folder_ / ("t" + threads)) == expected) << threads << " threads";
  }
  const Outcome refused = calibrate(kFamily, "little.h5", {"--max-memory", "1MiB"});
  EXPECT_EQ(refused.status, 1);
  EXPECT_NE(refused.err.find("--max-memory 1.00 MiB"), std::string::npos) << refused.err;
  EXPECT_FALSE(fs::exists(folder_ / "little.h5"));
  const Outcome dry = calibrate(kFamily, "dry.h5", {"--dry-run", "--json"});
  ASSERT_EQ(dry.status, 0) << dry.err;
  EXPECT_FALSE(fs::exists(folder_ / "dry.h5"));
  const double predicted = Json::parse(dry.out).at("predicted_output_bytes").get<double>();
  EXPECT_NEAR(predicted / static_cast<double>(expected.size()), 1.0, 0.05);
}

// The first stage reads what no compressed layer has changed. There a run from the file equals the staged run, weight
// by weight. Later stages differ, because the staged run sees the errors of earlier ones.
TEST_F(FromStatistics, TheFirstStageComesOutAsInAStagedRun) {
  for (const std::string& pass :
       {std::string("  - gptq: {bits: 4, group_size: 32}\n"), std::string("  - awq: {}\n  - gptq: {bits: 3}\n"),
        std::string("  - gptq: {bits: 4, group_size: -1, refine: 2, scales: hessian}\n"),
        std::string("  - rtn: {bits: 4, group_size: 32, scales: hessian}\n"),
        std::string("  - awq: {}\n  - rtn: {bits: 4, group_size: 32}\n")}) {
    const std::string layers =
        pass.find("bits: 3") == std::string::npos ? "" : "    layers: {override: {\"*\": {group_size: -1}}}\n";
    fs::remove_all(folder_ / "staged");
    fs::remove_all(folder_ / "filed");
    if (!fs::exists(folder_ / "s.h5")) {
      ASSERT_EQ(calibrate("qwen2_biases_tied").status, 0);
    }
    const Outcome staged = run(text_recipe("qwen2_biases_tied", pass + layers), "staged");
    ASSERT_EQ(staged.status, 0) << staged.err;
    const Outcome filed = run(statistics_recipe("qwen2_biases_tied", pass + layers), "filed");
    ASSERT_EQ(filed.status, 0) << filed.err;
    EXPECT_NE(filed.err.find("not sequential"), std::string::npos) << filed.err;
    EXPECT_TRUE(verify(folder_ / "filed").problems.empty()) << pass;
    const Json a = manifest("staged"), b = manifest("filed");
    EXPECT_EQ(a.at("calibration").at("sequential"), true);
    EXPECT_EQ(b.at("calibration").at("sequential"), false);
    EXPECT_EQ(b.at("calibration").at("statistics"), "s.h5");
    EXPECT_EQ(b.at("calibration").at("statistics_sha256"), StatisticsFile::open(folder_ / "s.h5").hash());
    ASSERT_EQ(a.at("layers").size(), b.at("layers").size());
    const bool scales = pass.find("awq") != std::string::npos;  // v's scales are divided later, as o's input asks
    int num_equal = 0, num_different = 0;
    for (size_t i = 0; i < a.at("layers").size(); ++i) {
      const std::string name = a.at("layers")[i].at("name");
      const bool is_first = name.find("layers.0.self_attn") != std::string::npos &&
                            name.find("o_proj") == std::string::npos &&
                            (!scales || name.find("v_proj") == std::string::npos);
      const bool equal = a.at("layers")[i].at("sha256") == b.at("layers")[i].at("sha256");
      EXPECT_TRUE(equal || !is_first) << pass << name;
      (equal ? num_equal : num_different) += 1;
    }
    EXPECT_GE(num_equal, scales ? 2 : 3) << pass;
    EXPECT_GE(num_different, 5) << pass;
  }
}

TEST_F(FromStatistics, ThreadsAndKillsDoNotChangeARunFromAFile) {
  const std::string name = "qwen2_biases_tied";
  ASSERT_EQ(calibrate(name).status, 0);
  const fs::path recipe = statistics_recipe(name, "  - awq: {}\n" + kGptq);
  const auto command = [&](const std::string& out) {
    return std::vector<std::string>{"run", recipe.string(), "--out", (folder_ / out).string()};
  };
  const TracedOutcome whole = run_pare_traced(command("whole"), -1);
  ASSERT_EQ(whole.outcome.status, 0) << whole.outcome.err;
  const auto expected = promised_files(folder_ / "whole");
  ASSERT_EQ(run(recipe, "one", {"--threads", "1"}).status, 0);
  EXPECT_EQ(promised_files(folder_ / "one"), expected);
  int num_kills = 0;
  for (int call = 0; call < whole.num_calls; ++call) {
    if (!whole.names[static_cast<size_t>(call)].starts_with("rename")) continue;
    const std::string out = "killed" + std::to_string(call);
    num_kills += run_pare_traced(command(out), call + 1).outcome.status == 128 + SIGKILL;
    if (!fs::exists(folder_ / out)) {
      const Outcome resumed = run(recipe, out);
      ASSERT_EQ(resumed.status, 0) << "after a kill at call " << call << ": " << resumed.err;
    }
    ASSERT_EQ(promised_files(folder_ / out), expected) << "after a kill at call " << call;
  }
  EXPECT_GE(num_kills, 5);
}

TEST_F(FromStatistics, AFileOfAnotherModelIsRefused) {
  ASSERT_EQ(calibrate(kFamily).status, 0);
  const Outcome other = run(statistics_recipe("qwen2_biases_tied", kGptq), "out");
  EXPECT_EQ(other.status, 1);
  EXPECT_NE(other.err.find("another model"), std::string::npos) << other.err;
  // The copy has the same shapes and one other weight.
  const fs::path copy = folder_ / "copy";
  fs::copy(family(kFamily), copy, fs::copy_options::recursive);
  std::fstream file(copy / "model.safetensors", std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(-4, std::ios::end);
  file.write("\0\0\0\0", 4);
  file.close();
  const Outcome changed = run(statistics_recipe(kFamily, kGptq), "out", {"--model", copy.string()});
  EXPECT_EQ(changed.status, 1);
  EXPECT_NE(changed.err.find("another model"), std::string::npos) << changed.err;
  EXPECT_FALSE(fs::exists(folder_ / "out.partial"));
}

// Every damage must be found before the HDF5 library reads a byte.
TEST_F(FromStatistics, DamagedAndForeignFilesGiveOneMessage) {
  ASSERT_EQ(calibrate(kFamily).status, 0);
  const std::string good = bytes_of(folder_ / "s.h5");
  const fs::path bad = folder_ / "bad.h5";
  const auto refused = [&](const std::string& bytes, const std::string& word) {
    write_text(bad, bytes);
    expect_error<std::runtime_error>([&] { StatisticsFile::open(bad); }, {"bad.h5", word});
  };
  for (size_t size = 0; size < good.size(); size += 4999) {
    refused(good.substr(0, size), size < 16 ? "not a statistics file" : size < 30 ? "version" : "truncated");
  }
  refused(good.substr(0, good.size() - 1), "truncated");
  refused(good + "x", "truncated or damaged");
  for (size_t at = 0; at < good.size(); at += at < 8192 ? 61 : 7919) {
    if (at >= 90 && at < 512) continue;  // the rest of the user block is free for notes
    std::string bytes = good;
    bytes[at] = static_cast<char>(bytes[at] ^ 0x20);
    refused(bytes, "cannot read");
  }
  refused("", "not a statistics file");
  refused("a note, not a file of statistics", "not a statistics file");
  refused(good.substr(512), "not a statistics file");  // it is an HDF5 file all the same
  refused("pare statistics 2 sha256 00\n", "version '2'");
  expect_error<std::runtime_error>([&] { StatisticsFile::open(folder_ / "nowhere.h5"); }, {"nowhere.h5"});

  write_text(bad, good.substr(0, good.size() / 2));
  const Outcome outcome = run(statistics_recipe(kFamily, kGptq, "bad.h5"), "out");
  EXPECT_EQ(outcome.status, 1);
  EXPECT_NE(outcome.err.find("truncated or damaged"), std::string::npos) << outcome.err;
  EXPECT_EQ(outcome.err.find("HDF5-DIAG"), std::string::npos) << outcome.err;
  EXPECT_FALSE(fs::exists(folder_ / "out.partial"));
}

TEST_F(FromStatistics, CalibrateRefusesAndLeavesNothing) {
  const auto refused = [&](const Outcome& outcome, const std::string& word) {
    EXPECT_EQ(outcome.status, 1) << outcome.err;
    EXPECT_NE(outcome.err.find(word), std::string::npos) << outcome.err;
  };
  ASSERT_EQ(calibrate(kFamily).status, 0);
  const std::string before = bytes_of(folder_ / "s.h5");
  refused(calibrate(kFamily), "exists");
  EXPECT_TRUE(bytes_of(folder_ / "s.h5") == before);
  refused(calibrate(kFamily, "no/folder/s.h5"), "no/folder");
  refused(run_pare({"calibrate", statistics_recipe(kFamily, kGptq).string(), (folder_ / "t.h5").string()}), "text");
  refused(run(text_recipe(kFamily, ""), "out"), "nothing to do");
  ASSERT_EQ(run(text_recipe(kFamily, kGptq), "done").status, 0);
  refused(calibrate(kFamily, "t.h5", {"--model", (folder_ / "done").string()}), "quantized already");
  std::vector<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder_.path())) names.push_back(entry.path().filename().string());
  std::sort(names.begin(), names.end());
  EXPECT_EQ(names, (std::vector<std::string>{"done", "file.yaml", "s.h5", "text.yaml"}));
}

// One stage of 24 channels in a file of its own.
class OneStage {
 public:
  OneStage() {
    block_.q.num_in = block_.k.num_in = block_.v.num_in = 24;
    statistics_.num_tokens = 6;
    statistics_.hessian_II = at::eye(24);
    statistics_.hessian_diagonal_I = at::ones({24});
    statistics_.min_I = at::full({24}, -1.0);
    statistics_.max_I = at::ones({24});
    statistics_.mean_abs_I = at::ones({24});
    statistics_.sample_RI = at::ones({6, 24});
  }
  void write(StatisticsWriter& writer) const { writer.write(block_, Stage::attention_input, statistics_); }
  void read(const fs::path& path) const {
    StatisticsFile::open(path).read(block_, Stage::attention_input, StatisticsNeed::hessian);
  }
  const StatisticsOrigin origin{"m", "d", "text.npy", 2, 3, 5, "pare 1", "torch 2", "avx"};

 private:
  BlockDescription block_ = Checkpoint::open(family(kFamily)).description().blocks[0];
  LayerStatistics statistics_;
};

TEST_F(FromStatistics, AFileThatAppearsDuringTheRunStays) {
  const OneStage one;
  const fs::path path = folder_ / "s.h5", partial = folder_ / "s.h5.partial";
  {
    StatisticsWriter writer(path, one.origin);
    one.write(writer);
    expect_error<std::runtime_error>([&] { StatisticsWriter(path, one.origin); }, {"s.h5", "another 'pare calibrate'"});
    write_text(path, "of someone else");
    expect_error<std::runtime_error>([&] { writer.publish(); }, {"s.h5", "appeared", "s.h5.partial/artifact"});
  }
  EXPECT_EQ(bytes_of(path), "of someone else");
  one.read(partial / "artifact");  // it is complete, as the message says
  fs::remove(path);
  expect_error<std::runtime_error>([&] { StatisticsWriter(path, one.origin); }, {"s.h5.partial", "holds 'artifact'"});
  fs::remove_all(partial);
  StatisticsWriter again(path, one.origin);
  one.write(again);
  again.publish();
  one.read(path);
  EXPECT_FALSE(fs::exists(partial));
}

TEST_F(FromStatistics, WhatAKilledRunLeavesIsTakenOver) {
  const OneStage one;
  const fs::path path = folder_ / "s.h5", partial = folder_ / "s.h5.partial";
  for (const bool has_written : {false, true}) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      at::set_num_threads(1);
      StatisticsWriter writer(path, one.origin);
      if (has_written) one.write(writer);
      raise(SIGKILL);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status));
    EXPECT_TRUE(fs::exists(partial));
    StatisticsWriter(path, one.origin);
    EXPECT_FALSE(fs::exists(partial)) << "a writer that does not publish leaves nothing";
  }
  ASSERT_EQ(calibrate(kFamily).status, 0);
  EXPECT_FALSE(fs::exists(partial));
}

// Whatever the file begins with, no run may remove what no run has made.
TEST_F(FromStatistics, AForeignFileWhereItWouldBeMadeStays) {
  const fs::path path = folder_ / "s.h5", partial = folder_ / "s.h5.partial";
  for (const std::string& content : {std::string("notes"), std::string(), std::string(16, '\0'), std::string(64, '\0'),
                                     std::string("pare statistics 1 ")}) {
    for (const bool is_linked : {false, true}) {
      const fs::path file = is_linked ? folder_ / "elsewhere" : partial;
      write_text(file, content);
      if (is_linked) fs::create_symlink(file, partial);
      const Outcome outcome = calibrate(kFamily);
      EXPECT_EQ(outcome.status, 1);
      EXPECT_NE(outcome.err.find("s.h5.partial' exists and is not a folder"), std::string::npos) << outcome.err;
      EXPECT_EQ(bytes_of(file), content);
      EXPECT_EQ(fs::is_symlink(partial), is_linked);
      EXPECT_FALSE(fs::exists(path));
      fs::remove(partial);
    }
  }
}

// While this lives, no file of the process may grow beyond num_bytes. A write then gives the error of a full disk.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t num_bytes) {
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit = {num_bytes, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
    signal(SIGXFSZ, SIG_IGN);
  }
  ~FileSizeLimit() {
    setrlimit(RLIMIT_FSIZE, &before_);
    signal(SIGXFSZ, SIG_DFL);
  }

 private:
  rlimit before_;
};

TEST_F(FromStatistics, AFullDiskIsOneMessageWhereverItIsMet) {
  const OneStage one;
  const fs::path path = folder_ / "one.h5";
  const auto write = [&] {
    StatisticsWriter writer(path, one.origin);
    one.write(writer);
    writer.publish();
  };
  write();
  const auto size = fs::file_size(path);
  for (rlim_t limit = 0; limit <= size; limit += limit % 64 == 0 ? 63 : 449) {
    fs::remove(path);
    const FileSizeLimit guard(limit);
    const char* what = limit == 0 ? "cannot be marked" : "cannot write";
    expect_error<std::runtime_error>(write, {what, "one.h5", "File too large", "free some space"});
    EXPECT_FALSE(fs::exists(path)) << limit;
    EXPECT_FALSE(fs::exists(folder_ / "one.h5.partial")) << limit;
  }
  write();
  one.read(path);

  // This runs the program, whose end is the library's end.
  ASSERT_EQ(calibrate(kFamily).status, 0);
  const auto whole = fs::file_size(folder_ / "s.h5");
  for (const rlim_t limit : {rlim_t{8192}, rlim_t{whole / 2}, rlim_t{whole - 1}}) {
    fs::remove(folder_ / "s.h5");
    const FileSizeLimit guard(limit);
    const Outcome outcome = calibrate(kFamily);
    EXPECT_EQ(outcome.status, 1) << limit;
    EXPECT_NE(outcome.err.find("s.h5': File too large: free some space"), std::string::npos) << outcome.err;
    EXPECT_EQ(outcome.err.find("HDF5"), std::string::npos) << outcome.err;
    EXPECT_FALSE(fs::exists(folder_ / "s.h5"));
    EXPECT_FALSE(fs::exists(folder_ / "s.h5.partial"));
  }
}

}  // namespace
}  // namespace pare::test
