// Checks whole models against float64 (goldens/make_goldens.py), on the CPU and on the device. The models are a trained
// small one, and random weights in the shape of SmolLM2-135M.
#include <cstdlib>

#include "runtime/system/sha256.h"
#include "tests/cuda/on_cuda.h"
#include "tests/places.h"
#include "tests/runtime/engine/tiny_models.h"
#include "tests/temporary_folder.h"

namespace pare {
using namespace runtime;
namespace {

// The most KL, in nats, from the golden's distribution of a token to what was found. An artifact's quality is judged by
// it.
constexpr double kMostKl = 1e-4;
// The most error of a single logit relative to the root mean square of a row's errors.
constexpr double kSpread = 8.0;

struct Case {
  std::string model, device;
};
void PrintTo(const Case& test, std::ostream* out) {
  *out << test.model << " on " << test.device;
}

std::filesystem::path make_random_smollm2(const TemporaryFolder& folder) {
  const char* python = std::getenv("PARE_PYTHON");
  if (python == nullptr) throw std::runtime_error("PARE_PYTHON must name a Python with numpy");
  const std::filesystem::path model = folder.path() / "random_smollm2";
  const std::string command = "'" + std::string(python) + "' '" + kSourceFolder +
                              "/tests/bench/make_random_model.py' '" + model.string() + "' --shape smollm2";
  if (std::system(command.c_str()) != 0) throw std::runtime_error("failed: " + command);
  return model;
}

double log_sum_exp(std::span<const float> row) {
  const double largest = *std::max_element(row.begin(), row.end());
  double sum = 0.0;
  for (const float x : row) sum += std::exp(static_cast<double>(x) - largest);
  return largest + std::log(sum);
}

class CudaGoldens : public testing::TestWithParam<Case> {
 protected:
  ~CudaGoldens() override { emulation::set_options({}); }
  void SetUp() override {
    const std::string& name = GetParam().model;
    const std::filesystem::path goldens = std::filesystem::path(kSourceFolder) / "tests/cuda/goldens" / name;
    path_ = name == "random_smollm2" ? make_random_smollm2(folder_)
                                     : std::filesystem::path(kSourceFolder) / "calibration_data" / name;
    ASSERT_EQ(nlohmann::json::parse(file_text(goldens / "golden.json")).at("weights_sha256"),
              sha256_file(path_ / "model.safetensors"));
    windows_ = read_npy(goldens / "ids.npy");
    rows_ = read_npy(goldens / "rows.npy").ids_NT;
    nll_ = read_golden_floats(goldens / "nll.npy");
    logits_ = read_golden_floats(goldens / "logits.npy");
    emulation::set_options({.hides_memory = false});  // otherwise each launch would pay for all of a model
    backend_ = GetParam().device == "cuda" ? make_cuda_backend() : make_cpu_backend(detect_isa(), 2);
    model_.emplace(Transformer::load(Checkpoint::open(path_), *backend_));
    vocabulary_size_ = static_cast<size_t>(model_->description().vocabulary_size);
    ASSERT_EQ(logits_.size(), rows_.size() * vocabulary_size_);
  }

  std::span<const float> golden_row(size_t n) const {
    return std::span(logits_).subspan(n * vocabulary_size_, vocabulary_size_);
  }

  // The tolerance relative to a row's norm. Each block adds to the residual stream twice the result of a chain of sums,
  // the longest of F terms. Roundings add up as random ones do: sqrt(F) u for a sum, and sqrt(2 L) such for L blocks.
  // The tolerance is four times that; float32 on a CPU is within a fifth of it (goldens/*/golden.json).
  double tolerance() const {
    const ModelDescription& model = model_->description();
    const double width = static_cast<double>(model.blocks.front().experts.front().down.num_in);
    return 4 * kUnitRoundoff * std::sqrt(width) * std::sqrt(2.0 * static_cast<double>(model.blocks.size()));
  }

  void expect_golden_row(std::span<const float> found, size_t n) const {
    const std::span<const float> expected = golden_row(n);
    const double golden_sum = log_sum_exp(expected), found_sum = log_sum_exp(found);
    double squares = 0.0, differences = 0.0, kl = 0.0;
    for (size_t i = 0; i < expected.size(); ++i) {
      const double golden = expected[i], logit = found[i];
      squares += golden * golden;
      differences += (logit - golden) * (logit - golden);
      kl += std::exp(golden - golden_sum) * ((golden - golden_sum) - (logit - found_sum));
    }
    EXPECT_LE(std::sqrt(differences), tolerance() * std::sqrt(squares)) << "row " << rows_[n];
    EXPECT_LE(kl, kMostKl) << "row " << rows_[n];
  }

