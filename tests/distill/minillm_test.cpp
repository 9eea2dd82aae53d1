#include "distill/minillm.h"

#include <ATen/Parallel.h>
#include <ATen/ops/full.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>

#include <cstdio>
#include <limits>
#include <map>
#include <string>

#include "distill/losses.h"
#include "distill/rows.h"
#include "tests/distill/plain_losses.h"
#include "tests/expect_error.h"

namespace pare {
using namespace distill;
using namespace runtime;
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();

// All sequences of up to kLength tokens over a vocabulary of 3, of which token 0 ends a sequence. A model is a table:
// the logits of the next token after each of the 1 + 2 + 4 prefixes without an end.
constexpr int kVocabulary = 3, kLength = 3;
using Sequence = std::vector<int>;

class Enumeration {
 public:
  Enumeration() { extend({}); }

  size_t num_prefixes() const { return prefixes_.size(); }
  const std::vector<Sequence>& sequences() const { return sequences_; }
  // Returns the row of the table for the token after the first `length` tokens.
  int64_t prefix(const Sequence& sequence, size_t length) const {
    return prefixes_.at(Sequence(sequence.begin(), sequence.begin() + length));
  }

 private:
  void extend(const Sequence& sequence) {
    const bool ended = !sequence.empty() && sequence.back() == 0;
    if (ended || sequence.size() == kLength) {
      sequences_.push_back(sequence);
      return;
    }
    prefixes_.emplace(sequence, static_cast<int64_t>(prefixes_.size()));
    for (int token = 0; token < kVocabulary; ++token) {
      Sequence longer = sequence;
      longer.push_back(token);
      extend(longer);
    }
  }
  std::map<Sequence, int64_t> prefixes_;
  std::vector<Sequence> sequences_;
};

// Returns the probabilities of a sequence's tokens under a table of masses.
Row token_masses(const Enumeration& all, const Rows& masses, const Sequence& sequence) {
  Row result;
  for (size_t t = 0; t < sequence.size(); ++t) result.push_back(masses[all.prefix(sequence, t)][sequence[t]]);
  return result;
}

double product(const Row& values) {
  double result = 1.0;
  for (const double value : values) result *= value;
  return result;
}

Rows softmax_rows(const Rows& logits) {
  Rows result;
  for (const Row& row : logits) result.push_back(plain_softmax(row));
  return result;
}

double plain_sequence_kl(const Enumeration& all, const Rows& student_logits, const Rows& teacher) {
  const Rows student = softmax_rows(student_logits);
  double sum = 0.0;
  for (const Sequence& sequence : all.sequences()) {
    const double q = product(token_masses(all, student, sequence));
    sum += q * std::log(q / product(token_masses(all, teacher, sequence)));
  }
  return sum;
}

// Returns d KL / d logits[prefix][v] = sum_y q(y) log(q(y) / p(y)) sum of ([y_t = v] - q(v | prefix)) over the t after
// prefix.
Rows plain_gradient(const Enumeration& all, const Rows& student, const Rows& teacher) {
  Rows gradient(all.num_prefixes(), Row(kVocabulary, 0.0));
  for (const Sequence& sequence : all.sequences()) {
    const double q = product(token_masses(all, student, sequence));
    const double factor = q * std::log(q / product(token_masses(all, teacher, sequence)));
    for (size_t t = 0; t < sequence.size(); ++t) {
      const int64_t prefix = all.prefix(sequence, t);
      for (int v = 0; v < kVocabulary; ++v) gradient[prefix][v] += factor * ((sequence[t] == v) - student[prefix][v]);
    }
  }
  return gradient;
}

// The tables of logits of student and teacher. The student's table is the leaf of the gradient.
struct Models {
  Enumeration all;
  Rows student_logits = random_table(40), teacher_logits = random_table(41);
  Rows student = softmax_rows(student_logits), teacher = softmax_rows(teacher_logits);

