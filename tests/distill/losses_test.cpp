#include "distill/losses.h"

#include <ATen/Parallel.h>
#include <ATen/ops/full.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/ones.h>
#include <ATen/ops/randn.h>
#include <ATen/ops/zeros.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <string>

#include "distill/rows.h"
#include "tests/distill/plain_losses.h"
#include "tests/expect_error.h"

namespace pare {
using namespace distill;
using namespace runtime;
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr double kEps32 = 1.0 / (1 << 23);

// A divergence of the outcomes' distributions of teacher p and student q: the library's function, and its definition.
struct Divergence {
  std::string name;
  std::function<at::Tensor(const at::Tensor&, const TeacherLogits&, double)> losses;
  std::function<double(const Row&, const Row&)> plain;
};

std::vector<Divergence> divergences() {
  std::vector<Divergence> all = {{"forward_kl", forward_kl, plain_kl},
                                 {"reverse_kl", reverse_kl, [](const Row& p, const Row& q) { return plain_kl(q, p); }},
                                 {"total_variation", total_variation, plain_total_variation}};
  for (const double beta : {0.1, 0.5, 0.9}) {
    all.push_back({"jensen_shannon " + std::to_string(beta),
                   [=](const at::Tensor& student, const TeacherLogits& teacher, double temperature) {
                     return jensen_shannon(student, teacher, beta, temperature);
                   },
                   [=](const Row& p, const Row& q) {
                     const Row m = plain_mixture(q, p, beta);
                     return beta * plain_kl(p, m) + (1.0 - beta) * plain_kl(q, m);
                   }});
  }
  for (const double skew : {0.1, 0.7}) {
    all.push_back({"skew_kl " + std::to_string(skew),
                   [=](const at::Tensor& student, const TeacherLogits& teacher, double temperature) {
                     return skew_kl(student, teacher, skew, temperature);
                   },
                   [=](const Row& p, const Row& q) { return plain_kl(p, plain_mixture(q, p, skew)); }});
    all.push_back({"skew_reverse_kl " + std::to_string(skew),
                   [=](const at::Tensor& student, const TeacherLogits& teacher, double temperature) {
                     return skew_reverse_kl(student, teacher, skew, temperature);
                   },
                   [=](const Row& p, const Row& q) { return plain_kl(q, plain_mixture(p, q, skew)); }});
  }
  return all;
}

Losses against(const Divergence& divergence, const TeacherLogits& teacher, double temperature) {
  return [&divergence, teacher, temperature](const at::Tensor& student) {
    return divergence.losses(student, teacher, temperature);
  };
}

constexpr int64_t kTokens = 4, kVocabulary = 23;
const std::vector<int64_t> kLabels = {3, kIgnoredLabel, 22, 0};

TEST(Divergences, AreTheirDefinitions) {
  const Rows p = random_logits(kTokens, kVocabulary, 10), q = random_logits(kTokens, kVocabulary, 11);
  for (const Divergence& divergence : divergences()) {
    for (const double temperature : {1.0, 2.0, 0.5}) {
      const TeacherLogits teacher(tensor_of(p)), narrow(tensor_of(p, at::kFloat));
      const Row found = row_of(divergence.losses(tensor_of(q), teacher, temperature));
      const at::Tensor single = divergence.losses(tensor_of(q, at::kFloat), narrow, temperature);
      EXPECT_EQ(single.scalar_type(), at::kFloat);
      for (int64_t t = 0; t < kTokens; ++t) {
        const double expected = divergence.plain(plain_softmax(p[t], temperature), plain_softmax(q[t], temperature));
        EXPECT_NEAR(found[t], expected, 1e-13) << divergence.name << " at temperature " << temperature;
        // Logits are rounded, and logarithms have a dozen roundings, each of up to 20 / temperature. The losses are
        // means of them.
        EXPECT_NEAR(row_of(single)[t], expected, 12 * kEps32 * 20 / temperature) << divergence.name;
      }
    }
  }
}

TEST(Divergences, OfATruncatedTeacherAreThoseOfTheMergedDistributions) {
  const Rows p = random_logits(kTokens, kVocabulary, 12), q = random_logits(kTokens, kVocabulary, 13);
  const std::vector<double> temperatures = {1.0, 2.0};
  for (const int64_t num_kept : {1, 5, 22}) {
    const TruncatedLogits truncated = truncate_logits(tensor_of(p), num_kept, temperatures);
    for (const double temperature : temperatures) {
      Rows merged_p, merged_q;
      for (int64_t t = 0; t < kTokens; ++t) {
        const at::Tensor row = truncated.ids_TK[t].contiguous();
        const std::vector<int64_t> ids(row.const_data_ptr<int64_t>(), row.const_data_ptr<int64_t>() + num_kept);
        merged_p.push_back(merged(plain_softmax(p[t], temperature), ids));
        merged_q.push_back(merged(plain_softmax(q[t], temperature), ids));
      }
      for (const Divergence& divergence : divergences()) {
        const Row found = row_of(divergence.losses(tensor_of(q), TeacherLogits(truncated), temperature));
        const Row all = row_of(divergence.losses(tensor_of(q), TeacherLogits(tensor_of(p)), temperature));
        const Row of_merged =
            row_of(divergence.losses(tensor_of(merged_q).log(), TeacherLogits(tensor_of(merged_p).log()), 1.0));
        for (int64_t t = 0; t < kTokens; ++t) {
          EXPECT_NEAR(found[t], divergence.plain(merged_p[t], merged_q[t]), 1e-13) << divergence.name;
          EXPECT_NEAR(found[t], of_merged[t], 1e-13) << divergence.name;
          EXPECT_LE(found[t], all[t] + 1e-13) << divergence.name << ": merging outcomes cannot add";
        }
      }
    }
  }
}

TEST(Divergences, OfAllTokensKeptAreThoseOfAllLogits) {
  const at::Tensor p = tensor_of(random_logits(kTokens, kVocabulary, 14));
  const at::Tensor q = tensor_of(random_logits(kTokens, kVocabulary, 15));
  const TeacherLogits kept(truncate_logits(p, kVocabulary, {1.0}));
  for (const Divergence& divergence : divergences()) {
    for (const double temperature : {1.0, 3.0}) {
      const Losses of_kept = against(divergence, kept, temperature);
      const Losses of_all = against(divergence, TeacherLogits(p), temperature);
      EXPECT_LE(of_kept(q).sub(of_all(q)).abs().max().item<double>(), 1e-13) << divergence.name;
      EXPECT_LE(gradient_of(of_kept, q).sub(gradient_of(of_all, q)).abs().max().item<double>(), 1e-13)
          << divergence.name;
    }
  }
}

TEST(Divergences, GradientsAreThoseOfCentralDifferences) {
  const at::Tensor p = tensor_of(random_logits(3, 7, 16)), q = tensor_of(random_logits(3, 7, 17));
  for (const Divergence& divergence : divergences()) {
    for (const double temperature : {1.0, 2.0, 0.5}) {
      expect_gradient(against(divergence, TeacherLogits(p), temperature), q, divergence.name);
      expect_gradient(against(divergence, TeacherLogits(truncate_logits(p, 3, {1.0, 2.0, 0.5})), temperature), q,
                      divergence.name + " truncated");
    }
  }
}

TEST(Divergences, AreZeroForTheTeacherItself) {
  const at::Tensor p = tensor_of(random_logits(kTokens, kVocabulary, 18));
  for (const Divergence& divergence : divergences()) {
    for (const TeacherLogits& teacher : {TeacherLogits(p), TeacherLogits(truncate_logits(p, 4, {1.0}))}) {
      const Losses losses = against(divergence, teacher, 1.0);
      EXPECT_LE(losses(p).abs().max().item<double>(), 1e-13) << divergence.name;
      // There total_variation has no gradient, but subgradients of up to half the masses.
      if (divergence.name != "total_variation") {
        EXPECT_LE(gradient_of(losses, p).abs().max().item<double>(), 1e-13) << divergence.name;
      }
    }
  }
}

TEST(Divergences, EndsOfTheFamiliesAreTheKls) {
  const at::Tensor p = tensor_of(random_logits(kTokens, kVocabulary, 19));
  const at::Tensor q = tensor_of(random_logits(kTokens, kVocabulary, 20));
  const TeacherLogits teacher(p);
  const at::Tensor forward = forward_kl(q, teacher), reverse = reverse_kl(q, teacher);
  EXPECT_TRUE(jensen_shannon(q, teacher, 0.0).equal(forward));
  EXPECT_TRUE(jensen_shannon(q, teacher, 1.0).equal(reverse));
  EXPECT_TRUE(skew_kl(q, teacher, 0.0).equal(forward));
  EXPECT_TRUE(skew_reverse_kl(q, teacher, 0.0).equal(reverse));
  EXPECT_LE(skew_kl(q, teacher, 1.0).abs().max().item<double>(), 1e-13);
  EXPECT_LE(skew_reverse_kl(q, teacher, 1.0).abs().max().item<double>(), 1e-13);
  // JSD(beta) / beta -> KL(p || q) as beta -> 0. The error is at most beta times sum p^2 / q, and likewise at the other
  // end. The rounding of logarithms up to 20 is divided by beta.
  const double beta = 1e-9;
  const at::Tensor p_masses = p.softmax(1), q_masses = q.softmax(1);
  const double of_forward = p_masses.square().div(q_masses).sum(1).max().item<double>();
  const double of_reverse = q_masses.square().div(p_masses).sum(1).max().item<double>();
  EXPECT_LE(jensen_shannon(q, teacher, beta).div(beta).sub(forward).abs().max().item<double>(),
            beta * of_forward + 1e-5);
  EXPECT_LE(jensen_shannon(q, teacher, 1.0 - beta).div(beta).sub(reverse).abs().max().item<double>(),
            beta * of_reverse + 1e-5);
  // It is symmetric at 1/2.
  EXPECT_LE(jensen_shannon(q, teacher, 0.5).sub(jensen_shannon(p, TeacherLogits(q), 0.5)).abs().max().item<double>(),
            1e-13);
}

// At the least share of a mixture that a training may have, float32's gradients are those of float64. A logarithm of up
// to 16 is rounded by 2^-21 at most. The gradient is as large as the share and contains some four of these.
TEST(Divergences, GradientsOfTheLeastMixturesAreMoreThanRounding) {
  at::manual_seed(3);
  const at::Tensor student = at::randn({32, 300}, at::kDouble).mul(2.0).to(at::kFloat).to(at::kDouble);
  const at::Tensor teacher = at::randn({32, 300}, at::kDouble).mul(2.0).to(at::kFloat).to(at::kDouble);
  const auto gradient = [&](const auto& loss, at::ScalarType type) {
    const at::Tensor logits = student.to(type).requires_grad_(true);
    return torch::autograd::grad({loss(logits, TeacherLogits(teacher.to(type))).sum()}, {logits})
        .front()
        .to(at::kDouble);
  };
  const auto error = [&](const auto& loss) {
    const at::Tensor exact = gradient(loss, at::kDouble);
    return gradient(loss, at::kFloat).sub(exact).norm().div(exact.norm()).template item<double>();
  };
  const auto of_beta = [](double beta) {
    return [beta](const at::Tensor& q, const TeacherLogits& p) { return jensen_shannon(q, p, beta); };
  };
  const auto of_skew = [](double skew) {
    return [skew](const at::Tensor& q, const TeacherLogits& p) { return skew_kl(q, p, skew); };
  };
  const auto of_reverse_skew = [](double skew) {
    return [skew](const at::Tensor& q, const TeacherLogits& p) { return skew_reverse_kl(q, p, skew); };
  };
  const double least = kLeastShareOfMixture, tolerance = std::ldexp(1.0, -21) / least;
  EXPECT_LT(error(of_beta(least)), 4.0 * tolerance);
  EXPECT_LT(error(of_beta(1.0 - least)), 4.0 * tolerance);
  EXPECT_LT(error(of_skew(1.0 - least)), 4.0 * tolerance);
  EXPECT_LT(error(of_reverse_skew(1.0 - least)), 4.0 * tolerance);
  EXPECT_GT(error(of_beta(1e-7)), 0.1) << "what is refused is refused for a reason";
}

TEST(SoftLabels, AreTheSquareOfTheTemperatureTimesKlAndTheLabel) {
  const Rows p = random_logits(kTokens, kVocabulary, 21), q = random_logits(kTokens, kVocabulary, 22);
  const TeacherLogits teacher(tensor_of(p));
  for (const double temperature : {1.0, 4.0}) {
    const SoftLabelOptions options{.temperature = temperature, .label_weight = 0.3};
    SoftLabelOptions crossed = options;
    crossed.form = SoftForm::cross_entropy;
    const Row found = row_of(soft_label_loss(tensor_of(q), teacher, labels_of(kLabels), options));
    const Row cross = row_of(soft_label_loss(tensor_of(q), teacher, labels_of(kLabels), crossed));
    for (int64_t t = 0; t < kTokens; ++t) {
      const Row soft_p = plain_softmax(p[t], temperature), soft_q = plain_softmax(q[t], temperature);
      const double label = kLabels[t] < 0 ? 0.0 : -std::log(plain_softmax(q[t])[kLabels[t]]);
      double entropy = 0.0;
      for (const double mass : soft_p) entropy -= mass * std::log(mass);
      const double square = temperature * temperature;
      EXPECT_NEAR(found[t], square * plain_kl(soft_p, soft_q) + 0.3 * label, 1e-12);
      EXPECT_NEAR(cross[t], square * (plain_kl(soft_p, soft_q) + entropy) + 0.3 * label, 1e-12);
    }
    const auto losses = [&](const SoftLabelOptions& with) -> Losses {
      return [=, &teacher](const at::Tensor& student) {
        return soft_label_loss(student, teacher, labels_of(kLabels), with);
      };
    };
    expect_gradient(losses(options), tensor_of(q), "soft labels");
    EXPECT_LE(gradient_of(losses(options), tensor_of(q))
                  .sub(gradient_of(losses(crossed), tensor_of(q)))
                  .abs()
                  .max()
                  .item<double>(),
              1e-13);
  }
}

// Section 2.1 of the paper: at high temperatures distillation matches logits. T^2 KL approaches half the variance, over
// the vocabulary, of the logits' difference. The rest falls with 1 / T.
TEST(SoftLabels, BecomeTheVarianceOfLogitsAtHighTemperatures) {
  const Rows p = random_logits(kTokens, kVocabulary, 23), q = random_logits(kTokens, kVocabulary, 24);
  const double temperature = 1e4;
  const Row found = row_of(
      soft_label_loss(tensor_of(q), TeacherLogits(tensor_of(p)), labels_of(kLabels), {.temperature = temperature}));
  for (int64_t t = 0; t < kTokens; ++t) {
    double sum = 0.0, squares = 0.0;
    for (int64_t v = 0; v < kVocabulary; ++v) {
      const double difference = p[t][v] - q[t][v];
      sum += difference;
      squares += difference * difference;
    }
    const double variance = squares / kVocabulary - sum / kVocabulary * sum / kVocabulary;
    EXPECT_NEAR(found[t], 0.5 * variance, variance * 30 / temperature);
  }
}

TEST(HardLabels, AreLogarithmsOfTheStudentsMass) {
  const Rows q = random_logits(kTokens, kVocabulary, 25);
  const at::Tensor labels = labels_of(kLabels);
  const Row found = row_of(hard_label_loss(tensor_of(q), labels));
  for (int64_t t = 0; t < kTokens; ++t) {
    EXPECT_NEAR(found[t], kLabels[t] < 0 ? 0.0 : -std::log(plain_softmax(q[t])[kLabels[t]]), 1e-13);
  }
  expect_gradient([&](const at::Tensor& student) { return hard_label_loss(student, labels); }, tensor_of(q), "labels");
  EXPECT_TRUE(label_log_probs(tensor_of(q), labels).equal(hard_label_loss(tensor_of(q), labels).neg()));
}

// Takes all labels that the teacher may draw, weighted with its probabilities. The divergence of the merged outcomes
// plus what the labels say of the tail is then the divergence of all outcomes, up to the tail's own entropy. The
// gradients are the same.
TEST(TailLabels, MakeUpForWhatMergingTakes) {
  const Rows p = random_logits(kTokens, kVocabulary, 60), q = random_logits(kTokens, kVocabulary, 61);
  const TeacherLogits all(tensor_of(p));
  for (const int64_t num_kept : {1, 5, 21}) {
    const TruncatedLogits truncated = truncate_logits(tensor_of(p), num_kept, {1.0});
    const TeacherLogits merged(truncated);
    const auto expected_loss = [&](const at::Tensor& student_TV) {
      at::Tensor sum_T = forward_kl(student_TV, merged);
      for (int64_t label = 0; label < kVocabulary; ++label) {
        std::vector<double> weights;
        for (const Row& row : p) weights.push_back(plain_softmax(row)[static_cast<size_t>(label)]);
        const at::Tensor losses_T = tail_label_loss(student_TV, merged, labels_of({label, label, label, label}));
        sum_T = sum_T.add(losses_T.mul(tensor_of({weights}).squeeze(0)));
      }
      return sum_T;
    };
    const Row found = row_of(expected_loss(tensor_of(q))), full = row_of(forward_kl(tensor_of(q), all));
    for (int64_t t = 0; t < kTokens; ++t) {
      const Row probabilities = plain_softmax(p[t]);
      const Row kept = rows_of(truncated.ids_TK[t].unsqueeze(0)).front();
      double tail = 0.0, constant = 0.0;  // the sum over the tail of p log(p / p(tail))
      for (const int pass : {0, 1}) {
        for (int64_t v = 0; v < kVocabulary; ++v) {
          if (std::find(kept.begin(), kept.end(), static_cast<double>(v)) != kept.end()) continue;
          if (pass == 0) tail += probabilities[v];
          if (pass == 1) constant += probabilities[v] * std::log(probabilities[v] / tail);
        }
      }
      EXPECT_NEAR(found[t] + constant, full[t], 1e-13) << num_kept << " kept, token " << t;
    }
    const at::Tensor gradient = gradient_of(expected_loss, tensor_of(q));
    const at::Tensor of_all = gradient_of([&](const at::Tensor& s) { return forward_kl(s, all); }, tensor_of(q));
    EXPECT_LE(gradient.sub(of_all).abs().max().item<double>(), 1e-13) << num_kept << " kept";
    EXPECT_GT(gradient_of([&](const at::Tensor& s) { return forward_kl(s, merged); }, tensor_of(q))
                  .sub(of_all)
                  .abs()
                  .max()
                  .item<double>(),
              1e-6)
        << "merging takes something";
  }
}

TEST(TailLabels, AreZeroWhereTheTeacherHoldsTheLabel) {
  const at::Tensor p = tensor_of(random_logits(kTokens, kVocabulary, 62));
  const at::Tensor q = tensor_of(random_logits(kTokens, kVocabulary, 63)).set_requires_grad(true);
  const TruncatedLogits truncated = truncate_logits(p, 4, {1.0});
  const at::Tensor labels = truncated.ids_TK.select(1, 3).clone();
  const at::Tensor all_kept = tail_label_loss(q, TeacherLogits(truncated), labels);
  EXPECT_EQ(all_kept.abs().max().item<double>(), 0.0);
  EXPECT_EQ(tail_label_loss(q, TeacherLogits(p), labels).abs().max().item<double>(), 0.0);
  const TeacherLogits whole(truncate_logits(p, kVocabulary, {1.0}));
  EXPECT_EQ(tail_label_loss(q, whole, labels).abs().max().item<double>(), 0.0);
  // One label is in the tail, one is held by the teacher, and one is ignored.
  at::Tensor mixed = labels.clone();
  mixed[0] = truncate_logits(p, 5, {1.0}).ids_TK[0][4];
  mixed[2] = kIgnoredLabel;
  const Row losses = row_of(tail_label_loss(q, TeacherLogits(truncated), mixed));
  EXPECT_GT(losses[0], 0.0);
  EXPECT_EQ(losses[1], 0.0);
  EXPECT_EQ(losses[2], 0.0);
  expect_gradient([&](const at::Tensor& s) { return tail_label_loss(s, TeacherLogits(truncated), mixed); }, q.detach(),
                  "tail labels");
  // This student gives the whole tail no mass.
  at::Tensor without = at::full_like(q.detach(), -std::numeric_limits<double>::infinity());
  without.scatter_(1, truncated.ids_TK, 0.0);
  const auto of_truncated = [&](const at::Tensor& s) { return tail_label_loss(s, TeacherLogits(truncated), mixed); };
  EXPECT_EQ(row_of(of_truncated(without))[0], -kLogOfNoMass);
  EXPECT_EQ(gradient_of(of_truncated, without).abs().max().item<double>(), 0.0);
  expect_error<std::invalid_argument>(
      [&] { TeacherLogits(p).student_tail_log_probs(q, labels_of({0}), labels_of({0})); }, {"tail"});
  expect_error<std::invalid_argument>(
      [&] {
        tail_label_loss(q, TeacherLogits(truncated), labels_of({1, 2, 23, 0}));
      },
      {"labels[2]", "0 .. 22", "found 23"});
}

TEST(Slim, WeighsTheDivergenceOfTheLargestLogitsBySequence) {
  const Rows p = random_logits(kTokens, kVocabulary, 26), q = random_logits(kTokens, kVocabulary, 27);
  const at::Tensor labels = labels_of(kLabels), sequences = labels_of({0, 0, 1, 0});
  const auto cross_entropy = [](const Row& logits, int64_t label) { return -std::log(plain_softmax(logits)[label]); };
  // Sequence 0 has tokens 0, 1 (ignored) and 3. Sequence 1 has token 2.
  const double of_student = cross_entropy(q[0], 3) + cross_entropy(q[3], 0);
  const double of_teacher = cross_entropy(p[0], 3) + cross_entropy(p[3], 0);
  const double first = 1.0 - std::exp(-of_student / of_teacher);
  const double second = 1.0 - std::exp(-cross_entropy(q[2], 22) / cross_entropy(p[2], 22));
  const at::Tensor weights =
      slim_weights(hard_label_loss(tensor_of(q), labels), hard_label_loss(tensor_of(p), labels), labels, sequences);
  const Row expected_weights = {first, first, second, first};
  for (int64_t t = 0; t < kTokens; ++t) EXPECT_NEAR(row_of(weights)[t], expected_weights[t], 1e-13);

  EXPECT_EQ(num_slim_logits(kVocabulary, 0.2), 5);  // 4.6, rounded up
  const SlimOptions options{.temperature = 2.0, .share = 0.2, .weight = 0.7};
  const TeacherLogits full(tensor_of(p)), longer(truncate_logits(tensor_of(p), 9, {2.0}));
  for (const TeacherLogits& teacher : {full, longer}) {
    const Row found = row_of(slim_loss(tensor_of(q), teacher, labels, weights, options));
    for (int64_t t = 0; t < kTokens; ++t) {
      const at::Tensor row = truncate_logits(tensor_of(p), 5, {1.0}).ids_TK[t].contiguous();
      const std::vector<int64_t> ids(row.const_data_ptr<int64_t>(), row.const_data_ptr<int64_t>() + 5);
      const double divergence = plain_kl(merged(plain_softmax(p[t], 2.0), ids), merged(plain_softmax(q[t], 2.0), ids));
      const double label = kLabels[t] < 0 ? 0.0 : cross_entropy(q[t], kLabels[t]);
      EXPECT_NEAR(found[t], label + 0.7 * expected_weights[t] * divergence, 1e-13);
    }
    expect_gradient([&](const at::Tensor& student) { return slim_loss(student, teacher, labels, weights, options); },
                    tensor_of(q), "slim");
  }
}

TEST(Slim, WeightsHaveTheirLimits) {
  const auto weight = [](double of_student, double of_teacher) {
    return slim_weights(tensor_of({{of_student}})[0], tensor_of({{of_teacher}})[0], labels_of({0}), labels_of({0}))
        .item<double>();
  };
  EXPECT_EQ(weight(0.0, 0.0), 0.0);
  EXPECT_EQ(weight(0.0, 2.0), 0.0);
  EXPECT_EQ(weight(2.0, 0.0), 1.0);
  EXPECT_NEAR(weight(1e-9, 1.0), 1e-9, 1e-17);
  EXPECT_NEAR(weight(2.0, 2.0), 1.0 - std::exp(-1.0), 1e-15);
  EXPECT_EQ(num_slim_logits(49152, 0.05), 2458);
  EXPECT_EQ(num_slim_logits(100, 0.07), 7);  // 0.07 * 100 is above 7 in binary
  EXPECT_EQ(num_slim_logits(3, 0.05), 1);
  EXPECT_EQ(num_slim_logits(50, 1.0), 50);
}

TEST(MeanLoss, LeavesOutIgnoredTokens) {
  const at::Tensor losses = tensor_of({{1.0, std::nan(""), 2.5, kInfinity, 4.0}})[0].clone().set_requires_grad(true);
  const at::Tensor labels = labels_of({5, kIgnoredLabel, 0, kIgnoredLabel, 2});
  const at::Tensor mean = mean_loss(losses, labels);
  EXPECT_EQ(mean.dim(), 0);
  EXPECT_EQ(mean.item<double>(), 2.5);
  mean.backward();
  const double third = 1.0 / 3.0;
  EXPECT_EQ(row_of(losses.grad()), (Row{third, 0.0, third, 0.0, third}));
  // A batch of 4 tokens in chunks, one of which is ignored altogether.
  double sum = 0.0;
  for (const auto& [first, count] : {std::pair<int64_t, int64_t>{0, 1}, {1, 1}, {2, 3}}) {
    sum += mean_loss(losses.detach().narrow(0, first, count), labels.narrow(0, first, count), 4).item<double>();
  }
  EXPECT_EQ(sum, 7.5 / 4.0);
  expect_error<std::invalid_argument>(
      [&] {
        mean_loss(losses, labels_of({-100, -100, -100, -100, -100}));
      },
      {"at least one token", "0 of 5"});
  expect_error<std::invalid_argument>([&] { mean_loss(losses, labels, 0); }, {"at least one token"});
  expect_error<std::invalid_argument>([&] { mean_loss(losses, labels_of({1})); }, {"labels", "[5]", "[1]"});
  expect_error<std::invalid_argument>([&] { mean_loss(losses.unsqueeze(0), labels); }, {"losses"});
}

TEST(TokenLosses, GoByName) {
  const at::Tensor p = tensor_of(random_logits(kTokens, kVocabulary, 28));
  const at::Tensor q = tensor_of(random_logits(kTokens, kVocabulary, 29));
  const TeacherLogits teacher(p);
  const at::Tensor labels = labels_of(kLabels), weights = at::full({kTokens}, 0.25, at::kDouble);
  DistillLossOptions options{
      .temperature = 1.5, .label_weight = 0.4, .beta = 0.3, .skew = 0.2, .slim_share = 0.1, .slim_weight = 0.6};
  const auto losses = [&](DistillLoss loss) {
    options.loss = loss;
    return token_losses(options, q, teacher, labels, weights);
  };
  EXPECT_TRUE(losses(DistillLoss::hard_label).equal(hard_label_loss(q, labels)));
  EXPECT_TRUE(losses(DistillLoss::soft_label)
                  .equal(soft_label_loss(q, teacher, labels, {.temperature = 1.5, .label_weight = 0.4})));
  EXPECT_TRUE(losses(DistillLoss::forward_kl).equal(forward_kl(q, teacher, 1.5)));
  EXPECT_TRUE(losses(DistillLoss::reverse_kl).equal(reverse_kl(q, teacher, 1.5)));
  EXPECT_TRUE(losses(DistillLoss::jensen_shannon).equal(jensen_shannon(q, teacher, 0.3, 1.5)));
  EXPECT_TRUE(losses(DistillLoss::skew_kl).equal(skew_kl(q, teacher, 0.2, 1.5)));
  EXPECT_TRUE(losses(DistillLoss::skew_reverse_kl).equal(skew_reverse_kl(q, teacher, 0.2, 1.5)));
  EXPECT_TRUE(losses(DistillLoss::total_variation).equal(total_variation(q, teacher, 1.5)));
  EXPECT_TRUE(losses(DistillLoss::slim)
                  .equal(slim_loss(q, teacher, labels, weights, {.temperature = 1.5, .share = 0.1, .weight = 0.6})));
  expect_error<std::invalid_argument>([&] { losses(DistillLoss::minillm); }, {"minillm", "sampled"});
}

TEST(TokenLosses, AddTheTailsLabelsByTheirWeight) {
  const at::Tensor q = tensor_of(random_logits(kTokens, kVocabulary, 29)), labels = labels_of(kLabels);
  const TeacherLogits teacher(truncate_logits(tensor_of(random_logits(kTokens, kVocabulary, 28)), 3, {1.5}));
  const at::Tensor tail = tail_label_loss(q, teacher, labels).mul(0.7);
  EXPECT_GT(tail.max().item<double>(), 0.0);
  DistillLossOptions options{
      .loss = DistillLoss::forward_kl, .temperature = 1.5, .label_weight = 0.4, .tail_label_weight = 0.7};
  EXPECT_TRUE(token_losses(options, q, teacher, labels).allclose(forward_kl(q, teacher, 1.5).add(tail), 1e-15));
  options.loss = DistillLoss::soft_label;
  const at::Tensor soft = soft_label_loss(q, teacher, labels, {.temperature = 1.5, .label_weight = 0.4});
  EXPECT_TRUE(token_losses(options, q, teacher, labels).allclose(soft.add(tail), 1e-15));
}

// Returns all losses of a student, by name, for the tests below.
std::vector<std::pair<std::string, Losses>> all_losses(const TeacherLogits& teacher, const at::Tensor& labels) {
  std::vector<std::pair<std::string, Losses>> all;
  for (const EnumName<DistillLoss>& item : enum_names(DistillLoss::hard_label)) {
    if (item.value == DistillLoss::minillm) continue;
    const DistillLossOptions options{.loss = item.value, .slim_share = 0.01};
    all.emplace_back(item.name, [=](const at::Tensor& student) {
      return token_losses(options, student, teacher, labels, at::full({labels.size(0)}, 0.5));
    });
  }
  return all;
}

void expect_finite(const TeacherLogits& teacher, const at::Tensor& student, const std::string& what) {
  const at::Tensor labels = labels_of(std::vector<int64_t>(student.size(0), 0));
  for (const auto& [name, losses] : all_losses(teacher, labels)) {
    const at::Tensor values = losses(student);
    EXPECT_TRUE(values.isfinite().all().item<bool>()) << name << ", " << what << ": " << values;
    EXPECT_GE(values.min().item<double>(), -1e-5) << name << ", " << what;
    const at::Tensor gradient = gradient_of(losses, student);
    EXPECT_TRUE(gradient.isfinite().all().item<bool>()) << name << ", " << what << ": " << gradient;
  }
}

TEST(ExtremeLogits, GiveFiniteLossesAndGradients) {
  const Rows extremes = {{1e4, -1e4, 0, 1, 2, -1e4},
                         {-1e4, 1e4, 0, 1, 2, 1e4},
                         {0, 0, 0, 0, 0, 0},
                         {1e4, 1e4, 1e4, 1e4, 1e4, 1e4},
                         {-kInfinity, 3, -kInfinity, 1, 2, 0},
                         {5, -kInfinity, -kInfinity, -kInfinity, -kInfinity, -kInfinity},
                         {-kInfinity, -1e4, -kInfinity, -kInfinity, 1e4, -kInfinity}};
  for (size_t i = 0; i < extremes.size(); ++i) {
    for (size_t j = 0; j < extremes.size(); ++j) {
      const at::Tensor p = tensor_of({extremes[i]}, at::kFloat), q = tensor_of({extremes[j]}, at::kFloat);
      const std::string what = "teacher " + std::to_string(i) + ", student " + std::to_string(j);
      expect_finite(TeacherLogits(p), q, what);
      for (const int64_t num_kept : {1, 2, 6}) {
        expect_finite(TeacherLogits(truncate_logits(p, num_kept, {1.0})), q,
                      what + ", kept " + std::to_string(num_kept));
      }
    }
  }
  expect_finite(TeacherLogits(at::full({3, 1}, 7.0)), at::full({3, 1}, -1e4), "a vocabulary of 1");
  expect_finite(TeacherLogits(truncate_logits(at::full({3, 1}, 7.0), 1, {1.0})), at::full({3, 1}, 2.0),
                "a vocabulary of 1, kept");
}

// A mass of 0 costs what losses.h says. Both distributions have half their mass on one token that the other forbids.
TEST(ExtremeLogits, MassesOfZeroCountAsDocumented) {
  const at::Tensor p = tensor_of({{0.0, 0.0, -kInfinity}}), q = tensor_of({{0.0, -kInfinity, 0.0}});
  const TeacherLogits teacher(p);
  const double log_half = std::log(0.5), nothing = kLogOfNoMass;
  EXPECT_NEAR(forward_kl(q, teacher).item<double>(), 0.5 * (log_half - nothing), 1e-13);
  EXPECT_NEAR(reverse_kl(q, teacher).item<double>(), 0.5 * (log_half - nothing), 1e-13);
  EXPECT_NEAR(total_variation(q, teacher).item<double>(), 0.5, 1e-15);
  EXPECT_NEAR(jensen_shannon(q, teacher, 0.5).item<double>(), 0.5 * std::log(2.0), 1e-13);
  EXPECT_NEAR(skew_kl(q, teacher, 0.1).item<double>(), 0.5 * -std::log(0.1), 1e-13);
  EXPECT_NEAR(skew_reverse_kl(q, teacher, 0.1).item<double>(), 0.5 * -std::log(0.1), 1e-13);
  EXPECT_NEAR(hard_label_loss(q, labels_of({1})).item<double>(), -nothing, 1e-13);
  EXPECT_NEAR(nothing, -149 * std::log(2.0), 1e-12);
  // Mass moves from the token that the teacher forbids to the one that both allow. Nothing can be asked of the one that
  // the student forbids.
  const Row gradient =
      row_of(gradient_of([&](const at::Tensor& student) { return reverse_kl(student, teacher); }, q).squeeze(0));
  EXPECT_NEAR(gradient[2], 0.25 * -(nothing - log_half), 1e-12);
  EXPECT_NEAR(gradient[0], -gradient[2], 1e-12);
  EXPECT_EQ(gradient[1], 0.0);
}

// The sums have 70001 terms, which ATen would split between threads if there were only one token.
TEST(Losses, AnyNumberOfThreadsGivesTheSameBits) {
  const int threads = at::get_num_threads();
  for (const int64_t num_tokens : {1, 3}) {
    const at::Tensor p = tensor_of(random_logits(num_tokens, 70001, 30), at::kFloat);
    const at::Tensor q = tensor_of(random_logits(num_tokens, 70001, 31), at::kFloat);
    const at::Tensor labels = labels_of(std::vector<int64_t>(num_tokens, 69999));
    for (const TeacherLogits& teacher : {TeacherLogits(p), TeacherLogits(truncate_logits(p, 800, {1.0}))}) {
      for (const auto& [name, losses] : all_losses(teacher, labels)) {
        const auto averaged = [&, &of = losses](const at::Tensor& student) { return mean_loss(of(student), labels); };
        at::set_num_threads(1);
        const at::Tensor alone = losses(q), alone_gradient = gradient_of(averaged, q);
        for (const int num_threads : {2, 3}) {
          at::set_num_threads(num_threads);
          EXPECT_TRUE(alone.equal(losses(q))) << name << ", " << num_tokens << " tokens";
          EXPECT_TRUE(alone_gradient.equal(gradient_of(averaged, q))) << name << ", " << num_tokens << " tokens";
        }
      }
    }
  }
  const at::Tensor many = tensor_of(random_logits(1, 100003, 32), at::kFloat)[0];
  const at::Tensor labels = labels_of(std::vector<int64_t>(100003, 0));
  at::set_num_threads(1);
  const at::Tensor alone = mean_loss(many, labels);
  at::set_num_threads(2);
  EXPECT_TRUE(alone.equal(mean_loss(many, labels)));
  at::set_num_threads(threads);
}

TEST(Losses, RefuseWhatTheyCannotRead) {
  const at::Tensor p = tensor_of(random_logits(2, 8, 33)), q = tensor_of(random_logits(2, 8, 34));
  const TeacherLogits teacher(p), truncated(truncate_logits(p, 2, {1.0}));
  const at::Tensor labels = labels_of({1, 2});
  expect_error<std::invalid_argument>([&] { hard_label_loss(q, labels_of({1, 8})); }, {"labels[1]", "0 .. 7", "8"});
  expect_error<std::invalid_argument>([&] { hard_label_loss(q, labels_of({-1, 8})); }, {"labels[0]", "-100", "-1"});
  expect_error<std::invalid_argument>([&] { hard_label_loss(q, labels.to(at::kInt)); }, {"labels", "int64", "Int"});
  expect_error<std::invalid_argument>([&] { hard_label_loss(q[0], labels); }, {"logits", "[8]"});
  for (const double share : {-0.1, 1.1, std::nan("")}) {
    expect_error<std::invalid_argument>([&] { jensen_shannon(q, teacher, share); }, {"beta", "0 to 1"});
    expect_error<std::invalid_argument>([&] { skew_kl(q, teacher, share); }, {"skew", "0 to 1"});
    expect_error<std::invalid_argument>([&] { skew_reverse_kl(q, teacher, share); }, {"skew", "0 to 1"});
  }
  for (const Divergence& divergence : divergences()) {
    expect_error<std::invalid_argument>([&] { divergence.losses(q, truncated, 2.0); }, {"temperature 2", "tail"});
    expect_error<std::invalid_argument>([&] { divergence.losses(q, teacher, 0.0); }, {"temperature", "positive"});
    expect_error<std::invalid_argument>([&] { divergence.losses(q[0], teacher, 1.0); }, {"student logits", "[8]"});
  }
  const at::Tensor weights = at::ones({2});
  expect_error<std::invalid_argument>([&] { slim_loss(q, truncated, labels, weights, {.share = 0.5}); },
                                      {"4 logits", "found 2", "slim_share"});
  expect_error<std::invalid_argument>([&] { slim_loss(q, teacher, labels, weights, {.share = 0.0}); }, {"slim_share"});
  expect_error<std::invalid_argument>([&] { slim_loss(q, teacher, labels, {}, {}); }, {"weights", "none"});
  const at::Tensor losses = hard_label_loss(q, labels);
  expect_error<std::invalid_argument>(
      [&] {
        slim_weights(losses, losses, labels, labels_of({0, 2}));
      },
      {"sequences[1]", "0 .. 1", "2"});
  expect_error<std::invalid_argument>(
      [&] {
        slim_weights(losses, losses.neg(), labels, labels_of({0, 0}));
      },
      {"token 0", "at least 0"});
  expect_error<std::invalid_argument>([&] { slim_weights(losses, losses[0], labels, labels); }, {"teacher's losses"});
}

}  // namespace
}  // namespace pare
