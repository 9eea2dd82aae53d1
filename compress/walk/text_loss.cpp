#include "compress/walk/text_loss.h"

#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <map>
#include <span>
#include <vector>

#include "compress/model/matrix_products.h"
#include "compress/walk/decoder_block.h"
#include "compress/walk/hidden_store.h"
#include "quant/row_chunks.h"
#include "runtime/system/interrupt.h"

namespace pare::compress {
namespace {

constexpr int64_t kHeadRows = 512;  // of the head that one worker holds

runtime::TokenWindows sample(const runtime::TokenWindows& windows) {
  runtime::TokenWindows few;
  few.num_windows = std::min(kTextLossWindows, windows.num_windows);
  few.num_tokens = std::min(kTextLossTokens, windows.num_tokens);
  for (int64_t n = 0; n < few.num_windows; ++n) {
    const std::span<const int32_t> ids = windows.window(n * windows.num_windows / few.num_windows);
    few.ids_NT.insert(few.ids_NT.end(), ids.begin(), ids.begin() + few.num_tokens);
  }
  return few;
}

// Through all blocks and the final norm, in place.
void pass_blocks(const runtime::Checkpoint& checkpoint, const runtime::TokenWindows& windows,
                 const HiddenStore& hidden) {
  const runtime::ModelDescription& model = checkpoint.description();
  const int64_t num_tokens = windows.num_tokens, width = model.hidden_size;
  const runtime::LinearWeights embedding = checkpoint.linear(checkpoint.embedding());
  const EmbeddingRest rest = read_embedding_rest(checkpoint);
  const auto each_window = [&](const std::function<void(int64_t, at::Tensor&)>& body) {
    quant::for_row_chunks(windows.num_windows, 1, [&](int64_t n, int64_t) {
      at::Tensor hidden_TD = hidden.windows(n, 1, width);
      body(n, hidden_TD);
    });
  };
  each_window([&](int64_t n, at::Tensor& hidden_TD) {
    embed(embedding, model.embedding_scale, windows.window(n), hidden_TD.data_ptr<float>());
    finish_embedding(rest, num_tokens, hidden_TD.data_ptr<float>());
  });
  checkpoint.drop_pages(checkpoint.embedding());
  for (int64_t b = 0; b < static_cast<int64_t>(model.blocks.size()); ++b) {
    runtime::throw_if_interrupted();
    const DecoderBlock block(checkpoint, b, num_tokens);
    each_window([&](int64_t, at::Tensor& hidden_TD) { block.forward(hidden_TD); });
  }
  const FinalNorm final_norm = read_final_norm(checkpoint);
  each_window([&](int64_t, at::Tensor& hidden_TD) { hidden_TD.copy_(final_norm(hidden_TD)); });
}

// Of the logits of one piece of the head: by row the largest, and the sum of exp(logit - largest).
struct PieceSums {
  std::vector<float> largest_R;
  std::vector<double> sum_R;
};

// The mean of -log softmax(head x)[label] over rows [N T] of normalized states, the last of each window left out.
double mean_loss(const runtime::Checkpoint& checkpoint, const runtime::TokenWindows& windows, const at::Tensor& x_RD) {
  const runtime::ModelDescription& model = checkpoint.description();
  const runtime::LinearWeights head = checkpoint.linear(checkpoint.head());
  const int64_t num_rows = x_RD.size(0), width = model.hidden_size, num_out = head.num_out();
  std::vector<PieceSums> pieces(static_cast<size_t>((num_out + kHeadRows - 1) / kHeadRows));
  std::vector<float> label_logits_R(static_cast<size_t>(num_rows), 0.0f);
  quant::for_row_chunks(num_out, kHeadRows, [&](int64_t first, int64_t count) {
    std::vector<float> weight_OI(static_cast<size_t>(count * width));
    runtime::weight_rows(head, first, count, weight_OI);
    at::Tensor logits_RO = linear_of(x_RD, at::from_blob(weight_OI.data(), {count, width}, at::kFloat), std::nullopt);
    if (model.logit_softcap > 0.0f) logits_RO = logits_RO.div(model.logit_softcap).tanh().mul(model.logit_softcap);
    logits_RO = logits_RO.contiguous();
    PieceSums& piece = pieces[static_cast<size_t>(first / kHeadRows)];
    for (int64_t r = 0; r < num_rows; ++r) {
      const std::span<const float> logits(logits_RO.const_data_ptr<float>() + r * count, static_cast<size_t>(count));
      const float largest = *std::max_element(logits.begin(), logits.end());
      double sum = 0.0;
      for (const float logit : logits) sum += std::exp(static_cast<double>(logit - largest));
      piece.largest_R.push_back(largest);
      piece.sum_R.push_back(sum);
      if ((r + 1) % windows.num_tokens == 0) continue;
      const int64_t label = windows.ids_NT[static_cast<size_t>(r + 1)] - first;
      if (label >= 0 && label < count) label_logits_R[static_cast<size_t>(r)] = logits[static_cast<size_t>(label)];
    }
  });
  checkpoint.drop_pages(checkpoint.head());
  double total = 0.0;
  for (size_t r = 0; r < label_logits_R.size(); ++r) {
    if ((static_cast<int64_t>(r) + 1) % windows.num_tokens == 0) continue;
    float largest = -std::numeric_limits<float>::infinity();
    for (const PieceSums& piece : pieces) largest = std::max(largest, piece.largest_R[r]);
    double sum = 0.0;
    for (const PieceSums& piece : pieces) {
      sum += piece.sum_R[r] * std::exp(static_cast<double>(piece.largest_R[r] - largest));
    }
    total += static_cast<double>(largest) + std::log(sum) - static_cast<double>(label_logits_R[r]);
  }
  return total / static_cast<double>(windows.num_windows * (windows.num_tokens - 1));
}

}  // namespace

TextLoss measure_text_loss(const runtime::Checkpoint& model, const runtime::TokenWindows& windows) {
  TextLoss result{.entropy = token_entropy(windows)};
  const runtime::TokenWindows few = sample(windows);
  if (few.num_windows < 1 || few.num_tokens < 2) return result;
  const int64_t width = model.description().hidden_size;
  const HiddenStore hidden({few.num_windows, few.num_tokens, width});
  pass_blocks(model, few, hidden);
  runtime::throw_if_interrupted();
  result.num_predictions = few.num_windows * (few.num_tokens - 1);
  result.loss = mean_loss(model, few, hidden.windows(0, few.num_windows, width));
  return result;
}

double token_entropy(const runtime::TokenWindows& windows) {
  std::map<int32_t, int64_t> counts;
  for (const int32_t id : windows.ids_NT) ++counts[id];
  const auto num_tokens = static_cast<double>(windows.ids_NT.size());
  double entropy = 0.0;
  for (const auto& [id, count] : counts) {
    const double share = static_cast<double>(count) / num_tokens;
    entropy -= share * std::log(share);
  }
  return entropy;
}

}  // namespace pare::compress