  static Rows random_table(uint32_t seed) {
    Rows table = random_logits(7, kVocabulary, seed);
    for (Row& row : table) {
      for (double& logit : row) logit /= 3.0;
    }
    return table;
  }
  Rows behaviour(double teacher_share) const {
    Rows result;
    for (size_t i = 0; i < student.size(); ++i) {
      result.push_back(plain_mixture(student[i], teacher[i], teacher_share));
    }
    return result;
  }
};

// Returns all sequences as one batch, with the student's part differentiable with respect to `leaf`.
SampledSequences batch_of(const Models& models, const at::Tensor& leaf, const Rows& behaviour) {
  const auto num_sequences = static_cast<int64_t>(models.all.sequences().size());
  at::Tensor prefixes = at::zeros({num_sequences, kLength}, at::kLong);
  at::Tensor tokens = at::zeros({num_sequences, kLength}, at::kLong);
  at::Tensor mask = at::zeros({num_sequences, kLength}, at::kBool);
  for (int64_t b = 0; b < num_sequences; ++b) {
    const Sequence& sequence = models.all.sequences()[b];
    for (size_t t = 0; t < sequence.size(); ++t) {
      prefixes[b][t] = models.all.prefix(sequence, t);
      tokens[b][t] = sequence[t];
      mask[b][t] = true;
    }
  }
  const auto of_tokens = [&](const at::Tensor& logs) {
    return logs.index_select(0, prefixes.flatten()).gather(1, tokens.reshape({-1, 1})).reshape(tokens.sizes());
  };
  const at::Tensor single = reverse_kl(leaf, TeacherLogits(tensor_of(models.teacher_logits)));
  SampledSequences batch{.student_BT = of_tokens(leaf.log_softmax(1)),
                         .teacher_BT = of_tokens(tensor_of(models.teacher).log()),
                         .behaviour_BT = of_tokens(tensor_of(behaviour).log()),
                         .mask_BT = mask,
                         .single_step_BT = single.index_select(0, prefixes.flatten()).reshape(tokens.sizes())};
  // Masked values must not be read.
  batch.teacher_BT = batch.teacher_BT.masked_fill(mask.logical_not(), std::nan(""));
  batch.behaviour_BT = batch.behaviour_BT.masked_fill(mask.logical_not(), std::nan(""));
  return batch;
}

struct Estimate {
  Rows mean;               // the mean of the estimator's gradient over all sequences of the behaviour
  double deviation = 0.0;  // the root of the mean squared distance from that mean
};

Estimate estimate(const Models& models, const MiniLlmOptions& options) {
  const Rows behaviour = models.behaviour(options.teacher_share);
  Estimate result{.mean = Rows(models.all.num_prefixes(), Row(kVocabulary, 0.0))};
  double squares = 0.0;
  for (size_t b = 0; b < models.all.sequences().size(); ++b) {
    const double mass = product(token_masses(models.all, behaviour, models.all.sequences()[b]));
    const Rows gradient = rows_of(gradient_of(
        [&](const at::Tensor& leaf) {
          return minillm_losses(batch_of(models, leaf, behaviour), options)[static_cast<int64_t>(b)];
        },
        tensor_of(models.student_logits)));
    for (size_t i = 0; i < gradient.size(); ++i) {
      for (int v = 0; v < kVocabulary; ++v) {
        result.mean[i][v] += mass * gradient[i][v];
        squares += mass * gradient[i][v] * gradient[i][v];
      }
    }
  }
  for (const Row& row : result.mean) {
    for (const double value : row) squares -= value * value;
  }
  result.deviation = std::sqrt(squares);
  return result;
}

double norm(const Rows& rows) {
  double squares = 0.0;
  for (const Row& row : rows) {
    for (const double value : row) squares += value * value;
  }
  return std::sqrt(squares);
}

Rows difference(Rows a, const Rows& b) {
  for (size_t i = 0; i < a.size(); ++i) {
    for (size_t v = 0; v < a[i].size(); ++v) a[i][v] -= b[i][v];
  }
  return a;
}

double cosine(const Rows& a, const Rows& b) {
  double sum = 0.0;
  for (size_t i = 0; i < a.size(); ++i) {
    for (size_t v = 0; v < a[i].size(); ++v) sum += a[i][v] * b[i][v];
  }
  return sum / norm(a) / norm(b);
}

TEST(MiniLlm, EnumeratedGradientIsThatOfTheSequenceLevelKl) {
  const Models models;
  EXPECT_EQ(models.all.num_prefixes(), 7u);
  EXPECT_EQ(models.all.sequences().size(), 15u);
  const Rows expected = plain_gradient(models.all, models.student, models.teacher);
  Rows moved = models.student_logits;
  constexpr double kStep = 1e-5;  // the error is 1e-10 times a third derivative
  for (size_t i = 0; i < moved.size(); ++i) {
    for (int v = 0; v < kVocabulary; ++v) {
      moved[i][v] += kStep;
      const double above = plain_sequence_kl(models.all, moved, models.teacher);
      moved[i][v] -= 2 * kStep;
      const double below = plain_sequence_kl(models.all, moved, models.teacher);
      moved[i][v] = models.student_logits[i][v];
      EXPECT_NEAR((above - below) / (2 * kStep), expected[i][v], 1e-8);
    }
  }
}

MiniLlmOptions plain_options(double teacher_share, ImportanceWeights weights, bool single_step) {
  return {.teacher_share = teacher_share,
          .single_step = single_step,
          .length_normalization = false,
          .weights = weights,
          .clip = RatioClip::none,
          .reward_limit = {}};
}

TEST(MiniLlm, BiasIsZeroWhereItIsSaidToBe) {
  const Models models;
  const Rows exact = plain_gradient(models.all, models.student, models.teacher);
  struct Line {
    std::string what;
    MiniLlmOptions options;
    bool unbiased;
  };
  std::vector<Line> lines;
  for (const bool single_step : {false, true}) {
    const std::string decomposed = single_step ? ", single step" : "";
    for (const EnumName<ImportanceWeights>& weights : enum_names(ImportanceWeights::none)) {
      const std::string name = ", weights " + std::string(weights.name) + decomposed;
      lines.push_back({"student's own" + name, plain_options(0.0, weights.value, single_step), true});
      lines.push_back({"mixed .2" + name, plain_options(0.2, weights.value, single_step),
                       weights.value == ImportanceWeights::exact});
    }
    lines.push_back(
        {"teacher's own, weights exact" + decomposed, plain_options(1.0, ImportanceWeights::exact, single_step), true});
    for (const double teacher_share : {0.0, 0.2}) {
      const std::string source = teacher_share == 0.0 ? "student's own" : "mixed .2";
      MiniLlmOptions options = plain_options(teacher_share, ImportanceWeights::exact, single_step);
      options.length_normalization = true;
      lines.push_back({source + ", weights exact, normalized" + decomposed, options, false});
      for (const RatioClip clip : {RatioClip::ratio, RatioClip::surrogate}) {
        options = plain_options(teacher_share, ImportanceWeights::single_step, single_step);
        options.clip = clip;
        options.clip_range = 0.05;  // ratios reach 1 / .8
        lines.push_back({source + ", weights single_step, clip " + std::string(name_of(clip)) + decomposed, options,
                         teacher_share == 0.0});
      }
    }
  }
  MiniLlmOptions paper;
  paper.reward_limit = {};
  lines.push_back({"the paper's (defaults)", paper, false});
  MiniLlmOptions limited = plain_options(0.0, ImportanceWeights::none, false);
  limited.reward_limit = 0.5;
  lines.push_back({"student's own, rewards within .5", limited, false});

  std::printf("%-72s %12s %8s %10s\n", "estimator of the gradient of KL(q || p)", "bias/norm", "cosine", "deviation");
  for (const Line& line : lines) {
    const Estimate found = estimate(models, line.options);
    const double bias = norm(difference(found.mean, exact)) / norm(exact);
    std::printf("%-72s %12.2e %8.4f %10.3f\n", line.what.c_str(), bias, cosine(found.mean, exact),
                found.deviation / norm(exact));
    if (line.unbiased) {
      EXPECT_LE(norm(difference(found.mean, exact)), 1e-12) << line.what;  // the requirement is 1e-6
    } else {
      EXPECT_GT(bias, 1e-3) << line.what;
    }
  }
}

// The decomposition removes the noise of a token's own reward.
TEST(MiniLlm, SingleStepDecompositionLowersTheVariance) {
  const Models models;
  const double sampled = estimate(models, plain_options(0.0, ImportanceWeights::none, false)).deviation;
  const double decomposed = estimate(models, plain_options(0.0, ImportanceWeights::none, true)).deviation;
  EXPECT_LT(decomposed, 0.8 * sampled);
}

// Computes one sequence of 4 tokens and one of 2 by hand.
struct ByHand {
  at::Tensor student = tensor_of({{-1.0, -0.5, -2.0, -0.25}, {-0.75, -1.5, 0.0, 0.0}}).set_requires_grad(true);
  at::Tensor mask = tensor_of({{1, 1, 1, 1}, {1, 1, 0, 0}}).to(at::kBool);
  SampledSequences sequences{.student_BT = student,
                             .teacher_BT = tensor_of({{-0.5, -1.5, -1.0, -0.5}, {-2.0, -0.5, 9.0, 9.0}}),
                             .behaviour_BT = tensor_of({{-0.9, -0.7, -1.5, -0.25}, {-1.0, -1.0, 9.0, 9.0}}),
                             .mask_BT = mask,
                             .single_step_BT = at::zeros({2, 4}, at::kDouble)};
};

void expect_rows(const at::Tensor& found, const Rows& expected) {
  const Rows rows = rows_of(found);
  for (size_t b = 0; b < expected.size(); ++b) {
    for (size_t t = 0; t < expected[b].size(); ++t) {
      if (rows[b][t] == expected[b][t]) continue;  // -inf
      EXPECT_NEAR(rows[b][t], expected[b][t], 1e-14) << b << ", " << t;
    }
  }
}

TEST(MiniLlm, RewardsReturnsAndWeightsAreThoseOfThePaper) {
  const ByHand hand;
  const at::Tensor rewards = minillm_rewards(hand.sequences, {});
  EXPECT_FALSE(rewards.requires_grad());
  expect_rows(rewards, {{0.5, -1.0, 1.0, -0.25}, {-1.25, 1.0, 0.0, 0.0}});
  expect_rows(minillm_rewards(hand.sequences, 0.75), {{0.5, -0.75, 0.75, -0.25}, {-0.75, 0.75, 0.0, 0.0}});
  expect_rows(minillm_returns(rewards, hand.mask, false, false), {{0.25, -0.25, 0.75, -0.25}, {-0.25, 1.0, 0.0, 0.0}});
  expect_rows(minillm_returns(rewards, hand.mask, true, false), {{-0.25, 0.75, -0.25, 0.0}, {1.0, 0.0, 0.0, 0.0}});
  expect_rows(minillm_returns(rewards, hand.mask, true, true), {{-0.25 / 3, 0.375, -0.25, 0.0}, {1.0, 0.0, 0.0, 0.0}});
  expect_rows(minillm_returns(rewards, hand.mask, false, true),
              {{0.0625, -0.25 / 3, 0.375, -0.25}, {-0.125, 1.0, 0.0, 0.0}});
  const auto exps = [](Rows rows) {
    for (Row& row : rows) {
      for (double& value : row) value = std::exp(value);
    }
    return rows;
  };
  expect_rows(minillm_weights(hand.sequences, ImportanceWeights::none), Rows(2, Row(4, 1.0)));
  expect_rows(minillm_weights(hand.sequences, ImportanceWeights::single_step),
              exps({{-0.1, 0.2, -0.5, 0.0}, {0.25, -0.5, 0.0, 0.0}}));
  for (const ImportanceWeights weights : {ImportanceWeights::cumulative, ImportanceWeights::exact}) {
    expect_rows(minillm_weights(hand.sequences, weights), exps({{-0.1, 0.1, -0.4, -0.4}, {0.25, -0.25, -0.25, -0.25}}));
  }
}

TEST(MiniLlm, ClipsTheRatioAsDocumented) {
  // Returns after each token are -0.25, 0.75, -0.25, 0 and 1, 0. Ratios are e^-.1, e^.2, e^-.5, 1 and e^.25, e^-.5.
  const auto gradient = [](RatioClip clip, double range) {
    const ByHand hand;
    MiniLlmOptions options = plain_options(0.2, ImportanceWeights::single_step, true);
    options.clip = clip;
    options.clip_range = range;
    minillm_losses(hand.sequences, options).sum().backward();
    return hand.student.grad();
  };
  const Row ratios = {std::exp(-0.1), std::exp(0.2), std::exp(-0.5), std::exp(0.25)};
  expect_rows(gradient(RatioClip::none, 0.2),
              {{0.25 * ratios[0], -0.75 * ratios[1], 0.25 * ratios[2], 0.0}, {-ratios[3], 0.0, 0.0, 0.0}});
  // e^.2 and e^.25 are above 1.2. Their returns are positive, which both ways clip.
  expect_rows(gradient(RatioClip::ratio, 0.2), {{0.25 * ratios[0], 0.0, 0.25 * ratios[2], 0.0}, {0.0, 0.0, 0.0, 0.0}});
  // e^-.5 is below 0.8, and its return is negative.
  expect_rows(gradient(RatioClip::surrogate, 0.2), {{0.25 * ratios[0], 0.0, 0.0, 0.0}, {0.0, 0.0, 0.0, 0.0}});
  expect_rows(gradient(RatioClip::surrogate, 0.5),
              {{0.25 * ratios[0], -0.75 * ratios[1], 0.25 * ratios[2], 0.0}, {-ratios[3], 0.0, 0.0, 0.0}});
}

TEST(MiniLlm, MixtureIsOfProbabilities) {
  const Rows p = softmax_rows(random_logits(3, 5, 42)), q = softmax_rows(random_logits(3, 5, 43));
  Rows expected;
  for (int t = 0; t < 3; ++t) {
    expected.push_back(plain_mixture(q[t], p[t], 0.2));
    for (double& mass : expected.back()) mass = std::log(mass);
  }
  expect_rows(teacher_mixed_log_probs(tensor_of(p).log(), tensor_of(q).log(), 0.2), expected);
  EXPECT_TRUE(teacher_mixed_log_probs(tensor_of(p), tensor_of(q), 0.0).equal(tensor_of(q)));
  EXPECT_TRUE(teacher_mixed_log_probs(tensor_of(p), tensor_of(q), 1.0).equal(tensor_of(p)));
  const at::Tensor forbidden = tensor_of({{-kInfinity, -kInfinity, -1.0}});
  expect_rows(teacher_mixed_log_probs(forbidden, tensor_of({{-1.0, -kInfinity, -kInfinity}}), 0.25),
              {{-1.0 + std::log(0.75), -kInfinity, -1.0 + std::log(0.25)}});
  expect_error<std::invalid_argument>([&] { teacher_mixed_log_probs(forbidden, forbidden, 1.5); },
                                      {"teacher_share", "1.5"});
  expect_error<std::invalid_argument>([&] { teacher_mixed_log_probs(forbidden, forbidden[0], 0.5); },
                                      {"one shape", "[3]"});
}

TEST(MiniLlm, TokensThatTheTeacherForbidsGiveFiniteGradients) {
  for (const std::optional<double> limit : {std::optional<double>(), std::optional<double>(100.0)}) {
    ByHand hand;
    hand.sequences.teacher_BT[0][2] = -kInfinity;
    MiniLlmOptions options;
    options.reward_limit = limit;
    const at::Tensor losses = minillm_losses(hand.sequences, options);
    losses.sum().backward();
    EXPECT_TRUE(hand.student.grad().isfinite().all().item<bool>());
    EXPECT_EQ(minillm_rewards(hand.sequences, limit)[0][2].item<double>(), limit ? -100.0 : kLogOfNoMass + 2.0);
  }
}

TEST(MiniLlm, AnyNumberOfThreadsGivesTheSameBits) {
  const int threads = at::get_num_threads();
  for (const int64_t num_sequences : {1, 3}) {
    const at::Tensor student = tensor_of(random_logits(num_sequences, 50001, 44), at::kFloat).abs().mul(-0.1);
    const at::Tensor other = tensor_of(random_logits(num_sequences, 50001, 45), at::kFloat).abs().mul(-0.1);
    const auto losses = [&](const at::Tensor& leaf) {
      return minillm_losses({.student_BT = leaf,
                             .teacher_BT = other,
                             .behaviour_BT = teacher_mixed_log_probs(other, leaf, 0.2),
                             .mask_BT = at::ones({num_sequences, 50001}, at::kBool),
                             .single_step_BT = leaf.sub(other)},
                            {});
    };
    at::set_num_threads(1);
    const at::Tensor alone = losses(student), alone_gradient = gradient_of(losses, student);
    at::set_num_threads(2);
    EXPECT_TRUE(alone.equal(losses(student)));
    EXPECT_TRUE(alone_gradient.equal(gradient_of(losses, student)));
  }
  at::set_num_threads(threads);
}

TEST(MiniLlm, RefusesWhatDoesNotFit) {
  const auto refused = [](const std::function<void(SampledSequences&, MiniLlmOptions&)>& change,
                          std::initializer_list<std::string> parts) {
    ByHand hand;
    MiniLlmOptions options;
    change(hand.sequences, options);
    expect_error<std::invalid_argument>([&] { minillm_losses(hand.sequences, options); }, parts);
  };
  using S = SampledSequences;
  using O = MiniLlmOptions;
  refused([](S& s, O&) { s.student_BT = at::Tensor(); }, {"student's", "none"});
  refused([](S& s, O&) { s.student_BT = s.student_BT[0]; }, {"student's", "[4]"});
  refused([](S& s, O&) { s.teacher_BT = s.teacher_BT.to(at::kFloat); }, {"teacher's", "Double", "Float"});
  refused([](S& s, O&) { s.behaviour_BT = s.behaviour_BT.narrow(1, 0, 2); }, {"behaviour's", "[2, 4]", "[2, 2]"});
  refused([](S& s, O&) { s.mask_BT = s.mask_BT.to(at::kLong); }, {"mask", "Bool", "Long"});
  refused([](S& s, O&) { s.single_step_BT = at::Tensor(); }, {"single steps", "none"});
  refused([](S& s, O&) { s.behaviour_BT[1][1] = -kInfinity; }, {"behaviour's", "finite"});
  refused([](S& s, O&) { s.student_BT = s.student_BT.detach().sub(kInfinity); }, {"student's", "finite"});
  refused([](S&, O& o) { o.weights = ImportanceWeights::exact; }, {"ratio_clip surrogate", "single_step", "exact"});
  refused([](S&, O& o) { o.clip_range = 1.5; }, {"clip_range", "1.5"});
  expect_error<std::invalid_argument>(
      [] {
        minillm_returns(at::ones({2, 3}), at::ones({2, 3}), true, true);
      },
      {"mask", "Bool"});
}

// This student can hold one mode alone: it is a normal distribution over the places of a line, given by its mean and
// the logarithm of its deviation. The teacher has two modes.
class TwoModes : public testing::Test {
 protected:
  static constexpr int kPlaces = 41;
  static constexpr double kFirst = 10.0, kSecond = 30.0, kDeviation = 2.0, kShare = 0.6;