  TemporaryFolder folder_;
  std::filesystem::path path_;
  TokenWindows windows_;
  std::vector<int32_t> rows_;
  std::vector<float> nll_, logits_;
  size_t vocabulary_size_ = 0;
  std::unique_ptr<Backend> backend_;
  std::optional<Transformer> model_;
};
INSTANTIATE_TEST_SUITE_P(Float64, CudaGoldens,
                         testing::Values(Case{"stories260k", "cpu"}, Case{"stories260k", "cuda"},
                                         Case{"random_smollm2", "cpu"}, Case{"random_smollm2", "cuda"}),
                         [](const auto& test) { return test.param.model + "_" + test.param.device; });

TEST_P(CudaGoldens, APromptsLogitsAndLosses) {
  const auto num_rows = static_cast<int64_t>(windows_.ids_NT.size());
  const Buffer<float> hidden = backend_->allocate(num_rows * model_->description().hidden_size);
  model_->prefill_windows(windows_.ids_NT, windows_.num_windows, hidden.get());
  const std::vector<float> logits = logits_of(*model_, hidden.get(), num_rows);
  for (size_t n = 0; n < rows_.size(); ++n) {
    expect_golden_row(std::span(logits).subspan(static_cast<size_t>(rows_[n]) * vocabulary_size_, vocabulary_size_), n);
  }
  // The last token of a window predicts nothing, so its target may be anything.
  std::vector<int32_t> targets(windows_.ids_NT.begin() + 1, windows_.ids_NT.end());
  targets.push_back(0);
  std::vector<float> nll(targets.size());
  std::vector<uint8_t> top1(targets.size());
  backend_->cross_entropy(model_->head(), hidden.get(), targets, 0.0f, nll.data(), top1.data());
  double squares = 0.0;
  for (const float logit : logits_) squares += static_cast<double>(logit) * static_cast<double>(logit);
  const double size = std::sqrt(squares / static_cast<double>(logits_.size()));
  const auto num_tokens = static_cast<size_t>(windows_.num_tokens);
  for (size_t i = 0, place = 0; i < targets.size(); ++i) {
    if (i % num_tokens == num_tokens - 1) continue;
    EXPECT_NEAR(nll[i], nll_[place++], kSpread * tolerance() * size) << "token " << i;
  }
}

TEST_P(CudaGoldens, TokensDecodedOneByOne) {
  const std::span<const int32_t> ids = windows_.window(0);
  const std::unique_ptr<Transformer::Session> session = model_->start(windows_.num_tokens);
  size_t n = 0;
  for (size_t token = 0; token < ids.size(); ++token) {
    const std::span<const float> logits = session->feed(ids.subspan(token, 1));
    if (rows_[n] == static_cast<int32_t>(token)) expect_golden_row(logits, n++);
  }
  EXPECT_GT(n, 0u);
}

// Decodes the last tokens of a window in each of two lanes. One lane is ahead and ends first.
TEST_P(CudaGoldens, TokensDecodedInLanes) {
  const auto num_tokens = static_cast<size_t>(windows_.num_tokens);
  std::vector<size_t> fed = {num_tokens - 8, num_tokens - 5};
  const std::unique_ptr<Transformer::Lanes> lanes = model_->start_lanes(2, windows_.num_tokens);
  for (const int64_t lane : {0, 1}) {
    lanes->begin(lane, windows_.window(lane).first(fed[static_cast<size_t>(lane)]));
  }
  size_t num_compared = 0;
  while (true) {
    std::vector<int64_t> going;
    std::vector<int32_t> ids;
    for (const int64_t lane : {0, 1}) {
      size_t& num = fed[static_cast<size_t>(lane)];
      if (static_cast<int64_t>(num) == windows_.num_tokens) continue;
      going.push_back(lane);
      ids.push_back(windows_.window(lane)[num++]);
    }
    if (going.empty()) break;
    const std::span<const float> logits_NV = lanes->feed_each(going, ids);
    for (size_t i = 0; i < going.size(); ++i) {
      const auto token = static_cast<int64_t>(fed[static_cast<size_t>(going[i])]) - 1;
      const auto row = std::find(rows_.begin(), rows_.end(), going[i] * windows_.num_tokens + token);
      if (row == rows_.end()) continue;
      expect_golden_row(logits_NV.subspan(i * vocabulary_size_, vocabulary_size_),
                        static_cast<size_t>(row - rows_.begin()));
      ++num_compared;
    }
  }
  EXPECT_GE(num_compared, 2u);  // at least one of each lane
}

}  // namespace
}  // namespace pare