  TwoModes() {
    const auto normal = [](double mean) {
      Row values;
      double sum = 0.0;
      for (int x = 0; x < kPlaces; ++x) {
        values.push_back(std::exp(-0.5 * (x - mean) * (x - mean) / (kDeviation * kDeviation)));
        sum += values.back();
      }
      for (double& value : values) value /= sum;
      return values;
    };
    masses = plain_mixture(normal(kSecond), normal(kFirst), kShare);
  }

  struct Student {
    double mean, deviation;
    Row masses;
    double loss;
  };

  // Runs plain gradient descent on (mean / 10, log deviation).
  Student train(const Losses& losses, double rate, double first_mean, double first_deviation) const {
    at::Tensor places = at::zeros({1, kPlaces}, at::kDouble);
    for (int x = 0; x < kPlaces; ++x) places[0][x] = x;
    at::Tensor parameters = tensor_of({{first_mean / 10.0, std::log(first_deviation)}});
    const auto logits = [&](const at::Tensor& of) {
      return places.sub(of.narrow(1, 0, 1).mul(10.0)).pow(2).mul(of.narrow(1, 1, 1).mul(-2.0).exp()).mul(-0.5);
    };
    for (int step = 0; step < 1000; ++step) {
      const at::Tensor gradient = gradient_of([&](const at::Tensor& leaf) { return losses(logits(leaf)); }, parameters);
      parameters = parameters.sub(gradient, rate);
    }
    const Row found = rows_of(parameters).front();
    return {10.0 * found[0], std::exp(found[1]), rows_of(logits(parameters).softmax(1)).front(),
            losses(logits(parameters)).item<double>()};
  }

  double mass_near(const Row& of, double mode) const {
    double sum = 0.0;
    for (int x = 0; x < kPlaces; ++x) sum += std::abs(x - mode) <= 8.0 ? of[x] : 0.0;
    return sum;
  }

  Row masses;
};

TEST_F(TwoModes, ForwardKlCoversBothAndReverseKlPicksOne) {
  const TeacherLogits teacher(tensor_of({masses}).log());
  const Losses forward = [&](const at::Tensor& student) { return forward_kl(student, teacher); };
  const Losses reverse = [&](const at::Tensor& student) { return reverse_kl(student, teacher); };

  double mean = 0.0, square = 0.0;
  for (int x = 0; x < kPlaces; ++x) {
    mean += masses[x] * x;
    square += masses[x] * x * x;
  }
  const auto moments = [&](const Row& of) {
    Row result(2, 0.0);
    for (int x = 0; x < kPlaces; ++x) {
      result[0] += of[x] * x;
      result[1] += of[x] * x * x;
    }
    return result;
  };
  // It starts from the middle and from either mode. Forward KL ends where the student's two moments are the teacher's,
  // as it must in an exponential family. The student then covers both modes and the empty middle.
  for (const double start : {12.0, 18.0, 28.0}) {
    const Student covers = train(forward, 0.05, start, 5.0);
    EXPECT_NEAR(moments(covers.masses)[0], mean, 1e-4);
    EXPECT_NEAR(moments(covers.masses)[1], square, 3e-3);
    EXPECT_GT(mass_near(covers.masses, kFirst), 0.35);
    EXPECT_GT(mass_near(covers.masses, kSecond), 0.25);
    EXPECT_GT(covers.deviation, 8.0);
    // Between the modes the teacher has next to nothing.
    EXPECT_LT(masses[20], 1e-5);
    EXPECT_GT(covers.masses[20], 0.02);
  }
  // Reverse KL holds the mode that it starts nearer to: its mean, its deviation, and all of its mass there. The
  // remaining loss is the logarithm of that mode's share of the teacher.
  const std::vector<std::pair<double, double>> starts_and_modes = {{12.0, kFirst}, {18.0, kFirst}, {28.0, kSecond}};
  for (const auto& [start, mode] : starts_and_modes) {
    const Student picks = train(reverse, 0.02, start, 3.0);
    EXPECT_NEAR(picks.mean, mode, 1e-2);
    EXPECT_NEAR(picks.deviation, kDeviation, 1e-2);
    EXPECT_GT(mass_near(picks.masses, mode), 0.999);
    EXPECT_LT(mass_near(picks.masses, mode == kFirst ? kSecond : kFirst), 1e-6);
    EXPECT_NEAR(picks.loss, -std::log(mode == kFirst ? kShare : 1.0 - kShare), 1e-3);
    // Each is the worse one by the other measure.
    const at::Tensor logits = tensor_of({picks.masses}).log();
    EXPECT_GT(forward(logits).item<double>(), 5.0);
  }
}

}  // namespace
}  // namespace pare
